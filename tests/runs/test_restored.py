"""An outbox that was restored from a copy, or of which two processes have copies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from reliamsg.lab import RabbitNode
from reliamsg.lab.chaos.files import copy_database, restore_database
from reliamsg.lab.chaos.wrong_clock import wrong_clock
from reliamsg.store.outbox import EPOCH_STEP
from reliamsg.store.outbox_view import inspect_outbox
from tests.options import Size
from tests.runs.harness import App, Run, SiteSpec, run_in, wait_for

DAY_S = 86_400.0


def publish(run: Run, app: App, last: int, **changes: Any) -> None:
    """Publish more, up to number `last`, wait until it is consumed, and stop the producer."""
    ended = run.directory / f"ended-{app.starts}"
    app.start(last=last, ended=str(ended), **changes)
    wait_for(ended.exists, 120, "publishing ends")
    app.stop(120)


@pytest.mark.parametrize("shift", [0.0, -DAY_S], ids=["true-clock", "a-day-behind"])
def test_restored(shift: float, tmp_path: Path, rabbit: RabbitNode, unique: str, size: Size) -> None:
    """Stop, copy the file, publish more, stop, restore the copy, publish other messages: everything arrives once."""
    more = size(200, 1_000)
    sites: list[SiteSpec] = [("dc1", rabbit.url, {"backoff_max": 1.0})]
    with run_in(tmp_path / "run") as run:
        consumer = run.consumer(unique, sites, [unique], options={"gap_timeout": 5.0}).start()
        producer = run.producer(
            "till", sites, unique, [unique], 0, chunk=20, linger=True, options={"release": "consumed"}
        )
        outbox, copy = Path(producer.config["outbox"]), run.directory / "copy"
        delivered = run.delivered(consumer)
        publish(run, producer, 100)
        wait_for(lambda: delivered() >= 100, 60, "the first hundred come")
        copy_database(outbox, copy)
        if shift:
            wrong_clock(producer)
            # Later than any random step of a clock that is behind: otherwise the copy's next epoch may be the higher
            # one.
            producer.configure(shift=2 * EPOCH_STEP / 1_000)
        publish(run, producer, 100 + more)
        wait_for(
            lambda: delivered() >= 100 + more,
            60,
            "messages published after the copy arrive",
        )
        restore_database(copy, outbox)
        if shift:
            producer.configure(shift=shift)
        publish(run, producer, 100 + 2 * more)
        wait_for(lambda: delivered() >= 100 + 2 * more, 90, "what followed the copy comes")
        consumer.stop()
        assert run.outcome(consumer)["till"] == list(range(1, 100 + 2 * more + 1))
        epochs = sorted({row.epoch for row in run.rows(producer) if row.kind == "enqueued"})
        renumbered = [row for row in run.rows(producer) if row.kind == "renumbered"]
        rows = run.rows(consumer)
        shutil.rmtree(copy)
        report = run.check()
    messages = report.as_dict()["messages"]
    print(
        f"epochs {epochs}; renumbered {len(renumbered)}; {report.verdict}: {messages}; {consumer.errors()[-500:]}"
    )
    for kind in ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom"):
        assert messages[kind] == 0, report.text()
    assert bool(renumbered) == bool(shift)
    assert "two histories" in consumer.errors(), "the fork was not reported"
    forks = [row for row in rows if row.kind == "conflict"]
    assert forks, "the fork was not journalled"


def test_both_clones_alive(tmp_path: Path, rabbit: RabbitNode, unique: str, size: Size) -> None:
    """Two processes publish from copies of one outbox: the lower one is fenced, and every message is accounted for."""
    rate = 100
    sites: list[SiteSpec] = [("dc1", rabbit.url, {"backoff_max": 1.0})]
    with run_in(tmp_path / "run") as run:
        consumer = run.consumer(
            unique, sites, [unique], options={"gap_timeout": 5.0, "on_gap": "skip"}
        ).start()
        one = run.producer(
            "till",
            sites,
            unique,
            [unique],
            0,
            chunk=5,
            rate=rate,
            linger=True,
            options={"release": "consumed"},
        )
        delivered = run.delivered(consumer)
        publish(run, one, 100)
        wait_for(lambda: delivered() >= 100, 60, "the first hundred come")
        twin = run.directory / "twin"
        copy_database(Path(one.config["outbox"]), twin)
        two = run.producer(
            "till", sites, unique, [unique], 1_000_000 + size(1_000, 5_000), chunk=5, rate=rate, linger=True,
            first=1_000_001, options={"release": "consumed"},
            outbox=str(twin / Path(one.config["outbox"]).name), log=str(run.directory / "twin.pub.ndjson"),
            ended=str(tmp_path / "two-ended"),
        )  # fmt: skip
        one.start(last=100_000)
        accepted = run.accepted(one)
        wait_for(lambda: accepted() >= 300, 60, "the first of both is at work")
        two.start()
        wait_for(lambda: not one.running, 60, "the lower of both is fenced")
        assert "ProducerFenced" in one.errors(), one.errors()
        wait_for(Path(two.config["ended"]).exists, 120, "the other continues")
        lasts = (accepted(), run.accepted(two)())
        wait_for(lambda: consumed(two), 120, "all that it holds is consumed")
        two.stop(120)
        # Accepted messages that the fenced one has not sent are in its outbox, and are sent once the other has stopped.
        again = run.directory / "again"
        one.start(last=0, ended=str(again))
        wait_for(again.exists, 60, f"the first opens its outbox again; {one.errors()[-500:]}")
        wait_for(
            lambda: accounted(run, consumer) >= sum(lasts), 90, f"all is accounted for; {one.errors()[-500:]}"
        )
        one.stop(120)
        consumer.stop()
        report = run.check()
    messages = report.as_dict()["messages"]
    print(f"accepted {lasts}; {report.text()}")
    for kind in ("lost", "duplicates", "out_of_order", "phantom"):
        assert messages[kind] == 0, report.text()
    assert messages["delivered"][unique] + messages["declared_gaps"] == messages["enqueued"] == sum(lasts), (
        report.text()
    )


def consumed(app: App) -> bool:
    """Whether an outbox holds nothing that a group has not acknowledged."""
    return all(member.behind == 0 for member in inspect_outbox(app.config["outbox"]).members)


def accounted(run: Run, consumer: App) -> int:
    """How many messages were delivered, or declared as gaps."""
    return sum(
        row.last - row.first + 1 for row in run.rows(consumer) if row.kind in ("delivered", "declared")
    )
