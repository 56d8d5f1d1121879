"""``pub --resume``: after any end of a run, each line is published once, by the next run or by those after it."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from reliamsg.cli.resuming import Resumable
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import Failure, Status
from reliamsg.store.journal import Entry
from reliamsg.store.outbox import NewBatch, Outbox
from reliamsg.wire.data import Origin, Records, encode
from tests.children import ended
from tests.cli.commands import Sites, create, json_of, refused, reliamsg_here, start, subscribe, succeeded
from tests.patience import wait_for


class Runs:
    """Runs of `pub --resume` without a producer's threads and sites: an outbox is opened, and stores what is left."""

    def __init__(self, directory: Path) -> None:
        self.source, self.outbox = directory / "input", directory / "p.db"
        self._wall_us = 1_000_000

    def run(self, until: str = "", source: Path | None = None, at_most: int | None = None) -> tuple[int, int]:
        """One run, which is killed at `until`: "opened", "begun" or "stored". `at_most`: lines before a signal. Returns
        the lines that were published before, and by this run."""
        self._wall_us += 1_000_000
        path = source or self.source
        outbox = Outbox(self.outbox, "p", self._wall_us, 0, os.urandom(8).hex())
        descriptor = os.open(path, os.O_RDONLY)
        try:
            outbox.note([Entry("opened", epoch=outbox.epoch, incarnation=outbox.incarnation)], 0, 0)
            resumable = Resumable(descriptor, str(path), str(self.outbox), "t")
            if until == "opened":
                return 0, 0
            with StopRequest() as stop:
                lines = [line for some in resumable.begin(stop) for line in some][:at_most]
            if until == "begun":
                return resumable.result["resumed_after"], 0
            stream = outbox.stream("t", 0)
            if lines:
                frame = encode(
                    Origin(stream.stream, outbox.epoch, outbox.incarnation), 1, (0, 0), Records(lines)
                )
                outbox.append([NewBatch(stream, stream.next_seq, len(lines), frame)], [], 0, 0)
            if until != "stored":
                resumable.finish(len(lines), at_most is None)
            return resumable.result["resumed_after"], len(lines)
        finally:
            os.close(descriptor)
            outbox.close()

    def refused(self, *words: str, source: Path | None = None) -> None:
        with pytest.raises(Failure) as found:
            self.run(source=source)
        assert found.value.status == Status.DATA
        for word in words:
            assert word in str(found.value)

    def published(self) -> list[str]:
        shown = succeeded(reliamsg_here("outbox", "show", self.outbox, "--json", "--limit", "1000"))
        return [json.loads(line)["body"] for line in shown.splitlines()]

    def change(self, sql: str) -> None:
        with closing(sqlite3.connect(self.outbox)) as connection:
            connection.execute(sql)
            connection.commit()


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    made = Runs(tmp_path)
    made.source.write_bytes(b"1\n2\n3\n")
    return made


MOMENTS = ("opened", "begun", "stored", "")


@pytest.mark.parametrize("first", MOMENTS)
def test_runs_that_are_killed(first: str, runs: Runs) -> None:
    """At any moment, and then again at any."""
    for second in MOMENTS:
        for position in runs.source.parent.glob("p.db*"):
            position.unlink()
        runs.source.write_bytes(b"1\n2\n3\n")
        runs.run(first)
        with runs.source.open("ab") as file:
            file.write(b"4\n")
        runs.run(second, at_most=2)
        runs.run("begun")
        before, now = runs.run()
        assert before + now == 4
        assert runs.published() == ["1", "2", "3", "4"]
        assert runs.run() == (4, 0)


def test_what_was_released_was_published(runs: Runs) -> None:
    runs.run("stored", at_most=2)
    runs.change("DELETE FROM batch")
    assert runs.run() == (2, 1)


def test_what_was_renumbered_was_published(runs: Runs) -> None:
    """The outbox was restored, and the epochs that were never sent have higher numbers."""
    runs.run(source=other(runs, "a\n"))
    runs.run("stored", at_most=2)
    runs.change("UPDATE chain SET epoch = epoch + 1000 WHERE epoch = (SELECT max(epoch) FROM chain)")
    assert runs.run() == (2, 1)


def other(runs: Runs, content: str) -> Path:
    path = runs.source.with_name("other")
    path.write_text(content)
    return path


def test_each_file_has_its_own_position(runs: Runs) -> None:
    runs.run("stored", at_most=2)
    assert runs.run(source=other(runs, "a\nb\n")) == (0, 2)
    assert runs.run() == (2, 1)
    assert runs.run(source=other(runs, "a\nb\nc\n")) == (2, 1)
    assert runs.published() == ["1", "2", "a", "b", "3", "c"]


def test_a_file_that_grows(runs: Runs) -> None:
    runs.source.write_bytes(b"1\n2")  # published without its newline
    assert runs.run("stored") == (0, 2)
    assert runs.run() == (2, 0)
    runs.source.write_bytes(b"1\n2\n")
    assert runs.run() == (2, 0)
    runs.source.write_bytes(b"1\n2\n3\n\n")
    assert runs.run() == (2, 2)
    assert runs.published() == ["1", "2", "3", ""]


def test_a_line_that_is_continued(runs: Runs) -> None:
    runs.source.write_bytes(b"1\n2")
    runs.run()
    runs.source.write_bytes(b"1\n23\n")
    runs.refused("line 2 was published without its end")


@pytest.mark.parametrize("until", ["stored", ""])
@pytest.mark.parametrize("content", [b"1\n", b"1\n2\n4\n", b"0\n2\n3\n4\n", b""])
def test_a_file_that_was_changed(content: bytes, until: str, runs: Runs) -> None:
    runs.run(until)
    runs.source.write_bytes(content)
    runs.refused("it was changed")


def test_an_outbox_that_has_forgotten(runs: Runs) -> None:
    """The oldest epochs of a stream are forgotten after many openings."""
    runs.run("stored")
    runs.run(source=other(runs, "a\n"))
    runs.change("DELETE FROM chain WHERE epoch = (SELECT min(epoch) FROM chain)")
    runs.refused("can't tell how many")


@pytest.mark.parametrize("until", ["begun", "stored"])
def test_another_outbox(until: str, runs: Runs) -> None:
    runs.run(until)
    for file in runs.source.parent.glob("p.db*"):
        if file.suffix != ".resume":
            file.unlink()
    runs.refused("can't tell how many")
    runs.refused("can't tell how many")


def test_an_older_copy_of_the_outbox(runs: Runs) -> None:
    runs.run(source=other(runs, "a\n"))
    copy = runs.outbox.read_bytes()
    for _ in range(3):
        runs.run("begun")
    runs.run("stored", at_most=1)
    for file in runs.source.parent.glob("p.db-*"):
        file.unlink()
    runs.outbox.write_bytes(copy)
    runs.refused("can't tell how many")


def test_more_lines_than_the_file_has(runs: Runs) -> None:
    runs.run("stored")
    runs.change("UPDATE chain SET last = 4")
    runs.refused("more than it has")


def test_a_damaged_position(runs: Runs) -> None:
    runs.run()
    position = runs.source.with_name("p.db.resume")
    for content in (b"noise", b'{"version":2,"inputs":[]}'):
        position.write_bytes(content)
        runs.refused("p.db.resume")


# -- the command ----------------------------------------------------------------------------------------------


@pytest.mark.integrations
def test_the_command_continues(nowhere: Sites) -> None:
    source = nowhere.directory / "input"
    arguments = [
        "pub", "t", *nowhere.arguments, "--producer", "p", "--outbox", nowhere.file("p.db"), "--timeout", "0.01",
        "--file", str(source), "--resume", "--json",
    ]  # fmt: skip
    source.write_bytes(b"1\n2\n" + b"x" * (4 * 1024 * 1024 + 1) + b"\n")
    for before in (0, 2):
        result = reliamsg_here(*arguments)
        refused(result, 65, "line 3 is longer", f"{2 - before} lines stored")
        assert (json_of(result.stdout)["lines"], json_of(result.stdout)["resumed_after"]) == (
            2 - before,
            before,
        )
    source.write_bytes(b"1\n2\n3\n")
    refused(reliamsg_here(*arguments), 65, "it was changed")


def test_what_cannot_be_read_again(nowhere: Sites) -> None:
    arguments = [
        "pub",
        "t",
        *nowhere.arguments,
        "--producer",
        "p",
        "--outbox",
        nowhere.file("p.db"),
        "--resume",
    ]
    refused(reliamsg_here(*arguments), 64, "--resume needs --file")
    refused(reliamsg_here(*arguments, "--file", "-"), 64, "--resume needs --file")
    refused(reliamsg_here(*arguments, "--file", "/dev/null"), 64, "a regular file")
    refused(reliamsg_here(*arguments, "--file", nowhere.directory), 66)
    assert not os.path.exists(nowhere.file("p.db"))


@pytest.mark.integrations
def test_kill_9_at_any_moment(mqtt: Sites, unique: str, seeded: random.Random) -> None:
    """Also during the resumed runs, while what earlier ones have stored is being sent."""
    total = 0
    source = mqtt.directory / "input"
    succeeded(create(mqtt, unique, unique))
    outbox = Path(mqtt.file("p.db"))
    arguments = [
        "pub", unique, *mqtt.arguments, "--producer", "p", "--outbox", str(outbox), "--file", str(source), "--resume",
        "--json",
    ]  # fmt: skip
    kills = 0
    # 0: at once; otherwise once so many of 4,000 lines are stored, of which about 1,250 share a transaction
    for wanted in seeded.sample([0, 0, 1, 1_500, 3_000], 5):
        with source.open("ab") as file:
            file.write(b"".join(b"%0200d\n" % number for number in range(total, total + 4_000)))
        total += 4_000
        writer = start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            size = stored(outbox)
            wait_for(
                lambda size=size, wanted=wanted, writer=writer: (
                    stored(outbox) >= size + wanted or writer.poll() is not None
                ),
                "it has stored some",
            )
            writer.send_signal(signal.SIGKILL)
            output, _ = ended(writer)
            kills += writer.returncode == -signal.SIGKILL
        finally:
            writer.kill()
    assert kills >= 2
    writer = start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = ended(writer)
    assert writer.returncode == 0, errors
    found = json_of(output)
    assert found["resumed_after"] + found["lines"] == total
    assert succeeded(subscribe(mqtt, unique, unique, "--count", str(total))) == source.read_bytes()
    assert succeeded(subscribe(mqtt, unique, unique, "--timeout", "1")) == b""


def stored(outbox: Path) -> int:
    """Lines that were ever stored in the outbox."""
    if not outbox.exists():
        return 0
    with closing(sqlite3.connect(f"{outbox.as_uri()}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute("SELECT coalesce(sum(last), 0) FROM chain").fetchone()[0])
        except sqlite3.OperationalError:  # not created completely yet
            return 0
