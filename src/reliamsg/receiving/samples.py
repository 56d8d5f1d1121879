"""Unusable deliveries: samples of them, kept within a bound to be looked at."""

from __future__ import annotations

from collections.abc import Mapping

from reliamsg.core.fair_quota import FairQuota
from reliamsg.store.inbox import MAX_QUARANTINED_FRAME
from reliamsg.store.inbox_rows import Quarantined

__all__ = ["MAX_SAMPLE_BYTES", "Samples"]

MAX_SAMPLE_BYTES = 4 * 1024 * 1024
"""Bytes of unusable messages that are kept; what comes after is only counted."""
ROW_BYTES = 256
"""What a row takes besides the bytes of the message."""


class Samples:
    """What may be kept. A flood at one address of one site leaves room for what comes from elsewhere, and the first
    that came is kept rather than the last: it shows how it began. Under the consumer's lock."""

    def __init__(self, addresses: frozenset[str], kept: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        """`addresses`: those that the group reads or listens to. `kept`: by site and address, rows and bytes that
        there are already."""
        self._addresses = addresses
        held: dict[str, int] = {}
        for (site, address), (rows, size) in kept.items():
            source = self._source(site, address)
            held[source] = held.get(source, 0) + size + rows * ROW_BYTES
        self._room = FairQuota(MAX_SAMPLE_BYTES, held)

    def _source(self, site: str, address: str) -> str:
        """Other addresses than those that are read may be made up, and count as one."""
        return f"{site} {address if address in self._addresses else ''}"

    def admit(self, site: str, address: str, reason: str, data: bytes) -> Quarantined | None:
        """What is to be kept of a delivery; None if it is only counted."""
        size = min(len(data), MAX_QUARANTINED_FRAME) + ROW_BYTES
        if not self._room.take(self._source(site, address), size):
            return None
        # One byte more tells the inbox that there was more.
        return Quarantined(site, address, reason, data[: MAX_QUARANTINED_FRAME + 1])
