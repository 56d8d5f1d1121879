"""How clients of simulated MQTT sites send and receive control frames, by the rules of the real ones.

They receive them on the connection that everything else uses, and send them over a second one, which can break
separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from reliamsg.config import Site
from reliamsg.simulation.broker import Broker, Session
from reliamsg.simulation.host import Host
from reliamsg.simulation.network import Connection
from reliamsg.transport.mqtt.control_sender import ControlSender, SentFrames
from reliamsg.wire.address import is_created

__all__ = ["SECOND", "ControlConnection", "Subscriptions"]

SECOND = "control"
"""The name of a client's second connection to a site."""
CHECK_S = 1.0
"""How often isolated addresses are checked, as in the I/O threads of real clients."""
THREAD_S = 0.0003
"""How long it takes at most until an I/O thread that is woken runs."""


class Subscriptions:
    """What one connection is subscribed to: what
    :class:`~reliamsg.transport.mqtt.control.ControlListener` listens on."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        broker: Broker,
        call: Callable[..., object],
        on_answer: Callable[[], object],
    ) -> None:
        """`call` makes calls in the client's process. `on_answer` is called there when the broker answers."""
        self.reason = "connection lost"
        self._connection, self._session, self._broker = connection, session, broker
        self._call, self._on_answer = call, on_answer
        self._listening: frozenset[str] = frozenset()
        self._refused: dict[str, str] = {}
        self._unanswered: dict[int, Sequence[str]] = {}
        self._number = 0

    @property
    def listening_unanswered(self) -> list[str]:
        return [address for part in self._unanswered.values() for address in part]

    def take_listening_refused(self) -> dict[str, str]:
        refused, self._refused = self._refused, {}
        return refused

    def listen(self, addresses: Sequence[str]) -> None:
        dropped = self._listening.difference(addresses)
        added = [address for address in addresses if address not in self._listening]
        self._listening = frozenset(addresses)
        site = self._connection.site
        if dropped:
            site.send(self._broker.unsubscribe, self._session, dropped)
        if added:
            self._number += 1
            self._unanswered[self._number] = added
            number = self._number

            def answer(refused: Iterable[str]) -> None:
                self._connection.client.send(self._call, self._answered, number, tuple(refused))

            site.send(self._broker.subscribe, self._session, added, answer)

    def _answered(self, number: int, refused: tuple[str, ...]) -> None:
        self._unanswered.pop(number, None)
        for address in refused:
            self._refused[address] = "not authorized"
            self._listening -= {address}
        self._on_answer()


class _Line:
    """The second connection, as something to send over."""

    can_write = True
    """Simulated sockets accept everything at once."""

    def __init__(self, connection: Connection, session: Session, broker: Broker) -> None:
        self.pings = self.pongs = 0
        self.connection = connection
        self._session, self._broker = session, broker

    def send_control(self, address: str, body: bytes) -> None:
        self.connection.site.send(self._broker.receive_control, self._session, address, body)

    def ping(self) -> int:
        self.pings += 1
        return self.pings


class ControlConnection:
    """Sends control frames of one client to one MQTT site, as
    :class:`~reliamsg.transport.mqtt.control_connection.ControlConnection` does."""

    def __init__(self, host: Host, site: Site, broker: Broker, client: str) -> None:
        self._site, self._broker, self._client = site, broker, client
        self._executor, self._witness = host.executor, host.witness
        self._path = host.path(site.name, SECOND)
        self._queue = ControlSender(site.name, host.executor.now)
        self._runs = False
        """The main connection stands, and this one may be used."""
        self._trying: Connection | None = None
        self._attempt = 0
        self._failures = 0
        self._due = False
        """It connects as soon as it is allowed to."""
        self._line: _Line | None = None
        self._sent: SentFrames | None = None
        self._woken = self._checks = False

    @property
    def refused(self) -> tuple[str, ...]:
        """Addresses that the site does not allow sending to."""
        return self._queue.refused

    def send(self, address: str, body: bytes) -> bool:
        """Send a frame as soon as possible. Returns False where that is hopeless."""
        if not self._queue.backlog.put(address, body):
            return False
        if not is_created(address):
            self._witness.sent(address, body)  # it describes the current state, whenever it is sent
        self._wake()
        return True

    def begin(self) -> None:
        """The main connection stands: accept frames from now on."""
        self._queue.backlog.open(self._site.max_frame_bytes)

    def allow(self) -> None:
        """From now on, connect as soon as there is something to send."""
        self._runs = True
        self._wake()

    def end(self) -> None:
        """The main connection is gone."""
        self._runs = False
        self._queue.backlog.close()
        self._disconnect("no longer needed")

    def close(self) -> None:
        """The client is closed: the latest frames are still sent where possible."""
        if self._sent is not None:
            self._queue.send(self._sent)
        self.end()

    def _disconnect(self, reason: str) -> None:
        self._attempt += 1
        if self._trying is not None:
            self._trying.client.close(reason)
        if self._line is not None:
            self._line.connection.client.close(reason)
        self._trying = self._line = self._sent = None

    # -- connecting -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._executor.after(self._executor.uniform(0.0, THREAD_S), self._awake)

    def _awake(self) -> None:
        self._woken = False
        if self._sent is not None:
            self._send(self._sent)
        elif self._runs and self._trying is None and not self._due and len(self._queue.backlog):
            self._connect()

    def _connect(self) -> None:
        self._due = False
        if not self._runs or self._line is not None or self._trying is not None:
            return
        self._attempt += 1
        timeout = self._site.connect_timeout
        if not self._path.is_cut and self._path.delay <= timeout:
            self._trying = self._path.connect(self._site.heartbeat)
            self._trying.site.send(self._handshake, self._trying, self._attempt)
        self._executor.after(timeout, self._give_up, self._attempt)

    def _give_up(self, attempt: int) -> None:
        if attempt == self._attempt and self._line is None:
            self._retry()

    def _handshake(self, connection: Connection, attempt: int) -> None:
        """At the site."""
        refusal = self._broker.model.login_refusal
        if refusal is not None:
            connection.client.send(self._executor.call, self._give_up, attempt)
            return
        session = Session(connection, self._client)
        self._broker.open(session)
        connection.client.send(self._executor.call, self._up, connection, session, attempt)

    def _up(self, connection: Connection, session: Session, attempt: int) -> None:
        if attempt != self._attempt or not self._runs:
            connection.client.close("closed")
            return
        self._trying = None
        self._line = line = _Line(connection, session, self._broker)
        self._sent = SentFrames(line)
        connection.client.when_lost(lambda reason: self._executor.call(self._lost, line, reason))
        if connection.client.alive:
            self._send(self._sent)
        else:  # it was lost while the process was suspended
            self._executor.after(0.0, self._lost, line, "connection lost")

    def _retry(self) -> None:
        """Retry after a while, if there is anything to send by then."""
        self._disconnect("closed")
        self._due = True
        pause = min(self._site.backoff_max, self._site.backoff_min * 2.0**self._failures)
        self._failures = min(self._failures + 1, 20)
        self._executor.after(self._executor.uniform(0.5, 1.5) * pause, self._retry_due)

    def _retry_due(self) -> None:
        self._due = False
        self._wake()

    # -- sending --------------------------------------------------------------------------------------------

    def _send(self, sent: SentFrames) -> None:
        line = self._line
        assert line is not None  # there is something to send over
        before = line.pings
        self._queue.send(sent)
        if line.pings > before:
            line.connection.site.send(self._ping, line, line.pings)
        if self._queue.waits and not self._checks:
            self._checks = True
            self._executor.after(CHECK_S, self._check)

    def _check(self) -> None:
        self._checks = False
        self._wake()

    def _ping(self, line: _Line, number: int) -> None:
        """At the site."""
        line.connection.client.send(self._executor.call, self._pong, line, number)

    def _pong(self, line: _Line, number: int) -> None:
        if line is not self._line or self._sent is None:
            return
        line.pongs = number
        if self._queue.settle(self._sent):
            self._failures = 0
        self._send(self._sent)

    def _lost(self, line: _Line, reason: str) -> None:
        if line is not self._line or self._sent is None:
            return
        if self._queue.connection_ended(self._sent, reason):
            self._failures = 0
        self._retry()
