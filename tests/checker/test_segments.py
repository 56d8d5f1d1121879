"""Segments as evidence: combining them, and each way in which they can be damaged."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reliamsg import Consumer, Producer
from reliamsg.checker import Expect, Report, check_directory, find_journals
from reliamsg.checker.journals import Role, collect, merge_copies
from reliamsg.checker.segments import check_segment
from reliamsg.config import JournalExport
from reliamsg.export.offline import export_file
from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import SegmentError, decode, digest_of, encode, parse_name
from reliamsg.testing import MemoryNetwork
from tests.checker.histories import make
from tests.checker.test_files import save_all
from tests.patience import patient

ROWS = 5
"""Maximum rows in a segment."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The outboxes, inboxes and logs of a faultless run."""
    save_all(tmp_path / "files", make(7, boots=2))
    return tmp_path / "files"


@pytest.fixture
def journals(files: Path, tmp_path: Path) -> Path:
    """The same run's journals as segments of at most ROWS rows."""
    target = tmp_path / "journals"
    for path in sorted(files.rglob("*.db")):
        shutil.copy(path, tmp_path / "export.db")
        export_file(tmp_path / "export.db", target, segment_rows=ROWS)
        for left in tmp_path.glob("export.db*"):
            left.unlink()
    return target


def of(journals: Path, role: str, client: str) -> list[Path]:
    """A client's segments, in order."""
    found = (journals / f"role={role}" / f"client={client}").rglob("*.ndjson")

    def first_lsn(path: Path) -> int:
        name = parse_name(path.name)
        assert name is not None
        return name.first_lsn

    return sorted(found, key=first_lsn)


def spans(path: Path) -> tuple[int, int]:
    header, _ = decode(path.read_bytes())
    return header.first_lsn, header.last_lsn


def broken(report: Report) -> list[str]:
    return [str(finding) for finding in report.of_kind("broken")]


def facts(report: Report) -> dict[str, object]:
    """Results that must not depend on the form of the journals."""
    return {name: value for name, value in report.as_dict().items() if name not in ("seconds", "evidence")}


def test_segments_have_the_same_content_as_the_files(files: Path, journals: Path) -> None:
    for log in files.glob("*.ndjson"):
        shutil.copy(log, journals)
    assert len(list(journals.rglob("date=*/*.ndjson"))) > 8
    report = check_directory(journals, Expect(drained=True))
    assert report.verdict == "complete", report.text()
    assert facts(report) == facts(check_directory(files, Expect(drained=True)))
    assert (report.clients, report.logs) == (4, 4)


def test_files_and_their_segments_are_one_history(files: Path, journals: Path) -> None:
    before = check_directory(files, Expect(drained=True))
    shutil.move(journals, files / "journals")
    after = check_directory(files, Expect(drained=True))
    assert facts(after) == facts(before)
    assert after.clients == before.clients


def test_segments_and_the_rows_left_in_the_file(files: Path, tmp_path: Path) -> None:
    whole = {(chain.role, chain.client): chain.rows for chain in find_journals(files)[0]}
    for path in sorted(files.rglob("*.db")):
        cut_short(path, tmp_path / "journals", segments=2)
    shutil.move(tmp_path / "journals", files / "journals")
    found = collect(files)
    chains = merge_copies(found.chains)
    assert {(chain.role, chain.client): chain.rows for chain in chains} == whole
    assert all(chain.segments == 1 and chain.sound and chain.to_the_end for chain in chains)
    shutil.rmtree(files / "journals")
    lines = broken(check_directory(files, Expect(drained=True)))
    assert sum("rows 1 to 5 are missing" in line for line in lines) == 4, lines


def cut_short(path: Path, target: Path, segments: int) -> None:
    """Export only the first segments of a file, and crash before the last is recorded: it is in both."""
    rows = find_rows(path)
    parent = noted = None
    for i in range(segments):
        part = [row for row in rows[i * ROWS : (i + 1) * ROWS] if row.boot == rows[i * ROWS].boot]
        assert len(part) == ROWS, "boots are longer than the exported part"
        segment = encode(*client_of(path), part, parent)
        (target / segment.path).parent.mkdir(parents=True, exist_ok=True)
        (target / segment.path).write_bytes(segment.data)
        noted, parent = parent, segment.digest
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM journal WHERE lsn <= ?", (ROWS * (segments - 1),))
        connection.execute(
            "INSERT INTO meta (name, value) VALUES ('journal_parent', ?), ('journal_exported_lsn', ?)",
            (noted, str(ROWS * (segments - 1))),
        )
    connection.close()


def find_rows(path: Path) -> Sequence[JournalRow]:
    return next(chain.rows for chain in find_journals(path.parent)[0] if chain.source == str(path))


def client_of(path: Path) -> tuple[Role, str]:
    return next(
        (chain.role, chain.client) for chain in find_journals(path.parent)[0] if chain.source == str(path)
    )


Damage = Callable[[Path, list[Path]], str]
"""Damages segments of one client below a directory; returns the expected lines."""


def edited(_: Path, segments: list[Path]) -> str:
    data = segments[1].read_bytes()
    at = data.index(b'"wall_us":1') + 10
    segments[1].write_bytes(data[:at] + b"2" + data[at + 1 :])
    return f"{segments[1].name}: edited or damaged: its content does not match the hash in its name"


def edited_last(_: Path, segments: list[Path]) -> str:
    segments[-1].write_bytes(segments[-1].read_bytes().replace(b"closed", b"cloned"))
    return f"{segments[-1].name}: edited or damaged: its content does not match the hash in its name"


def cut(_: Path, segments: list[Path]) -> str:
    data = segments[1].read_bytes()
    segments[1].write_bytes(data[: data.rindex(b"\n", 0, -1) + 4])
    return f"{segments[1].name}: cut: it has {ROWS - 1} complete rows instead of {ROWS}"


def cut_to_nothing(_: Path, segments: list[Path]) -> str:
    segments[1].write_bytes(b"")
    return f"{segments[1].name}: edited or damaged: its content does not match the hash in its name"


def reordered(_: Path, segments: list[Path]) -> str:
    lines = segments[1].read_bytes().splitlines(keepends=True)
    segments[1].write_bytes(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))
    return f"{segments[1].name}: edited or damaged: its content does not match the hash in its name"


def newer(_: Path, segments: list[Path]) -> str:
    data = segments[1].read_bytes().replace(b'"version":2', b'"version":3', 1)
    return f"{put(segments[1], data).name}: written by a newer version (format 3): upgrade reliamsg"


def renamed(_: Path, segments: list[Path]) -> str:
    name = parse_name(segments[1].name)
    assert name is not None
    moved = segments[1].rename(segments[1].with_name(str(replace(name, first_lsn=name.first_lsn + 1))))
    return f"{moved.name}: renamed: its name and its header name different boots or rows"


def nameless(_: Path, segments: list[Path]) -> str:
    segments[1].rename(segments[1].with_name("segment.ndjson"))
    return "segment.ndjson: its name is not that of a segment, so its content can't be verified"


def foreign(journals: Path, segments: list[Path]) -> str:
    other = of(journals, "producer", "A")[0]
    shutil.copy(other, segments[0].parent)
    return f"{other.name}: misplaced: it is among those of group primary, but belongs to producer A"


def no_segment(_: Path, segments: list[Path]) -> str:
    (segments[0].parent / "notes.ndjson").write_text('{"op":"opened"}\n')
    return "notes.ndjson: not a journal segment: the first line is not a header"


def missing_in_the_middle(_: Path, segments: list[Path]) -> str:
    first, last = spans(segments[1])[0], spans(segments[-2])[1]
    for segment in segments[1:-1]:
        segment.unlink()
    return f"rows {first} to {last} are missing"


def missing_at_the_start(_: Path, segments: list[Path]) -> str:
    segments[0].unlink()
    return f"rows 1 to {spans(segments[1])[0] - 1} are missing"


def put(path: Path, data: bytes) -> Path:
    """Replace a segment by other bytes, under the name that matches them."""
    name = parse_name(path.name)
    assert name is not None
    path.unlink()
    path = path.with_name(str(replace(name, digest=digest_of(data))))
    path.write_bytes(data)
    return path


def given_up(_: Path, segments: list[Path]) -> str:
    """The client discarded the rows of the second segment, and says so in a row of its last."""
    first, last = spans(segments[1])
    segments[1].unlink()
    header, rows = decode(segments[-1].read_bytes())
    rows[-2] = replace(rows[-2], kind="truncated", detail={"first_lsn": first, "last_lsn": last})
    put(segments[-1], encode(header.role, header.client, rows, header.parent).data)
    return f"rows {first} to {last} were discarded by the client: its target was unreachable"


@pytest.mark.parametrize("client", [("group", "primary"), ("producer", "B")], ids=" ".join)
@pytest.mark.parametrize(
    "damage",
    [
        edited, edited_last, cut, cut_to_nothing, reordered, newer, renamed, nameless, foreign, no_segment,
        missing_in_the_middle, missing_at_the_start, given_up,
    ],
)  # fmt: skip
def test_damage_is_named_and_proves_nothing(journals: Path, damage: Damage, client: tuple[str, str]) -> None:
    if damage is foreign and client[0] == "producer":
        client = ("group", "primary")
    line = damage(journals, of(journals, *client))
    report = check_directory(journals, Expect(drained=True))
    assert report.verdict == "unknown", report.text()
    said = broken(report)
    assert sum(line in each for each in said) == 1, said
    source = f"{journals}/role={client[0]}/client={client[1]} ({client[0]} {client[1]}): "
    assert all(each.startswith(source) for each in said), said
    assert len(said) <= 2, "the damage, and the rows that are missing for it"


def test_the_same_segment_twice_is_counted(journals: Path) -> None:
    segment = of(journals, "group", "primary")[0]
    shutil.copy(segment, journals)
    (journals / "elsewhere" / "role=group" / "client=primary").mkdir(parents=True)
    shutil.copy(segment, journals / "elsewhere" / "role=group" / "client=primary")
    report = check_directory(journals, Expect(drained=True))
    assert report.verdict == "complete", report.text()
    assert report.as_dict()["evidence"]["duplicated"] == 2


def test_a_last_segment_that_is_not_there(journals: Path) -> None:
    """Nothing shows that it exists: its content is open."""
    of(journals, "producer", "B")[-1].unlink()
    report = check_directory(journals, Expect(drained=True))
    assert report.verdict == "unknown", report.text()
    assert len(report.of_kind("unclosed")) == 1
    assert not report.of_kind("phantom")
    assert not broken(report)


def test_unexported_messages_of_an_open_producer_are_no_phantoms(journals: Path) -> None:
    for segment in of(journals, "producer", "B")[1:]:
        segment.unlink()
    report = check_directory(journals, Expect(drained=True))
    assert report.verdict == "unknown", report.text()
    assert report.of_kind("unproven")
    assert not report.of_kind("phantom")


def test_files_that_are_neither(journals: Path) -> None:
    (journals / "other.ndjson").write_text('{"level":"info"}\n{"level":"warning"}\n')
    (journals / "torn.ndjson").write_text('{"op":"opened","prod')
    (journals / "empty.ndjson").write_text("")
    report = check_directory(journals, Expect(drained=True))
    assert broken(report) == [
        f"{journals / 'other.ndjson'}: neither a journal's segment nor an application's log"
    ]
    assert report.verdict == "unknown"


def test_a_file_that_is_none(journals: Path) -> None:
    """A link that leads nowhere."""
    (journals / "role=group" / "client=primary" / "lost.ndjson").symlink_to("nowhere")
    report = check_directory(journals, Expect(drained=True))
    assert report.verdict == "unknown"
    assert "lost.ndjson: not a file: a symbolic link, which is not followed" in broken(report)[0]


def test_no_client_left(tmp_path: Path) -> None:
    directory = tmp_path / "role=producer" / "client=A%2Fb" / "date=2026-01-01"
    directory.mkdir(parents=True)
    name = f"{1:016x}-{1:019}-{2:064x}.ndjson"
    (directory / name).write_text("{}\n")
    report = check_directory(tmp_path, Expect(drained=True))
    assert report.verdict == "unknown"
    assert broken(report) == [
        f"producer A/b: {name}: edited or damaged: its content does not match the hash in its name"
    ]
    assert [str(finding) for finding in report.of_kind("missing")] == ["there are no journals"]


# -- copies --------------------------------------------------------------------------------------------------


def row(lsn: int, boot: int, kind: str, **more: object) -> JournalRow:
    found = JournalRow(
        lsn, f"{boot:016x}", kind, 1_700_000_000_000_000 + lsn, 1_700_000_000_000_000 + lsn, lsn,
        "", "", 0, 0, 0, 0, 0, "", "", "", None, None, None,
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


def export(target: Path, rows: list[JournalRow], parent: str | None) -> str:
    segment = encode("producer", "A", rows, parent)
    (target / segment.path).parent.mkdir(parents=True, exist_ok=True)
    (target / segment.path).write_bytes(segment.data)
    return segment.digest


def test_a_clone_shares_the_beginning(tmp_path: Path) -> None:
    first = export(tmp_path, [row(1, 1, "opened"), row(2, 1, "connected")], None)
    original = export(tmp_path, [row(3, 1, "connected"), row(4, 1, "closed")], first)
    export(tmp_path, [row(3, 2, "opened"), row(4, 2, "closed")], first)
    export(tmp_path, [row(5, 3, "opened"), row(6, 3, "closed")], original)
    chains, problems = find_journals(tmp_path)
    assert problems == []
    assert [[(r.lsn, int(r.boot, 16)) for r in chain.rows] for chain in chains] == [
        [(1, 1), (2, 1), (3, 2), (4, 2)],
        [(1, 1), (2, 1), (3, 1), (4, 1), (5, 3), (6, 3)],
    ]
    assert all(chain.sound for chain in chains)
    assert len({chain.source for chain in chains}) == 2


def test_a_clone_with_a_missing_segment_continues_with_its_own(tmp_path: Path) -> None:
    first = export(tmp_path, [row(1, 1, "opened"), row(2, 1, "connected")], None)
    export(tmp_path, [row(3, 1, "connected"), row(4, 1, "closed")], first)
    export(tmp_path, [row(3, 2, "opened"), row(4, 2, "connected")], first)
    export(tmp_path, [row(7, 2, "connected"), row(8, 2, "closed")], "f" * 64)
    chains, _ = find_journals(tmp_path)
    assert [chain.broken for chain in chains] == [[], ["rows 5 to 6 are missing"]]
    assert [r.lsn for r in chains[1].rows] == [1, 2, 3, 4, 7, 8]


def test_segments_that_do_not_follow_each_other(tmp_path: Path) -> None:
    export(tmp_path, [row(1, 1, "opened"), row(2, 1, "connected")], None)
    export(tmp_path, [row(3, 1, "connected"), row(4, 1, "closed")], "f" * 64)
    chains, _ = find_journals(tmp_path)
    assert [chain.broken for chain in chains] == [["the rows from 3 on do not continue the rows before them"]]


def test_rows_that_could_not_be_written(tmp_path: Path) -> None:
    rows = [row(1, 1, "opened"), row(2, 1, "truncated", detail={"rows": 7}), row(3, 1, "closed")]
    export(tmp_path, rows, None)
    chains, _ = find_journals(tmp_path)
    assert chains[0].broken == ["7 rows were discarded by the client: its file could not be written"]


@pytest.mark.parametrize("digits", [" -0x_1 ", "0x1", "A", "", "f" * 17, "f" * 1_000_000, "\u0661"])
@pytest.mark.parametrize("field", ["incarnation", "digest"])
def test_numbers_in_digits_are_read_as_the_audit_reads_them(journals: Path, field: str, digits: str) -> None:
    segment = of(journals, "producer", "B")[0]
    damaged, count = re.subn(rf'"{field}":"[0-9a-f]+"', f'"{field}":"{digits}"', segment.read_text(), count=1)
    assert count == 1
    path = put(segment, damaged.encode())
    assert len(str(failure_of(path))) < 200


def failure_of(path: Path) -> SegmentError:
    with pytest.raises(SegmentError, match="hexadecimal digits") as raised:
        check_segment(path.name, path.read_bytes())
    return raised.value


def test_header_with_an_absurd_range_costs_nothing(tmp_path: Path) -> None:
    digest = export(tmp_path, [row(1, 1, "opened")], None)
    path = next(tmp_path.rglob(f"*{digest}.ndjson"))
    put(path, path.read_bytes().replace(b'"last_lsn":1', b'"last_lsn":9000000000000000000'))
    assert "its rows do not match its header" in broken(check_directory(tmp_path, Expect(drained=True)))[0]


# -- real clients --------------------------------------------------------------------------------------------


def test_real_clients(tmp_path: Path) -> None:
    """Judged from segments and files together, from segments alone, and while the clients run."""
    target = tmp_path / "journals"
    journal = JournalExport(target, interval=0.01, segment_rows=3)
    network = MemoryNetwork("dc1", "dc2")
    with (
        Consumer(
            "billing", network.sites, topics=["orders"], inbox=tmp_path / "i.db", journal=journal
        ) as consumer,
        Producer(
            "A", network.sites, outbox=tmp_path / "o.db", groups={"orders": ["billing"]},
            journal=journal,
        ) as producer,
    ):  # fmt: skip
        for number in range(20):
            producer.publish("orders", b"%d" % number)
            message = consumer.get(60)
            assert message is not None
            message.ack(durable=True)
        report = check_directory(tmp_path, Expect(drained=True))
        assert report.verdict == "unknown", "no client has closed"
        assert {finding.kind for finding in report.findings} <= {"unclosed", "pending"}, report.text()
        producer.flush(patient(10))
    for directory in (tmp_path, target):
        report = check_directory(directory, Expect(drained=True))
        assert report.verdict == "complete", report.text()
        assert (report.messages.enqueued, report.messages.delivered) == (20, {"billing": 20})
