"""Leaving what waits behind a held gap to its producer, where that has to keep it for the group anyway.

Its broker is told that it is safe, so everything here is about proof: the producer's word, given lately and to this
inbox, that it keeps exactly these messages until the group has settled them. The group remembers that they exist, and
asks for them when the stream has come to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reliamsg.core.arrivals import confirm
from reliamsg.core.passage import follow
from reliamsg.core.reorder import Reorder
from reliamsg.message import Prev

if TYPE_CHECKING:
    from reliamsg.core.consumer import ConsumerCore
    from reliamsg.core.stream import StreamState

__all__ = ["let_go"]


def let_go(
    core: ConsumerCore,
    state: StreamState,
    of: tuple[int, int, Prev | None],
    first: int,
    last: int,
    now: float,
) -> bool:
    """Leave `first` to `last` to their producer; False where it is not known to keep them, and nothing was done. `of`:
    their epoch, its incarnation and the one before."""
    epoch, incarnation, prev = of
    heard = state.heard
    if heard is None or not heard.keeps(epoch, incarnation, first, last, max(state.live, default=0), now):
        return False
    known = state.live.get(epoch)
    if known is state.current and known is not None:
        end = known.held.next_at(known.cursor)
        if end is None or end != known.persisted.next_at(known.cursor):
            return False  # after a crash nothing would tell where the gap ends
    if known is not None and known.told:
        known = confirm(core, state, known, incarnation, prev)
    if known is None and state.is_ahead(epoch) and state.has_room(epoch):
        known = state.live[epoch] = Reorder(epoch, incarnation, prev)
    if known is None or known.incarnation != incarnation or known.last is not None:
        return False
    known.let_go = max(known.let_go, last)
    known.announced = max(known.announced, last)
    core.mark(state, urgent=True)
    follow(core, state, now)
    return True
