"""Evidence to which journals refer and that no journal has is missing: the verdict is not `complete` without it.

Uses the run of :mod:`tests.checker.test_mutants` with one more row that refers to something; nothing else is wrong with
it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliamsg.checker import Expect, Report, check
from reliamsg.message import Stream
from reliamsg.store.journal import Entry
from tests.checker.histories import History, write
from tests.checker.test_mutants import E1, E2, INC, add_after, entry, given, history

E3 = E2 + 10
ELSEWHERE, OTHERS = Stream("B", "orders"), Stream("A", "other")
STRANGER = 0xBAD
NO_OPENING = f"no journal of the opening {STRANGER:016x} of producer A"
NO_EPOCH = f"no journal of epoch {E3} of producer A"
NO_PRODUCER, NO_GROUP = "no journal of producer B", "no journal of group h"
LACKS_ROWS = f"the journal of the opening {INC[E2]:016x} of producer A lacks rows that it had"
LACKS = f"the journal of epoch {E2} of producer A lacks messages to which others refer"


def sound() -> History:
    h = history()
    h.logs.clear()
    for boot, epoch in zip(h.producers["A"], (E1, E2), strict=True):
        boot[0] = replace(boot[0], epoch=epoch, incarnation=INC[epoch])
    return h


def of_group(
    kind: str, epoch: int, first: int, last: int, incarnation: int | None = None, **more: object
) -> Entry:
    made = given(kind, epoch if epoch in INC else E2, first, last, **more)
    return replace(made, epoch=epoch, incarnation=INC.get(epoch, 0) if incarnation is None else incarnation)


def heard(lsn: int, incarnation: int = INC[E2], epoch: int = E2, producer: str = "A") -> Entry:
    return Entry("heard", Stream(producer, ""), epoch, incarnation, detail={"lsn": lsn, "epoch": epoch})


def emptied(lsn: int, incarnation: int, kind: str = "drained", producer: str = "A") -> Entry:
    return Entry(kind, site="dc1", detail={"count": 1, "heard": {producer: [lsn, f"{incarnation:016x}"]}})


def met(**detail: object) -> Entry:
    return of_group("conflict", E2, 0, 0, detail=detail)


def known(epoch: int, incarnation: int, last: int) -> list[object]:
    return [epoch, f"{incarnation:016x}", last]


TOLD: dict[str, tuple[str, Entry, str]] = {
    # An opening
    "received": ("g", of_group("received", E3, 1, 5, STRANGER, site="dc1"), NO_OPENING),
    "duplicate": ("g", of_group("duplicate", E3, 1, 5, STRANGER, site="dc1"), NO_OPENING),
    "quarantined": ("g", of_group("quarantined", E3, 1, 5, STRANGER, site="dc1", reason="held"), NO_OPENING),
    "let go": ("g", of_group("let_go", E3, 1, 5, STRANGER, site="dc1"), NO_OPENING),
    "late": ("g", of_group("late", E3, 1, 5, STRANGER), NO_OPENING),
    "before joining": ("g", of_group("before_join", E1 - 10, 1, 5, STRANGER), NO_OPENING),
    "declared": ("g", of_group("declared", E3, 1, 5, STRANGER, reason="superseded"), NO_OPENING),
    "asked for": ("g", of_group("asked", E3, 1, 5, STRANGER), NO_OPENING),
    "joined": ("g", replace(of_group("joined", E3, 1, 1, STRANGER), stream=OTHERS), NO_OPENING),
    "status": ("g", heard(2, STRANGER, E3), NO_OPENING),
    "emptied": ("g", emptied(2, STRANGER), NO_OPENING),
    "session": ("g", emptied(2, STRANGER, "connected"), NO_OPENING),
    "met": ("g", replace(met(), incarnation=STRANGER), NO_OPENING),
    "known": ("g", met(known=known(E1 + 1, STRANGER, 3)), NO_OPENING),
    "fenced": ("A", Entry("fenced", epoch=E2, incarnation=INC[E2],
                          detail={"epoch": E3, "incarnation": f"{STRANGER:016x}"}), NO_OPENING),
    # An epoch
    "buffered, of another epoch": ("g", of_group("buffered", E3, 1, 5, 0, site="dc1"), NO_EPOCH),
    "gap, of another epoch": ("g", of_group("gap_opened", E3, 1, 5, 0), NO_EPOCH),
    "declared, of another epoch": ("g", of_group("declared", E3, 1, 0, 0, reason="superseded"), NO_EPOCH),
    "behind, of another epoch": ("g", of_group("behind", E3, 1, 1, 0, detail={"from": [E2, 21]}), NO_EPOCH),
    "entered": ("A", entry("surpassed", E2, 0, 0, group="g", detail={"position": [E2, 1], "entered": E3}), NO_EPOCH),
    "entered, of two histories": ("g", met(known=known(E2, INC[E2], 20), entered=E3), NO_EPOCH),
    # Parts
    "received more": ("g", of_group("received", E2, 21, 25, site="dc1"), LACKS),
    "received of another stream": ("g", replace(of_group("received", E2, 1, 1), stream=OTHERS), LACKS),
    "buffered more": ("g", of_group("buffered", E2, 21, 21, 0, site="dc1"), LACKS),
    "known more": ("g", met(known=known(E2, INC[E2], 21)), LACKS),
    "behind more": ("g", of_group("behind", E2, 22, 22, 0, detail={"from": [E2, 21]}), LACKS),
    "there was more": ("g", of_group("behind", E2, 2, 2, 0, detail={"from": [E2, 1], "existed": [E2, 22]}), LACKS),
    "surpassed": ("A", entry("surpassed", E2, 0, 0, group="g", detail={"position": [E2, 22], "entered": E2}), LACKS),
    "a status told more": ("g", heard(1000), LACKS_ROWS),
    "emptied, and announced more": ("g", emptied(1000, INC[E2]), LACKS_ROWS),
    # Clients
    "received of another producer": ("g", replace(of_group("received", E1, 1, 2, site="dc1"), stream=ELSEWHERE),
                                     NO_PRODUCER),
    "status of another producer": ("g", heard(2, producer="B"), NO_PRODUCER),
    "emptied, of another producer": ("g", emptied(2, STRANGER, producer="B"), NO_PRODUCER),
    "consumed": ("A", entry("consumed", E1, 1, 2, group="h"), NO_GROUP),
    "repaired": ("A", entry("repaired", E1, 1, 2, site="dc1", group="h"), NO_GROUP),
}  # fmt: skip


def judged(client: str, *told: Entry, expect: Expect | None = None) -> Report:
    h = sound()
    boot = h.boots(client)[-1]
    boot[-1:-1] = told
    return check([replace(chain, to_the_end=False) for chain in h.chains()], expect=expect)


@pytest.mark.parametrize("told", TOLD)
def test_what_a_row_tells_of_is_missing(told: str) -> None:
    client, row, line = TOLD[told]
    report = judged(client, row)
    found = {finding.text for finding in report.of_kind("missing")}
    assert found == {line}, report.text()
    beside = {finding.kind for finding in report.findings if finding.severity not in ("remark", "unknown")}
    assert beside <= ({"false_before_join"} if told == "before joining" else set())


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("g", of_group("received", E2, 11, 20, site="dc2")),
        ("g", heard(10)),
        ("g", emptied(10, INC[E2])),
        ("g", met(known=known(E2, INC[E2], 20))),
        ("g", Entry("rejected", OTHERS, E3, STRANGER, 1, 2, "dc1", "g", "forged", detail={"count": 2})),
        ("g", of_group("behind", E2, 21, 21, 0, detail={"from": [E2, 21], "existed": [E2, 21]})),
        ("A", entry("surpassed", E2, 0, 0, group="g", detail={"position": [E2, 21], "entered": E2})),
        ("A", entry("repaired", E1, 1, 2, site="dc1", group="g")),
    ],
)
def test_existing_evidence_is_not_missing(client: str, told: Entry) -> None:
    report = judged(client, told)
    assert report.verdict == "complete", report.text()


def _until(h: History) -> tuple[int, int]:
    """When the producer's journal ends, and when its last opening began."""
    rows = next(chain for chain in h.chains() if chain.role == "producer").rows
    return rows[-1].wall_us, next(row.wall_us for row in rows if row.kind == "opened" and row.epoch == E2)


@pytest.mark.parametrize("goes_on", [False, True])
def test_evidence_after_the_end_of_the_account_is_not_missing(goes_on: bool) -> None:
    """If its journal reaches to that end, an unknown opening is later; anything before its last epoch is not."""
    ends_us, began_us = _until(sound())
    later = of_group("received", E3, 1, 5, STRANGER, site="dc1"), heard(1000)
    expect = Expect(until_us=began_us if goes_on else ends_us + 1)
    report = judged("g", *later, expect=expect)
    found = {finding.text for finding in report.of_kind("missing")}
    assert found == (set() if goes_on else {NO_OPENING, LACKS_ROWS})
    before = of_group("received", E1 + 1, 1, 5, STRANGER, site="dc1"), emptied(1000, INC[E1])
    found = {finding.text for finding in judged("g", *before, expect=expect).of_kind("missing")}
    assert found == {NO_OPENING, LACKS_ROWS.replace(f"{INC[E2]:016x}", f"{INC[E1]:016x}")}


def test_of_a_producer_whose_journal_shows_that_it_lacks_rows_nothing_more_is_said() -> None:
    h = sound()
    add_after("g", "received", E2, 1, of_group("received", E3, 1, 5, STRANGER, site="dc1"))(h)
    chains = h.chains()
    producer = next(chain for chain in chains if chain.role == "producer")
    place = next(i for i, row in enumerate(producer.rows) if row.kind == "confirmed" and row.epoch == E2)
    chains[chains.index(producer)] = replace(
        producer, rows=[*producer.rows[:place], *producer.rows[place + 1 :]]
    )
    report = check(chains, expect=Expect(drained=True))
    assert not report.of_kind("missing")
    assert report.of_kind("broken")


@pytest.mark.parametrize("closed", [False, True])
def test_the_end_of_a_file_that_another_one_replaced(closed: bool) -> None:
    """A disk failed, and the outbox began anew: what had not been exported is gone."""
    h = sound()
    first, second = h.boots("A")
    if closed:
        first.append(Entry("closed"))
    chains = [
        replace(write(("producer", "A"), [first]), to_the_end=False),
        replace(write(("producer", "A"), [second], first_boot=9), to_the_end=False),
    ]
    later = [
        replace(row, wall_us=row.wall_us + 10**6, wall_last_us=row.wall_last_us + 10**6)
        for row in chains[1].rows
    ]
    chains[1] = replace(chains[1], rows=later)
    chains += [replace(chain, to_the_end=False) for chain in h.chains() if chain.role == "group"]
    found = {f.text for f in check(chains, expect=Expect(drained=False)).of_kind("missing")}
    line = (
        "the end of the journal 0000000000000001 of producer A: it was not closed, and another file of this producer"
        " began after it"
    )
    assert (line in found) != closed, found
