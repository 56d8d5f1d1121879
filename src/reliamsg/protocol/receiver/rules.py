"""A consumer's settings, as far as the protocol needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reliamsg.protocol.receiver.redelivery import DeliveryRules

__all__ = ["Rules"]


@dataclass(frozen=True)
class Rules(DeliveryRules):
    """Of one group. Times are seconds."""

    begin: Literal["earliest", "latest"] = "earliest"
    gap_timeout: float = 30.0
    max_streams: int = 10_000
    """Streams that are in memory at a time, since something of them is not settled; those beyond are refused. Up to as
    many more may be there that gaps hold."""
    max_known_streams: int = 5_000_000
    """Streams that are known at all, in memory or in the inbox."""
    skip_gaps: bool = False
    """An expired gap is declared at once; otherwise it is reported, and waits to be accepted."""
    hold_gaps: bool = False
    """An expired gap holds its stream, and that alone, until it is filled or accepted."""
    repair_delay: float = 0.5
    """What has been missing for this long is requested."""
    repair_timeout: float = 300.0
    """The clock of a gap waits at most this long for a producer that says that it holds what is missing."""
    signed: bool = False
    """What arrives is authentic: so it makes sense to ask a producer what of it is new to the group."""
    seed: int = 0
    """Of the jitter between requests; should differ between groups."""
