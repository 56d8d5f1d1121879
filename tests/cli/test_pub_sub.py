"""pub and sub: bytes in, the same bytes out, and every way to exit."""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
from pathlib import Path

import pytest

from reliamsg.cli.subscribe import _Stdout, _Writer
from reliamsg.lab import Mosquitto
from reliamsg.message import Message
from tests.children import ended
from tests.cli.commands import (
    Sites,
    create,
    json_of,
    publish,
    refused,
    reliamsg,
    start,
    subscribe,
    succeeded,
)
from tests.cli.test_terminal import Nobody
from tests.lab.clients import client
from tests.patience import wait_for


def awkward(lines: int, chance: random.Random) -> bytes:
    """Lines of any bytes except newlines: empty ones, carriage returns, invalid text."""
    made = [b"", b"\r", b"ends in a carriage return\r", b"\x00\xff\xfe", "ÄÖ 漢字".encode(), b" " * 1000]
    made += [chance.randbytes(chance.randrange(200)).replace(b"\n", b"") for _ in range(lines - len(made))]
    return b"\n".join(made)


def test_a_binary_file_passes_byte_for_byte(mixed: Sites, unique: str, seeded: random.Random) -> None:
    data = awkward(3000, seeded)
    source = mixed.directory / "input"
    source.write_bytes(data)  # the last line lacks its newline
    succeeded(create(mixed, unique, unique))
    assert succeeded(publish(mixed, unique, b"", "--group", unique, "--file", str(source))) == b""
    assert succeeded(subscribe(mixed, unique, unique, "--count", "3000")) == data + b"\n"
    assert succeeded(subscribe(mixed, unique, unique, "--timeout", "1")) == b"", "each message once"


def test_standard_input_and_long_lines(mqtt: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    data = b"one\n" + b"x" * 1_000_000 + b"\n\nlast"
    result = publish(mqtt, unique, data, "--json")
    assert json_of(succeeded(result)) == {"lines": 4, "pending": 0, "interrupted": False}
    assert succeeded(subscribe(mqtt, unique, unique, "--count", "4")) == data + b"\n"


def test_json_output(mqtt: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    succeeded(publish(mqtt, unique, b"text\n\xff\n"))
    first, second = map(
        json.loads, succeeded(subscribe(mqtt, unique, unique, "--count", "2", "--json")).splitlines()
    )
    assert (first["body"], first["seq"], first["producer"], first["topic"]) == ("text", 1, "p", unique)
    assert first["redelivered"] is False
    assert (second["body_base64"], second["seq"]) == ("/w==", 2)
    assert "body" not in second


def test_options_from_the_environment(mqtt: Sites, unique: str) -> None:
    sites = " ".join(mqtt.arguments[1::2])
    succeeded(reliamsg("group", "create", unique, "--topic", unique, RELIAMSG_SITES=sites))
    succeeded(
        reliamsg(
            "pub", unique, "--producer", "p", stdin=b"x\n",
            RELIAMSG_SITES=sites, RELIAMSG_PUB_OUTBOX=mqtt.file("p.db"),
        )
    )  # fmt: skip
    assert succeeded(subscribe(mqtt, unique, unique, "--count", "1")) == b"x\n"


AT_FULL_SIZE = {("all", "batch"), ("any", "plain"), ("all-active", "plain"), ("1", "batch")}
"""Each policy and each form also occurs among the others."""


@pytest.mark.parametrize(
    ("confirm", "wire"),
    [
        pytest.param(confirm, wire, marks=pytest.mark.full if (confirm, wire) in AT_FULL_SIZE else ())
        for confirm in ("all", "any", "all-active", "1")
        for wire in ("batch", "plain")
    ],
)
def test_confirm_and_wire(mqtt: Sites, unique: str, wire: str, confirm: str) -> None:
    succeeded(create(mqtt, unique, unique))
    succeeded(publish(mqtt, unique, b"a\nb\n", "--wire", wire, "--confirm", confirm))
    assert succeeded(subscribe(mqtt, unique, unique, "--count", "2")) == b"a\nb\n"


def test_lines_go_on_as_they_come_and_sigterm_says_how_many(mqtt: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    arguments = [*mqtt.arguments, "--producer", "p", "--outbox", mqtt.file("p.db")]
    writer = start("pub", unique, *arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert writer.stdin is not None
        writer.stdin.write(b"first\nsecond\nunfinished")
        writer.stdin.flush()
        assert succeeded(subscribe(mqtt, unique, unique, "--count", "2")) == b"first\nsecond\n"
        writer.send_signal(signal.SIGTERM)
        _, errors = ended(writer)
        result = subprocess.CompletedProcess([], writer.returncode, b"", errors)
        refused(result, 143, "interrupted", "2 lines stored", "all confirmed")
    finally:
        writer.kill()
    assert succeeded(subscribe(mqtt, unique, unique, "--timeout", "1")) == b""


def test_remaining_messages_are_reported_and_sent_next_time(mqtt: Sites, nowhere: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    sites = Sites(
        [*mqtt.arguments[:2], "--site", f"dc2={nowhere.arguments[1].split('=')[1]}"], mqtt.directory
    )
    last = refused(publish(sites, unique, b"a\nb\n", "--timeout", "1"), 1, "2 lines stored", "dc2")
    assert "secret-word" not in last
    assert json_of(succeeded(publish(mqtt, unique, b"c\n", "--json")))["pending"] == 0
    assert succeeded(subscribe(mqtt, unique, unique, "--count", "3")) == b"a\nb\nc\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_subscriber_ends_cleanly_on_a_signal(mqtt: Sites, unique: str, number: signal.Signals) -> None:
    succeeded(create(mqtt, unique, unique))
    succeeded(publish(mqtt, unique, b"a\n"))
    output = mqtt.directory / "output"
    with output.open("wb") as sink:
        reader = start(
            "sub", unique, "--group", unique, "--inbox", mqtt.file("i.db"), *mqtt.arguments,
            stdout=sink, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            wait_for(lambda: output.read_bytes() == b"a\n", "the message is written")
            reader.send_signal(number)
            _, errors = ended(reader)
        finally:
            reader.kill()
    assert reader.returncode == 0, errors
    assert errors == b""


def test_a_reader_that_goes_away_is_no_error(mqtt: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    succeeded(publish(mqtt, unique, b"a\n" * 50_000))
    reader = start(
        "sub", unique, "--group", unique, "--inbox", mqtt.file("i.db"), *mqtt.arguments,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stderr is not None
    try:
        assert reader.stdout.read(2) == b"a\n"
        reader.stdout.close()
        assert reader.wait(60) == 0
        assert reader.stderr.read() == b""
    finally:
        reader.kill()
        reader.stderr.close()


def test_lines_that_an_earlier_run_may_have_written(capsys: pytest.CaptureFixture[str]) -> None:
    """They are named on standard error, where there is no flag in the output."""

    def message(seq: int, redelivered: bool) -> Message:
        return Message("p", "t", 0, 7, seq, b"%d" % seq, None, {}, redelivered, False, Nobody())

    for as_json, count in ((True, 0), (False, 2)):
        output = io.BytesIO()
        writer = _Writer(_Stdout(output, as_json))
        writer.write([message(1, False), message(2, True), message(3, True)])
        writer.write([message(4, False)])
        writer.write([message(5, True)])
        said = capsys.readouterr().err.splitlines()
        assert len(said) == count
        assert len(output.getvalue().splitlines()) == 5
    beginning = "reliamsg: redelivered, and perhaps in earlier output: "
    assert said == [
        f"{beginning}2 of lines 2 to 3, from p/7/t/0/2 on",
        f"{beginning}line 5, from p/7/t/0/5 on",
    ]


def test_too_few_messages(mqtt: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    succeeded(publish(mqtt, unique, b"a\n"))
    result = subscribe(mqtt, unique, unique, "--count", "2", "--timeout", "5")
    assert result.stdout == b"a\n"
    refused(result, 1, "no message arrived for 5 s", "1 of 2")


def test_a_gap_holds_or_stops_or_is_skipped_and_said(
    shared_mosquitto: Mosquitto, tmp_path: Path, unique: str
) -> None:
    sites = Sites(["--site", f"dc1={shared_mosquitto.url}"], tmp_path)
    succeeded(create(sites, unique, unique))
    succeeded(publish(sites, unique, b"a\n"))
    assert succeeded(subscribe(sites, unique, unique, "--count", "1")) == b"a\n"
    with client(shared_mosquitto.url, f"reliamsg:{unique}"):
        pass  # a clean session under the group's name: the broker deletes the group
    succeeded(publish(sites, unique, b"lost\n"))
    succeeded(create(sites, unique, unique))
    succeeded(publish(sites, unique, b"c\n"))
    gap = ["--gap-timeout", "0.5", "--timeout", "5", "--count", "1"]
    held = subscribe(sites, unique, unique, *gap)
    *before, last = held.stderr.decode().splitlines()
    assert (held.returncode, last) == (1, "reliamsg: no message arrived for 5 s after 0 of 1 message")
    assert any(f"p/{unique} lacks 2" in line and "the stream waits" in line for line in before)
    refused(
        subscribe(sites, unique, unique, *gap, "--on-gap", "stop"),
        1,
        "lacks 2",
        "--on-gap skip",
        "0 messages written",
    )
    result = subscribe(sites, unique, unique, *gap, "--on-gap", "skip")
    assert succeeded(result) == b"c\n"
    (said,) = result.stderr.decode().splitlines()
    assert said.startswith(f"reliamsg: p/{unique} lacks 2")
    assert said.endswith("skipped")


def test_a_line_that_is_too_long_stops_there(mqtt: Sites, unique: str) -> None:
    succeeded(create(mqtt, unique, unique))
    result = publish(mqtt, unique, b"good\n" + b"x" * (4 * 1024 * 1024 + 1) + b"\nnever\n")
    refused(result, 65, "line 2 is longer than", "1 line stored", "all confirmed")
    assert succeeded(subscribe(mqtt, unique, unique, "--timeout", "5")) == b"good\n"


def test_an_empty_input_publishes_nothing(nowhere: Sites) -> None:
    assert json_of(succeeded(publish(nowhere, "t", b"", "--json")))["lines"] == 0


def test_files_are_private(mqtt: Sites, unique: str) -> None:
    succeeded(publish(mqtt, unique, b"a\n"))
    assert Path(mqtt.file("p.db")).stat().st_mode & 0o777 == 0o600
