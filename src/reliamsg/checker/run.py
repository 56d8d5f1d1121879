"""Checks a run: from journals and applications' logs to a verdict.

The checker trusts rows, not conclusions: it reads no count, state or verdict of a client. All kinds of findings are in
:data:`reliamsg.checker.report.KINDS`. The verdict ``complete`` requires all evidence, and no open question.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from reliamsg.checker.applications import Applications, check_applications, gather_applications
from reliamsg.checker.applog import ApplicationLog, read_applog
from reliamsg.checker.contents import compare_contents
from reliamsg.checker.forks import find_forks
from reliamsg.checker.groups import GroupFacts, gather_group
from reliamsg.checker.journals import Chain, collect, mark_abandoned, merge_copies
from reliamsg.checker.latency import summarize
from reliamsg.checker.losses import account, beyond
from reliamsg.checker.offsets import find_skewed, measure
from reliamsg.checker.producers import ProducerFacts, gather_producer
from reliamsg.checker.references import find_missing, find_unfinished, groups_named_in, producers_named_in
from reliamsg.checker.renumbered import Renumbering
from reliamsg.checker.report import KINDS, Counts, Finding, Report
from reliamsg.checker.restores import find_cuts, find_ends
from reliamsg.checker.retired import check_retired, retire
from reliamsg.checker.sites import count_sites
from reliamsg.checker.spans import Key, SpanMap, Spans
from reliamsg.checker.through import accounted_by, demands_at, find_through
from reliamsg.keys import KeyRing
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow
from reliamsg.trust import Trust

__all__ = ["Expect", "check", "check_directory"]

_CLAIMED = frozenset({"rejected", "conflict", "quarantined", "quarantine_discarded", "let_go"})
"""Kinds of rows whose identity is what a frame claimed, rather than what the client believed."""
_PROGRESS = frozenset({"confirmed", "published", "delivered", "acknowledged"})


@dataclass(frozen=True)
class Expect:
    """Further knowledge about a run, in addition to its journals and logs."""

    drained: bool = False
    """Whether the run is over: every client was closed, and everything had time to arrive. Then a confirmed message
    that was not delivered is lost, even at the end of its stream, and every message counts. Otherwise it is open, and
    with neither `drained` nor `until_us`, the check finds the time through which everything is complete."""
    groups: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """By topic, groups that must have left a journal, in addition to those that journals name."""
    producers: Iterable[str] = ()
    """Producers that must have left a journal."""
    gap_timeout: float | None = None
    """Seconds; replaces the value in the journals of groups."""
    tolerance: float = 1.0
    """Seconds by which the time until a gap expired may differ from the gap timeout."""
    until_us: int | None = None
    """Wall clock of each client, in µs since 1970. The check covers messages enqueued by then, and requires evidence up
    to then; later evidence about these messages counts. None: no limit."""
    retired: Iterable[str] = ()
    """Clients that will never write again, each as ``[ROLE/]NAME@SEGMENT``: the last segment of its journal, which has
    to end with its close."""
    max_skew: float | None = None
    """Seconds that a client's clock may be ahead of, or behind, another one's; None: no limit."""
    now_us: int | None = None
    """This machine's clock, in µs since 1970, beyond which nothing is proven. None: as it is."""
    checkpoint_keys: KeyRing | None = None
    """Keys of which one must have signed each checkpoint. None: signatures of checkpoints are not checked."""
    drained_by_us: int | None = None
    """Wall clock, in µs since 1970: when everything must have drained. Only for clients on one machine, because it is
    compared with their clocks."""
    trust: Trust | None = None
    """By which every segment and head must be signed by its client; None: signatures are not checked. Only for
    :func:`check_directory`, which reads them."""


@dataclass(frozen=True)
class _Clients:
    """All clients, from their journals."""

    producers: dict[str, ProducerFacts] = field(default_factory=dict)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def check_directory(path: str | os.PathLike[str], expect: Expect | None = None) -> Report:
    """Check every outbox, inbox (``*.db``), segment and application's log (``*.ndjson``) below `path`.

    Files are only read; their owners may be running. A file that can't be read is a finding, not an error. So are
    outboxes and inboxes if signatures are checked, since they have none. Raises :class:`NotADirectoryError` if `path`
    is not a directory, and :class:`ConfigError` if a client or segment that is declared as retired does not exist.
    """
    if not Path(path).is_dir():
        raise NotADirectoryError(f"{path}: there is no such directory")
    started = time.perf_counter()
    expect = expect or Expect()
    found = collect(path, expect.trust, expect.checkpoint_keys)
    logs, others = _read_logs(found.others)
    report = _check(found.chains, logs, expect, (*found.problems, *others), found.emptied)
    return replace(
        report, duplicated=found.duplicated, signatures_checked=expect.trust is not None,
        checkpoints=found.checkpoints, checkpoint_signatures_checked=expect.checkpoint_keys is not None,
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def _read_logs(paths: Iterable[str]) -> tuple[list[ApplicationLog], list[str]]:
    """The applications' logs, and a line for each file that is something else."""
    logs: list[ApplicationLog] = []
    others: list[str] = []
    for path in paths:
        log = read_applog(path)
        # A kill can leave a log with nothing but an unfinished first line.
        if log.records or not Path(path).read_bytes().endswith(b"\n"):
            logs.append(log)
        else:
            others.append(f"{path}: neither a journal's segment nor an application's log")
    return logs, others


def check(
    journals: Iterable[Chain], applogs: Iterable[ApplicationLog] = (), expect: Expect | None = None
) -> Report:
    """Check a run by its clients' journals and its applications' logs."""
    return _check(journals, applogs, expect or Expect(), ())


def _check(
    journals: Iterable[Chain],
    applogs: Iterable[ApplicationLog],
    expect: Expect,
    problems: Iterable[str],
    emptied: Collection[tuple[str, str]] = (),
) -> Report:
    """`problems`: lines about unusable files. `emptied`: role and name of clients whose directories are empty."""
    started = time.perf_counter()
    every = list(journals)
    check_retired(expect.retired, every)
    chains, apps = mark_abandoned(merge_copies(every)), gather_applications(applogs)
    clients = _gather(chains, expect)
    apps = apps.in_final_epochs(clients.producers)
    contested, findings = _check_incarnations(chains, clients)
    findings = [*clients.findings, *findings]
    wrong, compared = compare_contents(chains, contested)
    findings += wrong
    named = _named_groups(clients, expect)
    findings += _check_evidence(chains, clients, named, apps, expect, emptied)
    accounts = account(
        clients.producers,
        clients.groups,
        named,
        contested,
        expect.drained,
        find_cuts(chains),
        find_ends(chains),
    )
    findings += accounts.findings
    findings += _check_drained(chains, expect)
    sites = count_sites(clients.producers, clients.groups)
    saved = Counts(saved_by_repair=sites.saved.by_repair, saved_by_second_site=sites.saved.by_second_site)
    by_logs = check_applications(apps, clients.producers, clients.groups, accounts.excused, expect.drained)
    findings += by_logs.findings
    unverified = _unverified(clients, apps, compared)
    reported, hidden = _check_unverified(unverified, findings, clients, contested)
    findings += reported
    findings += find_forks(chains)
    findings += [Finding("broken", problem) for problem in problems]
    chains, not_retired = retire(chains, expect.retired, expect.until_us)
    findings += not_retired
    offsets = measure(chains)
    if expect.max_skew is not None:
        findings += find_skewed(chains, offsets, expect.max_skew)
    now_us = time.time_ns() // 1000 if expect.now_us is None else expect.now_us
    through = find_through(chains, [*findings, *hidden], clients.producers, expect.until_us, now_us, offsets)
    if expect.until_us is not None:
        findings += demands_at(expect.until_us, chains, now_us)
    proven = Counts(proven=accounted_by(through.us, clients.producers))
    return Report(
        findings,
        # Journals and logs count the same messages, and either may be incomplete.
        (accounts.counts + saved + proven).at_least(by_logs.counts),
        streams=len(_streams(clients, apps)),
        sites=sites.counts,
        latency=summarize(row for chain in chains for row in chain.rows),
        clients=len(chains),
        logs=apps.count,
        unverified=sum(each.spans.count for each in unverified),
        rows=sum(chain.row_count for chain in chains),
        seconds=time.perf_counter() - started,
        through=through,
        all_counts=expect.drained or expect.until_us is not None,
    )


def _gather(chains: Iterable[Chain], expect: Expect) -> _Clients:
    clients = _Clients()
    by_client: dict[tuple[str, str], list[Chain]] = {}
    for chain in chains:
        by_client.setdefault((chain.role, chain.client), []).append(chain)
    for (role, client), own in sorted(by_client.items()):
        if role == "producer":
            clients.producers[client], findings = gather_producer(
                client, own, expect.until_us, expect.drained
            )
        else:
            clients.groups[client], findings = gather_group(client, own, expect.gap_timeout, expect.tolerance)
        clients.findings.extend(findings)
    return clients


def _check_incarnations(chains: list[Chain], clients: _Clients) -> tuple[set[Key], list[Finding]]:
    """Each epoch of a producer has one incarnation. Returns where contents can't be compared, and findings."""
    contested: set[Key] = set().union(*(facts.contested for facts in clients.producers.values()))
    findings: list[Finding] = []
    found: dict[tuple[str, int], set[int]] = {}
    keys: dict[tuple[str, int], set[Key]] = {}
    for chain in chains:
        renumbering = Renumbering(chain.rows if chain.role == "producer" else ())
        for row in map(renumbering, chain.rows):
            if row.epoch and row.incarnation and row.topic and row.kind not in _CLAIMED:
                owner = (row.producer, row.epoch)
                found.setdefault(owner, set()).add(row.incarnation)
                keys.setdefault(owner, set()).add((_stream(row), row.epoch))
    for (producer, epoch), incarnations in sorted(found.items()):
        if len(incarnations) > 1:
            contested |= keys[producer, epoch]
            names = ", ".join(f"{number:016x}" for number in sorted(incarnations))
            text = f"{KINDS['two_incarnations'][1]}: {producer} has incarnations {names} in epoch {epoch}"
            findings.append(Finding("two_incarnations", text, epoch=epoch))
    return contested, findings


def _named_groups(clients: _Clients, expect: Expect) -> dict[str, set[str]]:
    """By topic, all groups that journals or expectations name."""
    named: dict[str, set[str]] = {topic: set(groups) for topic, groups in expect.groups.items()}
    for producer in clients.producers.values():
        for topic, groups in producer.groups.items():
            named.setdefault(topic, set()).update(groups)
    for name, facts in clients.groups.items():
        for topic in facts.topics | {stream.topic for stream, _ in facts.delivered}:
            named.setdefault(topic, set()).add(name)
    return named


def _check_evidence(
    chains: list[Chain],
    clients: _Clients,
    named: dict[str, set[str]],
    apps: Applications,
    expect: Expect,
    emptied: Collection[tuple[str, str]],
) -> list[Finding]:
    """Evidence that is missing, and evidence that is not reliable."""
    findings: list[Finding] = []
    if not chains:
        findings.append(Finding("missing", "there are no journals"))
    for chain in chains:
        name = f"{chain.source} ({chain.role} {chain.client})"
        findings += [Finding("broken", f"{name}: {problem}") for problem in chain.broken]
        if expect.drained and not (chain.broken or chain.finished):
            findings.append(Finding("unclosed", f"{name}: {KINDS['unclosed'][1]}"))
    expected_producers = {*expect.producers, *(name for role, name in emptied if role == "producer")}
    for chain in chains:
        expected_producers |= producers_named_in(chain)
    if chains:
        expected_producers |= apps.publishers
    missing_producers = expected_producers - set(clients.producers)
    findings += [Finding("missing", f"no journal of producer {name}") for name in sorted(missing_producers)]
    groups = {name for role, name in emptied if role == "group"}
    groups |= set().union(*named.values(), *map(groups_named_in, chains))
    groups |= set(apps.groups) if chains else set()
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
    return findings + find_missing(chains, expect.until_us) + find_unfinished(chains)


def _check_drained(chains: Iterable[Chain], expect: Expect) -> Iterator[Finding]:
    """Nothing happens after everything should have drained."""
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
            yield Finding(
                "too_late", text, _stream(worst), worst.group, worst.site, worst.epoch, worst.first, worst.last
            )  # fmt: skip


class _Unverified(NamedTuple):
    """Delivered messages whose content could not be compared."""

    group: str
    key: Key
    spans: Spans


def _unverified(clients: _Clients, apps: Applications, compared: dict[str, SpanMap]) -> list[_Unverified]:
    """All deliveries whose content neither digest sums nor the applications' logs could compare with the published
    content."""
    found = []
    for name, group in clients.groups.items():
        seen = compared.get(name, SpanMap())
        for key, delivered in sorted(group.delivered.items()):
            if key[0].producer in clients.producers:
                later = beyond(clients.producers[key[0].producer], key, delivered)
                spans = delivered - later - seen[key] - apps.compared(name, key)
                found.append(_Unverified(name, key, spans))
    return found


def _check_unverified(
    unverified: Iterable[_Unverified], findings: Iterable[Finding], clients: _Clients, contested: set[Key]
) -> tuple[list[Finding], list[Finding]]:
    """Find unverified content, unless there is a known cause.

    A hole prevents the comparison of the range around it, so nothing is reported if there is a worse finding. Nor is
    it reported for the epoch in whose middle a group joined or was removed, because that is no fault.

    The second list has what is not reported because of questions that may be about later messages only: up to the time
    before these, the content is unverified nevertheless.
    """
    worse: dict[tuple[str, Stream | None, int | None], set[str]] = {}
    for finding in findings:
        worse.setdefault((finding.group, finding.stream, finding.epoch), set()).add(finding.severity)
    found: list[Finding] = []
    hidden: list[Finding] = []
    for name, key, spans in unverified:
        group, producer = clients.groups[name], clients.producers[key[0].producer]
        joined = group.joined.get(key[0], (0, 1))
        excused = producer.excused.get(name, SpanMap())[key]
        beside = worse.get((name, *key), set()) | worse.get(("", *key), set())
        known = key in contested or not beside <= {"unknown"}
        if known or excused or group.before_join[key] or (joined[0] == key[1] and joined[1] > 1):
            continue
        (hidden if beside else found).extend(
            Finding("unverified", KINDS["unverified"][1], key[0], name, epoch=key[1], first=first, last=last)
            for first, last in spans
        )
    return found, hidden


def _streams(clients: _Clients, apps: Applications) -> set[Stream]:
    streams = set(apps.published) | {stream for _, stream in apps.delivered}
    for producer in clients.producers.values():
        streams |= {stream for stream, _ in producer.enqueued}
    for group in clients.groups.values():
        streams |= {stream for stream, _ in group.delivered}
    return streams


def _stream(row: JournalRow) -> Stream:
    return Stream(row.producer, row.topic, row.partition)
