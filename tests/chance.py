"""Randomness in tests: the same in each ordinary run, different in each run with ``--full``.

An ordinary run judges a change: it must not fail because of an older defect, or pass by luck. Runs with ``--full`` look
for unknown defects; whatever reproduces a failure is printed: a seed, or Hypothesis' blob. ``RELIAMSG_TEST_SEED`` sets
the seed of tests that use the ``seed`` or ``seeded`` fixture.
"""

from __future__ import annotations

import os
import random
import zlib

import pytest
from hypothesis import HealthCheck, settings

__all__ = ["examples"]

_EXAMPLES = 100


def pytest_configure(config: pytest.Config) -> None:
    full = bool(config.getoption("--full"))
    # Time limits fail on a busy machine, for each example and for generating the first ones.
    settings.register_profile(
        "reliamsg",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
        derandomize=not full,
        max_examples=10 * _EXAMPLES if full else _EXAMPLES,
    )
    settings.load_profile("reliamsg")


def examples(count: int, full: int | None = None) -> int:
    """This many of Hypothesis' examples, and `full` with ``--full``, or ten times as many, for a test that needs a
    different number than most: ``@settings(max_examples=examples(30))``."""
    factor = settings().max_examples // _EXAMPLES
    return full if full is not None and factor > 1 else count * factor


@pytest.fixture
def seed(request: pytest.FixtureRequest, full: bool) -> int:
    """The seed of a test, printed: drawn with ``--full``, otherwise derived from the test's name."""
    given = os.environ.get("RELIAMSG_TEST_SEED")
    if given is not None:
        found = int(given)
    elif full:
        found = random.SystemRandom().randrange(2**32)
    else:
        found = zlib.crc32(request.node.nodeid.encode())
    print(f"seed {found}: RELIAMSG_TEST_SEED={found} repeats it")
    return found


@pytest.fixture
def seeded(seed: int) -> random.Random:
    """A random generator with `seed`."""
    return random.Random(seed)
