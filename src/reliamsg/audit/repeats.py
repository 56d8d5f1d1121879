"""Findings about the order in which a group delivered, skipped and acknowledged the numbers of one epoch.

The numbers are cut wherever a row or a hole begins or ends, so that all numbers of a piece have the same history. The
history of a piece decides all questions about numbers that occur more than once; the cursor of
:mod:`reliamsg.audit.order` those about the stream as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from reliamsg.audit.context import GroupContext
from reliamsg.audit.order import DEAD, HANDED, SKIPPED, Course, Step
from reliamsg.audit.spans import pieces

__all__ = ["repeats"]

Found = tuple[str, int, int]
"""Kind and range."""
Range = tuple[int, int]


@dataclass(slots=True)
class _Mark:
    """A step of one journal, or the hole that it left, which covers a piece."""

    course: Course
    step: Step
    is_hole: bool

    @property
    def lsn(self) -> int:
        return self.step.fact.lsn

    @property
    def kind(self) -> str:
        return "hole" if self.is_hole else self.step.fact.kind


def repeats(
    courses: Sequence[Course], epoch: int, client: GroupContext | None, unseen: Sequence[Range], leapt: bool
) -> Iterator[Found]:
    """Everything wrong in one epoch of a stream, once for each occurrence. `courses`: those of the group's journals.
    `client`: whether rows of the group are missing, or may follow. `unseen`: half-open ranges that an inbox learned to
    be settled. `leapt`: the epoch as a whole was declared lost."""
    marks: list[tuple[int, int, _Mark | None]] = [
        (first, last, _Mark(course, step, is_hole))
        for course in courses
        for step in course.steps
        if step.fact.epoch == epoch
        for is_hole, (first, last) in (
            (False, (step.first, step.last)), (True, step.hole or (1, 0)),
        )
        if first <= last
    ]  # fmt: skip
    marks += [(at, at, None) for edges in unseen for at in edges]
    places = (place for course in courses for left in course.left for place in left)
    marks += [(at, at, None) for entered, at in places if entered == epoch]
    for first, last, covering in pieces(marks):
        found = [mark for mark in covering if mark is not None]
        settled = any(low <= first < high for low, high in unseen)
        yield from _Piece(first, last, found, client).findings(settled, leapt)


class _Piece:
    """Numbers with the same history."""

    def __init__(self, first: int, last: int, marks: Iterable[_Mark], client: GroupContext | None) -> None:
        self._first, self._last = first, last
        self._sound = client is not None and client.sound
        """Whether no row of the group is missing."""
        self._whole = client is not None and client.whole
        """Whether none can follow either."""
        self._journals: dict[str, list[_Mark]] = {}
        for mark in sorted(marks, key=lambda mark: mark.lsn):
            self._journals.setdefault(mark.course.journal.name, []).append(mark)

    def findings(self, settled: bool, leapt: bool) -> Iterator[Found]:
        histories = [_History(self._first, marks) for marks in self._journals.values()]
        if len(histories) == 1 and histories[0].is_plain:
            return
        unflagged = [(each.rank, each.handed_by) for each in histories if each.has_unflagged]
        dealt = {each.rank for each in histories if each.dealt}
        known = any(each.known for each in histories)
        for history in histories:
            yield from self._deliveries(history, unflagged)
            yield from self._gaps(history, known or settled or leapt)
            yield from self._acknowledged(history)
            if self._sound and dealt <= {history.rank} and not settled and not history.is_left:
                for _ in history.passed():
                    yield "not_redelivered", self._first, self._last

    def _deliveries(self, history: _History, unflagged: Sequence[tuple[int, str]]) -> Iterator[Found]:
        """`unflagged`: the histories in which the first delivery was not flagged, and the opening that delivered."""
        first, last = self._first, self._last
        elsewhere = {boot for rank, boot in unflagged if rank < history.rank}
        for mark in history.marks:
            kind, lsn, step = mark.kind, mark.lsn, mark.step
            handed, skipped = history.before("handed", lsn), history.before("skipped", lsn)
            if kind == "delivered":
                if handed:
                    yield "duplicate", first, last
                elif elsewhere and mark.step.fact.boot not in elsewhere:
                    # No journal records which of two inboxes was first, nor what the other one knew by then. Histories
                    # of a file that was copied share their first openings.
                    yield "duplicate_apart", first, last
                if not handed and not skipped and first < step.start:
                    yield "out_of_order", first, min(last, step.start - 1)
            if kind in HANDED and skipped:
                given_up = kind == "redelivered" and history.before("given_up", lsn)
                if not handed or given_up:
                    yield "delivered_after_gap", first, last
            if kind == "redelivered" and not history.before("replayed", lsn):
                acknowledged = history.acknowledged_boot
                durable = acknowledged is not None and acknowledged < step.boot_lsn
                if durable or history.acknowledged_from(lsn) == step.boot_lsn:
                    # Of an acknowledgement that may have been extended since, only the first number is known to be
                    # older.
                    yield "redelivered_after_ack", first, last if durable else first
            if kind == "replayed" and not history.before("dead", lsn) and not mark.course.journal.broken:
                yield "false_replay", first, last

    def _gaps(self, history: _History, known: bool) -> Iterator[Found]:
        first, last = self._first, self._last
        for mark in history.marks:
            kind, lsn, step = mark.kind, mark.lsn, mark.step
            if kind in SKIPPED and history.before("handed", lsn):
                given_up = history.first("given_up")
                if not (kind == "declared" and given_up is not None and given_up <= lsn):
                    yield "false_gap", first, last
            if kind == "declared" and history.before("hole", lsn) and not history.before("skipped", lsn):
                # A first delivery of the numbers fills a hole; it is out of order then.
                filled = history.before("delivered", lsn) and history.first("delivered") == history.first(
                    "handed"
                )
                if not filled and not mark.course.journal.broken:
                    yield "declared_late", first, last
            if kind == "before_join" and step.begin is not None and step.begin <= first:
                yield "false_before_join", first, last
            if kind == "hole" and not mark.course.journal.broken and not known:
                yield "undeclared_gap", first, last

    def _acknowledged(self, history: _History) -> Iterator[Found]:
        for mark in history.marks:
            if mark.kind != "acknowledged":
                continue
            replayed = history.replayed_boot is not None and history.replayed_boot <= mark.step.boot_lsn
            if history.before("acknowledged", mark.lsn) and not replayed:
                yield "acknowledged_twice", self._first, self._last
            if self._whole and history.first("handed") is None and history.first("dead") is None:
                yield "acknowledged_undelivered", self._first, self._last


class _History:
    """The rows of one journal about a piece, in order."""

    def __init__(self, first: int, marks: list[_Mark]) -> None:
        self.marks = marks
        self.rank = marks[0].course.journal.rank
        self._begins = first
        self._first: dict[str, int] = {}
        self.acknowledged_boot: int | None = None
        self.replayed_boot: int | None = None
        for mark in marks:
            kind, boot_lsn = mark.kind, mark.step.boot_lsn
            for label in _LABELS.get(kind, ()):
                self._first.setdefault(label, mark.lsn)
            if kind == "acknowledged" and self.acknowledged_boot is None:
                self.acknowledged_boot = boot_lsn
            elif kind == "replayed" and self.replayed_boot is None:
                self.replayed_boot = boot_lsn
        if "handed" in self._first and "skipped" in self._first:
            given_up = next((mark.lsn for mark in marks if self._gives_up(mark)), None)
            if given_up is not None:
                self._first["given_up"] = given_up

    @property
    def is_left(self) -> bool:
        """Whether the inbox went on where its group was, with other epochs between that place and its own."""
        place = self.marks[0].step.fact.epoch, self._begins
        return any(low <= place < high for low, high in self.marks[0].course.left)

    @property
    def is_plain(self) -> bool:
        """Whether it was delivered once, and acknowledged at most once after that."""
        kinds = [mark.kind for mark in self.marks]
        step = self.marks[0].step
        if kinds == ["delivered"]:
            return self._begins >= step.start and not step.next_pass
        return (
            kinds == ["delivered", "acknowledged"]
            and self._begins >= step.start
            and (not step.next_pass or self.marks[1].step.boot_lsn < step.next_boot)
        )

    @property
    def has_unflagged(self) -> bool:
        """Whether its first delivery was not flagged."""
        return "delivered" in self._first and self._first["delivered"] == self._first["handed"]

    @property
    def handed_by(self) -> str:
        """The opening that delivered it first, unflagged."""
        return next((mark.step.fact.boot for mark in self.marks if mark.kind == "delivered"), "")

    @property
    def dealt(self) -> bool:
        """Whether it was acknowledged or dead-lettered."""
        return "acknowledged" in self._first or "dead" in self._first

    @property
    def known(self) -> bool:
        """Whether it was delivered, skipped or dead-lettered."""
        return not self._first.keys().isdisjoint(("handed", "skipped", "dead"))

    def first(self, label: str) -> int | None:
        """The first row with a label."""
        return self._first.get(label)

    def before(self, label: str, lsn: int) -> bool:
        """Whether a row before that one has the label."""
        found = self._first.get(label)
        return found is not None and found < lsn

    def acknowledged_from(self, lsn: int) -> int | None:
        """The boot of the newest acknowledgement before that row that begins with the piece."""
        found = None
        for mark in self.marks:
            if mark.lsn >= lsn:
                break
            if mark.kind == "acknowledged" and mark.step.first == self._begins:
                found = mark.step.boot_lsn
        return found

    def passed(self) -> Iterator[int]:
        """The rows at which it shows that an opening delivered new messages before it had delivered again what earlier
        ones had left unacknowledged."""
        previous: Step | None = None
        handed = [mark for mark in self.marks if mark.kind in HANDED]
        for mark in handed:
            step = mark.step
            met_later = previous is not None and self._is_owed(previous, previous.next_pass < mark.lsn)
            if met_later or self._is_owed(step, mark is handed[-1]):
                yield mark.lsn
            previous = step

    def _is_owed(self, step: Step, unmet: bool) -> bool:
        boot, row = step.next_boot, step.next_pass
        if not row or not unmet:
            return False
        if self.acknowledged_boot is not None and self.acknowledged_boot < boot:
            return False
        return all(self._first.get(label, row + 1) > row for label in ("dead", "given_up"))

    def _gives_up(self, mark: _Mark) -> bool:
        """Whether a row declares messages that an earlier boot delivered, neither acknowledged nor passed by then."""
        if mark.kind != "declared":
            return False
        previous = None
        for other in self.marks:
            if other.lsn >= mark.lsn:
                break
            if other.kind in HANDED:
                previous = other.step
        boot_lsn = mark.step.boot_lsn
        return (
            previous is not None
            and previous.boot_lsn < boot_lsn
            and (self.acknowledged_boot is None or self.acknowledged_boot >= boot_lsn)
            and self._first.get("dead", mark.lsn + 1) > mark.lsn
            and (not previous.next_pass or previous.next_pass > mark.lsn)
        )


_LABELS = {
    "delivered": ("handed", "delivered"),
    "redelivered": ("handed",),
    "declared": ("skipped",),
    "before_join": ("skipped",),
    DEAD: ("dead",),
    "replayed": ("replayed",),
    "acknowledged": ("acknowledged",),
    "hole": ("hole",),
}
