"""Confirm policies: how many sites must have confirmed a message before it counts as published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reliamsg.arguments import check_choice, check_count
from reliamsg.errors import ConfigError

__all__ = ["Confirm", "Quorum", "confirm_policy", "confirms_needed"]


@dataclass(frozen=True)
class Quorum:
    """Confirm policy: a message counts as published when at least `k` sites have confirmed it."""

    k: int

    def __post_init__(self) -> None:
        check_count("Quorum: k, the number of sites,", self.k)


Confirm = Literal["all", "any", "all-active"] | Quorum
"""The sites that must confirm a message before it counts as published.

``"all"``: every site. ``"any"``: one. ``Quorum(k)``: k of them. ``"all-active"``: every site that is up
(connected, not blocked, no confirm overdue), and at least one.
"""


def confirm_policy(confirm: Confirm, sites: int) -> Confirm:
    """Return `confirm`, or raise :class:`ConfigError` if it can't be met with this number of sites."""
    if isinstance(confirm, Quorum):
        if confirm.k > sites:
            raise ConfigError(f"Quorum({confirm.k}) can't be met with {sites} sites")
    else:
        check_choice("confirm", confirm, ("all", "any", "all-active"), " or Quorum(k)")
    return confirm


def confirms_needed(policy: Confirm, sites: int) -> int:
    """The number of confirms, of `sites`, without which the policy is never met."""
    match policy:
        case "all":
            return sites
        case Quorum(k):
            return k
        case _:
            return 1
