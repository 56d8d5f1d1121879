"""A producer's settings, checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reliamsg.config import Confirm, Site, check_name, confirm_policy
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing, check_keys
from reliamsg.wire.limits import MAX_BATCH_MESSAGES, MAX_NAMED_GROUPS

__all__ = ["Settings", "check_blocking", "check_groups", "make_settings"]


@dataclass(frozen=True)
class Settings:
    """A producer's settings; see :class:`~reliamsg.sending.producer.Producer`."""

    confirm: Confirm
    release: str
    plain: bool
    compress: bool
    max_bytes: int
    retain_seconds: float
    retain_bytes: int
    max_batch_messages: int
    max_batch_bytes: int
    hello_timeout: float
    status_interval: float
    repair_bytes_per_second: float | None
    keys: KeyRing | None


def make_settings(
    confirm: Confirm,
    release: str,
    wire: str,
    compression: str | None,
    max_bytes: int,
    retain_seconds: float,
    retain_bytes: int,
    max_batch_messages: int,
    max_batch_bytes: int,
    hello_timeout: float,
    status_interval: float,
    repair_bytes_per_second: float | None,
    keys: KeyRing | None,
    sites: Sequence[Site],
) -> Settings:
    """Check a producer's settings; raises :class:`ConfigError` for one that can't be."""
    if release not in ("confirmed", "consumed"):
        raise ConfigError(f"release={release!r}: choose 'confirmed' or 'consumed'")
    if wire not in ("batch", "plain"):
        raise ConfigError(f"wire={wire!r}: choose 'batch' or 'plain'")
    if wire == "plain":
        for site in sites:
            if site.protocol == "mqtt" and site.mqtt_version == "3.1.1":
                raise ConfigError(
                    f"site {site.name}: wire='plain' needs headers, which MQTT 3.1.1 does not have"
                )
    check_keys(keys)
    if compression not in (None, "zstd"):
        raise ConfigError(f"compression={compression!r}: choose 'zstd' or None")
    if compression and importlib.util.find_spec("zstandard") is None:
        raise ConfigError("compression='zstd' needs the extra: pip install 'reliamsg[zstd]'")
    for name, value, least in (
        ("max_bytes", max_bytes, 1024),
        ("retain_seconds", retain_seconds, 0),
        ("retain_bytes", retain_bytes, 0),
        ("max_batch_messages", max_batch_messages, 1),
        ("max_batch_bytes", max_batch_bytes, 1),
        ("hello_timeout", hello_timeout, 0),
        ("status_interval", status_interval, 0.05),
        ("max_repair_bytes_per_second", repair_bytes_per_second, 1024),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value!r}")
    if max_batch_messages > MAX_BATCH_MESSAGES:
        raise ConfigError(
            f"max_batch_messages must be at most {MAX_BATCH_MESSAGES}, not {max_batch_messages}"
        )
    return Settings(
        confirm_policy(confirm, len(sites)), release, wire == "plain", compression == "zstd", max_bytes,
        retain_seconds, retain_bytes, max_batch_messages, max_batch_bytes, hello_timeout, status_interval,
        repair_bytes_per_second, keys,
    )  # fmt: skip


def check_blocking(when_full: str, block_timeout: float) -> float:
    """How long ``publish`` waits for room, in seconds; raises :class:`ConfigError` for what can't be."""
    if when_full not in ("block", "raise"):
        raise ConfigError(f"when_full={when_full!r}: choose 'block' or 'raise'")
    if block_timeout < 0:
        raise ConfigError(f"block_timeout must not be negative: {block_timeout!r}")
    return block_timeout if when_full == "block" else 0.0


def check_groups(groups: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Check topics and groups; raises :class:`ConfigError` for a name that can't be."""
    checked: dict[str, tuple[str, ...]] = {}
    for topic, names in groups.items():
        check_name("topic", topic)
        if isinstance(names, str):
            raise ConfigError(f"groups: {topic!r} needs a list of group names, not a string")
        found = tuple(dict.fromkeys(check_name("group", name) for name in names))
        if len(found) > MAX_NAMED_GROUPS:
            raise ConfigError(
                f"groups: {topic!r} has {len(found)} groups; at most {MAX_NAMED_GROUPS} can be named"
            )
        checked[topic] = found
    return checked
