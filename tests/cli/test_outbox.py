"""outbox stats, ls and drain."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.children import ended
from tests.cli.commands import (
    Sites,
    create,
    json_of,
    publish,
    refused,
    reliamsg,
    start,
    subscribe,
    succeeded,
)
from tests.patience import wait_for


def stats(sites: Sites) -> dict[str, Any]:
    return json_of(succeeded(reliamsg("outbox", "stats", sites.file("p.db"), "--json")))


def test_pending_messages_are_shown_and_drained_in_order(mqtt: Sites, nowhere: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    lines = b"".join(b"%d\n" % n for n in range(1000))
    away = Sites(
        [*nowhere.arguments, "--site", "dc2=" + nowhere.arguments[1].split("=", 1)[1]], mqtt.directory
    )
    refused(publish(away, unique, lines, "--timeout", "0.5"), 69, "1,000 lines stored", "1,000 messages")
    before = stats(mqtt)
    assert (before["producer"], before["messages"], before["unpublished"]) == ("p", 1000, 1000)
    assert before["sites"] == {"dc1": 1000, "dc2": 1000}
    text = succeeded(reliamsg("outbox", "stats", mqtt.file("p.db"))).decode()
    assert "producer p" in text
    assert "not confirmed by dc1: 1,000 messages" in text
    rows = [
        json.loads(row)
        for row in succeeded(reliamsg("outbox", "ls", mqtt.file("p.db"), "--json")).splitlines()
    ]
    assert (rows[0]["topic"], rows[0]["first"], rows[-1]["last"]) == (unique, 1, 1000)
    assert unique in succeeded(reliamsg("outbox", "ls", mqtt.file("p.db"), "--limit", "1")).decode()
    outcome = succeeded(reliamsg("outbox", "drain", mqtt.file("p.db"), *mqtt.arguments, "--json"))
    assert json_of(outcome) == {"producer": "p", "sent": 1000, "pending": 0}
    assert stats(mqtt)["sites"] == {"dc1": 0, "dc2": 0}
    assert succeeded(subscribe(mqtt, unique, unique, "--count", "1000")) == lines


def test_drain_declares_the_groups_that_the_producer_named(mixed: Sites, nowhere: Sites, unique: str) -> None:
    away = Sites(
        [*nowhere.arguments, "--site", "dc2=" + nowhere.arguments[1].split("=", 1)[1]], mixed.directory
    )
    mqtt = [site for site in mixed.arguments if "=mqtt" in site]
    succeeded(reliamsg("group", "create", unique, "--topic", unique, "--site", *mqtt))
    # The row about the producer's opening has left with the journal.
    journal = ("--journal", str(mixed.directory / "journals"))
    refused(publish(away, unique, b"a\n", "--group", unique, "--timeout", "0.5", *journal), 69)
    assert list((mixed.directory / "journals").rglob("*.ndjson"))
    succeeded(reliamsg("outbox", "drain", mixed.file("p.db"), *mixed.arguments))
    assert succeeded(subscribe(mixed, unique, unique, "--count", "1")) == b"a\n", "RabbitMQ kept it"


def test_drain_with_sites_away(nowhere: Sites) -> None:
    refused(publish(nowhere, "t", b"a\n", "--timeout", "0.5"), 69)
    result = reliamsg("outbox", "drain", nowhere.file("p.db"), *nowhere.arguments, "--timeout", "0.5")
    refused(result, 69, "1 message not yet confirmed", "dc1")


def test_drain_forgets_a_site_only_on_request(mqtt: Sites, unique: str) -> None:
    succeeded(publish(mqtt, unique, b"a\n"))
    one = mqtt.arguments[:2]
    refused(reliamsg("outbox", "drain", mqtt.file("p.db"), *one), 64, "dc2", "--forget-site")
    assert set(stats(mqtt)["sites"]) == {"dc1", "dc2"}
    succeeded(reliamsg("outbox", "drain", mqtt.file("p.db"), *one, "--forget-site", "dc2"))
    assert set(stats(mqtt)["sites"]) == {"dc1"}


def test_looking_while_the_owner_runs(mqtt: Sites, unique: str) -> None:
    owner = start(
        "pub", unique, "--producer", "p", "--outbox", mqtt.file("p.db"), *mqtt.arguments,
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert owner.stdin is not None
        owner.stdin.write(b"a\nb\n")
        owner.stdin.flush()
        wait_for(lambda: Path(mqtt.file("p.db")).exists(), "the outbox is made")
        wait_for(lambda: stats(mqtt)["messages"] == 2, "both lines are in the outbox")
        _, errors = ended(owner)
        assert owner.returncode == 0, errors
    finally:
        owner.kill()


def test_a_consumed_release_waits_for_its_group_and_drain_keeps_to_it(mixed: Sites, unique: str) -> None:
    consumed = ("--release", "consumed", "--group", unique)
    text = refused(
        publish(mixed, unique, b"a\nb\n", *consumed, "--timeout", "0.5"), 1, "not yet acknowledged"
    )
    assert f"{unique} on {unique}: 2 messages behind, never heard" in text
    found = stats(mixed)
    (member,) = found["members"]
    assert (member["group"], member["behind"], found["release"]) == (unique, 2, "consumed")
    text = succeeded(reliamsg("outbox", "stats", mixed.file("p.db"))).decode()
    assert f"group {unique} on {unique}: all before 1 of epoch" in text
    assert "2 messages behind" in text
    refused(
        reliamsg("outbox", "drain", mixed.file("p.db"), *mixed.arguments, "--timeout", "0.5"), 1,
        "2 messages not yet acknowledged",
    )  # fmt: skip
    drain = start("outbox", "drain", mixed.file("p.db"), *mixed.arguments, stdout=subprocess.PIPE)
    assert succeeded(subscribe(mixed, unique, unique, "--count", "2")) == b"a\nb\n"
    # The last acknowledgement is announced when the reader continues, or returns.
    reader = start("sub", unique, *mixed.arguments, "--group", unique, "--inbox", mixed.file(f"{unique}.db"))
    try:
        assert ended(drain)[0] == b"2 messages of p acknowledged; nothing remains\n"
    finally:
        reader.terminate()
        reader.wait(120)
    assert drain.returncode == 0
    assert stats(mixed)["members"][0]["behind"] == 0
