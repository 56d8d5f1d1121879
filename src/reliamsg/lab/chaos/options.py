"""Where and how a scenario is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["TRIES", "RunOptions"]

TRIES = 3
"""How often a scenario is run at most, until a run proves something."""


@dataclass(frozen=True)
class RunOptions:
    """The options of one run of a scenario."""

    directory: Path
    """For all of its files; new or empty."""
    seed: int
    """Of all random choices."""
    messages: int | None = None
    """How many messages to publish; None for the scenario's own number."""
    sites: tuple[tuple[str, str], ...] = ()
    """Names and URLs of a user's sites, used instead of brokers that the laboratory starts."""
    keep: bool = False
    """Keep the clients' files even if the run is ok. The report and the picture are always kept."""
    tries: int = TRIES
