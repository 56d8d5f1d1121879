"""A producer's settings, checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reliamsg.arguments import MOST_BYTES, check_choice, check_count, check_instance, check_list, check_number
from reliamsg.config import Site, check_name
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing, check_keys
from reliamsg.message import MessageId
from reliamsg.policy import Confirm, confirm_policy
from reliamsg.wire.limits import MAX_BATCH_MESSAGES, MAX_NAMED_GROUPS, MAX_SEQ

__all__ = ["Settings", "check_blocking", "check_groups", "check_message_id"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A producer's settings, with the names and defaults of :class:`~reliamsg.producer.api.Producer`."""

    confirm: Confirm = "all"
    release: str = "confirmed"
    wire: str = "batch"
    compression: str | None = None
    max_bytes: int = 1024 * 1024 * 1024
    retain_seconds: float = 300.0
    retain_bytes: int = 64 * 1024 * 1024
    max_batch_messages: int = 2048
    max_batch_bytes: int = 256 * 1024
    hello_timeout: float = 1.0
    status_interval: float = 1.0
    max_repair_bytes_per_second: float | None = 64 * 1024 * 1024
    keys: KeyRing | None = None

    @property
    def plain(self) -> bool:
        """Whether each message is a broker message of its own."""
        return self.wire == "plain"

    def checked(self, sites: Sequence[Site]) -> Settings:
        """The settings, for a producer at these sites; raises :class:`ConfigError` for an invalid one."""
        check_choice("release", self.release, ("confirmed", "consumed"))
        check_choice("wire", self.wire, ("batch", "plain"))
        if self.plain:
            for site in sites:
                if site.protocol == "mqtt" and site.mqtt_version == "3.1.1":
                    raise ConfigError(
                        f"site {site.name}: wire='plain' needs headers, which MQTT 3.1.1 does not have"
                    )
        check_keys(self.keys)
        if self.compression is not None:
            check_choice("compression", self.compression, ("zstd",), " or None")
        if self.compression and importlib.util.find_spec("zstandard") is None:
            raise ConfigError("compression='zstd' needs the extra: pip install 'reliamsg[zstd]'")
        check_count("max_bytes", self.max_bytes, least=1024)
        check_count("retain_bytes", self.retain_bytes, least=0)
        check_count("max_batch_messages", self.max_batch_messages, most=MAX_BATCH_MESSAGES)
        check_count("max_batch_bytes", self.max_batch_bytes)
        check_number("retain_seconds", self.retain_seconds, least=0)
        check_number("hello_timeout", self.hello_timeout, least=0)
        check_number("status_interval", self.status_interval, least=0.05)
        rate = self.max_repair_bytes_per_second
        if rate is not None:
            check_number("max_repair_bytes_per_second", rate, least=1024, most=MOST_BYTES)
        return replace(self, confirm=confirm_policy(self.confirm, len(sites)))


def check_blocking(when_full: str, block_timeout: float) -> float:
    """How long ``publish`` waits for room, in seconds; raises :class:`ConfigError` for invalid settings."""
    check_choice("when_full", when_full, ("block", "raise"))
    check_number("block_timeout", block_timeout)
    return block_timeout if when_full == "block" else 0.0


def check_groups(groups: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Check topics and groups; raises :class:`ConfigError` for an invalid name."""
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
