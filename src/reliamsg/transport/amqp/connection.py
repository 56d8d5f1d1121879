"""One AMQP connection, from the TCP connect to its end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.amqp.pika_connection import (
    Closed,
    InputListener,
    IOLoop,
    Opened,
    PikaConnection,
    Violated,
    parameters,
    refusal,
)
from reliamsg.transport.amqp.pika_logging import quiet_pika
from reliamsg.transport.amqp.topology import Refused, Script, Unanswered
from reliamsg.transport.session import Ended

__all__ = ["AmqpConnection"]

ABORT_SECONDS = 1.0
"""How long pika may take to report that an aborted connection is gone."""

CLOSED = Ended("closed")


class AmqpConnection:
    """An attempt to connect, and the connection that comes of it. Used for one :meth:`run`, or one :meth:`run_beside`
    another that runs.

    Everything is called on the thread that runs it, except :meth:`call`. Callbacks that raise end the connection; the
    exception is logged.
    """

    def __init__(
        self, site: Site, endpoint: Endpoint, login: Credentials | None, deadline: float, name: str
    ) -> None:
        self.server_version: tuple[int, ...] = (0,)
        self._site = site
        self._deadline = deadline
        self._parameters = parameters(site, endpoint, login, name)
        self._endpoint, self._login, self._name = endpoint, login, name
        self._ready: Callable[[], None] | None = None
        self._beside: list[AmqpConnection] = []
        """Connections that run on this one's thread."""
        self._main: AmqpConnection | None = None
        """The connection that this one runs beside."""
        self._on_over: Callable[[Ended], None] | None = None
        """Called once when a connection that runs beside another is over."""
        self._lock = threading.Lock()
        self._loop: IOLoop | None = None
        self._early: list[Callable[[], None]] | None = []
        """Calls requested before :meth:`run`; None from then on."""
        self._pika: PikaConnection | None = None
        self._ended: Ended | None = None
        self._handshake: Any = None
        self._script_channel: Any = None
        self._scripts: deque[tuple[Script[Any], Callable[[Any], None], Callable[[Refused], None], float]] = (
            deque()
        )
        self._script_timer: Any = None
        self._answered_at = 0.0
        """When the current script got its latest answer, or began."""
        self._unanswered = 0
        """Requests that were given up: an answer to them comes too late."""

    @property
    def alive(self) -> bool:
        """Whether the connection exists and nothing has ended it yet."""
        return self._ended is None

    @property
    def script_channel(self) -> Any:
        """The channel for declarations. A refusal closes it, and another one replaces it."""
        return self._script_channel

    @property
    def frame_max(self) -> int:
        return int(self._open_pika.params.frame_max or 131_072)

    @property
    def buffered(self) -> int:
        """Bytes written and not yet taken by the operating system."""
        transport = self._open_pika.transport
        return 0 if transport is None else int(transport.get_write_buffer_size())

    def run(self, ready: Callable[[], None], listener: InputListener | None = None) -> Ended:
        """Connect, call `ready` once the connection can run scripts, and serve the connection until it ends."""
        loop = IOLoop()
        with self._lock:
            self._loop = loop
            early, self._early = self._early or [], None
        for function in early:
            loop.add_callback_threadsafe(function)
        try:
            with quiet_pika():
                self._begin(loop, ready, listener)
                loop.start()
        finally:
            for connection in [self, *self._beside]:
                connection._tear_down()
            loop.close()
        return self._ended or CLOSED

    def another(self, ahead: int = 0) -> AmqpConnection:
        """A connection to the same endpoint, or the one that comes so many `ahead` of it in the site's list. It is not
        running yet, and has the whole time for connecting."""
        deadline = time.monotonic() + self._site.connect_timeout
        endpoints = self._site.endpoints
        endpoint = endpoints[(endpoints.index(self._endpoint) + ahead) % len(endpoints)]
        return AmqpConnection(self._site, endpoint, self._login, deadline, self._name)

    def run_beside(
        self,
        main: AmqpConnection,
        ready: Callable[[], None],
        over: Callable[[Ended], None],
        listener: InputListener,
    ) -> None:
        """Connect and serve the connection on the thread that runs `main`, and end with it.

        `ready` is as with :meth:`run`. `over` is called with the reason when this connection ends, unless `main` ends
        first.
        """
        self._main, self._on_over = main, over
        main._beside.append(self)
        loop = main._io_loop
        with self._lock:
            self._loop, self._early = loop, None
        self._begin(loop, ready, listener)

    def _begin(self, loop: IOLoop, ready: Callable[[], None], listener: InputListener | None) -> None:
        self._ready = ready
        self._pika = PikaConnection(self._parameters, loop, listener or InputListener(), self._on_event)
        self._handshake = loop.call_later(
            max(0.0, self._deadline - time.monotonic()),
            lambda: self.drop(Ended(f"not connected within {self._site.connect_timeout:g} s")),
        )

    def _on_event(self, event: Opened | Closed | Violated) -> None:
        if isinstance(event, Opened):
            self.server_version = event.version
            self._open_script_channel(self._on_ready)
        elif isinstance(event, Violated):
            self.drop(event.ended)
        else:
            if self._ended is None:
                self._ended = event.ended
            self._stop()

    def _on_ready(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    def _stop(self) -> None:
        """Nothing more happens here: stop the loop, or leave it to the connection beside which this one ran."""
        main, over, self._on_over = self._main, self._on_over, None
        if main is None:
            self._io_loop.stop()
        elif over is not None:
            main._beside.remove(self)
            self._tear_down()
            over(self._ended or CLOSED)

    def _on_hang(self) -> None:
        """pika did not report an end that was requested, so its loop can no longer be used."""
        if self._main is None:
            self._io_loop.stop()
        elif self._on_over is not None:
            self._main.drop(Ended("a connection to the broker could not be ended"))

    def call(self, function: Callable[[], None]) -> bool:
        """Schedule `function` on the I/O thread, once :meth:`run` has begun; return False if the connection is over.
        Any thread."""
        with self._lock:
            if self._early is not None:  # a goodbye must not get lost, or the connection outlives its owner
                self._early.append(function)
                return True
            if self._loop is None:
                return False
            self._loop.add_callback_threadsafe(function)
            return True

    def later(self, seconds: float, function: Callable[[], None]) -> Any:
        """Call `function` in `seconds` seconds, if the connection is still alive then."""
        return self._io_loop.call_later(seconds, lambda: function() if self.alive else None)

    def established(self) -> None:
        """The caller has all it needs: stop the timer for connecting."""
        self._io_loop.remove_timeout(self._handshake)

    def write(self, data: bytes) -> None:
        """Send encoded frames."""
        transport = self._open_pika.transport
        if transport is not None:
            transport.write(data)

    def open_channel(
        self,
        opened: Callable[[Any], None],
        closed: Callable[[int, str], None] | None = None,
        *,
        fatal: bool = True,
    ) -> None:
        """Open a channel. If the broker closes it, `closed` is called with the reason, and then, if `fatal`, the
        connection ends."""

        def on_close(_: Any, reason: Exception) -> None:
            refused = refusal(reason)
            if not self.alive or refused is None:
                return
            if closed is not None:
                closed(refused.code, refused.reason)
            if fatal:
                self.drop(Ended(f"the broker closed the channel: {refused}"))

        channel: Any = self._open_pika.channel(on_open_callback=opened)
        channel.add_on_close_callback(on_close)

    def perform(
        self,
        script: Script[Any],
        done: Callable[[Any], None],
        failed: Callable[[Refused], None],
        patience: float | None = None,
    ) -> None:
        """Run a script on the script channel, after those requested earlier. A request that the broker does not answer
        within `patience` seconds (default: the time for connecting) raises :class:`Unanswered` in the script; if the
        script does not catch it, the connection ends."""
        seconds = self._site.connect_timeout if patience is None else patience
        self._scripts.append((script, done, failed, seconds))
        if len(self._scripts) == 1:
            self._advance(None)

    def close(self, grace: float, ended: Ended = CLOSED) -> None:
        """Close the connection cleanly; abort it if the broker has not answered within `grace` seconds."""
        if not self.alive:
            return
        if not self._open_pika.is_open:
            self.drop(ended)
            return
        self._ended = ended
        self._io_loop.call_later(grace, self._abort)
        self._open_pika.close()

    def drop(self, ended: Ended) -> None:
        """End the connection at once, without a goodbye: the broker may not be answering."""
        if not self.alive:
            return
        self._ended = ended
        self._abort()

    def _abort(self) -> None:
        if self._pika is None:  # over meanwhile
            return
        # pika reports the end through its loop; if it does not, the loop is stopped anyway.
        self._io_loop.call_later(ABORT_SECONDS, self._on_hang)
        self._pika.abort()

    def _open_script_channel(self, then: Callable[[], None]) -> None:
        def on_open(channel: Any) -> None:
            if channel is self._script_channel:
                then()

        def on_close(channel: Any, reason: Exception) -> None:
            refused = refusal(reason)
            # Answers on a channel that was given up no longer count.
            if self.alive and refused is not None and channel is self._script_channel:
                self._open_script_channel(lambda: self._advance(None, refused))

        self._script_channel = self._open_pika.channel(on_open_callback=on_open)
        self._script_channel.add_on_close_callback(on_close)

    def _advance(self, answer: Any, error: Refused | Unanswered | None = None) -> None:
        """Give the current script its answer, and start the next one when it has ended."""
        if not self.alive or not self._scripts:
            return
        script, done, failed, patience = self._scripts[0]
        self._answered_at = time.monotonic()
        if self._script_timer is None:
            self._script_timer = self.later(patience, self._check_script)
        try:
            request = script.send(answer) if error is None else script.throw(error)
        except StopIteration as stop:
            self._end_script()
            done(stop.value)
        except Refused as refused:
            self._end_script()
            failed(refused)
        except Unanswered:
            self.drop(Ended(f"the broker did not answer a declaration within {patience:g} s"))
        else:
            asked = self._unanswered
            request(lambda answer: self._advance(answer) if asked == self._unanswered else None)
            return
        if self._scripts and self._script_timer is None:
            self._advance(None)

    def _end_script(self) -> None:
        self._scripts.popleft()
        self._io_loop.remove_timeout(self._script_timer)
        self._script_timer = None

    def _check_script(self) -> None:
        """Replace a channel that does not answer: channels answer in order, so it would answer nothing else."""
        patience = self._scripts[0][3]
        left = self._answered_at + patience - time.monotonic()
        if left > 0:
            self._script_timer = self.later(left, self._check_script)
            return
        self._unanswered += 1
        self._script_timer = self.later(patience, lambda: self.drop(Ended("the broker does not answer")))
        self._open_script_channel(self._resume_script)

    def _resume_script(self) -> None:
        self._io_loop.remove_timeout(self._script_timer)
        self._script_timer = None
        self._advance(None, Unanswered())

    @property
    def _open_pika(self) -> PikaConnection:
        assert self._pika is not None
        return self._pika

    @property
    def _io_loop(self) -> IOLoop:
        assert self._loop is not None
        return self._loop

    def _tear_down(self) -> None:
        with self._lock:
            self._loop = None
        if self._ended is None:
            self._ended = CLOSED
        pika, self._pika = self._pika, None
        if pika is not None:
            pika.release()
