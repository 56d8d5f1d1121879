"""Sums that must agree whatever is wrong with a run. If they do not, the checker is wrong, and there is no verdict."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SumsDiffer", "check_fates", "check_site"]


class SumsDiffer(RuntimeError):
    """An error of this program: the numbers in its judgement contradict each other."""


def check_fates(stream: object, group: str, enqueued: int, fates: Mapping[str, int]) -> None:
    """Every message of a stream that was enqueued has one fate at each group."""
    found = sum(fates.values())
    if found != enqueued:
        numbers = ", ".join(f"{name} {count}" for name, count in sorted(fates.items()) if count)
        raise SumsDiffer(
            f"{stream} at group {group}: {enqueued} messages were enqueued, and {found} have a fate ({numbers})"
        )


def check_site(site: str, group: str, confirmed: int, came: int, lost: int, unproven: int) -> None:
    """Every message that a site confirmed for a group came out of it, is proven to be lost there, or neither is
    proven."""
    if confirmed != came + lost + unproven:
        raise SumsDiffer(
            f"site {site}, group {group}: {confirmed} messages were confirmed; {came} came out, {lost} are proven to be"
            f" lost, and {unproven} are unproven"
        )
