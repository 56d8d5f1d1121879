"""Chance in tests: the same in each ordinary run, another in each run with ``--full``.

An ordinary run judges a change, and must not refuse one for what was wrong before it, or let it pass by luck. The
runs with ``--full`` look for what nobody has seen yet; what reproduces a failure is printed: a seed, or Hypothesis'
blob. ``RELIAMSG_TEST_SEED`` gives a seed to the tests that ask for the ``seed`` or ``seeded`` fixture.
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
    # Limits of time fail on a busy machine, for each example and for making the first ones.
    settings.register_profile(
        "reliamsg",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
        derandomize=not full,
        max_examples=10 * _EXAMPLES if full else _EXAMPLES,
    )
    settings.load_profile("reliamsg")


def examples(count: int) -> int:
    """So many of Hypothesis' examples, and ten times as many with ``--full``, for a test that needs other numbers than
    most: ``@settings(max_examples=examples(30))``."""
    return count * settings().max_examples // _EXAMPLES


@pytest.fixture
def seed(request: pytest.FixtureRequest, full: bool) -> int:
    """Where a test's chance begins, printed: drawn with ``--full``, otherwise made of the test's name."""
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
    """Chance that begins with `seed`."""
    return random.Random(seed)
