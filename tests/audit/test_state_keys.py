"""States that the auditor signs: whoever else can write to their directory changes nothing unnoticed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from reliamsg.audit import accept, acceptances, signed
from reliamsg.audit.__main__ import main
from reliamsg.audit.acceptances import read_acceptances, renew_acceptances, write_acceptance
from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.audit.kept import Kept, is_state, read_audited, read_facts, write_facts
from reliamsg.audit.signed import ACCEPTANCE, CHECKPOINT, STATE, encode_signed
from reliamsg.audit.verdict import status, table
from reliamsg.audit.windows import Baseline
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing
from reliamsg.store.signing import sign_line
from tests.audit.generated import journals
from tests.audit.local_spark import local_spark
from tests.audit.test_follow import followed
from tests.audit.test_kept import shown, without_incidents
from tests.audit.test_windows import System
from tests.chance import examples

A, B, FORGED = b"a" * 32, b"b" * 32, b"f" * 32
KEYS = KeyRing({"2026": A}, sign_with="2026")
BOTH = KeyRing({"2027": B, "2026": A}, sign_with="2027")
NEWER = KeyRing({"2027": B}, sign_with="2027")
SAME_ID = KeyRing({"2026": FORGED}, sign_with="2026")
OTHER_ID = KeyRing({"mine": FORGED}, sign_with="mine")
MANIFEST = "kept.json"
ALWAYS = Baseline()
"""With the window of all time."""


@pytest.fixture
def system(tmp_path: Path) -> System:
    """With a signed state, and a loss that was accepted."""
    return prepared(System(tmp_path / "own", keys=KEYS))


def prepared(found: System, lost: int = 41) -> System:
    found.day(lost=[lost])
    (incident,) = found.audit()["incidents"]
    file = keys_file(found.place / "keys", KEYS)
    done = accept.main([str(found.state), incident["id"], "--reason", "known", "--state-keys", str(file)])
    assert done == 0
    return found


def keys_file(path: Path, keys: KeyRing) -> Path:
    secrets = {"2026": A, "2027": B}
    first = keys.sign_with or ""
    ids = [first, *(each for each in keys.key_ids if each != first)]
    path.write_text("# the auditor's\n" + "".join(f"{each} {secrets[each].hex()}\n" for each in ids))
    path.chmod(0o600)
    return path


def acceptance_of(system: System) -> Path:
    (path,) = system.state.glob("accepted-*.json")
    return path


def signer_of(path: Path) -> str:
    return str(json.loads(path.read_text())["signature"]["key"])


def one(system: System, kind: str) -> Path:
    return min(system.state.glob(f"{kind}-*"))


# -- with keys ----------------------------------------------------------------------------------------------


def test_what_was_kept_is_used_by_the_next_audit(system: System) -> None:
    before = system.again(baseline=ALWAYS)
    assert (before["verdict"], before["window"]["verdict"], status(before)) == ("lost", "accepted", 0)
    for path in system.place.rglob("*.ndjson"):
        path.unlink()
    assert shown(system.again(baseline=ALWAYS)) == shown(before)
    content = json.loads((system.state / MANIFEST).read_text())
    assert list(content)[-1] == "signature"
    assert list(content["signature"]) == ["key", "hmac"]


@pytest.mark.parametrize("keys", [KEYS, None])
def test_the_verdict_tells_whether_the_signature_was_checked(tmp_path: Path, keys: KeyRing | None) -> None:
    system = System(tmp_path, keys=keys)
    system.day()
    found = system.audit()
    assert found["evidence"]["state_signature_checked"] is (keys is not None)
    said = [each for each in table(found).splitlines() if "the state" in each]
    assert said == [f"  signature of the state: {'not checked' if keys is None else 'checked'}"]
    without = system.again(state=False)
    assert "state_signature_checked" not in without["evidence"]
    assert "the state" not in table(without)


def test_an_empty_directory_starts_signed(tmp_path: Path) -> None:
    system = System(tmp_path, keys=KEYS)
    system.state.mkdir()
    system.day()
    system.audit()
    assert signer_of(system.state / MANIFEST) == "2026"


def test_keys_are_rotated_by_audits(system: System) -> None:
    system.keys = BOTH
    system.again()
    for path in (system.state / MANIFEST, acceptance_of(system)):
        assert signer_of(path) == "2027"
    system.keys = NEWER
    found = system.again(baseline=ALWAYS)
    assert found["window"]["verdict"] == "accepted"
    system.keys = KEYS
    with pytest.raises(
        ConfigError, match=r"kept\.json: signed with an unknown key; remove it, and audit again"
    ):
        system.again()


def test_an_acceptance_that_is_withdrawn_while_keys_are_rotated_stays_withdrawn(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = acceptances._changing

    @contextmanager
    def later(directory: Path) -> Iterator[None]:
        assert (
            accept.main([str(directory), acceptance_of(system).stem.removeprefix("accepted-"), "--withdraw"])
            == 0
        )
        with changing(directory):
            yield

    with monkeypatch.context() as patched:
        patched.setattr("reliamsg.audit.acceptances._changing", _once(later, changing))
        renew_acceptances(system.state, BOTH)
    assert not read_acceptances(system.state, BOTH).by_id


def _once(first: Callable[[Path], Any], then: Callable[[Path], Any]) -> Callable[[Path], Any]:
    calls = iter([first])

    def call(directory: Path) -> Any:
        return next(calls, then)(directory)

    return call


def test_only_one_program_changes_acceptances(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptances, "_LOCK_S", 0.05)
    (each,) = read_acceptances(system.state, KEYS).by_id.values()
    with acceptances._changing(system.state):
        with pytest.raises(ConfigError, match="another program is changing acceptances; try again"):
            write_acceptance(system.state, each, KEYS)
        system.again()  # which has nothing to sign anew
    write_acceptance(system.state, each, KEYS)


def test_a_ring_that_only_verifies_can_t_keep_a_state(system: System) -> None:
    with pytest.raises(ConfigError, match="this key ring only verifies"):
        Kept(system.state, KeyRing({"2026": A}))
    assert read_audited(system.state, KeyRing({"2026": A})) is not None


# -- others who can write to the directory ------------------------------------------------------------------


def refused(system: System, capsys: pytest.CaptureFixture[str], says: str) -> None:
    """By everything that reads it."""
    with pytest.raises(ConfigError) as error:
        system.again()
    assert says in str(error.value)
    file = str(keys_file(system.place / "keys", KEYS))
    capsys.readouterr()
    assert main([str(system.place), "--state", str(system.state), "--state-keys", file]) == 64
    assert says in capsys.readouterr().err


def resigned(path: Path, keys: KeyRing | None, what: bytes, **changes: Any) -> None:
    """Replace fields of a JSON file, and sign it so."""
    content = json.loads(path.read_text())
    del content["signature"]
    path.write_bytes(encode_signed({**content, **changes}, keys, what))


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def with_signature(path: Path, signature: dict[str, str]) -> None:
    """In the form in which signed files have it."""
    edited(path, "\n}\n", f',\n  "signature": {msgspec.json.encode(signature).decode()}\n}}\n')


def as_journal(path: Path, _: bytes) -> None:
    """A line that is signed as that of a segment is, by the same key."""
    content = json.loads(path.read_text())
    del content["signature"]
    path.write_bytes(sign_line(msgspec.json.encode(content), b"", KEYS))


def with_signature_of(path: Path, what: bytes) -> None:
    content = json.loads(path.read_text())
    del content["signature"]
    data = msgspec.json.format(msgspec.json.encode(content)) + b"\n"
    signature = {"key": "2026", "hmac": KEYS.sign((what, data)).hex()}
    path.write_bytes(msgspec.json.format(msgspec.json.encode({**content, "signature": signature})))


def with_null(path: Path, what: bytes) -> None:
    resigned(path, None, what)
    edited(path, "\n}\n", ', "signature": null}')


WRONG, UNSIGNED, UNKNOWN = "its signature is wrong", "not signed", "signed with an unknown key"
FORGERIES: dict[str, tuple[Callable[[Path, bytes], object], str]] = {
    "not signed": (lambda path, what: resigned(path, None, what), UNSIGNED),
    "signed with null": (with_null, UNSIGNED),
    "another key": (lambda path, what: resigned(path, OTHER_ID, what), UNKNOWN),
    "another key of this name": (lambda path, what: resigned(path, SAME_ID, what), WRONG),
    "as a checkpoint": (lambda path, what: resigned(path, KEYS, CHECKPOINT), WRONG),
    "as the other file": (lambda path, what: resigned(path, KEYS, STATE if what == ACCEPTANCE else ACCEPTANCE), WRONG),
    "as a frame": (lambda path, what: resigned(path, KEYS, b""), WRONG),
    "written otherwise": (with_signature_of, WRONG),
    "as a journal": (as_journal, "damaged"),
    "a second content": (lambda path, what: edited(path, "\n}\n", ', "version": 99, "reason": "x"\n}\n'), WRONG),
    "nothing": (lambda path, what: path.write_text(""), "damaged"),
    "brackets": (lambda path, what: path.write_text('{"x":' + "[" * 100_000), "damaged"),
    "a signature of another form": (lambda path, what: edited(path, '"hmac":"', '"hmac":"0'), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGERIES)
@pytest.mark.parametrize("name", ["state", "acceptance"])
def test_forged_files_are_refused(
    system: System, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    forge, says = FORGERIES[how]
    path, what = (system.state / MANIFEST, STATE) if name == "state" else (acceptance_of(system), ACCEPTANCE)
    remedy = "audit again" if name == "state" else "accept the incident again"
    forge(path, what)
    refused(system, capsys, f"{path}: {says}")
    assert accept.main([str(system.state), "--state-keys", str(system.place / "keys")]) == 64
    said = capsys.readouterr().err
    assert f"{path}: {says}" in said
    assert said.endswith(f"; remove it, and {remedy}\n")
    path.unlink()
    system.again()


@pytest.mark.parametrize(
    "changes", [{"version": 99}, {"version": 0}, {"format": "x"}, {"files": []}, {"audited": None}], ids=str
)
def test_every_field_is_signed(
    system: System, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    """Also those by which a state of another version is recognized, and not used."""
    path = system.state / MANIFEST
    signature = json.loads(path.read_text())["signature"]
    resigned(path, None, STATE, **changes)
    with_signature(path, signature)
    refused(system, capsys, f"{path}: {WRONG}")


@pytest.mark.parametrize("field", ["incident", "reason", "by", "at_us"])
def test_every_field_of_an_acceptance_is_signed(
    system: System, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    path = acceptance_of(system)
    content = json.loads(path.read_text())
    changed = {
        "incident": [content["incident"][0], "violated", None, 10**6], "reason": "unknown", "by": "mallory", "at_us": 0,
    }  # fmt: skip
    resigned(path, None, ACCEPTANCE, **{field: changed[field]})
    with_signature(path, content["signature"])
    refused(system, capsys, f"{path}: {WRONG}")


def test_a_state_of_another_version_is_folded_again_if_it_is_signed(system: System) -> None:
    resigned(system.state / MANIFEST, KEYS, STATE, version=99)
    found = system.again()
    assert (found["window"]["since"], found["window"]["verdict"]) == (None, "accepted")


@pytest.mark.parametrize("kind", ["facts", "parts", "audited"])
def test_a_file_is_not_decoded_because_the_list_names_it(
    system: System, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path, manifest = one(system, kind), system.state / MANIFEST
    before = sha256(path.read_bytes()).hexdigest()
    path.write_bytes(b"\xc1")
    edited(manifest, before, sha256(b"\xc1").hexdigest())
    refused(system, capsys, f"{manifest}: {WRONG}")


@pytest.mark.parametrize("name", ["state", "acceptance"])
def test_no_byte_can_be_changed_removed_or_added(system: System, name: str) -> None:
    path = system.state / MANIFEST if name == "state" else acceptance_of(system)
    data = path.read_bytes()
    changed = [data[:at] + bytes([data[at] ^ 1 << at % 7]) + data[at + 1 :] for at in range(len(data))]
    changed += [data[:at] for at in range(len(data))]
    changed += [data[:at] + b" " + data[at:] for at in range(len(data) + 1)]
    for each in changed:
        path.write_bytes(each)
        with pytest.raises(ConfigError) as error:
            opened(system.state)
        assert str(error.value).startswith(f"{path}: ")


def opened(state: Path) -> None:
    is_state(state, KEYS)
    read_acceptances(state, KEYS)


@pytest.mark.parametrize("seed", range(examples(6)))
def test_whatever_is_changed_is_refused_or_harmless(tmp_path: Path, seed: int) -> None:
    """Every file, changed, removed, replaced by something else, or by that of another state of the same auditor."""
    dice = random.Random(seed)
    system, other = (
        prepared(System(tmp_path / "own", keys=KEYS)),
        prepared(System(tmp_path / "other", keys=KEYS), 42),
    )
    system.day()
    system.audit()  # so there are two files with facts
    whole = shown(system.again(state=False))
    shutil.copytree(system.state, tmp_path / "saved")
    names = sorted(path.name for path in system.state.iterdir())
    assert len(names) >= 6
    harmless = set()
    for name in names:
        for how in (changed_somewhere, removed, emptied, linked, piped, partial(swapped, other.state)):
            shutil.rmtree(system.state)
            shutil.copytree(tmp_path / "saved", system.state)
            path = system.state / name
            if how(path, dice) is False:
                continue
            said = getattr(how, "__name__", "swapped")
            found, problem = tried(system)
            if found is None:
                assert str(path) in problem or name.endswith(".lock"), f"{said} {name}: {problem}"
                continue
            harmless.add((said, name.partition("-")[0]))
            assert without_incidents(shown(found)) == without_incidents(whole), f"{said} {name}"
            assert (status(found) == 0) == bool(found["window"]["accepted"]), f"{said} {name}"
    assert {each for each in harmless if not each[1].endswith(".lock")} == {
        ("removed", MANIFEST), ("removed", "accepted"),
    }  # fmt: skip


def tried(system: System) -> tuple[dict[str, Any] | None, str]:
    """The verdict, or why the state is refused."""
    try:
        return system.again(baseline=ALWAYS), ""
    except (ConfigError, OSError) as error:
        return None, str(error)


def changed_somewhere(path: Path, dice: random.Random) -> bool:
    data = bytearray(path.read_bytes())
    if not data:
        return False
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return True


def removed(path: Path, _: random.Random) -> None:
    path.unlink()


def emptied(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def linked(path: Path, _: random.Random) -> None:
    """To the same content: others may change that at any time."""
    path.rename(path.with_name(f".{path.name}"))
    path.symlink_to(path.with_name(f".{path.name}"))


def piped(path: Path, _: random.Random) -> bool:
    if path.name.endswith(".lock"):
        return False
    path.unlink()
    os.mkfifo(path)
    return True


def swapped(other: Path, path: Path, dice: random.Random) -> None:
    """With a file of the same kind."""
    found = sorted(
        each for each in other.iterdir() if each.name.partition("-")[0] == path.name.partition("-")[0]
    )
    path.write_bytes(dice.choice(found).read_bytes())


# -- acceptances --------------------------------------------------------------------------------------------


def test_an_acceptance_is_of_one_incident(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    path = acceptance_of(system)
    system.day(lost=[141])
    path.rename(path.with_name("accepted-000000000000.json"))
    incident = path.stem.removeprefix("accepted-")
    says = f"accepted-000000000000.json: renamed: it accepts incident {incident}; remove it, and accept"
    refused(system, capsys, says)
    shutil.copyfile(system.state / "accepted-000000000000.json", path)
    refused(system, capsys, says)


def test_a_forged_acceptance_can_be_withdrawn_or_replaced(system: System) -> None:
    path, file = acceptance_of(system), str(system.place / "keys")
    incident = path.stem.removeprefix("accepted-")
    resigned(path, SAME_ID, ACCEPTANCE, reason="forged")
    assert accept.main([str(system.state), incident, "--withdraw"]) == 0
    assert system.again(baseline=ALWAYS)["window"]["verdict"] == "lost"
    resigned_by_others = encode_signed({"reason": "forged"}, OTHER_ID, ACCEPTANCE)
    path.write_bytes(resigned_by_others)
    assert accept.main([str(system.state), incident, "--reason", "mine", "--state-keys", file]) == 0
    assert [each.reason for each in read_acceptances(system.state, KEYS).by_id.values()] == ["mine"]


def test_a_forged_result_is_not_accepted(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator would otherwise sign an incident as others have made it up."""
    resigned(system.state / MANIFEST, SAME_ID, STATE)
    incident, file = acceptance_of(system).stem.removeprefix("accepted-"), str(system.place / "keys")
    before = acceptance_of(system).read_bytes()
    assert accept.main([str(system.state), incident, "--reason", "x", "--state-keys", file]) == 64
    assert f"{MANIFEST}: {WRONG}" in capsys.readouterr().err
    assert acceptance_of(system).read_bytes() == before


def test_a_damaged_acceptance_can_be_replaced_without_keys(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.day(lost=[41])
    (incident,) = system.audit()["incidents"]
    path = system.state / f"accepted-{incident['id']}.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        system.again()
    assert accept.main([str(system.state), incident["id"], "--reason", "known"]) == 0
    assert system.again(baseline=ALWAYS)["window"]["verdict"] == "accepted"


# -- without keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["both", "state", "acceptance"])
def test_without_keys_a_signed_state_is_not_written(
    system: System, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    incident = acceptance_of(system).stem.removeprefix("accepted-")
    if left == "state":
        acceptance_of(system).unlink()
    elif left == "acceptance":
        (system.state / MANIFEST).unlink()
    before = {path.name: path.read_bytes() for path in system.state.iterdir()}
    says = f"{system.state}: this state is signed: the auditor's keys are needed (--state-keys)"
    system.keys = None
    with pytest.raises(ConfigError) as error:
        system.again()
    assert str(error.value) == says
    capsys.readouterr()
    for command, arguments in (
        (main, [str(system.place), "--state", str(system.state)]),
        (accept.main, [str(system.state), incident, "--reason", "x"]),
    ):
        assert command(arguments) == 64
        assert capsys.readouterr().err == f"reliamsg: {says}\n"
    after = {path.name: path.read_bytes() for path in system.state.iterdir()}
    assert {name: data for name, data in after.items() if name != "kept.lock"} == {
        name: data for name, data in before.items() if name != "kept.lock"
    }


def test_acceptances_are_listed_without_keys(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    for options, says in (
        ([], "signatures were not checked (--state-keys)"),
        (["--state-keys", str(system.place / "keys")], "signatures were checked"),
    ):
        capsys.readouterr()
        assert accept.main([str(system.state), *options]) == 0
        said = capsys.readouterr().out.splitlines()
        assert ("known (lost, 1 messages, at billing)" in said[0], said[1:]) == (True, [says])


def test_an_unsigned_state_is_refused_and_built_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = System(tmp_path)
    system.day(lost=[41])
    (incident,) = system.audit()["incidents"]
    assert accept.main([str(system.state), incident["id"], "--reason", "known"]) == 0
    system.keys = KEYS
    refused(system, capsys, f"{MANIFEST}: not signed; remove it, and audit again")
    (system.state / MANIFEST).unlink()
    refused(system, capsys, "not signed; remove it, and accept the incident again")
    acceptance_of(system).unlink()
    assert system.again()["window"]["verdict"] == "lost"
    assert signer_of(system.state / MANIFEST) == "2026"


# -- what a signature does not show -------------------------------------------------------------------------


def test_an_older_state_makes_audits_read_more(system: System, tmp_path: Path) -> None:
    """It is relative to the older audit what is new."""
    shutil.copytree(system.state, tmp_path / "older")
    first = system.again()["window"]["since"]
    system.day()
    system.audit()
    assert system.again()["window"]["since"] > first
    shutil.rmtree(system.state)
    shutil.copytree(tmp_path / "older", system.state)
    found = system.again()
    assert without_incidents(shown(found)) == without_incidents(shown(system.again(state=False)))
    assert found["window"]["since"] == first
    shutil.rmtree(system.state)
    shutil.copytree(tmp_path / "older", system.state)
    for path in system.place.rglob("*.ndjson"):
        path.unlink()
    found = system.again()
    assert (found["messages"]["enqueued"], found["through"]) == (100, first)  # it stands still


def test_a_withdrawn_acceptance_can_be_put_back_while_its_key_is_in_use(system: System) -> None:
    path = acceptance_of(system)
    data, incident = path.read_bytes(), path.stem.removeprefix("accepted-")
    assert accept.main([str(system.state), incident, "--withdraw"]) == 0
    path.write_bytes(data)
    found = system.again(baseline=ALWAYS)
    assert found["window"]["verdict"] == "accepted"
    assert found["incidents"][0]["accepted"]["reason"] == "known"
    path.unlink()
    system.keys = BOTH
    system.again()
    system.keys = NEWER
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=UNKNOWN):
        system.again()


def test_a_whole_state_of_another_system_needs_the_same_key(tmp_path: Path, system: System) -> None:
    other = System(tmp_path / "other", keys=NEWER)
    other.day()
    other.audit()
    shutil.rmtree(system.state)
    shutil.copytree(other.state, system.state)
    with pytest.raises(ConfigError, match=UNKNOWN):
        system.again()


# -- interruptions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes", range(6))
def test_killed_between_two_writes_a_state_can_be_verified(
    system: System, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Also while keys are rotated. There are five: the acceptance, facts, parts, the result, and the list of files."""
    system.day()
    system.export()
    expected = shown(system.again(state=False))
    left, real = [writes], os.replace

    def killed(*arguments: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(*arguments)

    system.keys = BOTH
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", killed)
        if writes < 5:
            with pytest.raises(KeyboardInterrupt):
                system.again()
        else:
            system.again()
    assert left == [0] or writes == 5
    assert read_audited(system.state, BOTH) is not None
    found = shown(system.again(baseline=ALWAYS))
    assert without_incidents(found) == without_incidents(expected)
    assert found["window"]["verdict"] == "accepted"
    assert signer_of(system.state / MANIFEST) == signer_of(acceptance_of(system)) == "2027"


def test_facts_that_others_change_while_they_are_written_are_not_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forged").mkdir()
    forged = write_facts(str(tmp_path / "forged"), [((("p", "t", 0), 1), b"forged")])
    assert forged is not None
    close = pq.ParquetWriter.close

    def then_changed(self: pq.ParquetWriter) -> None:
        close(self)
        (path,) = tmp_path.glob(".facts-*")
        path.write_bytes((tmp_path / "forged" / forged.name).read_bytes())

    monkeypatch.setattr(pq.ParquetWriter, "close", then_changed)
    file = write_facts(str(tmp_path), [((("p", "t", 0), 1), b"x")])
    assert file is not None
    with pytest.raises(ConfigError, match=f"{file.name}: damaged"):
        list(read_facts(str(tmp_path), file, {1}))


# -- the commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (None, 0, "No such file or directory"),
        ("", 0o600, "the file contains no key"),
        ("2026\n", 0o600, "line 1: a line must be ID SECRET, with the secret in hexadecimal"),
        (f"producer/p 2026 {A.hex()}\n", 0o600, "line 1: a line must be ID SECRET"),
        (f"2026 {A.hex()}\n", 0o644, "other users have access to the file of keys: chmod 600"),
        (f"2026 {A.hex()}\n" * 2, 0o600, "line 2: duplicate id"),
        (f"# {'x' * 70_000}\n", 0o600, "more than 65536 bytes"),
    ],
)
def test_unusable_files_of_keys(
    system: System, capsys: pytest.CaptureFixture[str], text: str | None, mode: int, says: str
) -> None:
    file = system.place / "others"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    incident = acceptance_of(system).stem.removeprefix("accepted-")
    for command, arguments in (
        (main, [str(system.place), "--state", str(system.state)]),
        (accept.main, [str(system.state)]),
        (accept.main, [str(system.state), incident, "--reason", "x"]),
        (accept.main, [str(system.state), incident, "--withdraw"]),
    ):
        capsys.readouterr()
        assert command([*arguments, "--state-keys", str(file)]) == 64
        said = capsys.readouterr().err
        assert said.startswith(f"reliamsg: {file}: {says}")
        assert len(said.splitlines()) == 1
        assert A.hex() not in said


def test_keys_need_a_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = keys_file(tmp_path / "keys", KEYS)
    assert main([str(tmp_path), "--state-keys", str(file)]) == 64
    assert "--state-keys needs --state" in capsys.readouterr().err


@pytest.mark.parametrize("command", [main, accept.main])
def test_help_names_the_option(
    command: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["--help"]) == 0
    assert "--state-keys FILE" in capsys.readouterr().out


def test_the_option_can_be_an_environment_variable(
    system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIAMSG_AUDIT_ACCEPT_STATE_KEYS", str(system.place / "keys"))
    capsys.readouterr()
    assert accept.main([str(system.state)]) == 0
    assert capsys.readouterr().out.endswith("signatures were checked\n")


class TestFollow:
    def test_keys_may_be_rotated_while_it_runs(self, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
        file, rings = keys_file(system.place / "keys", KEYS), iter([BOTH, NEWER])
        signers: list[str] = []

        def audited(*_: object, expect: Expect, state: str, **__: object) -> dict[str, Any]:
            found = audit(local_spark(1), system.place / "journals", state=state, expect=expect)
            signers.append(signer_of(system.state / MANIFEST))
            ring = next(rings, None)
            if ring is None:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                keys_file(file, ring)
            return found

        code = followed(system.place, monkeypatch, audited, "--state-keys", str(file))
        assert (code, signers) == (0, ["2026", "2027", "2027"])

    @pytest.mark.parametrize("how", ["without the old key", "unusable", "forged state"])
    def test_it_ends_with_a_line_if_it_can_t_verify_the_state(
        self, system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
    ) -> None:
        file = keys_file(system.place / "keys", KEYS)

        def audited(*_: object, expect: Expect, state: str, **__: object) -> dict[str, Any]:
            found = audit(local_spark(1), system.place / "journals", state=state, expect=expect)
            if how == "unusable":
                file.write_text("")
            elif how == "forged state":
                resigned(system.state / MANIFEST, SAME_ID, STATE)
            else:
                keys_file(file, NEWER)
            return found

        assert followed(system.place, monkeypatch, audited, "--state-keys", str(file)) == 64
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert {
            "unusable": f"{file}: the file contains no key", "forged state": f"{MANIFEST}: {WRONG}; remove it, and",
            "without the old key": f"{MANIFEST}: {UNKNOWN}; remove it, and audit again",
        }[how] in said[0]  # fmt: skip


def test_purposes_differ() -> None:
    found = {CHECKPOINT, STATE, ACCEPTANCE, b"reliamsg journal"}
    assert len(found) == 4
    assert {CHECKPOINT, STATE, ACCEPTANCE} == {
        value
        for name, value in vars(signed).items()
        if isinstance(value, bytes) and value.startswith(b"reliamsg")
    }


@pytest.mark.spark
def test_no_secret_is_sent_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A ring can't be pickled, so an audit with Spark would fail. Tasks verify what the driver has verified."""
    journals(5, "-x").write(tmp_path / "journals", random.Random(5))
    run = partial(
        audit,
        spark,
        tmp_path / "journals",
        state=tmp_path / "state",
        expect=Expect(drained=True, state_keys=KEYS),
    )
    before = run()
    assert before["evidence"]["state_signature_checked"] is True
    assert without_incidents(shown(run())) == without_incidents(shown(before))
    path = min((tmp_path / "state").glob("facts-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match=f"{path.name}: damaged; remove"):
        run()
