"""Every decoder that meets the network or a file: what it may say to anything at all. More is done by ``make fuzz``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.all import TARGETS
from tests.fuzz.target import Target

FOUND = Path(__file__).parent / "found"
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
"""Inputs that once were defects, by target."""
FILES = ("outbox-file", "inbox-file")


@st.composite
def damaged(draw: st.DrawFn, target: Target) -> bytes:
    """A real input with a few changes."""
    found = bytearray(draw(st.sampled_from(target.seeds())))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(found)))
        some = draw(
            st.binary(max_size=8) | st.sampled_from([b"\xff" * 4, b"\x00" * 4, b"\x7f" + b"\xff" * 7])
        )
        taken = draw(st.sampled_from([0, len(some), 1, 20]))
        found[place : place + taken] = some
    return bytes(found)


@every_target
def test_real_inputs_are_taken(target: Target) -> None:
    for seed in target.seeds():
        target(seed)


@every_target
def test_anything_at_all(target: Target) -> None:
    @given(st.binary(max_size=400))
    def anything(data: bytes) -> None:
        target(data)

    anything()


@every_target
def test_damaged_inputs(target: Target) -> None:
    @given(damaged(target))
    def some(data: bytes) -> None:
        target(data)

    some()
