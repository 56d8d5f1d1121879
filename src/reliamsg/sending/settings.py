"""A producer's settings, checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reliamsg.arguments import MOST_BYTES, check_choice, check_count, check_instance, check_list, check_number
from reliamsg.config import Confirm, Site, check_name, confirm_policy
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing, check_keys
from reliamsg.message import MessageId
from reliamsg.wire.limits import MAX_BATCH_MESSAGES, MAX_NAMED_GROUPS, MAX_SEQ

__all__ = ["Settings", "check_blocking", "check_groups", "check_message_id", "make_settings"]


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
    check_choice("release", release, ("confirmed", "consumed"))
    check_choice("wire", wire, ("batch", "plain"))
    if wire == "plain":
        for site in sites:
            if site.protocol == "mqtt" and site.mqtt_version == "3.1.1":
                raise ConfigError(
                    f"site {site.name}: wire='plain' needs headers, which MQTT 3.1.1 does not have"
                )
    check_keys(keys)
    if compression is not None:
        check_choice("compression", compression, ("zstd",), " or None")
    if compression and importlib.util.find_spec("zstandard") is None:
        raise ConfigError("compression='zstd' needs the extra: pip install 'reliamsg[zstd]'")
    for name, count, least in (("max_bytes", max_bytes, 1024), ("retain_bytes", retain_bytes, 0)):
        check_count(name, count, least=least)
    check_count("max_batch_messages", max_batch_messages, most=MAX_BATCH_MESSAGES)
    check_count("max_batch_bytes", max_batch_bytes)
    for name, seconds, shortest in (
        ("retain_seconds", retain_seconds, 0),
        ("hello_timeout", hello_timeout, 0),
        ("status_interval", status_interval, 0.05),
    ):
        check_number(name, seconds, least=shortest)
    if repair_bytes_per_second is not None:
        check_number("max_repair_bytes_per_second", repair_bytes_per_second, least=1024, most=MOST_BYTES)
    return Settings(
        confirm_policy(confirm, len(sites)), release, wire == "plain", compression == "zstd", max_bytes,
        retain_seconds, retain_bytes, max_batch_messages, max_batch_bytes, hello_timeout, status_interval,
        repair_bytes_per_second, keys,
    )  # fmt: skip


def check_blocking(when_full: str, block_timeout: float) -> float:
    """How long ``publish`` waits for room, in seconds; raises :class:`ConfigError` for what can't be."""
    check_choice("when_full", when_full, ("block", "raise"))
    check_number("block_timeout", block_timeout)
    return block_timeout if when_full == "block" else 0.0


def check_groups(groups: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Check topics and groups; raises :class:`ConfigError` for a name that can't be."""
    if not isinstance(groups, Mapping):
        raise ConfigError(
            'groups must be a mapping of topics to lists of groups: {"orders": ["billing"]},'
            f" not {type(groups).__name__}"
        )
    checked: dict[str, tuple[str, ...]] = {}
    for topic, names in groups.items():
        check_name("topic", topic)
        listed = check_list(f"groups: {topic!r}", names, "group names")
        found = tuple(dict.fromkeys(check_name("group", name) for name in listed))
        if len(found) > MAX_NAMED_GROUPS:
            raise ConfigError(
                f"groups: {topic!r} has {len(found)} groups; at most {MAX_NAMED_GROUPS} can be named"
            )
        checked[topic] = found
    return checked


def check_message_id(name: str, value: object) -> None:
    """Raise :class:`ConfigError` unless `value` is a message's identity."""
    check_instance(name, value, MessageId, "a MessageId, as a receipt's id or ids")
    if isinstance(value, MessageId):
        check_name(f"{name}: producer", value.producer)
        check_name(f"{name}: topic", value.topic)
        for part in ("epoch", "partition", "seq"):
            check_count(f"{name}: {part}", getattr(value, part), least=0, most=MAX_SEQ)
