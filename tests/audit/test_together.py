"""Hundreds of journals, judged like the plain checker: findings, counts, sites and latencies."""

from __future__ import annotations

from reliamsg.checker import Chain, Expect
from tests.audit.equality import Outcome, by_audit, differences, plain
from tests.audit.fleet import SECOND_US, T, soup
from tests.audit.together import wild


def test_all_are_judged_as_by_the_plain_checker(judged: Outcome, chains: list[Chain]) -> None:
    theirs = plain(chains)
    assert not differences(theirs, judged)[:20]
    assert theirs.counts["saved_by_second_site", ""] > 0
    assert theirs.sites["dc1"]["lost_after_confirm"] > 0
    assert theirs.latency


def test_the_wild_ones_are_wild_enough() -> None:
    """Every kind about the fate of a message occurs, and a loss at every hop."""
    found = plain(wild()).found
    assert {place[0] for place in found} >= {
        "seq_reused", "seq_skipped", "old_epoch", "wrong_prev", "confirmed_unknown", "published_unconfirmed",
        "two_incarnations", "corrupt", "pending", "undelivered", "unacknowledged", "never_joined", "unproven",
        "phantom", "phantom_gap", "lost", "declared_gap", "removed", "unverified", "fork",
    }  # fmt: skip
    losses = [place[6].split() for place in found if place[6]]
    for hop in ("enqueued", "confirmed", "received", "buffered"):
        assert any(hop in loss for loss in losses), hop


def test_a_running_system_is_judged_up_to_a_time() -> None:
    some = [chain for seed in range(1000, 1100) for chain in soup(seed)]
    until_us = T + 12 * SECOND_US
    theirs = plain(some, Expect(drained=False, until_us=until_us))
    assert not differences(theirs, by_audit(some, drained=False, until_us=until_us))[:20]
