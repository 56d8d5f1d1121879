"""--keys: signed messages pass, unsigned ones do not, and errors about a bad file contain no secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Sites, create, publish, refused, reliamsg, subscribe, succeeded

SECRET = "0123456789abcdef" * 4


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(f"# exchanged in January\n2026-a {SECRET}\n\n2025-z {'ab' * 32}\n")
    path.chmod(0o600)
    return str(path)


def test_lines_pass_where_both_have_the_keys_and_others_are_refused(
    mqtt: Sites, unique: str, keys: str
) -> None:
    succeeded(create(mqtt, unique, unique))
    forger = ["--producer", "p", "--outbox", mqtt.file("forger.db"), *mqtt.arguments]
    succeeded(reliamsg("pub", unique, *forger, stdin=b"forged\n"))
    succeeded(publish(mqtt, unique, b"one\ntwo\n", "--keys", keys, "--group", unique))
    result = subscribe(mqtt, unique, unique, "--count", "2", "--gap-timeout", "2", "--keys", keys)
    assert succeeded(result) == b"one\ntwo\n"
    assert SECRET.encode() not in result.stderr
    rest = subscribe(mqtt, unique, unique, "--timeout", "1", "--keys", keys)
    assert succeeded(rest) == b""


def test_an_outbox_is_drained_signed(mqtt: Sites, nowhere: Sites, unique: str, keys: str) -> None:
    """Including messages that were stored before there were keys."""
    succeeded(create(mqtt, unique, unique))
    left = publish(nowhere, unique, b"stored before\n", "--timeout", "0.2")
    assert left.returncode == 69
    drain = ["outbox", "drain", nowhere.file("p.db"), *mqtt.arguments, "--keys", keys]
    succeeded(reliamsg(*drain))
    result = subscribe(mqtt, unique, unique, "--count", "1", "--gap-timeout", "2", "--keys", keys)
    assert succeeded(result) == b"stored before\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no key"),
        ("# nothing\n", "no key"),
        ("one\n", "line 1"),
        (f"\none {SECRET[:-1]}\n", "line 2"),
        (f"one {SECRET} more\n", "line 1"),
        (f"one {SECRET}\none {SECRET}\n", "line 2"),
        ("one 0123456789abcdef\n", "at least 16"),
        (f"ö {SECRET}\n", "hexadecimal"),
        (f"one {SECRET} {SECRET}é\n", "hexadecimal"),
    ],
)
def test_a_bad_file_is_refused(nowhere: Sites, text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad-keys"
    path.write_text(text)
    path.chmod(0o600)
    last = refused(publish(nowhere, "t", b"x\n", "--keys", str(path)), 64, says)
    assert "0123456789" not in last


def test_a_file_that_is_not_there(nowhere: Sites) -> None:
    refused(publish(nowhere, "t", b"x\n", "--keys", "/nowhere/keys"), 64, "/nowhere/keys", "No such file")
