"""Checkpoints that are damaged, forged, unsigned or contradicted, and compactions that are interrupted."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reliamsg.audit import checkpoint as format_of_audit
from reliamsg.audit.compact import main
from reliamsg.audit.compaction import compact
from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.audit.windows import Baseline
from reliamsg.checker import Expect as PlainExpect
from reliamsg.checker import check_directory
from reliamsg.checker import checkpoints as format_of_checker
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing
from reliamsg.store.segment import decode, encode
from reliamsg.trust import Trust, make_trust
from tests.audit.equality import shared
from tests.audit.generated import journals
from tests.audit.local_spark import local_spark
from tests.audit.test_kept import shown

KEYS = KeyRing({"a": b"a" * 32, "b": b"b" * 32}, sign_with="a")
OTHERS = KeyRing({"a": b"o" * 32}, sign_with="a")
SEED = 5
"""Of a run that is complete, with several segments of each client."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    journals(SEED, "-0", clean=True, closed=True).write(tmp_path / "journals", random.Random(SEED))
    return tmp_path / "journals"


def judged(
    place: Path, keys: KeyRing | None = None, state: Path | None = None, trust: Trust | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The verdict and the broken evidence, on which both programs agree."""
    rules = Expect(drained=True, now_us=2**60, checkpoint_keys=keys, trust=trust)
    found = shown(audit(local_spark(1), place, state=state, expect=rules, baseline=Baseline()))
    plain = check_directory(
        place, PlainExpect(drained=True, now_us=2**60, checkpoint_keys=keys, trust=trust)
    ).as_dict()
    by_audit, by_checker = shared(found), shared(plain)
    assert by_audit == by_checker, {
        name: (value, by_checker[name]) for name, value in by_audit.items() if by_checker[name] != value
    }
    for name in ("checkpoints", "checkpoint_signatures_checked"):
        assert found["evidence"][name] == plain["evidence"][name]
    return found, by_audit["broken"]


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two verdicts differ only in the number of checkpoints."""
    names = ("checkpoints", "checkpoint_signatures_checked")
    evidence = [
        {name: value for name, value in each["evidence"].items() if name not in names}
        for each in (one, other)
    ]
    return evidence[0] == evidence[1] and {**one, "evidence": 0} == {**other, "evidence": 0}


def archived(place: Path, keys: KeyRing | None = None) -> Path:
    """Compact everything; returns the archive."""
    archive = place.with_name("archive")
    for each in compact(place, keys=keys, archive=archive):
        assert each.problem is None
        assert each.archived
    assert not list(place.rglob("*.ndjson"))
    return archive


def one_of(place: Path) -> Path:
    return min(place.rglob("checkpoint-*.parquet"), key=lambda path: path.parent)


def client_of(path: Path) -> tuple[str, str]:
    home = next(each for each in path.parents if each.name.startswith("client="))
    return home.parent.name.removeprefix("role="), home.name.removeprefix("client=")


def overwritten(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def renamed(path: Path, data: bytes, **changes: int) -> Path:
    """Replace a checkpoint by other bytes, under the name that belongs to them."""
    last = changes.get("last", int(path.name.split("-")[1]))
    digest = hashlib.sha256(data).hexdigest()
    path.unlink()
    target = path.with_name(f"checkpoint-{last:020}-{digest}.parquet")
    target.write_bytes(data)
    return target


def rewritten(
    path: Path,
    header: Callable[[dict[str, Any]], Any] = lambda found: found,
    facts: Callable[[list[bytes]], list[bytes]] = lambda found: found,
    signature: bytes | None = None,
) -> Path:
    """Change a checkpoint's header or content, as somebody would who knows the format."""
    table = pq.read_table(path)
    metadata = dict(table.schema.metadata)
    found = json.loads(metadata[b"reliamsg.checkpoint"])
    columns = table.to_pydict()
    columns["facts"] = facts(columns["facts"])
    digest = hashlib.sha256()
    for row in zip(*(columns[name] for name in ("producer", "topic", "part", "facts")), strict=True):
        for each in (row[0].encode(), row[1].encode(), b"%d" % row[2], row[3]):
            digest.update(b"%d:" % len(each) + each)
    found["content"] = digest.hexdigest()
    metadata[b"reliamsg.checkpoint"] = json.dumps(header(found)).encode()
    if signature is not None:
        metadata[b"reliamsg.checkpoint.signature"] = signature
    file = io.BytesIO()
    pq.write_table(pa.table(columns, schema=table.schema.with_metadata(metadata)), file, compression="zstd")
    return renamed(path, file.getvalue())


DAMAGE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "edited": (
        lambda path: overwritten(path, path.read_bytes()[:-1] + b"X"),
        "edited or damaged: its content does not match the hash in its name",
    ),
    "empty": (
        lambda path: overwritten(path, b""),
        "edited or damaged: its content does not match the hash in its name",
    ),
    "rubbish": (lambda path: renamed(path, b"PAR1" * 9), "not a checkpoint: it can't be read as Parquet"),
    "other rows": (
        lambda path: renamed(path, path.read_bytes(), last=3),
        "renamed: its name and its header name different rows",
    ),
    "version": (
        lambda path: rewritten(path, lambda found: {**found, "version": 2}),
        "written by another version (format 2): upgrade reliamsg",
    ),
    "no version": (
        lambda path: rewritten(path, lambda found: {**found, "version": None}),
        "written by another version (format None): upgrade reliamsg",
    ),
    "format": (lambda path: rewritten(path, lambda found: {**found, "format": "x"}), "not a checkpoint"),
    "no object": (lambda path: rewritten(path, lambda _: [1]), "not a checkpoint"),
    "fields": (lambda path: rewritten(path, lambda found: {**found, "segments": -1}), "its fields are damaged"),
    "role": (lambda path: rewritten(path, lambda found: {**found, "role": "x"}), "its fields are damaged"),
    "signature": (lambda path: rewritten(path, signature=b"{}"), "its fields are damaged"),
    "streams": (
        lambda path: rewritten(path, lambda found: {**found, "streams": 99}), "its content is damaged",
    ),
    "content": (
        lambda path: rewritten(path, lambda found: {**found, "content": "0" * 64}), "its content is damaged",
    ),
    "facts": (lambda path: rewritten(path, facts=lambda own: [own[0], *(b"\x90\xc1" for _ in own[1:])]),
              "its content is damaged"),
    "client": (lambda path: rewritten(path, facts=lambda own: [b"\x80", *own[1:]]), "its content is damaged"),
    "other": (
        lambda path: path.rename(path.with_name("checkpoint-1.parquet")),
        "its name is not that of a checkpoint, so its content can't be verified",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("segments", ["there", "gone"])
def test_a_damaged_checkpoint_is_reported_and_segments_are_used_instead(
    place: Path, kind: str, segments: str
) -> None:
    before, _ = judged(place)
    assert before["verdict"] == "complete"
    archive = archived(place)
    spoil, words = DAMAGE[kind]
    path = spoil(one_of(place))
    if segments == "there":
        shutil.copytree(archive, place, dirs_exist_ok=True)
    after, broken = judged(place)
    assert [line for line in broken if line.endswith(f"{path.name}: {words}")]
    assert after["verdict"] == "unknown"
    if segments == "there":
        for name in ("enqueued", "delivered", "lost"):
            assert after["messages"][name] == before["messages"][name]
        assert len(broken) == 1


def test_a_checkpoint_that_is_too_large(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archived(place)
    for module in (format_of_audit, format_of_checker):
        monkeypatch.setattr(module, "MAX_BYTES", 100)
    _, broken = judged(place)
    assert [line for line in broken if line.endswith(": too large")]


def test_a_checkpoint_in_another_clients_directory(place: Path) -> None:
    archived(place)
    own, other = sorted(place.rglob("checkpoint-*.parquet"), key=lambda path: path.parent)[:2]
    own.rename(other.with_name(own.name))
    _, broken = judged(place)
    (role, client), (real_role, real_client) = client_of(other), client_of(own)
    words = f"misplaced: it is among those of {role} {client}, but belongs to {real_role} {real_client}"
    assert [line for line in broken if line.endswith(f"{own.name}: {words}")]


def test_links_are_not_followed(place: Path, tmp_path: Path) -> None:
    archived(place)
    path = one_of(place)
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    found = shown(audit(local_spark(1), place, expect=Expect(now_us=2**60), baseline=Baseline()))
    plain = check_directory(place)
    for lines in (found["evidence"]["broken"], [str(each) for each in plain.of_kind("broken")]):
        assert [line for line in lines if path.name in line and "a symbolic link" in line]


class TestSignatures:
    def test_of_the_auditor(self, place: Path) -> None:
        before, _ = judged(place)
        archived(place, KEYS)
        unchecked, _ = judged(place)
        found, _ = judged(place, KEYS)
        assert same(before, found)
        assert same(before, unchecked)
        assert unchecked["evidence"]["checkpoint_signatures_checked"] is False
        assert found["evidence"]["checkpoint_signatures_checked"] is True
        assert found["evidence"]["checkpoints"] == len(list(place.rglob("*.parquet")))

    def test_those_of_clients_can_be_hidden_by_a_checkpoint(self, place: Path, tmp_path: Path) -> None:
        """Nobody can see whether the segments in it were signed, unless the auditor vouches for that."""
        (tmp_path / "keys").touch(mode=0o600)
        (tmp_path / "keys").write_text("producer/p k " + "6b" * 16 + "\n")
        trust = make_trust(str(tmp_path / "keys"), [])
        before, _ = judged(place)
        archived(place, KEYS)
        found, broken = judged(place, trust=trust)
        assert found["verdict"] == "unknown"
        words = "whether segments in it were signed is unknown: --journal-keys needs --checkpoint-keys"
        assert [line for line in broken if line.endswith(f"{one_of(place).name}: {words}")]
        assert found["evidence"]["checkpoints"] == 0
        found, _ = judged(place, KEYS, trust=trust)
        assert found["verdict"] == before["verdict"] == "complete"
        assert found["messages"] == before["messages"]

    def test_none(self, place: Path) -> None:
        archived(place)
        found, broken = judged(place, KEYS)
        assert found["verdict"] == "unknown"
        assert [line for line in broken if line.endswith(f"{one_of(place).name}: not signed")]

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            (KeyRing({"z": b"z" * 32}), "signed with an unknown key"),
            (OTHERS, "its signature is wrong"),
        ],
    )  # fmt: skip
    def test_of_somebody_else(self, place: Path, keys: KeyRing, words: str) -> None:
        archived(place, KEYS)
        found, broken = judged(place, keys)
        assert found["verdict"] == "unknown"
        assert [line for line in broken if line.endswith(f"{one_of(place).name}: {words}")]

    def test_does_not_cover_other_content(self, place: Path) -> None:
        archived(place, KEYS)
        path = rewritten(one_of(place), lambda found: found | {"more": 1})
        found, broken = judged(place, KEYS)
        assert found["verdict"] == "unknown"
        assert [line for line in broken if line.endswith(f"{path.name}: its signature is wrong")]

    def test_a_compaction_does_not_continue_what_others_signed(self, place: Path) -> None:
        assert not [each for each in compact(place, keys=OTHERS) if each.problem]
        for keys, words in (
            (KEYS, "its signature is wrong"),
            (None, "it is signed: a key is needed to continue it"),
        ):
            for each in compact(place, keys=keys, archive=place.with_name("archive")):
                assert (each.problem or "").endswith(words)
        assert list(place.rglob("*.ndjson"))

    def test_a_compaction_does_not_continue_what_nobody_signed(self, place: Path) -> None:
        assert not [each for each in compact(place) if each.problem]
        assert all((each.problem or "").endswith(": not signed") for each in compact(place, keys=KEYS))


class TestForks:
    """A copy of a client's file went its own way."""

    def a_fork(self, place: Path, at: int) -> Path:
        """Another segment in the place of one of a client that has several: cut elsewhere, with other rows."""
        home = max(place.glob("role=*/client=*"), key=lambda path: len(list(path.rglob("*.ndjson"))))
        path = sorted(home.rglob("*.ndjson"), key=lambda path: path.name.split("-")[1])[at]
        header, rows = decode(path.read_bytes())
        boot = "f" * 16
        for number, row in enumerate(rows):
            object.__setattr__(row, "boot", boot)
            object.__setattr__(row, "wall_last_us", row.wall_last_us + number)
        made = encode(header.role, header.client, rows, header.parent)
        target = place.with_name("fork") / made.path
        target.parent.mkdir(parents=True)
        target.write_bytes(made.data)
        return target

    def arrives(self, place: Path, fork: Path) -> None:
        target = place / fork.relative_to(place.with_name("fork"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fork, target)

    @pytest.mark.parametrize("at", [0, 1, -1])
    @pytest.mark.parametrize("state", [False, True])
    def test_before_a_checkpoint_whose_segments_are_gone(
        self, place: Path, tmp_path: Path, at: int, state: bool
    ) -> None:
        fork = self.a_fork(place, at)
        archive = archived(place)
        kept = tmp_path / "state" if state else None
        before, _ = judged(place, state=kept)
        assert before["verdict"] == "complete"
        self.arrives(place, fork)
        role, client = client_of(fork)
        name = next(place.glob(f"role={role}/client={client}/checkpoint-*")).name
        words = (
            f"it forks off before the end of {name}, whose segments are gone, so its rows can't be compared"
        )
        found, broken = judged(place, state=kept)
        assert [line for line in broken if line.endswith(f"{fork.name}: {words}")]
        assert found["verdict"] == "unknown"
        # With the segments, it is a fork like any other.
        shutil.copytree(archive, place, dirs_exist_ok=True)
        whole, _ = judged(place, state=kept)
        for path in place.rglob("checkpoint-*"):
            path.unlink()
        segments, _ = judged(place)
        assert same(whole, segments)
        assert whole["evidence"]["clients"] == before["evidence"]["clients"] + 1

    def test_behind_a_checkpoint(self, place: Path, tmp_path: Path) -> None:
        fork = self.a_fork(place, -1)
        last = next(
            path for path in place.rglob("*.ndjson")
            if client_of(path) == client_of(fork) and path.name.split("-")[1] == fork.name.split("-")[1]
        )  # fmt: skip
        last.rename(tmp_path / last.name)
        archived(place)
        last.parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / last.name).rename(last)
        self.arrives(place, fork)
        found, broken = judged(place)
        assert not [line for line in broken if "forks off" in line]
        shutil.copytree(place.with_name("archive"), place, dirs_exist_ok=True)
        for path in place.rglob("checkpoint-*"):
            path.unlink()
        assert same(found, judged(place)[0])

    @pytest.mark.parametrize("state", [False, True])
    def test_outside_of_the_directory_of_a_client_whose_segments_are_gone(
        self, place: Path, tmp_path: Path, state: bool
    ) -> None:
        fork = self.a_fork(place, 1)
        archived(place)
        kept = tmp_path / "state" if state else None
        before, _ = judged(place, state=kept)
        shutil.copyfile(fork, place / fork.name)
        found, broken = judged(place, state=kept)
        (line,) = broken
        assert "and is not in the client's directory" in line
        assert found["verdict"] == "unknown"
        assert found["messages"]["enqueued"] == before["messages"]["enqueued"]

    def test_a_client_with_a_segment_elsewhere_is_left_out(self, place: Path) -> None:
        fork = self.a_fork(place, 1)
        shutil.copyfile(fork, place / fork.name)
        done = {(each.role, each.client): each for each in compact(place, archive=place.with_name("archive"))}
        assert "outside of the client's directory" in (done[client_of(fork)].problem or "")
        assert sum(each.problem is None for each in done.values()) == len(done) - 1
        copied = next(place.glob("role=*/client=*/**/*.ndjson"))
        (place / fork.name).unlink()
        shutil.copyfile(copied, place / copied.name)
        assert all(each.problem is None for each in compact(place))

    def test_a_client_with_a_fork_is_left_out(self, place: Path) -> None:
        fork = self.a_fork(place, 1)
        self.arrives(place, fork)
        done = {(each.role, each.client): each for each in compact(place)}
        assert "its file was copied" in (done[client_of(fork)].problem or "")
        fork.unlink()

    def test_two_checkpoints_that_contradict_each_other(self, place: Path) -> None:
        fork = self.a_fork(place, -1)
        other = place.with_name("other")
        shutil.copytree(place, other)
        archived(place)
        own = next(
            path for path in other.rglob("*.ndjson")
            if client_of(path) == client_of(fork) and path.name.split("-")[1] == fork.name.split("-")[1]
        )  # fmt: skip
        own.unlink()
        self.arrives(other, fork)
        role, client = client_of(fork)
        assert not [each for each in compact(other, clients=[client]) if each.problem]
        found = next(other.glob(f"role={role}/client={client}/checkpoint-*"))
        shutil.copyfile(found, place / found.relative_to(other))
        after, broken = judged(place)
        assert after["verdict"] == "unknown"
        assert [line for line in broken if "forks off before the end of checkpoint-" in line]


def test_a_hole_is_never_covered(place: Path) -> None:
    home = max(place.glob("role=*/client=*"), key=lambda path: len(list(path.rglob("*.ndjson"))))
    path = sorted(home.rglob("*.ndjson"), key=lambda path: path.name.split("-")[1])[1]
    before, _ = judged(place)
    path.rename(place.with_name(path.name))
    owner = client_of(path)
    done = {(each.role, each.client): each for each in compact(place)}
    assert (done[owner].problem or "").endswith("are missing")
    assert done[owner].checkpoint is None
    assert judged(place)[0]["verdict"] == "unknown"
    place.with_name(path.name).rename(path)
    assert same(before, judged(place)[0])


@pytest.mark.parametrize("what", ["edited", "misplaced", "renamed", "first", "twice", "link", "elsewhere"])
def test_other_clients_that_are_left_out(place: Path, tmp_path: Path, what: str) -> None:
    home = max(place.glob("role=*/client=*"), key=lambda path: len(list(path.rglob("*.ndjson"))))
    segments = sorted(home.rglob("*.ndjson"), key=lambda path: path.name.split("-")[1])
    path = segments[0] if what == "first" else segments[1]
    if what == "edited":
        path.write_bytes(path.read_bytes() + b"\n")
    elif what == "misplaced":
        other = min(place.rglob("*.ndjson"), key=lambda each: (each.parent.parent == home, each))
        shutil.copyfile(other, path.with_name(other.name.replace(other.name.split("-")[1], "9" * 19)))
    elif what == "renamed":
        path.rename(path.with_name("x.ndjson"))
    elif what == "first":
        path.unlink()
    elif what == "twice":
        (home / "date=2000-01-01").mkdir()
        shutil.copyfile(path, home / "date=2000-01-01" / path.name)
    elif what == "link":
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    else:
        shutil.copytree(place / "role=group", place / "more" / "role=group")
        shutil.copytree(place / "role=producer", place / "more" / "role=producer", dirs_exist_ok=True)
    done = {(each.role, each.client): each for each in compact(place, archive=tmp_path / "archive")}
    assert done[client_of(path)].problem
    assert not list(home.glob("checkpoint-*"))
    assert not list((tmp_path / "archive").glob(f"{home.relative_to(place)}/**/*.ndjson"))


class TestState:
    def test_segments_vanish_and_a_checkpoint_appears(self, place: Path, tmp_path: Path) -> None:
        state = tmp_path / "state"
        before, _ = judged(place, state=state)
        archived(place)
        assert same(before, judged(place, state=state)[0])
        assert same(before, judged(place)[0])

    def test_a_checkpoint_covers_more_than_the_state(self, place: Path, tmp_path: Path) -> None:
        state = tmp_path / "state"
        late = [
            sorted(home.rglob("*.ndjson"), key=lambda path: path.name.split("-")[1])[-1]
            for home in place.glob("role=*/client=*")
        ]
        for path in late:
            path.rename(tmp_path / path.name)
        judged(place, state=state)
        for path in late:
            (tmp_path / path.name).rename(path)
        whole, _ = judged(place)
        archived(place)
        assert same(whole, judged(place, state=state)[0])
        for path in place.rglob("checkpoint-*"):
            path.unlink()
        found = shown(
            audit(
                local_spark(2), place, state=state, expect=Expect(drained=True, now_us=2**60), baseline=Baseline()
            )
        )  # fmt: skip
        assert same(whole, found), "the state has what the checkpoints had"


def test_a_kill_at_any_time_loses_nothing(place: Path) -> None:
    """A compaction is killed again and again, and continued until it is done."""
    before, _ = judged(place)
    archive = place.with_name("archive")
    command = [sys.executable, "-m", "reliamsg.audit.compact", str(place), "--archive", str(archive)]
    started = time.monotonic()
    subprocess.run([*command, "--client", "nobody"], check=False, capture_output=True)
    start_up = time.monotonic() - started
    rng = random.Random(1)
    for _ in range(8):
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(start_up * rng.uniform(0.7, 1.2))
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert same(before, judged(place)[0])
    assert subprocess.run(command, check=False).returncode == 0
    assert same(before, judged(place)[0])
    assert not list(place.rglob("*.ndjson"))
    assert not list(place.rglob(".checkpoint-*"))


def test_an_interruption_between_any_two_steps_loses_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the system that changes anything is the last one, in turn."""
    before, _ = judged(place)
    for steps in itertools.count():
        copy = place.with_name(f"copy-{steps}")
        shutil.copytree(place, copy)
        left = steps

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return call(*args, **options)

            return step

        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "fsync"):
                patch.setattr(os, name, counted(getattr(os, name)))
            try:
                list(compact(copy, archive=place.with_name(f"archive-{steps}")))
                done = True
            except KeyboardInterrupt:
                done = False
        if done or steps % 5 == 0:
            found, _ = judged(copy)
            assert found["verdict"] == "complete", steps
            assert found["messages"] == before["messages"]
            assert not found["evidence"]["broken"]
        shutil.rmtree(copy)
        if done:
            break
    assert steps > 20


def test_nothing_is_removed_before_its_copy_is_durable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = place.with_name("archive")
    durable: set[str] = set()
    removed = 0
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def noting_fsync(number: int) -> None:
        fsync(number)
        durable.add(os.readlink(f"/proc/self/fd/{number}"))

    def noting_replace(source: Path, target: Path) -> None:
        assert str(source) in durable
        replace(source, target)
        durable.discard(str(Path(target).parent))

    def noting_unlink(path: Path, **options: Any) -> None:
        nonlocal removed
        if Path(path).suffix == ".ndjson":
            copy = archive / Path(path).relative_to(place)
            assert copy.read_bytes() == Path(path).read_bytes()
            assert {str(each) for each in copy.parents if each.is_relative_to(archive.parent)} <= durable
            removed += 1
        unlink(path, **options)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "unlink", noting_unlink)
    list(compact(place, archive=archive))
    assert removed > 10
    assert {str(path) for path in place.glob("role=*/client=*")} <= durable


def test_two_at_once_are_refused(place: Path) -> None:
    running = compact(place)
    assert isinstance(running, Generator)
    next(running)
    with pytest.raises(ConfigError, match="another compaction is running"):
        next(compact(place))
    running.close()
    assert next(compact(place)).problem is None


def test_an_archive_inside_the_journals_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="must be outside"):
        next(compact(place, archive=place / "archive"))


def test_files_of_the_archive_are_never_replaced(place: Path) -> None:
    archive = place.with_name("archive")
    path = min(place.rglob("*.ndjson"))
    target = archive / path.relative_to(place)
    target.parent.mkdir(parents=True)
    target.write_bytes(b"something else")
    done = {(each.role, each.client): each for each in compact(place, archive=archive)}
    assert "there is another file of this name" in (done[client_of(path)].problem or "")
    assert path.exists()
    assert target.read_bytes() == b"something else"


class TestCommand:
    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
        code = main(list(map(str, arguments)))
        said = capsys.readouterr()
        return code, said.out, said.err

    def test_compacts(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        clients = len(list(place.glob("role=*/client=*")))
        code, out, err = self.run(capsys, place)
        assert (code, err) == (0, "")
        assert out.count("new checkpoint; segments ") == clients
        code, out, err = self.run(capsys, place)
        assert (code, err) == (0, "")
        assert out.count("nothing new since the checkpoint") == clients

    def test_json(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = self.run(capsys, place, "--json", "--archive", place.with_name("archive"))
        assert code == 0
        for each in map(json.loads, out.splitlines()):
            assert each["archived"] == each["segments"]
            assert each["written"] is True

    def test_keys(self, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "keys"
        file.write_text(f"a {'61' * 32}\nb {'62' * 32}\n")
        file.chmod(0o600)
        assert self.run(capsys, place, "--keys", file, "--key", "c")[0] == 64
        assert self.run(capsys, place, "--key", "b")[0] == 64
        assert self.run(capsys, place, "--keys", file, "--key", "b")[0] == 0
        signature = json.loads(pq.read_schema(one_of(place)).metadata[b"reliamsg.checkpoint.signature"])
        assert signature["key"] == "b"
        assert not judged(place, KEYS)[1]

    def test_what_is_missing(
        self, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.run(capsys, tmp_path / "nothing")[0] == 66
        code, _, err = self.run(capsys, place, "--client", "nobody")
        assert code == 2
        assert "there are no segments of nobody" in err
        (tmp_path / "empty").mkdir()
        assert self.run(capsys, tmp_path / "empty")[0] == 2
        min(place.rglob("*.ndjson")).write_bytes(b"")
        code, _, err = self.run(capsys, place)
        assert code == 2
        assert "left out: " in err
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        code, _, err = self.run(capsys, place)
        assert code == 69
        assert "pip install 'reliamsg[audit]'" in err
