"""Findings with one cause are one incident, which keeps its id while it grows."""

from __future__ import annotations

import random
import shlex
import subprocess
from typing import Any

import pytest

from reliamsg.audit.accepted import Acceptances
from reliamsg.audit.found import Finding
from reliamsg.audit.incidents import (
    MAX_INCIDENTS,
    Incident,
    as_dicts,
    incidents_of_clients,
    incidents_of_stream,
    shell_word,
    worst_incidents,
)
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.spans import LAST
from tests.audit.planted import PLANTS, chains_of
from tests.audit.reported import LOST, REPEATED, UNPUBLISHED, night, reported

STREAM = ("gateway-7", "orders", 0)


def finding(
    kind: str, first: int | None = None, last: int | None = None, group: str = "", **more: Any
) -> Finding:
    return Finding(kind, more.pop("stream", STREAM), group, epoch=7, first=first, last=last, **more)


def lost(
    first: int, last: int, group: str, hop: str = "confirmed", sites: tuple[str, ...] = ("dc1",)
) -> Finding:
    return finding("lost", first, last, group, place="middle", hop=hop, sites=sites)


def test_one_lost_block_is_one_incident() -> None:
    """However many groups lack it, and whatever else is found about it."""
    (found,) = incidents_of_stream(
        [lost(5, 11, "billing"), lost(5, 11, "archive"), finding("undeclared_gap", 5, 11, "billing")]
    )
    assert (found.first, found.last, found.messages, found.findings) == (5, 11, 7, 3)
    assert found.groups == ("archive", "billing")
    assert found.sites == ("dc1",)
    assert found.severity == "violated"
    assert found.kinds == ("undeclared_gap", "lost")
    assert found.cause == "Lost: confirmed by dc1, and not received; skipped without being declared"


def test_ranges_that_overlap_or_adjoin_are_one_block() -> None:
    found = incidents_of_stream([lost(1, 5, "a"), lost(6, 9, "b"), lost(8, 20, "a"), lost(22, 23, "a")])
    assert [(each.first, each.last, each.messages) for each in found] == [(1, 20, 20), (22, 23, 2)]


def test_categories_and_epochs_are_kept_apart() -> None:
    other = Finding("lost", STREAM, "a", epoch=8, first=5, last=5)
    found = incidents_of_stream(
        [lost(5, 5, "a"), other, finding("duplicate", 5, 5, "a"), finding("corrupt", 5, 5)]
    )
    assert len(found) == 4
    assert len({each.id for each in found}) == 4


def test_an_incident_that_grows_keeps_its_id() -> None:
    (before,) = incidents_of_stream([finding("undelivered", 5, 11, "billing")])
    (after,) = incidents_of_stream([lost(5, 30, "billing"), lost(7, 9, "archive")])
    (other,) = incidents_of_stream([lost(6, 30, "billing")])
    assert before.id == after.id != other.id
    assert len(before.id) == 12


def test_ids_do_not_depend_on_the_order_of_findings() -> None:
    findings = [lost(first, first + 3, group) for first in range(1, 60, 3) for group in "abc"]
    expected = incidents_of_stream(findings)
    random.Random(1).shuffle(findings)
    assert worst_incidents(incidents_of_stream(findings)) == worst_incidents(expected)


@pytest.mark.parametrize("last", [LAST, LAST + 1, 2**62])
def test_a_block_without_an_end_has_no_number_of_messages(last: int) -> None:
    (found,) = incidents_of_stream([finding("undelivered", 5, last, "a"), finding("undelivered", 9, 10, "b")])
    assert (found.first, found.last, found.messages) == (5, None, None)


def test_findings_without_a_range_are_one_incident() -> None:
    found = incidents_of_stream([finding("wrong_prev", text="a"), finding("old_epoch"), lost(1, 2, "a")])
    assert sorted(each.findings for each in found) == [1, 2]


@pytest.mark.parametrize(
    ("text", "role", "client"),
    [
        ("/j/role=group/client=g (group billing): rows 5 to 9 are missing", "group", "billing"),
        ("no journal of producer gateway 7", "producer", "gateway 7"),
        ("no journal of the opening 00ab of producer p", "producer", "p"),
        ("no journal of epoch 5 of producer p", "producer", "p"),
        ("the journal of epoch 5 of producer p lacks messages to which others refer", "producer", "p"),
        ("the journal of the opening 00ab of producer p lacks rows that it had", "producer", "p"),
        ("no journal of any producer of topic orders", "topic", "orders"),
        ("producer p: 0-1-ff.ndjson: cut: it has 7 complete rows instead of 9", "producer", "p"),
        ("p has incarnations 1, 2 in epoch 5", "producer", "p"),
        ("there are no journals", "", ""),
    ],
)
def test_evidence_is_put_together_by_client(text: str, role: str, client: str) -> None:
    found = incidents_of_clients([Finding("broken", text=text), Finding("unclosed", text=text)])
    assert [(each.role, each.client, each.findings) for each in found] == [(role, client, 2)]
    assert found[0].lines == (text,)


def test_every_kind_has_a_cause_and_a_command() -> None:
    """Each is planted, and found."""
    verdict, _ = reported([chain for kind in PLANTS for chain in chains_of(kind)])
    assert verdict["incidents_total"] == len(verdict["incidents"])
    kinds = {kind for each in verdict["incidents"] for kind in each["kinds"]}
    assert kinds == {each["kind"] for each in verdict["findings"]}
    # Those that are not about streams have one cause for all.
    assert kinds >= set(KINDS) - {kind for kind, (severity, _) in KINDS.items() if severity == "unknown"}
    assert sum(each["findings"] for each in verdict["incidents"]) == verdict["findings_total"]
    for each in verdict["incidents"]:
        assert each["cause"][0].isupper()
        assert each["next"].startswith("reliamsg ")
        assert each["severity"] == min(
            (KINDS[kind][0] for kind in each["kinds"]), key=["violated", "lost", "unknown", "remark"].index
        )


def test_a_night() -> None:
    verdict, _ = reported(night())
    found = {
        (each["category"], each.get("producer", each.get("client"))): each for each in verdict["incidents"]
    }
    assert found.keys() == {
        ("delivery", "gateway-3"), ("order", "gateway-7"), ("delivery", "gateway-8"), ("evidence", "gateway-8"),
        ("evidence", "reports"),
    }  # fmt: skip
    lost_block = found["delivery", "gateway-3"]
    assert (lost_block["first"], lost_block["last"]) == LOST
    assert lost_block["groups"] == ["archive", "billing"]
    assert lost_block["cause"] == "Lost and declared to the application: confirmed by dc1, and not received"
    assert lost_block["next"] == "reliamsg audit show verdict gateway-3/orders"
    assert (found["order", "gateway-7"]["first"], found["order", "gateway-7"]["last"]) == REPEATED
    assert found["delivery", "gateway-8"]["messages"] == UNPUBLISHED
    assert found["delivery", "gateway-8"]["next"] == "reliamsg outbox stats OUTBOX"
    assert found["evidence", "gateway-8"]["next"] == "reliamsg journal export OUTBOX --to journals"
    assert found["evidence", "reports"]["next"] == "reliamsg journal verify journals"


def test_the_worst_are_kept() -> None:
    some = incidents_of_stream([lost(3 * n, 3 * n, "g") for n in range(1, MAX_INCIDENTS + 50)])
    (wrong,) = incidents_of_stream([finding("duplicate", 1, 1, "g")])
    (large,) = incidents_of_stream([lost(5, 500, "h")])
    found = worst_incidents([*some, large, wrong])
    assert len(found) == MAX_INCIDENTS
    assert found[:2] == [wrong, large]


@pytest.mark.parametrize(
    "name",
    [
        "gateway-7",
        "a b",
        "it's",
        "; rm -rf /",
        "$(reboot)",
        "`x`",
        "~root",
        "a\nreboot\n",
        "\x1b[2Jx",
        "\u202eevil",
        "ü",
        "",
    ],
)
def test_names_in_commands_are_words(name: str) -> None:
    """A shell reads each as one word, and what is shown has no control characters."""
    word = shell_word(name)
    assert word.isprintable()
    said = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True, timeout=20)
    assert said.stdout.decode() == name


def test_commands_with_hostile_names_can_be_split() -> None:
    incident = Incident(
        "0" * 12, "lost", "delivery", "Lost", ("lost",), "producer", "p", ("a'; reboot #", "t x", 3)
    )
    (found,) = as_dicts([incident], Acceptances(), "j", "out dir")
    assert shlex.split(found["next"]) == ["reliamsg", "audit", "show", "out dir", "a'; reboot #/t x~3"]
