"""Asks an MQTT broker for the groups that a producer names, on the connection that it publishes with.

An MQTT 5 broker may answer a PUBLISH with reason 16, "no matching subscribers". An address without subscribers shows
whether this one does, before and after the groups' own addresses are probed. If a broker never gives that reason, as
with MQTT 3.1.1, the retained marks that groups leave are read instead.

A broker that refuses these addresses may close the connection over them. If that happens repeatedly, it is not asked
for a while.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from reliamsg.config import Site
from reliamsg.logs import Log
from reliamsg.transport.base import Binding, Evidence, Mark
from reliamsg.transport.mqtt.codec import Publish
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.paho_client import PubAck
from reliamsg.transport.network import Waker
from reliamsg.wire.address import created_address, is_created, proof_address, unused_proof_address

__all__ = ["GroupProber"]

log: Log = Log(__name__)

HOLD_SECONDS = 3.0
"""How long, at most, a new connection publishes nothing while it waits for the first answers."""

AGAIN_SECONDS = (1.0, 15.0)
"""While a group is missing the broker is asked again after this, doubling, and at most."""

MARKS_SECONDS = 60.0
PROOFS_SECONDS = 600.0
"""While none is missing. Probes are rare, since they are stored in the session of a group whose consumer is away."""

GRACE_SECONDS = 0.5
"""Retained messages that have not arrived this long after the subscription was answered do not exist."""

AT_ONCE = 32
"""Most probes unanswered; most marks looked for together."""

STRIKES = 3
"""If this many connections in a row end before the broker has answered, it is no coincidence."""
WITHOUT_SECONDS = (60.0, 900.0)
"""How long the broker is not asked then: the first time, and at most."""

_PROBE_PROPERTIES = b"\x05\x02" + (60).to_bytes(4, "big")
"""Message Expiry Interval, in seconds."""


class _Phase(Enum):
    RESTING = "resting"
    CALIBRATING = "calibrating"
    PROBING = "probing"
    CHECKING = "checking"
    """Checking that the broker still answers so for an address without subscribers."""
    SUBSCRIBING = "subscribing"
    READING = "reading"
    LEAVING = "leaving"


class GroupProber:
    """Probes for one transport, over all its connections. I/O thread only, except :meth:`bind`."""

    def __init__(
        self,
        site: Site,
        waker: Waker,
        bindings: Sequence[Binding],
        found: Callable[[Mapping[Binding, Evidence | Mark]], object],
    ) -> None:
        """`found` is :meth:`~reliamsg.transport.base.SenderEvents.found`."""
        self._site, self._waker, self._found = site, waker, found
        self._bindings = tuple(dict.fromkeys(bindings))
        self._changed = False
        self._phase = _Phase.RESTING
        self._waiting: deque[Binding] = deque()
        """Bindings that are still to be probed in this round."""
        self._probes: dict[int, Binding | None] = {}
        """Unanswered, by packet id; None for the one at an address without subscribers."""
        self._results: dict[Binding, Evidence | Mark] = {}
        self._marks: dict[str, bytes] = {}
        """By address, for :attr:`_looking`."""
        self._looking: list[Binding] = []
        self._answer: int | None = None
        """Packet id of the SUBSCRIBE or UNSUBSCRIBE whose answer is pending."""
        self._denied = False
        """Whether the broker refused to show some of them."""
        self._until = 0.0
        self._hold_until = float("-inf")
        self._due = float("inf")
        self._pause = AGAIN_SECONDS[0]
        self._began = 0.0
        self._strikes = 0
        self._without = WITHOUT_SECONDS[0]
        self._off_until = float("-inf")
        self._logged: set[str] = set()

    def bind(self, bindings: Sequence[Binding]) -> None:
        """Ask for these groups from now on. Any thread."""
        self._bindings = tuple(dict.fromkeys(bindings))
        self._changed = True
        self._waker.wake()

    # -- called by the connection's loop ------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Probes that the broker has not answered; they count toward its Receive Maximum."""
        return len(self._probes)

    @property
    def holds(self) -> bool:
        """Whether publishing has to wait."""
        return time.monotonic() < self._hold_until

    def wait(self, most: float) -> float:
        """How long, at most, the loop may sleep, in seconds."""
        if self._phase is _Phase.READING:
            return max(0.0, min(most, self._until - time.monotonic()))
        return max(0.0, min(most, self._due - time.monotonic())) if self._phase is _Phase.RESTING else most

    def begin(self, connection: MqttConnection) -> None:
        """A connection is established."""
        self._reset()
        self._changed = False
        self._start()

    def work(self, connection: MqttConnection, room: int) -> None:
        """Send the probes that are due. `room`: how many messages may be published now."""
        now = time.monotonic()
        if self._changed:
            self._changed = False
            self._reset()
            self._start()
        if self._phase is _Phase.RESTING and now >= self._due:
            self._due = float("inf")
            self._began = now
            self._results = {}
            if connection.version == "5":
                self._phase = _Phase.CALIBRATING
            else:
                self._read_marks()
        if self._phase in (_Phase.CALIBRATING, _Phase.CHECKING) and not self._probes and room > 0:
            self._ask(connection, unused_proof_address(), None)
        elif self._phase is _Phase.PROBING:
            while self._waiting and len(self._probes) < AT_ONCE and room > 0:
                binding = self._waiting.popleft()
                self._ask(connection, proof_address(binding.topic, binding.partition, binding.group), binding)
                room -= 1
        elif self._phase in (_Phase.SUBSCRIBING, _Phase.READING, _Phase.LEAVING):
            self._look(connection, now)

    def settle(self, puback: PubAck) -> bool:
        """Process the answer to a probe; return False if it answers something else."""
        if puback.mid not in self._probes:
            return False
        binding = self._probes.pop(puback.mid)
        if puback.refusal is not None:
            self._warn(f"the broker refuses probes ({puback.refusal})")
        if binding is not None:
            if puback.refusal is None:
                self._results[binding] = Evidence.NOT_SUBSCRIBED if puback.unmatched else Evidence.SUBSCRIBED
            if not self._waiting and not self._probes:
                self._phase = _Phase.CHECKING
        elif not puback.unmatched:
            self._read_marks()
        elif self._phase is _Phase.CALIBRATING:
            self._phase = _Phase.PROBING
            self._waiting = deque(self._bindings)
        else:
            self._finish(PROOFS_SECONDS)
        return True

    def take_mark(self, publish: Publish) -> bool:
        """Process a mark; return False for any other message."""
        if not is_created(publish.topic):
            return False
        if publish.body and publish.retain:
            self._marks[publish.topic] = publish.body
        return True

    def on_unmatched(self) -> None:
        """The broker reported no subscriber for a message: a group may be gone."""
        if self._phase is _Phase.RESTING and self._due < float("inf"):
            self._due = min(self._due, max(time.monotonic(), self._began + AGAIN_SECONDS[0]))

    def end(self, connection: MqttConnection, broken: bool) -> None:
        """The connection is over; `broken` unless we ended it."""
        unanswered = bool(self._probes) or self._answer is not None
        self._reset()
        if not broken or not unanswered:
            return
        self._strikes += 1
        if self._strikes >= STRIKES:
            self._strikes = STRIKES - 1
            self._off_until = time.monotonic() + self._without
            self._without = min(2 * self._without, WITHOUT_SECONDS[1])
            self._warn(f"the connection ends when the broker is asked for them ({connection.reason})")

    # -- inside -------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._phase = _Phase.RESTING
        self._waiting.clear()
        self._probes.clear()
        self._marks.clear()
        self._looking.clear()
        self._answer = None
        self._due = float("inf")
        self._hold_until = float("-inf")

    def _start(self) -> None:
        """Ask at once, and hold messages back meanwhile."""
        if not self._bindings or self._site.declare == "none":
            return
        now = time.monotonic()
        self._pause = AGAIN_SECONDS[0]
        self._due = max(now, self._off_until)
        if self._due <= now:
            self._hold_until = now + min(HOLD_SECONDS, self._site.confirm_timeout)

    def _ask(self, connection: MqttConnection, address: str, binding: Binding | None) -> None:
        mid = connection.publish(address, b"", _PROBE_PROPERTIES)
        if mid is not None:
            self._probes[mid] = binding

    def _read_marks(self) -> None:
        self._results = {}
        self._waiting = deque(self._bindings)
        self._phase = _Phase.SUBSCRIBING
        self._answer = None

    def _look(self, connection: MqttConnection, now: float) -> None:
        """Read some marks: subscribe, wait for retained messages, and unsubscribe."""
        addresses = [self._mark_of(binding) for binding in self._looking]
        if self._phase is _Phase.SUBSCRIBING and self._answer is None:
            self._looking = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            self._marks.clear()
            self._answer = connection.show_retained([self._mark_of(binding) for binding in self._looking])
        elif self._phase is _Phase.SUBSCRIBING and self._answer in connection.answered:
            self._denied = self._answer in connection.denied
            self._phase, self._answer = _Phase.READING, None
            self._until = now + (0.0 if self._denied else GRACE_SECONDS)
        if self._phase is _Phase.READING and (
            now >= self._until or all(address in self._marks for address in addresses)
        ):
            self._phase = _Phase.LEAVING
            self._answer = connection.hide_retained(addresses)
        elif self._phase is _Phase.LEAVING and self._answer in connection.answered:
            if self._denied:
                self._warn("the broker refuses the subscription to their marks")
            for binding in self._looking:
                mark = self._marks.get(self._mark_of(binding))
                if mark is not None or not self._denied:
                    self._results[binding] = Evidence.NOT_MARKED if mark is None else mark
            self._phase, self._answer = _Phase.SUBSCRIBING, None
            if not self._waiting:
                self._finish(MARKS_SECONDS)

    @staticmethod
    def _mark_of(binding: Binding) -> str:
        return created_address(binding.topic, binding.partition, binding.group)

    def _finish(self, usual: float) -> None:
        """A round is over."""
        self._phase = _Phase.RESTING
        self._hold_until = float("-inf")
        self._strikes = 0
        missing = {Evidence.NOT_SUBSCRIBED, Evidence.NOT_MARKED} & {
            shown for shown in self._results.values() if isinstance(shown, Evidence)
        }
        if missing:
            self._due = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, AGAIN_SECONDS[1])
        else:
            self._due = time.monotonic() + usual
            self._pause = AGAIN_SECONDS[0]
        self._found(self._results)

    def _warn(self, problem: str) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            log.warning(
                "transport.groups_not_checked", "site %(site)s: groups can't be looked for: %(reason)s",
                site=self._site.name, reason=problem,
            )  # fmt: skip
