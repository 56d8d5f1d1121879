"""journal export, cat and verify, as processes."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from reliamsg.store.database import Database
from tests.checker.histories import make
from tests.checker.test_files import save_all
from tests.cli.commands import json_of, refused, reliamsg, start, succeeded

pytestmark = pytest.mark.integrations


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Outboxes and inboxes of two producers and two groups."""
    save_all(tmp_path / "files", make(7, boots=2, logs=False))
    return tmp_path / "files"


@pytest.fixture
def journals(files: Path, tmp_path: Path) -> Path:
    """Their journals, exported."""
    succeeded(reliamsg("journal", "export", *sorted(files.rglob("*.db")), "--to", tmp_path / "journals"))
    return tmp_path / "journals"


def segment_of(journals: Path, role: str, client: str) -> Path:
    return sorted((journals / f"role={role}" / f"client={client}").rglob("*.ndjson"))[0]


def rows(output: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_export_moves_the_remaining_rows(files: Path, tmp_path: Path) -> None:
    outbox, target = files / "A.outbox.db", tmp_path / "journals"
    before = rows(succeeded(reliamsg("journal", "cat", outbox)))
    said = succeeded(reliamsg("journal", "export", outbox, files / "inboxes" / "primary.db", "--to", target))
    assert f"{outbox}: ".encode() in said
    assert b"segment" in said
    assert rows(succeeded(reliamsg("journal", "cat", target, "--client", "A"))) == before
    assert succeeded(reliamsg("journal", "cat", outbox)) == b""
    again = json_of(succeeded(reliamsg("journal", "export", outbox, "--to", target, "--json")))
    assert again == {"file": str(outbox), "segments": 0}


def test_export_refuses(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "journals"
    outbox = files / "A.outbox.db"
    refused(
        reliamsg("journal", "export", tmp_path / "none.db", "--to", target), 66, "none.db", "no such file"
    )
    refused(reliamsg("journal", "export", outbox), 64, "--to")
    (tmp_path / "noise.db").write_bytes(b"noise" * 100)
    refused(reliamsg("journal", "export", tmp_path / "noise.db", "--to", target), 65, "noise.db")
    refused(reliamsg("journal", "export", outbox, "--to", "nothing://x"), 64, "nothing")
    (tmp_path / "taken").write_text("a file")
    refused(reliamsg("journal", "export", outbox, "--to", tmp_path / "taken"), 69, "taken")
    owner = Database(outbox, "outbox", "A")
    try:
        refused(reliamsg("journal", "export", outbox, "--to", target), 75, "A.outbox.db")
    finally:
        owner.close()
    assert json_of(succeeded(reliamsg("journal", "export", outbox, "--to", target, "--json")))["segments"] > 0


def test_cat_filters_and_takes_any_form(files: Path, journals: Path) -> None:
    every = rows(succeeded(reliamsg("journal", "cat", journals)))
    assert {(row["role"], row["client"]) for row in every} == {
        ("producer", "A"), ("producer", "B"), ("group", "primary"), ("group", "secondary"),
    }  # fmt: skip
    chosen = rows(
        succeeded(
            reliamsg(
                "journal", "cat", journals, "--kind", "opened", "--kind", "closed", "--client", "primary"
            )
        )
    )
    assert {row["kind"] for row in chosen} == {"opened", "closed"}
    assert chosen == [
        row for row in every if row["client"] == "primary" and row["kind"] in ("opened", "closed")
    ]
    assert all(isinstance(row["lsn"], int) and len(str(row["boot"])) == 16 for row in every)
    by_url = succeeded(reliamsg("journal", "cat", f"file://{journals}"))
    assert rows(by_url) == every
    segment = segment_of(journals, "producer", "A")
    one = rows(succeeded(reliamsg("journal", "cat", segment)))
    assert one == [row for row in every if row["client"] == "A"][: len(one)]


def test_cat_names_damaged_files_and_continues(journals: Path) -> None:
    damaged = segment_of(journals, "producer", "A")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    result = reliamsg("journal", "cat", journals, "--kind", "closed")
    assert result.returncode == 65
    lines = result.stderr.decode().splitlines()
    assert len(lines) == 2
    assert damaged.name in lines[0]
    assert "cut: " in lines[0]
    assert {row["client"] for row in rows(result.stdout)} >= {"primary", "secondary"}
    refused(reliamsg("journal", "cat", journals / "nowhere"), 66, "nowhere")
    refused(reliamsg("journal", "cat"), 64, "PATH")


def test_cat_exits_quietly_without_a_reader(journals: Path) -> None:
    paths = [journals] * 200
    process = start("journal", "cat", *paths, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


def test_verify_says_that_all_is_there(files: Path, journals: Path) -> None:
    said = json_of(succeeded(reliamsg("journal", "verify", journals, "--json")))
    assert said["sound"]
    assert (said["problems"], said["duplicated"]) == ([], 0)
    assert [(chain["role"], chain["client"]) for chain in said["chains"]] == [
        ("group", "primary"), ("group", "secondary"), ("producer", "A"), ("producer", "B"),
    ]  # fmt: skip
    for chain in said["chains"]:
        assert chain["sound"]
        assert chain["segments"] >= 1
        assert chain["boots"] >= 1
        assert chain["first_us"] <= chain["last_us"]
        read = rows(succeeded(reliamsg("journal", "cat", journals, "--client", chain["client"])))
        assert chain["rows"] == len(read)
    text = succeeded(reliamsg("journal", "verify", journals)).decode()
    assert text.count(": sound; ") == 4
    assert "2023-11-14T22:13:20Z" in text


def test_verify_takes_files_too(files: Path, tmp_path: Path) -> None:
    succeeded(reliamsg("journal", "verify", files))
    outbox = files / "A.outbox.db"
    said = json_of(succeeded(reliamsg("journal", "verify", outbox, "--json")))
    assert [(chain["client"], chain["segments"]) for chain in said["chains"]] == [("A", 0)]
    succeeded(reliamsg("journal", "export", outbox, "--to", tmp_path / "elsewhere"))
    result = reliamsg("journal", "verify", outbox)
    assert result.returncode == 2
    assert b"rows 1 to " in result.stdout


def test_verify_finds_every_problem(journals: Path, tmp_path: Path) -> None:
    segment = segment_of(journals, "group", "primary")
    segment.write_bytes(segment.read_bytes().replace(b'"delivered"', b'"delibered"', 1))
    result = reliamsg("journal", "verify", journals)
    assert result.returncode == 2
    assert f"{segment.name}: edited or damaged" in result.stdout.decode()
    assert result.stderr == b""
    said = json_of(reliamsg("journal", "verify", journals, "--json").stdout)
    assert not said["sound"]
    shutil.rmtree(journals / "role=group")
    shutil.copytree(journals / "role=producer", journals / "copy" / "role=producer")
    again = json_of(succeeded(reliamsg("journal", "verify", journals, "--json")))
    assert again["duplicated"] == 2
    (tmp_path / "empty").mkdir()
    none = reliamsg("journal", "verify", tmp_path / "empty")
    assert (none.returncode, none.stdout) == (2, b"there are no journals\n")
    refused(reliamsg("journal", "verify", tmp_path / "nowhere"), 66, "nowhere")
    (tmp_path / "noise.db").write_bytes(b"noise" * 100)
    refused(reliamsg("journal", "verify", tmp_path / "noise.db"), 65, "noise.db")
    refused(reliamsg("journal", "verify", "s3:/" + "/secret:word@bucket/x"), 64)


def test_an_unclosed_journal_is_not_sound(files: Path) -> None:
    with sqlite3.connect(files / "A.outbox.db") as connection:
        connection.execute("DELETE FROM journal WHERE kind = 'closed'")
    connection.close()
    result = reliamsg("journal", "verify", files / "A.outbox.db")
    assert result.returncode == 2
    assert result.stdout.startswith(b"producer A: not closed; boots 1, segments 0, ")
    assert result.stdout.endswith(b"\n  it ends without being closed\n")


def test_compacted_journals(journals: Path, tmp_path: Path) -> None:
    before = json_of(succeeded(reliamsg("journal", "verify", journals, "--json")))
    every = rows(succeeded(reliamsg("journal", "cat", journals)))
    keys = tmp_path / "keys"
    keys.write_text(f"auditor {'61' * 32}\n")
    keys.chmod(0o600)
    succeeded(reliamsg("journal", "compact", journals, "--keys", keys))
    assert rows(succeeded(reliamsg("journal", "cat", journals))) == every, "the segments are there"
    said = succeeded(
        reliamsg("journal", "compact", journals, "--keys", keys, "--archive", tmp_path / "archive")
    )
    assert said.count(b": nothing new since the checkpoint; segments ") == 4
    assert not list(journals.rglob("*.ndjson"))
    after = json_of(succeeded(reliamsg("journal", "verify", journals, "--json")))
    assert {**after, "checkpoints": 0} == before
    assert (after["checkpoints"], after["checkpoint_signatures_checked"]) == (4, False)
    text = succeeded(reliamsg("journal", "verify", journals, "--checkpoint-keys", keys)).decode()
    assert text.endswith("checkpoints: 4, their signatures checked\n")
    merged = rows(succeeded(reliamsg("journal", "cat", journals)))
    assert {row["lsn"] for row in merged if row["client"] == "A"} <= {
        row["lsn"] for row in every if row["client"] == "A"
    }
    one = next(journals.glob("role=producer/client=A/checkpoint-*"))
    alone = rows(succeeded(reliamsg("journal", "cat", one)))
    assert alone == [row for row in merged if row["client"] == "A"]
    assert json_of(succeeded(reliamsg("journal", "verify", one, "--json")))["chains"][0]["client"] == "A"
    keys.write_text(f"auditor {'62' * 32}\n")
    result = reliamsg("journal", "verify", journals, "--checkpoint-keys", keys)
    assert result.returncode == 2
    assert result.stdout.count(b": its signature is wrong\n") == 4
    one.write_bytes(one.read_bytes() + b"\n")
    result = reliamsg("journal", "cat", journals)
    assert result.returncode == 65
    assert f"{one.name}: edited or damaged".encode() in result.stderr
