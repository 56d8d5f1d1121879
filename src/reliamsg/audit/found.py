"""A finding, as the judges of streams and clients report it."""

from __future__ import annotations

import msgspec

from reliamsg.audit.fold import StreamName

__all__ = ["Finding"]


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
