"""The file of rates: how often things fail, for how long, and how much traffic there is.

No rate has a default: where a number is not known, the answer is not known either. Rates are events per year of
365.25 days, durations are seconds, sizes bytes. The rates are those of independent Poisson processes; durations are
fixed, not random.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Literal, get_args

import msgspec
import msgspec.structs
from msgspec import UNSET, Struct, UnsetType

from reliamsg.errors import ConfigError

__all__ = [
    "YEAR", "AllSites", "ConsumerRates", "KeyPath", "Partitions", "ProducerRates", "Rates", "SiteRates", "Traffic",
    "read_rates", "value_at", "with_value",
]  # fmt: skip

YEAR = 365.25 * 86400.0
"""Seconds per year."""

KeyPath = tuple[str, ...]
"""The keys that lead to a number, such as ``("sites", "dc1", "outage_seconds")``."""

Handling = Literal["autoheal", "ignore", "pause_minority", "quorum"]
HANDLINGS: tuple[str, ...] = get_args(Handling)


MOST = 1e9
"""The largest number in any place."""
_ABOVE_ZERO = ("messages_per_second", "message_bytes")


class _Table(Struct, frozen=True):
    """Checks that all numbers are in range; msgspec reports the :class:`ValueError` with the path of the table."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, float | int):
                continue
            most = 1.0 if name == "losing_share" else MOST
            if not 0 <= value <= most or (not value and name in _ABOVE_ZERO):
                least = "above 0" if name in _ABOVE_ZERO else "from 0"
                raise ValueError(f"{name}: expected a number {least} to {most:g}")


class Traffic(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one producer publishes on one topic, evenly."""

    messages_per_second: float
    message_bytes: float
    """What a message takes in the outbox; a compressed batch needs less per message."""


class ProducerRates(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The producer's process and the disk with its outbox."""

    crashes_per_year: float
    """The process ends without closing; what is in memory only is gone."""
    restart_seconds: float
    disk_losses_per_year: float
    """The outbox is lost, or replaced by an older copy."""


class ConsumerRates(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The consumer's process, the disk with its inbox, and its lag."""

    outages_per_year: float
    """Crashes, and other times at which nothing is read."""
    outage_seconds: float
    inbox_losses_per_year: float
    """The inbox is lost, or replaced by an older copy."""
    broker_wait_seconds: float
    """From the arrival at a broker until the consumer has taken the message in, when nothing is wrong."""
    inbox_wait_seconds: float
    """From then on until the application gets the message: in the inbox, or with plain clients at the broker."""
    handle_seconds: float
    """From then on until the acknowledgement is durable."""


class Partitions(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often a site that is a cluster is cut in two, and what it does then."""

    per_year: float
    seconds: float
    handling: Handling
    """RabbitMQ's ``cluster_partition_handling``, for queues that are not quorum queues; ``quorum`` for those that are:
    they confirm nothing on the smaller side, so a partition loses nothing."""
    losing_share: float
    """The share of partitions in which the producer publishes to the side that is discarded or paused."""
    detection_seconds: float | UnsetType = UNSET
    """Needed for ``pause_minority``: how long the smaller side still confirms."""
    resolve_seconds: float | UnsetType = UNSET
    """Needed for ``ignore``: from the end of the partition until an operator restarts one side."""

    @property
    def discarded_seconds(self) -> float:
        """The messages that a side confirmed for this long are discarded."""
        match self.handling:
            case "autoheal":
                return self.seconds
            case "ignore":
                return self.seconds + _given(self.resolve_seconds)
            case "pause_minority":
                return min(self.seconds, _given(self.detection_seconds))
            case _:
                return 0.0


class SiteRates(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site: a broker, or a cluster that fails as one."""

    crashes_per_year: float
    """The broker stops and comes back with what it had saved."""
    crash_loses_seconds: float
    """Then it lacks the messages that it had confirmed within this time. 0: it saves before it confirms."""
    losses_per_year: float
    """The broker comes back empty."""
    outage_seconds: float
    """How long the site is away after either."""
    confirm_seconds: float
    """From sending to the confirm, when nothing is wrong."""
    partitions: Partitions | UnsetType = UNSET
    """For a cluster."""


class AllSites(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the sites have in common."""

    losses_per_year: float
    """All sites come back empty at once, in addition to their own losses: one cause, such as an operator's mistake."""


class Rates(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All rates. :func:`read_rates` reads them from a file."""

    traffic: Traffic
    producer: ProducerRates
    consumer: ConsumerRates
    sites: dict[str, SiteRates]
    all_sites: AllSites
    cluster: SiteRates | UnsetType = UNSET
    """A single cluster, for comparison with the sites."""


def value_at(rates: Rates, path: KeyPath) -> float:
    """The number at a path of keys."""
    found: object = rates
    for name in path:
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert isinstance(found, float | int)
    return float(found)


def with_value(rates: Rates, path: KeyPath, value: float) -> Rates:
    """A copy of `rates` with one value replaced."""

    def replaced(found: object, path: KeyPath) -> object:
        if not path:
            return value
        if isinstance(found, dict):
            return found | {path[0]: replaced(found[path[0]], path[1:])}
        assert isinstance(found, msgspec.Struct)
        return msgspec.structs.replace(found, **{path[0]: replaced(getattr(found, path[0]), path[1:])})

    changed = replaced(rates, path)
    assert isinstance(changed, Rates)
    return changed


def read_rates(path: str | os.PathLike[str]) -> Rates:
    """Read a file of rates. Raises :class:`ConfigError`, which names the file, the key and what to do."""
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    try:
        rates = msgspec.convert(data, Rates)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {_explained(str(error))}") from None
    if not rates.sites:
        raise ConfigError(f"{file}: sites: there is none; describe each one in a table [sites.NAME]")
    for name, site in [
        *((f"sites.{name}", one) for name, one in rates.sites.items()),
        ("cluster", rates.cluster),
    ]:
        if isinstance(site, SiteRates) and isinstance(site.partitions, Partitions):
            _check_partitions(f"{file}: {name}.partitions", site.partitions)
    return rates


def _check_partitions(at: str, partitions: Partitions) -> None:
    needed = {"ignore": "resolve_seconds", "pause_minority": "detection_seconds"}.get(partitions.handling)
    for key in ("resolve_seconds", "detection_seconds"):
        given = getattr(partitions, key) is not UNSET
        if given and key != needed:
            raise ConfigError(f"{at}.{key}: handling = {partitions.handling!r} does not use it; remove it")
        if not given and key == needed:
            raise ConfigError(f"{at}.{key}: handling = {partitions.handling!r} needs it; add it, in seconds")


def _given(value: float | UnsetType) -> float:
    return value if isinstance(value, float | int) else 0.0


_AT = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<at>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


def _explained(text: str) -> str:
    """An error of msgspec as key, problem and remedy."""
    found = _AT.match(text)
    assert found is not None
    text, at = found["text"], found["at"] or ""
    at = at.replace("[...]", ".NAME")
    if missing := _MISSING.fullmatch(text):
        return f"{f'{at}.' if at else ''}{missing[1]} is missing; add it: no rate has a default"
    if unknown := _UNKNOWN.fullmatch(text):
        return f"{f'{at}.' if at else ''}{unknown[1]}: unknown key; remove or correct it"
    if ": expected a number" in text:
        return f"{at}.{text}"
    if text.startswith("Invalid enum value"):
        return f"{at}: choose {' or '.join(map(repr, HANDLINGS))}"
    return f"{at}: {text.replace('`', '').replace('Expected', 'expected')}"
