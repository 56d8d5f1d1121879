"""Clients that an operator declares as gone for good: docs/reference/audit.md, "Clients that are gone"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import unquote

from reliamsg.checker.journals import Chain
from reliamsg.checker.references import lacking_clients
from reliamsg.checker.report import Finding
from reliamsg.errors import ConfigError
from reliamsg.store.segment import parse_name

__all__ = ["check_retired", "retire"]

_DIGEST = re.compile("[0-9a-f]{64}")
_MOST = 10


class _Tip(NamedTuple):
    """The end of a journal, as it was declared."""

    words: str
    client: str
    digest: str

    def is_of(self, chain: Chain) -> bool:
        """Whether it names the client, and a segment of this chain."""
        return self.names(chain) and self.digest in chain.digests

    def names(self, chain: Chain) -> bool:
        """Whether it names the client, as it is or as its directory does; behind its role and a slash, or alone."""
        prefix = f"{chain.role}/"
        spellings = [self.client]
        if self.client.startswith(prefix):
            spellings.append(self.client.removeprefix(prefix))
        return any(chain.client in (each, unquote(each)) for each in spellings)


def _parsed(words: Iterable[str]) -> list[_Tip]:
    tips = []
    for each in words:
        client, _, segment = each.rpartition("@")
        name = parse_name(segment)
        digest = segment if name is None else name.digest
        if not client or _DIGEST.fullmatch(digest) is None:
            raise ConfigError(
                f"--retired {each}: use NAME@SEGMENT, producer/NAME@SEGMENT or group/NAME@SEGMENT, with the file name"
                " of a segment, or the 64 hex digits of its digest"
            )
        tips.append(_Tip(each, client, digest))
    return tips


def check_retired(words: Iterable[str], chains: Iterable[Chain]) -> None:
    """Raise :class:`ConfigError` for a client or a segment that is declared, and that no journal has."""
    chains = list(chains)
    for tip in _parsed(words):
        if any(tip.is_of(chain) for chain in chains):
            continue
        ends = [(chain.digests[-1], chain) for chain in chains if tip.names(chain) and chain.digests]
        if ends:
            known = _listed(f"{digest} ({chain.role} {chain.client})" for digest, chain in ends)
            raise ConfigError(
                f"--retired {tip.words}: the client has no such segment; its journals end with {known}"
            )
        known = _listed(f"{chain.role} {chain.client}" for chain in chains)
        raise ConfigError(
            f"--retired {tip.words}: no client of that name has a journal; those that have: {known}"
        )


def retire(
    chains: list[Chain], words: Iterable[str], until_us: int | None
) -> tuple[list[Chain], list[Finding]]:
    """The chains, of which those of clients that are gone can have no further row; and why others are not gone."""
    tips = _parsed(words)
    if not tips:
        return chains, []
    lacking = lacking_clients(chains, until_us)
    reasons: dict[tuple[str, str, str], str] = {}
    gone: set[int] = set()
    for tip in tips:
        for role, client in {(chain.role, chain.client) for chain in chains if tip.is_of(chain)}:
            ends = [
                number
                for number, chain in enumerate(chains)
                if (chain.role, chain.client) == (role, client) and chain.digests[-1:] == (tip.digest,)
            ]
            if not ends or any(_goes_on(chains[number]) for number in ends):
                reasons[role, client, tip.digest] = "void, since its journal continues after that"
            elif (role, client) in lacking:
                reasons[role, client, tip.digest] = (
                    "void, since others have heard of more than its journal has"
                )
            elif not all(chains[number].finished for number in ends):
                reasons[role, client, tip.digest] = "it was not closed, so what followed is unknown"
            else:
                gone.update(ends)
    findings = [
        Finding("not_retired", f"{role} {client}: declared as retired at segment {digest}: {why}")
        for (role, client, digest), why in reasons.items()
    ]
    return [replace(chain, gone=number in gone) for number, chain in enumerate(chains)], findings


def _goes_on(chain: Chain) -> bool:
    """Whether there is more of the journal than its segments: a head, or rows in the client's file."""
    return chain.continues or chain.to_the_end


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(set(names))
    if not ordered:
        return "none"
    rest = len(ordered) - _MOST
    return ", ".join(ordered[:_MOST]) + (f", and {rest:,} more" if rest > 0 else "")
