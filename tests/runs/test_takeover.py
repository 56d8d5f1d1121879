"""A standby takes over from a consumer that is killed, and from one that is stopped and later continues."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from reliamsg.checker import AppRecord, read_applog
from reliamsg.lab import Mosquitto, RabbitNode
from tests.options import Size
from tests.runs.harness import App, Run, SiteSpec, assert_complete, run_in, wait_for
from tests.runs.paths import IMPATIENT

FULL = pytest.mark.full
TAKEOVER_S = 4.0


@pytest.mark.parametrize(
    "kind", [pytest.param("rabbitmq", marks=FULL), pytest.param("mosquitto", marks=FULL), "both"]
)
@pytest.mark.parametrize(
    # At small size, tests/e2e/test_takeover.py has both.
    "fault",
    [pytest.param(signal.SIGKILL, marks=FULL), signal.SIGSTOP],
    ids=["killed", "stopped"],
)
def test_takeover(
    fault: signal.Signals, kind: str, tmp_path: Path, rabbit: RabbitNode, shared_mosquitto: Mosquitto, unique: str,
    size: Size,
) -> None:  # fmt: skip
    """Each has its own inbox. Two are never active, and nothing is lost."""
    brokers = {"rabbitmq": [rabbit.url], "mosquitto": [shared_mosquitto.url]}
    urls = brokers.get(kind) or [rabbit.url, shared_mosquitto.url]
    sites: list[SiteSpec] = [(f"dc{n}", url, IMPATIENT) for n, url in enumerate(urls, 1)]
    more = size(500, 10_000)
    enough, ended = tmp_path / "enough", tmp_path / "ended"
    with run_in(tmp_path / "run") as run:
        first, second = (
            reader(run, name, sites, unique, standby=name == "second") for name in ("first", "second")
        )
        by_first, by_second = run.delivered(first), run.delivered(second)
        producer = run.producer(
            "till", sites, unique, [unique], 1_000_000_000, rate=300, chunk=10, linger=True,
            enough=str(enough), ended=str(ended), options={"release": "consumed"},
        )  # fmt: skip
        begin(first)
        producer.start()
        wait_for(lambda: by_first() >= 100, 60, "the first is at work")
        begin(second)
        before = by_first()
        wait_for(lambda: by_first() >= before + 500, 60, "the first is still at work")
        assert by_second() == 0, "both were active"
        first.signal(fault)
        wait_for(lambda: by_second() >= 200, 60, "the second takes over")
        stopped_at = by_first()
        if fault == signal.SIGSTOP:
            first.signal(signal.SIGCONT)
        wait_for(lambda: by_second() >= 200 + more, 60 + more / 300, "the second is at work")
        enough.touch()
        wait_for(ended.exists, 60, "publishing ends")
        given = run.accepted(producer)()
        wait_for(lambda: by_first() + by_second() >= given, 90, "as many come")
        wait_for(lambda: missing(run, producer, first, second) == set(), 90, "all comes")
        if fault == signal.SIGKILL:
            first.kill()
            # A journal is sound once its file has been opened again: as a standby now, since the other reads.
            begin(first, options={**first.config["options"], "standby": True})
            first.stop()
            assert by_first() == stopped_at, "both were active"
        else:
            wait_for(lambda: not first.running, 60, "the first ends")
            assert "GroupBusy" in first.errors(), first.errors()
            # Messages that a worker was already handling when it was stopped are finished; nothing more is delivered.
            assert by_first() - stopped_at <= first.config["workers"], "both were active"
        producer.stop(60)
        second.stop()
        never_two(first, second)
        report = run.check()
    print(f"{by_first()} by the first, {by_second()} by the second; {report.text()}")
    # Acknowledgements of the first after its last announcement to the second: these are redelivered, flagged, and
    # acknowledged again.
    assert_complete(report)


def reader(run: Run, name: str, sites: list[SiteSpec], group: str, *, standby: bool) -> App:
    return run.consumer(
        group, sites, [group], batch=1, workers=4,
        inbox=str(run.directory / f"{name}.inbox.db"), log=str(run.directory / f"{name}.sub.ndjson"),
        options={"standby": standby, "takeover_timeout": TAKEOVER_S},
    )  # fmt: skip


def begin(app: App, **changes: Any) -> None:
    """Start a consumer, and wait until it is open."""
    app.start(**changes)
    wait_for(app.ready, 60, f"{app.log.stem} opens its inbox")


def deliveries(app: App) -> list[AppRecord]:
    return [record for record in read_applog(app.log).records if record.op == "delivered"]


def missing(run: Run, producer: App, *readers: App) -> set[tuple[int | None, int | None]]:
    """Accepted messages that neither received."""
    published = read_applog(producer.log).records
    accepted = {(r.epoch, r.seq) for r in published if r.op == "publish" and r.outcome == "ok"}
    return accepted - {(r.epoch, r.seq) for app in readers for r in deliveries(app)}


def never_two(first: App, second: App) -> None:
    """Messages that both received are flagged, and include nothing older than the first's last deliveries."""
    given = {(r.epoch, r.seq) for r in deliveries(first)}
    again = [r for r in deliveries(second) if (r.epoch, r.seq) in given]
    assert all(r.redelivered for r in again), "delivered by both, and not flagged"
