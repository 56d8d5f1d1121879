"""The hash of what decides an outcome changes with everything that does, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.closure import LOOKS, Sources
from tests.evidence.parts import ROOT
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import BySimulator, ByTest
from tests.mutants.sources import entries_of, state_of
from tests.opened import Opened

ENTRY = "tests/evidence/simulate.py"
FILES = {
    "src/reliamsg/__init__.py": 'import importlib\n_HALVES = {"Lazy": "reliamsg.lazy", "Never": "reliamsg.never"}\n'
    "def __getattr__(name):\n    return getattr(importlib.import_module(_HALVES[name]), name)\n",
    "src/reliamsg/lazy.py": "Lazy = 1\n",
    "src/reliamsg/never.py": "Never = 1\n",
    "src/reliamsg/engine.py": "from typing import TYPE_CHECKING\n"
    "import reliamsg.store.file\n"
    "if TYPE_CHECKING:\n    from reliamsg.types_only import T\nelse:\n    import reliamsg.otherwise\n"
    "def f():\n    from . import late\n    return late\n",
    "src/reliamsg/types_only.py": "T = 1\n",
    "src/reliamsg/otherwise.py": "",
    "src/reliamsg/late.py": "from reliamsg import Lazy\n",
    "src/reliamsg/store/__init__.py": "",
    "src/reliamsg/store/file.py": 'NAME = "reliamsg.named"\n',
    "src/reliamsg/store/sql/0001.sql": "CREATE",
    "src/reliamsg/named.py": "",
    "src/reliamsg/audit/__init__.py": "",
    "src/reliamsg/audit/job.py": "",
    "src/reliamsg/audit/page.html": "",
    "src/reliamsg/cli.py": "import reliamsg.engine\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "import tests.fixtures\n",
    "tests/fixtures.py": "",
    "tests/evidence/__init__.py": "",
    ENTRY: '"""Docs."""\nimport reliamsg.engine as engine  # a comment\n\n\n'
    'class C:\n    """Docs."""\n    x: int = 1\n    """Docs."""\n\n'
    '    def f(self):\n        """Docs."""\n        return 1\n',
    "tests/evidence/test_it.py": "from tests.evidence import simulate\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def digest(root: Path) -> str:
    return Sources(root).digest([ENTRY])


def test_follows_every_import(root: Path) -> None:
    assert Sources(root).closure([ENTRY]) == {
        ENTRY, "tests/evidence/__init__.py", "tests/__init__.py", "src/reliamsg/__init__.py", "src/reliamsg/engine.py",
        "src/reliamsg/otherwise.py", "src/reliamsg/late.py", "src/reliamsg/lazy.py", "src/reliamsg/store/__init__.py",
        "src/reliamsg/store/file.py", "src/reliamsg/store/sql/0001.sql", "src/reliamsg/named.py",
    }  # fmt: skip


def test_a_test_also_runs_what_all_tests_share(root: Path) -> None:
    sources = Sources(root)
    added = sources.closure(["tests/evidence/test_it.py"]) - sources.closure([ENTRY])
    assert added == {"tests/evidence/test_it.py", "tests/conftest.py", "tests/fixtures.py"}


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("tests/evidence/test_it")])
def test_the_hash_changes_with_the_closure_alone(root: Path, name: str) -> None:
    before, reached = digest(root), name in Sources(root).closure([ENTRY])
    file = root / name
    file.write_text(f"{file.read_text()}\nX = 2\n")
    assert (digest(root) != before) is reached


@pytest.mark.parametrize(
    ("path", "changes"),
    [("src/reliamsg/store/sql/0002.sql", True), ("src/reliamsg/audit/more.html", False),
     ("src/reliamsg/store/__pycache__/x.pyc", False), ("src/reliamsg/store/unused.py", False),
     ("tests/evidence/conftest.py", False), ("src/reliamsg/late/__init__.py", True)],
)  # fmt: skip
def test_files_that_are_added(root: Path, path: str, changes: bool) -> None:
    """A package takes the place of a module of the same name."""
    before = digest(root)
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("")
    assert (digest(root) != before) is changes


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("# a comment", "# another comment", False),
        ('"""Docs."""\nimport', '"""Other docs."""\nimport', False),
        ('"""Docs."""\n\n    def', '"""Other docs."""\n\n    def', False),
        ('        """Docs."""\n', "", False),
        ("return 1", "return  (1)", False),
        ("\n\n\nclass", "\n\n\n\n\nclass", False),
        ("return 1", "return 2", True),
        ("return 1", "return '1'", True),
        ("return 1", "return 1.0", True),
        ("x: int = 1", "x: int = 2", True),
        ("x: int = 1", "x: str = 1", True),
        ("def f", "def g", True),
        ("import reliamsg.engine as engine", "import reliamsg.engine", True),
    ],
)
def test_what_a_program_cannot_see_does_not_count(root: Path, old: str, new: str, changes: bool) -> None:
    before = digest(root)
    text_before = Sources(root).digest([ENTRY], text=True)
    in_it_before = Sources(root).digest([ENTRY], texts=("tests/evidence",))
    elsewhere = Sources(root).digest([ENTRY], texts=("src",))
    assert FILES[ENTRY].count(old) == 1
    (root / ENTRY).write_text(FILES[ENTRY].replace(old, new))
    assert (digest(root) != before) is changes
    assert Sources(root).digest([ENTRY], text=True) != text_before
    assert Sources(root).digest([ENTRY], texts=("tests/evidence",)) != in_it_before
    assert (Sources(root).digest([ENTRY], texts=("src",)) != elsewhere) is changes


@pytest.mark.parametrize(
    "line",
    ["print(f.__doc__)", "import ast", "from ast import parse", "    import click", "inspect.getsource(f)",
     "inspect.getsourcelines(f)", "inspect.getdoc(f)", "frame.f_lineno", "code.co_firstlineno", "import linecache",
     "inspect.stack()"],
)  # fmt: skip
def test_where_a_module_looks_at_texts_all_texts_count(root: Path, line: str) -> None:
    assert LOOKS.search(line)
    (root / "src/reliamsg/late.py").write_text(f"from reliamsg import Lazy\n{line.strip()}\n")
    before = digest(root)
    (root / ENTRY).write_text(FILES[ENTRY].replace("# a comment", "# another comment"))
    assert digest(root) != before


def test_an_entry_that_is_not_there(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tests/gone\.py"):
        Sources(root).digest([ENTRY, "tests/gone.py"])


SCRIPT = """
import sys
from pathlib import Path
from tests.opened import Opened
opened = Opened(Path(sys.argv[1]), {Path(sys.argv[1], "copy"): Path("src/reliamsg")})
open(sys.argv[1] + "/src/reliamsg/store/sql/0001.sql").close()
Path(sys.argv[1], "copy", "late.py").read_text()
Path(sys.argv[1], "elsewhere").write_text("")
sys.path.insert(0, sys.argv[1] + "/src")
import reliamsg.engine
print(sorted(path for path in opened.paths() if path.startswith("src/")))
"""


def test_notes_what_a_process_opens(root: Path) -> None:
    (root / "copy").mkdir()
    (root / "copy" / "late.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    names = (
        "__init__.py",
        "engine.py",
        "late.py",
        "otherwise.py",
        "store/__init__.py",
        "store/file.py",
        "store/sql/0001.sql",
    )
    assert done.stdout.strip() == str([f"src/reliamsg/{name}" for name in names])


# -- the project ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project() -> Sources:
    return Sources(ROOT)


@pytest.mark.integrations
def test_the_simulator_needs_neither_commands_nor_audit_nor_laboratory(project: Sources) -> None:
    for entry in (ENTRY, "tests/mutants/search.py"):
        closure = project.closure([entry])
        assert {"src/reliamsg/simulation/oracle.py", "src/reliamsg/checker/run.py"} < closure
        assert {path.split("/")[2] for path in closure if path.endswith(".sql")} == {"store"}
        assert not [
            path
            for path in closure
            if path.startswith(("src/reliamsg/cli/", "src/reliamsg/audit/", "src/reliamsg/lab/"))
        ]
        assert not [path for path in closure if LOOKS.search((ROOT / path).read_text())], "texts do not count"


def test_the_campaign_has_the_applications_that_it_starts(project: Sources) -> None:
    closure = project.closure(["tests/evidence/campaign.py"])
    assert {"src/reliamsg/lab/chaos/black_box_app.py", "src/reliamsg/transport/amqp/sender.py"} < closure
    assert not [path for path in closure if path.startswith(("src/reliamsg/cli/", "src/reliamsg/audit/"))]


@pytest.mark.integrations
def test_a_defect_follows_from_its_file_and_its_test(project: Sources) -> None:
    simulated = next(mutant for mutant in MUTANTS if isinstance(mutant.expected, BySimulator))
    tested = next(mutant for mutant in MUTANTS if isinstance(mutant.expected, ByTest))
    started = next(
        mutant
        for mutant in MUTANTS
        if isinstance(mutant.expected, ByTest)
        and mutant.expected.test.startswith("badinput/test_commands.py")
    )
    assert entries_of(simulated, project, ROOT) == ["tests/mutants/search.py"]
    assert isinstance(tested.expected, ByTest)
    assert f"tests/{tested.expected.test.partition('::')[0]}" in entries_of(tested, project, ROOT)
    assert "src/reliamsg/cli/app.py" in entries_of(started, project, ROOT), "the test runs commands"
    states = {mutant.name: state_of(mutant, project, ROOT) for mutant in MUTANTS}
    assert len(set(states.values())) == len(states)


@pytest.mark.parametrize("change", [lambda m: m.seed, lambda m: None], ids=["a hint", "none"])
def test_a_hint_decides_nothing(project: Sources, change: Callable[[BySimulator], int | None]) -> None:
    from dataclasses import replace

    mutant = next(mutant for mutant in MUTANTS if isinstance(mutant.expected, BySimulator))
    assert isinstance(mutant.expected, BySimulator)
    other = replace(mutant, expected=BySimulator(*mutant.expected.kinds, seed=change(mutant.expected)))
    assert state_of(other, project, ROOT) == state_of(mutant, project, ROOT)


def test_opened_is_heard_in_this_process() -> None:
    opened = Opened(ROOT)
    assert {"tests/opened.py", "tests/evidence/test_closure.py"} <= opened.paths()
