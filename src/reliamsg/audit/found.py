"""A finding, as the judges of streams and clients report it."""

from __future__ import annotations

import msgspec

from reliamsg.audit.fold import StreamName
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.spans import LAST

__all__ = ["EVIDENCE", "Finding", "describe"]

EVIDENCE = ("missing", "broken", "unclosed", "ends_early", "mixed_clock", "not_retired", "skewed")
"""Kinds about journals rather than messages. Their text is a whole line."""


class Finding(msgspec.Struct, array_like=True, frozen=True):
    """A broken promise, a loss, or a question that the evidence leaves open. `kind` as in
    :data:`reliamsg.audit.kinds.KINDS`."""

    kind: str
    stream: StreamName | None = None
    group: str = ""
    site: str = ""
    epoch: int | None = None
    first: int | None = None
    last: int | None = None
    place: str = ""
    """For losses: ``prefix``, ``middle`` or ``tail`` of what the group received of the stream."""
    text: str = ""
    """Details beyond the meaning of the kind."""
    hop: str = ""
    """For losses, the last hop that was reached."""
    sites: tuple[str, ...] = ()
    """Where that hop was reached, sorted."""


def describe(finding: Finding) -> str:
    """A finding in words."""
    kind = finding.kind
    meaning, more = KINDS[kind][1], finding.text
    if kind in EVIDENCE:
        return more or meaning
    parts = []
    if finding.stream is not None:
        producer, topic, part = finding.stream
        parts.append(f"{producer}/{topic}" + (f"~{part}" if part else ""))
    if finding.first is not None and finding.last is not None:
        first, last = finding.first, finding.last
        span = str(first) if first == last else f"{first} to {last if last < LAST else 'the end'}"
        parts.append(f"{span} of epoch {finding.epoch}")
    parts += [f"at group {finding.group}"] if finding.group else []
    parts += [f"at site {finding.site}"] if finding.site else []
    about = " ".join(parts)
    said = f"{meaning}: {more}" if more else meaning
    return f"{about}: {said}" if about else said
