"""A compaction with the clients' keys: no checkpoint is made from a segment that its client has not signed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg import KeyRing
from reliamsg.audit.compact import main
from reliamsg.audit.compaction import Compacted, compact
from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.checker import Expect, check_directory
from reliamsg.errors import ConfigError
from reliamsg.trust import Owner, Trust
from tests.audit.equality import shared
from tests.audit.local_spark import local_spark
from tests.audit.test_signed import (
    EVERYONE,
    FOREIGN,
    OTHER,
    TILL,
    UNSIGNED,
    WRONG,
    again,
    broken,
    judged,
    of,
    put,
    rechained,
    run,
)
from tests.signed import key_of, keys_file, trust_in

AUDITOR = KeyRing({"auditor": b"x" * 32}, sign_with="auditor")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clients that began to sign at their second opening."""
    place = tmp_path_factory.mktemp("compacted-signed")
    run(place, None)
    run(place, "a")
    return place / "journals"


@pytest.fixture
def journals(real: Path, tmp_path: Path) -> Path:
    shutil.copytree(real, tmp_path / "journals")
    return tmp_path / "journals"


def last_unsigned(journals: Path, owner: Owner) -> Path:
    return [path for path in of(journals, owner) if b'"signature":"' not in path.read_bytes()][-1]


def positions(journals: Path) -> list[str]:
    return [f"{'/'.join(owner)}@{last_unsigned(journals, owner).name}" for owner in EVERYONE]


@pytest.fixture
def trust(journals: Path, tmp_path: Path) -> Trust:
    return trust_in(tmp_path / "keys", EVERYONE, *positions(journals))


def compacted(journals: Path, trust: Trust | None, archive: Path | None = None) -> dict[Owner, Compacted]:
    found = compact(journals, keys=AUDITOR, trust=trust, archive=archive)
    return {(each.role, each.client): each for each in found}


def problem(found: dict[Owner, Compacted], owner: Owner) -> str:
    return found[owner].problem or ""


def alike(journals: Path, trust: Trust, archive: Path) -> None:
    """Both programs say of the checkpoints what they say of the segments."""
    before = judged(journals, trust)
    assert not any(each.problem for each in compacted(journals, trust, archive).values())
    rules = {"drained": True, "now_us": 2**60, "trust": trust, "checkpoint_keys": AUDITOR}
    by_audit = audit(local_spark(1), journals, expect=AuditExpect(**rules))  # type: ignore[arg-type]
    plainly = check_directory(journals, Expect(**rules)).as_dict()  # type: ignore[arg-type]
    assert shared(by_audit) == shared(plainly)
    for name in ("verdict", "through", "messages"):
        assert by_audit[name] == before[name], name
    assert by_audit["evidence"]["checkpoints"] == len(EVERYONE)


def test_signed_and_accepted_segments_are_compacted(journals: Path, trust: Trust, tmp_path: Path) -> None:
    alike(journals, trust, tmp_path / "archive")


def test_a_checkpoint_is_continued(journals: Path, trust: Trust, tmp_path: Path) -> None:
    """Also by segments that were accepted by a name that only the checkpoint lists by then."""
    late = of(journals, TILL)[-2:]
    for path in late:
        shutil.move(path, tmp_path / path.name)
    assert not any(each.problem for each in compacted(journals, trust, tmp_path / "archive").values())
    for path in late:
        shutil.move(tmp_path / path.name, path)
    done = compacted(journals, trust, tmp_path / "archive")
    assert problem(done, TILL) == ""
    assert done[TILL].written


def _edited(path: Path) -> Path:
    """An attacker changes rows and the name to fit, and keeps the signature."""
    line, _, body = path.read_bytes().partition(b"\n")
    changed = body.replace(b'"wall_us":1', b'"wall_us":2', 1)
    assert changed != body
    return _renamed(path, line + b"\n" + changed)


def _renamed(path: Path, data: bytes) -> Path:

    boot, lsn, _ = path.name.split("-")
    path.unlink()
    path = path.with_name(f"{boot}-{lsn}-{hashlib.sha256(data).hexdigest()}.ndjson")
    path.write_bytes(data)
    return path


def _foreign(path: Path) -> Path:
    segment = again(path, key_of(*OTHER, "b"))
    path.unlink()
    return put(path.parents[3], segment)


def _stripped(path: Path) -> Path:
    segment = again(path, None)
    path.unlink()
    return put(path.parents[3], segment)


@pytest.mark.parametrize("archived", [False, True], ids=["first", "continued"])
@pytest.mark.parametrize(("spoil", "words"), [(_edited, WRONG), (_foreign, FOREIGN), (_stripped, UNSIGNED)])
def test_a_client_with_a_bad_signature_is_left_out(
    spoil: Callable[[Path], Path], words: str, archived: bool, journals: Path, trust: Trust, tmp_path: Path
) -> None:
    """In the words of the audit and the plain checker. The other clients are compacted."""
    last = of(journals, TILL)[-1]
    if archived:
        data = last.read_bytes()
        last.unlink()
        assert not any(each.problem for each in compacted(journals, trust, tmp_path / "archive").values())
        last.parent.mkdir(parents=True, exist_ok=True)
        last.write_bytes(data)
    bad = spoil(last)
    checkpoints = set(journals.rglob("checkpoint-*"))
    if not archived:
        assert broken(judged(journals, trust), bad.name) == [words]
    done = compacted(journals, trust, tmp_path / "archive")
    assert problem(done, TILL) == f"{bad.name}: {words}"
    assert bad.exists()
    home = journals / "role=producer" / "client=till"
    assert not [path for path in set(journals.rglob("checkpoint-*")) - checkpoints if home in path.parents]
    assert [owner for owner in done if done[owner].problem] == [TILL]
    assert (
        problem(compacted(journals, None), TILL) == ""
    )  # which is why a checkpoint must not be made without keys


def test_a_chain_of_another_key_is_left_out(journals: Path, trust: Trust) -> None:
    """Everything after the last unsigned segment is made anew."""
    start = of(journals, TILL).index(last_unsigned(journals, TILL)) + 1
    (first, *_) = rechained(journals, TILL, key_of(*OTHER), start=start)
    # Both clients name their keys "a": this one's was not used.
    assert problem(compacted(journals, trust), TILL).endswith(f": {WRONG}")
    assert first.exists()


def test_unsigned_segments_are_accepted_by_name_only(journals: Path, tmp_path: Path) -> None:
    named = [each for each in positions(journals) if not each.startswith("producer/till")]
    done = compacted(journals, trust_in(tmp_path / "keys", EVERYONE, *named))
    first = of(journals, TILL)[0]
    assert problem(done, TILL) == f"{first.name}: {UNSIGNED}"
    assert [owner for owner in done if done[owner].problem] == [TILL]


def test_an_unsigned_segment_behind_the_accepted_ones(journals: Path, trust: Trust, tmp_path: Path) -> None:
    paths = of(journals, TILL)
    segment = again(paths[-1], None)
    paths[-1].unlink()
    bad = put(journals, segment)
    assert problem(compacted(journals, trust), TILL) == f"{bad.name}: {UNSIGNED}"


def test_what_a_checkpoint_covers_is_checked_while_it_is_there(
    journals: Path, trust: Trust, tmp_path: Path
) -> None:
    """The earlier compaction had no keys."""
    paths = of(journals, TILL)
    later = paths[-1].read_bytes()
    paths[-1].unlink()
    segment = again(paths[-2], key_of(*OTHER))
    paths[-2].unlink()
    forged = put(journals, segment)
    assert problem(compacted(journals, None), TILL) == ""
    paths[-1].write_bytes(later)
    archive = tmp_path / "archive"
    assert problem(compacted(journals, trust, archive), TILL) == f"{forged.name}: {WRONG}"
    assert forged.exists()


def test_a_segment_that_is_replaced_in_between(
    journals: Path, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is folded is what was verified, even if files change between the two."""
    from reliamsg.audit import compaction

    last = of(journals, TILL)[-1]
    good = last.read_bytes()
    last.write_bytes(b"x" + good)
    reads: list[Path] = []

    def read(path: Path) -> bytes:
        reads.append(path)
        return good if Path(path) == last and reads.count(path) > 1 else Path(path).read_bytes()

    monkeypatch.setattr(compaction, "read_regular", read)
    assert problem(compacted(journals, trust), TILL) == f"{last.name}: it was replaced while it was read"


def test_the_auditors_keys_are_needed(
    journals: Path, trust: Trust, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="--journal-keys needs --keys"):
        list(compact(journals, trust=trust))
    assert not list(journals.rglob("checkpoint-*"))
    keys = keys_file(tmp_path / "clients", EVERYONE)
    assert main([str(journals), "--journal-keys", str(keys)]) == 64
    assert "--journal-keys needs --keys" in capsys.readouterr().err
    assert main([str(journals), "--unsigned-before", positions(journals)[0]]) == 64
    assert "--unsigned-before needs --journal-keys" in capsys.readouterr().err


def test_the_command(journals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auditor = tmp_path / "auditor"
    auditor.write_text(f"auditor {(b'x' * 32).hex()}\n")
    auditor.chmod(0o600)
    keys = keys_file(tmp_path / "clients", EVERYONE)
    arguments = [str(journals), "--keys", str(auditor), "--journal-keys", str(keys)]
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.err.count(f": {UNSIGNED}\n") == len(EVERYONE)
    assert said.out == "signatures were checked\n"
    for each in positions(journals):
        arguments += ["--unsigned-before", each]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert (said.out.splitlines()[-1], said.err) == ("signatures were checked", "")
    assert main(arguments[:3]) == 0
    assert capsys.readouterr().out.endswith("\nsignatures were not checked (--journal-keys)\n")
