"""Dead letters that operators have one consumer deliver again, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reliamsg.message import MessageId

__all__ = ["Replays"]


class Replays:
    """Judges them. Each is delivered once for each time that it is asked for, unless it is being delivered already. It
    is a dead letter until its acknowledgement is durable, and not afterwards."""

    def __init__(self, violate: Callable[[str, str], None], consumer: str) -> None:
        """`violate`: records a violation, by kind and text."""
        self._violate, self._consumer = violate, consumer
        self._asked: set[MessageId] = set()
        """Those that are to be delivered."""
        self._given: set[MessageId] = set()
        """Those that the application has."""
        self._acknowledged: set[MessageId] = set()
        """Since the last time that a commit was awaited."""
        self._awaited: set[MessageId] = set()
        """Acknowledged before a commit that is awaited."""
        self._durable: set[MessageId] = set()
        self._kept: set[MessageId] = set()
        """Dead letters that the inbox had, and that were not acknowledged since."""

    def ask(self, letters: Iterable[MessageId]) -> None:
        """An operator asks for these, which are dead letters in the inbox."""
        self._asked |= set(letters) - self._given - self._acknowledged - self._awaited

    def check_stored(self, letters: Iterable[MessageId]) -> None:
        """The inbox has these dead letters, and no others."""
        letters = set(letters)
        for letter in sorted(self._durable & letters):
            self._violate(
                "redelivered_after_ack", f"{letter} at {self._consumer}: acknowledged, and a dead letter"
            )
        for letter in sorted(self._kept - letters):
            self._violate(
                "lost", f"{letter} at {self._consumer}: not acknowledged, and no dead letter any more"
            )
        self._kept = letters - self._acknowledged - self._awaited

    def delivered(self, letter: MessageId) -> None:
        """The application received one."""
        if letter not in self._asked:
            self._violate("duplicate", f"{letter} at {self._consumer}: a replay that nobody asked for")
        self._asked.discard(letter)
        self._given.add(letter)

    def failed(self, letter: MessageId) -> None:
        """The application rejected one, or its handler raised or was cancelled."""
        self._given.discard(letter)

    def acknowledged(self, letter: MessageId) -> None:
        """The application acknowledged one."""
        self._given.discard(letter)
        self._kept.discard(letter)
        self._acknowledged.add(letter)

    def await_commit(self) -> None:
        """The application waits until what it has acknowledged is durable."""
        self._awaited |= self._acknowledged
        self._acknowledged.clear()

    def committed(self) -> None:
        """It is."""
        self._durable |= self._awaited
        self._awaited.clear()

    def terminated(self) -> None:
        """The process is gone, with everything that it had not committed."""
        for each in (self._asked, self._given, self._acknowledged, self._awaited):
            each.clear()

    def file_replaced(self) -> None:
        """The inbox was replaced by an older copy."""
        self._durable.clear()
        self._kept.clear()

    def check_delivered(self) -> None:
        """A consumer that reads has had time to deliver all."""
        if self._asked:
            first = min(self._asked)
            self._violate("stalled", f"{first} at {self._consumer}: asked for again, and not delivered")
