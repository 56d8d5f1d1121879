"""Journals that are exported with a key, and verified with the keys of all clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checker.histories import make
from tests.checker.test_files import save_all
from tests.cli.commands import json_of, refused, reliamsg_here, succeeded
from tests.signed import keys_file, secret_of

OWNERS = (("producer", "A"), ("producer", "B"), ("group", "primary"), ("group", "secondary"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Outboxes and inboxes of two producers and two groups."""
    save_all(tmp_path / "files", make(7, boots=2, logs=False))
    return tmp_path / "files"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return keys_file(tmp_path / "keys", OWNERS)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The file with the key of producer A."""
    path = tmp_path / "own"
    path.write_text(f"a {secret_of('producer', 'A', 'a').hex()}\n")
    path.chmod(0o600)
    return path


def test_export_signs_and_verify_checks(files: Path, tmp_path: Path, keys: Path, own: Path) -> None:
    target = tmp_path / "signed"
    succeeded(reliamsg_here("journal", "export", files / "A.outbox.db", "--to", target, "--journal-key", own))
    assert all(b'"key":"a"' in path.read_bytes() for path in target.rglob("*.ndjson"))
    said = succeeded(reliamsg_here("journal", "verify", target, "--journal-keys", keys))
    assert b"signatures were checked" in said
    assert (
        json_of(succeeded(reliamsg_here("journal", "verify", target, "--json")))["signatures_checked"]
        is False
    )
    others = keys_file(tmp_path / "others", OWNERS[1:])
    found = reliamsg_here("journal", "verify", target, "--journal-keys", others, "--json")
    assert found.returncode == 2
    problems = json_of(found.stdout)["problems"]
    assert problems
    assert all(each.endswith("signed with a key that its client does not have") for each in problems)


def test_retire_signs(files: Path, tmp_path: Path, keys: Path, own: Path) -> None:
    target = tmp_path / "signed"
    arguments = ("--abandon", "--to", target, "--journal-key", own)
    succeeded(reliamsg_here("journal", "retire", files / "A.outbox.db", *arguments))
    assert reliamsg_here("journal", "verify", target, "--journal-keys", keys).returncode == 0


def test_unsigned_before(files: Path, tmp_path: Path, keys: Path) -> None:
    target = tmp_path / "journals"
    succeeded(reliamsg_here("journal", "export", files / "A.outbox.db", "--to", target))
    segment = max(target.rglob("*.ndjson"), key=lambda path: path.name.split("-")[1])
    verify = ("journal", "verify", target, "--journal-keys", keys)
    found = reliamsg_here(*verify)
    assert found.returncode == 2
    assert b": not signed" in found.stdout
    succeeded(reliamsg_here(*verify, "--unsigned-before", f"producer/A@{segment.name}"))
    succeeded(reliamsg_here(*verify, "--unsigned-before", f"producer/A@{segment}"))


def test_files_are_not_signed(files: Path, keys: Path) -> None:
    outbox = files / "A.outbox.db"
    found = reliamsg_here("journal", "verify", outbox, "--journal-keys", keys, "--json")
    assert found.returncode == 2
    assert json_of(found.stdout)["problems"] == [f"{outbox}: not signed: only exported journals are"]


def test_wrong_arguments(tmp_path: Path, keys: Path) -> None:
    verify = ("journal", "verify", tmp_path)
    position = f"producer/A@{'0' * 64}"
    refused(reliamsg_here(*verify, "--unsigned-before", position), 64, "needs --journal-keys")
    refused(reliamsg_here(*verify, "--journal-keys", tmp_path / "none"), 64, "none", "No such file")
    refused(
        reliamsg_here(*verify, "--journal-keys", keys, "--unsigned-before", "A"), 64, "producer/NAME@SEGMENT"
    )
    keys.chmod(0o644)
    refused(reliamsg_here(*verify, "--journal-keys", keys), 64, "chmod 600")


def test_a_key_needs_a_target(tmp_path: Path, own: Path) -> None:
    site = ("--site", "dc1=mqtt://localhost:1", "--journal-key", own)
    pub = ("pub", "t", "--producer", "A", "--outbox", tmp_path / "o.db", *site)
    sub = ("sub", "t", "--group", "g", "--inbox", tmp_path / "i.db", *site)
    for command in (pub, sub):
        refused(reliamsg_here(*command), 64, "--journal-key needs --journal")


def test_pub_signs(tmp_path: Path, own: Path, keys: Path) -> None:
    """Also what it exports when it gives up, because no site is there."""
    (tmp_path / "lines").write_text("one\n")
    reliamsg_here(
        "pub", "t", "--producer", "A", "--outbox", tmp_path / "o.db", "--site", "dc1=mqtt://localhost:1",
        "--timeout", "0.1", "--file", tmp_path / "lines", "--journal", tmp_path / "j", "--journal-key", own,
    )  # fmt: skip
    found = json_of(
        reliamsg_here("journal", "verify", tmp_path / "j", "--journal-keys", keys, "--json").stdout
    )
    assert [chain["client"] for chain in found["chains"]] == ["A"]
    assert found["chains"][0]["rows"] > 1
    assert found["problems"] == []
