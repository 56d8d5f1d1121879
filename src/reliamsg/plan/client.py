"""The settings of a producer and its consumer that decide which messages can be lost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from reliamsg.configfile import read_config
from reliamsg.errors import ConfigError
from reliamsg.policy import Confirm, Quorum, confirm_policy

__all__ = ["Client", "read_client"]


@dataclass(frozen=True, kw_only=True)
class Client:
    """A producer and a group that reads from it; the fields have the names and defaults of their arguments."""

    sites: tuple[str, ...]
    """The sites of the producer that the group reads, too."""
    confirm: Confirm = "all"
    release: Literal["confirmed", "consumed"] = "confirmed"
    retain_seconds: float = 300.0
    retain_bytes: int = 64 * 1024 * 1024
    max_bytes: int = 1024 * 1024 * 1024
    status_interval: float = 1.0
    on_gap: Literal["hold", "raise", "skip"] = "hold"
    gap_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not self.sites:
            raise ConfigError("sites: a client needs at least one")
        confirm_policy(self.confirm, len(self.sites))

    def confirms_needed(self, up: int) -> int:
        """How many sites must confirm a message, if `up` of them can."""
        match self.confirm:
            case "all":
                return len(self.sites)
            case "any":
                return 1
            case Quorum(k):
                return k
            case _:
                return max(1, up)

    @property
    def patience(self) -> float:
        """After how many seconds the group continues without a message that it can't get now."""
        return self.gap_timeout if self.on_gap == "skip" else inf

    def __str__(self) -> str:
        confirm = self.confirm.k if isinstance(self.confirm, Quorum) else self.confirm
        sites = f"{len(self.sites)} site{'s' if len(self.sites) > 1 else ''}"
        return f"reliamsg, {sites}, release={self.release}, confirm={confirm}"


def read_client(
    path: str | os.PathLike[str], producer: str | None = None, group: str | None = None
) -> Client:
    """The settings in a configuration file; without names, those of its only producer and its only consumer.

    A file without a consumer stands for a group with default settings that reads all sites of the producer. Raises
    :class:`ConfigError`.
    """
    file = read_config(path)
    sender = file.producer(producer)
    reader = file.consumer(group) if file.consumer_names or group is not None else {"sites": sender["sites"]}
    read = {site.name for site in reader["sites"]}
    sites = tuple(site.name for site in sender["sites"] if site.name in read)
    if not sites:
        raise ConfigError(
            f"{path}: producers.{sender['producer_id']}.sites: the group reads none of them; give both a common site"
        )
    if len(sites) < len(sender["sites"]):
        raise ConfigError(
            f"{path}: producers.{sender['producer_id']}.sites: the group does not read all of them; this model needs"
            " the same sites for both"
        )
    chosen: dict[str, Any] = {
        key: found[key]
        for found, keys in (
            (
                sender,
                ("confirm", "release", "retain_seconds", "retain_bytes", "max_bytes", "status_interval"),
            ),
            (reader, ("on_gap", "gap_timeout")),
        )
        for key in keys
        if key in found
    }
    return Client(sites=sites, **chosen)
