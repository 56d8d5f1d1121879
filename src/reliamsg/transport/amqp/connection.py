"""One AMQP connection, from the TCP connect to its end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from reliamsg.config import Credentials, Endpoint, Site
from reliamsg.transport.amqp.codec import text
from reliamsg.transport.amqp.pika_connection import Connection, IOLoop, parameters, refusal, why_ended
from reliamsg.transport.amqp.pika_logging import quiet_pika
from reliamsg.transport.amqp.topology import Refused, Script, Unanswered
from reliamsg.transport.session import Ended

__all__ = ["Link"]

ABORT_SECONDS = 1.0
"""How long pika may take to tell that an aborted connection is gone."""

CLOSED = Ended("closed")


class Link:
    """An attempt to connect, and the connection that comes of it. Used for one :meth:`run`, or one
    :meth:`run_beside` another that runs.

    Everything is called on the thread that runs it, except :meth:`call`. Callbacks that raise end the
    connection; the exception is logged.
    """

    def __init__(
        self, site: Site, endpoint: Endpoint, login: Credentials | None, deadline: float, name: str
    ) -> None:
        self.on_input: Callable[[], None] = _nothing
        """Called whenever what one read brought has been dealt with."""
        self.on_confirm: Callable[[int, bool, bool], None] = _nothing
        """Publisher confirms: (tag, multiple, whether it is an ack)."""
        self.on_blocked: Callable[[str | None], None] = _nothing
        """``connection.blocked`` with its reason, and None when that is over."""
        self.server_version: tuple[int, ...] = (0,)
        self._site = site
        self._deadline = deadline
        self._parameters = parameters(site, endpoint, login, name)
        self._endpoint, self._login, self._name = endpoint, login, name
        self._beside: list[Link] = []
        """Those that run on this one's thread."""
        self._main: Link | None = None
        """That which this one runs beside."""
        self._on_over: Callable[[Ended], None] | None = None
        """Set while it does: hears once why this one is over."""
        self._lock = threading.Lock()
        self._loop: IOLoop | None = None
        self._early: list[Callable[[], None]] | None = []
        """What was asked for before :meth:`run`; None from then on."""
        self._connection: Connection | None = None
        self._ended: Ended | None = None
        self._handshake: Any = None
        self._control: Any = None
        self._scripts: deque[tuple[Script[Any], Callable[[Any], None], Callable[[Refused], None], float]] = (
            deque()
        )
        self._script_timer: Any = None
        self._answered_at = 0.0
        """When the current script got its latest answer, or began."""
        self._unanswered = 0
        """Requests that were given up: what is answered to them comes too late."""

    @property
    def alive(self) -> bool:
        """Whether the connection is there and nothing has ended it yet."""
        return self._ended is None

    @property
    def control(self) -> Any:
        """The channel for declarations. A refused one closes it; another takes its place."""
        return self._control

    @property
    def frame_max(self) -> int:
        return int(self._link.params.frame_max or 131_072)

    @property
    def buffered(self) -> int:
        """Bytes written and not yet taken by the operating system."""
        transport = self._link.transport
        return 0 if transport is None else int(transport.get_write_buffer_size())

    def run(self, ready: Callable[[], None]) -> Ended:
        """Connect, call `ready` when there is a control channel, and serve the connection until it ends."""
        loop = IOLoop()
        with self._lock:
            self._loop = loop
            early, self._early = self._early or [], None
        for function in early:
            loop.add_callback_threadsafe(function)
        try:
            with quiet_pika():
                self._serve(loop, ready)
        finally:
            for link in [self, *self._beside]:
                link._tear_down()
            loop.close()
        return self._ended or CLOSED

    def another(self) -> Link:
        """A link to the same endpoint, not running yet, with all the time that a connection may take."""
        deadline = time.monotonic() + self._site.connect_timeout
        return Link(self._site, self._endpoint, self._login, deadline, self._name)

    def run_beside(self, link: Link, ready: Callable[[], None], over: Callable[[Ended], None]) -> None:
        """Connect and serve the connection on the thread that runs `link`, and end with it.

        `ready` is as with :meth:`run`. `over` hears why this link ended, unless `link` ends first.
        """
        self._main, self._on_over = link, over
        link._beside.append(self)
        loop = link._io_loop
        with self._lock:
            self._loop, self._early = loop, None
        self._begin(loop, ready)

    def _serve(self, loop: IOLoop, ready: Callable[[], None]) -> None:
        self._begin(loop, ready)
        loop.start()

    def _stop(self) -> None:
        """Nothing more happens here: end the loop, or leave it to the link beside which this one ran."""
        main, over, self._on_over = self._main, self._on_over, None
        if main is None:
            self._io_loop.stop()
        elif over is not None:
            main._beside.remove(self)
            self._tear_down()
            over(self._ended or CLOSED)

    def _hangs(self) -> None:
        """pika did not tell an end that it was asked for. Its loop is of no more use then."""
        if self._main is None:
            self._io_loop.stop()
        elif self._on_over is not None:
            self._main.drop(Ended("a connection to the broker could not be ended"))

    def _begin(self, loop: IOLoop, ready: Callable[[], None]) -> None:
        self._connection = Connection(self, loop, self._parameters, ready)
        self._handshake = loop.call_later(
            max(0.0, self._deadline - time.monotonic()),
            lambda: self.drop(Ended(f"not connected within {self._site.connect_timeout:g} s")),
        )

    def call(self, function: Callable[[], None]) -> bool:
        """Have `function` called on the I/O thread soon, once :meth:`run` has begun; False if the connection is
        over. Any thread."""
        with self._lock:
            if self._early is not None:  # a goodbye must not get lost, or the connection outlives its owner
                self._early.append(function)
                return True
            if self._loop is None:
                return False
            self._loop.add_callback_threadsafe(function)
            return True

    def later(self, seconds: float, function: Callable[[], None]) -> Any:
        """Call `function` in so many seconds, if the connection still lives then."""
        return self._io_loop.call_later(seconds, lambda: function() if self.alive else None)

    def established(self) -> None:
        """The caller has all it needs: the time for connecting no longer runs."""
        self._io_loop.remove_timeout(self._handshake)

    def write(self, data: bytes) -> None:
        """Send encoded frames."""
        transport = self._link.transport
        if transport is not None:
            transport.write(data)

    def open_channel(
        self,
        opened: Callable[[Any], None],
        closed: Callable[[int, str], None] | None = None,
        *,
        fatal: bool = True,
    ) -> None:
        """Open a channel. When the broker closes it, `closed` hears why, and then, if `fatal`, the connection
        ends."""

        def on_close(_: Any, reason: Exception) -> None:
            refused = refusal(reason)
            if not self.alive or refused is None:
                return
            if closed is not None:
                closed(refused.code, refused.reason)
            if fatal:
                self.drop(Ended(f"the broker closed the channel: {refused}"))

        channel: Any = self._link.channel(on_open_callback=opened)
        channel.add_on_close_callback(on_close)

    def perform(
        self,
        script: Script[Any],
        done: Callable[[Any], None],
        failed: Callable[[Refused], None],
        patience: float | None = None,
    ) -> None:
        """Run a script on the control channel, after those asked for before. A request that the broker does not answer
        within `patience` seconds (the time for connecting, unless given) raises :class:`Unanswered` in the script; if
        that lets it pass it ends the link."""
        seconds = self._site.connect_timeout if patience is None else patience
        self._scripts.append((script, done, failed, seconds))
        if len(self._scripts) == 1:
            self._advance(None)

    def close(self, grace: float, ended: Ended = CLOSED) -> None:
        """Say goodbye to the broker and end; after `grace` seconds without its answer end all the same."""
        if not self.alive:
            return
        if not self._link.is_open:
            self.drop(ended)
            return
        self._ended = ended
        self._io_loop.call_later(grace, self._abort)
        self._link.close()

    def drop(self, ended: Ended) -> None:
        """End the connection at once, without a goodbye: the broker may not be answering."""
        if not self.alive:
            return
        self._ended = ended
        self._abort()

    def _abort(self) -> None:
        if self._connection is None:  # over meanwhile
            return
        # pika tells the end through its loop; should it not, the loop is left anyway.
        self._io_loop.call_later(ABORT_SECONDS, self._hangs)
        self._connection.abort()

    def over(self, error: BaseException, refused: tuple[int, str] | None) -> None:
        """The connection, or the attempt, is over; `refused` is the broker's ``connection.close``."""
        if self._ended is None:
            self._ended = why_ended(error, refused)
        self._stop()

    def opened(self, version: object, ready: Callable[[], None]) -> None:
        """The handshake is done."""
        self.server_version = _version(version)
        self._open_control(ready)

    def _open_control(self, then: Callable[[], None]) -> None:
        def on_open(channel: Any) -> None:
            if channel is self._control:
                then()

        def on_close(channel: Any, reason: Exception) -> None:
            refused = refusal(reason)
            # A channel that was given up has nothing to say any more, whatever becomes of what it was asked.
            if self.alive and refused is not None and channel is self._control:
                self._open_control(lambda: self._advance(None, refused))

        self._control = self._link.channel(on_open_callback=on_open)
        self._control.add_on_close_callback(on_close)

    def _advance(self, answer: Any, error: Refused | Unanswered | None = None) -> None:
        """Give the current script its answer, and start the next one when it has ended."""
        if not self.alive or not self._scripts:
            return
        script, done, failed, patience = self._scripts[0]
        self._answered_at = time.monotonic()
        if self._script_timer is None:
            self._script_timer = self.later(patience, self._look_at_script)
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

    def _look_at_script(self) -> None:
        """A channel answers in order: without an answer it is of no more use, and another takes its place."""
        patience = self._scripts[0][3]
        left = self._answered_at + patience - time.monotonic()
        if left > 0:
            self._script_timer = self.later(left, self._look_at_script)
            return
        self._unanswered += 1
        self._script_timer = self.later(patience, lambda: self.drop(Ended("the broker does not answer")))
        self._open_control(self._go_on)

    def _go_on(self) -> None:
        self._io_loop.remove_timeout(self._script_timer)
        self._script_timer = None
        self._advance(None, Unanswered())

    @property
    def _link(self) -> Connection:
        assert self._connection is not None
        return self._connection

    @property
    def _io_loop(self) -> IOLoop:
        assert self._loop is not None
        return self._loop

    def _tear_down(self) -> None:
        with self._lock:
            self._loop = None
        if self._ended is None:
            self._ended = CLOSED
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


def _nothing(*_: object) -> None:
    return None


def _version(value: object) -> tuple[int, ...]:
    numbers = []
    for part in text(value).split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers[:3]) or (0,)
