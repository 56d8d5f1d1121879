"""Tests whose journals one of Spark's tests audits, and the file that shows that all of them have finished.

They run in several processes, and Spark's test (``tests/audit/test_real_runs.py``) waits for that file in another one.
They run first, so that it need not wait for everything else.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "audited: leaves journals that one of Spark's tests audits; begins first"
    )
    place = os.environ.get("RELIAMSG_RUNS")
    if place:
        config.pluginmanager.register(_Ends(Path(place)))


class _Ends:
    """Every process records the end of each of its own tests; the one that records the last creates the file."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._numbers: dict[str, int] = {}
        """The collected tests of this kind: each process collects the same."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        chosen = [item.nodeid for item in session.items if item.get_closest_marker("audited")]
        self._numbers = {nodeid: number for number, nodeid in enumerate(sorted(chosen))}

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        number = self._numbers.get(nodeid)
        if number is None:
            return
        ended = self._place / "ended"
        ended.mkdir(parents=True, exist_ok=True)
        (ended / str(number)).touch()
        if len(list(ended.iterdir())) == len(self._numbers):
            (self._place / "complete").touch()
