"""Frames that come several times."""

from __future__ import annotations

from reliamsg.protocol.duplicate_filter import DuplicateFilter


def test_a_copy_is_known_for_at_least_so_many_frames() -> None:
    seen = DuplicateFilter(capacity=10)
    for number in range(100):
        assert not seen.has(("to", number))
        seen.add(("to", number))
        assert all(seen.has(("to", before)) for before in range(max(0, number - 9), number + 1))
        assert sum(seen.has(("to", before)) for before in range(100)) <= 20
    assert not seen.has(("elsewhere", 99))
