"""Rates from an audit: how often clients and sites were away, in the time that journals cover.

A number of events in a time is the count of a Poisson process. The interval is the exact one (F. Garwood, Fiducial
limits for the Poisson distribution, Biometrika 28, 1936). No event in a time T does not mean a rate of 0: the rate is
below 3/T with a probability of 95 %, since exp(-3) is 5 % (the rule of three), and the plan computes with that bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, lgamma, log
from pathlib import Path

import msgspec
from msgspec import Struct

from reliamsg.errors import ConfigError
from reliamsg.plan.rates import YEAR, KeyPath, Rates, value_at, with_value

__all__ = ["Estimate", "Estimated", "estimate"]

_TAIL = 0.025
_NONE_SEEN = 3.0


@dataclass(frozen=True)
class Estimate:
    """One number in place of that of the file of rates."""

    name: str
    """Its key, such as ``sites.dc1.crashes_per_year``."""
    given: float
    """In the file."""
    value: float
    """What the plan computes with."""
    low: float
    high: float
    """Of a rate: the interval of 95 %. Otherwise both are `value`."""
    events: int | None
    """Of a rate: how many there were."""
    years: float
    """In how much time, in years of all clients together."""


@dataclass(frozen=True)
class Estimated:
    """Rates with estimates."""

    rates: Rates
    """With each estimate in place of the number in the file."""
    upper: Rates
    """The same with the upper end of each interval."""
    estimates: tuple[Estimate, ...]
    kept: tuple[str, ...]
    """Lines about numbers of the file that an audit could show, and that this one does not."""


class _Away(Struct):
    seconds: float
    number: int
    away_seconds: float


class _Role(Struct):
    clients: int
    crashes: _Away
    breaks: _Away
    files_lost: int


class _Site(Struct):
    seconds: float
    number: int
    away_seconds: float
    confirm_seconds: float | None


class _Operation(Struct):
    producers: _Role
    groups: _Role
    sites: dict[str, _Site]


class _Messages(Struct):
    enqueued: int


class _SiteMessages(Struct):
    lost_after_confirm: int


class _Verdict(Struct):
    messages: _Messages
    streams: int
    sites: dict[str, _SiteMessages]
    latency: dict[str, dict[str, float]]
    operation: _Operation | None = None


def estimate(rates: Rates, directory: str | os.PathLike[str]) -> Estimated:
    """Replace what an audit shows. `directory`: the output of ``reliamsg audit --out``.

    Raises :class:`ConfigError`.
    """
    verdict, operation = _read(Path(directory) / "verdict.json")
    found: list[Estimate] = []
    kept: list[str] = []
    estimated = upper = rates
    for path, number, seconds in _rates_of(verdict, operation, rates, kept):
        name, years = ".".join(path), seconds / YEAR
        if seconds <= 0:
            kept.append(f"{name}: the journals cover no time")
            continue
        low, high = (_lower(number), _upper(number)) if number else (0.0, _NONE_SEEN)
        value = (number or _NONE_SEEN) / years
        found.append(Estimate(name, value_at(rates, path), value, low / years, high / years, number, years))
        estimated, upper = with_value(estimated, path, value), with_value(upper, path, high / years)
    for path, value in _durations_of(verdict, operation, rates):
        found.append(Estimate(".".join(path), value_at(rates, path), value, value, value, None, 0.0))
        estimated, upper = with_value(estimated, path, value), with_value(upper, path, value)
    return Estimated(estimated, upper, tuple(found), tuple(kept))


def _read(path: Path) -> tuple[_Verdict, _Operation]:
    try:
        verdict = msgspec.json.decode(path.read_bytes(), type=_Verdict)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the output of 'reliamsg audit --out'") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not the verdict of an audit: {error}") from None
    if verdict.operation is None:
        raise ConfigError(f"{path}: written by an earlier version, without 'operation'; audit again")
    return verdict, verdict.operation


def _rates_of(
    verdict: _Verdict, operation: _Operation, rates: Rates, kept: list[str]
) -> Iterator[tuple[KeyPath, int, float]]:
    """Key, number of events, and seconds."""
    producers, groups = operation.producers, operation.groups
    yield ("producer", "crashes_per_year"), producers.crashes.number, producers.crashes.seconds
    yield ("producer", "disk_losses_per_year"), producers.files_lost, producers.crashes.seconds
    yield ("consumer", "outages_per_year"), groups.breaks.number, groups.breaks.seconds
    yield ("consumer", "inbox_losses_per_year"), groups.files_lost, groups.breaks.seconds
    for name in rates.sites:
        site = operation.sites.get(name)
        if site is None:
            kept.append(f"sites.{name}: it is in no journal")
            continue
        yield ("sites", name, "crashes_per_year"), site.number, site.seconds
        lost = verdict.sites[name].lost_after_confirm if name in verdict.sites else 0
        if lost:
            kept.append(
                f"sites.{name}.losses_per_year: the site lost {lost:,} confirmed messages, in at least one incident;"
                " count the incidents"
            )
        else:
            yield ("sites", name, "losses_per_year"), 0, site.seconds


def _durations_of(verdict: _Verdict, operation: _Operation, rates: Rates) -> Iterator[tuple[KeyPath, float]]:
    """Key and value of what is no rate of incidents."""
    producers, groups = operation.producers, operation.groups
    if producers.crashes.number:
        yield ("producer", "restart_seconds"), producers.crashes.away_seconds / producers.crashes.number
    if groups.breaks.number:
        yield ("consumer", "outage_seconds"), groups.breaks.away_seconds / groups.breaks.number
    waited = verdict.latency.get("received_to_delivered")
    if waited is not None:
        yield ("consumer", "inbox_wait_seconds"), waited["p50"]
    for name in rates.sites:
        site = operation.sites.get(name)
        if site is not None and site.number:
            yield ("sites", name, "outage_seconds"), site.away_seconds / site.number
        if site is not None and site.confirm_seconds is not None:
            yield ("sites", name, "confirm_seconds"), site.confirm_seconds
    seconds = producers.crashes.seconds / producers.clients if producers.clients else 0.0
    if seconds and verdict.streams and verdict.messages.enqueued:
        yield ("traffic", "messages_per_second"), verdict.messages.enqueued / verdict.streams / seconds


def _at_most(number: int, mean: float) -> float:
    """The probability that a Poisson variable is at most `number`."""
    return min(1.0, sum(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(number + 1)))


def _lower(number: int) -> float:
    """The mean for which as many events or more have a probability of 2.5 %."""
    return _solved(lambda mean: 1.0 - _at_most(number - 1, mean) < _TAIL, 0.0, float(number))


def _upper(number: int) -> float:
    """The mean for which as many events or fewer have a probability of 2.5 %."""
    return _solved(lambda mean: _at_most(number, mean) > _TAIL, float(number), 2.0 * number + 10.0)


def _solved(below: Callable[[float], bool], low: float, high: float) -> float:
    """Where `below` turns false, by bisection."""
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return high
