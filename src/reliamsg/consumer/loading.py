"""Which streams are in memory: idle ones leave it, and come back when something of them arrives.

On the thread that owns the inbox; one query serves all that came in a step.
"""

from __future__ import annotations

from reliamsg.consumer.control import Control
from reliamsg.consumer.quarantine import HELD, TOO_MANY_STREAMS
from reliamsg.consumer.restore import restored
from reliamsg.consumer.shared import Shared
from reliamsg.errors import FatalError, InboxWriteError
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.store.inbox_rows import SavedStream
from reliamsg.store.quarantine import Selection

__all__ = ["Loader"]

log: Log = Log("reliamsg.consumer")

AT_ONCE = 1_000
"""Streams that are loaded, or looked at, in one step."""
SPARED_S = 0.5
"""Streams that were used within this time stay, as long as there is room."""
REVIVE_EVERY_S = 0.5
LOOK_EVERY_S = 0.05
"""How often it is checked whether a stream has reached its messages in the quarantine."""
REPLAY_AGAIN_S = 5.0
"""When messages behind a gap that could not be taken in, although their stream had reached them, are retried."""


class Loader:
    """See the module."""

    def __init__(self, shared: Shared, control: Control) -> None:
        self._shared = shared
        self._control = control
        most = shared.core.rules.max_streams
        self.most_resident: int = max(1, most * 8 // 10)
        """With this many streams in memory, not counting those that gaps hold, idle ones leave it."""
        self._revived_at = float("-inf")

    # -- out of memory ------------------------------------------------------------------------------------

    def retire(self, now: float) -> None:
        """Have idle streams leave memory, under the lock and before a commit is planned."""
        shared, core = self._shared, self._shared.core
        for state in list(core.retiring.values()):
            report = core.report(state.stream)
            if core.streams.get(state.stream) is not state:
                core.retiring.pop(state.stream, None)
            elif shared.buffers.forget(state):
                self._control.parted(state.stream, report)
                shared.absent.left.append(state.stream)
        held = core.places_of_held if core.context.held else 0
        surplus = len(core.streams) - len(core.retiring) - held - self.most_resident
        if surplus >= 0:
            spared = SPARED_S if core.places > 0 else 0.0
            core.retire(now, min(AT_ONCE, 2 * surplus + 100), spared)

    def deadline(self, now: float) -> float | None:
        """When to look again."""
        core, quarantine = self._shared.core, self._shared.quarantine
        if self._shared.absent.waiting:
            return now
        if core.retiring:
            return now + 0.01
        if quarantine.any_roomless or quarantine.held:
            return now + SPARED_S
        if len(core.streams) >= self.most_resident:
            held = core.places_of_held if core.context.held else 0
            return now + SPARED_S if len(core.streams) >= self.most_resident + held else None
        return None

    def is_needed(self, now: float) -> bool:
        """Whether :meth:`load` may have something to do."""
        shared = self._shared
        if shared.absent.waiting or shared.absent.left or shared.quarantine.held:
            return True
        return now >= self._revived_at + REVIVE_EVERY_S

    # -- and back -----------------------------------------------------------------------------------------

    def load(self, now: float) -> None:
        """Load the streams of which something arrived, and have it taken in."""
        shared = self._shared
        with shared.lock:
            wanted = shared.absent.streams(AT_ONCE)
            if shared.absent.left:
                shared.inbox.drop_ids(shared.absent.left)
                shared.absent.left.clear()
        saved: dict[Stream, SavedStream] = {}
        graves: list[SavedStream] = []
        try:
            if wanted:
                saved = {one.stream: one for one in shared.inbox.load_some(wanted)}
                graves = shared.inbox.load_tombstones(wanted) if len(saved) < len(wanted) else []
            if now >= self._revived_at + REVIVE_EVERY_S:
                self._revive(now)
            if shared.quarantine.held:
                self._go_on(now)
        except InboxWriteError as error:
            log.warning(
                "consumer.inbox_not_read", "%(inbox)s: %(reason)s",
                group=shared.group, inbox=str(shared.inbox.path), reason=str(error),
            )  # fmt: skip
            return
        except FatalError as error:
            with shared.lock:
                shared.health.fail(error)
            return
        if not wanted:
            return
        with shared.lock:
            core = shared.core
            core.remember(
                {one.stream: restored(one, core.context) for one in graves if one.stream not in core.streams}
            )
            for stream in wanted:
                row = saved.get(stream)
                room = True
                if row is not None and stream not in core.streams:
                    room = core.places > 0
                    if room:
                        core.restore_retired(restored(row, core.context), now)
                shared.absent.take(stream, room)
            core.tombstones.clear()
            shared.events.handle()
            shared.agenda.due(now)

    def keeps(self, stream: Stream, position: tuple[int, int]) -> bool:
        """Whether the quarantine holds anything of a stream, up to this epoch and number, for want of room; also where
        that can't be read. Under the lock."""
        shared = self._shared
        try:
            return shared.quarantine.keeps(stream, position)
        except InboxWriteError as error:
            log.warning(
                "consumer.inbox_not_read", "%(inbox)s: %(reason)s",
                group=shared.group, inbox=str(shared.inbox.path), reason=str(error),
            )  # fmt: skip
        except FatalError as error:
            shared.health.fail(error)
        return True

    def _go_on(self, now: float) -> None:
        """Where streams that gaps had held come to what is in quarantine of them, have it leave that."""
        shared, quarantine = self._shared, self._shared.quarantine
        with shared.lock:
            if shared.role.barred:
                return
            for stream, at in list(quarantine.held.items()):
                if not quarantine.holds(stream, HELD):
                    del quarantine.held[stream]
                elif at > now:
                    continue
                elif self._comes_to_it(stream):
                    quarantine.held[stream] = now + REPLAY_AGAIN_S
                    quarantine.replay(Selection(reason=HELD, stream=stream))
                    shared.agenda.due(now)
                else:
                    quarantine.held[stream] = now + LOOK_EVERY_S

    def _comes_to_it(self, stream: Stream) -> bool:
        """Whether nothing that is missing comes before what a stream has in quarantine, as far as that is known."""
        state = self._shared.core.streams.get(stream)
        if state is None or not (state.is_held or state.gaps.clock.target is not None):
            return True
        if state.is_held:
            return False
        epoch, _, last = state.gaps.clock.target or (0, 0, None)
        if last is not None:
            return self.keeps(stream, (epoch, last))
        later = state.epochs.next_epoch()
        return later is None or self.keeps(stream, (later.epoch, 0))

    def _revive(self, now: float) -> None:
        """Where there is room for streams again, have their messages leave the quarantine."""
        shared = self._shared
        self._revived_at = now
        with shared.lock:
            core = shared.core
            room = min(AT_ONCE, core.places)
            rows = shared.inbox.quarantine
            if not rows.has(TOO_MANY_STREAMS):
                shared.admission.has_room_again()
                return
            there = [stream for stream in core.streams if rows.may_hold(stream, TOO_MANY_STREAMS)]
            if shared.role.barred or core.known_elsewhere + len(core.streams) >= core.rules.max_known_streams:
                room = 0
            # What is there of a stream that is in memory comes first: it may be what that one lacks.
            put_off = shared.quarantine.put_off
            for stream in [stream for stream, until in put_off.items() if until <= now]:
                del put_off[stream]
            put_off = dict(put_off)
        more = rows.some_streams(TOO_MANY_STREAMS, room + len(put_off)) if room > 0 else []
        some = [stream for stream in there + more if stream not in put_off][: len(there) + max(room, 0)]
        if some:
            rows.replay_streams(some, TOO_MANY_STREAMS)
        with shared.lock:
            if some:
                shared.quarantine.replay(Selection(ids=()))
                shared.agenda.due(now)
