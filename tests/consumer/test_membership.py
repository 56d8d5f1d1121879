"""Which of two inboxes reads: tables of what sites say, and what follows."""

from __future__ import annotations

import itertools
import random

from reliamsg.consumer.lease import Lease
from reliamsg.consumer.role import GroupRole


def new_role() -> GroupRole:
    return GroupRole(Lease("inbox", b"run", 30.0), lambda: 0.0)


class Fake:
    def __init__(self) -> None:
        self.state = "connecting"
        self.gave_way = 0
        self.admitted = 0

    def give_way(self) -> None:
        self.gave_way += 1

    def admit(self) -> None:
        self.admitted += 1


class Group:
    """One consumer's view of two AMQP sites and an MQTT site."""

    def __init__(self) -> None:
        self.a, self.b, self.mqtt = Fake(), Fake(), Fake()
        self.membership = new_role()
        self.membership.begin([self.a, self.b], [self.mqtt])

    def see(self, a: str, b: str) -> Group:
        for site, state in ((self.a, a), (self.b, b)):
            if site.state != state:
                site.state = state
                self.membership.review()
        return self


def test_without_locks_there_is_nothing_to_decide() -> None:
    membership = new_role()
    membership.begin([], [Fake()])
    membership.review()
    assert membership.decided
    assert not membership.locked_out


def test_nothing_is_taken_in_before_every_site_has_answered() -> None:
    group = Group()
    assert group.membership.locked_out
    group.see("connected", "connecting")
    assert group.membership.locked_out
    assert not group.mqtt.admitted
    group.see("connected", "unreachable")
    assert group.membership.decided
    assert not group.membership.locked_out
    assert (group.a.admitted, group.mqtt.admitted) == (1, 1)


def test_a_newcomer_gives_way_everywhere() -> None:
    group = Group().see("connected", "busy")
    assert group.a.gave_way == 1
    assert group.membership.locked_out
    group.see("connecting", "busy").see("connected", "busy")
    assert group.a.gave_way == 2
    # The other one is gone.
    group.see("connected", "connected")
    assert not group.membership.locked_out


def test_whoever_holds_a_lock_reads_on() -> None:
    group = Group().see("connected", "unreachable").see("connected", "busy")
    assert group.a.gave_way == 0
    assert not group.membership.locked_out
    assert group.membership.decided


def test_whoever_lost_all_locks_is_a_newcomer() -> None:
    group = Group().see("connected", "connected").see("connecting", "connecting")
    assert not group.membership.decided
    assert not group.membership.locked_out, "what is here already may go on"
    group.see("connected", "connecting")
    assert not group.membership.decided
    group.see("connected", "busy")
    assert group.membership.locked_out
    assert group.a.gave_way == 1


def test_with_no_site_in_reach_what_is_here_goes_on() -> None:
    group = Group().see("unreachable", "refused")
    assert not group.membership.locked_out


def test_two_that_share_no_site_are_told_apart_afterwards() -> None:
    """Each got a lock while the other site was away. The one with the lowest name may stay."""
    first = Group().see("connected", "unreachable").see("connected", "busy")
    second = Group().see("unreachable", "connected").see("busy", "connected")
    assert first.membership.may_stay(first.b)
    assert not second.membership.may_stay(second.a)
    newcomer = Group().see("busy", "busy")
    assert not newcomer.membership.may_stay(newcomer.a)
    assert not newcomer.membership.may_stay(newcomer.b)


def test_two_never_read_at_once(seeded: random.Random) -> None:
    """Two consumers that reach both sites, whose connections break at any time: never do both take in deliveries of
    sites with locks, and one of them always gets there."""
    for _ in range(300):
        world = World()
        for _ in range(80):
            world.happen(seeded)
            assert len(world.readers()) <= 1, world.states()
        for _ in range(2_000):
            if world.readers():
                break
            world.attempt(seeded.choice(world.groups), seeded.randrange(2))
        assert len(world.readers()) == 1, world.states()


class World:
    """Two consumers, and who holds the lock of each site."""

    def __init__(self) -> None:
        self.groups = (Group(), Group())
        self.owner: list[Group | None] = [None, None]

    def happen(self, rng: random.Random) -> None:
        group, which = rng.choice(self.groups), rng.randrange(2)
        if rng.random() < 0.3:
            self.disconnect(group, which)
        else:
            self.attempt(group, which)

    def attempt(self, group: Group, which: int) -> None:
        """The consumer tries to connect, where it is not connected."""
        if self.owner[which] is None:
            self.owner[which] = group
            self._change(group, which, "connected")
        elif self.owner[which] is not group:
            self._change(group, which, "busy")
        for number, one in itertools.product((0, 1), self.groups):
            site = (one.a, one.b)[number]
            while site.gave_way:
                site.gave_way = 0
                self.disconnect(one, number)

    def disconnect(self, group: Group, which: int) -> None:
        if self.owner[which] is group:
            self.owner[which] = None
            self._change(group, which, "connecting")

    def readers(self) -> list[Group]:
        return [
            g for g in self.groups if g.membership.decided and not g.membership.locked_out and g in self.owner
        ]

    def states(self) -> list[tuple[str, str]]:
        return [(group.a.state, group.b.state) for group in self.groups]

    @staticmethod
    def _change(group: Group, which: int, state: str) -> None:
        site = (group.a, group.b)[which]
        if site.state != state:
            site.state = state
            group.membership.review()
