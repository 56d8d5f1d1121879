"""``--journal`` of pub and sub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reliamsg.lab import Mosquitto
from tests.cli.commands import refused, reliamsg, succeeded
from tests.export.tools import covered, left, whole


def test_pub_and_sub(make_mosquitto: Callable[..., Mosquitto], tmp_path: Path) -> None:
    target, outbox, inbox = tmp_path / "journals", tmp_path / "out.db", tmp_path / "in.db"
    site = ["--site", f"dc1={make_mosquitto(name='dc1').url}"]
    # Connect once, so that the broker has the group's session.
    succeeded(reliamsg("sub", "orders", "--group", "billing", "--inbox", inbox, *site, "--timeout", "1"))
    succeeded(
        reliamsg(
            "pub", "orders", "--producer", "gateway", "--outbox", outbox, *site, "--journal", target,
            stdin=b"one\ntwo\n",
        )
    )  # fmt: skip
    succeeded(
        reliamsg(
            "sub",
            "orders",
            "--group",
            "billing",
            "--inbox",
            inbox,
            *site,
            "--count",
            "2",
            "--journal",
            target,
        )
    )
    assert list(covered(whole(target, outbox), "enqueued").values()) == [[(1, 2)]]
    assert list(covered(whole(target, inbox), "delivered").values()) == [[(1, 2)]]
    assert not left(outbox)
    assert not left(inbox)


def test_a_target_without_its_package(tmp_path: Path) -> None:
    result = reliamsg(
        "pub", "orders", "--producer", "gateway", "--outbox", tmp_path / "out.db", "--site", "dc1=mqtt://localhost:1",
        "--journal", "nope://user:secret@host/x", stdin=b"",
    )  # fmt: skip
    line = refused(result, 64, "nope://host/x", "does not support the protocol")
    assert "secret" not in line
