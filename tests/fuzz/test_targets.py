"""Every decoder of data from the network or a file, with arbitrary input. ``make fuzz`` does more."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chance import examples
from tests.fuzz.all import TARGETS
from tests.fuzz.amplify import AMPLIFIED
from tests.fuzz.target import Target

FOUND = Path(__file__).parent / "found"
"""Inputs that once revealed defects, in a directory for each target."""
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
NEVER_TAKEN = ("batch-envelope", "any-file")
"""Targets without any completely valid input."""
GROWN = tuple(target.name for target in AMPLIFIED)
"""Targets that grow their input, and assert their own limits."""
LENGTHS = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
)
"""Claimed lengths, alone and as an array and a byte string of msgpack."""

LIMIT = 2_000_000
"""Bytes of memory that none of them may take."""


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
def test_real_inputs(target: Target) -> None:
    for seed in target.seeds():
        target(seed)
    if target.name not in NEVER_TAKEN:
        target.run(target.seeds()[0])  # accepted, so that fuzzing begins behind the first check


@pytest.mark.parametrize(
    "path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_inputs_that_once_were_defects(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@every_target
def test_anything_at_all(target: Target) -> None:
    @given(st.binary(max_size=400))
    def anything(data: bytes) -> None:
        target(data)

    anything()


@every_target
def test_damaged_inputs(target: Target) -> None:
    @settings(max_examples=examples(40, full=1_000))
    @given(damaged(target))
    def some(data: bytes) -> None:
        target(data)

    some()


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.name not in GROWN], ids=lambda t: t.name)
def test_memory_follows_the_input_not_its_claims(target: Target) -> None:
    """Any length in it, maximized at any place."""
    seed = min(filter(None, target.seeds()), key=len)
    target(seed)  # first uses, such as of caches, do not count
    step = max(1, len(seed) // 60)
    tracemalloc.start()
    try:
        for place in range(0, len(seed), step):
            for length in LENGTHS:
                data = seed[:place] + length + seed[place + len(length) :]
                # Finalizers and threads that earlier tests have left may allocate meanwhile. What an input needs, it
                # needs each time.
                assert any(memory_of(target, data) < LIMIT for _ in range(3)), (place, length)
    finally:
        tracemalloc.stop()


def memory_of(target: Target, data: bytes) -> int:
    """The most that was allocated meanwhile, in bytes."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    target(data)
    _, peak = tracemalloc.get_traced_memory()
    return peak - before
