"""Control frames at an AMQP site: a channel of their own, without confirms, and a queue that goes with it.

What goes wrong with it, permissions that are lacking first of all, ends neither the connection nor what else
flows there: the channel is opened again after a while, and what was told meanwhile is lost.

A broker can go on listing a binding through which nothing comes any more; RabbitMQ does after a partition. So where
nobody says anything for a while the listener says something itself, a *probe*, and where it does not hear that it binds
once more: under another argument, or a broker that lists the binding would do nothing. Nothing is unbound for it, since
to remove such a binding takes the same address from others (decisions.md).
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from reliamsg.config import Site
from reliamsg.transport.amqp.codec import control_frames, text
from reliamsg.transport.amqp.connection import Link
from reliamsg.transport.amqp.topology import ACCESS_REFUSED, Refused, bind_control, listen_queue
from reliamsg.transport.control_backlog import Backlog
from reliamsg.transport.session import Ended
from reliamsg.wire.address import EXCHANGE, control_queue

__all__ = ["ControlChannel", "Listener"]

log = logging.getLogger(__name__)

BUFFER_BYTES = 2 * 1024 * 1024
"""Nothing is written while so much waits to be taken by the operating system: more than messages may fill, so that
they leave room."""

DRAIN_SECONDS = 0.005
"""How often a full buffer is looked at."""

AGAIN_SECONDS = (1.0, 60.0)
"""How long after it was closed the channel is opened again: at first, and at most."""

SILENT_SECONDS = 300.0
"""So long nothing is told after the broker did not permit what was."""

MAX_ADDRESS_BYTES = 255

LOOK_SECONDS = 30.0
"""So often, a fifth more or less, it is seen to addresses at which nothing came in since the last time."""

PROBE_SECONDS = 10.0
"""A probe that was not heard after so long will not be."""

PROBES_AT_ONCE = 500

MAX_RENEWALS = 100
"""So often an address is bound once more on one connection; what was added goes with that."""

VAIN_RENEWALS = 3
"""If so many bindings, one after the other, were of no use to an address, a new connection must be."""

PROBE = b"reliamsg:probe"
"""What a listener says to find out whether it hears."""


class Listener(Protocol):
    """Whose control frames they are: what outlives the connection."""

    site: Site
    up: bool
    addresses: tuple[str, ...]
    """To listen at; may be replaced at any time."""
    control_refused: str
    """What was logged about a site that does not carry control frames, so that it is logged once."""

    silent_until: float
    """Nothing is told before (``time.monotonic()``)."""

    def heard(self, address: str, body: bytes) -> None:
        """See :class:`~reliamsg.transport.base.ControlEvents`."""


class ControlChannel:
    """Listening or telling on one connection, or both. I/O thread only, except :meth:`tell`."""

    def __init__(
        self, link: Link, owner: Listener, *, listens: bool = True, tells: bool = True,
        probe: Callable[[Sequence[str]], bool] | None = None,
    ) -> None:  # fmt: skip
        """`probe`: the :meth:`probe` of who tells, where that is another."""
        self._link = link
        self._owner = owner
        self._listens = listens
        self._tells = tells
        self._probe = self.probe if probe is None else probe
        self._backlog = Backlog()
        self._channel: Any = None
        """None while there is none."""
        self._queue = ""
        """Consumed now, or about to be."""
        self._bound: frozenset[str] = frozenset()
        self._then: Callable[[], None] | None = None
        self._blocked = False
        self._flushing = False
        self._binding = False
        self._looking = False
        self._heard: set[str] = set()
        """Where something came in since the last look."""
        self._forbidden: frozenset[str] = frozenset()
        """Addresses that the broker lets nobody listen at, or not us."""
        self._renewed: dict[str, int] = {}
        """How often addresses were bound once more for the queue."""
        self._vain: dict[str, int] = {}
        """The same since something was heard there."""
        self._prober: Any = None
        """The channel for probes: the broker closes it over what it does not permit."""
        self._may_probe = True
        self._wait = AGAIN_SECONDS[0]

    def open(self, then: Callable[[], None]) -> None:
        """Begin to listen, then call `then`: also where the broker does not let us. Called once."""
        self._then = then
        self._open()

    def tell(self, address: str, body: bytes) -> bool:
        """See :class:`~reliamsg.transport.base.ControlTransport`. Any thread."""
        if self._blocked or len(address.encode()) > MAX_ADDRESS_BYTES or not self._backlog.put(address, body):
            return False
        if not self._flushing:
            self._flushing = True
            self._link.call(self.flush)
        return True

    @property
    def forbidden(self) -> frozenset[str]:
        """Addresses that the broker lets nobody listen at, or not us. Any thread."""
        return self._forbidden

    def blocked(self, blocked: bool) -> None:
        """The broker asked to stop sending, or no longer does."""
        self._blocked = blocked
        self.flush()

    def flush(self) -> None:
        """Write what was told, as far as the connection takes it."""
        self._flushing = False
        channel = self._channel
        if channel is None or self._blocked or not self._link.alive:
            return
        while self._link.buffered < BUFFER_BYTES:
            frame = self._backlog.take()
            if frame is None:
                return
            for piece in control_frames(channel.channel_number, self._link.frame_max, EXCHANGE, *frame):
                self._link.write(piece)
        self._flushing = True
        self._link.later(DRAIN_SECONDS, self.flush)

    def probe(self, addresses: Sequence[str]) -> bool:
        """Say something at these addresses, for whoever listens to find out whether that is heard; False where that
        can't be done."""
        if self._blocked or not self._may_probe or not self._link.alive:
            return False
        if self._prober is not None:
            self._say_probes(addresses)
            return True

        def opened(channel: Any) -> None:
            self._prober = channel
            self._say_probes(addresses)

        self._link.open_channel(opened, self._on_probing_refused, fatal=False)
        return True

    def _say_probes(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            if len(address.encode()) <= MAX_ADDRESS_BYTES:
                number, size = self._prober.channel_number, self._link.frame_max
                self._link.write(b"".join(control_frames(number, size, EXCHANGE, address, PROBE)))

    def _on_probing_refused(self, code: int, _: str) -> None:
        self._prober = None
        self._may_probe = code != ACCESS_REFUSED

    def listen(self) -> None:
        """Listen at the owner's addresses, which may have changed, instead of those so far."""
        if self._bound != frozenset(self._owner.addresses) and self._queue and not self._binding:
            self._bind()

    # Opening, and opening again

    def _open(self) -> None:
        self._link.open_channel(self._on_open, self._on_closed, fatal=False)

    def _on_open(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_cancel_callback(self._on_cancelled)
        self._take()
        if self._listens:
            self._declare()
        else:
            self._ready()

    def _take(self) -> None:
        if self._tells and time.monotonic() >= self._owner.silent_until:
            self._backlog.open(self._owner.site.max_frame_bytes)

    def _declare(self) -> None:
        self._queue = queue = control_queue(secrets.token_hex(8))
        self._bound = frozenset(self._owner.addresses)
        self._heard.clear()
        self._renewed.clear()
        self._vain.clear()
        self._binding = True
        script = listen_queue(self._link, queue, [(address, 0) for address in sorted(self._bound)])
        self._link.perform(script, lambda refused: self._consume(queue, refused), self._on_refused)

    def _consume(self, queue: str, refused: dict[str, Refused]) -> None:
        if self._channel is None or queue != self._queue:
            return  # the channel was closed meanwhile
        self._on_bound(refused)
        self._channel.basic_consume(
            queue, self._on_message, auto_ack=True, callback=lambda _: self._on_consuming()
        )

    def _on_consuming(self) -> None:
        if not self._looking:
            self._looking = True
            self._look_later()
        self._ready()

    def _ready(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()

    def _on_refused(self, refused: Refused) -> None:
        """The queue can't be had. What is told may be carried all the same."""
        self._binding = False
        self._queue = ""
        self._say(f"nothing can be heard: {refused}")
        self._declare_later()
        self._ready()

    def _on_cancelled(self, _: object) -> None:
        log.info("site %s: the queue for control frames is gone", self._owner.site.name)
        self._queue = ""
        self._declare_later()

    def _on_closed(self, code: int, reason: str) -> None:
        self._channel = None
        self._queue = ""
        self._binding = False
        self._backlog.close()
        if code == ACCESS_REFUSED and self._tells and self._then is None:
            # Most likely over what was told. Listening must not end each time.
            self._owner.silent_until = time.monotonic() + SILENT_SECONDS
        self._say(f"the broker closed their channel: {code} {reason}")
        self._link.later(self._next_wait(), self._open)
        self._ready()

    def _declare_later(self) -> None:
        channel = self._channel
        self._link.later(
            self._next_wait(),
            lambda: self._declare() if channel is self._channel and not self._queue else None,
        )

    def _next_wait(self) -> float:
        wait, self._wait = self._wait, min(2 * self._wait, AGAIN_SECONDS[1])
        return wait

    def _say(self, problem: str) -> None:
        if not self._owner.control_refused:
            self._owner.control_refused = problem
            log.warning("site %s: control frames: %s", self._owner.site.name, problem)

    # Listening

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        address = text(method.routing_key)
        self._heard.add(address)
        if body == PROBE:
            return
        if self._owner.up and address in self._bound and getattr(properties, "damaged", None) is None:
            self._owner.heard(address, body)

    def _bind(self) -> None:
        addresses = frozenset(self._owner.addresses)
        drop = [(a, n) for a in sorted(self._bound - addresses) for n in range(self._renewed.pop(a, 0) + 1)]
        # What is given up counts no more from now on, whenever the broker comes to it.
        self._bound = addresses
        self._binding = True
        script = bind_control(self._link, self._queue, [(a, 0) for a in sorted(addresses)], drop)
        self._link.perform(script, self._on_bound, self._on_not_bound)

    def _on_bound(self, refused: dict[str, Refused]) -> None:
        self._binding = False
        self._forbidden = frozenset(refused)
        for reason in refused.values():
            self._say(f"an address can't be listened at: {reason}")
        self.listen()

    def _on_not_bound(self, refused: Refused) -> None:
        """The queue is gone, most likely; then we are told of that too."""
        self._binding = False
        log.info("site %s: control frames: %s", self._owner.site.name, refused)

    # Finding out whether anything comes in

    def _look_later(self) -> None:
        self._link.later(LOOK_SECONDS * random.uniform(0.8, 1.2), self._look)

    def _look(self) -> None:
        """Where nothing came in lately, see whether anything would; called again and again. Whatever one listener says
        all others at that address hear, and need not ask themselves."""
        self._look_later()
        heard, self._heard = self._heard, set()
        self._vain = {address: times for address, times in self._vain.items() if address not in heard}
        if not self._queue:
            return
        self._wait = AGAIN_SECONDS[0]
        if self._channel is not None:
            self._take()
        if self._binding:
            return
        silent = list(self._bound - heard - self._forbidden)
        silent = sorted(random.sample(silent, min(len(silent), PROBES_AT_ONCE)))
        probed = self._probe(silent)
        if self._forbidden or not probed:
            self._bind()  # which the broker may permit by now, or which it knows to be gone
        if silent and probed:
            queue = self._queue
            self._link.later(PROBE_SECONDS, lambda: self._renew(queue, silent))

    def _renew(self, queue: str, probed: Sequence[str]) -> None:
        """Bind once more where probes were not heard."""
        deaf = [address for address in probed if address in self._bound - self._heard]
        if queue != self._queue or self._binding or not deaf or not self._probe([]):
            return
        name = f"{deaf[0]} and {len(deaf) - 1} others" if len(deaf) > 1 else deaf[0]
        if any(
            self._vain.get(address, 0) >= VAIN_RENEWALS or self._renewed.get(address, 0) >= MAX_RENEWALS
            for address in deaf
        ):
            self._link.drop(Ended(f"nothing comes in at {name}, however it is bound"))
            return
        log.info("site %s: nothing comes in at %s: bound once more", self._owner.site.name, name)
        for address in deaf:
            for counted in (self._renewed, self._vain):
                counted[address] = counted.get(address, 0) + 1
        bindings = [(address, self._renewed[address]) for address in deaf]
        self._binding = True
        self._link.perform(bind_control(self._link, queue, bindings), self._on_renewed, self._on_not_bound)

    def _on_renewed(self, _: object) -> None:
        self._binding = False
        self.listen()
