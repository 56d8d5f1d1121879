"""The checker: from journals and applications' logs to a verdict.

It believes rows, not conclusions: no count, state or verdict of a client's own is read. What each kind of finding
means is in :data:`reliamsg.checker.report.KINDS`; a verdict of ``complete`` takes all evidence and nothing open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reliamsg.checker.applications import Applications, check_applications, gather_applications
from reliamsg.checker.applog import ApplicationLog, read_applog
from reliamsg.checker.contents import compare_contents
from reliamsg.checker.forks import find_forks
from reliamsg.checker.groups import GroupFacts, gather_group
from reliamsg.checker.journals import Chain, collect, mark_abandoned, merge_copies
from reliamsg.checker.latency import summarize
from reliamsg.checker.losses import account, beyond
from reliamsg.checker.producers import ProducerFacts, gather_producer
from reliamsg.checker.references import find_missing, groups_told_of, producers_told_of
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import KINDS, Finding, Report
from reliamsg.checker.restores import find_cuts
from reliamsg.checker.sites import count_sites
from reliamsg.checker.spans import Key, SpanMap
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["Expect", "check", "check_directory"]

_CLAIMED = frozenset({"rejected", "conflict", "quarantined", "quarantine_discarded", "let_go"})
"""Kinds whose identity is what a frame claimed, not what the client took for true."""
_PROGRESS = frozenset({"confirmed", "published", "delivered", "acknowledged"})


@dataclass(frozen=True)
class Expect:
    """What the checker is told about a run besides its journals and logs."""

    drained: bool = True
    """The run is over: its faults have ended and everything had its time. What is confirmed and undelivered now is
    lost, if its group's journal was closed. False for a running system, where it counts as pending."""
    groups: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """For each topic, groups that must have left a journal, beyond those that the journals name."""
    producers: Iterable[str] = ()
    """Producers that must have left a journal."""
    gap_timeout: float | None = None
    """Seconds; instead of what the journals of groups say."""
    tolerance: float = 1.0
    """Seconds by which an expired gap may differ from the gap timeout."""
    until_us: int | None = None
    """Wall clock, µs since 1970, each client's by its own: the account is about what was enqueued by then, and all
    later evidence still says what became of it. For a running system: a journal that goes on after that time need not
    be closed. None: about everything."""
    drained_by_us: int | None = None
    """Wall clock, µs since 1970: when all must have drained. One machine's clients only: their clocks are compared
    with it."""


@dataclass
class _Clients:
    """What all clients' journals say."""

    producers: dict[str, ProducerFacts] = field(default_factory=dict)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def check_directory(path: str | os.PathLike[str], expect: Expect | None = None) -> Report:
    """Check every outbox, inbox (``*.db``), segment and application's log (``*.ndjson``) below `path`.

    Files are only read, also those of clients that run. One that can't be read is a finding, not an error.
    Raises :class:`NotADirectoryError` when `path` is no directory.
    """
    if not Path(path).is_dir():
        raise NotADirectoryError(f"{path}: there is no such directory")
    started = time.perf_counter()
    found = collect(path)
    logs, strange = _read_logs(found.others)
    report = check(found.chains, logs, expect)
    report.findings += [Finding("broken", problem) for problem in (*found.problems, *strange)]
    report.duplicated = found.duplicated
    report.seconds = time.perf_counter() - started
    return report


def _read_logs(paths: Iterable[str]) -> tuple[list[ApplicationLog], list[str]]:
    """The applications' logs, and a line for each file that is none."""
    logs: list[ApplicationLog] = []
    strange: list[str] = []
    for path in paths:
        log = read_applog(path)
        # A first line without its end is what a kill has left of a log.
        if log.records or not Path(path).read_bytes().endswith(b"\n"):
            logs.append(log)
        else:
            strange.append(f"{path}: neither a journal's segment nor an application's log")
    return logs, strange


def check(
    journals: Iterable[Chain], applogs: Iterable[ApplicationLog] = (), expect: Expect | None = None
) -> Report:
    """Judge a run by its clients' journals and its applications' logs."""
    started = time.perf_counter()
    expect = expect or Expect()
    chains, apps = merge_copies(journals), gather_applications(applogs)
    mark_abandoned(chains)
    clients = _gather(chains, expect)
    report = Report(list(clients.findings), clients=len(chains), rows=sum(len(c.rows) for c in chains))
    contested = _check_incarnations(chains, clients, report)
    wrong, compared = compare_contents(chains, contested)
    report.findings += wrong
    named = _named_groups(clients, expect)
    report.findings += _check_evidence(chains, clients, named, apps, expect)
    cuts = find_cuts(chains)
    excused = account(report, clients.producers, clients.groups, named, contested, expect.drained, cuts)
    _check_drained(chains, expect, report)
    count_sites(report, clients.producers, clients.groups)
    report.latency = summarize(row for chain in chains for row in chain.rows)
    _add_applications(report, apps, clients, excused, expect)
    _check_unverified(report, clients, apps, compared, contested)
    report.findings += find_forks(chains)
    report.streams = len(_streams(clients, apps))
    report.seconds = time.perf_counter() - started
    return report


def _gather(chains: list[Chain], expect: Expect) -> _Clients:
    clients = _Clients()
    by_client: dict[tuple[str, str], list[Chain]] = {}
    for chain in chains:
        by_client.setdefault((chain.role, chain.client), []).append(chain)
    for (role, client), own in sorted(by_client.items()):
        if role == "producer":
            clients.producers[client], findings = gather_producer(client, own, expect.until_us)
        else:
            clients.groups[client], findings = gather_group(client, own, expect.gap_timeout, expect.tolerance)
        clients.findings += findings
    return clients


def _check_incarnations(chains: list[Chain], clients: _Clients, report: Report) -> set[Key]:
    """One incarnation for each (producer, epoch). Returns where contents can't be compared."""
    contested: set[Key] = set().union(*(facts.contested for facts in clients.producers.values()))
    found: dict[tuple[str, int], set[int]] = {}
    keys: dict[tuple[str, int], set[Key]] = {}
    for chain in chains:
        now = Renumbering(chain.rows if chain.role == "producer" else ())
        for row in map(now, chain.rows):
            if row.epoch and row.incarnation and row.topic and row.kind not in _CLAIMED:
                owner = (row.producer, row.epoch)
                found.setdefault(owner, set()).add(row.incarnation)
                keys.setdefault(owner, set()).add((_stream(row), row.epoch))
    for (producer, epoch), incarnations in sorted(found.items()):
        if len(incarnations) > 1:
            contested |= keys[producer, epoch]
            names = ", ".join(f"{number:016x}" for number in sorted(incarnations))
            text = f"{KINDS['two_incarnations'][1]}: {producer} has incarnations {names} in epoch {epoch}"
            report.findings.append(Finding("two_incarnations", text, epoch=epoch))
    return contested


def _named_groups(clients: _Clients, expect: Expect) -> dict[str, set[str]]:
    """For each topic, every group that someone says there is."""
    named: dict[str, set[str]] = {topic: set(groups) for topic, groups in expect.groups.items()}
    for producer in clients.producers.values():
        for topic, groups in producer.groups.items():
            named.setdefault(topic, set()).update(groups)
    for name, facts in clients.groups.items():
        for topic in facts.topics | {stream.topic for stream, _ in facts.handed}:
            named.setdefault(topic, set()).add(name)
    return named


def _check_evidence(
    chains: list[Chain], clients: _Clients, named: dict[str, set[str]], apps: Applications, expect: Expect
) -> list[Finding]:
    """What should be there and is not, and what is there but can't be relied on."""
    findings: list[Finding] = []
    if not chains:
        findings.append(Finding("missing", "there are no journals"))
    for chain in chains:
        name = f"{chain.source} ({chain.role} {chain.client})"
        findings += [Finding("broken", f"{name}: {problem}") for problem in chain.broken]
        if not (chain.broken or chain.finished or chain.goes_beyond(expect.until_us)):
            findings.append(Finding("unclosed", f"{name}: {KINDS['unclosed'][1]}"))
    expected_producers = set(expect.producers)
    for chain in chains:
        expected_producers |= producers_told_of(chain)
    if chains:
        expected_producers |= apps.publishers
    missing_producers = expected_producers - set(clients.producers)
    findings += [Finding("missing", f"no journal of producer {name}") for name in sorted(missing_producers)]
    groups = set().union(*named.values(), *map(groups_told_of, chains)) | (
        set(apps.groups) if chains else set()
    )
    findings += [
        Finding("missing", f"no journal of group {name}") for name in sorted(groups - set(clients.groups))
    ]
    published = {stream.topic for facts in clients.producers.values() for stream, _ in facts.enqueued}
    published |= {topic for facts in clients.producers.values() for topic in facts.groups}
    if not missing_producers:  # its journal is where the topic would be
        findings += [
            Finding("missing", f"no journal of any producer of topic {topic}")
            for topic in sorted(set(named) - published)
        ]
    return findings + find_missing(chains, expect.until_us)


def _check_drained(chains: list[Chain], expect: Expect, report: Report) -> None:
    """Nothing was still going on when all should have drained."""
    if expect.drained_by_us is None:
        return
    for chain in chains:
        late = [
            row for row in chain.rows if row.kind in _PROGRESS and row.wall_last_us > expect.drained_by_us
        ]
        if late:
            worst = max(late, key=lambda row: row.wall_last_us)
            seconds = (worst.wall_last_us - expect.drained_by_us) / 1e6
            text = f"{KINDS['too_late'][1]}: {worst.kind} {seconds:.1f} s after that, at {chain.client}"
            report.findings.append(
                Finding("too_late", text, _stream(worst), worst.group, worst.site, worst.epoch,
                        worst.first, worst.last)
            )  # fmt: skip


def _add_applications(
    report: Report, apps: Applications, clients: _Clients, excused: dict[str, SpanMap], expect: Expect
) -> None:
    """Judge the logs; what both kinds of evidence count is counted once, by whichever saw more."""
    if not apps.records and not apps.damaged:
        return
    findings, counts = check_applications(apps, clients.producers, clients.groups, excused, expect.drained)
    report.findings += findings
    report.logs = len(apps.publishers) + len(apps.groups)
    messages = report.messages
    for name in ("enqueued", "lost", "duplicates", "out_of_order", "phantom", "late", "declared_gaps"):
        setattr(messages, name, max(getattr(messages, name), getattr(counts, name)))
    for group, delivered in counts.delivered.items():
        messages.delivered[group] = max(messages.delivered.get(group, 0), delivered)


def _check_unverified(
    report: Report, clients: _Clients, apps: Applications, compared: dict[str, SpanMap], contested: set[Key]
) -> None:
    """Delivered content that neither digest sums nor the applications' logs could hold against what was published.

    A hole keeps the range around it from being compared, so nothing is said where something worse is known; nor
    of the epoch in whose middle a group joined or was removed, which is no fault. They are counted all the same.
    """
    worse = {(finding.group, finding.stream, finding.epoch) for finding in report.findings}
    for name, group in clients.groups.items():
        seen = compared.get(name, SpanMap())
        for key, handed in sorted(group.handed.items()):
            if key[0].producer not in clients.producers:
                continue
            later = beyond(clients.producers[key[0].producer], key, handed)
            unverified = handed - later - seen[key] - apps.compared(name, key)
            report.unverified += unverified.count
            joined = group.joined.get(key[0], (0, 1))
            excused = clients.producers[key[0].producer].excused.get(name, SpanMap())[key]
            known = key in contested or not {(name, *key), ("", *key)}.isdisjoint(worse)
            if known or excused or group.before_join[key] or (joined[0] == key[1] and joined[1] > 1):
                continue
            for first, last in unverified:
                report.findings.append(
                    Finding(
                        "unverified",
                        KINDS["unverified"][1],
                        key[0],
                        name,
                        epoch=key[1],
                        first=first,
                        last=last,
                    )
                )


def _streams(clients: _Clients, apps: Applications) -> set[Stream]:
    streams = set(apps.published) | {stream for _, stream in apps.given}
    for producer in clients.producers.values():
        streams |= {stream for stream, _ in producer.enqueued}
    for group in clients.groups.values():
        streams |= {stream for stream, _ in group.handed}
    return streams


def _stream(row: JournalRow) -> Stream:
    return Stream(row.producer, row.topic, row.partition)
