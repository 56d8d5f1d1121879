"""What a spoiled journal deserves: the verdict, the counts and the evidence that is named.

A mutator states what it changed of the fate of which message. Everything else follows from the rows that are left, by
the sets below: one element for each message, so that nothing has to be clever.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.spoilt.reader import Client, Journals, Message, messages_of

__all__ = [
    "COMPLETE",
    "LOST",
    "UNKNOWN",
    "VIOLATED",
    "Effect",
    "Expected",
    "Found",
    "both",
    "expected_of",
    "told",
]

COMPLETE, UNKNOWN, LOST, VIOLATED = "complete", "unknown", "lost", "violated"
_WORST = (COMPLETE, UNKNOWN, LOST, VIOLATED)
Found = tuple[str, str, str, Message]
"""Kind, group, site, and message; number 0 stands for the epoch as a whole."""
_OPEN = frozenset(
    {
        "pending", "undelivered", "unacknowledged", "never_joined", "unproven", "unproven_gap", "settled_unseen",
        "duplicate_apart", "unverified",
    }
)  # fmt: skip
"""Kinds of findings that leave a question open."""
_EVIDENCE = frozenset({"missing", "broken", "unclosed", "ends_early", "mixed_clock"})
_FATES = ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "late", "before_join")
_COUNTED = {
    "lost": "lost", "joined_unheard": "lost", "declared_gap": "declared_gaps", "removed": "declared_gaps",
    "discarded": "declared_gaps", "out_of_order": "out_of_order", "phantom": "phantom",
}  # fmt: skip
"""Kinds of findings whose messages are counted, and where."""
FOREVER_US = 2**63 - 1


@dataclass
class Effect:
    """What one mutation does."""

    verdict: str = COMPLETE
    found: set[Found] = field(default_factory=set)
    """All findings about messages."""
    about: dict[tuple[str, str], set[Message]] = field(default_factory=dict)
    """By kind and group, messages that findings must be about, which may be about others of the same epoch: digest sums
    only show in which range content is wrong."""
    missing: list[str] = field(default_factory=list)
    """A part of each line about missing evidence."""
    broken: list[str] = field(default_factory=list)
    """A part of each line about damaged evidence."""
    unclosed: list[str] = field(default_factory=list)
    """A part of each line about evidence that was demanded and may follow."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts that do not follow from `found`."""
    delivered: Counter[str] = field(default_factory=Counter)
    """By group, how many of the messages in its rows do not count as delivered."""
    open: set[Message] = field(default_factory=set)
    """Messages with open questions that are not named, since there are others about the same epoch."""
    unnamed: set[Message] = field(default_factory=set)
    """Messages with other open questions, likewise, that are not pending: by rows that are missing, a producer was told
    that they are settled."""
    duplicated: int = 0
    streams: int = 2
    unjudged: bool = False
    """Whether findings about messages follow from damage in too many ways to be listed. All counts are exact."""
    chains: list[tuple[Client, bool]] = field(default_factory=list)
    """Further histories, and whether they are closed."""
    now_us: int | None = None
    until_us: int | None = None
    drained: bool | None = None
    shown: dict[str, dict[str, int]] = field(default_factory=dict)
    """Numbers of sites that do not follow from the rows."""


def both(one: Effect, other: Effect) -> Effect:
    """The effect of two mutations that have nothing to do with each other."""
    assert not set(one.about) & set(other.about)
    return Effect(
        max(one.verdict, other.verdict, key=_WORST.index),
        one.found | other.found,
        one.about | other.about,
        one.missing + other.missing,
        one.broken + other.broken,
        one.unclosed + other.unclosed,
        one.counts + other.counts,
        one.delivered + other.delivered,
        one.open | other.open,
        one.unnamed | other.unnamed,
        one.duplicated + other.duplicated,
        2,
        one.unjudged or other.unjudged,
        one.chains + other.chains,
        one.now_us or other.now_us,
        one.until_us or other.until_us,
        None,
        one.shown | other.shown,
    )


@dataclass
class Expected:
    """A judgement in the form in which judges are asked for theirs."""

    verdict: str
    messages: Mapping[str, Any]
    sites: Mapping[str, Mapping[str, int]]
    streams: int
    duplicated: int
    found: set[Found]


def expected_of(journals: Journals, effect: Effect, now_us: int, drained: bool) -> Expected:
    """All numbers of the verdict."""
    counts = journals.counts()
    enqueued = journals.about("enqueued", role="producer")
    fates = Counter({name: effect.counts[name] for name in _FATES})
    for kind, _, _, _ in effect.found:
        if kind in _COUNTED:
            fates[_COUNTED[kind]] += 1
    open_messages = {message for kind, _, _, message in effect.found if kind in ("pending", "undelivered")}
    through = _through(journals, effect, min(now_us, effect.until_us or FOREVER_US), enqueued)
    proven: set[Message] = set()
    for producer in journals.producers:
        for row in producer.of("enqueued"):
            proven |= messages_of(row) if through is not None and row["wall_us"] <= through else set()
    messages = {
        "enqueued": counts["enqueued"],
        "proven": len(proven),
        "delivered": {name: number - effect.delivered[name] for name, number in counts["delivered"].items()},
        **{name: fates[name] for name in _FATES},
        "dead_lettered": counts["dead_lettered"],
        "pending": len(open_messages | effect.open if effect.unjudged else open_messages),
        "saved_by_repair": effect.counts["saved_by_repair"],
        "saved_by_second_site": effect.counts["saved_by_second_site"],
    }
    gone = _lost_at_sites(journals)
    sites = {
        site: {
            **numbers,
            "lost_after_confirm": sum(map(len, gone[site].values())),
            **effect.shown.get(site, {}),
        }
        for site, numbers in counts["sites"].items()
    }
    messages["saved_by_second_site"] += _saved(journals, gone)
    return Expected(effect.verdict, messages, sites, effect.streams, effect.duplicated, effect.found)


def _through(journals: Journals, effect: Effect, now_us: int, enqueued: set[Message]) -> int | None:
    """The time through which everything is proven: docs/reference/audit.md, "Complete through a time"."""
    open_now = (
        {message for kind, _, _, message in effect.found if kind in _OPEN} | effect.open | effect.unnamed
    )
    open_now |= _uncompared(journals, effect) & enqueued
    if effect.missing or effect.broken or open_now - enqueued:
        return None
    begins: dict[Message, int] = {}
    for producer in journals.producers:
        for row in producer.of("enqueued"):
            for message in messages_of(row):
                begins[message] = min(row["wall_us"], begins.get(message, row["wall_us"]))
    chains = [(each, False) for each in journals.clients.values()] + effect.chains
    through = min(
        [
            now_us,
            *(begins[message] - 1 for message in open_now),
            *(_proven(each, journals) for each, _ in chains),
        ]
    )
    mixed = [period for each, _ in chains for period in _mixed(each)]
    while around := [low for low, high in mixed if low <= through < high]:
        through = min(around) - 1
    return through


def _uncompared(journals: Journals, effect: Effect) -> set[Message]:
    """What was delivered, and can't be compared with what was published: beside other open questions about its epoch,
    nothing names it."""
    found: set[Message] = set()
    for group in journals.groups:
        for producer in journals.producers:
            for epoch in {row["epoch"] for row in group.of("delivered") if row["producer"] == producer.name}:
                kinds = {
                    kind
                    for kind, name, _, message in effect.found
                    if name in ("", group.name) and message[:2] == (producer.name, epoch)
                }
                if effect.unjudged or (kinds and kinds <= _OPEN):
                    found |= _beyond_comparison(group, producer, epoch)
    return found


def _beyond_comparison(group: Client, producer: Client, epoch: int) -> set[Message]:
    """What a group delivered of an epoch, if without gaps, outside of all numbers at which rows of both sides end:
    there are no two sums of contents to compare."""
    delivered, enqueued = (
        [row for row in client.of(kind) if (row["producer"], row["epoch"]) == (producer.name, epoch)]
        for client, kind in ((group, "delivered"), (producer, "enqueued"))
    )
    ours, theirs = (
        {at for row in rows for at in (row["first"] - 1, row["last"])} for rows in (delivered, enqueued)
    )
    both = ours & theirs
    return {
        message
        for row in delivered
        for message in messages_of(row)
        if not both or not min(both) < message[-1] <= max(both)
    }


def _proven(client: Client, journals: Journals) -> int:
    """The time through which one journal is proven."""
    boot = client.boots[-1]
    last = [row for row in client.rows if row["boot"] == boot]
    heads = [
        head["wall_us"]
        for head in journals.heads
        if (head["boot"], head["lsn"]) == (last[-1]["boot"], last[-1]["lsn"])
    ]
    if last[-1]["kind"] == "retired":
        return FOREVER_US
    latest: int = max([last[-1]["wall_us"], *heads])
    if any(row["kind"] == "closed" for row in last):
        latest = max(*heads, *(max(row["wall_us"], row["wall_last_us"]) for row in last), 0)
    return latest


def _mixed(client: Client) -> list[tuple[int, int]]:
    """Half-open periods in which the clock was set, or ran backwards."""
    found, latest = [], 0
    for row in client.rows:
        if row["kind"] == "clock_step":
            found.append((min(row["detail"].values()), max(row["detail"].values())))
        if row["wall_us"] < latest:
            found.append((row["wall_us"], latest))
        latest = max(latest, row["wall_us"])
    return [(low, high) for low, high in found if low < high]


def _lost_at_sites(journals: Journals) -> dict[str, dict[str, set[Message]]]:
    """By site and group, messages that the site confirmed and that its queue provably did not have any more."""
    found: dict[str, dict[str, set[Message]]] = defaultdict(lambda: defaultdict(set))
    for group in journals.groups:
        if group.broken or group.rows[-1]["kind"] not in ("closed", "retired"):
            continue
        for row in group.of("drained", "connected"):
            if row["kind"] == "connected" and row["detail"].get("session_present") is not False:
                continue
            for name, (lsn, _) in (row.get("detail") or {}).get("heard", {}).items():
                producer = journals.clients.get(("producer", name))
                for each in producer.of("confirmed") if producer else ():
                    if each["lsn"] <= lsn and each["site"] == row["site"]:
                        found[row["site"]][group.name] |= messages_of(each)
        for site, by_group in found.items():
            by_group[group.name] -= journals.came(group.name, site)
            by_group[group.name] -= journals.about(
                "late", "quarantined", "let_go", "before_join", name=group.name, site=site, repairs=False
            )
    return found


def _saved(journals: Journals, gone: Mapping[str, Mapping[str, set[Message]]]) -> int:
    """Messages that one site lost and another one delivered."""
    total = 0
    for group in journals.groups:
        lost: set[Message] = set().union(*(by_group.get(group.name, set()) for by_group in gone.values()))
        total += len(
            lost & journals.came(group.name) & journals.about("delivered", "redelivered", name=group.name)
        )
    return total


def told(verdict: Mapping[str, Any]) -> set[Found]:
    """The findings about messages in a verdict, one for each message."""
    found: set[Found] = set()
    for each in verdict["findings"]:
        if each["kind"] in _EVIDENCE:
            continue
        first, last = each.get("first"), each.get("last")
        numbers: Iterable[int] = (0,) if first is None or last is None else range(first, last + 1)
        for number in numbers:
            found.add(
                (each["kind"], each.get("group", ""), each.get("site", ""),
                 (each.get("producer", ""), each.get("epoch", 0), number))
            )  # fmt: skip
    return found
