"""The faults of a simulated world: their kinds, their chances, and how often they occurred."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

__all__ = ["FAMILIES", "FAULTS", "SHARES", "Chances", "Faults"]

GROWTH = 5.0
"""The chance of a fault starts at p, and grows by the factor 1 + GROWTH * p with every missed opportunity at the same
place."""
MOST = 0.5
"""The highest chance."""

FAULTS: dict[str, tuple[float, str]] = {
    # A broker and one message or answer
    "confirm_and_lose": (0.02, "a broker confirms a message and does not store it"),
    "early_confirm": (0.02, "a broker confirms a message a while before it is stored"),
    "confirm_lost": (0.02, "a broker stores a message, and its confirm never arrives"),
    "swallow": (0.02, "a broker neither stores nor confirms a message"),
    "confirm_disorder": (0.02, "a broker confirms messages out of order"),
    "duplicate": (0.05, "a broker puts a message into its queues twice"),
    "damage": (0.01, "a broker flips a bit of a message"),
    "hole": (0.05, "some messages of a stream are lost at every site, and so are their repairs"),
    "misroute": (0.02, "a confirmed message does not reach one of its queues"),
    "return": (0.02, "an AMQP broker returns a message"),
    "nack": (0.02, "an AMQP broker nacks a message, although a queue may have it"),
    "refuse": (0.02, "a broker reports that it refuses a message for good"),
    "reorder": (0.05, "a broker delivers another message before the oldest"),
    # A broker as a whole
    "broker_down": (0.01, "a broker is down for a while, and returns unchanged"),
    "broker_empty": (0.01, "a broker returns empty"),
    "broker_stale": (0.01, "a broker returns in an earlier state"),
    "broker_tail": (0.01, "a broker returns without its latest messages"),
    "session_forgotten": (0.01, "a broker forgets one group's queue or session"),
    "two_sessions": (0.02, "a broker keeps the session of a dead reader beside its new one"),
    "no_leader": (0.01, "a broker's quorum queues have no leader for a while"),
    "topic_unanswered": (
        0.01,
        "a broker answers nothing for one topic, or nothing that follows on the same connection either, for a while or"
        " until others have got through after the last fault",
    ),
    "control_unrouted": (
        0.02,
        "what one connection sends to some control addresses of an AMQP broker never arrives, for as long as the"
        " connection lasts",
    ),
    "blocked": (0.01, "a broker asks senders to stop for a while"),
    "login_refused": (0.01, "a broker refuses logins for a while"),
    "over_send": (0.02, "an MQTT broker sends more ahead of acknowledgements than its clients allow, for a while"),
    "address_refused": (0.02, "an MQTT broker closes connections because of a control address, for a while"),
    # Networks
    "cut": (0.01, "nothing passes between a process and a site, in either direction"),
    "cut_up": (0.01, "nothing passes from a process to a site"),
    "cut_down": (0.01, "nothing passes from a site to a process"),
    "reset": (0.02, "a connection is reset, with everything in flight"),
    "cut_control": (0.01, "nothing passes over the connection on which an MQTT client sends control frames"),
    "reset_control": (0.02, "the connection on which an MQTT client sends control frames is reset"),
    "delay": (0.01, "everything between a process and a site takes longer than any timeout"),
    "control_lost": (0.05, "a control frame is lost"),
    "control_twice": (0.05, "a control frame arrives twice"),
    "control_late": (0.05, "a control frame arrives after later ones"),
    # Processes and disks
    "crash": (0.001, "a process terminates between two steps"),
    "crash_inside": (0.001, "a process terminates in the middle of a step"),
    "crash_before_commit": (0.004, "a process terminates before a commit"),
    "torn_write": (0.004, "a process terminates while a commit is being written"),
    "torn_checkpoint": (0.004, "a process terminates while its WAL file is being copied into the database"),
    "crash_after_commit": (0.004, "a process terminates after a commit, before it knows"),
    "pause": (0.001, "a process is suspended for a while"),
    "restart": (0.001, "a process is closed cleanly and opened again"),
    "disk_full": (0.003, "a disk is full for a while"),
    "fsync_error": (0.002, "an fsync fails"),
    "restored": (0.0005, "an outbox is replaced by an older copy of itself"),
    "restored_inbox": (0.002, "an inbox is replaced by an older copy of itself"),
    "wal_lost": (0.003, "the WAL file of an outbox or inbox is gone, with everything since the latest checkpoint"),
    "clock_jump": (0.01, "the wall clock jumps by up to a day, forward or back"),
    "target_down": (0.05, "the target of a client's journal does not answer for a while"),
    "outdated": (0.5, "a consumer's installation can't read some forms of batches until it is upgraded"),
    # Applications
    "handler_failed": (0.02, "the handler of a message raises"),
    "rejected": (0.01, "the application rejects a message"),
    # Operators
    "streams_forgotten": (0.02, "an operator has a group forget settled streams"),
    "dead_letters_replayed": (0.05, "an operator has a consumer deliver some of its dead letters again"),
    # Malice
    "forged": (0.05, "someone without the key publishes or announces in another's name"),
    "replayed": (0.05, "someone replays captured frames"),
    "flood": (0.02, "someone sends a lot of junk"),
    "far_epoch": (0.05, "someone without the key, or where there is none, names an epoch far ahead"),
    # Clocks of single clients
    "clock_off": (0.3, "a client is opened with a clock up to a day off, or a consumer with one that shows 1970"),
}  # fmt: skip
"""By name: the chance at the first opportunity, and a description."""

_PROCESSES = ("crash", "restart", "pause")

FAMILIES: dict[str, tuple[str, ...]] = {
    "messages": (
        "confirm_and_lose", "early_confirm", "confirm_lost", "swallow", "confirm_disorder", "duplicate", "damage",
        "hole", "misroute", "return", "nack", "refuse", "reorder", *_PROCESSES,
    ),
    "brokers": (
        "broker_down", "broker_empty", "broker_stale", "broker_tail", "session_forgotten", "two_sessions", "no_leader",
        "topic_unanswered", "control_unrouted", "confirm_and_lose", "blocked", "login_refused", "over_send",
        "address_refused", *_PROCESSES,
    ),
    "networks": (
        "cut", "cut_up", "cut_down", "reset", "cut_control", "reset_control", "delay", "control_lost", "control_twice",
        "control_late", *_PROCESSES,
    ),
    "stores": (
        "crash_inside", "crash_before_commit", "torn_write", "torn_checkpoint", "crash_after_commit", "restored",
        "restored_inbox", "wal_lost", *_PROCESSES,
    ),
    "disks": ("disk_full", "fsync_error", "target_down", "wal_lost", *_PROCESSES),
    "applications": (
        "handler_failed", "rejected", "streams_forgotten", "dead_letters_replayed", "outdated", "crash_inside",
        "restored_inbox", *_PROCESSES,
    ),
    "malice": (
        "forged", "replayed", "flood", "far_epoch", "damage", "control_lost", "control_twice", "control_late",
        *_PROCESSES,
    ),
    "clocks": ("clock_jump", "clock_off", "far_epoch", "restored", "restored_inbox", *_PROCESSES),
}  # fmt: skip
"""Faults that have to do with each other. Some runs have faults of one family only, since what a few faults do together
rarely happens beside many others."""

SHARES: dict[str, float] = {
    "torn_checkpoint": 0.1,
    "restored_inbox": 0.06,
    "wal_lost": 0.06,
    "far_epoch": 0.15,
    "clock_off": 0.15,
    "streams_forgotten": 0.15,
    "over_send": 0.15,
    "address_refused": 0.15,
    "cut_control": 0.1,
    "reset_control": 0.1,
    "hole": 0.08,
    "control_unrouted": 0.1,
    "outdated": 0.12,
}
"""The chance that a seed draws these faults, however many others it has."""


class _Dice:
    """The dice of one fault at one place."""

    __slots__ = ("bites", "details", "first", "rate", "roll")

    def __init__(self, first: float, chance: random.Random) -> None:
        self.first: float = first
        """The chance at the first opportunity."""
        self.rate: float = first
        """The chance at the next opportunity."""
        self.roll: Callable[[], float] = chance.random
        self.bites: int = 0
        """The number of occurrences."""
        self.details: random.Random | None = None
        """Determines the details of the latest occurrence."""


class _DiceByName(dict[str, _Dice | None]):
    """The dice of one place, created at first use; None for faults that the run does not have."""

    def __init__(self, seed: int, place: str, names: frozenset[str]) -> None:
        super().__init__()
        self._seed, self._place, self._names = seed, place, names

    def __missing__(self, name: str) -> _Dice | None:
        made = _Dice(FAULTS[name][0], self.stream(name)) if name in self._names else None
        self[name] = made
        return made

    def stream(self, name: str, *more: object) -> random.Random:
        return random.Random("/".join(map(str, (self._seed, "fault", name, self._place, *more))))


class _Record:
    """The effects of faults in one run."""

    def __init__(self) -> None:
        self.over = False
        self.bit: set[str] = set()
        self.struck: dict[str, int] = {}
        self.struck_at: set[tuple[str, str]] = set()

    def strike(self, name: str, whom: str) -> None:
        self.struck[name] = self.struck.get(name, 0) + 1
        if whom:
            self.struck_at.add((name, whom))


class Faults:
    """The faults of a run, and their effects.

    Each fault has its own dice at each place (a broker, a process, a path between them), and others for the details of
    each occurrence. So a fault depends only on the seed and on its number of opportunities there: leaving out another
    fault changes only its opportunities.
    """

    def __init__(self, seed: int, names: Iterable[str]) -> None:
        self.enabled: frozenset[str] = frozenset(names)
        self._seed = seed
        self._record = _Record()
        self._places: dict[str, Chances] = {}

    @property
    def struck(self) -> dict[str, int]:
        """How often each fault changed something; attempts without an effect do not count."""
        return self._record.struck

    @property
    def bit(self) -> set[str]:
        """Faults that occurred at all, with or without an effect. Without all others the run is the same."""
        return self._record.bit

    @property
    def over(self) -> bool:
        """Whether faults have ended."""
        return self._record.over

    def end(self) -> None:
        """End all faults."""
        self._record.over = True

    def at(self, place: str) -> Chances:
        """The dice of a place."""
        found = self._places.get(place)
        if found is None:
            dice = _DiceByName(self._seed, place, self.enabled)
            found = self._places[place] = Chances(place, self.enabled, dice, self._record)
        return found

    def struck_at(self, name: str, client: str) -> bool:
        """Whether a fault changed something for this client."""
        return (name, client) in self._record.struck_at


class Chances:
    """The faults at one place: see :class:`Faults`."""

    def __init__(self, place: str, enabled: frozenset[str], dice: _DiceByName, record: _Record) -> None:
        self.place: str = place
        self.enabled: frozenset[str] = enabled
        self._dice, self._record = dice, record

    @property
    def over(self) -> bool:
        """Whether faults have ended."""
        return self._record.over

    def bites(self, name: str, times: float = 1.0) -> bool:
        """Whether a fault occurs at this opportunity, which counts as `times` opportunities."""
        dice = self._dice[name]
        if dice is None or self._record.over:
            return False
        rate = dice.rate
        chance = rate * times
        # min() would be slower, and this is the most frequent call.
        if dice.roll() < (chance if chance < MOST else MOST):
            dice.rate = dice.first
            dice.bites += 1
            dice.details = None
            self._record.bit.add(name)
            return True
        if rate < MOST:
            dice.rate = min(MOST, rate * (1 + GROWTH * times * dice.first))
        return False

    def strikes(self, name: str, client: str = "") -> None:
        """A fault changed something. `client`: the affected client, whose stall it may excuse."""
        self._record.strike(name, client)

    def random(self, name: str) -> random.Random:
        """Determines the details of the latest occurrence, independently of earlier occurrences."""
        dice = self._dice[name]
        assert dice is not None  # it occurred
        if dice.details is None:
            dice.details = self._dice.stream(name, dice.bites)
        return dice.details
