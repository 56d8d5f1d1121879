"""Whatever files, names and brokers contain: a terminal gets no control sequences, and nothing invisible."""

from __future__ import annotations

import ast
import json
import logging
import os
import pty
import shutil
import sqlite3
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reliamsg.checker import Counts
from reliamsg.checker.report import Finding, Hold, Offset, ProvenChain, Report, SiteCounts, Through
from reliamsg.cli.app import main, root
from reliamsg.cli.progress import Progress
from reliamsg.message import Message, Stream
from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import encode
from reliamsg.terminal import ascii_json, printable, printable_lines
from tests.cli.commands import reliamsg_here
from tests.fuzz import seeds

EVIL = (
    "evil\x1b[31mRED\x1b]0;pwned\x07\x9b2J\x7f\r\n\x00\t\x08<b>\u202egnp.\u2066\u200b\u2028\ufeff\u00ad\u3164\ufe0f"
    "\U000e0041\u061c"
)
"""Colours, a window's title, C1, a forged line, right-to-left text, and invisible characters."""
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
SOURCE = Path(__file__).parents[2] / "src" / "reliamsg"


def forbidden(text: str) -> set[str]:
    """Characters that must not reach a terminal, except for our own line breaks."""
    return {c for c in text if c != "\n" and (unicodedata.category(c) in UNSEEN or c in "\u3164\ufe0f")}


# -- one text -------------------------------------------------------------------------------------------------


def test_every_code_point() -> None:
    for code in range(sys.maxunicode + 1):
        shown = printable(f"a{chr(code)}b")
        assert not forbidden(shown.replace("\n", "\0")), hex(code)
        category = unicodedata.category(chr(code))
        if category[0] in "LNPS" and code < 0x1100:
            assert shown == f"a{chr(code)}b", hex(code)


@pytest.mark.parametrize("text", ["orders", "Zürich", "日本語", "🚚", "a b", "naïve – “quoted”", "שלום", ""])
def test_ordinary_text_stays_unchanged(text: str) -> None:
    assert printable(text) == text


def test_escapes_can_be_read() -> None:
    assert printable("\x1b\x9b\u202e\U000e0041\ud800") == r"\x1b\x9b\u202e\U000e0041\ud800"
    assert printable_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n".replace("\\r", r"\x0d")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
@example("caf\u00e9 \x9b")
def test_json_is_ascii_and_means_the_same(value: object) -> None:
    for text in (json.dumps(value, ensure_ascii=False), json.dumps(value)):
        safe = ascii_json(text)
        assert safe.isascii()
        assert safe.isprintable()
        assert json.loads(safe) == json.loads(text)


# -- the commands ---------------------------------------------------------------------------------------------


def segments(directory: Path) -> Path:
    """Journals of clients with such names and such rows."""
    boot = "00000000000000aa"

    def row(lsn: int, kind: str, *, first: int = 0, last: int = 0, **more: object) -> JournalRow:
        fields = {
            "site": EVIL,
            "group": EVIL,
            "reason": EVIL,
            "digest": 7,
            "latency": None,
            "detail": {EVIL: EVIL},
        }
        at = 1_700_000_000_000_000 + lsn
        return JournalRow(
            lsn, boot, kind, at, at, lsn, EVIL, EVIL, 0, 1, 1, first, last, **{**fields, **more}  # type: ignore[arg-type]
        )  # fmt: skip

    for role in ("producer", "group"):
        rows = [
            row(1, "opened"),
            row(2, "enqueued", first=1, last=3),
            row(3, EVIL, first=1, last=2**62),
            row(4, "delivered", first=1, last=2),
            row(5, "declared", first=3, last=3),
            row(6, "acknowledged", first=9, last=9),
        ]
        made = encode(role, EVIL, rows, None)
        path = directory / made.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.data)
    (directory / f"{EVIL.replace(chr(0), '')}.ndjson").write_bytes(b"noise")
    return directory


def texts_of(path: Path) -> list[tuple[str, str]]:
    """Every column of a database that holds text."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return [
            (table, column[1])
            for table in tables
            for column in connection.execute(f'PRAGMA table_info("{table}")')
            if column[2].upper() == "TEXT"
            and connection.execute(
                f'SELECT count(*) FROM "{table}" WHERE "{column[1]}" IS NOT NULL'
            ).fetchone()[0]
        ]


def spoiled(raw: bytes, path: Path) -> Iterator[Path]:
    """The database with such text, in one of its columns after the other, then in all."""
    path.write_bytes(raw)
    columns = texts_of(path)
    assert len(columns) >= 5
    for some in [*[[column] for column in columns], columns]:
        path.write_bytes(raw)
        with closing(sqlite3.connect(path)) as connection:
            for table, column in some:
                connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ? || "{column}"', (EVIL,))
            connection.commit()
        yield path


def check(*arguments: str | Path) -> str:
    """Run a command and check that its output is safe. Returns its standard output."""
    done = reliamsg_here(*arguments)
    for said in (done.stdout, done.stderr):
        assert not forbidden(said.decode()), (arguments, said)
    assert b"Traceback" not in done.stderr
    assert "internal error" not in done.stderr.decode(), done.stderr
    if "--json" in arguments or "cat" in arguments:
        for line in done.stdout.splitlines():
            assert line.isascii()
            json.loads(line)
    return done.stdout.decode()


LOOKERS = {
    "journal verify": ["journal", "verify"],
    "journal verify --json": ["journal", "verify", "--json"],
    "journal cat": ["journal", "cat"],
    "outbox stats": ["outbox", "stats"],
    "outbox stats --json": ["outbox", "stats", "--json"],
    "outbox ls": ["outbox", "ls"],
    "outbox ls --json": ["outbox", "ls", "--json"],
    "outbox show": ["outbox", "show"],
    "outbox show --json": ["outbox", "show", "--json"],
    "inbox stats": ["inbox", "stats"],
    "inbox stats --json": ["inbox", "stats", "--json"],
    "inbox ls": ["inbox", "ls"],
    "inbox ls --json": ["inbox", "ls", "--json"],
    "inbox gaps": ["inbox", "gaps"],
    "inbox gaps --json": ["inbox", "gaps", "--json"],
    "inbox dead-letters": ["inbox", "dead-letters"],
    "inbox dead-letters --json": ["inbox", "dead-letters", "--json"],
    "inbox quarantine list": ["inbox", "quarantine", "list"],
    "inbox quarantine list --json": ["inbox", "quarantine", "list", "--json"],
    "top": ["top", "--once"],
    "top --json": ["top", "--once", "--json"],
}


@pytest.mark.parametrize("command", ["journal verify", "journal verify --json", "journal cat"])
def test_journals_of_strangers(command: str, tmp_path: Path) -> None:
    shown = check(*LOOKERS[command], segments(tmp_path / "journals"))
    assert "pwned" in shown


@pytest.mark.parametrize("command", LOOKERS)
@pytest.mark.parametrize("role", ["outbox", "inbox"])
def test_files_of_strangers(role: str, command: str, tmp_path: Path) -> None:
    shown = ""
    raw = seeds.outbox_file() if role == "outbox" else seeds.inbox_file()
    for path in spoiled(raw, tmp_path / f"{role}.db"):
        shown += check(*LOOKERS[command], path)
    if command.startswith(("journal", "top", role)) and "quarantine" not in command:
        assert "pwned" in shown


def test_exports_of_strangers(tmp_path: Path) -> None:
    for number, path in enumerate(spoiled(seeds.inbox_file(), tmp_path / "inbox.db")):
        out = tmp_path / "below" / f"out{number}"
        check("journal", "export", path, "--to", out)
        assert not [file for file in tmp_path.rglob("*.ndjson") if out not in file.parents]
        shutil.rmtree(out, ignore_errors=True)


@pytest.mark.parametrize("boot", ["../../../../outside", "/outside", "a/b", "", "A" * 16])
def test_an_export_stays_below_its_directory(boot: str, tmp_path: Path) -> None:
    """A boot becomes part of a file's name."""
    path = tmp_path / "inbox.db"
    path.write_bytes(seeds.inbox_file())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE journal SET boot = ?", (boot,))
        connection.commit()
    assert reliamsg_here("journal", "export", path, "--to", tmp_path / "a" / "b").returncode == 65
    assert not list(tmp_path.rglob("*.ndjson"))


OTHER_PROGRAMS = (("audit",), ("journal", "compact"))
"""Commands that replace the process with another program."""
RUNNING = ("demo", "lab", "top")
"""Commands that run with little more than names."""


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path, command


@pytest.mark.parametrize(
    ("path", "command"),
    [(p, c) for p, c in leaves(root) if p not in OTHER_PROGRAMS],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_arguments_of_strangers(path: tuple[str, ...], command: click.Command, tmp_path: Path) -> None:
    """Refused values are repeated safely: each option and argument of each command with such text."""
    text = EVIL.replace("\0", "")
    check(*path, f"--{text}")
    check(text)
    if path[0] in RUNNING:
        return  # they take other values: a directory, numbers
    check(*path, text, text, text)
    for parameter in command.params:
        if (
            isinstance(parameter, click.Option)
            and not parameter.is_flag
            and parameter.type.name != "integer range"
        ):
            check(*path, parameter.opts[0], text)
            check(*path, parameter.opts[0], f"{text}={text}://{text}@{text}")


@pytest.mark.parametrize("program", ["accept", "compact", "show"])
def test_arguments_of_strangers_for_programs_of_the_audit(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(f"reliamsg.audit.{program}")
    text = EVIL.replace("\0", "")
    for arguments in (
        [f"--{text}"],
        [text],
        [text, text],
        [text, text, text],
        [str(tmp_path), text],
    ):
        assert module.main(arguments) != 0
        out, err = capsys.readouterr()
        assert not forbidden(out)
        assert not forbidden(err)
        assert err


def test_logs_of_strangers(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("reliamsg")
    handlers, level = logger.handlers[:], logger.level
    try:
        main(["-vv", "outbox", "stats", "/nonexistent"])
        logging.getLogger("reliamsg.transport").warning("the broker says %s", EVIL)
        try:
            raise ValueError(EVIL)
        except ValueError:
            logging.getLogger("reliamsg.transport").exception("it failed")
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    said = capfd.readouterr().err
    assert "pwned" in said
    assert not forbidden(said)
    assert all(line.startswith("reliamsg: ") for line in said.splitlines())


def test_a_fault_of_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(EVIL)

    monkeypatch.setattr("reliamsg.store.outbox_view.inspect_outbox", fail)
    monkeypatch.setenv("RELIAMSG_TRACEBACK", "1")
    done = reliamsg_here("outbox", "stats", "x.db")
    assert b"Traceback" in done.stderr
    assert not forbidden(done.stderr.decode())


# -- what is composed elsewhere -------------------------------------------------------------------------------


def test_reports_of_the_checker_and_the_audit() -> None:
    from reliamsg.audit.verdict import table

    chain = ProvenChain("group", EVIL, EVIL, 0, "open", Offset("producer", EVIL, 1, None))
    report = Report(
        [Finding("phantom", EVIL, Stream(EVIL, EVIL, 0), EVIL, EVIL, 1, 1, 2)],
        Counts(delivered={EVIL: 3}), sites={EVIL: SiteCounts()},
        latency={EVIL: {EVIL: 1.0}}, through=Through(1, [Hold("group", EVIL, 1, EVIL)], [chain]),
    )  # fmt: skip
    assert "pwned" in report.text()
    assert not forbidden(report.text())
    assert len(report.text().splitlines()) == 11
    counts = dict.fromkeys(
        ("enqueued", "proven", "lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending", "late",
         "before_join", "dead_lettered", "saved_by_repair", "saved_by_second_site"), 0
    )  # fmt: skip
    site = {"confirmed": 0, "received": 0, "lost_after_confirm": 0, "saved_alone": 0}
    verdict = {
        "verdict": EVIL, "through": EVIL, "held_by": [{"role": EVIL, "client": EVIL, "why": EVIL}, {"why": EVIL}],
        "clients": [
            {"role": EVIL, "client": EVIL, "offset": {"role": EVIL, "client": EVIL, "least_s": 1.0, "most_s": None}}
        ],
        "messages": {**counts, "delivered": {EVIL: 1}}, "streams": 1, "sites": {EVIL: site},
        "evidence": {"clients": 1, "missing": [EVIL], "signatures_checked": True, "broken": [EVIL], "checkpoints": 0},
        "latency": {EVIL: {EVIL: 1.0}},
        "findings": [{"severity": EVIL, "kind": EVIL, "text": EVIL}], "rows": 1, "seconds": 1.0,
        "days": 2 * [{"day": EVIL, "enqueued": 1, "declared_gaps": 0, "repaired": 0}],
        "window": {
            "since": EVIL, "through": EVIL, "verdict": EVIL, "enqueued": 1, "proven": 1, "incidents": 0, "accepted": 0,
        },
    }  # fmt: skip
    assert not forbidden(table(verdict))
    assert len(table(verdict).splitlines()) == 18


def test_the_texts_of_brokers() -> None:
    from reliamsg.transport.amqp.codec import text

    for raw in (EVIL.encode() + b"\xff", EVIL):
        assert not forbidden(text(raw))


class Nobody:
    """The target of a message's reports."""

    def acknowledge(self, message: Message, durable: bool) -> None:
        assert not durable

    def reject(self, message: Message, reason: str) -> None:
        raise AssertionError(reason)

    def failed(self, message: Message, error: BaseException) -> None:
        raise AssertionError(error)


def test_bodies_and_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sub` writes bodies byte for byte, but not to a terminal."""
    from reliamsg.cli.subscribe import _Stdout, _Writer

    body = EVIL.encode() + b"\xff"
    message = Message("p", "t", 0, 1, 1, body, None, {}, False, False, Nobody())
    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        _Writer(_Stdout(terminal, False)).write([message])
        assert not forbidden(os.read(mine, 4096).decode().replace("\r\n", "\n"))
        with os.fdopen(os.dup(theirs), "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            with Progress() as progress:
                progress.show(lambda: EVIL)
            shown = os.read(mine, 4096).decode()
    os.close(mine)
    assert "pwned" in shown
    assert not forbidden(shown.replace("\r\x1b[K", ""))


# -- no other way to print ----------------------------------------------------------------------------------

PRINTING = [*sorted((SOURCE / "cli").rglob("*.py")), SOURCE / "audit" / "__main__.py"]


def calls_that_print(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            name = called.rpartition(".")[2]
            wrote = name in ("write", "writelines") and ("stdout" in called or "stderr" in called)
            if name in ("print", "echo", "secho", "pprint", "print_exc", "echo_via_pager", "rprint") or wrote:
                yield node.lineno


@pytest.mark.parametrize("path", PRINTING, ids=lambda path: str(path.relative_to(SOURCE)))
def test_commands_print_through_one_module(path: Path) -> None:
    assert not [f"{path}:{line}" for line in calls_that_print(ast.parse(path.read_text()))]


def test_that_rule_finds_what_it_is_for() -> None:
    calls = [
        "print(1)",
        "click.echo(x)",
        "sys.stdout.write(y)",
        "sys.stderr.buffer.write(z)",
        "traceback.print_exc()",
    ]
    assert list(calls_that_print(ast.parse("\n".join([*calls, "file.write(b)"])))) == [1, 2, 3, 4, 5]
