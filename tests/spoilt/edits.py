"""What mutators have in common: changes of rows that leave every other row, and every reference to rows, in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tests.spoilt.effects import Effect
from tests.spoilt.originals import GROUPS, PRODUCERS
from tests.spoilt.reader import Client, Id, Journals, Message, Row, Segment, messages_of

__all__ = [
    "CLIENTS", "Case", "behind", "blank", "boots_of", "fill", "forget", "insert", "last_of", "missing_rows", "named",
    "spare", "spread", "trim",
]  # fmt: skip

CLIENTS: tuple[Id, ...] = (
    *(("producer", name) for name in PRODUCERS),
    *(("group", name) for name in GROUPS),
)


@dataclass(frozen=True)
class Case:
    """A mutation of one of the original runs."""

    name: str
    mutate: Callable[[Journals], Effect]
    run: str = "finished"
    clients: frozenset[Id] = frozenset(CLIENTS)
    """The clients whose files it changes, or which findings are about: cases without a common one are independent."""
    full: bool = False
    """Whether it is judged at full size only."""


def spread(*families: Iterable[Case]) -> Iterator[Case]:
    """All cases of some families, each about another kind of damage. Of each family, only one is judged at small size:
    of the first family the first, of the next one the second, and so on."""
    for number, family in enumerate(families):
        own = list(family)
        for at, case in enumerate(own):
            yield replace(case, full=case.full or at != number % len(own))


def named(client: Id) -> str:
    return f"{client[0]} {client[1]}"


def blank(row: Row) -> None:
    """Put a row in place of another one that says nothing about any message, and has the same number and times."""
    kept = {name: row[name] for name in ("lsn", "boot", "wall_us", "wall_last_us", "mono_us")}
    row.clear()
    row |= kept | {"kind": "noted"}


def fill(row: Row, kind: str, like: Row, **changes: object) -> None:
    """Put a row about the messages of `like` in place of one that is about none."""
    kept = {name: row[name] for name in ("lsn", "boot", "wall_us", "wall_last_us", "mono_us")}
    found = copy.deepcopy(like) | kept | {"kind": kind} | changes
    row.clear()
    row |= {name: value for name, value in found.items() if value is not None}


def spare(client: Client, after: Row) -> Row:
    """A row behind `after`, of the same boot if there is one, that says nothing that matters."""
    later = [
        row
        for row in client.rows
        if row["lsn"] > after["lsn"]
        and row["kind"] in ("noted", "heard", "drained", "disconnected", "connected")
        and "heard" not in (row.get("detail") or {})
    ]
    return next((row for row in later if row["boot"] == after["boot"]), later[0])


def behind(journals: Journals, client: Client, row: Row) -> Row:
    """A further row behind another one, which says nothing yet."""
    following = next(each for each in client.rows if each["lsn"] == row["lsn"] + 1)
    assert following["boot"] == row["boot"]
    found = insert(journals, client, following, "noted")
    blank(found)
    return found


def insert(journals: Journals, client: Client, before: Row, kind: str, **changes: object) -> Row:
    """A row like another one, in front of it. All later rows, and references to them, have numbers that are higher."""
    number = before["lsn"]
    row = {
        name: value
        for name, value in (copy.deepcopy(before) | {"kind": kind} | changes).items()
        if value is not None
    }
    for segment in client.segments:
        if before in segment.rows:
            segment.rows.insert(next(at for at, each in enumerate(segment.rows) if each is before), row)
    for lsn, each in enumerate(client.rows, 1):
        each["lsn"] = lsn
    client.chain()
    for other in journals.clients.values():
        for each in other.rows:
            _shift(each, client, number)
        other.chain()
    return row


def _shift(row: Row, client: Client, number: int) -> None:
    detail = row.get("detail") or {}
    match row["kind"], client.role:
        case "consumed", "group":
            boot, lsn = detail.get("journal", ("", 0))
            if lsn >= number and boot in client.boots:
                row["detail"] = detail | {"journal": [boot, lsn + 1]}
        case "heard", "producer":
            if row["producer"] == client.name and detail["lsn"] >= number:
                row["detail"] = detail | {"lsn": detail["lsn"] + 1}
        case (("drained" | "connected"), "producer"):
            heard = detail.get("heard", {})
            if client.name in heard and heard[client.name][0] >= number:
                heard[client.name][0] += 1


def trim(client: Client, gone: set[Message], *kinds: str, group: str = "") -> None:
    """Remove messages from the rows of a client: from all rows about them, or from those of some kinds."""
    for row in client.rows:
        if (kinds and row["kind"] not in kinds) or row.get("group", "") not in (
            "",
            group or row.get("group", ""),
        ):
            continue
        own = messages_of(row)
        left = own - gone
        if left == own or row["kind"] == "joined":
            continue
        if not left:
            blank(row)
            continue
        assert "digest" not in row, f"only whole rows of this kind can be removed: {row}"
        numbers = sorted(number for _, _, number in left)
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "only ends of rows can be removed"
        row["first"], row["last"] = numbers[0], numbers[-1]


def forget(journals: Journals, group: str, gone: set[Message]) -> None:
    """A group never had some messages, and no producer was told that it had settled them."""
    trim(journals.client("group", group), gone)
    journals.client("group", group).chain()
    for producer in journals.producers:
        trim(producer, gone, "consumed", group=group)
        producer.chain()


def last_of(client: Client, kind: str, producer: str) -> Row:
    """The last row of this kind about a producer's stream."""
    return [row for row in client.of(kind) if row["producer"] == producer][-1]


def boots_of(client: Client) -> dict[str, list[Segment]]:
    """The segments by opening, in order."""
    found: dict[str, list[Segment]] = {}
    for segment in client.segments:
        found.setdefault(segment.header["boot"], []).append(segment)
    return found


def missing_rows(gone: Iterable[Segment], client: Client) -> list[str]:
    """The lines about what is missing since these segments are: rows in between, and beginnings of openings."""
    numbers = {lsn for each in gone for lsn in range(each.header["first_lsn"], each.header["last_lsn"] + 1)}
    rows = client.rows
    end = max((row["lsn"] for row in rows), default=0)
    lines, first = [], 0
    for lsn in range(1, end + 1):
        if lsn in numbers:
            first = first or lsn
        elif first:
            lines.append(f"rows {first} to {lsn - 1} are missing")
            first = 0
    seen: set[str] = set()
    for row in rows:
        if row["boot"] not in seen and row["kind"] != "opened":
            said = f"boot {row['boot']} begins with {row['kind']!r} at row {row['lsn']}, not with 'opened'"
            lines.append(said)
        seen.add(row["boot"])
    return lines
