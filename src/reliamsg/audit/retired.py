"""Clients that an operator declares as gone for good: docs/reference/audit.md, "Clients that are gone"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from urllib.parse import unquote

from reliamsg.audit.clients import Clients, JournalParts
from reliamsg.audit.fold import FOREVER_US
from reliamsg.audit.found import Finding
from reliamsg.audit.segment import parse_segment_name
from reliamsg.audit.through import in_order
from reliamsg.errors import ConfigError

__all__ = ["check_retired", "parse_retired", "retire"]

_DIGEST = re.compile("[0-9a-f]{64}")
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Declared:
    """A client that will never write again, after this segment."""

    client: str
    """Its name, perhaps behind its role and a slash."""
    digest: str
    words: str


def parse_retired(words: Iterable[str]) -> list[_Declared]:
    """Parse ``NAME@SEGMENT`` or ``ROLE/NAME@SEGMENT``. Raises :class:`ConfigError`."""
    found = []
    for each in words:
        name, _, segment = each.rpartition("@")
        parsed = parse_segment_name(segment)
        digest = segment if parsed is None else parsed.digest
        if not name or not _DIGEST.fullmatch(digest):
            raise ConfigError(
                f"--retired {each}: use NAME@SEGMENT, producer/NAME@SEGMENT or group/NAME@SEGMENT, with the file name"
                " of a segment, or the 64 hex digits of its digest"
            )
        found.append(_Declared(name, digest, each))
    return found


def check_retired(words: Iterable[str], journals: Sequence[JournalParts]) -> None:
    """Raise :class:`ConfigError` if a declaration names a client or a segment that is not among the journals."""
    for each in parse_retired(words):
        own = [journal for journal in journals if _is_named(each, journal)]
        if not own:
            clients = {f"{journal.role} {journal.client}" for journal in journals}
            raise ConfigError(
                f"--retired {each.words}: no client of that name has a journal; those that have: {_some(clients)}"
            )
        if not any(each.digest in part.digests for journal in own for part in journal.parts):
            tips = {f"{_tip(journal)} ({journal.role} {journal.client})" for journal in own}
            raise ConfigError(
                f"--retired {each.words}: the client has no such segment; its journals end with {_some(tips)}"
            )


def retire(
    clients: Clients, words: Iterable[str], journals: Sequence[JournalParts], producers: Set[str]
) -> Clients:
    """The clients, of which the ends of those that are gone are proven for ever. `producers`: those of whose messages
    or epochs others have some that no journal has."""
    declared = parse_retired(words)
    if not declared:
        return clients
    more = clients.lacking | {("producer", name) for name in producers}
    gone: set[str] = set()
    findings: dict[Finding, None] = {}
    for each in declared:
        owners: dict[tuple[str, str], list[JournalParts]] = {}
        for journal in journals:
            if _is_named(each, journal):
                owners.setdefault((journal.role, journal.client), []).append(journal)
        for (role, client), own in owners.items():
            if not any(each.digest in part.digests for journal in own for part in journal.parts):
                continue
            why, names = _judge(each, own, (role, client) in more)
            gone |= names
            if why:
                text = f"{role} {client}: declared as retired at segment {each.digest}: {why}"
                findings[Finding("not_retired", text=text)] = None
    proven = [
        replace(known, us=FOREVER_US, ends="retired") if known.journal in gone else known
        for known in clients.proven
    ]
    return replace(clients, findings=[*clients.findings, *findings], proven=in_order(proven))


def _judge(declared: _Declared, own: Sequence[JournalParts], more: bool) -> tuple[str, set[str]]:
    """Why the declaration does not hold, and otherwise the histories for which it does."""
    ending = [journal for journal in own if _tip(journal) == declared.digest]
    if not ending or any(journal.continues for journal in ending):
        return "void, since its journal continues after that", set()
    if more:
        return "void, since others have heard of more than its journal has", set()
    if not all(journal.openings[-1].closed for journal in ending):
        return "it was not closed, so what followed is unknown", set()
    return "", {journal.name for journal in ending}


def _is_named(declared: _Declared, journal: JournalParts) -> bool:
    """Whether it is the client's name, as it is or as its directory has it, with its role or without. Names may contain
    slashes."""
    role, _, name = declared.client.partition("/")
    names = {declared.client, unquote(declared.client)}
    return journal.client in names or (role == journal.role and journal.client in (name, unquote(name)))


def _tip(journal: JournalParts) -> str:
    return journal.parts[-1].digests[-1] if journal.parts else ""


def _some(names: Iterable[str]) -> str:
    """Some of the names, in order, with the number of the others."""
    ordered = sorted(names)
    more = f", and {len(ordered) - _SHOWN:,} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more if ordered else "none"
