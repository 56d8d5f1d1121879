"""The benchmarks can be listed and run, and compute their figures correctly. No time is asserted."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import catalogue
from benchmarks.catalogue import BENCHMARKS, chosen, measure
from benchmarks.latency import line as latency_line
from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.paced import Arrivals, publish_paced
from benchmarks.pairs import alternate, verdict
from benchmarks.plots import draw
from benchmarks.repair import measure_repair
from benchmarks.soak import slope
from benchmarks.tables import markdown, row

ROOT = Path(__file__).parent.parent.parent


def runs(*rates: float, cpu: float = 1.0, rss: float = 50.0) -> list[Run]:
    return [Run(rate, 1_000, cpu, rss) for rate in rates]


def run_benchmarks(*args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "benchmarks", *args]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


# -- verdicts -------------------------------------------------------------------------------------------------


def test_a_verdict_is_the_median_of_the_ratios_pair_by_pair() -> None:
    """Not the ratio of the medians, which is 2 here."""
    found = verdict("x", runs(100, 300, 200), runs(100, 100, 50), 3.0, unit="messages/s")
    assert (found["ratio"], found["spread"], found["pairs"], found["met"]) == (3.0, [1.0, 4.0], 3, True)
    assert (found["ours"], found["peer"]) == (200.0, 100.0)


@pytest.mark.parametrize(
    ("target", "direction", "met"),
    [(2.0, "least", True), (2.01, "least", False), (2.0, "most", True), (1.99, "most", False)],
)
def test_a_target_is_met_or_missed(target: float, direction: Any, met: bool) -> None:
    found = verdict("x", runs(20), runs(10), target, unit="", direction=direction)
    assert found["met"] is met
    assert ("met" in row(found)) is met
    assert ("MISSED" in row(found)) is not met
    assert ("**no**" in markdown([found])) is not met


def test_a_verdict_has_the_costs_of_both() -> None:
    found = verdict("x", runs(2, 2, cpu=3.0, rss=80.0), runs(1, 1), 1.0, unit="")
    assert (found["ours_cpu_s"], found["ours_cpu_us_per_message"], found["ours_rss_mb"]) == (
        3.0,
        3000.0,
        80.0,
    )
    assert (found["peer_cpu_s"], found["peer_rss_mb"]) == (1.0, 50.0)


def test_sides_alternate_after_a_warm_up() -> None:
    turns: list[str] = []

    def side(name: str) -> Any:
        def take(turn: int) -> Run:
            turns.append(f"{name}{turn}")
            return Run(turn, 1, 0, 0)

        return take

    found = alternate(2, {"a": side("a"), "b": side("b")}, lambda text: None)
    assert turns == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [run.rate for run in found["b"]] == [1, 2]


def percentiles(p99: float) -> dict[str, Any]:
    return {"percentiles": {"p50": 1.0, "p95": 2.0, "p99": p99, "p99.9": 9.0}}


def test_latency_is_met_only_if_every_percentile_is() -> None:
    peer = [Run(3.0, 1, 1, 1, percentiles(3.0))]
    near = latency_line([Run(8.0, 1, 1, 1, percentiles(8.0))], peer)
    far = latency_line([Run(8.1, 1, 1, 1, percentiles(8.1))], peer)
    assert near["met"]
    assert not far["met"]
    assert far["percentiles"]["p99.9"]["met"]
    assert (far["above"], far["target"]) == (5.1, 5.0)


def test_a_slope_is_in_megabytes_a_minute() -> None:
    assert slope([(0, 10), (30, 11), (60, 12)]) == pytest.approx(2.0)
    assert slope([(0, 10), (1, 12), (2, 10)]) == 0


# -- the runner -----------------------------------------------------------------------------------------------


def test_help_names_every_benchmark() -> None:
    shown = run_benchmarks("--help")
    assert shown.returncode == 0, shown.stderr
    for each in BENCHMARKS.values():
        assert f"  {each.name} " in shown.stdout


def test_a_name_that_there_is_not() -> None:
    shown = run_benchmarks("nonsense")
    assert shown.returncode == 2
    assert "unknown benchmark 'nonsense'" in shown.stderr


def test_all_leaves_out_long_benchmarks() -> None:
    assert "soak" not in chosen(["all"])
    assert set(chosen(["all", "soak"])) == {*chosen(["all"]), "soak"}


def test_every_place_exists() -> None:
    for each in BENCHMARKS.values():
        module, function = each.place.split(":")
        tree = ast.parse((ROOT / "benchmarks" / f"{module}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_one_that_fails_is_a_line_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import alone

    def broken(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
        raise SystemExit("no broker")
        yield {}

    def fine(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
        yield {"name": "import", "met": True}

    monkeypatch.setattr(alone, "core", broken)
    monkeypatch.setattr(alone, "imported", fine)
    found = list(measure(["core", "import"], Options()))
    assert found == [{"name": "core", "met": False, "error": "no broker"}, {"name": "import", "met": True}]
    assert catalogue.BENCHMARKS["core"].in_all


def test_peers_know_nothing_of_ours() -> None:
    """They import only those benchmark modules that need no reliamsg either."""
    places = [*(ROOT / "benchmarks" / "peers").glob("*.py"), ROOT / "benchmarks" / "paced.py"]
    places.append(ROOT / "benchmarks" / "measured.py")
    for path in places:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] != "reliamsg", path
                if name.startswith("benchmarks"):
                    assert name in ("benchmarks.measured", "benchmarks.paced"), path


def test_the_core_and_the_import_really_run() -> None:
    done = run_benchmarks("core", "import", "--json", "--pairs", "1", "--scale", "0.01")
    assert done.returncode == 0, done.stderr
    core, imported = map(json.loads, done.stdout.splitlines())
    assert core["ours"] > 0
    assert core["bytes_per_stream_after"].keys() == {"100", "10000"}
    assert imported["unwanted_modules"] == []
    assert imported["pairs"] == 1


# -- pieces ---------------------------------------------------------------------------------------------------


def test_paced_messages_tell_when_they_were_due() -> None:
    arrivals = Arrivals()
    total, counted = publish_paced(arrivals.came, 4, 400.0, 0.05, 0.1, 100)
    arrivals.wait(total, 1.0)
    assert (total, counted, len(arrivals.delays_ms)) == (60, 40, 40)
    assert all(delay >= 0 for delay in arrivals.delays_ms)
    arrivals.delays_ms = [float(number) for number in range(1, 1001)]
    assert arrivals.percentiles([50, 99.9]) == {"p50": 500.0, "p99.9": 999.0, "max": 1000.0}


def test_tables_and_pictures_take_every_kind_of_line() -> None:
    lines = [
        verdict("least", runs(1.2, 1.4), runs(1, 1), 3.0, unit=""),
        verdict("most", runs(1.2), runs(1), 1.5, unit="", direction="most"),
        latency_line([Run(8.0, 1, 1, 1, percentiles(8.0))], [Run(3.0, 1, 1, 1, percentiles(3.0))]),
        {"name": "soak", "rate": 1_000, "met": True, "ours": 0.2, "target": 1.0, "ours_rss_mb": 80.0,
         "slopes": {"producer": 0.1, "consumer": 0.2},
         "resident_mb": {who: [[second, 40.0] for second in range(120)] for who in ("producer", "consumer")}},
        {"name": "gap", "met": False, "error": "no broker"},
    ]  # fmt: skip
    for line in lines:
        assert row(line).startswith(line["name"])
    assert len(markdown(lines).splitlines()) == 2 + len(lines) - 1
    found = draw(lines)
    assert found.keys() == {"benchmark-ratios.svg", "benchmark-latency.svg", "benchmark-soak.svg"}
    for picture in found.values():
        assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
        assert len(picture) < 60_000


# -- with brokers ---------------------------------------------------------------------------------------------


@pytest.mark.integrations
@pytest.mark.timeout(300)
def test_messages_that_both_brokers_lost_are_repaired_while_timed() -> None:
    found, _ = measure_repair(2_000, 4_000)
    assert found["lost"] == 2_000
    assert found["repaired_bytes"] > 2_000 * 100
    assert found["ratio"] > 0
