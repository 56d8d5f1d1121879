"""A producer that is opened without a site that it had before."""

from __future__ import annotations

from pathlib import Path

from reliamsg import Producer
from reliamsg.checker.journals import read_chain
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Outcome
from tests.patience import wait_for


def test_its_journal_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    with MemoryNetwork("dc1", "dc2") as network:
        network["dc2"].down()
        one = Producer("p", network.sites, outbox=path)
        one.publish("t", b"x")
        one.close(0)
        with Producer("p", network.sites[:1], outbox=path):
            pass
    chain = read_chain(path)
    assert chain.sound, chain.broken
    kinds = [row.kind for row in chain.boots[1].rows]
    assert kinds[:2] == ["opened", "site_forgotten"]


def test_messages_that_were_parked_or_behind_others_were_not_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    with MemoryNetwork("dc1", "dc2") as network:
        network["dc2"].refuse("refused", Outcome.NACKED)
        one = Producer("p", network.sites, outbox=path, groups={"refused": ["g"], "t": ["g"]})
        one.publish("refused", b"1")
        wait_for(lambda: one.status().sites["dc2"].parked, "it is parked")
        one.publish("t", b"confirmed")
        wait_for(lambda: one.pending() == 1, "the others go on")
        one.publish_many("refused", [b"2", b"3"])
        network["dc2"].down()
        one.publish("t", b"never")
        one.close(0)
        with Producer("p", network.sites[:1], outbox=path, groups={"refused": ["g"], "t": ["g"]}):
            pass
    rows = [row for row in read_chain(path).boots[1].rows if row.kind == "site_forgotten"]
    assert [row.detail for row in rows] == [{"unconfirmed": 4}]
