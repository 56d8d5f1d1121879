"""Every phase of a stream against everything that can happen in it, as the table in
:mod:`reliamsg.protocol.receiver.phase` says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reliamsg.message import Gap, Stream
from reliamsg.protocol.announced import Announced
from reliamsg.protocol.receiver import phase as module
from reliamsg.protocol.receiver.group import GroupReceiver
from reliamsg.protocol.receiver.incoming import Incoming
from reliamsg.protocol.receiver.phase import Phase
from reliamsg.protocol.receiver.rules import Rules
from reliamsg.protocol.receiver.stream import StreamReceiver
from tests.protocol.events_tools import seen, snapshot

STREAM = Stream("p", "orders")
EPOCH, INCARNATION = 10, 70
TIMEOUT_S = 5.0
POLICIES: dict[str, dict[str, bool]] = {"raise": {}, "hold": {"hold_gaps": True}, "skip": {"skip_gaps": True}}


def table() -> dict[tuple[str, str], str]:
    """The table in the module's docstring: by phase and input."""
    lines = [line.split() for line in (module.__doc__ or "").splitlines()]
    (start,) = (at for at, words in enumerate(lines) if words[:2] == ["phase", "next"])
    inputs = lines[start][1:]
    rows = lines[start + 2 :][: len(Phase)]
    return {(row[0], name): cell for row in rows for name, cell in zip(inputs, row[1:], strict=True)}


class Receiver:
    """One stream at a group whose application acknowledges all that it is given."""

    def __init__(self, policy: str) -> None:
        self.core = GroupReceiver(Rules(gap_timeout=TIMEOUT_S, **POLICIES[policy]), {"dc1": 64})  # type: ignore[arg-type]
        self.core.waiting.connected("dc1")
        self.now = 100.0
        self.announcements = 0

    @property
    def state(self) -> StreamReceiver:
        state = self.core.streams.get(STREAM) or self.core.open(STREAM)
        assert state is not None
        return state

    @property
    def head(self) -> int:
        """The next number that is to be delivered."""
        current = self.state.epochs.current
        return 1 if current is None else current.cursor

    @property
    def beyond(self) -> int | None:
        """The lowest number that has arrived beyond the head."""
        known = self.state.epochs.live.get(EPOCH)
        return None if known is None else known.held.next_at(self.head)

    def receive(self, first: int, last: int) -> None:
        self.core.receive(
            Incoming("dc1", STREAM, EPOCH, INCARNATION, None, first, last, (first, last)), self.now
        )
        self.work()

    def work(self) -> None:
        state = self.state
        while (found := state.offer(self.now, 1)) is not None or seen(self.core).urgent:
            if found is None:
                self.core.committed(snapshot(self.core))
                continue
            state.take(found, found.last, self.now)
            state.acknowledge(found.epoch, found.first, found.last, self.now)
        self.core.committed(snapshot(self.core))

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            self.core.tick(self.now)
            self.work()

    # -- what can happen ------------------------------------------------------------------------------------

    def next(self) -> None:
        top = self.beyond
        if top is None:
            known = self.state.epochs.live.get(EPOCH)
            top = max(self.head, 0 if known is None else known.highest) + 1
        self.receive(self.head, top - 1)

    def ahead(self) -> None:
        known = self.state.epochs.live.get(EPOCH)
        top = max(self.head, 0 if known is None else known.highest) + 1
        self.receive(top, top)

    def announce(self) -> None:
        known = self.state.epochs.live.get(EPOCH)
        last = max(self.head, 0 if known is None else known.highest + 1)
        self.announcements += 1
        announced = Announced(
            STREAM,
            EPOCH,
            INCARNATION,
            ((EPOCH, INCARNATION, 1, last),),
            interval=2.0,
            number=self.announcements,
        )
        self.core.announce("dc1", announced, self.now)
        self.wait(1.25)

    def expire(self) -> None:
        self.wait(TIMEOUT_S + 1.0)

    def accept(self) -> None:
        target = self.state.gaps.clock.target
        epoch, first, last = target or (EPOCH, self.head, self.head)
        self.core.accept(Gap(STREAM, epoch, first, last, "open"), self.now)
        self.work()

    def fail(self) -> None:
        self.state.redelivery.halt()

    def take_over(self) -> None:
        known = self.state.epochs.live.get(EPOCH)
        top = self.head if known is None else max(self.head, known.highest + 1)
        self.core.adopt(STREAM, (EPOCH, INCARNATION), (EPOCH, top + 1), top + 1, self.now)
        self.work()


INPUTS: dict[str, Callable[[Receiver], None]] = {
    "next": Receiver.next,
    "ahead": Receiver.ahead,
    "announced": Receiver.announce,
    **dict.fromkeys(POLICIES, Receiver.expire),
    "accept": Receiver.accept,
    "fail": Receiver.fail,
    "takeover": Receiver.take_over,
}


def reach(phase: Phase, policy: str) -> Receiver:
    receiver = Receiver(policy)
    if phase is Phase.JOINING:
        receiver.receive(3, 4)
    elif phase is not Phase.NEW:
        receiver.receive(1, 4)
        if phase in (Phase.GAP, Phase.EXPIRED, Phase.HELD):
            receiver.receive(7, 8)
        if phase in (Phase.EXPIRED, Phase.HELD):
            receiver.expire()
        if phase is Phase.HALTED:
            receiver.fail()
    assert receiver.state.phase is phase
    return receiver


def policy_of(phase: Phase, happens: str) -> str:
    if happens in POLICIES:
        return happens
    return "hold" if phase is Phase.HELD else "raise"


@pytest.mark.parametrize("happens", INPUTS)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_table(phase: Phase, happens: str) -> None:
    expected = table()[phase.name, happens]
    if expected == "-":
        assert (phase, happens) in {
            (Phase.EXPIRED, "hold"), (Phase.EXPIRED, "skip"), (Phase.HELD, "raise"), (Phase.HELD, "skip"),
        }  # fmt: skip
        return
    receiver = reach(phase, policy_of(phase, happens))
    INPUTS[happens](receiver)
    assert receiver.state.phase is Phase[expected]


def test_the_table_is_complete() -> None:
    assert table().keys() == {(phase.name, happens) for phase in Phase for happens in INPUTS}
