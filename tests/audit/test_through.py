"""Through which time journals are proven: both judges agree, and evidence that is taken away never makes it later."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliamsg.checker import Chain, Expect, check
from reliamsg.store.journal import JournalRow
from tests.audit.equality import by_audit, differences, plain
from tests.audit.generated import Journals, journals
from tests.chance import examples

NOW_US = 1_800_000_000_000_000
"""Later than all journals."""


def unfinished(seed: int) -> list[Chain]:
    """The journals of a run of which the ends of some have not arrived, and of which some clocks ran backwards."""
    rng = random.Random(seed)
    run: Journals = journals(seed, "-x", clean=rng.random() < 0.7)
    if rng.random() < 0.3:
        run.clients = [(role, name, _set_back(rng, rows)) for role, name, rows in run.clients]
    run.clients = [
        (role, name, rows[: rng.randint(1, len(rows))] if rng.random() < 0.5 else rows)
        for role, name, rows in run.clients
    ]
    run.clients = [(role, name, _with_operations(rng, role, name, rows)) for role, name, rows in run.clients]
    if rng.random() < 0.2:
        role, name, rows = run.clients[0]
        run.clients.append((role, name, _begun_anew(rng, rows)))
    return [replace(chain, to_the_end=False) for chain in run.chains()]


def _begun_anew(rng: random.Random, rows: Sequence[JournalRow]) -> list[JournalRow]:
    """Another file of the same producer: in later or earlier epochs, begun before or after."""
    by, epochs = rng.choice((-1, 1)) * 10_000_000, rng.choice((-1, 1)) * 1_000
    return [
        replace(
            row, boot=f"c{row.boot[1:]}", epoch=row.epoch and row.epoch + epochs, incarnation=row.incarnation ^ 0xFF,
            wall_us=row.wall_us + by, wall_last_us=row.wall_last_us + by,
        )
        for row in rows
    ]  # fmt: skip


def _set_back(rng: random.Random, rows: Sequence[JournalRow]) -> list[JournalRow]:
    """Set the client's clock back before some row."""
    at, by = rng.randrange(len(rows)), rng.choice((1, 1_000, 2_000_000))
    later = [replace(row, wall_us=row.wall_us - by, wall_last_us=row.wall_last_us - by) for row in rows[at:]]
    return [*rows[:at], *later]


def _with_operations(
    rng: random.Random, role: str, name: str, rows: Sequence[JournalRow]
) -> list[JournalRow]:
    """Some files were retired, and some clients' clocks set."""
    rows = list(rows)
    plain: dict[str, Any] = {"producer": "", "topic": "", "epoch": 0, "first": 0, "last": 0, "digest": None}
    if rng.random() < 0.2:
        at = rng.randrange(1, len(rows) + 1)
        low, high = sorted(rng.choice(rows).wall_us + rng.choice((0, 500)) for _ in range(2))
        detail = rng.choice(
            ({"from_us": low, "to_us": high}, {"from_us": high, "to_us": low}, {"from_us": low}, None)
        )
        rows.insert(at, replace(rows[at - 1], kind="clock_step", detail=detail, **plain))
    if rng.random() < 0.2:
        rows.append(replace(rows[-1], kind="retired", detail=None, **plain))
    return [replace(row, lsn=lsn) for lsn, row in enumerate(rows, 1)]


def _times(chains: list[Chain]) -> list[int]:
    return sorted(row.wall_us for chain in chains for row in chain.rows)


@settings(max_examples=examples(100, full=3_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), mode=st.sampled_from(["", "drained", "until"]))
def test_both_judges_prove_the_same(seed: int, mode: str) -> None:
    chains = unfinished(seed)
    until_us = random.Random(seed + 1).choice(_times(chains)) if mode == "until" else None
    skew = (None, None, 0.0005, 5.0)[seed % 4]
    theirs = plain(chains, Expect(drained=mode == "drained", until_us=until_us, now_us=NOW_US, max_skew=skew))
    found = differences(
        theirs,
        by_audit(
            chains, drained=mode == "drained", until_us=until_us, now_us=NOW_US, seed=seed, max_skew=skew
        ),
    )
    assert not found, f"unfinished({seed}), until {until_us}"


@settings(max_examples=examples(100, full=3_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_the_time_is_the_greatest_at_which_everything_is_complete(seed: int) -> None:
    """Asked for that time, the verdict is complete; asked for the next microsecond, it is not."""
    chains = unfinished(seed)
    report = check(chains, expect=Expect(now_us=NOW_US))
    us = report.through.us
    if report.verdict != "complete" or us is None or us == NOW_US:
        return
    at = check(chains, expect=Expect(until_us=us, now_us=NOW_US))
    assert (at.verdict, at.messages.enqueued) == ("complete", report.messages.proven), at.text()
    assert at.through.us == us
    after = check(chains, expect=Expect(until_us=us + 1, now_us=NOW_US))
    assert after.verdict == "unknown", after.text()


@settings(max_examples=examples(100, full=3_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_that_have_not_arrived_never_make_it_later(seed: int) -> None:
    """Nor does any loss or violation appear that is none with all rows."""
    run = journals(seed, "-x", clean=True)
    whole = [replace(chain, to_the_end=False) for chain in run.chains()]
    rng = random.Random(seed)
    partly = [replace(chain, rows=chain.rows[: rng.randint(1, len(chain.rows))]) for chain in whole]
    report = check(partly)
    assert report.verdict in ("complete", "unknown"), report.text()
    if report.through.us is not None:
        assert report.through.us <= (check(whole).through.us or 0), report.text()
