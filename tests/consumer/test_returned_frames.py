"""Whom a group knows to listen, although its frames are returned (S11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.wire.address import group_address, producer_address
from tests.consumer.control_tools import FakeProducer
from tests.consumer.tools import GROUP, Bench


def returned_at_dc1(bench: Bench, address: str, *heard_at: str) -> list[bool]:
    """Three frames are returned at dc1, each after the producer was heard at these sites, in this order."""
    producer = FakeProducer(bench)
    control = bench.engine.control
    site = bench.engine.sites["dc1"]
    found = []
    for _ in range(3):
        for heard in heard_at:
            producer.status((1, 5), site=heard)
            producer.number -= 1  # the same frame again
        producer.number += 1
        found.append(control.returned(site, address))
        bench.now += 2.0
    return [due for due in found if due]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "i.db")


def test_copies_count_where_frames_are_returned(bench: Bench) -> None:
    over_both = returned_at_dc1(bench, producer_address("p"), "dc2", "dc1")
    assert over_both == [True]


def test_to_be_heard_over_another_site_does_not(bench: Bench) -> None:
    assert returned_at_dc1(bench, producer_address("p"), "dc2") == []


def test_to_hear_another_producer_does_not(bench: Bench) -> None:
    assert returned_at_dc1(bench, producer_address("q"), "dc1") == []


def test_that_the_group_listens_at_its_own_address_needs_no_proof(bench: Bench) -> None:
    assert returned_at_dc1(bench, group_address(GROUP)) == [True]


def test_unless_the_site_refuses_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = bench.engine.sites["dc1"].connections.transport
    assert transport is not None
    monkeypatch.setattr(transport, "refused_addresses", lambda: [group_address(GROUP)])
    assert returned_at_dc1(bench, group_address(GROUP)) == []
