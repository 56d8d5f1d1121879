"""Evidence that is collected in pieces: what ended stays, what did not counts for nothing, what failed stays red."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliamsg.lab.chaos.campaign import Summary
from tests.closure import Sources
from tests.evidence import parts as real
from tests.evidence.parts import PARTS, ROOT, Chunk, Data, Part
from tests.evidence.run import main
from tests.evidence.state import State
from tests.evidence.table import BEGIN, END, PAGE, NotComplete, table, written
from tests.patience import wait_for


def replays(data: Data, output: str) -> list[str]:
    return ["repeat it"]


def part(root: Path, name: str, scripts: Sequence[str], **more: Any) -> Part:
    """A part of shell scripts. Each leaves a line in the file `ran`; what it prints is read as JSON."""
    chunks = [
        Chunk(
            f"{name}-{number}",
            ("sh", "-c", f"echo {name}-{number} >> ran; {script}"),
            replays,
            real.trees("src"),
        )
        for number, script in enumerate(scripts)
    ]
    return Part(
        name,
        f"the {name}",
        tuple(chunks),
        real._last_json,
        lambda found: f"{len(found)} counted",
        1,
        **more,
    )


OK = """echo '{"ok": true}'"""
BAD = """echo '{"ok": false}'; exit 1"""


@pytest.fixture(autouse=True)
def no_other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests may keep results of their own."""
    monkeypatch.delenv("EVIDENCE", raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "product.py").write_text("1")
    page = tmp_path / PAGE
    page.parent.mkdir(parents=True)
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    return tmp_path


def ran(root: Path) -> list[str]:
    file = root / "ran"
    return sorted(file.read_text().split()) if file.exists() else []


def test_what_ended_is_not_run_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = [
        part(root, "a", [OK] * 3),
        part(root, "b", [OK], alone=True),
        part(root, "c", [OK] * 2),
    ]
    assert main(["--minutes", "0"], every, root) == 2
    assert ran(root) == []
    assert main(["--only", "a"], every, root) == 0
    assert main(["--status"], every, root) == 2
    assert re.search(r"^a +\S+ +3 of 3 +0 +0 min$", capsys.readouterr().out, re.M)
    assert main([], every, root) == 0
    assert "GREEN" in capsys.readouterr().out
    assert main([], every, root) == 0
    assert ran(root) == ["a-0", "a-1", "a-2", "b-0", "c-0", "c-1"]


@pytest.mark.parametrize(
    "bad", [BAD, "exit 1", "true", "echo '{'", """echo '{"ok": true}'; exit 3""", "kill -SEGV $$"]
)
def test_what_failed_stays_red(root: Path, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what ended well and does not say so, and the other way round."""
    every = [part(root, "a", [OK, bad, OK])]
    for _ in range(2):
        assert main([], every, root) == 1
        said = capsys.readouterr().out
        assert "FAILED a-1" in said
        assert "again: repeat it" in said
        assert "RED" in said
    assert ran(root) == ["a-0", "a-1", "a-2"]


def test_other_sources_are_another_state(root: Path) -> None:
    every = [part(root, "a", [OK, BAD])]
    assert main([], every, root) == 1
    (root / "src" / "product.py").write_text("2")
    assert main(["--status"], every, root) == 2
    assert main([], every, root) == 1
    assert ran(root) == ["a-0", "a-0", "a-1", "a-1"]
    (root / "src" / "product.py").write_text("1")
    (root / "src" / "__pycache__").mkdir()
    (root / "src" / "__pycache__" / "x.pyc").write_text("compiled")
    assert main([], every, root) == 1
    assert len(ran(root)) == 4, "the first state is known"


@pytest.mark.parametrize(
    "change", ["echo 2 > src/product.py", "touch src/new.py", "mv src/product.py src/other.py"]
)
def test_sources_that_change_meanwhile(root: Path, change: str) -> None:
    every = [part(root, "a", [f"{change}; {OK}"])]
    before = State(every[0], root)
    assert main([], every, root) == 2
    assert not before.records()
    assert not State(every[0], root).records()


@pytest.mark.parametrize("number", ["KILL", "TERM", "INT", "HUP"])
def test_a_command_that_somebody_ended_does_not_count(root: Path, number: str) -> None:
    every = [part(root, "a", [OK, f"test -e again || {{ touch again; kill -{number} $$; sleep 9; }}; {OK}"])]
    assert main([], every, root) == 2
    assert list(State(every[0], root).records()) == ["a-0"]
    assert main([], every, root) == 0
    assert ran(root) == ["a-0", "a-1", "a-1"]


SITTING = """
import sys
from pathlib import Path
from tests.evidence.run import main
from tests.evidence.test_evidence import OK, part
import signal
signal.signal(signal.SIGTERM, signal.default_int_handler)
root = Path(sys.argv[1])
sys.exit(main(["--jobs", "1"], [part(root, "a", [OK, "echo $$ > pid; read x < fifo; " + OK, OK])], root))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ended_in_the_middle(root: Path, number: signal.Signals) -> None:
    """What had ended is kept; what had not is run again as a whole, and never beside what is left of the first try."""
    os.mkfifo(root / "fifo")
    sitting = subprocess.Popen([sys.executable, "-c", SITTING, str(root)], cwd=ROOT)
    pid = root / "pid"
    wait_for(lambda: pid.exists() and pid.read_text().endswith("\n"), "the second chunk is begun")
    child = int(pid.read_text())
    sitting.send_signal(number)
    assert sitting.wait(60) == (-9 if number == signal.SIGKILL else 2)

    every = [part(root, "a", [OK, OK, OK])]
    assert list(State(every[0], root).records()) == ["a-0"]
    if number == signal.SIGKILL:
        assert main([], every, root) == 2, "the command goes on, and has the lock"
        assert ran(root) == ["a-0", "a-1"]
        with (root / "fifo").open("w") as fifo:
            fifo.write("x\n")
    wait_for(lambda: not alive(child), "the command has ended")
    assert list(State(every[0], root).records()) == ["a-0"], "nobody was there to see it end"
    assert main([], every, root) == 0
    assert ran(root) == ["a-0", "a-1", "a-1", "a-2"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_machine_that_lacks_something_has_tried_nothing(root: Path) -> None:
    every = [part(root, "a", ["exit 2"] * 3, unavailable=2)]
    assert main(["--jobs", "1"], every, root) == 2
    assert ran(root) == ["a-0"]
    assert not State(every[0], root).records()


def test_what_all_chunks_together_never_met(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = [part(root, "a", [OK, OK], lacking=lambda found: ["the flood"] if len(found) == 2 else [])]
    assert main([], every, root) == 1
    assert "LACKING the flood" in capsys.readouterr().out
    with pytest.raises(NotComplete, match="never met the flood"):
        table([State(every[0], root)])


class TestTable:
    def test_only_of_a_state_that_is_complete_and_in_a_commit(self, root: Path) -> None:
        every = [part(root, "a", [OK, OK]), part(root, "b", [OK])]
        page = root / PAGE
        before = page.read_text()
        for step in ([], ["--only", "a"]):
            if step:
                main(step, every, root)
            assert main(["--write"], every, root) == 2
            assert page.read_text() == before
        main([], every, root)
        assert main(["--write"], every, root) == 0
        states = [State(each, root) for each in every]
        assert page.read_text() == f"before\n{BEGIN}\n\n{table(states)}\n\n{END}\nafter\n"
        assert f"| the a | all | 2 counted | `{states[0].hash}` | `unknown` |" in page.read_text()

    def test_otherwise_every_row_says_so(self, root: Path) -> None:
        every = [part(root, "a", [OK, BAD]), part(root, "b", [OK])]
        main(["--only", "a"], every, root)
        assert main(["--write", "--incomplete"], every, root) == 1
        page = (root / PAGE).read_text()
        assert "**failed: a-1**" in page
        assert "**incomplete: 0 of 1 chunks** | none yet" in page

    def test_the_page_has_a_place_for_it(self) -> None:
        assert "here it is" in written((ROOT / PAGE).read_text(), "here it is")
        with pytest.raises(NotComplete):
            written("no place", "rows")


class TestTogether:
    """Chunks that one process runs."""

    @pytest.fixture
    def joined(self, root: Path) -> Part:
        """Each chunk prints a line; those whose name is in the file `bad` say that they failed."""
        (root / "bad").write_text("")

        def join(chunks: Sequence[Chunk]) -> tuple[str, ...]:
            names = " ".join(chunk.name for chunk in chunks)
            each = (
                """echo $name >> ran; if grep -qx $name bad; then ok=false; status=1; else ok=true; fi;"""
                """ echo "$name={\\"ok\\": $ok}\""""
            )
            return (
                "sh",
                "-c",
                f"echo together >> ran; status=0; for name in {names}; do {each}; done; exit $status",
            )

        def split(output: str) -> dict[str, str]:
            return dict(line.split("=") for line in output.splitlines())

        return part(root, "a", [OK] * 5, together=4, join=join, split=split)

    def test_each_has_a_result_of_its_own(self, root: Path, joined: Part) -> None:
        (root / "bad").write_text("a-2\n")
        assert main(["--jobs", "1"], [joined], root) == 1
        records = State(joined, root).records()
        assert {name: record.ok for name, record in records.items()} == {
            "a-0": True, "a-1": True, "a-2": False, "a-3": True, "a-4": True
        }  # fmt: skip
        assert records["a-2"].replay == ["repeat it"]
        assert "false" in records["a-2"].output
        assert ran(root) == ["a-0", "a-1", "a-2", "a-3", "a-4", "together"], "the last one was run alone"

    def test_only_what_changed_is_run_again(self, root: Path, joined: Part) -> None:
        assert main(["--jobs", "1"], [joined], root) == 0
        state = State(joined, root)
        for number in (1, 3):
            (state._file(f"a-{number}")).unlink()
        assert main(["--jobs", "1"], [joined], root) == 0
        assert ran(root).count("together") == 2
        assert {name: ran(root).count(name) for name in ("a-0", "a-1", "a-3")} == {
            "a-0": 1,
            "a-1": 2,
            "a-3": 2,
        }

    @pytest.mark.parametrize("script", ["exit 1", "echo 'a-0={\"ok\": true}'; exit 1", "true"])
    def test_what_has_no_result_has_failed(self, root: Path, joined: Part, script: str) -> None:
        """Also where all say that they are ok, and the status does not."""
        silent = replace(joined, join=lambda chunks: ("sh", "-c", script), chunks=joined.chunks[:2])
        assert main(["--jobs", "1"], [silent], root) == 1
        assert not State(silent, root).records()["a-1"].ok

    def test_a_status_that_contradicts_all_results(self, root: Path, joined: Part) -> None:
        assert joined.join is not None
        *start, script = joined.join(joined.chunks[:2])
        false = replace(joined, join=lambda chunks: (*start, f"{script}; exit 1".replace("exit $status; ", "")),
                        chunks=joined.chunks[:2])  # fmt: skip
        assert main(["--jobs", "1"], [false], root) == 1
        assert not any(record.ok for record in State(false, root).records().values())


class TestTwoPlaces:
    """Records that survive a checkout, and come from several machines."""

    def test_records_are_kept_elsewhere(
        self, root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = tmp_path_factory.mktemp("kept")
        every = [part(root, "a", [OK, BAD])]
        monkeypatch.setenv("EVIDENCE", str(kept))
        assert main([], every, root) == 1
        shutil.rmtree(root / "build")
        assert main([], every, root) == 1
        assert ran(root) == ["a-0", "a-1"]
        records = State(every[0], root, kept).records()
        assert records["a-1"].output.strip() == '{"ok": false}', "the log is on another machine"
        assert not State(every[0], root).records()
        assert all(file.stat().st_size < 2_000 for file in kept.rglob("*.json"))

    def test_two_machines_do_a_part_each(self, root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        every = [part(root, "a", [OK] * 5)]
        places = [tmp_path_factory.mktemp("kept") for _ in range(2)]
        for number, place in enumerate(places, 1):
            assert main(["--share", f"{number}/2", "--records", str(place)], every, root) == 2
        assert ran(root) == [f"a-{number}" for number in range(5)]
        assert sorted(State(every[0], root, places[0]).records()) == ["a-0", "a-2", "a-4"]
        shutil.copytree(places[1], places[0], dirs_exist_ok=True)
        assert main(["--records", str(places[0])], every, root) == 0
        assert len(ran(root)) == 5

    @pytest.mark.parametrize("share", ["0/2", "3/2", "1", "a/b"])
    def test_shares_are_checked(self, root: Path, share: str) -> None:
        with pytest.raises(SystemExit):
            main(["--share", share], [part(root, "a", [OK])], root)


def test_only_chunks_whose_sources_changed_are_run_again(root: Path) -> None:
    (root / "src" / "other.py").write_text("1")
    both = part(root, "a", [OK] * 2)
    first, second = both.chunks
    every = [replace(both, chunks=(replace(first, covers=real.trees("src/product.py")), second))]
    assert main([], every, root) == 0
    (root / "src" / "other.py").write_text("2")
    assert main([], every, root) == 0
    assert ran(root) == ["a-0", "a-1", "a-1"]


# -- the real parts -------------------------------------------------------------------------------------------


def test_the_real_parts() -> None:
    every = {each.name: each for each in real.parts()}
    assert list(every) == list(PARTS)
    for each in every.values():
        names = [chunk.name for chunk in each.chunks]
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[\w.-]+", name) for name in names)
    assert len(every["seeds"].chunks) * real.SEEDS_AT_ONCE == real.SEEDS == 40_000
    assert len(every["campaign"].chunks) * real.RUNS_AT_ONCE == real.RUNS == 300


def test_make_knows_the_chunks_of_all_tests() -> None:
    (tests,) = real.parts(["tests"])
    names = " ".join(chunk.name for chunk in tests.chunks)
    made = re.search(r"^test-full:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert made is not None
    assert made[1].strip().endswith(names), "`make test-full` makes just these"


def test_seeds_are_others_for_other_sources(root: Path) -> None:
    for driver in ("simulate", "campaign"):
        (root / "tests" / "evidence").mkdir(parents=True, exist_ok=True)
        (root / "tests" / "evidence" / f"{driver}.py").write_text("import reliamsg.product")
    (root / "src" / "reliamsg").mkdir()
    product = root / "src" / "reliamsg" / "product.py"
    product.write_text("1")

    def first(name: str) -> str:
        return PARTS[name](root, Sources(root)).chunks[0].name

    before = [first("seeds"), first("campaign")]
    assert [first("seeds"), first("campaign")] == before
    (root / "src" / "reliamsg" / "other.py").write_text("what no driver imports")
    assert [first("seeds"), first("campaign")] == before
    product.write_text("2  # changed")
    assert not set(before) & {first("seeds"), first("campaign")}


def test_reads_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "SEEDS_AT_ONCE", 2)
    monkeypatch.setattr(real, "SEEDS", 2)
    (seeds,) = real.parts(["seeds"])
    done = subprocess.run(seeds.chunks[0].command, capture_output=True, text=True, check=False, cwd=ROOT)
    found = seeds.read(done.stdout)
    assert found is not None
    assert found["seeds"] == 2
    assert seeds.summary([found, found]).startswith("4 runs, ")
    lacking = seeds.lacking([found])
    assert any(name.startswith("the fault ") for name in lacking), "two runs can't meet everything"
    assert not set(lacking) & {f"the fault {name}" for name, times in found["faults"].items() if times}
    assert found["ok"]
    assert not found["outside"], "the hash covers all that was opened"
    opened = real._last_json(done.stdout) or {}
    assert {"src/reliamsg/simulation/world.py", "src/reliamsg/store/sql/inbox/0001.sql"} < set(
        opened["opened"]
    )
    again = "reliamsg lab simulate --seed 7 --messages 200 --faults dup --trace"
    failed = {**opened, "failing_seeds": [7], "replay": [again]}
    assert seeds.read(json.dumps(failed)) == {**found, "failing_seeds": [7], "replay": [again], "ok": False}
    assert seeds.chunks[0].replay(failed, "") == [again]
    assert not (seeds.read(json.dumps({**opened, "opened": ["src/reliamsg/x.py"]})) or {})["ok"]
    assert not (seeds.read(json.dumps({**opened, "seeds": 1})) or {})["ok"]


def test_reads_the_campaign() -> None:
    (campaign,) = real.parts(["campaign"])
    summary = Summary(5, runs=10, messages=7)
    assert (campaign.read(json.dumps(summary.as_dict())) or {})["ok"]
    summary.not_ok.append(12)
    found = campaign.read(json.dumps(summary.as_dict()))
    assert found is not None
    assert not found["ok"]
    assert campaign.chunks[0].replay(found, "") == [
        "reliamsg lab chaos campaign --black-box --runs 1 --seed 12"
    ]
    assert "1 runs not ok" in campaign.summary([found])
    assert not (campaign.read(json.dumps(Summary(5, runs=9).as_dict())) or {})["ok"]


@pytest.mark.parametrize(
    ("read", "output", "expected"),
    [
        (real._read_tests, "== 5 passed in 3.2s ==\n= 1 failed, 7 passed, 2 warnings in 61.00s (0:01:01) =\n",
         {"passed": 12, "failed": 1, "ok": False}),
        (real._read_tests, "12 passed in 3.20s\n3 passed in 4.10s\n", {"passed": 15, "failed": 0, "ok": True}),
        (real._read_tests, "= 2 passed, 1 error in 3.20s =\n", {"passed": 2, "failed": 1, "ok": False}),
        (real._read_tests, "make: *** [Makefile:40: test] Error 1\n", None),
        (real._read_tests, "no tests ran in 0.01s\n", None),
        (real._read_fuzz, "target  inputs covered corpus  result\nbatch    123  45   6  ok\n",
         {"inputs": 123, "ok": True}),
        (real._read_fuzz, "batch    123  45   6  DEFECT: see x\n", {"inputs": 123, "ok": False}),
        (real._read_fuzz, "batch    -  -   6  DEFECT: see x\n", None),
        (real._read_fuzz, "batch    0  -   6  ok\n", {"inputs": 0, "ok": False}),
        (real._read_model, "case expected found states s\na case  holds  holds  12   1.0\n",
         {"cases": 1, "surprises": 0, "ok": True}),
        (real._read_model, "a case  holds  order  12   1.0  <- not as expected\n",
         {"cases": 1, "surprises": 1, "ok": False}),
        (real._read_model, "case expected found states s\n", None),
        (real._read_mutant, '{"survivors": [], "mutants": [{"name": "a"}]}', {"mutant": {"name": "a"}, "ok": True}),
        (real._read_mutant, '{"survivors": ["a"], "mutants": [{"name": "a"}]}', {"mutant": {"name": "a"}, "ok": False}),
        (real._read_mutant, '{"survivors": [], "mutants": []}', None),
        (real._split_mutants, "nothing", {}),
        (real._split_mutants, '{"survivors": ["a"], "mutants": [{"name": "a"}, {"name": "b"}]}',
         {"a": '{"survivors": ["a"], "mutants": [{"name": "a"}]}',
          "b": '{"survivors": [], "mutants": [{"name": "b"}]}'}),
    ],
)  # fmt: skip
def test_reads(read: Callable[[str], Data | None], output: str, expected: Data | None) -> None:
    assert read(output) == expected


def test_tests_that_failed_are_named() -> None:
    output = "FAILED tests/a/test_b.py::test_c[x y] - assert 1\nERROR tests/d.py\n"
    assert real._failed_tests({}, output) == [
        f".venv/bin/python -m pytest --full '{name}'"
        for name in ("tests/a/test_b.py::test_c[x y]", "tests/d.py")
    ]
