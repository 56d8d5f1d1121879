"""A producer that is opened without a site that it had before."""

from __future__ import annotations

from pathlib import Path

from reliamsg import Producer
from reliamsg.checker.journals import read_chain
from reliamsg.testing import MemoryNetwork


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
