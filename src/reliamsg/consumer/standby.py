"""Which of a group's inboxes reads: finding out at the start, waiting for another to end, and taking over.

========  ===========================================  ============================================================
phase     connections                                  ends
========  ===========================================  ============================================================
starting  AMQP sites are read: they have locks         when a lock is held, or no AMQP site can be reached
probing   the others are listened to                   when an own heartbeat came back, and no other inbox answered
active    all sites are read                           when another inbox with a stronger claim reads as well
waiting   all sites are listened to                    when no other inbox has read for ``takeover_timeout``
========  ===========================================  ============================================================

AMQP sites have a lock each; holding one ends the search. MQTT sites have none: connecting would take the session away
from the inbox that reads. So this inbox first sends a heartbeat under a temporary client name, which an inbox that
reads answers at once. A standby starts in the phase ``waiting``. Any other consumer that finds another inbox reading
waits as well, and fails (:class:`~reliamsg.errors.GroupBusy`) if that one still reads after ``takeover_timeout``.

An inbox that reads and has had no proof of that for half of ``takeover_timeout`` delivers nothing. At sites without
locks it gives up its session, so as not to take it back from an inbox that may read by now, and waits like a standby
(or probes as at the start, if it never received a heartbeat of another inbox).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from reliamsg.consumer.connector import Connector
from reliamsg.consumer.control import Control
from reliamsg.consumer.restore import restored
from reliamsg.consumer.shared import Shared
from reliamsg.consumer.site import SiteReceiver
from reliamsg.errors import GroupBusy
from reliamsg.logs import Log
from reliamsg.message import Stream
from reliamsg.wire.control import StreamState

__all__ = ["Phase", "StandbyLease"]

log: Log = Log("reliamsg.consumer")

Phase = Literal["starting", "probing", "active", "waiting"]

PROBE_S = 2.0
"""A probe that receives nothing for this long, not even its own heartbeat, is over: the broker does not pass control
frames on."""
PROBE_AGAIN_S = 0.5
GRACE_S = 0.25
"""How long another inbox may take to answer after the own heartbeat came back."""
LOOK_EVERY_S = 0.1
"""How often phases other than ``active`` are checked, besides whenever a control frame arrives."""
PROMPT_S = 1.0
"""A standby that takes over within this time of a goodbye knows that no other inbox read in between."""
CLOSE_S = 1.0
"""How long closing a connection that is given up may take."""

# The lower claim is the stronger one: inboxes that read come before those that probe, and those before the ones that
# wait. Of two that read, as after a partition, the one that holds the lock of the first site continues.
_LOCK, _READS, _LOOKS, _WAITS = b"0", b"1", b"2", b"3"


class StandbyLease:
    """Decides on phases, and opens and gives up connections. Everything under the consumer's lock, except
    :meth:`close_given_up`."""

    def __init__(
        self,
        shared: Shared,
        sites: Mapping[str, SiteReceiver],
        connectors: Mapping[str, Connector],
        control: Control,
        standby: bool,
    ) -> None:
        self._shared = shared
        self._lease = shared.role.lease
        self._connectors = connectors
        self._control = control
        self._standby = standby
        self._all = list(sites.values())
        self._locking = sorted((s for s in self._all if s.site.protocol == "amqp"), key=lambda s: s.name)
        self._others = [s for s in self._all if s not in self._locking]
        self.phase: Phase = "starting"
        self.due_at: float = float("-inf")
        """When the next step has something to do, unless ``role.changed`` is set before."""
        self.gave_up: bool = False
        """There are connections for :meth:`close_given_up`."""
        self._since = float("-inf")
        """When the phase began."""
        self._after_waiting = False
        """Another inbox read before: continue where it stopped."""
        self._contested_since: float | None = None
        self._heartbeat_at = self._said_at = float("-inf")
        self._try_at = float("-inf")
        """A standby that was refused a lock tries again then."""
        self._answered: bytes | None = None
        """The run of the inbox that reads, once this one, which waits, has sent it a heartbeat."""
        self._heard_all = False
        """No other inbox could have begun to read, unnoticed, before this one stopped waiting."""
        self._read_since = float("-inf")
        self._stepped_at = self._awake_since = float("-inf")
        """The time of the last step; and since when steps have followed closely, so the process was not suspended."""

    def begin(self, now: float, waiting: bool) -> None:
        """Connect the sites: to read them, or, if `waiting`, to listen to them."""
        if waiting:
            self._wait(now)
        else:
            self._start(now, after_waiting=False)

    def step(self, now: float) -> None:
        """Handle expired deadlines. To be called at :attr:`due_at`, and when ``role.changed`` is set."""
        self._shared.role.looked()
        if now - self._stepped_at >= self._lease.lasts / 2:
            self._awake_since = now
        self._stepped_at = now
        if self.phase == "starting":
            self._starting(now)
        if self.phase == "probing":
            self._probing(now)
        if self.phase == "waiting":
            self._waiting(now)
        if self.phase == "active":
            self._active(now)
        if now >= self._heartbeat_at:
            self._say(now)
        self._greet()
        self.gave_up = any(site.connections.given_up for site in self._all)
        self.due_at = self._heartbeat_at
        if self.phase == "active":
            self.due_at = min(self.due_at, max(self._lease.until, now + LOOK_EVERY_S))
        elif self.phase != "starting":
            self.due_at = min(self.due_at, now + LOOK_EVERY_S)

    def close_given_up(self) -> None:
        """Close connections that were given up, and wait for up to :data:`CLOSE_S` for each. Whoever steps the engine
        calls this after a step that :attr:`gave_up` any, on a thread that may wait, and without the lock, since events
        may wait for it."""
        with self._shared.lock:
            self.gave_up = False
            given_up = [connection for site in self._all for connection in site.connections.take_given_up()]
        for connection in given_up:
            connection.close(CLOSE_S)

    # -- phases -------------------------------------------------------------------------------------------

    def _start(self, now: float, after_waiting: bool) -> None:
        self.phase, self._since = "starting", now
        self._after_waiting = after_waiting
        self._shared.role.stand_by()
        for site in self._locking:
            self._give_up(site)
        self._shared.role.begin(self._locking, self._others)
        for site in self._locking:
            self._connectors[site.name].read()
        self._starting(now)

    def _starting(self, now: float) -> None:
        """The phase ``starting``: locks decide, where there are any."""
        role = self._shared.role
        if role.locked_out and self._is_busy:
            if self._standby:
                self._wait(now)
                return
            for site in self._locking:
                if site.state == "busy":
                    self._connectors[site.name].listen(
                        aside=True
                    )  # to learn the position of the inbox that reads
        elif self._lease.rival(now) is not None:
            self._wait(now)
        elif role.locked_out:
            return
        elif role.holding or self._after_waiting or not self._others:
            self._activate(now)
        else:
            self._probe(now)

    def _probe(self, now: float) -> None:
        self.phase, self._since = "probing", now
        self._shared.role.stand_by()
        for site in self._others:
            self._give_up(site)
            self._connectors[site.name].listen()
        self._heartbeat_at = now

    def _probing(self, now: float) -> None:
        """The phase ``probing``: does another inbox answer?"""
        if self._lease.rival(now) is not None:
            self._wait(now)
            return
        if self._shared.role.locked_out:
            return
        echoes = [site.echoes_since for site in self._others if site.echoes_since is not None]
        refused = all(site.state == "refused" for site in self._others)
        heard = bool(echoes) and now >= min(echoes) + GRACE_S
        if heard and self._lease.rank(now) > 0 and now < self._since + PROBE_S + 2 * self._lease.every:
            return  # another inbox probes as well, and comes first
        # The time counts from when a site is listened to.
        since = min((s.connected_at for s in self._others if s.state == "listening"), default=float("inf"))
        deaf = now >= max(since, self._since) + PROBE_S
        if heard or refused or deaf or self._shared.role.holding:
            self._activate(now)

    def _activate(self, now: float) -> None:
        """Enter the phase ``active``: no other inbox reads, so this one does from now on."""
        shared = self._shared
        for site in self._others:
            if site.connections.listener is not None:
                self._give_up(site)
        for site in self._locking:
            site.connections.stop_listening()
        self._adopt(now)
        if (self._after_waiting or self.phase == "probing") and any(site.ever_echoed for site in self._all):
            self._lease.demand()
        self.phase, self._since, self._read_since = "active", now, now
        self._contested_since = None
        shared.role.read()
        for site in self._others:
            self._connectors[site.name].read()
        for site in self._all:
            site.greet(False)
            site.admit()
        self._heartbeat_at = now

    def _adopt(self, now: float) -> None:
        """Continue where the inbox that read before stopped, as far as that is known."""
        shared, taken = self._shared, 0
        inboxes: dict[str, int] = {}
        reported: dict[Stream, int] = {}
        self._load_reported(now)
        for stream, (state, inbox) in self._control.positions.items():
            taken += shared.core.adopt(
                stream, state.entered, state.position, state.high_water, now, tuple(state.accepted)
            )
            shared.buffers.settled_elsewhere(stream)
            inboxes[inbox] = inboxes.get(inbox, 0) + 1
            reported[stream] = state.entered[0] if self._reported_mark(state, now) else state.position[0] - 1
        for (stream, inbox), state in self._control.unbelieved.items():  # counts as soon as it is believed
            shared.core.adopt(
                stream, state.entered, state.position, state.high_water, now, tuple(state.accepted)
            )
            inboxes[inbox] = inboxes.get(inbox, 0) + 1
        shared.core.tombstones.clear()
        self._control.positions.clear()
        self._control.unbelieved.clear()
        if inboxes or shared.durability.standing == "waiting":
            # This inbox waited, perhaps when it was closed the last time. No announcement is needed: the inbox that
            # read may have been cut off from this one, and be gone by now.
            shared.core.succeed(reported)
            self._control.took_over()
            before = max(inboxes, key=lambda name: inboxes[name], default="")
            shared.journal.note(
                "took_over", detail={"from": before, "streams": taken, "inbox": shared.inbox.id}
            )
            if inboxes or self._lease.another_read:
                log.warning(
                    "consumer.took_over", "group %(group)s: taken over from inbox %(from_inbox)s",
                    group=shared.group, from_inbox=before or "unknown", streams=taken,
                )  # fmt: skip
            else:
                log.info(
                    "consumer.begins_to_read",
                    "group %(group)s: this inbox reads now; no other one is known to have read",
                    group=shared.group,
                )
        shared.durability.stand("took_over" if shared.core.succeeds else "")
        shared.events.handle()

    def _reported_mark(self, state: StreamState, now: float) -> bool:
        """Whether the other inbox announced up to where it may have delivered a stream. Without a goodbye, a mark at
        its position says nothing: the stream had left memory there, and may have been continued since. A goodbye's
        mark is exact, but says nothing if another inbox may have begun to read after it."""
        freed_at = self._lease.freed_at
        if freed_at is not None and freed_at > self._lease.silent_since():
            return state.high_water > 0 and self._heard_all and now - freed_at <= PROMPT_S
        return state.high_water > 0 and (state.entered[0], state.high_water) > state.position

    def _load_reported(self, now: float) -> None:
        """Load the streams that the other inbox announced and this one knows."""
        core, inbox = self._shared.core, self._shared.inbox
        if core.known_elsewhere or inbox.tombstone_count:
            missing = [stream for stream in self._control.positions if stream not in core.streams]
            for saved in inbox.load_some(missing):
                core.restore_retired(restored(saved, core.context), now)
            core.remember(
                {saved.stream: restored(saved, core.context) for saved in inbox.load_tombstones(missing)}
            )

    def _active(self, now: float) -> None:
        lease = self._lease
        lapsed = lease.lapsed(now)
        if lapsed:
            self._trust_the_deaf(now)
            lapsed = lease.lapsed(now) and now >= self._read_since + lease.lasts
        demanding = lease.demanding
        if demanding and any(site.connections.transport is None for site in self._others):
            self._find_out(now)  # another inbox took a session at the same time
            return
        rival = lease.rival(now)
        yields = rival is not None and (lapsed or rival.heartbeat.rank < lease.own_rank)
        if yields or (self._standby and self._shared.role.locked_out and self._is_busy):
            self._wait(now)
        elif lapsed:
            self._let_go(now)
        else:
            for site in self._others:
                self._connectors[site.name].read()
                self._listen_where_lost(site, now)
        if demanding and rival is None and now >= self._said_at + GRACE_S:
            self._heartbeat_at = now  # the other inbox has yielded, or a heartbeat was lost

    def _listen_where_lost(self, site: SiteReceiver, now: float) -> None:
        """Two inboxes that read without seeing each other keep taking the session from each other, and each receives
        only its own heartbeats. So an inbox that lost its session listens for a while under a temporary name."""
        if site.lost_at is not None and now < site.lost_at + self._lease.takeover_timeout:
            self._connectors[site.name].listen(aside=True)
        else:
            site.connections.stop_listening()

    def _let_go(self, now: float) -> None:
        """There is no proof any more. Lost sessions are not taken back before it is known that no other inbox has
        them."""
        lost = [site for site in self._others if site.state != "connected"]
        for site in lost:
            self._give_up(site)
        if lost and len(lost) == len(self._others) and not self._shared.role.holding:
            log.warning(
                "consumer.role_unknown",
                "group %(group)s: no site is left that shows that this inbox reads; it delivers nothing until one does",
                group=self._shared.group,
            )
            self._find_out(now)

    def _find_out(self, now: float) -> None:
        """Another inbox may read by now. A suspended one does not answer, and may resume while its lease lasts. If no
        other inbox was ever known, there is none to wait for."""
        if self._standby or self._lease.others:
            self._wait(now)
        else:
            self._after_waiting = False
            self._probe(now)

    def _wait(self, now: float) -> None:
        """Enter the phase ``waiting``: another inbox reads, or this one is a standby."""
        shared = self._shared
        if self.phase != "waiting":
            log.info(
                "consumer.waits_for_inbox",
                "group %(group)s: waiting for another inbox to end",
                group=shared.group,
            )
        self.phase, self._since = "waiting", now
        shared.role.stand_by()
        shared.durability.stand("waiting")
        self._try_at = now + self._lease.every
        for site in self._all:
            if site.connections.listener is None or (
                site.connections.transport is not None and site in self._others
            ):
                self._give_up(site)
            self._connectors[site.name].listen()
        self._heartbeat_at = now

    def _waiting(self, now: float) -> None:
        """The phase ``waiting``: take over once no other inbox reads."""
        lease, timeout = self._lease, self._lease.takeover_timeout
        rival = lease.rival(now)
        if rival is None:
            self._contested_since = None
        else:
            if self._contested_since is None:
                self._contested_since = now
            if self._answered != rival.heartbeat.run:
                self._answered, self._heartbeat_at = (
                    rival.heartbeat.run,
                    now,
                )  # so that it announces its positions
            patience = max(
                timeout, rival.heartbeat.takeover_timeout
            )  # after that, one that is gone is no rival any more
            if not self._standby and now - self._contested_since >= patience:
                self._shared.health.fail(
                    GroupBusy(
                        f"another consumer reads for group {self._shared.group!r} (inbox {rival.heartbeat.inbox!r}):"
                        " stop it, or give this one its own group"
                    )
                )
            return
        echoes = [site.echoes_since for site in self._all if site.echoes_since is not None]
        # Where no control frames pass, locks have to suffice, if there are any.
        deaf = [site.connected_at for site in self._locking if site.state == "listening"]
        listening = min(echoes or deaf, default=float("inf"))
        turn = lease.rank(now) * lease.lasts
        free_at = max(listening + timeout, lease.taken_until())
        if lease.freed_at is not None and lease.freed_at > lease.silent_since():
            # The inbox that read said goodbye; any other that reads would have answered this one's heartbeat.
            free_at = max(lease.freed_at, listening + GRACE_S)
        if now >= max(free_at + turn, self._try_at):
            heard = (site.echoes_since for site in self._all)
            freed_at = lease.freed_at
            self._heard_all = freed_at is not None and all(at is not None and at <= freed_at for at in heard)
            for site in self._all:
                self._give_up(site)
            self._start(now, after_waiting=True)

    # -- parts --------------------------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        return any(site.state == "busy" for site in self._locking)

    def _give_up(self, site: SiteReceiver) -> None:
        site.give_up("given up: another consumer may read for this group")

    def _trust_the_deaf(self, now: float) -> None:
        """A site that never passes control frames on can't prove anything: its lock, or session, has to suffice. If
        only the own heartbeats do not arrive, this inbox may be cut off in one direction. A process that was suspended
        has yet to notice what it has lost."""
        for site in self._all:
            since = max(site.connected_at, self._awake_since)
            deaf_for = now - since if site.state == "connected" else 0.0
            if not site.ever_heard and deaf_for >= self._lease.lasts:
                self._lease.trust(now)
                self._shared.changed.notify_all()

    def _say(self, now: float) -> None:
        """Send a heartbeat, and plan the next one."""
        self._said_at = now
        self._lease.make_claim(self._claim())
        if self.phase == "probing":
            self._heartbeat_at = now + min(PROBE_AGAIN_S, self._lease.every)
        else:
            self._heartbeat_at = now + self._lease.every
        aside = any(site.connections.listens_aside for site in self._locking)
        if self.phase != "starting" or aside:
            self._control.say(now, wants_all=self.phase == "waiting" or aside)

    def _claim(self) -> bytes:
        if self.phase == "active":
            for site in self._locking:
                if site.state == "connected":
                    return _LOCK + site.name.encode()
            return _READS
        return _WAITS if self.phase == "waiting" and self._standby else _LOOKS

    def _greet(self) -> None:
        """Sites that have connected since the last step get a heartbeat at once, and a call for their producers."""
        new = [site for site in self._all if not site.greeted and site.can_tell]
        if not new or (self.phase == "active" and self._shared.role.locked_out):
            return
        for site in new:
            site.greet(True)
            if self.phase == "active":
                self._control.greet(site)
        self._say(self._shared.clock())
