"""The connections of one site: the one that it is read with, and one that only listens."""

from __future__ import annotations

from reliamsg.transport.base import ReceiverTransport, SenderTransport

__all__ = ["Connection", "Connections"]

Connection = ReceiverTransport | SenderTransport


class Connections:
    """What there is, and who takes its events. Everything under the consumer's lock, unless it says otherwise."""

    def __init__(self) -> None:
        self.transport: ReceiverTransport | None = None
        """What the site is read with; None while it is not."""
        self.reading: object | None = None
        """Who takes its events: whatever else still calls belongs to a connection that was given up."""
        self.listener: SenderTransport | None = None
        """What listens, under a throw-away name."""
        self.listening: object | None = None
        """Who takes its events."""
        self.listens_aside = False
        """What listens beside a connection that tries to read is connected."""
        self.given_up: list[Connection] = []
        """What is to be closed, by whoever takes it out: without the lock, since closing waits for events, which may
        wait for the lock."""

    @property
    def all(self) -> list[Connection]:
        """Every connection that there is."""
        return [each for each in (self.listener, self.transport) if each is not None]

    def read_with(self, transport: ReceiverTransport, events: object) -> None:
        """There is one to read with, which is not started yet."""
        self.transport, self.reading = transport, events

    def listen_with(self, listener: SenderTransport, events: object) -> None:
        """There is one that listens, which is not started yet."""
        self.listener, self.listening = listener, events

    def note_aside(self, connected: bool) -> None:
        """What listens beside a connection that tries to read was connected, or disconnected."""
        self.listens_aside = connected

    def stop_listening(self) -> None:
        """Give up what listens."""
        if self.listener is not None:
            self.given_up.append(self.listener)
        self.listening = self.listener = None
        self.listens_aside = False

    def give_up(self) -> None:
        """Give up all that there is."""
        self.given_up += self.all
        self.reading = self.listening = self.listener = self.transport = None
        self.listens_aside = False
