"""Groups findings into incidents: one lost block is one incident, however many groups and kinds of findings it has.

Findings of a stream belong together if they are of one category and epoch and their ranges overlap or adjoin. Findings
about journals belong together if they are about one client. An incident's id depends on where it begins, so that it
keeps the id while it grows, or while what was open is proven lost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from reliamsg.audit.accepted import Acceptances, Brief
from reliamsg.audit.fold import StreamName
from reliamsg.audit.found import Finding
from reliamsg.audit.kinds import KINDS, LOSSES, PRECEDENCE
from reliamsg.audit.spans import size
from reliamsg.audit.times import as_time
from reliamsg.terminal import printable

__all__ = [
    "MAX_INCIDENTS", "Incident", "as_dicts", "incidents_of_clients", "incidents_of_stream", "shell_word",
    "stream_name", "worst_incidents",
]  # fmt: skip

MAX_INCIDENTS = 1_000
"""The maximum number of incidents in a verdict."""
_MAX_LINES = 10
_MAX_NAMES = 50
_ID_DIGITS = 12
_BEYOND = 2**53
"""No stream has as many messages: the end of a range of unknown extent."""

_OPEN = ("pending", "undelivered", "never_joined")
_CATEGORIES = {
    **dict.fromkeys(
        (
            *LOSSES, *_OPEN, "settled_unseen", "undeclared_gap", "declared_late", "gap_closed_early", "gap_closed_late",
            "false_before_join", "false_removal", "not_redelivered", "consumed_unsettled", "released_early",
            "published_unconfirmed",
        ),
        "delivery",
    ),
    **dict.fromkeys(
        (
            "out_of_order", "duplicate", "duplicate_apart", "redelivered_after_ack", "acknowledged_twice",
            "acknowledged_undelivered", "unacknowledged", "delivered_after_gap", "false_gap", "false_replay",
        ),
        "order",
    ),
    **dict.fromkeys(
        (
            "seq_reused", "seq_skipped", "old_epoch", "wrong_prev", "confirmed_unknown", "enqueued_after_fence",
            "two_incarnations", "phantom", "phantom_gap", "unproven", "unproven_gap", "fork",
        ),
        "identity",
    ),
    **dict.fromkeys(("corrupt", "unverified"), "content"),
}  # fmt: skip
"""Kinds that one cause may have together. All other kinds are about evidence."""
_EVIDENCE = "evidence"
_RANKS: dict[str, int] = {severity: rank for rank, severity in enumerate(PRECEDENCE)}
_SEVERITY = {kind: _RANKS[severity] for kind, (severity, _) in KINDS.items()}
_PLACES = {kind: place for place, kind in enumerate(KINDS)}

_HOPS = {
    "enqueued": "no site confirmed them",
    "received": "the group received them, but never delivered them",
    "buffered": "they are in the group’s inbox beyond a gap, and were never delivered",
}
_DECISIONS = {
    "removed": "Removed by the producer’s operator before the group had them",
    "discarded": "Discarded from the quarantine by the group’s operator",
    "joined_unheard": "Published for a group that joined behind them before it knew of the producer",
}
_PROBLEMS = (
    (r"no journals$", "There are no journals at all"),
    (
        r"clock is further from another one's",
        "Clocks of clients are further apart than is allowed: set them, and keep them with NTP",
    ),
    (
        r"declared as retired at segment",
        "The client was declared as retired, which its journal does not bear out",
    ),
    (r"no journal of (?:the opening|epoch)", "A part of the journal that others refer to was not found"),
    (
        r"no journal of any producer",
        "A group reads this topic, and no journal is of a producer that publishes to it",
    ),
    (r"no journal of ", "There is no journal of this client, although others name it or it is expected"),
    (r"lacks (?:rows|messages)", "The journal lacks rows or messages that others refer to"),
    (r"discarded by the client", "The client discarded rows of its journal"),
    (r"rows? \d+.* missing", "Segments of the journal are missing"),
    (
        r"(?:damaged|cut: |misplaced: |renamed: )",
        "Segments of the journal are damaged, incomplete or misplaced",
    ),
    (r"left no journal", "Another inbox of the group left no journal"),
)
"""Patterns in lines about evidence, and the cause."""
_OWNERS = (
    r"\((?P<role>producer|group) (?P<client>.*?)\): ",
    r"^no journal of any producer of (?P<role>topic) (?P<client>.*)$",
    r"^(?:no journal|the journal) of (?:(?:the )?(?:opening|epoch) \S+ of )?(?P<role>producer|group) (?P<client>.*?)"
    r"(?: lacks (?:rows that it had|messages to which others refer))?$",
    r"^(?P<role>producer|group) (?P<client>.*?): ",
    r"^(?P<client>.+?) (?:has incarnations|was fenced) ",
)
"""How lines about evidence name the client that they are about. It is only used to put lines together."""


class Incident(msgspec.Struct, frozen=True):
    """Findings with one cause."""

    id: str
    """12 hex digits."""
    severity: str
    """The worst of its findings."""
    category: str
    """``delivery``, ``order``, ``identity``, ``content`` or ``evidence``."""
    cause: str
    kinds: tuple[str, ...]
    """Worst first."""
    role: str
    """``producer`` or ``group``; of a topic without producers ``topic``; empty if no client is known."""
    client: str
    stream: StreamName | None = None
    epoch: int | None = None
    first: int | None = None
    last: int | None = None
    """None: up to the end, or of unknown extent."""
    messages: int | None = None
    """The number of messages in the range; None if it is unknown."""
    lost: int = 0
    """Of these, lost ones, counted once for each group that lacks them."""
    groups: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """Details."""
    findings: int = 1
    enqueued_us: tuple[int, int] | None = None
    """When its first and its last message were enqueued: the times at which the rows began, µs since 1970 by the
    producer's clock. None if unknown."""

    @property
    def brief(self) -> Brief:
        """What is compared from audit to audit."""
        messages = 0 if self.first is None else self.messages
        return Brief(self.id, self.severity, messages, self.lost, self.groups, self.enqueued_us)

    def contains(self, finding: Finding) -> bool:
        """Whether a finding about its stream is about some of its messages only; or is about none, and neither is the
        incident."""
        if finding.epoch != self.epoch:
            return False
        if self.first is None or finding.first is None:
            return self.first is None and finding.first is None
        last = _BEYOND if self.last is None else self.last
        return self.first <= finding.first and (finding.last or finding.first) <= last


def incidents_of_stream(findings: Iterable[Finding]) -> list[Incident]:
    """The incidents of one stream, from all of its findings."""
    by_place: dict[tuple[str, int], list[Finding]] = defaultdict(list)
    for each in findings:
        by_place[_CATEGORIES.get(each.kind, _EVIDENCE), -1 if each.epoch is None else each.epoch].append(each)
    return [_of_stream(category, block) for (category, _), own in by_place.items() for block in _blocks(own)]


def incidents_of_clients(findings: Iterable[Finding]) -> list[Incident]:
    """The incidents of all findings that are not about a stream's messages."""
    by_client: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for each in findings:
        role, client = _owner(each)
        by_client[_CATEGORIES.get(each.kind, _EVIDENCE), role, client].append(each)
    return [_of_client(*place, own) for place, own in by_client.items()]


def worst_incidents(incidents: Iterable[Incident]) -> list[Incident]:
    """The worst :data:`MAX_INCIDENTS`, in the order of severity and number of messages."""
    return sorted(incidents, key=_order)[:MAX_INCIDENTS]


def as_dicts(
    incidents: Iterable[Incident], acceptances: Acceptances, journals: str = "", out: str = ""
) -> list[dict[str, Any]]:
    """Incidents as plain data, each with the next command to run on `journals` and on the audit's output `out`."""
    return [_as_dict(each, acceptances, journals, out) for each in incidents]


def stream_name(stream: StreamName) -> str:
    """A stream as commands name it: ``producer/topic``, and ``~partition`` unless that is 0."""
    producer, topic, part = stream
    return f"{producer}/{topic}" + (f"~{part}" if part else "")


def shell_word(word: str) -> str:
    """A word that a shell reads as it is, without line breaks and invisible characters: names are untrusted, and
    commands are copied into terminals."""
    if word and re.fullmatch(r"[\w@%+=:,./~-]+", word, flags=re.ASCII) and not word.startswith("~"):
        return word
    if word.isprintable() and printable(word) == word:
        return "'" + word.replace("'", "'\"'\"'") + "'"
    encoded = "".join(
        character
        if character.isascii() and character.isalnum()
        else "".join(f"\\x{byte:02x}" for byte in data)
        for character in word
        for data in [character.encode("utf-8", "surrogatepass")]
    )
    return f"$'{encoded}'"


def _blocks(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """Findings whose ranges overlap or adjoin; those without a range together."""
    without = [each for each in findings if each.first is None]
    if without:
        yield without
    block: list[Finding] = []
    end = 0
    for each in sorted(findings, key=lambda each: (each.first or 0, each.last or 0)):
        if each.first is None:
            continue
        last = each.first if each.last is None else each.last
        if block and each.first > end + 1:
            yield block
            block = []
        end = max(end, last) if block else last
        block.append(each)
    if block:
        yield block


def _of_stream(category: str, block: Sequence[Finding]) -> Incident:
    worst = _worst(block)
    stream, first = worst.stream or ("", "", 0), block[0].first
    ends = [each.first if each.last is None else each.last for each in block if each.first is not None]
    last = max((end for end in ends if end is not None), default=None)
    known = None if last is None or last >= _BEYOND else last
    return Incident(
        _identity("producer", *stream, worst.epoch, category, first), KINDS[worst.kind][0], category,
        _cause(category, block), _kinds(block), "producer", stream[0], stream, worst.epoch, first, known,
        None if first is None or known is None else size(first, known), sum(map(_lost, block)),
        _names(each.group for each in block), _names(_sites(block)),
        tuple(dict.fromkeys(each.text for each in block if each.text))[:_MAX_LINES], len(block),
    )  # fmt: skip


def _lost(finding: Finding) -> int:
    if finding.kind not in LOSSES or finding.first is None or finding.last is None or finding.last >= _BEYOND:
        return 0
    return size(finding.first, finding.last)


def _of_client(category: str, role: str, client: str, own: Sequence[Finding]) -> Incident:
    worst = _worst(own)
    lines = sorted({each.text or KINDS[each.kind][1] for each in own})
    return Incident(
        _identity(role, client, "", 0, None, category, None), KINDS[worst.kind][0], category,
        _cause_of_evidence(worst), _kinds(own), role, client, epoch=worst.epoch,
        groups=(client,) if role == "group" else (), lines=tuple(lines[:_MAX_LINES]), findings=len(own),
    )  # fmt: skip


def _identity(
    role: str, name: str, topic: str, part: int, epoch: int | None, category: str, first: int | None
) -> str:
    place = json.dumps([role, name, topic, part, epoch, category, first])
    return hashlib.sha256(place.encode()).hexdigest()[:_ID_DIGITS]


def _worst(findings: Iterable[Finding]) -> Finding:
    return min(findings, key=lambda each: (_SEVERITY[each.kind], _PLACES[each.kind], each.text))


def _kinds(findings: Iterable[Finding]) -> tuple[str, ...]:
    kinds = {each.kind for each in findings}
    return tuple(kind for kind in sorted(KINDS, key=lambda kind: _SEVERITY[kind]) if kind in kinds)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name for name in names if name})[:_MAX_NAMES])


def _sites(findings: Iterable[Finding]) -> Iterator[str]:
    for each in findings:
        yield each.site
        yield from each.sites


def _order(incident: Incident) -> tuple[Any, ...]:
    unknown = incident.messages is None and incident.first is not None
    return (
        _RANKS[incident.severity], not unknown, -(incident.messages or 0), incident.client,
        incident.stream or ("", "", 0), incident.epoch or 0, incident.first or 0, incident.id,
    )  # fmt: skip


# -- causes -------------------------------------------------------------------------------------------------


def _cause(category: str, block: Sequence[Finding]) -> str:
    """What most likely happened, in a sentence without names of streams, clients and groups: incidents with one cause
    have the same sentence."""
    worst = _worst(block)
    kinds = {each.kind for each in block}
    if category != "delivery":
        return _capital(KINDS[worst.kind][1])
    losses = [each for each in block if each.kind in LOSSES]
    if losses:
        return _cause_of_loss(losses, kinds)
    opened = [each for each in block if each.kind in _OPEN]
    if worst in opened or not _violations(kinds):
        why = next((each.text for each in opened if each.text), "")
        return f"{_capital(KINDS[worst.kind][1])}" + (f": {why}" if why else "")
    return _capital(KINDS[worst.kind][1])


def _cause_of_loss(losses: Sequence[Finding], kinds: set[str]) -> str:
    decision = next((text for kind, text in _DECISIONS.items() if kind in kinds), None)
    if decision is not None and not kinds & {"lost", "declared_gap"}:
        return decision
    hops = {each.hop for each in losses if each.kind in ("lost", "declared_gap")}
    hop = next((hop for hop in ("confirmed", "enqueued", "received", "buffered") if hop in hops), "")
    sites = _names(_sites(each for each in losses if each.hop == hop))
    if hop == "confirmed":
        where = f"confirmed by {_listed(sites)}, and not received" if sites else "confirmed, and not received"
    else:
        where = _HOPS.get(hop, "the journals do not show where")
    silent = "Lost" if "lost" in kinds else "Lost and declared to the application"
    violations = [KINDS[kind][1] for kind in _violations(kinds)]
    return f"{silent}: {where}" + (f"; {', '.join(violations)}" if violations else "")


def _violations(kinds: set[str]) -> list[str]:
    return [kind for kind in KINDS if kind in kinds and KINDS[kind][0] == "violated"]


def _cause_of_evidence(worst: Finding) -> str:
    for pattern, cause in _PROBLEMS:
        if re.search(pattern, worst.text):
            return cause
    return _capital(KINDS[worst.kind][1])


def _owner(finding: Finding) -> tuple[str, str]:
    """Role and name of the client that a finding is about; empty if unknown."""
    for pattern in _OWNERS:
        found = re.search(pattern, finding.text, flags=re.DOTALL)
        if found is not None:
            named = found.groupdict()
            return named.get("role", "producer") or "producer", named["client"]
    if finding.stream is not None:
        return "producer", finding.stream[0]
    return "", ""


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:4]) + ([f"{len(names) - 4} more sites"] if len(names) > 4 else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- plain data ---------------------------------------------------------------------------------------------


def _as_dict(incident: Incident, acceptances: Acceptances, journals: str, out: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": incident.id, "severity": incident.severity, "category": incident.category, "cause": incident.cause,
        "kinds": list(incident.kinds),
    }  # fmt: skip
    if incident.stream is not None:
        found |= dict(zip(("producer", "topic", "partition"), incident.stream, strict=True))
    elif incident.role:
        found |= {"role": incident.role, "client": incident.client}
    if incident.epoch is not None:
        found["epoch"] = incident.epoch
    if incident.first is not None:
        found |= {
            "first": incident.first, "last": incident.last, "messages": incident.messages, "lost": incident.lost,
        }  # fmt: skip
    if incident.enqueued_us is not None:
        found["enqueued"] = list(map(as_time, incident.enqueued_us))
    accepted = acceptances.by_id.get(incident.id)
    if accepted is not None:
        found["accepted"] = {
            "reason": accepted.reason, "by": accepted.by, "at": as_time(accepted.at_us),
            "covers": acceptances.covers(incident.brief),
        }  # fmt: skip
    return found | {
        "groups": list(incident.groups), "sites": list(incident.sites), "lines": list(incident.lines),
        "findings": incident.findings, "next": _next(incident, journals, out),
    }  # fmt: skip


def _next(incident: Incident, journals: str, out: str) -> str:
    """The next command to run. The audit does not know the paths of outboxes and inboxes."""
    place = shell_word(journals) if journals else "JOURNALS"
    if incident.stream is None:
        if incident.category == _EVIDENCE and incident.kinds[0] != "unclosed":
            return f"reliamsg journal verify {place}"
        if incident.category == _EVIDENCE:
            file = "INBOX" if incident.role == "group" else "OUTBOX"
            return f"reliamsg journal export {file} --to {place}"
    kinds = set(incident.kinds)
    if incident.category == "delivery":
        if "pending" in kinds or incident.cause.endswith(_HOPS["enqueued"]):
            return "reliamsg outbox stats OUTBOX"
        if kinds <= {"undelivered", "never_joined"}:
            if "quarantine" in incident.cause:
                return "reliamsg inbox quarantine list INBOX"
            return "reliamsg inbox gaps INBOX" if "gap" in incident.cause else "reliamsg inbox ls INBOX"
    if incident.category == "identity":
        return (
            f"reliamsg journal cat {place} --client {shell_word(incident.client)} --kind opened --kind epoch"
            " --kind fenced"
        )
    stream = "STREAM" if incident.stream is None else shell_word(printable(stream_name(incident.stream)))
    return f"reliamsg audit show {shell_word(out) if out else 'DIR'} {stream}"
