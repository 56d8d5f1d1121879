"""What all journals say of clients: whether their evidence is complete, and what the judges of streams need."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reliamsg.audit.accepted import Acceptances
from reliamsg.audit.context import (
    NOBODY,
    Context,
    Cut,
    GroupContext,
    Journal,
    ProducerContext,
    is_incarnation,
    position,
)
from reliamsg.audit.cuts import ProducerJournal, find_cuts
from reliamsg.audit.expect import Expect
from reliamsg.audit.fold import Fact, Opening, Part, StreamName
from reliamsg.audit.found import Finding
from reliamsg.audit.joining import join_openings
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.numbers import names
from reliamsg.audit.segment import StatedIdle
from reliamsg.audit.spans import pieces
from reliamsg.audit.through import Proven, in_order, prove

__all__ = ["Clients", "JournalParts", "StreamTraces", "gather"]

_TRACED = ("conflict", "surpassed", "behind")


@dataclass(slots=True)
class JournalParts:
    """One history of a client's file, as parts in order."""

    role: str
    client: str
    name: str
    source: str
    """Where it was found."""
    parts: list[Part]
    problems: list[str] = field(default_factory=list)
    """Why rows may be missing, according to segments."""
    heads: list[StatedIdle] = field(default_factory=list)
    """What the client stated while it was idle, in order: heads that name one of the segments, or one of the boots. The
    last may name a row that is not there (yet)."""
    continues: bool = False
    """Whether a head of the client names a later row of this history, or a boot that no segment has."""

    def sketch(self) -> Journal:
        """Itself as far as it is known before the evidence is examined."""
        boots = _boots(self.openings)
        return Journal(self.role, self.client, self.name, 0, True, False, boots, {}, [], {})

    @property
    def rows(self) -> Iterator[tuple[StreamName, Fact]]:
        for part in self.parts:
            yield from part.rows

    @property
    def openings(self) -> list[Opening]:
        """By boot, over all parts."""
        return join_openings(opening for part in self.parts for opening in part.openings)


@dataclass(slots=True)
class StreamTraces:
    """What the journals have of streams that conflicts are about."""

    has: dict[tuple[StreamName, int], int] = field(default_factory=dict)
    """The last number of each epoch, as finally renumbered."""
    published: dict[tuple[str, StreamName], set[int]] = field(default_factory=dict)
    """By journal and stream, the first rows of the boots that published to it."""
    settled: dict[tuple[str, StreamName], tuple[int, int]] = field(default_factory=dict)
    """By journal of a group and stream, the highest position that it settled."""
    identified: set[tuple[str, int, str]] = field(default_factory=set)
    """Producer, final epoch and incarnation in the rows of journals in which messages were renumbered."""

    def add(self, other: StreamTraces) -> None:
        """Add those of other streams."""
        self.has.update(other.has)
        self.published.update(other.published)
        self.settled.update(other.settled)
        self.identified.update(other.identified)


@dataclass(slots=True)
class Clients:
    """All clients."""

    context: Context
    findings: list[Finding]
    """About the evidence itself."""
    latencies: dict[tuple[str, str], dict[int, int]]
    """By kind of row and, for confirms, site: bucket → count."""
    proven: list[Proven]
    """Every history, those first that are proven least."""
    lacking: set[tuple[str, str]] = field(default_factory=set)
    """Role and name of clients of whose openings others have heard more than their journals have."""


def gather(
    journals: Sequence[JournalParts],
    expect: Expect,
    traces: StreamTraces,
    acceptances: Acceptances | None = None,
    emptied: Iterable[tuple[str, str]] = (),
) -> Clients:
    """Read all journals. `acceptances` are for the judges of streams. `emptied`: role and name of clients whose
    directories are there and empty, so that they must have had journals."""
    return _Gatherer(journals, expect, traces, emptied).gather(acceptances or Acceptances())


class _Gatherer:
    def __init__(
        self,
        journals: Sequence[JournalParts],
        expect: Expect,
        traces: StreamTraces,
        emptied: Iterable[tuple[str, str]],
    ) -> None:
        self._emptied = set(emptied)
        self._journals = sorted(journals, key=lambda each: (each.role, each.client, each.name))
        self._expect, self._traces = expect, traces
        self._openings = {each.name: each.openings for each in self._journals}
        self._problems = {each.name: [*each.problems, *_problems_of(each)] for each in self._journals}
        self._proven_us = {each.name: self._proven_through(each) for each in self._journals}
        self._abandoned()
        self._ranks: dict[str, int] = {}
        by_client: dict[tuple[str, str], list[JournalParts]] = defaultdict(list)
        for each in self._journals:
            by_client[each.role, each.client].append(each)
        self._by_client = by_client
        for own in by_client.values():
            own.sort(key=lambda each: (self._openings[each.name][0].first_us if each.parts else 0, each.name))
            for rank, each in enumerate(own, 1):
                self._ranks[each.name] = rank

    def gather(self, acceptances: Acceptances) -> Clients:
        journals = {each.name: self._journal(each) for each in self._journals}
        groups = {
            client: self._group(own, journals)
            for (role, client), own in self._by_client.items() if role == "group"
        }  # fmt: skip
        referred = self._referred()
        cuts = self._cuts()
        lines: set[str] = set(self._unfinished(journals))
        lacking: set[tuple[str, str]] = set()
        for group, line in self._lacking_of_groups(groups):
            lines.add(line)
            lacking.add(("group", group))
        producers = {}
        for (role, client), own in self._by_client.items():
            if role == "producer":
                producers[client], own_lines = self._producer(
                    own, journals, referred[client], cuts.get(client, [])
                )
                lines.update(own_lines)
                if own_lines:
                    lacking.add((role, client))
        named = self._named()
        contested = self._contested()
        by_producer: dict[str, set[int]] = defaultdict(set)
        for producer, epoch, _ in contested:
            by_producer[producer].add(epoch)
        context = Context(
            journals, groups, producers, named, by_producer,
            self._proofs(groups), self._expect.drained, self._expect.gap_timeout, self._expect.tolerance,
            self._expect.until_us, acceptances,
        )  # fmt: skip
        findings = [*self._evidence(journals), *self._streamless(), *self._forks()]
        for producer, epoch, incarnations in contested:
            text = f"{producer} has incarnations {', '.join(incarnations)} in epoch {epoch}"
            findings.append(Finding("two_incarnations", epoch=epoch, text=text))
        lines |= set(self._missing(named, producers, groups))
        findings += [Finding("missing", text=line) for line in sorted(lines)]
        return Clients(context, findings, self._latencies(), self._proven(), lacking)

    def _proven_through(self, each: JournalParts) -> int:
        """The time through which a history is proven: by its last row, or by a head that states when nothing had
        followed that."""
        openings = self._openings[each.name]
        if not openings:
            return 0
        tip = openings[-1]
        idle = (head.wall_us for head in each.heads if (head.boot, head.lsn) == (tip.boot, tip.last_lsn))
        return max(tip.proven_us, *idle, 0)

    def _proven(self) -> list[Proven]:
        found = [
            replace(
                prove(
                    each.role, each.client, each.source, bool(self._problems[each.name]), self._proven_us[each.name],
                    self._openings[each.name], each.parts,
                ),
                journal=each.name,
            )
            for each in self._journals
        ]  # fmt: skip
        return in_order(found)

    def _latencies(self) -> dict[tuple[str, str], dict[int, int]]:
        found: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        for each in self._journals:
            for part in each.parts:
                for hop, counts in part.latencies.items():
                    found[hop].update(counts)
        return {hop: dict(counts) for hop, counts in found.items()}

    # -- journals -------------------------------------------------------------------------------------------

    def _journal(self, each: JournalParts) -> Journal:
        openings = self._openings[each.name]
        newest: list[tuple[int, int]] = []
        for part in each.parts:
            for lsn, epoch in part.newest:
                if not newest or epoch > newest[-1][1]:
                    newest.append((lsn, epoch))
        journal = Journal(
            each.role, each.client, each.name, self._ranks[each.name], bool(self._problems[each.name]),
            bool(openings) and openings[-1].closed, _boots(openings),
            {opening.first_lsn: opening.detail for opening in openings if opening.detail is not None}, newest, {},
            max((fact.lsn for _, fact in each.rows if fact.kind == "clock_step"), default=0),
            max((opening.end for opening in openings), default=0),
        )  # fmt: skip
        for _, fact in each.rows:
            if fact.kind == "fenced":
                journal.fenced.setdefault(journal.boot_lsn(fact.boot, fact.lsn), fact.lsn)
        return journal

    def _abandoned(self) -> None:
        """Inboxes of a group without a journal, from which another inbox took over."""
        known = {
            (each.client, (opening.detail or {}).get("inbox"))
            for each in self._journals if each.role == "group" for opening in self._openings[each.name]
        }  # fmt: skip
        for each in self._journals:
            lines = dict.fromkeys(
                f"inbox {before}, from which it took over, left no journal"
                for _, fact in each.rows
                if fact.kind == "took_over" and isinstance(before := (fact.detail or {}).get("from"), str)
                and before and (each.client, before) not in known
            )  # fmt: skip
            self._problems[each.name] += [line for line in lines if line not in self._problems[each.name]]

    def _group(self, own: list[JournalParts], journals: Mapping[str, Journal]) -> GroupContext:
        known = [journals[each.name] for each in own]
        settled = self._traces.settled
        replaced: dict[str, int] = {}
        for each, journal in zip(own, known, strict=True):
            for stream, fact in each.rows:
                if fact.kind != "behind" or position(fact.detail, "from") is None:
                    continue
                place = (fact.epoch, fact.last - 1)
                others = (other.name for other in own if other.name != each.name)
                if all(settled.get((name, stream), (0, 0)) < place for name in others):
                    boot = journal.boot_lsn(fact.boot, fact.lsn)
                    replaced[each.name] = max(boot, replaced.get(each.name, 0))
        rows = self._rows_of(own, lambda opening: opening.boot)
        settled_by = [
            (boot, lsn)
            for each in self._journals
            for part in (each.parts if each.role == "producer" else ())
            for (group, boot), lsn in part.settled.items()
            if group == own[0].client
        ]
        return GroupContext(
            sound=not any(each.broken for each in known),
            finished=all(each.finished for each in known),
            latest=any(detail.get("begin") == "latest" for each in known for detail in each.opened.values()),
            replaced=replaced,
            unfinished={each.name for each in known if not each.finished},
            rows=rows,
            lacks_rows=any(rows.get(boot, 0) < lsn for boot, lsn in settled_by),
        )

    def _rows_of(self, own: Iterable[JournalParts], name: Callable[[Opening], str]) -> dict[str, int]:
        """By the name of an opening, its last row."""
        rows: dict[str, int] = {}
        for each in own:
            for opening in self._openings[each.name]:
                rows[name(opening)] = max(opening.last_lsn, rows.get(name(opening), 0))
        return rows

    def _lacking_of_groups(self, groups: Mapping[str, GroupContext]) -> Iterator[tuple[str, str]]:
        """What groups had settled by rows that their journals lack, according to producers: groups and lines."""
        until = self._expect.until_us
        later: dict[str, bool] = {}
        growing: dict[str, set[str]] = defaultdict(set)
        for each in self._journals:
            if each.role == "group":
                last = self._openings[each.name][-1:]
                reaches = until is not None and self._proven_us[each.name] >= until
                later[each.client] = later.get(each.client, True) and reaches
                if last and (reaches or not last[0].closed):
                    growing[each.client].add(last[0].boot)
        for each in self._journals:
            for part in each.parts if each.role == "producer" else ():
                for (group, boot), lsn in part.settled.items():
                    client = groups.get(group)
                    if client is None or not client.sound:
                        continue
                    if boot not in client.rows:
                        if not later[group]:
                            yield group, f"no journal of the opening {boot} of group {group}"
                    elif lsn > client.rows[boot] and boot not in growing[group]:
                        yield (
                            group,
                            f"the journal of the opening {boot} of group {group} lacks rows that it had",
                        )

    def _unfinished(self, journals: Mapping[str, Journal]) -> Iterator[str]:
        """Ends of producers' journals that were followed by another file's, and never closed."""
        for (role, client), own in self._by_client.items():
            first = {
                each.name: self._openings[each.name][0]
                for each in own
                if role == "producer" and each.parts and each.parts[0].first_lsn == 1
            }
            newest = max((opening.first_us, opening.boot) for opening in first.values()) if first else None
            for name, opening in first.items():
                if (opening.first_us, opening.boot) != newest and not journals[name].finished:
                    yield (
                        f"the end of the journal {opening.boot} of producer {client}: it was not closed, and another"
                        " file of this producer began after it"
                    )

    def _producer(
        self,
        own: list[JournalParts],
        journals: Mapping[str, Journal],
        referred: Mapping[str, set[tuple[int | None, int]]],
        cuts: list[Cut],
    ) -> tuple[ProducerContext, list[str]]:
        known = [journals[each.name] for each in own]
        sound, until = not any(each.broken for each in known), self._expect.until_us
        incarnations = {name for each in own for part in each.parts for _, name in part.own}
        entered: set[int] = set().union(*(one.entered for each in own for one in self._openings[each.name]))
        followed = (opening for each in own for opening in self._openings[each.name][:-1])
        unclosed = {max(opening.entered) for opening in followed if not opening.closed}
        epochs = {epoch for each in own for part in each.parts for epoch, _ in part.own}
        rows = self._rows_of(own, lambda opening: opening.incarnation)
        growing: set[str] = set()
        opened_ends: list[int] = []
        later_ends: list[int] = []
        excused = True
        for each, journal in zip(own, known, strict=True):
            openings = self._openings[each.name]
            later = until is not None and self._proven_us[each.name] >= until
            end = max((opening.end for opening in openings), default=0)
            if later:
                later_ends.append(end)
            if not journal.finished:
                opened_ends.append(end)
                excused &= later
            if later or not journal.finished:
                growing.update(opening.incarnation for opening in openings[-1:])
        later_from = min(later_ends, default=None)
        absent: set[int] = set()
        lines: list[str] = []
        client = own[0].client
        for incarnation, places in referred.items() if sound else ():
            opening_text = f"the opening {incarnation} of producer {client}"
            for epoch, lsn in places:
                if incarnation in incarnations:
                    if lsn > rows.get(incarnation, lsn) and incarnation not in growing:
                        lines.append(f"the journal of {opening_text} lacks rows that it had")
                elif later_from is None or (epoch is not None and epoch < later_from):
                    if epoch is not None:
                        absent.add(epoch)
                    lines.append(f"no journal of {opening_text}")
        context = ProducerContext(
            sound,
            open_from=min(opened_ends, default=None),
            continues=sound and bool(opened_ends) and (not self._expect.drained if until is None else excused),
            cuts=cuts, epochs=epochs, absent=absent, rows=rows,
            grows_from=min([*opened_ends, *later_ends], default=None), later_from=later_from,
            entered=entered, unclosed=unclosed,
        )  # fmt: skip
        return context, lines

    # -- references -----------------------------------------------------------------------------------------

    def _referred(self) -> dict[str, dict[str, set[tuple[int | None, int]]]]:
        """By producer and incarnation, the openings that rows refer to: epoch, if it is named, and the number of rows
        that the journal had."""
        found: dict[str, dict[str, set[tuple[int | None, int]]]] = defaultdict(lambda: defaultdict(set))
        for each in self._journals:
            if each.role == "group":
                for part in each.parts:
                    for producer, epoch, incarnation in part.referred:
                        found[producer][incarnation].add((epoch, 0))
            for (producer, _, _), fact in each.rows:
                for name, incarnation, place in _openings_named(each, producer, fact):
                    found[name][incarnation].add(place)
        return found

    def _cuts(self) -> dict[str, list[Cut]]:
        published: dict[str, dict[StreamName, set[int]]] = defaultdict(dict)
        for (name, stream), boots in self._traces.published.items():
            published[name][stream] = boots
        of_producers = [
            ProducerJournal(each.client, self._openings[each.name], list(each.rows), published[each.name])
            for each in self._journals
            if each.role == "producer"
        ]
        of_groups = [row for each in self._journals if each.role == "group" for row in each.rows]
        return find_cuts(of_producers, of_groups, self._traces.has)

    def _contested(self) -> list[tuple[str, int, list[str]]]:
        """Producers and epochs with several incarnations."""
        found: dict[tuple[str, int], set[str]] = defaultdict(set)
        for producer, epoch, incarnation in self._traces.identified:
            found[producer, epoch].add(incarnation)
        for each in self._journals:
            if each.role == "producer" and any(fact.kind == "renumbered" for _, fact in each.rows):
                continue  # as written, messages of two histories may have had one epoch
            for part in each.parts:
                for producer, epoch, incarnation in part.identified:
                    found[producer, epoch].add(incarnation)
        return [
            (producer, epoch, sorted(known))
            for (producer, epoch), known in sorted(found.items())
            if len(known) > 1
        ]

    def _proofs(self, groups: Mapping[str, GroupContext]) -> dict[tuple[str, str, str], int]:
        chains: dict[tuple[str, str], list[str]] = defaultdict(list)
        for each in self._journals:
            if each.role == "producer":
                for incarnation in set().union(*(part.opened for part in each.parts)):
                    chains[each.client, incarnation].append(each.name)
        found: dict[tuple[str, str, str], int] = {}
        for each in self._journals:
            if each.role != "group" or not groups[each.client].whole:
                continue
            for _, fact in each.rows:
                if fact.kind == "connected" and (fact.detail or {}).get("session_present") is not False:
                    continue
                if fact.kind not in ("connected", "drained"):
                    continue
                for producer, incarnation, lsn in _heard(fact):
                    for name in chains[producer, incarnation]:
                        key = (each.client, fact.site, name)
                        found[key] = max(lsn, found.get(key, 0))
        return found

    # -- evidence -------------------------------------------------------------------------------------------

    def _evidence(self, journals: Mapping[str, Journal]) -> Iterator[Finding]:
        for each in self._journals:
            name = f"{each.source} ({each.role} {each.client})"
            problems = self._problems[each.name]
            for problem in problems:
                yield Finding("broken", text=f"{name}: {problem}")
            if self._expect.drained and not problems and not journals[each.name].finished:
                yield Finding("unclosed", text=f"{name}: {KINDS['unclosed'][1]}")

    def _streamless(self) -> Iterator[Finding]:
        """Epochs that were entered, without a stream, although they were over."""
        found = set()
        for each in self._journals:
            steps = [step for part in each.parts for step in part.newest]
            for stream, fact in each.rows:
                if each.role == "producer" and fact.kind == "epoch" and not stream[1]:
                    newest = max((epoch for lsn, epoch in steps if lsn < fact.lsn), default=0)
                    if fact.epoch < newest:
                        found.add(fact.epoch)
        for epoch in sorted(found):
            yield Finding("old_epoch", epoch=epoch)

    def _forks(self) -> Iterator[Finding]:
        """Fences, and forks that concern no stream."""
        found: set[Finding] = set()
        for each in self._journals:
            for (producer, topic, part), fact in each.rows:
                other = (fact.detail or {}).get("epoch", "unknown")
                if each.role == "producer" and fact.kind == "fenced":
                    text = f"{each.client} was fenced in epoch {fact.epoch}, by the one in epoch {other}"
                    found.add(Finding("fork", epoch=fact.epoch, text=text))
                elif each.role == "group" and fact.kind == "conflict" and not topic:
                    text = f"in epoch {fact.epoch}: {fact.reason}"
                    found.add(
                        Finding("fork", (producer, topic, part), each.client, epoch=fact.epoch, text=text)
                    )
        yield from sorted(found, key=lambda finding: (finding.epoch or 0, finding.group, finding.text))

    def _named(self) -> dict[str, set[str]]:
        """By topic, all groups that journals or expectations name; a topic may have none."""
        named: dict[str, set[str]] = {topic: set(own) for topic, own in self._expect.groups.items()}
        for each in self._journals:
            if each.role == "group":
                topics = {topic for part in each.parts for topic in part.topics}
                for opening in self._openings[each.name]:
                    topics.update(names((opening.detail or {}).get("topics")))
                for topic in topics:
                    named.setdefault(topic, set()).add(each.client)
                continue
            for topic, group in self._named_by(each):
                named.setdefault(topic, set()).update([group] if group else ())
        return named

    def _named_by(self, each: JournalParts) -> Iterator[tuple[str, str]]:
        """Topics and groups that a producer names, or named when something was enqueued for them."""
        latest: dict[tuple[str, str], tuple[int, bool]] = {}
        for opening in self._openings[each.name]:
            groups = (opening.detail or {}).get("groups")
            for topic, own in groups.items() if isinstance(groups, dict) else ():
                yield topic, ""
                for group in names(own):
                    latest[topic, group] = max(
                        (opening.first_lsn, True), latest.get((topic, group), (0, False))
                    )
        for (_, topic, _), fact in each.rows:
            if fact.kind == "group_added":
                change = (fact.lsn, True)
            elif fact.kind == "group_removed":
                at = position(fact.detail, "position")
                if at is not None and at != (fact.epoch, fact.first):
                    continue
                change = (fact.lsn, False)
            else:
                continue
            latest[topic, fact.group] = max(change, latest.get((topic, fact.group), (0, False)))
        for (topic, group), (_, is_named) in latest.items():
            if is_named:
                yield topic, group

    def _missing(
        self, named: Mapping[str, set[str]], producers: Mapping[str, object], groups: Mapping[str, object]
    ) -> Iterator[str]:
        wanted = {*self._expect.producers, *(name for role, name in self._emptied if role == "producer")}
        spoke = {name for role, name in self._emptied if role == "group"}
        published: set[str] = set()
        for each in self._journals:
            for part in each.parts:
                wanted |= part.producers
                spoke |= part.groups
                if each.role == "producer":
                    published |= part.topics
            if each.role == "group":
                for _, fact in each.rows:
                    if fact.kind in ("drained", "connected"):
                        wanted.update(producer for producer, _, _ in _heard(fact))
            else:
                published.update(topic for topic, _ in self._named_by(each))
        absent = wanted - producers.keys()
        for name in absent:
            yield f"no journal of producer {name}"
        for name in (spoke | set().union(*named.values())) - groups.keys():
            yield f"no journal of group {name}"
        if not absent:  # otherwise its journal may have the topic
            for topic in named.keys() - published:
                yield f"no journal of any producer of topic {topic}"


def _boots(openings: Iterable[Opening]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for opening in openings:
        found[opening.boot].append(opening.first_lsn)
    return dict(found)


def _problems_of(each: JournalParts) -> list[str]:
    """Why rows may be missing, according to the rows themselves."""
    if not each.parts:
        return ["it holds no row"]
    found: list[str] = []
    truncated: list[tuple[int, int, str]] = []
    for _, fact in each.rows:
        if fact.kind != "truncated":
            continue
        detail = fact.detail or {}
        first, last, count = (detail.get(name) for name in ("first_lsn", "last_lsn", "rows"))
        if isinstance(first, int) and isinstance(last, int):
            truncated.append((first, last, "discarded"))
            found.append(f"rows {first} to {last} were discarded by the client: its target was unreachable")
        else:
            number = count if isinstance(count, int) else "some"
            found.append(f"{number} rows were discarded by the client: its file could not be written")
    expected, boot = 1, ""
    known: set[str] = set()
    for part in each.parts:
        if part.first_lsn > expected:
            hole = (expected, part.first_lsn - 1, "missing")
            for first, last, marks in pieces([hole, *truncated]):
                if set(marks) == {"missing"}:
                    found.append(f"rows {first} to {last} are missing")
        elif part.first_lsn < expected:
            found.append(f"row {part.first_lsn} comes after row {expected - 1}")
        expected = part.last_lsn + 1
        for opening in part.openings:
            if opening.boot == boot:
                continue
            if opening.boot in known:
                found.append(
                    f"boot {opening.boot} continues at row {opening.first_lsn}, after another one began"
                )
            if opening.kind != "opened":
                found.append(
                    f"boot {opening.boot} begins with {opening.kind!r} at row {opening.first_lsn}, not with 'opened'"
                )
            known.add(opening.boot)
            boot = opening.boot
    return found


def _heard(fact: Fact) -> Iterator[tuple[str, str, int]]:
    """The openings that a group knew when a site's queue was empty: producer, incarnation, and rows of its journal."""
    heard = (fact.detail or {}).get("heard")
    for producer, said in heard.items() if isinstance(heard, dict) else ():
        match said:
            case [int(lsn), str(incarnation)] if is_incarnation(incarnation):
                yield producer, incarnation, lsn


def _openings_named(
    each: JournalParts, producer: str, fact: Fact
) -> Iterator[tuple[str, str, tuple[int | None, int]]]:
    """Openings that a row names besides its own: producer, incarnation, and epoch and number of rows."""
    detail = fact.detail or {}
    if each.role == "producer":
        if fact.kind == "fenced":
            epoch, incarnation = detail.get("epoch"), detail.get("incarnation")
            if isinstance(epoch, int) and is_incarnation(incarnation) and incarnation != NOBODY:
                yield each.client, str(incarnation), (epoch, 0)
        return
    if fact.kind == "heard" and producer and fact.incarnation != NOBODY:
        lsn = detail.get("lsn")
        if isinstance(lsn, int):
            yield producer, fact.incarnation, (fact.epoch, lsn)
    elif fact.kind == "conflict" and producer:
        match detail.get("known"):
            case [int(epoch), str(incarnation), int(_)] if (
                is_incarnation(incarnation) and incarnation != NOBODY
            ):
                yield producer, incarnation, (epoch, 0)
    elif fact.kind in ("drained", "connected"):
        for name, incarnation, lsn in _heard(fact):
            if incarnation != NOBODY:
                yield name, incarnation, (None, lsn)
