"""What scenarios are built from: the liar, certificates, campaigns' summaries, pictures."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import Producer, Site
from reliamsg.lab import Mosquitto
from reliamsg.lab.chaos.campaign import Summary
from reliamsg.lab.chaos.certificates import Authority
from reliamsg.lab.chaos.false_confirms import Lie, LyingProxy
from reliamsg.lab.chaos.result import Control, Result
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.timeline import timeline
from tests.patience import wait_for

SCENARIO = Scenario("made-up", "For a test", lambda context: None, (7,), "P1", 100, frozenset(), False)


@pytest.mark.parametrize("lie", ["", "early", "twice", "other", "failing"])
def test_a_liar_before_mosquitto(lie: Lie, shared_mosquitto: Mosquitto, unique: str, tmp_path: Path) -> None:
    """Whatever it says, once it is honest everything is confirmed."""
    with LyingProxy("mqtt", shared_mosquitto.port, random.Random(1)) as liar:
        site = Site("dc1", liar.url(shared_mosquitto.url), backoff_max=0.2, confirm_timeout=2.0)
        with Producer("p", [site], outbox=tmp_path / "p.db", max_batch_messages=1) as producer:
            producer.publish(unique, b"before").wait(timeout=120)
            liar.lie = lie
            for number in range(20):
                producer.publish(unique, b"%d" % number)
            wait_for(lambda: not lie or liar.told > 0, "it lies")
            liar.lie = ""
            liar.reset()
            producer.flush(timeout=120)
            assert producer.pending() == 0


def test_certificates(tmp_path: Path, make_mosquitto: Callable[..., Mosquitto], unique: str) -> None:
    """Good ones are taken; expired ones, and those of another authority, are not."""
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
                ),  # type: ignore[misc]
                "it is tried",
            )
            assert (status.state == "connected") == (name == "good"), status
            producer.close(timeout=0.0)


def result(verdict: str = "complete", stake: int = 1, **changes: int) -> Result:
    made = Result(SCENARIO, 5, verdict=verdict, stakes=[(stake, "messages")])
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_campaigns_summary() -> None:
    summary = Summary(3)
    assert not summary.ok, "without a run it proves nothing"
    summary.add(result(stake=0, messages=10))
    assert not summary.ok, "nothing was at stake in any"
    struck = result(messages=20, drain_seconds=4)
    struck.events = [(0.1, "brokers started"), (0.2, "fault: delay"), (0.3, "fault: delay")]
    summary.add(struck)
    assert summary.ok
    assert summary.as_dict()["faults"] == {"delay": 2}
    assert (summary.runs, summary.idle, summary.messages, summary.slowest_drain_seconds) == (2, 1, 30, 4)
    summary.add(result("lost", lost=2))
    assert not summary.ok
    assert summary.not_ok == [5]
    assert summary.as_dict()["verdict"] == "not ok"
    assert "2 lost" in summary.text()


def test_a_picture_of_a_run_without_anything() -> None:
    assert timeline(Result(SCENARIO, 1)).startswith("<svg")


def test_a_result_says_what_plain_clients_lost() -> None:
    made = result()
    made.controls.append(Control("plain paho", 100, 7))
    assert made.as_dict()["control"] == {"lost": 7}
    assert "100 accepted, 7 lost" in made.text()
