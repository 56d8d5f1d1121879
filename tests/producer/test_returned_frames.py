"""Whom a producer knows to listen, although its frames are returned (S11)."""

from __future__ import annotations

from pathlib import Path

from reliamsg.producer.engine import ProducerEngine
from reliamsg.wire.address import group_address, producer_address
from reliamsg.wire.control import VERSION, State, encode_state
from tests.producer.control_tools import Bench

GROUP = group_address("g")


def hear(engine: ProducerEngine, number: int, *sites: str) -> None:
    """A state of the group arrives over these sites, in this order."""
    address = producer_address("p")
    state = State(VERSION, "g", "inbox", number, 0, address, "p", "active", b"n", [])
    (body,) = encode_state(state, None)
    for site in sites:
        engine.sites[site].control_received(address, body)


def returned_at_dc1(bench: Bench, engine: ProducerEngine, *heard_at: str) -> list[bool]:
    """Three frames are returned at dc1, each after the group was heard at these sites."""
    found = []
    for number in range(1, 4):
        hear(engine, number, *heard_at)
        found.append(engine.sites["dc1"].control_returned(GROUP))
        bench.now += 2.0
    return [due for due in found if due]


def test_copies_count_where_frames_are_returned(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "p.db", "dc1", "dc2")
    engine = bench.open({"t": ["g"]}, hello_timeout=0)
    over_both = returned_at_dc1(bench, engine, "dc2", "dc1")
    assert over_both == [True]


def test_to_be_heard_over_another_site_does_not(tmp_path: Path) -> None:
    """The group may have no connection to the site that returns its frames."""
    bench = Bench(tmp_path / "p.db", "dc1", "dc2")
    engine = bench.open({"t": ["g"]}, hello_timeout=0)
    assert returned_at_dc1(bench, engine, "dc2") == []
