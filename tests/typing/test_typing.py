"""Type checkers on an application's calls: they find every mistake, and report nothing else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.children import run_child

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RIGHT, MISTAKES = HERE / "right.py", HERE / "mistakes.py"

Found = set[tuple[str, int]]
"""File name and line of every error."""


def output_of(*command: object) -> str:
    done = run_child([sys.executable, "-m", *map(str, command)], cwd=ROOT, text=True, timeout=500)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(tmp_path: Path) -> Found:
    """With the project's own settings, which are strict."""
    output = output_of("mypy", "--no-error-summary", "--cache-dir", tmp_path / "cache", RIGHT, MISTAKES)
    return {
        (Path(file).name, int(line))
        for file, line in re.findall(r"^(.+?):(\d+): error: ", output, re.MULTILINE)
    }


def pyright(tmp_path: Path) -> Found:
    """With its standard settings, and strict ones for the file that says so."""
    project = tmp_path / "pyrightconfig.json"
    settings = {"include": [str(RIGHT), str(MISTAKES)], "typeCheckingMode": "standard"}
    project.write_text(json.dumps(settings))
    output = output_of("basedpyright", "--outputjson", "--project", project, "--pythonpath", sys.executable)
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in json.loads(output)["generalDiagnostics"]
        if each["severity"] in ("error", "warning")
    }


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checkers_find_every_mistake_and_nothing_else(
    checker: Callable[[Path], Found], tmp_path: Path
) -> None:
    lines = MISTAKES.read_text().splitlines()
    marked = {(MISTAKES.name, number) for number, line in enumerate(lines, 1) if "# wrong: " in line}
    assert len(marked) >= 7
    found = checker(tmp_path)
    assert marked - found == set(), "not found"
    assert found - marked == set(), "found where there is no mistake"


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_mistake_among_the_right_uses_would_be_found(
    checker: Callable[[Path], Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "right.py"
    wrong.write_text(
        RIGHT.read_text() + "\n\ndef more(consumer: Consumer) -> None:\n    consumer.run(many)\n"
    )
    monkeypatch.setattr(f"{__name__}.RIGHT", wrong)
    assert ("right.py", len(wrong.read_text().splitlines())) in checker(tmp_path)
