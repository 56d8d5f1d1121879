"""A group with keys, its producer, and somebody who recorded everything and sends any of it, anywhere, at any time.

The recordings are whole (data, statuses, states), but nothing is forged, since the frames are signed. Whatever is sent:
what is genuine comes once, in order; and while the producer can be heard, a group is given nothing unflagged that its
producer does not say is new to it.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from reliamsg.message import Prev
from reliamsg.protocol.announced import Announced, Position
from tests.chance import examples
from tests.protocol.status_tools import SITES, Group, Teller

Frame = tuple[int, int, Prev | None, int, int]
"""Epoch, incarnation, the one before, first and last."""


class World:
    """One stream, from the beginning. Groups come and go; all that passes is recorded."""

    def __init__(self, chance: random.Random, begin: str) -> None:
        self.chance = chance
        self.begin = begin
        self.teller = Teller(interval=1.0)
        self.teller.open(10)
        self.answers = True
        self.frames: list[Frame] = []
        self.statuses: list[Announced] = []
        self.next_status = 0.0
        self.began: Position = (0, 1)
        """Where the stream ended when the present group began."""
        self.held: set[Position] = set()
        """What its producer held then."""
        self.group = self._group()

    def _group(self) -> Group:
        """A group that knows nothing, and that nobody knows."""
        now = self.group.now if hasattr(self, "group") else 100.0
        group = Group(
            now=now, signed=True, begin=self.begin, gap_timeout=8.0, seed=self.chance.randrange(1 << 30)
        )
        epochs = self.teller.epochs
        self.began = (epochs[-1][0], epochs[-1][3] + 1) if epochs else (0, 1)
        self.held = {(e, n) for e, _, first, last in epochs for n in range(first, last + 1)}
        return group

    # -- what happens -------------------------------------------------------------------------------------

    def publish(self) -> None:
        count = self.chance.randrange(1, 6)
        self.teller.publish(count)
        epoch, incarnation, _, last = self.teller.epochs[-1]
        frame = epoch, incarnation, self.teller.prev(epoch), last - count + 1, last
        self.frames.append(frame)
        sites = [site for site in SITES if not self.answers or self.chance.random() < 0.8]
        # What reaches no site is repaired, unless the group begins with what arrives first (S5) and nothing did.
        if not sites and self.begin == "latest" and not self._anything_arrived:
            sites = [SITES[0]]
        for site in sites:
            self._arrives(frame, site)

    def _arrives(self, frame: Frame, site: str, repair: bool = False) -> None:
        epoch, incarnation, prev, first, last = frame
        self.group.arrive(site, epoch, incarnation, prev, first, last, repair)

    @property
    def _anything_arrived(self) -> bool:
        """For the present group."""
        state = self.group.core.streams.get(self.group.stream)
        return state is not None and (
            state.epochs.joined is not None or state.epochs.lowest_arrived() is not None
        )

    def restart(self) -> None:
        self.teller.open(self.teller.opened[0] + self.chance.randrange(1, 5))

    def release(self) -> None:
        """Its retention ends for some of what every group that there was has had."""
        if self.teller.epochs:
            epoch, _, first, last = self.chance.choice(self.teller.epochs)
            end = self.began[1] - 1 if epoch == self.began[0] else last if epoch < self.began[0] else 0
            if first <= min(last, end):
                self.teller.release(epoch, self.chance.randint(first, min(last, end)))

    def newcomer(self) -> None:
        self.group = self._group()

    def replay(self) -> None:
        """Somebody sends some of what was recorded."""
        for _ in range(self.chance.randrange(1, 4)):
            if self.frames and self.chance.random() < 0.6:
                self._arrives(
                    self.chance.choice(self.frames), self.chance.choice(SITES), self.chance.random() < 0.3
                )
            elif self.statuses:
                self.group.hear(replace(self.chance.choice(self.statuses), late=True))

    def wait(self) -> None:
        self.run(self.chance.choice([0.1, 1.0, 5.0]))

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 10)):
            group = self.group
            asks = group.step(0.1)
            if not self.answers:
                group.core.challenges.due(group.now)
                continue
            for _ in group.core.challenges.due(group.now):
                self._tell(late=False)
            if group.now >= self.next_status:
                self.next_status = group.now + 1.0
                self._tell(late=True)
            for ask in asks:
                for epoch, first, last in self.teller.held(ask.wanted):
                    frame = epoch, self.teller.incarnation(epoch), self.teller.prev(epoch), first, last
                    self.frames.append(frame)
                    self._arrives(frame, "dc1", repair=True)

    def _tell(self, late: bool) -> None:
        if self.teller.epochs:
            status = replace(self.teller.status(), late=late)
            self.statuses.append(status)
            self.group.hear(status)
            self.group.work()

    # -- what must hold -----------------------------------------------------------------------------------

    def judge(self) -> None:
        group = self.group
        assert group.got == sorted(set(group.got)), "out of order, or twice"
        assert group.state.epochs.joined is not None
        if not self.answers:
            return
        unflagged = set(group.got) - group.flagged
        new = {place for place in unflagged if place >= self.began}
        assert unflagged <= (new | self.held), "a recording as new"
        if self.begin == "latest":
            assert unflagged <= new, "what was there before the group began, as new"
        # Nothing that was published since is lost.
        published = {(e, n) for e, _, _, last in self.teller.epochs for n in range(1, last + 1)}
        missing = {place for place in published if place > group.state.epochs.joined} - set(group.got)
        declared = {(e, n) for e, first, last, _ in group.told("declared") for n in range(first, last + 1)}
        assert not missing - declared, "lost"
        assert all(place < self.began for place in declared), "declared, though its producer held it"


ACTIONS = st.lists(
    st.sampled_from(
        ["publish", "publish", "replay", "replay", "replay", "wait", "wait", "newcomer", "restart", "release"]
    ),
    min_size=1,
    max_size=25,
)


@example(["replay", "newcomer"], 187, "latest")
@example(["publish", "publish", "publish", "newcomer", "wait", "release"], 0, "earliest")
@example(["publish", "newcomer", "replay", "release", "wait"], 24731, "earliest")
@given(ACTIONS, st.integers(0, 2**32), st.sampled_from(["earliest", "latest"]))
@settings(max_examples=examples(60), deadline=None)
def test_recordings_come_flagged_or_not_at_all_while_the_producer_answers(
    actions: list[str], seed: int, begin: str
) -> None:
    world = World(random.Random(seed), begin)
    for action in actions:
        getattr(world, action)()
    world.publish()
    world.run(30.0)
    world.judge()


@given(ACTIONS, st.integers(0, 2**32), st.sampled_from(["earliest", "latest"]))
@settings(max_examples=examples(40), deadline=None)
def test_nothing_is_refused_and_nothing_comes_plain_while_nobody_answers(
    actions: list[str], seed: int, begin: str
) -> None:
    world = World(random.Random(seed), begin)
    world.publish()
    world.answers = False
    for action in ("newcomer", *actions, "publish"):
        getattr(world, action)()
    world.run(30.0)
    world.judge()
    assert set(world.group.got) <= world.group.flagged
    assert world.group.got
