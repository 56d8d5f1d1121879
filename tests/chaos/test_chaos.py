"""The chaos laboratory: the output of its commands, and a few quick scenarios. ``make chaos`` runs all of them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from reliamsg.cli import main
from reliamsg.cli.status import Status
from reliamsg.lab import LabError, Mosquitto, RabbitNode
from reliamsg.lab.chaos.catalogue import scenarios
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.options import TRIES, RunOptions
from reliamsg.lab.chaos.record import Record
from reliamsg.lab.chaos.registry import Entry
from reliamsg.lab.chaos.requirements import missing
from reliamsg.lab.chaos.result import Baseline, Judgement, Observations, Result
from reliamsg.lab.chaos.runner import run_scenario
from reliamsg.lab.chaos.scenario import Scenario

FORM = [
    "scenario",
    "seed",
    "ok",
    "verdict",
    "messages",
    "lost",
    "duplicates",
    "out_of_order",
    "control",
    "seconds",
]


def command(*arguments: str) -> int:
    return main(["lab", "chaos", *arguments])


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_the_list_is_in_the_order_of_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("list", "--json") == Status.OK
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    numbers = [number for one in found for number in one["numbers"]]
    assert numbers == sorted(numbers)
    assert {one["scenario"] for one in found} == {one.scenario.name for one in scenarios()}
    assert sum(one["earlier"] for one in found) == 9


def test_the_list_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert command("list") == Status.OK
    text = capsys.readouterr().out
    assert "producer-killed-before-send" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "two-accounts" in text.rpartition("Earlier runs")[2]


def test_a_scenario_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", "no-such-thing") == Status.USAGE
    assert "no-such-thing" in capsys.readouterr().err


def test_a_missing_prerequisite_is_reported_and_is_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacks = ["mosquitto is not installed; on Debian: apt-get install mosquitto"]
    monkeypatch.setattr(
        "reliamsg.lab.chaos.runner.missing", lambda needs: lacks if "mosquitto" in needs else []
    )
    assert command("run", "fork", "--json", "--dir", str(tmp_path)) == Status.UNKNOWN
    found = last_line(capsys)
    assert (found["ok"], found["verdict"], found["missing"]) == (False, "missing", lacks)
    assert command("run", "fork", "--dir", str(tmp_path)) == Status.UNKNOWN
    assert lacks[0] in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_missing_prerequisites(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(frozenset()) == []
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert missing(frozenset({"network", "root"})) == ["root"]

    def none(name: str, package: str, *places: str) -> str:
        raise LabError(f"{name} is not installed")

    monkeypatch.setattr("reliamsg.lab.chaos.requirements.program", none)
    assert missing(frozenset({"haproxy"})) == ["haproxy is not installed"]


def test_a_run_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    arguments = ["--seed", str(seed), "--messages", "200", "--dir", str(tmp_path), "--json"]
    assert command("run", "fork", *arguments) == Status.OK
    found = last_line(capsys)
    assert list(found)[: len(FORM)] == FORM
    assert (found["scenario"], found["seed"], found["ok"], found["verdict"]) == (
        "fork",
        seed,
        True,
        "complete",
    )
    assert (found["messages"], found["lost"], found["duplicates"], found["out_of_order"]) == (200, 0, 0, 0)
    place = tmp_path / f"fork-{seed}"
    assert sorted(path.name for path in place.iterdir()) == ["report.txt", "result.json", "timeline.svg"]
    assert json.loads((place / "result.json").read_text()) == found
    assert ElementTree.parse(place / "timeline.svg").getroot().tag.endswith("svg")


def test_a_users_sites(
    tmp_path: Path, shared_mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--messages",
        "500",
        "--dir",
        str(tmp_path),
        "--json",
        "--site",
        f"dc1={shared_mosquitto.url}",
    ]
    assert command("run", "two-processes", *arguments) == Status.OK
    assert last_line(capsys)["messages"] >= 500


@pytest.mark.integrations
def test_a_users_two_rabbitmqs(
    tmp_path: Path, rabbit: RabbitNode, unique: str, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Rogue clients and fault proxies work there too; a scenario that requires MQTT is not run."""
    arguments = ["--messages", "300", "--dir", str(tmp_path), "--json", "--seed", str(seed)]
    for name in (f"{unique}-1", f"{unique}-2"):
        rabbit.ctl("add_vhost", name)
        rabbit.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        arguments += ["--site", f"{name}={rabbit.url.replace('%2F', name)}"]
    assert command("run", "old-capture", "reset-mid-frame", "stale-replayed", *arguments) == Status.UNKNOWN
    lines = capsys.readouterr().out.splitlines()
    *each, total = (json.loads(line) for line in lines if line.startswith("{"))
    assert [one["ok"] for one in each] == [True, True, False], each
    assert each[-1]["missing"] == ["a site that speaks mqtt://"]
    assert (total["scenario"], total["verdict"], total["missing"]) == ("all", "missing", ["stale-replayed"])
    assert not list(tmp_path.glob("stale-replayed-*"))


def facts(**changes: Any) -> Scenario:
    return Scenario("made-up", "For a test", "P1", 100, **{"needs": frozenset(), **changes})


def made_up(run: Any, **changes: Any) -> Entry:
    return Entry(facts(**changes), run)


def attempt(tmp_path: Path, run: Any, **changes: Any) -> Result:
    return run_scenario(made_up(run, **changes), RunOptions(tmp_path / "place", 1))


def all_is_well(record: Record, directory: Path) -> Judgement:
    """Replaces the checker, since these runs leave no journals."""
    return Judgement("complete")


def test_a_run_in_which_nothing_was_at_stake_proves_nothing(tmp_path: Path) -> None:
    result = attempt(tmp_path, lambda context: None)
    assert not result.ok
    assert "proves nothing" in result.text()


def test_an_inconclusive_run_is_repeated_and_then_fails(tmp_path: Path) -> None:
    """A fault that hit nothing, and one that did not harm plain clients although that is its point."""
    for name, harm, stake in (("stake", None, 0), ("control", "lost", 1), ("twice", "duplicates", 1)):
        places: list[str] = []

        def run(context: Context, stake: int = stake, places: list[str] = places) -> None:
            assert not (context.directory / "left").exists(), "each starts with an empty directory"
            (context.directory / "left").touch()
            places.append(context.topic)
            context.stake(stake, "messages")
            context.baseline(Baseline("plain", accepted=10, lost=0, out_of_order=3))

        result = run_scenario(made_up(run, harm=harm), RunOptions(tmp_path / name, 1), judge=all_is_well)
        assert not result.ok
        assert "proves nothing" in result.text()
        assert len(set(places)) == len(places) == result.tries == TRIES, (
            "every run has its own random choices"
        )
        assert result.seed == TRIES, "the seed is that of the run that counts"


def test_missing_plain_clients_are_not_harm(tmp_path: Path) -> None:
    entry = made_up(lambda context: context.stake(1, "message"), harm="lost")
    result = run_scenario(entry, RunOptions(tmp_path / "place", 1), judge=all_is_well)
    assert not result.ok
    assert "plain clients lost nothing" in result.text()


def test_the_first_run_that_proves_something_counts(tmp_path: Path) -> None:
    lost = iter((0, 2, 0))

    def run(context: Context) -> None:
        context.stake(1, "message")
        context.baseline(Baseline("plain", accepted=10, lost=next(lost)))

    result = run_scenario(made_up(run, harm="lost"), RunOptions(tmp_path / "place", 1), judge=all_is_well)
    assert result.ok
    assert (result.tries, result.seed, result.inconclusive) == (2, 2, "")


def test_a_failed_run_is_not_repeated(tmp_path: Path) -> None:
    def run(context: Context) -> None:
        context.expect(False, "the moon is green")

    result = run_scenario(made_up(run), RunOptions(tmp_path / "place", 1), judge=all_is_well)
    assert (result.tries, result.ok) == (1, False)


@pytest.mark.parametrize("verdict", ["violated", "lost", "complete"])
def test_an_expected_unknown_excuses_nothing_else(verdict: str) -> None:
    observed = Observations(expected=("unknown",), stakes=((1, "message"),))
    result = Result(facts(), 1, observed, Judgement(verdict))
    assert not result.ok


def test_only_the_unknown_findings_that_a_scenario_names_are_accepted(tmp_path: Path) -> None:
    """This run leaves no files: the checker reports missing evidence that the scenario does not expect."""

    def run(context: Context) -> None:
        context.stake(1, "message")
        context.record.expect_unknown("no journal of producer jumper0")

    result = attempt(tmp_path, run)
    assert result.verdict == "unknown"
    assert any(problem.startswith("unknown: ") for problem in result.problems)
    assert not result.ok


def test_no_scenario_accepts_a_violation_unless_a_disk_loses_data() -> None:
    """What a scenario accepts is in its source: ``violated`` only after the outbox's own disk lost data."""
    for found in scenarios():
        name, source = found.scenario.name, inspect.getsource(found.run)
        assert "violated" not in source, name
        assert ("come_back(" in source) == (name in ("lying-fsync", "truncated-wal")), name


def test_an_expectation_that_does_not_hold(tmp_path: Path) -> None:
    def run(context: Context) -> None:
        context.stake(1, "messages")
        context.record.expect_verdict("complete", "unknown")
        context.expect(False, "the moon is green")

    result = attempt(tmp_path, run)
    assert not result.ok
    assert "the moon is green" in result.text()


def test_an_error_in_a_run_is_a_problem_and_not_an_exception(tmp_path: Path) -> None:
    def run(context: Context) -> None:
        context.event("about to <fail> & fall")
        raise LabError("it fell")

    result = attempt(tmp_path, run)
    assert not result.ok
    assert "it fell" in result.text()
    picture = (tmp_path / "place" / "timeline.svg").read_text()
    assert "about to &lt;fail&gt; &amp; fall" in picture


def test_a_scenario_that_would_damage_a_users_brokers_is_refused(tmp_path: Path) -> None:
    entry = made_up(lambda context: None, own_brokers=True)
    sites = (("dc1", "mqtt://127.0.0.1:1"),)
    result = run_scenario(entry, RunOptions(tmp_path / "place", 1, sites=sites))
    assert result.missing
    assert not result.ok


@pytest.mark.integrations
def test_a_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    arguments = ["--runs", "2", "--jobs", "2", "--seed", str(seed), "--dir", str(tmp_path), "--json"]
    assert command("campaign", *arguments) in (Status.OK, Status.INCOMPLETE)
    *each, found = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    assert [one["seed"] for one in each] == [seed, seed + 1]
    assert sum(one["messages"] for one in each) == found["messages"], (
        "lines of several sessions can be added up"
    )
    assert {name for one in each for name in one["faults"]} == set(found["faults"])
    assert list(found)[: len(FORM)] == FORM == list(each[0])[: len(FORM)]
    assert not [one["problems"] for one in each if not one["ok"]]
    assert found["not_ok"] == [], "runs with nothing at stake are neither proof nor failure"
    assert (found["runs"], found["lost"], found["duplicates"], found["out_of_order"]) == (2, 0, 0, 0)
    assert sum(found["faults"].values()) >= 4
    assert not list(tmp_path.glob("campaign-*")), "only the files of failed runs are kept"


@pytest.mark.parametrize(
    "arguments", [("--seeds", "3:5", "--runs", "2"), ("--seeds", "3:5", "--seed", "3"), ("--seeds", "5:3"),
                  ("--seeds", f"5:{2**32 + 1}"), ("--seed", str(2**32 - 1), "--runs", "2")],
)  # fmt: skip
def test_conflicting_and_invalid_seeds(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("campaign", *arguments) == Status.USAGE
    assert "seeds" in capsys.readouterr().err


def test_a_campaign_of_some_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In several sessions: each runs its own seeds, and prints a line per run."""
    done: list[int] = []

    def one(directory: Path, seed: int, *rest: Any) -> Result:
        done.append(seed)
        problems = ("something went wrong",) if seed == 8 else ()
        return Result(
            facts(), seed, Observations(stakes=((1, "message"),)), Judgement("complete", problems=problems)
        )

    monkeypatch.setattr("reliamsg.lab.chaos.campaign._one", one)
    monkeypatch.setattr(
        "reliamsg.lab.chaos.campaign.missing", lambda needs: ["it"] if "rabbitmq" in needs else []
    )
    assert command("campaign", "--seeds", "7:9", "--json", "--dir", str(tmp_path)) == Status.INCOMPLETE
    first, second, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert done == [7, 8]
    assert [(one["seed"], one["ok"], one["idle"]) for one in (first, second)] == [
        (7, True, False),
        (8, False, False),
    ]
    assert second["problems"] == ["something went wrong"]
    assert (total["runs"], total["not_ok"]) == (2, [8])
