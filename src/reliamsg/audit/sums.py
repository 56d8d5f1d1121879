"""What adds up in every audit, whatever is wrong with the journals. If it does not, the audit is wrong, and fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reliamsg.audit.fates import Fate
from reliamsg.audit.kinds import LOSSES
from reliamsg.audit.spans import joined, size, stretches

__all__ = ["SumsDiffer", "compare_fates", "compare_passages", "size_of_union"]

_FATES = {
    *LOSSES, "delivered", "dead", "pending", "before_join", "never_joined", "excused", "undelivered", "settled_unseen",
}  # fmt: skip
"""What can have become of a message that was enqueued in the time of the audit."""


class SumsDiffer(RuntimeError):
    """An error of this program: the numbers in its judgement contradict each other."""


def size_of_union(enqueued: Iterable[tuple[int, int, int, bool]]) -> int:
    """The number of messages in ranges (epoch, first and last number), without those of ranges that are marked."""
    by_epoch: dict[int, list[tuple[int, int, bool]]] = {}
    for epoch, first, last, marked in enqueued:
        by_epoch.setdefault(epoch, []).append((first, last, marked))
    return sum(
        size(first, last)
        for ranges in by_epoch.values()
        for first, last, marks in stretches(ranges)
        if not any(marks)
    )


def compare_fates(stream: tuple[str, str, int], group: str, enqueued: int, fates: Iterable[Fate]) -> None:
    """Every message of a stream that was enqueued has one fate at each group. `enqueued`: their number, from the rows
    that enqueued them."""
    found: Counter[str] = Counter()
    for each in fates:
        if each.fate in _FATES:
            found[each.fate] += size(each.first, each.last)
    if found.total() != enqueued:
        producer, topic, part = stream
        name = f"{producer}/{topic}" + (f"~{part}" if part else "")
        numbers = ", ".join(f"{fate} {count}" for fate, count in sorted(found.items()))
        raise SumsDiffer(
            f"{name} at group {group}: {enqueued} messages were enqueued, and {found.total()} have a fate ({numbers})"
        )


def compare_passages(
    group: str,
    confirmed: Iterable[tuple[tuple[int, str], int, int]],
    counted: Iterable[tuple[int, int, int]],
    seen: tuple[Counter[str], Counter[str], Counter[str]],
) -> None:
    """Every message that a site confirmed for a group came out of it, is proven to be lost there, or neither is proven.
    `confirmed`: epochs and sites, and ranges. `counted`: epochs and ranges for which the group counts. `seen`: by site,
    the numbers of messages that came out, are lost, and are unproven."""
    ours: dict[int, list[tuple[int, int]]] = {}
    for epoch, first, last in joined(counted):
        ours.setdefault(epoch, []).append((first, last))
    total: Counter[str] = Counter()
    for (epoch, site), first, last in joined(confirmed):
        for low, high in ours.get(epoch, ()):
            total[site] += max(0, min(last, high) - max(first, low) + 1)
    came, lost, unproven = seen
    for site in {*total, *lost}:
        if total[site] != came[site] + lost[site] + unproven[site]:
            raise SumsDiffer(
                f"site {site}, group {group}: {total[site]} messages were confirmed; {came[site]} came out,"
                f" {lost[site]} are proven to be lost, and {unproven[site]} are unproven"
            )
