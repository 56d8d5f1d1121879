"""Log-bucket histograms of latencies: a few integers that are merged by addition.

Bucket ``b`` holds latencies from ``2**(b/4)`` up to, not including, ``2**((b+1)/4)`` microseconds, so a value
read from a bucket is within 19 % of the true one. Bucket 0 also holds everything shorter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["Histogram", "bucket", "merged", "quantile"]

Histogram = dict[int, int]
"""Counts by bucket number."""


def bucket(microseconds: float) -> int:
    """The bucket of a latency; negative ones, from clocks that disagree, count as 0."""
    return int(math.log2(microseconds) * 4) if microseconds > 1 else 0


def merged(one: Mapping[int, int] | None, other: Mapping[int, int]) -> Histogram:
    """The sum of both histograms; neither is changed."""
    found = dict(one or {})
    for number, count in other.items():
        found[number] = found.get(number, 0) + count
    return found


def quantile(histogram: Mapping[int, int], q: float) -> float | None:
    """The upper bound, in microseconds, of the bucket in which the `q` quantile (0 to 1) lies."""
    total = sum(histogram.values())
    if not total:
        return None
    seen = 0
    for number in sorted(histogram):
        seen += histogram[number]
        if seen >= q * total:
            return float(2 ** ((number + 1) / 4))
    return None
