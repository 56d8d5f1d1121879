"""When clients had no connection to a site, from their journals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from reliamsg.audit.clients import JournalParts
from reliamsg.audit.numbers import names

__all__ = ["LEAST_SHARE", "outages", "periods"]

LEAST_SHARE = 0.05
"""Less is no outage: clients start and stop."""


def outages(
    journals: Iterable[JournalParts], sites: Iterable[str], axis: tuple[int, int, int]
) -> dict[str, list[float]]:
    """For each of `sites`, the share of the running clients' time without a connection in each bin: 0 to 1. `axis`:
    start and width of the bins in µs, and their number. Only sites
    at which it was :data:`LEAST_SHARE` in any bin are included.

    A client that starts without a connection counts as disconnected until it has one. Times are those of each client's
    own clock.
    """
    start, width, number = axis
    wanted = set(sites)
    away: dict[str, list[float]] = {site: [0.0] * number for site in wanted}
    running: dict[str, list[float]] = {site: [0.0] * number for site in wanted}
    for journal in journals:
        for site, low, high, connected in periods(journal):
            if site not in wanted:
                continue
            first = max((low - start) // width, 0)
            last = min((high - start) // width, number - 1)
            for place in range(first, last + 1):
                begin = start + place * width
                took = max(min(high, begin + width) - max(low, begin), 0)
                running[site][place] += took
                away[site][place] += 0 if connected else took
    shares = {
        site: [round(out / took, 3) if took else 0.0 for out, took in zip(own, running[site], strict=True)]
        for site, own in sorted(away.items())
    }
    return {site: own for site, own in shares.items() if max(own) >= LEAST_SHARE}


def periods(journal: JournalParts) -> Iterator[tuple[str, int, int, bool]]:
    """Site, begin and end in µs, and whether there was a connection. Each opening begins without one."""
    changes: dict[str, list[tuple[int, str, bool]]] = defaultdict(list)
    for _, fact in journal.rows:
        if fact.kind in ("connected", "disconnected") and fact.site:
            changes[fact.boot].append((fact.wall_us, fact.site, fact.kind == "connected"))
    for opening in journal.openings:
        own = changes[opening.boot]
        known = {*names((opening.detail or {}).get("sites")), *(site for _, site, _ in own)}
        end = max([opening.changed_us, *(at for at, _, _ in own)])
        for site in known:
            at, connected = opening.first_us, False
            for moment, name, state in own:
                if name == site:
                    yield site, at, max(moment, at), connected
                    at, connected = max(moment, at), state
            yield site, at, max(end, at), connected
