"""Frames that come several times."""

from __future__ import annotations

from reliamsg.core.copies import Copies


def test_a_copy_is_known_for_at_least_so_many_frames() -> None:
    copies = Copies(most=10)
    for number in range(100):
        assert not copies.has(("to", number))
        copies.add(("to", number))
        assert all(copies.has(("to", before)) for before in range(max(0, number - 9), number + 1))
        assert sum(copies.has(("to", before)) for before in range(100)) <= 20
    assert not copies.has(("elsewhere", 99))
