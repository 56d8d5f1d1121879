"""How far clients' clocks are apart: proven bounds only, the same from both judges; and what `max_skew` makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.verdict import table
from reliamsg.checker import Chain, Expect, check_directory
from reliamsg.checker.offsets import measure
from reliamsg.checker.report import Offset
from reliamsg.simulation.journals import chains_of
from reliamsg.simulation.runner import run as simulate
from reliamsg.simulation.scenario import draw
from reliamsg.store.journal import JournalRow
from tests.audit.equality import by_audit, differences, plain, shared
from tests.audit.fleet import SECOND_US, T, Writer, sum_of
from tests.audit.local_spark import local_spark
from tests.audit.small import PLACE, written

NOW_US = T + 1_000 * SECOND_US
MS = 1_000
INBOX = f"{1:016x}"
"""The group's opening, as it is written."""


def timed(
    writer: Writer, kind: str, at: int, first: int = 0, last: int = 0, *, until: int = 0, group: str = "", **more: Any
) -> None:  # fmt: skip
    """Add a row that began `at` and was extended `until`, in ms by the client's clock."""
    writer.add(kind, first, last, **more)
    row = writer.rows[-1]
    writer.rows[-1] = replace(
        row, boot=INBOX if writer.role == "group" else row.boot, wall_us=T + at * MS,
        wall_last_us=T + max(at, until) * MS, group=group or row.group,
    )  # fmt: skip


def run(
    ahead: int = 0, *, journal: Sequence[object] | None = (INBOX, 8), settled: int = 1_100, known: int = 6_325,
    step: int | None = None,
) -> list[Chain]:  # fmt: skip
    """A group whose clock is ahead of its producer's by some ms.

    By the producer's clock, in ms: 1 to 1,000 were enqueued from 1,000 to 4,000, and 1,001 to 1,100 from 5,000 to
    6,000; delivered from 5 later on, and acknowledged another 20 later. What the group has settled by then, according
    to its `journal`, is `known` later still.
    """
    producer, group = Writer("producer", "p"), Writer("group", "g")
    timed(producer, "opened", 0, groups={"t": ["g"]}, sites=["dc1"], confirm="all", incarnation=7, epoch=1)
    timed(producer, "epoch", 0, prev=None, **PLACE)
    timed(group, "opened", ahead, topics=["t"], sites=["dc1"])
    timed(group, "joined", ahead, 1, 1, **PLACE)
    for first, last, at, until in ((1, 1_000, 1_000, 4_000), (1_001, 1_100, 5_000, 6_000)):
        digest = sum_of("it", first, last)
        for kind, more in (
            ("enqueued", {"digest": digest}),
            ("confirmed", {"site": "dc1"}),
            ("published", {}),
        ):
            timed(producer, kind, at, first, last, until=until, **more, **PLACE)
        for kind, after, own in (
            ("received", 5, {"site": "dc1"}), ("delivered", 5, {"digest": digest}), ("acknowledged", 25, {}),
        ):  # fmt: skip
            later = after + ahead
            timed(group, kind, at + later, first, last, until=until + later, **own, **PLACE)
    detail = {} if journal is None else {"journal": list(journal)}
    timed(producer, "consumed", 4_200, 1, settled, until=known, group="g", **detail, **PLACE)
    timed(producer, "closed", 7_000)
    if step is not None:
        timed(group, "clock_step", 6_500, from_us=T + (6_500 + ahead) * MS, to_us=T + (6_500 + step) * MS)
    timed(group, "closed", 7_000 + (ahead if step is None else step))
    return [producer.chain(), group.chain()]


def offset_of(chains: list[Chain], client: str) -> Offset | None:
    (found,) = (
        offset for chain, offset in zip(chains, measure(chains), strict=True) if chain.client == client
    )
    return found


@pytest.mark.parametrize("ahead", [0, 3_600_000, -3_600_000, 250])
def test_bounds_are_exact(ahead: int) -> None:
    """The least from the last acknowledgement that a report covers, the most from the first message of a row."""
    chains = run(ahead)
    assert offset_of(chains, "g") == Offset("producer", "p", (ahead - 300) * MS, (ahead + 5) * MS)
    assert offset_of(chains, "p") == Offset("group", "g", (-ahead - 5) * MS, (-ahead + 300) * MS)
    for seed in range(4):
        assert not differences(plain(chains), by_audit(chains, seed=seed))


@pytest.mark.parametrize(
    ("settled", "lsn", "known", "least"),
    [
        (1_000, 5, 4_500, 4_025 - 4_500),  # to the end of the first row
        (900, 5, 4_500, 1_025 - 4_500),  # within it: it was extended later, as far as the rows show
        (1_000, 6, 5_500, 4_025 - 5_500),  # row 6 shows no time: it is not of a kind that does
        (1_000, 7, 5_500, 5_005 - 5_500),  # the next row had begun
        (1_100, 7, 6_500, 5_005 - 6_500),  # the end of row 8 came later than the report
    ],
)
def test_a_report_vouches_for_what_was_there(settled: int, lsn: int, known: int, least: int) -> None:
    chains = run(settled=settled, journal=(INBOX, lsn), known=known)
    assert offset_of(chains, "g") == Offset("producer", "p", least * MS, 5 * MS)
    for seed in range(4):
        assert not differences(plain(chains), by_audit(chains, seed=seed))


@pytest.mark.parametrize("journal", [None, ("f" * 16, 8), (INBOX, 0)])
def test_a_report_without_a_row_that_is_there_shows_nothing(journal: Sequence[object] | None) -> None:
    chains = run(journal=journal)
    found = offset_of(chains, "g")
    assert found == Offset("producer", "p", None, 5 * MS)
    assert found is not None
    assert found.as_dict() == {"role": "producer", "client": "p", "least_s": None, "most_s": 0.005}
    assert str(found) == "? to +0.005 s against producer p"
    assert not differences(plain(chains), by_audit(chains))


def test_what_was_measured_before_a_clock_was_set_does_not_count() -> None:
    chains = run(3_600_000, step=0)
    assert measure(chains) == [None, None]
    assert not differences(plain(chains), by_audit(chains))


def judged(place: Path, chains: list[Chain], max_skew: float | None, **rules: Any) -> dict[str, Any]:
    """The verdict, once both judges agree."""
    written(place, chains)
    verdict = audit(
        local_spark(1), place, expect=AuditExpect(max_skew=max_skew, now_us=NOW_US + 2**50, **rules)
    )
    report = check_directory(place, Expect(max_skew=max_skew, now_us=NOW_US + 2**50, **rules))
    mine, theirs = shared(verdict), shared(report.as_dict())
    assert {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]} == {}
    clocks = [line for line in table(verdict).splitlines() if line.startswith("  clock of ")]
    assert clocks == [line for line in report.text().splitlines() if line.startswith("  clock of ")]
    return verdict | {"clocks": clocks}


def test_offsets_stand_beside_what_is_proven(tmp_path: Path) -> None:
    found = judged(tmp_path, run(2_000), None, drained=True)
    assert found["verdict"] == "complete"
    assert {each["client"]: each["offset"] for each in found["clients"]} == {
        "g": {"role": "producer", "client": "p", "least_s": 1.7, "most_s": 2.005},
        "p": {"role": "group", "client": "g", "least_s": -2.005, "most_s": -1.7},
    }
    assert found["clocks"] == [
        "  clock of group g: +1.7 s to +2.005 s against producer p",
        "  clock of producer p: -2.005 s to -1.7 s against group g",
    ]


@pytest.mark.parametrize("ahead", [2_000, -2_000])
@pytest.mark.parametrize("rules", [{}, {"drained": True}])
def test_more_skew_than_allowed_makes_the_verdict_unknown(
    tmp_path: Path, ahead: int, rules: dict[str, Any]
) -> None:
    """Of both clients: nothing shows which of the two clocks is wrong."""
    proven = 1.7 if ahead > 0 else 1.995
    allowed = judged(tmp_path, run(ahead), proven, **rules)
    assert allowed["verdict"] == "complete"
    assert allowed["through"]
    found = judged(tmp_path, run(ahead), proven - 0.001, **rules)
    assert (found["verdict"], found["through"]) == ("unknown", None)
    assert {each["kind"] for each in found["findings"]} == {"skewed"}
    lines = found["evidence"]["broken"]
    assert len(lines) == 2
    assert "(group g): a client's clock is further from another one's than is allowed: " in lines[0]
    assert {(each["role"], each["client"]) for each in found["incidents"]} == {
        ("group", "g"),
        ("producer", "p"),
    }


def test_what_is_not_proven_is_allowed(tmp_path: Path) -> None:
    """Bounds that leave more open than is allowed prove nothing."""
    assert judged(tmp_path, run(200), 0.0)["verdict"] == "complete"
    assert judged(tmp_path / "other", run(-6), 0.0)["verdict"] == "unknown"


def test_the_client_that_shows_most_is_named() -> None:
    """Of several, the one whose clock is furthest away; of those that may agree, the one that leaves least open."""
    chains = run(100)
    (publisher, group), shift = run(journal=(INBOX, 18)), 3_000 * MS
    behind = [
        replace(
            row, producer="q" if row.producer else "", wall_us=row.wall_us - shift,
            wall_last_us=row.wall_last_us - shift,
        )
        for row in publisher.rows
    ]  # fmt: skip
    more = [replace(row, producer="q", lsn=row.lsn + 10) for row in chains[1].rows if row.producer]
    both = replace(group, rows=[*chains[1].rows[:-1], *more, replace(group.rows[-1], lsn=19)])
    chains = [chains[0], replace(publisher, client="q", rows=behind), both]
    assert offset_of(chains, "g") == Offset("producer", "q", 2_800 * MS, 3_105 * MS)
    assert offset_of(chains, "p") == Offset("group", "g", -105 * MS, 200 * MS)
    assert not differences(plain(chains), by_audit(chains))
    (near,) = (each for each in measure([chains[0], both]) if each is not None and each.role == "producer")
    assert near.client == "p"


# -- simulated runs -------------------------------------------------------------------------------------------------


def rows_since_set(chain: Chain) -> Iterator[JournalRow]:
    stepped = max((row.lsn for row in chain.rows if row.kind == "clock_step"), default=0)
    return (row for row in chain.rows if row.lsn > stepped)


def truth(group: Chain, producer: Chain) -> tuple[int, int]:
    """What a simulated group's clock was ahead at least and at most: monotonic clocks are the world's there."""
    (least, most), (low, high) = (
        (min(offsets), max(offsets))
        for chain in (group, producer)
        for offsets in [[row.wall_us - row.mono_us for row in rows_since_set(chain)]]
    )
    return least - high, most - low


def test_no_offset_is_claimed_that_was_none(tmp_path: Path) -> None:
    """Under all faults of the simulator, of clients whose clocks are right, days off, or set."""
    pairs = proven = both = 0
    for seed in range(16):
        place = tmp_path / str(seed)
        place.mkdir()
        faults = None if seed % 2 else ("clock_off", "crash")
        simulate(draw(seed, 60, faults=faults), directory=place)
        chains = chains_of(place, "")
        for producer in (chain for chain in chains if chain.role == "producer"):
            for group in (chain for chain in chains if chain.role == "group"):
                offset = measure([producer, group])[1]
                if offset is None:
                    continue
                least, most = truth(group, producer)
                assert offset.least_us is None or offset.least_us <= most, f"seed {seed}"
                assert offset.most_us is None or offset.most_us >= least, f"seed {seed}"
                pairs += 1
                both += None not in (offset.least_us, offset.most_us)
                if offset.proven_us > 60 * SECOND_US:
                    assert abs(least + most) > 60 * SECOND_US
                    proven += 1
        assert not differences(plain(chains), by_audit(chains, seed=seed))
    assert pairs > 10
    assert both > pairs // 2
    assert proven > 0
