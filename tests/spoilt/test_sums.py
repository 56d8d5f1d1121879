"""Numbers that contradict each other end in an error that names them, and in no verdict; in both judges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliamsg.audit import __main__ as command
from reliamsg.audit import fates, passages, streams
from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.sums import SumsDiffer as AuditSumsDiffer
from reliamsg.checker import Expect, check_directory, run
from reliamsg.checker.producers import gather_producer
from reliamsg.checker.spans import SpanMap
from reliamsg.checker.sums import SumsDiffer
from tests.audit.local_spark import local_spark
from tests.spoilt.of_rows import CASES
from tests.spoilt.originals import finished
from tests.spoilt.reader import Files, Journals, Message

LOSS = "rows: group archive of east: the first epoch never came"


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return finished(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def lost(original: Files, tmp_path: Path) -> set[Message]:
    """The messages of east that never reached the group archive, according to the journals in a directory."""
    journals = Journals(original)
    effect = next(case for case in CASES if case.name == LOSS).mutate(journals)
    for path, data in journals.files().items():
        place = tmp_path / "journals" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return {message for *_, message in effect.found}


def by_checker(place: Path) -> Any:
    return check_directory(place / "journals", Expect(drained=True)).as_dict()


def by_audit(place: Path) -> Any:
    return audit(local_spark(1), place / "journals", expect=AuditExpect(drained=True))


def test_they_agree_otherwise(lost: set[Message], tmp_path: Path) -> None:
    """And the site's losses are proven, so that their sum is no sum of nothing."""
    for verdict in (by_checker(tmp_path), by_audit(tmp_path)):
        assert verdict["messages"]["lost"] == len(lost) > 0
        assert sum(site["lost_after_confirm"] for site in verdict["sites"].values()) == 2 * len(lost)


def test_the_checker_compares_fates_with_what_was_enqueued(
    lost: set[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliberate defect: messages have a fate, and it is forgotten that they were enqueued."""

    def gathered(client: str, *others: Any) -> Any:
        facts, findings = gather_producer(client, *others)
        next(iter(facts.begun.values())).pop()
        return facts, findings

    monkeypatch.setattr(run, "gather_producer", gathered)
    said = r"^(east|west)/orders at group \w+: \d+ messages were enqueued, and \d+ have"
    with pytest.raises(SumsDiffer, match=said):
        by_checker(tmp_path)


def test_the_checker_compares_what_sites_lost_with_what_they_confirmed(
    lost: set[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliberate defect: a site's confirms are forgotten, and its losses are not."""

    def gathered(client: str, *others: Any) -> Any:
        facts, findings = gather_producer(client, *others)
        return replace(facts, confirmed=facts.confirmed | {"dc1": SpanMap()}), findings

    monkeypatch.setattr(run, "gather_producer", gathered)
    said = rf"^site dc1, group archive: 0 messages were confirmed; 0 came out, {len(lost)} are proven to be lost, "
    with pytest.raises(SumsDiffer, match=said):
        by_checker(tmp_path)


def test_the_audit_compares_fates_with_what_was_enqueued(
    lost: set[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliberate defect: losses are left out."""

    def without_losses(*arguments: Any) -> Iterator[fates.Fate]:
        return (each for each in fates.fates_of_group(*arguments) if each.fate != "lost")

    monkeypatch.setattr(streams, "fates_of_group", without_losses)
    said = r"^east/orders at group archive: \d+ messages were enqueued, and "
    with pytest.raises(AuditSumsDiffer, match=said) as raised:
        by_audit(tmp_path)
    enqueued, found = [int(word) for word in str(raised.value).split() if word.isdecimal()][:2]
    assert enqueued - found == len(lost)


def test_the_audit_compares_what_sites_lost_with_what_they_confirmed(
    lost: set[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliberate defect: what came out of a site counts twice."""
    monkeypatch.setattr(passages, "size", lambda first, last: 2 * (last - first + 1))
    with pytest.raises(
        AuditSumsDiffer, match=r"^site dc\d, group \w+: \d+ messages were confirmed; \d+ came out, "
    ):
        by_audit(tmp_path)


def test_it_is_an_internal_error_and_no_verdict(
    lost: set[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 70 says so; 1 would say that messages are lost."""
    monkeypatch.setattr(passages, "size", lambda first, last: 2 * (last - first + 1))
    monkeypatch.setattr(command, "_session", lambda *_: nullcontext(local_spark(1)))
    out = tmp_path / "out"
    assert command.main([str(tmp_path / "journals"), "--drained", "--out", str(out)]) == 70
    said = capsys.readouterr()
    assert "messages were confirmed" in said.err
    assert "internal error" in said.err
    assert not said.out
    assert not (out / "verdict.json").exists()
