"""``reliamsg audit show``: one stream's ranges, read from tables without Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from reliamsg.audit.show import StreamNotFound, main, read_stream
from reliamsg.audit.spans import LAST
from tests.children import run_child

RANGES = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("grp", "producer", "topic")), ("part", pyarrow.int32()),
        *((name, pyarrow.int64()) for name in ("epoch", "first", "last")),
        *((name, pyarrow.string()) for name in ("fate", "why", "place", "hop")),
        ("sites", pyarrow.list_(pyarrow.string())),
        *(
            (name, pyarrow.bool_())
            for name in ("accounted", "handed", "pending", "unacknowledged", "late", "unverifiable")
        ),
    ]
)  # fmt: skip
FINDINGS = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("kind", "producer", "topic")), ("part", pyarrow.int32()),
        ("grp", pyarrow.string()), ("site", pyarrow.string()),
        *((name, pyarrow.int64()) for name in ("epoch", "first", "last")),
        ("place", pyarrow.string()), ("text", pyarrow.string()),
    ]
)  # fmt: skip


def ranged(
    stream: tuple[str, str, int], group: str, first: int, last: int, fate: str, **more: Any
) -> dict[str, Any]:
    """A row of the table ``ranges``."""
    row: dict[str, Any] = dict.fromkeys(RANGES.names)
    row |= dict.fromkeys(("accounted", "handed", "pending", "unacknowledged", "late", "unverifiable"), False)
    row |= dict(zip(("producer", "topic", "part"), stream, strict=True))
    return row | {"grp": group, "epoch": 7, "first": first, "last": last, "fate": fate, "sites": []} | more


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An audit's output with several streams, in two files for each table."""
    place = tmp_path / "out"
    stream = ("gateway-3", "orders", 0)
    ranges = [
        ranged(stream, "billing", 12, LAST, "undelivered", why="in quarantine"),
        ranged(stream, "", 1, 20, "enqueued", accounted=True),
        ranged(stream, "billing", 1, 3, "delivered", accounted=True),
        ranged(stream, "billing", 4, 4, "delivered", accounted=True),
        ranged(stream, "billing", 5, 11, "lost", hop="confirmed", sites=["dc1", "dc2"], place="middle"),
        ranged(("gateway-3", "orders", 2), "billing", 1, 9, "delivered"),
        ranged(("a/b", "c", 0), "g", 1, 1, "delivered"),
        ranged(("a", "b/d", 0), "g", 1, 2, "delivered"),
        ranged(("x", "y/z", 0), "g", 1, 2, "delivered"),
        ranged(("x/y", "z", 0), "g", 1, 2, "delivered"),
        ranged(("tab\t", "t", 0), "g", 1, 2, "delivered"),
    ]
    findings = [
        {"kind": "lost", "producer": "gateway-3", "topic": "orders", "part": 0, "grp": "billing", "epoch": 7,
         "first": 5, "last": 11, "place": "middle"},
        {"kind": "wrong_prev", "producer": "gateway-3", "topic": "orders", "part": 0, "epoch": 7, "text": "says 3"},
        {"kind": "fork", "producer": "only-findings", "topic": "t", "part": 0, "text": "two"},
        {"kind": "missing", "text": "no journal of group h"},
    ]  # fmt: skip
    for name, rows, schema in (("ranges", ranges, RANGES), ("findings", findings, FINDINGS)):
        (place / name).mkdir(parents=True)
        (place / name / "_SUCCESS").touch()
        for number in (0, 1):
            table = pyarrow.Table.from_pylist(rows[number::2], schema=schema)
            parquet.write_table(table, place / name / f"part-{number}.snappy.parquet")
    (place / "verdict.json").write_text("{}")
    return place


def test_ranges_and_findings_of_a_stream(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(output), "gateway-3/orders"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "stream gateway-3/orders",
        "epoch 7",
        "  producer       1 to 20                   published",
        "  group billing  1 to 4                    delivered",
        "  group billing  5 to 11                   lost; last hop: confirmed at dc1, dc2",
        "  group billing  12 to the end             undelivered: in quarantine",
        "findings",
        "  violated: wrong prev (epoch 7): an epoch entered with a wrong account of the one before: says 3",
        "  lost: lost (group billing, 5 to 11 of epoch 7): published, and never delivered",
    ]


def test_as_json(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(output), "gateway-3/orders", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == read_stream(str(output), "gateway-3/orders")
    assert (found["producer"], found["topic"], found["partition"]) == ("gateway-3", "orders", 0)
    assert [(each["group"], each["first"], each["last"]) for each in found["ranges"]] == [
        ("", 1, 20), ("billing", 1, 4), ("billing", 5, 11), ("billing", 12, None),
    ]  # fmt: skip
    assert found["findings"][1] == {
        "kind": "lost", "severity": "lost", "group": "billing", "epoch": 7, "first": 5, "last": 11,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gateway-3/orders~2", ("gateway-3", "orders", 2)),
        ("gateway-3/orders~0", ("gateway-3", "orders", 0)),
        ("a/b/c", ("a/b", "c", 0)),
        ("a/b/d", ("a", "b/d", 0)),
        ("tab\t/t", ("tab\t", "t", 0)),
        (r"tab\x09/t", ("tab\t", "t", 0)),
        ("only-findings/t", ("only-findings", "t", 0)),
    ],
)
def test_names_of_streams(output: Path, name: str, expected: tuple[str, str, int]) -> None:
    found = read_stream(str(output), name)
    assert (found["producer"], found["topic"], found["partition"]) == expected


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gateway-3/order", "similar: gateway-3/orders"),
        ("gateway-3", "PRODUCER/TOPIC"),
        ("gateway-3/orders~7", "no stream gateway-3/orders~7"),
        ("gateway-3/orders~99999999999", "no stream"),
        ("x/y/z", "can be 2 streams"),
        ("", "no stream"),
    ],
)
def test_streams_that_are_not_there(
    output: Path, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StreamNotFound, match=says):
        read_stream(str(output), name)
    assert main([str(output), name]) == 66
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_directories_without_an_audit(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "absent"), "a/b"]) == 66
    assert "no such directory" in capsys.readouterr().err
    assert main([str(tmp_path), "a/b"]) == 66
    assert "holds no verdict.json" in capsys.readouterr().err
    (output / "ranges" / "part-0.snappy.parquet").write_bytes(b"PAR1 is not all")
    assert main([str(output), "gateway-3/orders"]) == 74
    assert "ranges" in capsys.readouterr().err
    assert main([str(output)]) == 64
    assert "Missing argument 'STREAM'" in capsys.readouterr().err


def test_the_command_needs_neither_spark_nor_java(output: Path) -> None:
    done = run_child(
        [sys.executable, "-m", "reliamsg", "audit", "show", str(output), "a/b/c"],
        text=True,
        env={"PATH": "", "JAVA_HOME": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "group g  1" in done.stdout
    code = "import sys, reliamsg.audit.show; print('pyspark' in sys.modules)"
    loaded = run_child([sys.executable, "-c", code], text=True, check=True)
    assert loaded.stdout == "False\n"
