"""The parts of the laboratory: false confirms, certificates, records, summaries of campaigns, pictures."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Producer, Site
from reliamsg.lab import LabError, Mosquitto
from reliamsg.lab.chaos.campaign import Summary
from reliamsg.lab.chaos.catalogue import find
from reliamsg.lab.chaos.certificates import Authority
from reliamsg.lab.chaos.false_confirms import FalseConfirm, FalseConfirmBroker
from reliamsg.lab.chaos.record import Record
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.result import Baseline, Judgement, Observations, Result
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.timeline import timeline
from tests.patience import wait_for

SCENARIO = Scenario("made-up", "For a test", "P1", 100, (7,), needs=frozenset())


@pytest.mark.parametrize("kind", ["", "early", "twice", "other", "failing"])
def test_false_confirms_of_mosquitto(
    kind: FalseConfirm, shared_mosquitto: Mosquitto, unique: str, tmp_path: Path
) -> None:
    """Once its confirms are correct again, everything is confirmed."""
    with FalseConfirmBroker("mqtt", shared_mosquitto.port, random.Random(1)) as broker:
        site = Site("dc1", broker.url(shared_mosquitto.url), backoff_max=0.2, confirm_timeout=2.0)
        with Producer("p", [site], outbox=tmp_path / "p.db", max_batch_messages=1) as producer:
            producer.publish(unique, b"before").wait(timeout=120)
            broker.falsify(kind)
            for number in range(20):
                producer.publish(unique, b"%d" % number)
            wait_for(lambda: not kind or broker.false_confirms > 0, "confirms are false")
            broker.falsify("")
            broker.reset()
            producer.flush(timeout=120)
            assert producer.pending() == 0


def test_certificates(tmp_path: Path, make_mosquitto: Callable[..., Mosquitto], unique: str) -> None:
    """Valid ones are accepted; expired ones, and those of another authority, are not."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    context = ssl.create_default_context(cafile=ours.certificate)
    files = {
        "good": ours.issue("good"), "expired": ours.issue("expired", expired=True), "other": theirs.issue("other"),
    }  # fmt: skip
    for name, made in files.items():
        broker = make_mosquitto(name=name, tls=made)
        site = Site("dc1", broker.tls_url, tls=context, backoff_max=0.2)
        with Producer("p", [site], outbox=tmp_path / f"{name}.db") as producer:
            status = wait_for(
                lambda p=producer: (
                    (s := p.status().sites["dc1"]) and (s.error or s.state == "connected") and s
                ),
                "it is tried",
            )
            assert (status.state == "connected") == (name == "good"), status
            producer.close(timeout=0.0)


def result(
    verdict: str = "complete", stake: int = 1, observed: dict[str, Any] | None = None, **judged: int
) -> Result:
    observations = Observations(stakes=((stake, "messages"),), **(observed or {}))
    return Result(SCENARIO, 5, observations, Judgement(verdict, **judged))  # type: ignore[arg-type]


def test_a_campaigns_summary() -> None:
    summary = Summary(3)
    assert not summary.ok, "without any run, it proves nothing"
    summary.add(result(stake=0, messages=10))
    assert not summary.ok, "nothing was at stake in any run"
    events = ((0.1, "brokers started"), (0.2, "fault: delay"), (0.3, "fault: delay"))
    summary.add(result(messages=20, observed={"drain_seconds": 4.0, "events": events}))
    assert summary.ok
    assert summary.as_dict()["faults"] == {"delay": 2}
    assert (summary.runs, summary.idle, summary.messages, summary.slowest_drain_seconds) == (2, 1, 30, 4)
    summary.add(result("lost", lost=2))
    assert not summary.ok
    assert summary.not_ok == [5]
    assert summary.as_dict()["verdict"] == "not ok"
    assert "2 lost" in summary.text()


def test_a_picture_of_an_empty_run() -> None:
    assert timeline(Result(SCENARIO, 1)).startswith("<svg")


def test_a_result_reports_the_losses_of_plain_clients() -> None:
    made = result(observed={"baselines": (Baseline("plain paho", 100, 7),)})
    assert made.as_dict()["control"] == {"lost": 7}
    assert "100 accepted, 7 lost" in made.text()


def test_observations_are_a_snapshot_of_the_record() -> None:
    said: list[str] = []
    record = Record(said.append)
    record.add_event("one")
    record.add_stake(3, "messages")
    before = record.observations()
    record.add_event("two")
    record.add_problem("it fell")
    assert [what for _, what in before.events] == ["one"]
    assert before.problems == ()
    assert record.events() == said == ["one", "two"]
    assert record.observations().stakes == before.stakes == ((3, "messages"),)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(LabError, match="two scenarios called fork"):
        register(replace(SCENARIO, name=find("fork").scenario.name))(lambda context: None)
