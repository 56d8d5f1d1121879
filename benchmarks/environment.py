"""The peers' own environment in build/peers, without reliamsg; created on first use and when its list changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "machine", "peer_python"]

ROOT = Path(__file__).resolve().parent.parent
_PLACE = ROOT / "build" / "peers"
_LIST = ROOT / "benchmarks" / "peers.txt"


def peer_python() -> str:
    """The interpreter that peers run in."""
    python = _PLACE / "bin" / "python"
    stamp = _PLACE / "set-up"
    wanted = hashlib.sha256(_LIST.read_bytes() + sys.version.encode()).hexdigest()
    if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
        print("peers' environment in build/peers", file=sys.stderr)
        _make(python)
        stamp.write_text(wanted)
    return str(python)


def _make(python: Path) -> None:
    shutil.rmtree(_PLACE, ignore_errors=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        _run(sys.executable, "-m", "venv", str(_PLACE))
        _run(str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(_LIST))
    else:
        _run(uv, "venv", "-q", "--python", sys.executable, str(_PLACE))
        _run(uv, "pip", "install", "-q", "--python", str(python), "-r", str(_LIST))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


def _versions() -> dict[str, str]:
    """Each peer's version."""
    code = (
        "import importlib.metadata as m, json, sys;"
        "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    )
    names = [line.split(">")[0].strip() for line in _LIST.read_text().splitlines() if line.strip()]
    done = subprocess.run([peer_python(), "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def machine() -> str:
    """This machine and all versions, as a sentence for the documentation."""
    system = platform.system()
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    found = {
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        **{name: _debian(name) for name in ("rabbitmq-server", "mosquitto")},
        **_versions(),
    }
    named = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    return f"Machine: {os.cpu_count()} cores, {system}, {named}."


def _debian(package: str) -> str:
    """The version of an installed package; empty if unknown."""
    with contextlib.suppress(OSError):
        command = ["dpkg-query", "-W", "-f", "${Version}", package]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return ""
