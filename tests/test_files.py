"""Files that others may have placed, and the permissions of new files."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliamsg.checker import check
from reliamsg.checker.journals import collect
from reliamsg.errors import JournalTargetError, StoreUnsafe
from reliamsg.export.target import DirectoryTarget
from reliamsg.files import irregular, make_directories, read_regular
from reliamsg.store.inbox import Inbox
from reliamsg.store.outbox import Outbox
from tests.cli.commands import reliamsg_here
from tests.fuzz import seeds

NAME = f"{'0' * 16}-{'1':0>19}-{'0' * 64}.ndjson"


def _socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name[-60:])
        os.rename(path.name[-60:], path.name)
    finally:
        os.chdir(before)


def _outside(path: Path) -> Path:
    made = path.parent.parent / "outside"
    made.mkdir(exist_ok=True)
    return made


def _link_to_directory(path: Path) -> None:
    (_outside(path) / NAME).write_bytes(seeds.segments()[0])
    path.symlink_to(_outside(path), target_is_directory=True)


def _link_to_file(path: Path) -> None:
    (_outside(path) / "x").write_bytes(seeds.segments()[0])
    path.symlink_to(_outside(path) / "x")


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a named pipe": (os.mkfifo, "a named pipe"),
    "a socket": (_socket, "a socket"),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
    "a link to a file": (_link_to_file, "a symbolic link"),
    "a link to nothing": (lambda path: path.symlink_to("/nonexistent/x"), "a symbolic link"),
    "a link to itself": (lambda path: path.symlink_to(path), "a symbolic link"),
    "a link to a directory": (_link_to_directory, "a symbolic link"),
    "a link to the directory above": (lambda path: path.symlink_to(".."), "a symbolic link"),
}
every_kind = pytest.mark.parametrize("kind", HOSTILE)
every_name = pytest.mark.parametrize("name", [NAME, "x.db"], ids=["segment", "outbox"])


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail instead of hanging: a pipe is opened in the kernel, where only a signal helps."""
    import signal

    def over(*_: object) -> None:
        raise TimeoutError(f"it hung for {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """A directory with one good segment."""
    from reliamsg.store.segment import decode, encode

    header, rows = decode(seeds.segments()[0])
    made = encode(header.role, header.client, rows, header.parent)
    path = tmp_path / "journals" / made.path
    path.parent.mkdir(parents=True)
    path.write_bytes(made.data)
    return tmp_path / "journals"


def put(kind: str, name: str, journals: Path) -> tuple[Path, str]:
    make, said = HOSTILE[kind]
    path = journals / name
    make(path)
    return path, said


@every_kind
@every_name
def test_the_checker_reports_it_and_reads_the_rest(kind: str, name: str, journals: Path) -> None:
    path, said = put(kind, name, journals)
    with within(10):
        found = collect(journals)
    (problem,) = [text for text in found.problems if name in text]
    assert said in problem
    assert len(found.chains) == 1
    assert "verdict" in check(found.chains).text()
    assert path.is_symlink() or path.exists()


@every_kind
@every_name
def test_commands_report_it(kind: str, name: str, journals: Path) -> None:
    put(kind, name, journals)
    for what, status in (("verify", 2), ("cat", 65)):
        with within(20):
            done = reliamsg_here("journal", what, journals)
        assert done.returncode == status, done.stderr
        assert HOSTILE[kind][1] in (done.stdout + done.stderr).decode()
    assert b"opened" in done.stdout


@every_kind
def test_one_that_is_named_itself(kind: str, journals: Path) -> None:
    path, _ = put(kind, NAME, journals)
    for what in ("verify", "cat"):
        with within(20):
            done = reliamsg_here("journal", what, path)
        assert done.returncode not in (0, 70), done.stderr


@every_kind
def test_a_writer_neither_waits_for_it_nor_follows_it(kind: str, journals: Path) -> None:
    _, said = put(kind, NAME, journals)
    target = DirectoryTarget(journals)
    with within(10):
        with pytest.raises(JournalTargetError, match=said):
            target.write(NAME, b"x")
        with pytest.raises(JournalTargetError, match=said):
            target.read(NAME)


def test_reading_a_file_that_is_one(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"12345")
    assert read_regular(path) == b"12345"
    assert read_regular(path, 3) == b"123"
    (tmp_path / "directory.db").mkdir()
    (tmp_path / ".hidden.db").symlink_to(path)
    assert list(irregular(tmp_path, (".db",))) == []


# -- new files --------------------------------------------------------------------------------------------


def modes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode)
        for path in root.rglob("*")
        if not path.name.endswith(".lock") or path.is_file()
    }


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o027], ids=oct)
def test_whatever_the_umask_files_and_directories_are_private(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        DirectoryTarget(tmp_path / "a" / "journals").write(
            f"role=producer/client=p/date=2026-01-01/{NAME}", b"x"
        )
        make_directories(tmp_path / "b" / "c")
        outbox = Outbox(tmp_path / "d" / "e" / "o.db", "p", 5, 0, "b" * 16)
        inbox = Inbox(tmp_path / "f" / "g" / "i.db", "g")
        found = modes(tmp_path)
        inbox.close()
        outbox.close()
    finally:
        os.umask(before)
    assert len(found) >= 16
    for name, mode in found.items():
        assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600), (name, oct(mode))


OPENERS: dict[str, Callable[[Path], Outbox | Inbox]] = {
    "outbox": lambda path: Outbox(path, "p", 6_000_000, 0, "c" * 16),
    "inbox": lambda path: Inbox(path, "billing"),
}
every_store = pytest.mark.parametrize("opener", OPENERS.values(), ids=list(OPENERS))


@every_store
@pytest.mark.parametrize("which", ["", "-wal", "-shm", ".lock"])
@pytest.mark.parametrize("how", ["world-writable", "of another user", "a link", "a pipe"])
def test_a_file_that_others_can_change_is_refused(
    opener: Callable[[Path], Outbox | Inbox], which: str, how: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.db"
    opener(path).close()
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep")
    spoiled = path.with_name(f"{path.name}{which}")
    if how == "a pipe" and not which:
        return  # not a file, which has another message
    if how in ("a link", "a pipe"):
        spoiled.unlink(missing_ok=True)
        if how == "a pipe":
            os.mkfifo(spoiled)
        else:
            spoiled.symlink_to(victim)
            if not which:
                os.lchown(spoiled, 65534, 65534)
    else:
        spoiled.touch()
        if how == "world-writable":
            spoiled.chmod(0o666)
        else:
            os.chown(spoiled, 65534, 65534)
    with within(10), pytest.raises(StoreUnsafe) as raised:
        opener(path)
    assert str(path) in str(raised.value)
    assert victim.read_bytes() == b"keep"


@every_store
def test_a_directory_that_anybody_can_write(opener: Callable[[Path], Outbox | Inbox], tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(StoreUnsafe, match="chmod o-w"):
        opener(place / "x.db")
    assert not list(place.iterdir())
    place.chmod(0o1777)  # sticky, like /tmp: others' files can't be replaced there
    opener(place / "x.db").close()


@every_store
@pytest.mark.parametrize("through", ["a link", "a link to a link"])
def test_a_link_to_nothing_begins_no_file(
    opener: Callable[[Path], Outbox | Inbox], through: str, tmp_path: Path
) -> None:
    """It was created for a file that is missing now: a disk may not be mounted."""
    disk, link = tmp_path / "disk", tmp_path / "x.db"
    disk.mkdir()
    link.symlink_to(disk / "x.db")
    if through == "a link to a link":
        link = tmp_path / "another.db"
        link.symlink_to("x.db")
    with pytest.raises(StoreUnsafe, match="which does not exist: is its disk mounted") as raised:
        opener(link)
    assert str(disk / "x.db") in str(raised.value)
    assert not list(disk.iterdir())
    opener(disk / "x.db").close()  # named itself
    opener(link).close()


@every_store
def test_a_group_may_be_given_a_file(opener: Callable[[Path], Outbox | Inbox], tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    opener(path).close()
    path.chmod(0o660)
    (tmp_path / "link.db").symlink_to(path)
    opener(tmp_path / "link.db").close()
