"""The fate of one message: the probability of each state that it passes.

All incidents are independent Poisson processes; the time between them is exponential. Everything else is a fixed delay:
retention, time-outs, outages, waits. So this is no Markov chain with exponential time-outs. For each message, the model
computes windows of time in which an incident does harm, and

- sums over the situations in which the message may be published: each site up, or away for a remaining time that is
  uniform between 0 and the length of its outage (the stationary residual life of a fixed duration; Cox, Renewal Theory,
  1962, chapter 5), and the same for the consumer when the message is due;
- uses, for given windows, ``P(no incident) = exp(-rate * window)``, and independence between sites.

docs/reference/plan.md derives each formula and lists what is neglected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import exp, expm1, inf, prod

from reliamsg.plan.system import Hazard, System

__all__ = ["EDGES", "Fate", "fate_of"]

_GAUSS = (
    (0.06943184420297371, 0.17392742256872692),
    (0.33000947820757187, 0.32607257743127307),
    (0.6699905217924281, 0.32607257743127307),
    (0.9305681557970262, 0.17392742256872692),
)
"""Nodes and weights of Gauss-Legendre quadrature with four points on (0, 1): Abramowitz and Stegun, table 25.4."""

EDGES = (
    ("accepted", "durable"),
    ("accepted", "in memory"),
    ("in memory", "lost"),
    ("in memory", "queued"),
    ("durable", "lost"),
    ("durable", "queued"),
    ("queued", "received"),
    ("queued", "erased"),
    ("erased", "received"),
    ("erased", "declared missing"),
    ("erased", "lost"),
    ("received", "delivered"),
    ("received", "lost"),
    ("delivered", "acknowledged"),
    ("acknowledged", "duplicated"),
)
"""The transitions of the map. *Erased*: no site that the group reaches has the message any more."""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of one message; probabilities per message, shares of time, seconds."""

    lost: float
    """It never reaches the application, since nothing holds it any more."""
    declared: float
    """The group continued without it, although something still held it (only with ``on_gap="skip"``)."""
    duplicated: float
    """The application gets it more than once. reliamsg flags the repetition as ``redelivered``; plain clients don't."""
    accepting: float
    """The share of time in which the producer accepts messages."""
    confirming: float
    """The share of time in which enough sites are up to meet the confirm policy."""
    delivering: float
    """The share of time in which the consumer and at least one site are up."""
    confirm_seconds: float
    """The mean time until the confirm policy is met."""
    edges: dict[tuple[str, str], float]
    """The joint probability that a message takes this transition, by (from, to) of :data:`EDGES`."""
    confirmed: dict[int, float]
    """The probability that this number of sites had the message when it was due at the consumer."""

    @property
    def missing(self) -> float:
        """The probability that the application never gets the message."""
        return self.lost + self.declared


@dataclass(frozen=True)
class _Situation:
    """Where a message is published."""

    weight: float
    arrivals: tuple[float, ...]
    """The age at which each site has the message, if the outbox keeps it until then."""
    confirmed_at: float
    """The age at which the confirm policy is met."""


@dataclass(frozen=True)
class _Sums:
    """What became of a message; joint probabilities."""

    unsent: float
    """Lost before any site had it."""
    gone: float
    """No site that the group reaches had it when it was due."""
    at_sites: float
    """Lost, after at least one site had it."""
    passed: float
    in_inbox: float
    """Lost with the inbox."""
    again: float
    reached: int
    """How many sites had it."""


def fate_of(system: System) -> Fate:
    """Compute what becomes of one message."""
    accepted = 0.0
    unsent = gone = at_sites = passed = in_inbox = again = confirm_seconds = 0.0
    confirmed: dict[int, float] = {}
    for situation in _situations(system):
        accepted += situation.weight
        confirm_seconds += situation.weight * situation.confirmed_at
        for share, away in _due(system, situation):
            weight, found = situation.weight * share, _outcome(system, situation, away)
            unsent += weight * found.unsent
            gone += weight * found.gone
            at_sites += weight * found.at_sites
            passed += weight * found.passed
            in_inbox += weight * found.in_inbox
            again += weight * found.again
            confirmed[found.reached] = confirmed.get(found.reached, 0.0) + weight
    # Messages that are not accepted, since the outbox is full or the broker away, don't count.
    unsent, gone, at_sites = unsent / accepted, gone / accepted, at_sites / accepted
    passed, in_inbox, again = passed / accepted, in_inbox / accepted, again / accepted
    start = "durable" if system.kind == "reliamsg" else "in memory"
    received = 1.0 - unsent - at_sites - passed
    edges = dict.fromkeys(EDGES, 0.0) | {
        ("accepted", start): 1.0,
        (start, "lost"): unsent,
        (start, "queued"): 1.0 - unsent,
        ("queued", "received"): 1.0 - unsent - gone,
        ("queued", "erased"): gone,
        ("erased", "received"): gone - at_sites - passed,
        ("erased", "declared missing"): passed,
        ("erased", "lost"): at_sites,
        ("received", "delivered"): received - in_inbox,
        ("received", "lost"): in_inbox,
        ("delivered", "acknowledged"): received - in_inbox,
        ("acknowledged", "duplicated"): again,
    }
    return Fate(
        lost=unsent + at_sites + in_inbox,
        declared=passed,
        duplicated=again,
        confirm_seconds=confirm_seconds / accepted,
        edges=edges,
        confirmed={sites: value / accepted for sites, value in sorted(confirmed.items())},
        **_availability(system, accepted),
    )


def _unavailability(rate: float, outage: float) -> float:
    """The share of time that outages of fixed length take, which begin with this rate while there is none."""
    return rate * outage / (1.0 + rate * outage)


def _down(site: Hazard) -> float:
    return _unavailability(site.crash_rate + site.loss_rate, site.outage)


def _situations(system: System) -> Iterator[_Situation]:
    """All combinations of sites that are up or away, with weights that sum to the share of accepted messages."""
    steps = {1: 16, 2: 5, 3: 3}.get(len(system.sites), 2)
    longest = max(site.outage for site in system.sites)
    together = _unavailability(system.common_loss, longest)
    choices: list[list[tuple[float, float]]] = []
    for site in system.sites:
        down = _down(site)
        away = [(down / steps, site.outage * (step + 0.5) / steps) for step in range(steps)] if down else []
        choices.append([(1.0 - down, 0.0), *away])
    for combined in product(*choices):
        weight = (1.0 - together) * prod(weight for weight, _ in combined)
        yield from _published(system, weight, [residual for _, residual in combined])
    for step in range(steps if together else 0):  # all sites went away at the same moment
        elapsed = longest * (step + 0.5) / steps
        residuals = [max(0.0, site.outage - elapsed) for site in system.sites]
        yield from _published(system, together / steps, residuals)


def _published(system: System, weight: float, residuals: list[float]) -> Iterator[_Situation]:
    arrivals = tuple(residual + site.confirm for residual, site in zip(residuals, system.sites, strict=True))
    needed = system.client.confirms_needed(residuals.count(0.0))
    if system.kind == "pika" and residuals[0]:
        return  # publishing raises an error
    # For how long the policy has not been met: since so many sites are away that too few are left.
    since = sorted(
        (site.outage - left for site, left in zip(system.sites, residuals, strict=True) if left), reverse=True
    )
    spare = len(residuals) - needed
    if len(since) > spare and since[spare] > system.fill:
        return  # the outbox is full
    yield _Situation(weight, arrivals, sorted(arrivals)[needed - 1])


def _due(system: System, situation: _Situation) -> Iterator[tuple[float, float]]:
    """Shares of messages, and for how long the consumer is away when they are due.

    The result is integrated exactly over its jumps: the age at which the outbox lets go, and the ends of windows.
    """
    away = _unavailability(system.consumer_crash, system.consumer_outage)
    yield 1.0 - away, 0.0
    if not away:
        return
    due = min(situation.arrivals) + system.broker_wait
    ends = [_released(system, situation), *situation.arrivals]
    ends += [at + site.crash_window for at, site in zip(situation.arrivals, system.sites, strict=True)]
    inside = {end - due for end in ends if 0.0 < end - due < system.consumer_outage}
    cuts = sorted({0.0, *inside, system.consumer_outage})
    for start, end in pairwise(cuts):
        for node, weight in _GAUSS:
            yield away * weight * (end - start) / system.consumer_outage, start + node * (end - start)


def _released(system: System, situation: _Situation) -> float:
    """The age at which the outbox lets the message go."""
    if system.kind != "reliamsg":
        return max(situation.arrivals)
    if system.keeps:
        return inf
    everywhere = max(situation.arrivals)
    if everywhere <= system.fill:
        return max(everywhere, system.retain)
    return max(system.fill, situation.confirmed_at)  # its room was needed, and some sites never get it


def _outcome(system: System, situation: _Situation, away: float) -> _Sums:
    """What becomes of a message in this situation, if the consumer is away for so long when it is due."""
    until = _released(system, situation)
    arrivals = tuple(at if at <= until else inf for at in situation.arrivals)
    first = min(arrivals)
    due = first + system.broker_wait + away
    reached = [site for site, at in enumerate(arrivals) if at < due]
    erased = _erased(system, arrivals, reached, due)
    memory = _memory_rate(system)
    unsent = -expm1(-memory * first)
    at_sites = _lost_with_disk(system, arrivals, due, min(until, due))
    kept = exp(-memory * min(until, due))
    if due > until:
        at_sites += kept * erased
    else:
        ages = zip(system.sites, (until - at for at in arrivals), strict=True)
        at_sites += kept * prod(_still_split(site, age) if age > -inf else 1.0 for site, age in ages)
        at_sites += _lost_during_split(system, due - first, until - first)
    passed = _passed(system, arrivals, due, until, erased)
    received = max(0.0, 1.0 - unsent - at_sites - passed)
    end = due + system.inbox_wait + system.handle
    in_inbox = received * _lost_in_inbox(system, due, end, until)
    gone = max((1.0 - unsent) * erased, at_sites + passed)
    return _Sums(
        unsent,
        gone,
        at_sites,
        passed,
        in_inbox,
        (received - in_inbox) * _again(system, end, until),
        len(reached),
    )


def _memory_rate(system: System) -> float:
    """What destroys a message before a site has it: for reliamsg a lost disk, for paho also the end of the process.

    With pika, a message is accepted only when it is confirmed.
    """
    match system.kind:
        case "reliamsg":
            return system.producer_disk
        case "paho":
            return system.producer_disk + system.producer_crash
        case _:
            return 0.0


def _erased_at(site: Hazard, age: float) -> float:
    """The probability that a site has erased what arrived there `age` seconds ago, or will never show it."""
    window = site.loss_rate * age + site.crash_rate * min(age, site.crash_window)
    hidden = _unavailability(site.split_rate, site.split_window)
    return hidden + (1.0 - hidden) * -expm1(-window)


def _still_split(site: Hazard, age: float) -> float:
    """The probability that a message arrived on a side that is discarded, more than `age` seconds after that.

    The rest of a partition is uniform, like that of an outage.
    """
    hidden = _unavailability(site.split_rate, site.split_window)
    return hidden * max(0.0, 1.0 - max(0.0, age) / site.split_window) if hidden else 0.0


def _erased(system: System, arrivals: Sequence[float], sites: Sequence[int], until: float) -> float:
    """The probability that none of these sites, which have the message, shows it at age `until`.

    Either they lost it one by one, or all at once after the last of them had it.
    """
    if not sites:
        return 1.0
    alone = prod(_erased_at(system.sites[site], until - arrivals[site]) for site in sites)
    common = -expm1(-system.common_loss * (until - max(arrivals[site] for site in sites)))
    return common + (1.0 - common) * alone


def _lost_with_disk(system: System, arrivals: Sequence[float], due: float, until: float) -> float:
    """The probability that the outbox is lost when some sites have the message, and then these lose it, too.

    The outbox counts until age `until`; sites that get the message later don't get it then.
    """
    rate = _memory_rate(system)
    times = sorted(at for at in arrivals if at < until)
    if not times:
        return 0.0
    lost = 0.0
    for start, end in zip(times, [*times[1:], until], strict=True):
        sites = [site for site, at in enumerate(arrivals) if at <= start]
        # Not the difference of two exponentials: both are almost 1.
        in_time = exp(-rate * start) * -expm1(-rate * (end - start))
        lost += in_time * _erased(system, arrivals, sites, due)
    return lost


def _lost_during_split(system: System, due: float, until: float) -> float:
    """The same for the rest of a partition of the only site: the message was due on the other side, and not seen.

    `due` and `until` count from the arrival. With several sites, the group learns of it from another one.
    """
    site = system.sites[0]
    end = min(site.split_window, until)
    if len(system.sites) > 1 or not site.split_rate or end <= due:
        return 0.0
    lost = sum(weight * -expm1(-_memory_rate(system) * node * (end - due)) for node, weight in _GAUSS)
    return _unavailability(site.split_rate, site.split_window) * lost * (end - due) / site.split_window


def _lost_in_inbox(system: System, due: float, end: float, until: float) -> float:
    """The probability that the inbox is lost while only it has the message, or the outbox was lost before."""
    kept_until = min(max(due, until), end)
    both = sum(
        weight * -expm1(-system.producer_disk * (due + node * (kept_until - due))) for node, weight in _GAUSS
    )
    return -expm1(-system.inbox_loss * ((end - kept_until) + (kept_until - due) * both))


def _passed(
    system: System, arrivals: Sequence[float], due: float, until: float, erased: float
) -> float:  # fmt: skip
    """The probability that the group continues without a message that something still holds, after its patience.

    It does if later messages arrive from another site, the sites that have this one are away for longer, and its outbox
    has let it go, or the producer is away for longer.
    """
    patience = system.client.patience
    if patience == inf or system.kind != "reliamsg":
        return 0.0
    away = [
        _went_away(site.crash_rate + site.loss_rate, site.outage - patience, due - at) if at < due else 1.0
        for site, at in zip(system.sites, arrivals, strict=True)
    ]
    unseen = [
        _erased_at(site, due - at) * (1.0 - down) + down if at < due else 1.0
        for site, at, down in zip(system.sites, arrivals, away, strict=True)
    ]
    # If all sites are away, no later message reveals that this one is missing, and no clock runs.
    missing = max(0.0, prod(unseen) - prod(away))
    if due > until:
        return max(0.0, missing - erased)
    absent = _went_away(system.producer_crash, system.producer_restart - patience, due)
    return max(missing, erased) * absent


def _went_away(rate: float, longest: float, age: float) -> float:
    """The probability that what was up `age` seconds ago is away, and will be for too long.

    It has gone in the meantime, and not earlier than `longest` seconds ago: the rest of the outage is too long then.
    """
    return -expm1(-rate * max(0.0, min(age, longest)))


def _again(system: System, end: float, until: float) -> float:
    """The probability that the application gets a message that it has handled once more."""
    expected = system.consumer_crash * system.handle
    if system.kind == "reliamsg":
        # A new inbox begins with what the outbox holds; a group reports its position after one interval.
        held = system.client.status_interval if system.keeps else max(0.0, until - end)
        expected += system.inbox_loss * held
    else:
        # The broker has the message, and stops before its confirm: the client sends it again.
        expected += system.sites[0].crash_rate * system.sites[0].confirm
    return -expm1(-expected)


def _availability(system: System, accepted: float) -> dict[str, float]:
    """The shares of time in which messages can be accepted, confirmed and delivered."""
    up = 1.0 - _unavailability(system.producer_crash, system.producer_restart)
    blocked = 0.0
    if system.keeps and system.kind == "reliamsg":
        longer = max(0.0, system.consumer_outage - system.fill)
        blocked = system.consumer_crash * longer / (1.0 + system.consumer_crash * system.consumer_outage)
    together = _unavailability(system.common_loss, max(site.outage for site in system.sites))
    counts = [1.0]
    for site in system.sites:
        down = _down(site)
        counts = [
            (counts[up_sites] * down if up_sites < len(counts) else 0.0)
            + (counts[up_sites - 1] * (1.0 - down) if up_sites else 0.0)
            for up_sites in range(len(counts) + 1)
        ]
    met = sum(share for number, share in enumerate(counts) if number >= system.client.confirms_needed(number))
    reading = 1.0 - _unavailability(system.consumer_crash, system.consumer_outage)
    return {
        "accepting": up * accepted * (1.0 - blocked),
        "confirming": (1.0 - together) * met,
        "delivering": reading * (1.0 - together) * (1.0 - counts[0]),
    }
