"""Clients that are killed at each step of an export, and at any instant."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import pytest

from reliamsg.store.journal import JournalRow
from tests.children import ended
from tests.export.tools import meta, segments, whole

pytestmark = pytest.mark.integrations
"""Each of them kills a process at every step."""

T = TypeVar("T")
STEPS = {"journal_cut": "frozen, nothing written", "journal_written": "written, not noted",
         "journal_recorded": "noted, the rows deleted"}  # fmt: skip


class Client:
    """Starts and stops the client, always on the same files."""

    def __init__(self, directory: Path, role: str) -> None:
        self.directory, self.role = directory, role
        self.target = directory / "journals"
        self.path = directory / ("out.db" if role == "producer" else "in.db")

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        config = {
            "role": self.role,
            "target": str(self.target),
            "outbox": str(self.directory / "out.db"),
            "inbox": str(self.directory / "in.db"),
            "stop": str(self.directory / "stop"),
            **options,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.export.client", json.dumps(config)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        if "probe" not in options:  # it may kill itself before it runs
            assert process.stdout.readline() == b"at work\n"
        return process

    def finish(self) -> list[JournalRow]:
        """Once more, closed cleanly; returns all rows of the client."""
        process = self.start()
        time.sleep(0.2)
        (self.directory / "stop").touch()
        _, errors = ended(process)
        assert process.returncode == 0, errors.decode()
        return whole(self.target, self.path)

    def check(self, boots: int) -> None:
        """In its files and at its target: every boot, every row, once; ranges without a hole."""
        rows = self.finish()
        assert len({row.boot for row in rows}) == boots
        assert [row.kind for row in rows].count("opened") == boots
        assert rows[-1].kind == "closed"
        if self.role == "producer":
            ends: dict[tuple[str, int], int] = {}
            for row in rows:
                if row.kind == "enqueued":
                    key = (row.topic, row.epoch)
                    assert row.first == ends.get(key, 0) + 1
                    ends[key] = row.last
            assert ends


def killed(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has killed itself."""
    _, errors = ended(process)
    assert process.returncode == -signal.SIGKILL, errors.decode()


@pytest.mark.parametrize("role", ["producer", "group"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step(step: str, role: str, tmp_path: Path) -> None:
    client = Client(tmp_path, role)
    for nth in (1, 2, 7):  # each time at another point of its life
        killed(client.start(probe=[step, nth, str(tmp_path / f"{step}.{nth}")]))
        assert (tmp_path / f"{step}.{nth}").exists()
        assert ("journal_cut_lsn" in meta(client.path)) == (step != "journal_recorded")
        if not client.target.exists():
            continue
        whole(client.target, client.path)
        if step == "journal_written":
            # It exists, and the file still holds its rows: a second version would make two.
            parent = meta(client.path).get("journal_parent")
            assert [found for found in segments(client.target) if found.header.parent == parent]
    client.check(boots=4)
    firsts = [segment.header.first_lsn for segment in segments(client.target)]
    assert len(firsts) == len(set(firsts)), "a segment was made a second time, and differently"


@pytest.mark.parametrize("role", ["producer", "group"])
def test_another_size_after_a_crash(role: str, tmp_path: Path) -> None:
    """A cut segment stays exactly as it was cut."""
    client = Client(tmp_path, role)
    killed(client.start(probe=["journal_written", 3, str(tmp_path / "mark")]))
    process = client.start(segment_rows=3)
    time.sleep(0.2)
    process.kill()
    ended(process)
    client.check(boots=3)
    firsts = [segment.header.first_lsn for segment in segments(client.target)]
    assert len(firsts) == len(set(firsts))


@pytest.mark.parametrize("role", ["producer", "group"])
def test_killed_at_random_instants(role: str, tmp_path: Path, size: Any, seeded: random.Random) -> None:
    kills = size(4, 40)
    client = Client(tmp_path, role)
    for _ in range(kills):
        process = client.start(segment_rows=seeded.choice([1, 3, 20, 1000]))
        time.sleep(seeded.uniform(0.0, 0.3))  # the instant is random
        process.kill()
        ended(process)
    client.check(boots=kills + 1)
    firsts = [segment.header.first_lsn for segment in segments(client.target)]
    assert len(firsts) == len(set(firsts))
    assert not [file for file in client.target.rglob("*.ndjson") if not file.stat().st_size]
