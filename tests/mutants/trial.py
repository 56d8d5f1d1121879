"""Run tests against the product on the path: ``python -m tests.mutants.trial NODE-ID…``.

The last line is JSON: how many tests ran, which of them passed, where the product was imported from, the files of the
project that this process opened, and each failure of a test's own call: its id, the name of the exception, and the
innermost statement in ``tests/`` that it passed through. What fails before or after a test's call (an import, a
fixture) is no failure of it, and is not in the list; but the test has not passed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import reliamsg
from tests import patience
from tests.opened import Opened

TESTS = Path(__file__).parents[1]
WAITING = Path(patience.__file__)
"""What waits in vain here says nothing; what it was called for does."""
TIMEOUT_S = 120


class Witness:
    """A plugin that notes what fails, and where."""

    def __init__(self) -> None:
        self.ran = 0
        self.passed: dict[str, bool] = {}
        """Of each that was called."""
        self.failures: list[dict[str, str]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self.passed[item.nodeid] = False
        if call.when == "call":
            self.ran += 1
            self.passed.setdefault(item.nodeid, report.passed)
            if report.failed and call.excinfo is not None:
                self.failures.append(
                    {
                        "test": item.nodeid,
                        "error": call.excinfo.typename,
                        "statement": _statement(call.excinfo),
                        "text": str(call.excinfo.value)[:500],
                    }
                )
        return report


def _statement(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    for entry in reversed(excinfo.traceback):
        path = Path(entry.path)
        if TESTS in path.parents and path != WAITING:
            return " ".join(str(entry.statement).split())
    return ""


if __name__ == "__main__":
    patience._LEAST_S, patience._FACTOR = 30.0, 1.5  # half of what is usual: many of these wait in vain
    witness = Witness()
    product = Path(reliamsg.__file__).parent
    opened = Opened(TESTS.parent, {product: Path("src/reliamsg")})
    # The product's own plugin, which pytest loads by itself, would be part of what convicts every defect.
    without = [
        word for name in ("cacheprovider", "reliamsg.testing.pytest_plugin") for word in ("-p", f"no:{name}")
    ]
    status = pytest.main(
        ["-q", *without, "--tb=short", f"--timeout={TIMEOUT_S}", *sys.argv[1:]], plugins=[witness]
    )
    print(
        json.dumps(
            {
                "status": int(status),
                "ran": witness.ran,
                "passed": witness.passed,
                "product": str(product),
                "opened": sorted(opened.paths()),
                "failures": witness.failures,
            }
        )
    )
