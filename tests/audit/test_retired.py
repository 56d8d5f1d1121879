"""Clients that are declared as gone for good: what that proves, and what it does not, the same from both judges."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.retired import parse_retired
from reliamsg.checker import Expect, check_directory
from reliamsg.errors import ConfigError
from reliamsg.store.head import Head, encode_head, head_path
from tests.audit.equality import shared
from tests.audit.fleet import SECOND_US, T, Writer
from tests.audit.local_spark import local_spark
from tests.audit.small import PLACE, clients, written

NOW_US = T + 10_000 * SECOND_US
LATER_US = T + 5_000 * SECOND_US
"""When the clients that are not gone were last seen."""


class Run:
    """Journals of a producer, a group, and another producer that goes on for longer."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.producer, self.group = clients()
        self.other = Writer("producer", "other")
        self.other.boot(groups={"t": ["g"]}, sites=["dc1"], confirm="all")

    def write(self) -> None:
        for client in (self.other, self.group):
            client.wall_us = max(client.wall_us, LATER_US)
            client.add("closed")
        self.paths = written(self.place, [each.chain() for each in (self.producer, self.group, self.other)])

    @property
    def tip(self) -> Path:
        """The producer's last segment."""
        return next(path for path in reversed(self.paths) if "client=p/" in str(path))

    def judged(self, *retired: str, state: Path | None = None, **rules: Any) -> dict[str, Any]:
        """The verdict, once both judges agree."""
        own = AuditExpect(retired=retired, now_us=NOW_US, **rules)
        found = audit(local_spark(len(retired)), self.place, state=state, expect=own)
        theirs = check_directory(self.place, Expect(retired=retired, now_us=NOW_US, **rules)).as_dict()
        if state is None:
            mine, other = shared(found), shared(theirs)
            assert {name: (mine[name], other[name]) for name in mine if mine[name] != other[name]} == {}
            assert sorted(map(str, found["held_by"])) == sorted(map(str, theirs["held_by"]))
        return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "journals")


def ends(verdict: dict[str, Any], client: str = "p") -> str:
    (found,) = (each for each in verdict["clients"] if each["client"] == client)
    assert (found["proven"] is None) == (found["ends"] == "retired")
    return str(found["ends"])


def closed(run: Run) -> str:
    run.producer.add("closed")
    run.write()
    return f"p@{run.tip.name}"


def test_a_closed_client_that_is_gone_does_not_hold_the_time(run: Run) -> None:
    declared = closed(run)
    before = run.judged()
    assert before["held_by"][0]["client"] == "p"
    found = run.judged(declared)
    assert found["verdict"] == before["verdict"] == "complete"
    assert found["through"] > before["through"]
    assert ends(before) == "closed"
    assert ends(found) == "retired"
    assert "p" not in {each.get("client") for each in found["held_by"]}
    assert ends(found, "g") == ends(found, "other") == "closed"
    assert found["evidence"]["broken"] == []
    assert run.judged(declared, until_us=LATER_US)["verdict"] == "complete"
    assert run.judged(until_us=LATER_US)["verdict"] == "unknown"


def test_a_segment_is_named_by_its_file_or_its_digest(run: Run) -> None:
    declared = closed(run)
    digest = run.tip.stem.rpartition("-")[2]
    assert run.judged(f"p@{digest}") | {"seconds": 0} == run.judged(declared) | {"seconds": 0}


def test_a_name_may_have_its_role(run: Run) -> None:
    declared = closed(run)
    assert run.judged(f"producer/{declared}") | {"seconds": 0} == run.judged(declared) | {"seconds": 0}


def both(run: Run) -> dict[str, Path]:
    """The last segments of the producer and of a group that has its name; both are closed."""
    run.producer.add("closed")
    namesake = Writer("group", "p")
    namesake.boot(topics=["other"], sites=["dc1"], inbox="i-p", begin="earliest", gap_timeout=30.0)
    run.write()
    (*_, path) = written(run.place, [namesake.add("closed").chain()])
    return {"producer": run.tip, "group": path}


@pytest.mark.parametrize("role", ["producer", "group"])
@pytest.mark.parametrize("named", ["", "{role}/", "%70"], ids=["name", "role", "encoded"])
def test_of_a_producer_and_a_group_with_one_name_the_segment_decides(run: Run, role: str, named: str) -> None:
    tips = both(run)
    name = "%70" if named == "%70" else f"{named.format(role=role)}p"
    found = run.judged(f"{name}@{tips[role].name}")
    gone = [each["role"] for each in found["clients"] if each["ends"] == "retired"]
    assert gone == [role]
    assert found["evidence"]["broken"] == []
    every = run.judged(f"p@{tips['producer'].name}", f"group/p@{tips['group'].name}")
    assert [each["ends"] for each in every["clients"] if each["client"] == "p"] == ["retired", "retired"]


def test_a_role_is_that_of_the_segments_client(run: Run) -> None:
    tips = both(run)
    declared = f"group/p@{tips['producer'].name}"
    for judge in (
        lambda: audit(local_spark(1), run.place, expect=AuditExpect(retired=(declared,), now_us=NOW_US)),
        lambda: check_directory(run.place, Expect(retired=[declared], now_us=NOW_US)),
    ):
        with pytest.raises(ConfigError, match=r"its journals end with [0-9a-f]{64} \(group p\)"):
            judge()


def test_a_name_with_a_slash_is_not_taken_for_a_role(run: Run) -> None:
    """Names may begin like a role."""
    odd = Writer("group", "producer/p")
    odd.boot(topics=["other"], sites=["dc1"], inbox="i", begin="earliest", gap_timeout=30.0)
    run.producer.add("closed")
    run.write()
    (*_, path) = written(run.place, [odd.add("closed").chain()])
    for name in ("producer/p", "group/producer/p", "producer%2Fp", "group/producer%2Fp"):
        found = run.judged(f"{name}@{path.name}")
        gone = [each["client"] for each in found["clients"] if each["ends"] == "retired"]
        assert gone == ["producer/p"], name


def test_an_unclosed_client_stays_unknown(run: Run) -> None:
    """It does not matter that nothing was heard of it since."""
    run.write()
    declared = f"p@{run.tip.name}"
    found = run.judged(declared)
    before = run.judged()
    line = f"declared as retired at segment {run.tip.stem.rpartition('-')[2]}: it was not closed"
    assert [each for each in found["evidence"]["broken"] if line in each] == found["evidence"]["broken"] != []
    assert (found["through"], found["held_by"]) == (before["through"], before["held_by"])
    assert ends(found) == "open"
    for rules in ({"drained": True}, {"until_us": LATER_US}):
        assert run.judged(declared, **rules)["verdict"] == "unknown"


def another_boot(run: Run) -> None:
    """The group has heard of an opening that no journal has."""
    run.group.add("received", 101, 110, site="dc1", **{**PLACE, "epoch": 5, "incarnation": 8})


def another_row(run: Run) -> None:
    heard = {"p": [len(run.producer.rows) + 1, f"{7:016x}"]}
    run.group.add("drained", site="dc1", heard=heard)


def another_epoch(run: Run) -> None:
    """The group has entered an epoch that the journal lacks."""
    run.group.add("joined", 1, **{**PLACE, "epoch": 5})


def another_message(run: Run) -> None:
    run.group.add("received", 101, 110, site="dc1", **PLACE)


@pytest.mark.parametrize("more", [another_boot, another_row, another_epoch, another_message])
def test_a_declaration_is_void_if_anyone_heard_more(run: Run, more: Callable[[Run], None]) -> None:
    run.producer.add("closed")
    more(run)
    run.write()
    found = run.judged(f"p@{run.tip.name}")
    assert found["verdict"] == "unknown"
    assert ends(found) == "closed"
    (line,) = found["evidence"]["broken"]
    assert line.endswith("void, since others have heard of more than its journal has")
    assert "producer p: declared as retired at segment " in line
    assert found["evidence"]["missing"]
    (incident,) = (each for each in found["incidents"] if "not_retired" in each["kinds"])
    assert (incident["role"], incident["client"]) == ("producer", "p")


def test_a_declaration_covers_one_tip_only(run: Run) -> None:
    """The client wrote on: also after a segment that was its last one at some time."""
    run.producer.add("closed")
    run.producer.boot(groups={"t": ["g"]}, sites=["dc1"], confirm="all").add("closed")
    run.write()
    early = run.paths[run.paths.index(run.tip) - 2]
    found = run.judged(f"p@{early.name}")
    (line,) = found["evidence"]["broken"]
    assert line.endswith("void, since its journal continues after that")
    assert ends(found) == "closed"
    assert found["through"] == run.judged()["through"]
    assert ends(run.judged(f"p@{run.tip.name}")) == "retired"


@pytest.mark.parametrize("boot", ["the same", "another"])
def test_a_head_of_something_later_makes_it_void(run: Run, boot: str) -> None:
    declared = closed(run)
    lsn = len(run.producer.rows)
    name = f"{1:016x}" if boot == "the same" else f"{2:016x}"
    head = Head(
        role="producer", client="p", boot=name, lsn=lsn + 1, wall_us=LATER_US,
        digest=run.tip.stem.rpartition("-")[2],
    )  # fmt: skip
    (run.place / head_path("producer", "p", name)).write_bytes(encode_head(head))
    found = run.judged(declared)
    (line,) = found["evidence"]["broken"]
    assert line.endswith("void, since its journal continues after that")
    assert ends(found) == "closed"


def test_a_group_that_is_gone_excuses_no_message(run: Run) -> None:
    """What it has not acknowledged stays open."""
    run.group.rows.pop()
    run.group.add("acknowledged", 1, 90, **PLACE).add("closed")
    paths = written(
        run.place, [each.chain() for each in (run.producer.add("closed"), run.group, run.other.add("closed"))]
    )
    tip = next(path for path in reversed(paths) if "client=g/" in str(path))
    found = run.judged(f"g@{tip.name}", drained=True)
    assert ends(found, "g") == "retired"
    assert found["verdict"] == "unknown"
    assert {each["kind"] for each in found["findings"]} == {"unacknowledged"}


def test_its_next_file_goes_on_holding_the_time(run: Run) -> None:
    """Only the history that ends there is gone, not the client."""
    declared = closed(run)
    again = Writer("producer", "p", wall_us=T + 200 * SECOND_US)
    again.boot(groups={"t": ["g"]}, sites=["dc1"], confirm="all")
    written(run.place, [again.add("closed").chain()])
    found = run.judged(declared)
    assert sorted(str(each["ends"]) for each in found["clients"] if each["client"] == "p") == [
        "closed",
        "retired",
    ]
    assert "p" in {each.get("client") for each in found["held_by"]}


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("nobody@{tip}", "no client of that name has a journal; those that have: group g, producer other, producer p"),
        ("other@{tip}", "the client has no such segment; its journals end with "),
        (f"p@{'0' * 64}", "the client has no such segment; its journals end with {digest} (producer p)"),
        ("group/p@{tip}", "no client of that name has a journal; those that have: group g, producer other, producer p"),
        ("site/p@{tip}", "no client of that name has a journal"),
        ("producer/@{tip}", "no client of that name has a journal"),
        ("producer/other@{tip}", "the client has no such segment; its journals end with "),
        ("p", "use NAME@SEGMENT, producer/NAME@SEGMENT or group/NAME@SEGMENT"),
        ("p@tip", "use NAME@SEGMENT"),
        ("@{tip}", "use NAME@SEGMENT"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_named(run: Run, declared: str, says: str) -> None:
    closed(run)
    names = {"tip": run.tip.name, "digest": run.tip.stem.rpartition("-")[2]}
    declared, says = declared.format(**names), says.format(**names)
    with pytest.raises(ConfigError) as mine:
        audit(local_spark(1), run.place, expect=AuditExpect(retired=(declared,), now_us=NOW_US))
    with pytest.raises(ConfigError) as theirs:
        check_directory(run.place, Expect(retired=[declared], now_us=NOW_US))
    assert str(mine.value) == str(theirs.value)
    assert str(mine.value).startswith(f"--retired {declared}: ")
    assert says in str(mine.value)


def test_names_are_those_of_directories_too() -> None:
    (parsed,) = parse_retired([f"a@b%2Fc@{'1' * 64}"])
    assert (parsed.client, parsed.digest) == ("a@b%2Fc", "1" * 64)


def test_a_state_does_not_keep_declarations(run: Run, tmp_path: Path) -> None:
    """But the segment may be named after it was archived."""
    declared, state = closed(run), tmp_path / "state"
    first = run.judged(declared, state=state)
    for path in run.paths:
        if "client=p/" in str(path):
            os.remove(path)
    own = AuditExpect(now_us=NOW_US)
    without = audit(local_spark(1), run.place, state=state, expect=own)
    assert ends(without) == "closed"
    again = audit(
        local_spark(2), run.place, state=state, expect=AuditExpect(retired=(declared,), now_us=NOW_US)
    )
    assert ends(again) == "retired"
    same = {"seconds": 0, "window": {}}  # the window begins where the audit before it ended
    assert again | same == first | same
    assert without["through"] < again["through"]
