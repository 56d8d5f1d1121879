"""Judges one stream: every message of it, at its producer and at every group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from reliamsg.audit import numbers
from reliamsg.audit.bodies import Run, compare, runs_of, runs_together
from reliamsg.audit.context import NOBODY, Context, Journal, heard, is_incarnation, position, settled_by
from reliamsg.audit.fates import (
    PRODUCER,
    Accounts,
    Fate,
    GroupView,
    StreamView,
    Tag,
    fates_of_group,
    fates_of_producer,
    unsettled,
)
from reliamsg.audit.fold import Fact, StreamName, unfold
from reliamsg.audit.found import Finding
from reliamsg.audit.incidents import Incident, incidents_of_stream
from reliamsg.audit.kinds import KINDS, LOSSES
from reliamsg.audit.numbers import DECLINED, History, read_history
from reliamsg.audit.offsets import Offsets, offsets_of_stream
from reliamsg.audit.order import Bounds, Course, Position, end_of, follow
from reliamsg.audit.passages import Passages, count_passages
from reliamsg.audit.repeats import repeats
from reliamsg.audit.spans import LAST, joined, size, stretches
from reliamsg.audit.sums import compare_fates, size_of_union
from reliamsg.audit.through import Open, dated, enqueue_times, questions

__all__ = ["Account", "Judged", "judge"]

_GROUP_TAGS = {
    "delivered": "handed",
    "redelivered": "handed",
    "acknowledged": "acknowledged",
    "declared": "declared",
    "before_join": "before_join",
    "dead_lettered": "dead",
    "late": "late",
    "received": "received",
    "duplicate": "received",
    "buffered": "buffered",
    "quarantined": "quarantined",
    "quarantine_discarded": "discarded",
}
_WITH_SITES = frozenset({"received", "duplicate", "buffered"})
_PRODUCER_TAGS = {
    "published": "published",
    "removed": "removed",
    "renumbered": "moved",
    "confirmed": "confirmed",
    **{kind: kind for kind in DECLINED},
}
_FATES_FOUND = frozenset({"never_joined", "settled_unseen", "phantom", "unproven"})
"""Fates of a group that are findings, besides losses and open ends."""


@dataclass(slots=True)
class Account:
    """Numbers of messages of one stream at one group, or in the producer's own account."""

    enqueued: int = 0
    delivered: int = 0
    lost: int = 0
    declared_gaps: int = 0
    phantom: int = 0
    late: int = 0
    before_join: int = 0
    dead_lettered: int = 0
    duplicates: int = 0
    out_of_order: int = 0

    def add(self, other: Account) -> None:
        """Add the numbers of another stream."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class Judged:
    """The result for one stream."""

    stream: StreamName
    findings: list[Finding] = field(default_factory=list)
    accounts: dict[str, Account] = field(default_factory=dict)
    """By group; the producer's own under ``""``."""
    pending: int = 0
    """Messages that are not published yet, or open at any group."""
    used: bool = False
    """Whether messages were enqueued or delivered."""
    passages: Passages = field(default_factory=Passages)
    fates: dict[tuple[str, int], list[Fate]] = field(default_factory=dict)
    """By group and epoch."""
    lacking: list[str] = field(default_factory=list)
    """Lines about messages to which others refer and that no journal has."""
    incidents: list[Incident] = field(default_factory=list)
    open: Open = field(default_factory=Open)
    """All open questions."""
    unaccepted: Open = field(default_factory=Open)
    """Those that are not about incidents that an operator accepted."""
    latest_us: int = 0
    """The latest time at which a row began that enqueued messages."""
    offsets: Offsets = field(default_factory=dict)
    """How far the clocks of its clients are apart."""


def judge(stream: StreamName, facts: Mapping[str, Sequence[Fact]], context: Context) -> Judged:
    """Judge a stream. `facts`: by journal, the rows about it in journal order."""
    return _Stream(stream, facts, context).judge()


class _Stream:
    def __init__(self, stream: StreamName, facts: Mapping[str, Sequence[Fact]], context: Context) -> None:
        self.stream, self.context = stream, context
        self.histories: list[History] = []
        self.groups: dict[str, list[tuple[Journal, Sequence[Fact]]]] = defaultdict(list)
        for name, rows in sorted(facts.items()):
            journal = context.journals[name]
            if journal.role == "producer":
                self.histories.append(read_history(journal, stream, rows))
            else:
                self.groups[journal.client].append((journal, rows))
        self.producer = context.producers.get(stream[0])
        self.enqueued = numbers.enqueued(self.histories, timed=context.until_us is not None)
        until = context.until_us
        self._accounted = size_of_union(
            (epoch, first, last, until is not None and wall_us > until)
            for epoch, first, last, wall_us in self.enqueued
        )
        """The number of messages that were enqueued in the time of the audit."""
        self.found = Judged(stream)
        self.found.findings += numbers.merge(
            numbers.findings(self.histories, self.enqueued, self.producer), stream
        )
        self.contested = context.contested.get(stream[0], set()) | {
            each.epoch for each in self.found.findings if each.kind == "seq_reused" and each.epoch is not None
        }
        """Epochs whose contents can't be compared: a number was used twice, or they have two histories."""
        self.audience = self._audience()
        self.hidden: list[Finding] = []
        """Open questions that are not reported beside others."""

    def judge(self) -> Judged:
        found = self.found
        found.used = bool(self.enqueued) or any(
            fact.kind in ("delivered", "redelivered")
            for own in self.groups.values() for _, facts in own for fact in facts
        )  # fmt: skip
        self._epochs_entered()
        self._add("released_early", numbers.released_early(self.histories))
        courses = {
            group: [follow(journal, _in_order(facts)) for journal, facts in own]
            for group, own in self.groups.items()
        }
        compared = self._compare()
        opened: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        views = self._views()
        for epoch, view in views.items():
            own = list(fates_of_producer(view))
            self._account(PRODUCER, epoch, own)
            opened[epoch] += [(fate.first, fate.last, True) for fate in own if fate.pending]
        for group in self.audience:
            self._judge_group(group, courses.get(group, []), views, opened, compared)
        found.pending = sum(
            size(first, last) for ranges in opened.values() for first, last, _ in stretches(ranges)
        )
        of_groups = {
            group: [fact for _, facts in self.groups.get(group, ()) for fact in facts]
            for group in self.audience
        }
        found.passages = count_passages(self.histories, of_groups, self.context)
        self._forks()
        self._lacking()
        self._questions()
        found.latest_us = max(
            (point.wall_us for history in self.histories for row in history.of_kind("enqueued")
             for point in (row.fact, *(row.fact.points or ()))),
            default=0,
        )  # fmt: skip
        found.offsets = offsets_of_stream(self.histories, self.groups)
        return found

    def _questions(self) -> None:
        """Find incidents and open questions, and those that are left besides accepted incidents."""
        found, every = self.found, [*self.found.findings, *self.hidden]
        times = enqueue_times({each.epoch for each in every if each.epoch is not None}, self.histories)
        found.incidents = dated(incidents_of_stream(found.findings), times)
        found.open = found.unaccepted = questions(every, times)
        accepted = [each for each in found.incidents if self.context.acceptances.covers(each.brief)]
        if accepted:
            left = [
                each for each in found.findings if not any(incident.contains(each) for incident in accepted)
            ]
            # Where an incident is reported, contents that can't be compared are none of their own.
            epochs = {each.epoch for each in accepted}
            left += [each for each in self.hidden if each.epoch not in epochs]
            found.unaccepted = questions(left, times)

    # -- the producer ---------------------------------------------------------------------------------------

    def _epochs_entered(self) -> None:
        old: set[int] = set()
        for history in self.histories:
            for kind, epoch, text in numbers.epochs_entered(history):
                if kind == "old_epoch":
                    old.add(epoch)
                else:
                    self.found.findings.append(Finding(kind, self.stream, epoch=epoch, text=text))
        self.found.findings += [Finding("old_epoch", self.stream, epoch=epoch) for epoch in sorted(old)]

    def _views(self) -> dict[int, StreamView]:
        """By epoch, what the producer's journals say."""
        ranges: dict[int, list[tuple[int, int, Tag]]] = defaultdict(list)
        until = self.context.until_us
        for epoch, first, last, wall_us in self.enqueued:
            ranges[epoch].append(
                (first, last, ("after" if until is not None and wall_us > until else "enqueued", ""))
            )
        for history in self.histories:
            for row in history.rows:
                fact, tag = row.fact, _PRODUCER_TAGS.get(row.fact.kind)
                if tag is not None:
                    ranges[row.epoch].append((fact.first, fact.last, (tag, fact.site)))
            for epoch, first, last in history.held:
                ranges[epoch].append((first, last, ("held", "")))
        for own in self.groups.values():
            for _, facts in own:
                for fact in facts:
                    ranges.setdefault(fact.epoch, [])
        for history in self.histories:
            for row in history.of_kind("consumed"):
                for epoch in (row.epoch, row.fact.epoch):
                    ranges.setdefault(epoch, [])
        parked: set[str] = set().union(*(history.parked for history in self.histories))
        epochs = {row.fact.epoch for history in self.histories for row in history.of_kind("epoch")}
        return {
            epoch: StreamView(
                self.context, self.producer, epoch, own, epoch in self.contested, parked, epochs
            )
            for epoch, own in sorted(ranges.items())
        }

    # -- the groups -----------------------------------------------------------------------------------------

    def _audience(self) -> list[str]:
        """The groups that have an account, sorted."""
        named = {
            group for group in self.context.named.get(self.stream[1], ()) if group in self.context.groups
        }
        told = {row.fact.group for history in self.histories for row in history.of_kind("consumed")}
        return sorted(named | set(self.groups) | {group for group in told if group in self.context.groups})

    def _judge_group(
        self,
        group: str,
        courses: list[Course],
        views: dict[int, StreamView],
        opened: dict[int, list[tuple[int, int, bool]]],
        compared: dict[str, dict[int, list[tuple[int, int]]]],
    ) -> None:
        bounds: Bounds | None = None
        for course in courses:
            bounds = bounds or Bounds()
            bounds.add(course.bounds)
        unseen, existed, behind = self._announced(group)
        client = self.context.groups.get(group)
        self._order(group, courses, bounds, behind)
        by_epoch = self._tags_of(group)
        met = client is None or not client.replaced or self._met(group)
        named = group in self.context.named.get(self.stream[1], ())
        unmet, accounts = self._unmet(courses, views), self._accounts(group, courses)
        every: list[Fate] = []

        def at_group(epoch: int) -> GroupView:
            ranges = by_epoch.get(epoch, [])
            return GroupView(client, named, bounds, ranges, unseen, existed, met, accounts, epoch in unmet)

        for (then, now), ranges in self._moved_reports(group).items():
            false = unsettled(views[then], at_group(then), ranges)
            by_epoch[now] += [(first, last, ("settled_here", "")) for first, last in false]
        for epoch, view in views.items():
            fates = list(fates_of_group(view, at_group(epoch)))
            every += fates
            self._account(group, epoch, fates)
            opened[epoch] += [(fate.first, fate.last, True) for fate in fates if fate.fate == "undelivered"]
            self._unverified(group, epoch, fates, compared.get(group, {}).get(epoch, []))
        compare_fates(self.stream, group, self._accounted if named else 0, every)

    def _order(
        self,
        group: str,
        courses: list[Course],
        bounds: Bounds | None,
        behind: list[tuple[Position, Position]],
    ) -> None:
        """Findings from the group's own journals."""
        instances: list[tuple[str, int, int, int]] = []
        client = self.context.groups.get(group)
        for epoch in sorted({step.fact.epoch for course in courses for step in course.steps}):
            unseen = [
                (low[1] if low[0] == epoch else 1, high[1] if high[0] == epoch else LAST)
                for low, high in behind
                if low[0] <= epoch <= high[0]
            ]
            leapt = bounds is not None and any(low < epoch < high for low, high in bounds.leaps)
            instances += [
                (kind, epoch, first, last)
                for kind, first, last in repeats(courses, epoch, client, unseen, leapt)
            ]
        account = self.found.accounts.setdefault(group, Account())
        for kind, _, first, last in instances:
            if kind in ("duplicate", "duplicate_apart"):
                account.duplicates += size(first, last)
            elif kind == "out_of_order":
                account.out_of_order += size(first, last)
        for journal, facts in self.groups.get(group, ()):
            instances += self._clock(journal, facts)
        keyed = (((kind, epoch), first, last) for kind, epoch, first, last in instances)
        for (kind, epoch), first, last in joined(keyed):
            self.found.findings.append(
                Finding(kind, self.stream, group=group, epoch=epoch, first=first, last=last)
            )

    def _clock(self, journal: Journal, facts: Sequence[Fact]) -> Iterator[tuple[str, int, int, int]]:
        """``gap_closed_early`` and ``gap_closed_late``: gaps that expired before or long after their timeout. A gap's
        clock may have been stopped for any time, so only its reading in the row proves that it expired late."""
        opened: list[Fact] = []
        for fact in facts:
            if fact.kind == "gap_opened":
                opened.append(fact)
            if fact.kind != "declared" or fact.reason != "expired":
                continue
            timeout = self.context.gap_timeout
            if timeout is None:
                timeout = _number(
                    journal.opened.get(journal.boot_lsn(fact.boot, fact.lsn), {}).get("gap_timeout")
                )
            if timeout is None:
                continue
            elapsed = _number((fact.detail or {}).get("elapsed"))
            if elapsed is None:
                starts = [
                    gap.mono_us
                    for gap in opened
                    if gap.boot == fact.boot and gap.epoch == fact.epoch
                    and gap.first <= fact.last and fact.first <= max(gap.first, gap.last)
                ]  # fmt: skip
                at_most = (fact.mono_us - min(starts)) / 1e6 if starts else None
                if at_most is not None and at_most < timeout - self.context.tolerance:
                    yield "gap_closed_early", fact.epoch, fact.first, fact.last
            elif elapsed < timeout - self.context.tolerance:
                yield "gap_closed_early", fact.epoch, fact.first, fact.last
            elif elapsed > timeout + self.context.tolerance:
                yield "gap_closed_late", fact.epoch, fact.first, fact.last

    def _tags_of(self, group: str) -> dict[int, list[tuple[int, int, Tag]]]:
        """By epoch, what the group's journals say, and what the producer's say about this group only."""
        found: dict[int, list[tuple[int, int, Tag]]] = defaultdict(list)
        for _, facts in self.groups.get(group, ()):
            for fact in facts:
                tag = _GROUP_TAGS.get(fact.kind)
                if tag is None:
                    continue
                last = end_of(fact)
                site = fact.site if fact.kind in _WITH_SITES else ""
                found[fact.epoch].append((fact.first, last, (tag, site)))
                if fact.kind == "declared" and fact.reason == "removed":
                    proven = self.producer is not None and self.producer.goes_beyond(*heard(fact.detail))
                    tag = "said_removed" if proven else "perhaps_removed"
                    found[fact.epoch].append((fact.first, last, (tag, "")))
        for epoch, ranges in self._countings(group).items():
            for first, last, said in stretches(ranges):
                _, counts = max(said)
                found[epoch].append((first, last, ("counted" if counts else "excused", "")))
        for history in self.histories:
            for row in history.of_kind("consumed"):
                if row.fact.group == group and row.fact.epoch == row.epoch:
                    found[row.epoch].append((row.fact.first, row.fact.last, ("consumed", "")))
        for epoch, fact, known in self._reports(group):
            if not known:
                found[epoch].append((fact.first, fact.last, ("settled_unseen", "")))
            elif fact.epoch == epoch:
                found[epoch].append((fact.first, fact.last, ("settled_here", "")))
        return found

    def _countings(self, group: str) -> Mapping[int, Sequence[tuple[int, int, tuple[int, bool]]]]:
        """By epoch, ranges for which the group counts, or does no more, each with the last epoch of the history that
        says so: of several, the one that went on last decides, since only that one may still send the messages."""
        found: dict[int, list[tuple[int, int, tuple[int, bool]]]] = defaultdict(list)
        for history in self.histories:
            for counts, by_group in ((True, history.counted), (False, history.excused)):
                for epoch, first, last in by_group.get(group, ()):
                    found[epoch].append((first, last, (history.journal.end, counts)))
        return found

    def _reports(self, group: str) -> Iterator[tuple[int, Fact, bool]]:
        """What producers journalled as settled by the group: the epoch in which the messages are finally, the report,
        and whether the group's journals have the row that it names."""
        client = self.context.groups.get(group)

        def goes_beyond(report: Fact) -> bool:
            return client is not None and client.goes_beyond(*settled_by(report.detail))

        for history in self.histories:
            for row in history.of_kind("consumed"):
                if row.fact.group != group:
                    continue
                if goes_beyond(row.fact):  # then its parts do too
                    yield row.epoch, row.fact, True
                else:
                    for fact in unfold(row.fact):
                        yield row.epoch, fact, goes_beyond(fact)

    def _moved_reports(self, group: str) -> Mapping[tuple[int, int], Sequence[tuple[int, int]]]:
        """Ranges that the group had reported as settled, by a row that its journals have, before they were renumbered;
        by the epochs in which the messages were then, and are finally."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        if not any(history.moves for history in self.histories):
            return found
        for epoch, fact, known in self._reports(group):
            if known and fact.epoch != epoch:
                found[fact.epoch, epoch].append((fact.first, fact.last))
        return found

    def _announced(
        self, group: str
    ) -> tuple[
        list[tuple[Position, Position]], list[tuple[Position, Position]], list[tuple[Position, Position]]
    ]:
        """Half-open ranges that were announced to an inbox or to the producer as settled; from the same positions to
        the end of everything that existed then; and the first without those of the producer."""
        behind, existed = [], []
        for _, facts in self.groups.get(group, ()):
            for fact in facts:
                low = position(fact.detail, "from") if fact.kind == "behind" else None
                if low is None:
                    continue
                behind.append((low, (fact.epoch, fact.last)))
                end = position(fact.detail, "existed")
                if end is not None:
                    existed.append((low, end))
        left = [
            (low, high) for history in self.histories for name, low, high in history.settled if name == group
        ]
        return [*behind, *left], existed, behind

    def _accounts(self, group: str, courses: Iterable[Course]) -> Accounts:
        """For which parts of the stream the group's journals account."""
        found = Accounts()
        begun: set[str] = set()
        for course in courses:
            begin, reached = course.bounds.joined, course.bounds.reached
            if begin is None:
                continue
            begun.add(course.journal.name)
            end = (0, 0) if reached is None else (reached[0], reached[1] + 1)
            if begin < end:
                found.own.append((begin, end))
            if not course.journal.finished:
                found.open_ends.append(max(begin, end))
        client = self.context.groups.get(group)
        if client is not None and client.unfinished - begun:
            found.open_ends.append((0, 0))
        return found

    def _unmet(self, courses: Iterable[Course], epochs: Iterable[int]) -> set[int]:
        """The epochs whose last messages may have been lost with the outbox's disk, while no inbox that had more of
        them than journals have went on to a later epoch of the journals."""
        producer = self.producer
        found = {epoch for epoch in epochs if producer is not None and producer.may_end_early(epoch)}
        if producer is None or not found:
            return found
        ends: dict[int, int] = {}
        for epoch, _, last, _ in self.enqueued:
            ends[epoch] = max(last, ends.get(epoch, 0))
        whole = (course for course in courses if not course.journal.broken)  # others may lack what they met
        for own in (part for course in whole for part in course.dealt_with()):
            entered = max((epoch for epoch in own if epoch in producer.entered), default=0)
            found -= {epoch for epoch, last in own.items() if epoch < entered and last > ends.get(epoch, 0)}
        return found

    def _met(self, group: str) -> bool:
        """Whether the successor of a lost inbox knew of the stream."""
        replaced = self.context.groups[group].replaced
        return any(
            fact.kind != "forgotten" and journal.boot_lsn(fact.boot, fact.lsn) >= replaced[journal.name]
            for journal, facts in self.groups.get(group, ())
            if journal.name in replaced
            for fact in facts
        )

    # -- contents -------------------------------------------------------------------------------------------

    def _compare(self) -> dict[str, dict[int, list[tuple[int, int]]]]:
        """Find ``corrupt`` content. Returns what could be compared with the producer's journals, by group and epoch."""
        originals: dict[int, list[Run]] = defaultdict(list)
        for history in self.histories:
            lines: dict[int, list[Fact]] = defaultdict(list)
            for row in history.of_kind("enqueued"):
                lines[row.epoch].append(row.fact)
            for epoch, line in lines.items():
                originals[epoch] += runs_of(line)
        delivered: dict[str, dict[int, list[Run]]] = {}
        for group, own in sorted(self.groups.items()):
            together: dict[int, list[tuple[str, Fact]]] = defaultdict(list)
            runs: dict[int, list[Run]] = defaultdict(list)
            for journal, facts in own:
                lines = defaultdict(list)
                for fact in facts:
                    if fact.kind in ("delivered", "redelivered"):
                        lines[fact.epoch].append(fact)
                        if fact.digest is not None:
                            together[fact.epoch].append((journal.name, fact))
                for epoch, line in lines.items():
                    runs[epoch] += runs_of(line)
            for epoch, named in together.items():
                if len({name for name, _ in named}) > 1:
                    runs[epoch] += runs_together(fact for _, fact in named)
            delivered[group] = runs
        compared: dict[str, dict[int, list[tuple[int, int]]]] = {}
        references: dict[int, list[Run]] = {epoch: runs for epoch, runs in originals.items() if runs}
        for group, by_epoch in delivered.items():
            for epoch, runs_of_group in by_epoch.items():
                if epoch in self.contested or not runs_of_group:
                    continue
                if epoch not in references:
                    references[epoch] = runs_of_group
                    continue
                stretches = list(compare(runs_of_group, references[epoch]))
                if originals.get(epoch):
                    own_compared = compared.setdefault(group, {}).setdefault(epoch, [])
                    own_compared += [(each.first, each.last) for each in stretches]
                wrong = ((0, each.first, each.last) for each in stretches if not each.agrees)
                for _, first, last in joined(wrong):
                    self.found.findings.append(
                        Finding("corrupt", self.stream, group=group, epoch=epoch, first=first, last=last)
                    )
        return compared

    def _unverified(self, group: str, epoch: int, fates: list[Fate], compared: list[tuple[int, int]]) -> None:
        """``unverified``: content that could not be compared. A hole prevents the comparison of the range around it, so
        nothing is reported where there are other findings."""
        handed = [(fate.first, fate.last, True) for fate in fates if fate.handed and not fate.unverifiable]
        if not handed:
            return
        left = [
            (0, first, last)
            for first, last, marks in stretches([*handed, *((a, b, False) for a, b in compared)])
            if all(marks)
        ]
        worse = {
            KINDS[each.kind][0]
            for each in self.found.findings
            if each.epoch == epoch and each.group in ("", group)
        }
        if not worse <= {"unknown"}:
            return
        # Beside questions that may be about later messages only, it is unverified up to the time before these.
        (self.hidden if worse else self.found.findings).extend(
            Finding("unverified", self.stream, group=group, epoch=epoch, first=first, last=last)
            for _, first, last in joined(left)
        )

    # -- accounts -------------------------------------------------------------------------------------------

    def _account(self, group: str, epoch: int, fates: list[Fate]) -> None:
        """Count the fates of one epoch, and report those that are findings."""
        if fates:
            self.found.fates[group, epoch] = fates
        account = self.found.accounts.setdefault(group, Account())
        of_producer = group == PRODUCER
        reported: list[tuple[tuple[str, str, str, str, tuple[str, ...]], int, int]] = []
        for fate in fates:
            messages = size(fate.first, fate.last)
            name = fate.fate
            if of_producer:
                account.enqueued += messages if fate.accounted else 0
                if fate.pending:
                    reported.append((("pending", "", fate.why, "", ()), fate.first, fate.last))
                continue
            if fate.handed:
                account.delivered += messages
            if fate.late:
                account.late += messages
            if fate.dead:
                account.dead_lettered += messages
            if name in ("lost", "joined_unheard"):
                account.lost += messages
            elif name in ("declared_gap", "removed", "discarded"):
                account.declared_gaps += messages
            elif name == "phantom":
                account.phantom += messages
            elif name == "before_join":
                account.before_join += messages
            if name in LOSSES:
                reported.append(((name, fate.place, "", fate.hop, fate.sites), fate.first, fate.last))
            elif name == "undelivered":
                reported.append(((name, "", fate.why, "", ()), fate.first, fate.last))
            elif name in _FATES_FOUND:
                reported.append(((name, "", "", "", ()), fate.first, fate.last))
            for claim in fate.claims:
                kind = "unproven" if claim == "unproven_removal" else claim
                reported.append(((kind, "", "", "", ()), fate.first, fate.last))
        for (kind, place, why, hop, sites), first, last in joined(reported):
            if kind in ("phantom_gap", "unproven_gap") and last >= LAST:
                continue  # a gap without an end may extend beyond the published messages
            self.found.findings.append(
                Finding(
                    kind, self.stream, group=group, epoch=epoch, first=first, last=last, place=place, text=why,
                    hop=hop, sites=sites,
                )
            )  # fmt: skip

    def _add(self, kind: str, found: Iterable[tuple[str, int, int, int]]) -> None:
        keyed = (((group, epoch), first, last) for group, epoch, first, last in found)
        for (group, epoch), first, last in joined(keyed):
            self.found.findings.append(
                Finding(kind, self.stream, group=group, epoch=epoch, first=first, last=last)
            )

    # -- other histories ------------------------------------------------------------------------------------

    def _forks(self) -> None:
        found: set[Finding] = set()
        for group, own in self.groups.items():
            for _, facts in own:
                for fact in facts:
                    if fact.kind == "conflict":
                        ranged = 0 < fact.first <= fact.last
                        text = fact.reason if ranged else f"in epoch {fact.epoch}: {fact.reason}"
                        found.add(
                            Finding(
                                "fork", self.stream, group=group, epoch=fact.epoch, text=text,
                                first=fact.first if ranged else None, last=fact.last if ranged else None,
                            )
                        )  # fmt: skip
        for history in self.histories:
            for row in history.of_kind("renumbered"):
                other = (row.fact.detail or {}).get("epoch", "unknown")
                found.add(
                    Finding(
                        "fork", self.stream, epoch=row.fact.epoch, first=row.fact.first, last=row.fact.last,
                        text=f"they have epoch {other} now",
                    )
                )  # fmt: skip
        self.found.findings += sorted(
            found, key=lambda each: (each.group, each.epoch or 0, each.first or 0, each.text)
        )

    def _lacking(self) -> None:
        """Epochs and messages to which rows refer and that no journal of the producer has."""
        producer = self.producer
        if producer is None or not producer.sound:
            return
        has: Counter[int] = Counter()
        for history in self.histories:
            for row in history.of_kind("enqueued"):
                for epoch in {row.epoch, row.fact.epoch}:
                    has[epoch] = max(has[epoch], row.fact.last)
        lines: set[str] = set()
        name = self.stream[0]
        for epoch, last in self._ends():
            if epoch <= 0 or epoch in producer.absent:
                continue
            if epoch not in producer.epochs:
                if producer.later_from is None or epoch < producer.later_from:
                    lines.add(f"no journal of epoch {epoch} of producer {name}")
            elif producer.grows_from is not None and epoch >= producer.grows_from:
                continue
            elif (last if last <= LAST else 0) > has[epoch]:
                lines.add(
                    f"the journal of epoch {epoch} of producer {name} lacks messages to which others refer"
                )
        self.found.lacking = sorted(lines)

    def _ends(self) -> Iterator[tuple[int, int]]:
        """Epochs that rows refer to, with the last number that existed; 0 if only the epoch is known."""
        for history in self.histories:
            for row in history.of_kind("surpassed"):
                detail = row.fact.detail or {}
                if isinstance(entered := detail.get("entered"), int):
                    yield entered, 0
                yield from _announced_ends(detail)
        for own in self.groups.values():
            for _, facts in own:
                for fact in facts:
                    yield from _ends_of_group(fact)


_HAD = frozenset(
    {"received", "duplicate", "buffered", "late", "before_join", "dead_lettered", "quarantined", "let_go"}
)
"""Kinds of rows about messages that a group had or that were announced to it, which may have no other finding."""


def _ends_of_group(fact: Fact) -> Iterator[tuple[int, int]]:
    kind, detail = fact.kind, fact.detail or {}
    if kind == "rejected":
        return
    if kind == "conflict":
        if isinstance(entered := detail.get("entered"), int):
            yield entered, 0
        match detail.get("known"):
            case [int(epoch), str(name), int(last)] if is_incarnation(name) and name != NOBODY:
                yield epoch, last
    elif kind == "behind":
        yield from _announced_ends(detail)
        yield fact.epoch, fact.last - 1
    else:
        yield fact.epoch, fact.last if kind in _HAD else 0


def _announced_ends(detail: Mapping[str, object]) -> Iterator[tuple[int, int]]:
    for name in ("position", "existed"):
        place = position(detail, name)
        if place is not None:
            yield place[0], place[1] - 1


def _in_order(facts: Sequence[Fact]) -> Iterator[Fact]:
    """The rows of a group about a stream. An acknowledgement is one fact unless messages came again: then it matters
    where each of its rows began."""
    if any(fact.kind == "redelivered" for fact in facts):
        for fact in facts:
            yield from unfold(fact) if fact.kind == "acknowledged" else (fact,)
    else:
        yield from facts


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
