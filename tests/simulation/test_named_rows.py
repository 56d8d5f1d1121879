"""The rows of their journals that simulated clients name to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliamsg.simulation.named_rows import NamedRows
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import World
from reliamsg.store.journal import Entry, Journal

BOOT, EARLIER = "b" * 16, "a" * 16


@pytest.mark.parametrize(
    ("boot", "lsn", "found"), [(BOOT, 2, []), (BOOT, 1, [1]), (EARLIER, 1, []), (BOOT, 3, [3])]
)
def test_an_opening_names_rows_that_it_has_committed(
    boot: str, lsn: int, found: list[int], tmp_path: Path
) -> None:
    world = World(draw(1, 10, ()), tmp_path)
    process = world.consumers[0]
    process.drive.format()
    for incarnation, opening in enumerate((EARLIER, BOOT)):
        with process.drive.connect(process.drive.path) as connection:
            Journal(opening).write(connection, [Entry("opened", incarnation=incarnation)], 1, 1)
        connection.close()
    rows = NamedRows(process.name, process.drive, world.oracle)
    for _ in range(2):
        rows.named_by_boot(int(boot, 16), lsn)
    expected = [f"row {each} of opening {boot}, named by {process.name}" for each in found]
    assert [each.text for each in world.oracle.violations] == expected
    world.oracle.violations.clear()
    rows.named_by_incarnation(int(boot == BOOT), lsn)
    assert len(world.oracle.violations) == len(found)
    assert {each.kind for each in world.oracle.violations} <= {"uncommitted_row"}
