"""Control frames at an AMQP site: a channel of their own, without confirms, and a queue that is deleted with it.

Whatever goes wrong with it, missing permissions above all, ends neither the connection nor what else uses it: the
channel is opened again after a while, and frames sent in the meantime are lost.

A broker can go on listing a binding through which nothing arrives any more; RabbitMQ does after a partition. So where
nothing arrives for a while, the listener publishes a *probe* itself, and if the probe does not arrive, it binds once
more: with another argument, or a broker that lists the binding would do nothing. The old binding is kept, since
removing it takes the same address from others (decisions.md).

Nodes of a cluster can disagree on bindings, too. A listener that is reached from some nodes cannot notice that, so
frames for one client are published ``mandatory``: if they are returned although that client is heard, the connection
is dropped, and the next one goes to another node (S10).
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from reliamsg.config import Site
from reliamsg.logs import Log
from reliamsg.transport.amqp.codec import control_frames, text
from reliamsg.transport.amqp.connection import AmqpConnection
from reliamsg.transport.amqp.pika_connection import DamagedProperties, InputListener
from reliamsg.transport.amqp.topology import ACCESS_REFUSED, Refused, bind_control, listen_queue
from reliamsg.transport.control_backlog import ControlBacklog
from reliamsg.transport.session import Ended, EventGate
from reliamsg.wire.address import EXCHANGE, control_queue, is_for_one

__all__ = ["REOPEN_SECONDS", "ControlChannel", "ControlState"]

log: Log = Log(__name__)

BUFFER_BYTES = 2 * 1024 * 1024
"""Nothing is written while this much waits to be taken by the operating system: more than messages may fill, so that
they leave room."""

DRAIN_SECONDS = 0.005
"""How often a full buffer is checked."""

REOPEN_SECONDS = (1.0, 60.0)
"""How long after it was closed the channel is opened again: at first, and at most."""

MUTE_SECONDS = 300.0
"""How long nothing is sent after the broker refused permission."""

MAX_ADDRESS_BYTES = 255

CHECK_SECONDS = 30.0
"""How often, within a fifth, addresses are checked at which nothing has arrived since the last check."""

PROBE_SECONDS = 10.0
"""A probe that has not arrived after this long will not."""

PROBES_AT_ONCE = 500

MAX_RENEWALS = 100
"""How often an address is bound once more on one connection; the added bindings are deleted with it."""

VAIN_RENEWALS = 3
"""If this many additional bindings in a row did not help an address, a new connection has to."""

PROBE = b"reliamsg:probe"
"""What a listener publishes to find out whether it receives anything."""


class ControlState:
    """What the control channels of one transport share, over all its connections. I/O thread only, except
    :meth:`listen`."""

    def __init__(self, site: Site, gate: EventGate[Any]) -> None:
        self.site = site
        self.addresses: frozenset[str] = frozenset()
        """To listen at; may be replaced at any time."""
        self._gate = gate
        self._warned = False
        self._muted_until = float("-inf")

    def listen(self, addresses: Iterable[str]) -> None:
        """Replace the addresses. Any thread."""
        self.addresses = frozenset(addresses)

    @property
    def muted(self) -> bool:
        """Whether nothing is sent, since the broker refused permission a short while ago."""
        return time.monotonic() < self._muted_until

    def mute(self) -> None:
        """The broker refused permission to send."""
        self._muted_until = time.monotonic() + MUTE_SECONDS

    def warn(self, problem: str) -> None:
        """Log, once, that the site does not carry all control frames."""
        if not self._warned:
            self._warned = True
            log.warning(
                "transport.control_incomplete", "site %(site)s: control frames: %(reason)s",
                site=self.site.name, reason=problem,
            )  # fmt: skip

    def returned(self, address: str) -> bool:
        """Report a frame that no queue was bound for. Returns whether another connection has to be tried."""
        return self._gate.up and self._gate.events.control_returned(address)

    def receive(self, address: str, body: bytes) -> None:
        """Pass on a frame that arrived."""
        if self._gate.up:
            self._gate.events.control_received(address, body)


class ControlChannel(InputListener):
    """Listening or sending on one connection, or both. I/O thread only, except :meth:`send_control`."""

    def __init__(
        self, connection: AmqpConnection, state: ControlState, *, listens: bool = True, sends: bool = True,
        probe: Callable[[Sequence[str]], bool] | None = None,
    ) -> None:  # fmt: skip
        """`probe`: the :meth:`probe` of the channel that sends, if that is another one."""
        self._connection = connection
        self._state = state
        self._listens = listens
        self._sends = sends
        self._probe = self.probe if probe is None else probe
        self._backlog = ControlBacklog()
        self._channel: Any = None
        """None while it is not open."""
        self._queue = ""
        """Consumed now, or about to be."""
        self._bound: frozenset[str] = frozenset()
        self._then: Callable[[], None] | None = None
        self._blocked = False
        self._flushing = False
        self._binding = False
        self._checking = False
        self._received: set[str] = set()
        """Addresses at which something has arrived since the last check."""
        self._forbidden: frozenset[str] = frozenset()
        """Addresses that the broker lets nobody listen at, or not us."""
        self._renewed: dict[str, int] = {}
        """How often each address was bound once more."""
        self._vain: dict[str, int] = {}
        """How often since something last arrived there."""
        self._prober: Any = None
        """The channel for probes: the broker closes it if it does not permit one."""
        self._may_probe = True
        self._wait = REOPEN_SECONDS[0]

    def open(self, then: Callable[[], None]) -> None:
        """Begin to listen, then call `then`, even if the broker does not permit it. Called once."""
        self._then = then
        self._open()

    def send_control(self, address: str, body: bytes) -> bool:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        if self._blocked or len(address.encode()) > MAX_ADDRESS_BYTES or not self._backlog.put(address, body):
            return False
        if not self._flushing:
            self._flushing = True
            self._connection.call(self.flush)
        return True

    @property
    def forbidden(self) -> frozenset[str]:
        """Addresses that the broker lets nobody listen at, or not us. Any thread."""
        return self._forbidden

    def on_blocked(self, reason: str | None) -> None:
        """The broker asked to stop sending, or no longer does."""
        self._blocked = reason is not None
        self.flush()

    def flush(self) -> None:
        """Write the frames that wait, as far as the connection accepts them."""
        self._flushing = False
        channel = self._channel
        if channel is None or self._blocked or not self._connection.alive:
            return
        while self._connection.buffered < BUFFER_BYTES:
            frame = self._backlog.take()
            if frame is None:
                return
            number, size = channel.channel_number, self._connection.frame_max
            for piece in control_frames(number, size, EXCHANGE, *frame, mandatory=is_for_one(frame[0])):
                self._connection.write(piece)
        self._flushing = True
        self._connection.later(DRAIN_SECONDS, self.flush)

    def probe(self, addresses: Sequence[str]) -> bool:
        """Publish probes at these addresses, which their listener waits for; return False if that is not possible."""
        if self._blocked or not self._may_probe or not self._connection.alive:
            return False
        if self._prober is not None:
            self._publish_probes(addresses)
            return True

        def opened(channel: Any) -> None:
            self._prober = channel
            self._publish_probes(addresses)

        self._connection.open_channel(opened, self._on_probing_refused, fatal=False)
        return True

    def _publish_probes(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            if len(address.encode()) <= MAX_ADDRESS_BYTES:
                number, size = self._prober.channel_number, self._connection.frame_max
                self._connection.write(b"".join(control_frames(number, size, EXCHANGE, address, PROBE)))

    def _on_probing_refused(self, code: int, _: str) -> None:
        self._prober = None
        self._may_probe = code != ACCESS_REFUSED

    def listen(self) -> None:
        """Listen at the state's addresses, which may have changed."""
        if self._bound != self._state.addresses and self._queue and not self._binding:
            self._bind()

    # Opening and reopening

    def _open(self) -> None:
        self._connection.open_channel(self._on_open, self._on_closed, fatal=False)

    def _on_open(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_cancel_callback(self._on_cancelled)
        channel.add_on_return_callback(self._on_return)
        self._accept()
        if self._listens:
            self._declare()
        else:
            self._ready()

    def _accept(self) -> None:
        if self._sends and not self._state.muted:
            self._backlog.open(self._state.site.max_frame_bytes)

    def _declare(self) -> None:
        self._queue = queue = control_queue(secrets.token_hex(8))
        self._bound = self._state.addresses
        self._received.clear()
        self._renewed.clear()
        self._vain.clear()
        self._binding = True
        script = listen_queue(self._connection, queue, [(address, 0) for address in sorted(self._bound)])
        self._connection.perform(script, lambda refused: self._consume(queue, refused), self._on_refused)

    def _consume(self, queue: str, refused: dict[str, Refused]) -> None:
        if self._channel is None or queue != self._queue:
            return  # the channel was closed meanwhile
        self._on_bound(refused)
        self._channel.basic_consume(
            queue, self._on_message, auto_ack=True, callback=lambda _: self._on_consuming()
        )

    def _on_consuming(self) -> None:
        if not self._checking:
            self._checking = True
            self._check_later()
        self._ready()

    def _ready(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()

    def _on_refused(self, refused: Refused) -> None:
        """The queue cannot be declared. Sending may work all the same."""
        self._binding = False
        self._queue = ""
        self._state.warn(f"none can be received: {refused}")
        self._declare_later()
        self._ready()

    def _on_cancelled(self, _: object) -> None:
        log.info(
            "transport.control_queue_gone", "site %(site)s: the queue for control frames is gone",
            site=self._state.site.name,
        )  # fmt: skip
        self._queue = ""
        self._declare_later()

    def _on_closed(self, code: int, reason: str) -> None:
        self._channel = None
        self._queue = ""
        self._binding = False
        self._backlog.close()
        if code == ACCESS_REFUSED and self._sends and self._then is None:
            # Most likely over a frame that was sent. That must not end listening each time.
            self._state.mute()
        self._state.warn(f"the broker closed their channel: {code} {reason}")
        self._connection.later(self._next_wait(), self._open)
        self._ready()

    def _declare_later(self) -> None:
        channel = self._channel
        self._connection.later(
            self._next_wait(),
            lambda: self._declare() if channel is self._channel and not self._queue else None,
        )

    def _next_wait(self) -> float:
        wait, self._wait = self._wait, min(2 * self._wait, REOPEN_SECONDS[1])
        return wait

    # Sending

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        address = text(method.routing_key)
        if self._state.returned(address):
            reason = (
                f"frames for {address} are returned although it is listened at: another node may reach it"
            )
            log.warning(
                "transport.control_returned", "site %(site)s: %(reason)s",
                site=self._state.site.name, address=address, reason=reason,
            )  # fmt: skip
            self._connection.drop(Ended(reason, renewing=True))

    # Listening

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        address = text(method.routing_key)
        self._received.add(address)
        if body == PROBE:
            return
        if address in self._bound and not isinstance(properties, DamagedProperties):
            self._state.receive(address, body)

    def _bind(self) -> None:
        addresses = self._state.addresses
        drop = [(a, n) for a in sorted(self._bound - addresses) for n in range(self._renewed.pop(a, 0) + 1)]
        # Frames at dropped addresses are ignored from now on, whenever the broker removes the bindings.
        self._bound = addresses
        self._binding = True
        script = bind_control(self._connection, self._queue, [(a, 0) for a in sorted(addresses)], drop)
        self._connection.perform(script, self._on_bound, self._on_not_bound)

    def _on_bound(self, refused: dict[str, Refused]) -> None:
        self._binding = False
        self._forbidden = frozenset(refused)
        for reason in refused.values():
            self._state.warn(f"an address cannot be listened at: {reason}")
        self.listen()

    def _on_not_bound(self, refused: Refused) -> None:
        """Most likely the queue is gone; then the consumer is cancelled too."""
        self._binding = False
        log.info(
            "transport.control_not_bound", "site %(site)s: control frames: %(reason)s",
            site=self._state.site.name, reason=str(refused),
        )  # fmt: skip

    # Checking that frames arrive

    def _check_later(self) -> None:
        self._connection.later(CHECK_SECONDS * random.uniform(0.8, 1.2), self._check)

    def _check(self) -> None:
        """Probe where nothing has arrived lately; called periodically. A probe reaches all listeners at its
        address, so the others need not send one."""
        self._check_later()
        received, self._received = self._received, set()
        self._vain = {address: times for address, times in self._vain.items() if address not in received}
        if not self._queue:
            return
        self._wait = REOPEN_SECONDS[0]
        if self._channel is not None:
            self._accept()
        if self._binding:
            return
        silent = list(self._bound - received - self._forbidden)
        silent = sorted(random.sample(silent, min(len(silent), PROBES_AT_ONCE)))
        probed = self._probe(silent)
        if self._forbidden or not probed:
            self._bind()  # the broker may permit it by now, or report that the queue is gone
        if silent and probed:
            queue = self._queue
            self._connection.later(PROBE_SECONDS, lambda: self._renew(queue, silent))

    def _renew(self, queue: str, probed: Sequence[str]) -> None:
        """Bind once more where probes did not arrive."""
        unreached = [address for address in probed if address in self._bound - self._received]
        if queue != self._queue or self._binding or not unreached or not self._probe([]):
            return
        name = f"{unreached[0]} and {len(unreached) - 1} others" if len(unreached) > 1 else unreached[0]
        if any(
            self._vain.get(address, 0) >= VAIN_RENEWALS or self._renewed.get(address, 0) >= MAX_RENEWALS
            for address in unreached
        ):
            self._connection.drop(Ended(f"nothing arrives at {name}, however it is bound"))
            return
        log.info(
            "transport.control_bound_again", "site %(site)s: nothing arrives at %(address)s: bound once more",
            site=self._state.site.name, address=name,
        )  # fmt: skip
        for address in unreached:
            for counted in (self._renewed, self._vain):
                counted[address] = counted.get(address, 0) + 1
        bindings = [(address, self._renewed[address]) for address in unreached]
        self._binding = True
        self._connection.perform(
            bind_control(self._connection, queue, bindings), self._on_renewed, self._on_not_bound
        )

    def _on_renewed(self, _: object) -> None:
        self._binding = False
        self.listen()
