"""The judge of an application in a simulation: compares its effects with what its consumer delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any, Literal

from reliamsg.message import Message, MessageId, Stream

__all__ = ["KINDS", "Finding", "Witness"]

KINDS = {
    "effect_lost": "acknowledged, and its effect is missing",
    "effect_twice": "it has more than one effect",
    "effect_out_of_order": "its effect follows that of a later message of its stream",
    "effect_of_rejected": "rejected, and it has an effect",
    "effect_unknown": "an effect of no message that was delivered",
    "raised": "the application raised an error, and no operation of the simulation had failed",
    "assertion": "the test failed",
    "not_deterministic": "the same seed leads to another history when it is run again",
    "reliamsg": "a promise of reliamsg itself is broken, or the application has used it in a way that breaks it",
}
"""Kinds of findings, and their meanings."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with the application."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} ({KINDS[self.kind]}): {self.text}"


@dataclass
class _Seen:
    """A message that the handler was called with."""

    message: Message
    settled: Literal["", "acknowledged", "rejected"] = ""
    """By the latest delivery."""
    out_of_order: bool = False
    """It was replayed, or given up for a while: a crash can undo that before it is durable, and later messages may have
    been handled by then."""


class Witness:
    """Is told of everything that the consumer and the handler do with each other."""

    def __init__(self) -> None:
        self.history: list[str] = []
        """What happened, in order. The same for the same seed."""
        self._seen: dict[MessageId, _Seen] = {}
        self._failing: dict[Stream, set[MessageId]] = {}
        """By stream, messages whose handler raised when they were delivered last."""

    def delivered(self, message: Message) -> None:
        """The handler is about to be called with a message."""
        self.history.append(f"{message!r}")
        seen = self._seen.setdefault(message.id, _Seen(message))
        seen.settled = ""
        seen.out_of_order |= message.replayed
        failing = self._failing.setdefault(message.stream, set())
        failing.discard(message.id)
        for given_up in failing:
            if (given_up.epoch, given_up.seq) < (message.epoch, message.seq):
                self._seen[given_up].out_of_order = True

    def settled(self, message: Message, outcome: Literal["acknowledged", "rejected"]) -> None:
        """A message was acknowledged or rejected."""
        self.history.append(f"{outcome} {message.id}")
        self._seen[message.id].settled = outcome

    def failed(self, message: Message) -> None:
        """The handler of a message raised."""
        self.history.append(f"failed {message.id}")
        self._failing[message.stream].add(message.id)

    def happened(self, what: str) -> None:
        """Something else happened."""
        self.history.append(what)

    @property
    def handled(self) -> list[Message]:
        """Messages that are acknowledged, in the order of their first deliveries."""
        return [seen.message for seen in self._seen.values() if seen.settled == "acknowledged"]

    @property
    def given_up(self) -> list[Message]:
        """The other messages."""
        return [seen.message for seen in self._seen.values() if seen.settled != "acknowledged"]

    def judge(self, effects: Iterable[Any], key: Callable[[Message], object]) -> list[Finding]:
        """What is wrong with the effects that the application has in the end, in the order in which they were made; of
        those in a set, the order is not known. `key`: the effect of a message."""
        seen = {key(each.message): each for each in self._seen.values()}
        if len(seen) < len(self._seen):
            raise ValueError(
                "effect_of gives two messages the same effect: each message needs one of its own"
            )
        made = list(effects)
        counts = Counter(made)
        found = [Finding("effect_unknown", f"{effect!r}") for effect in counts if effect not in seen]
        for effect, each in seen.items():
            shown = f"{each.message.id}, {effect!r}"
            if counts[effect] > 1:
                found.append(Finding("effect_twice", f"{shown}, {counts[effect]} times"))
            if not counts[effect] and each.settled == "acknowledged":
                found.append(Finding("effect_lost", shown))
            if counts[effect] and each.settled == "rejected":
                found.append(Finding("effect_of_rejected", shown))
        return found + ([] if isinstance(effects, Set) else _out_of_order(made, seen))


def _out_of_order(made: list[Any], seen: dict[object, _Seen]) -> list[Finding]:
    latest: dict[Stream, Message] = {}
    found = []
    for effect in dict.fromkeys(made):
        each = seen.get(effect)
        if each is None or each.out_of_order:
            continue
        message = each.message
        before = latest.setdefault(message.stream, message)
        if (message.epoch, message.seq) < (before.epoch, before.seq):
            found.append(Finding("effect_out_of_order", f"{message.id}, {effect!r}, after {before.id}"))
        else:
            latest[message.stream] = message
    return found
