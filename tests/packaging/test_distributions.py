"""Wheel and source distribution: what they contain, what a package index shows, and that they install and work."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import reliamsg
from tests.children import run_child
from tests.docs.blocks import ROOT, blocks
from tests.once import made_once

pytestmark = pytest.mark.integrations

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = reliamsg.__version__


def succeeded(*command: str | Path, cwd: Path = ROOT) -> str:
    """The output of a command, which must succeed. It does not see this environment's packages."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))
    }
    done = run_child(command, text=True, timeout=500, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source distribution, and the wheel that was built from it."""

    def make(place: Path) -> None:
        succeeded(sys.executable, "-m", "build", "--outdir", place, ROOT)

    return made_once(tmp_path_factory, "distributions", make)


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"reliamsg-{VERSION}-py3-none-any.whl"


@pytest.fixture(scope="module")
def sources(built: Path) -> set[str]:
    """The names of the files in the source distribution."""
    with tarfile.open(built / f"reliamsg-{VERSION}.tar.gz") as archive:
        assert all(member.isfile() for member in archive)
        return {member.name.removeprefix(f"reliamsg-{VERSION}/") for member in archive}


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"reliamsg-{VERSION}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def shown(metadata: Message) -> str:
    """The README as a package index gets it."""
    text = metadata.get_payload(decode=True)
    assert isinstance(text, bytes)
    return text.decode()


def listed_by_git(*options: str) -> set[str]:
    return set(
        subprocess.check_output(["git", "ls-files", "-z", *options], cwd=ROOT, text=True).split("\0")
    ) - {""}


def test_both_can_be_built_and_uploaded(built: Path, wheel: Path) -> None:
    files = sorted(built.iterdir())
    assert [path.name for path in files] == [wheel.name, f"reliamsg-{VERSION}.tar.gz"]
    succeeded(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_the_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    package = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == package | {f"reliamsg-{VERSION}.dist-info/{name}" for name in about}
    suffixes = {Path(name).suffix for name in package}
    assert suffixes == {".css", ".html", ".js", ".json", ".py", ".sql", ".typed", ".yml"}


def test_the_source_distribution_is_complete(sources: set[str]) -> None:
    assert listed_by_git() - sources == set()
    assert sources - listed_by_git("--cached", "--others", "--exclude-standard") == {"PKG-INFO"}


def test_what_an_index_shows_has_no_link_that_leads_nowhere(shown: str, metadata: Message) -> None:
    assert "Reliable messaging for Python" in shown
    assert re.findall(r"\]\([^)]*\)|https?://[^\s`]+|<img", shown) == []
    assert metadata.get_all("Project-URL") is None
    assert metadata.get_all("Home-page") is None


def test_what_an_index_shows_names_files_of_the_source_distribution(shown: str, sources: set[str]) -> None:
    named = re.findall(r"\(`([\w./-]+\.\w+)`\)", shown)
    assert len(named) >= 8
    assert [name for name in named if name not in sources] == []


def test_what_an_index_shows_installs_the_package_by_name(shown: str) -> None:
    installed = re.findall(r"pip install ([^`]+)`", shown)
    assert set(installed) == {"reliamsg", "'reliamsg[demo]'", "'reliamsg[audit]'"}


def test_the_classifiers_agree_with_the_required_version() -> None:
    minors = [
        int(found[1])
        for each in PROJECT["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", each))
    ]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert sys.version_info.minor in minors


def interpreters() -> dict[str, str]:
    """Every supported Python that is installed here, one of each minor version: on the PATH, or by pyenv."""
    by_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {f"3.{sys.version_info.minor}": sys.executable}
    for each in PROJECT["classifiers"]:
        version = each.removeprefix("Programming Language :: Python :: ")
        if re.fullmatch(r"3\.\d+", version):
            for path in [shutil.which(f"python{version}"), *by_pyenv.glob(f"{version}.*/bin/python")]:
                if version not in found and path is not None and runs(path, version):
                    found[version] = str(path)
    return found


def runs(path: str | Path, version: str) -> bool:
    """Whether this is such a Python, and can create environments."""
    code = f"import ensurepip, sys; assert '{version}' == '%d.%d' % sys.version_info[:2]"
    return subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_wheel_installs_and_works(wheel: Path, tmp_path: Path) -> None:
    """The command answers, and the first example of the README runs, in an environment with nothing else."""
    (tmp_path / "first.py").write_text(blocks((ROOT / "README.md").read_text())[0].text)
    for version, python in interpreters().items():
        fresh = tmp_path / version
        succeeded(python, "-m", "venv", fresh / "venv")
        programs = fresh / "venv" / "bin"
        succeeded(programs / "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=fresh)
        assert succeeded(programs / "reliamsg", "--version", cwd=fresh).split() == ["reliamsg", VERSION], (
            version
        )
        example = succeeded(programs / "python", "-W", "error", tmp_path / "first.py", cwd=fresh)
        assert example == "42 widgets\n", version
        where = succeeded(programs / "python", "-c", "import reliamsg; print(reliamsg.__file__)", cwd=fresh)
        assert Path(where.strip()).is_relative_to(fresh), version
