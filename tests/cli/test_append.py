"""``sub --resume``: a message is in the file once, wherever the process was killed."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from reliamsg.cli.appending import AppendedFile
from reliamsg.cli.status import Failure, Status
from reliamsg.message import Message
from tests.children import ended
from tests.cli.commands import Sites, create, publish, start, subscribe, succeeded
from tests.cli.test_terminal import Nobody
from tests.patience import wait_for


def message(
    seq: int, *, topic: str = "t", epoch: int = 1, redelivered: bool = False, replayed: bool = False
) -> Message:
    body = b"%s %d.%d" % (topic.encode(), epoch, seq)
    return Message("p", topic, 0, epoch, seq, body, None, {}, redelivered, replayed, Nobody())


def line(message: Message) -> bytes:
    return message.body + b"\n"


def append(path: Path, *some: Sequence[Message], group: str = "g") -> list[int]:
    with AppendedFile(str(path), group, line) as file:
        return [file.append(messages) for messages in some]


CHUNKS = [
    [message(1), message(1, topic="u")],
    [message(2), message(1, epoch=2), message(2, topic="u")],
    [message(3, topic="u"), message(2, epoch=2)],
]
"""What a run gets, and writes at once each time."""


def again(acknowledged: int) -> list[Message]:
    """What is delivered again, all flagged, after that many messages were acknowledged."""
    flat = [one for chunk in CHUNKS for one in chunk]
    return [message(m.seq, topic=m.topic, epoch=m.epoch, redelivered=True) for m in flat[acknowledged:]]


def test_killed_at_any_byte(tmp_path: Path) -> None:
    whole = b"".join(line(one) for chunk in CHUNKS for one in chunk)
    for done in range(len(CHUNKS)):
        path = tmp_path / f"{done}"
        append(path, *CHUNKS[:done])
        before = path.read_bytes() if done else b""
        append(path, CHUNKS[done])
        after, noted = path.read_bytes(), (tmp_path / f"{done}.resume").read_bytes()
        for cut in range(len(before), len(after) + 1):
            for acknowledged in range(sum(map(len, CHUNKS[:done])) + 1):
                path.write_bytes(after[:cut])
                (tmp_path / f"{done}.resume").write_bytes(noted)
                append(path, again(acknowledged))
                assert path.read_bytes() == whole, (done, cut, acknowledged)


def test_only_what_is_flagged_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert append(path, [message(1), message(2)]) == [2]
    assert append(path, [message(1, redelivered=True), message(2, redelivered=True)]) == [0]
    assert append(path, [message(1)], [message(2, redelivered=True, replayed=True)]) == [1, 1]
    assert append(path, [message(1, epoch=2, redelivered=True), message(1, topic="u", redelivered=True)]) == [
        2
    ]
    assert path.read_bytes() == b"t 1.1\nt 1.2\nt 1.1\nt 1.2\nt 2.1\nu 1.1\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"earlier\n")
    append(path, [message(1)])
    assert path.read_bytes() == b"earlier\nt 1.1\n"


@pytest.mark.parametrize("content", [b"", b"t 1.1\n", b"t 1.1\nt 1.2\nmore\n"])
def test_a_file_that_was_changed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out"
    append(path, [message(1)], [message(2)])
    path.write_bytes(content)
    if content == b"t 1.1\n":  # as if killed before the second line
        assert append(path, [message(2, redelivered=True)]) == [1]
        return
    with pytest.raises(Failure, match="was changed") as found:
        append(path)
    assert found.value.status == Status.DATA


def test_other_reasons_to_refuse(tmp_path: Path) -> None:
    path = tmp_path / "out"
    append(path, [message(1)])
    with pytest.raises(Failure, match="group g"):
        append(path, group="h")
    for content in (b"noise", b'{"version":2,"group":"g","size":0,"latest":[],"next":[]}'):
        path.with_name("out.resume").write_bytes(content)
        with pytest.raises(Failure, match=r"out\.resume"):
            append(path)


@pytest.mark.integrations
def test_kill_9_at_any_moment(mqtt: Sites, unique: str, seeded: random.Random) -> None:
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    succeeded(create(mqtt, unique, unique))
    succeeded(publish(mqtt, unique, lines))
    output = mqtt.directory / "output"
    output.touch()
    kills = 0
    for _ in range(4):
        wanted = output.stat().st_size + seeded.choice([0, 1, 5_000, 20_000])
        reader = start(
            "sub", unique, "--group", unique, "--inbox", mqtt.file(f"{unique}.db"), *mqtt.arguments,
            "--resume", str(output), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            wait_for(
                lambda wanted=wanted, reader=reader: (
                    output.stat().st_size > min(wanted, len(lines) - 1) or reader.poll() is not None
                ),
                "it has written some",
                poll=0.001,
            )
            reader.send_signal(signal.SIGKILL)
            ended(reader)
            kills += reader.returncode == -signal.SIGKILL
        finally:
            reader.kill()
    assert kills == 4
    written = output.read_bytes().count(b"\n")
    if written < 20_000:
        succeeded(subscribe(mqtt, unique, unique, "--resume", str(output), "--count", str(20_000 - written)))
    assert output.read_bytes() == lines
    succeeded(subscribe(mqtt, unique, unique, "--resume", str(output), "--timeout", "1"))
    assert output.read_bytes() == lines
