"""Looks on in all tests of consumers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lockorder import lock_order


@pytest.fixture(autouse=True)
def locks() -> Iterator[None]:
    """Whatever a test does, what is guarded is changed under its lock."""
    with lock_order():
        yield
