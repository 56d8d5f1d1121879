"""Verdicts for a window of time, acceptances, hooks and metrics: audits of one day after another, without Spark."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from reliamsg import checker
from reliamsg.audit import accept
from reliamsg.audit.__main__ import main
from reliamsg.audit.acceptances import read_acceptances
from reliamsg.audit.accepted import Acceptance, Acceptances, Brief
from reliamsg.audit.expect import Expect
from reliamsg.audit.hook import Hook
from reliamsg.audit.job import audit
from reliamsg.audit.kept import Kept, read_audited
from reliamsg.audit.metrics import as_openmetrics, write_metrics
from reliamsg.audit.through import Through
from reliamsg.audit.times import as_time
from reliamsg.audit.verdict import line, status, table
from reliamsg.audit.windows import Baseline, Reach, Scope, judge_window
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing
from reliamsg.store.segment import encode
from tests.audit.generated import journals, segments
from tests.audit.local_spark import local_spark
from tests.audit.reported import MINUTE_US, START_US, Diary
from tests.audit.test_command import audit as command
from tests.chance import examples

DAY = 1440
PER_DAY = 100
STREAM = ("gateway", "orders")


@dataclass
class System:
    """A producer and a group, which journal a hundred messages a day and export at its end."""

    place: Path
    producer: Diary = field(default_factory=lambda: Diary("producer", "gateway"))
    group: Diary = field(default_factory=lambda: Diary("group", "billing"))
    days: int = 0
    exported: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """By client, the rows that were exported, and the digest of the last segment."""
    keys: KeyRing | None = None
    """Of the state."""

    def day(self, lost: Collection[int] = (), open_from: int = 0) -> None:
        """One more day. `lost`: messages of the stream that the group declares instead, in one block; `open_from`: it
        has not received those from there on."""
        at, first, last = self.days * DAY + 1.0, self.days * PER_DAY + 1, (self.days + 1) * PER_DAY
        producer, group = self.producer, self.group
        if not self.days:
            producer.add(0, "opened", groups={"orders": ["billing"]}, sites=["dc1"], confirm="any")
            producer.add(0.1, "connected", site="dc1")
            producer.add(0.2, "epoch", STREAM, prev=None)
            group.add(
                0, "opened", inbox="i", topics=["orders"], sites=["dc1"], begin="earliest", gap_timeout=30.0
            )
            group.add(0.1, "connected", site="dc1")
            group.add(0.3, "joined", STREAM, 1)
        producer.add(at, "enqueued", STREAM, first, last, took=1)
        producer.add(at + 0.1, "confirmed", STREAM, first, last, took=1, site="dc1")
        producer.add(at + 0.2, "published", STREAM, first, last, took=1)
        end = open_from - 1 if open_from else last
        spans = [(first, end)]
        if lost:
            spans = [
                (low, high) for low, high in ((first, min(lost) - 1), (max(lost) + 1, end)) if low <= high
            ]
        for span in spans:
            if lost and span[0] > min(lost):
                group.add(at + 2, "declared", STREAM, min(lost), max(lost), reason="expired", elapsed=30.0)
            group.add(at + 2.1, "received", STREAM, *span, site="dc1")
            group.add(at + 2.2, "delivered", STREAM, *span)
            group.add(at + 2.3, "acknowledged", STREAM, *span)
        self.days += 1
        producer.add(self.days * DAY, "connected", site="dc1")  # proves everything up to then
        group.add(self.days * DAY, "connected", site="dc1")

    def export(self) -> None:
        for diary in (self.producer, self.group):
            done, parent = self.exported.get(diary.client, (0, None))
            if done == len(diary.rows):
                continue
            rows = [
                replace(row, boot=sha256(row.boot.encode()).hexdigest()[:16]) for row in diary.rows[done:]
            ]
            segment = encode(diary.role, diary.client, rows, parent)
            path = self.place / "journals" / segment.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(segment.data)
            self.exported[diary.client] = len(diary.rows), segment.digest

    @property
    def state(self) -> Path:
        return self.place / "state"

    def audit(self, **options: Any) -> dict[str, Any]:
        self.export()
        return self.again(**options)

    def again(self, state: bool = True, **options: Any) -> dict[str, Any]:
        where = self.state if state else None
        expect = Expect(now_us=2**60, state_keys=self.keys)
        return audit(local_spark(1), self.place / "journals", state=where, expect=expect, **options)


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def end_of_day(day: int) -> str:
    return as_time(START_US + day * DAY * MINUTE_US)


def accepted(system: System, incident: str, reason: str = "known") -> None:
    assert accept.main([str(system.state), incident, "--reason", reason]) == 0


def test_a_loss_counts_on_the_day_on_which_it_was_published(system: System) -> None:
    system.day(lost=range(41, 46))
    first = system.audit()
    assert (first["verdict"], first["window"]["verdict"], status(first)) == ("lost", "lost", 1)
    assert first["window"]["since"] is None
    (incident,) = first["incidents"]
    assert incident["enqueued"] == [as_time(START_US + MINUTE_US)] * 2
    system.day()
    second = system.audit()
    assert second["window"] == {
        "since": end_of_day(1), "through": end_of_day(2), "verdict": "complete", "enqueued": 100, "proven": 100,
        "incidents": 0, "accepted": 0,
    }  # fmt: skip
    assert (second["verdict"], status(second)) == ("lost", 0)
    assert f"verdict since {end_of_day(1)}: complete through {end_of_day(2)}: 100 messages" in table(second)
    assert line(second).startswith(f"since {end_of_day(1)} complete; in all lost")
    system.day(lost=[230])
    third = system.audit()
    assert (third["window"]["verdict"], third["window"]["incidents"], status(third)) == ("lost", 1, 1)
    assert third["incidents_total"] == 2


def test_without_state_or_since_the_window_is_all_time(system: System) -> None:
    system.day(lost=range(41, 46))
    system.day()
    found = system.audit(state=False)
    assert found["window"] == {
        "since": None, "through": end_of_day(2), "verdict": "lost", "enqueued": 200, "proven": 200, "incidents": 1,
        "accepted": 0,
    }  # fmt: skip
    since = system.again(
        state=False, baseline=Baseline(START_US + DAY * MINUTE_US)
    )  # the first message of that day was enqueued a minute later
    assert (since["window"]["verdict"], since["window"]["enqueued"]) == ("complete", 100)
    before = system.again(state=False, baseline=Baseline(START_US))
    assert (before["window"]["verdict"], before["window"]["enqueued"]) == ("lost", 200)


def test_what_an_earlier_audit_should_have_found_counts(system: System) -> None:
    """A row that arrives later, about the time that was proven, contradicts that."""
    system.day()
    assert system.audit()["window"]["verdict"] == "complete"
    system.group.add(DAY + 1, "delivered", STREAM, 17, 17)
    found = system.audit()
    (incident,) = found["incidents"]
    assert "duplicate" in incident["kinds"]
    assert incident["enqueued"][1] < found["window"]["since"]
    assert (found["window"]["verdict"], status(found)) == ("violated", 1)
    assert system.again()["window"]["verdict"] == "complete"  # now it is known


def test_a_window_of_which_nothing_is_proven_is_unknown(system: System) -> None:
    system.day()
    system.audit()
    assert status(system.again()) == 0  # nothing new
    system.day()
    system.group.rows.pop()  # so its last row is older than the messages of the day are
    while system.group.rows[-1].wall_us > START_US + DAY * MINUTE_US:
        system.group.rows.pop()
    system.group.rows.append(replace(system.group.rows[-1], lsn=len(system.group.rows) + 1))
    found = system.audit()
    assert found["through"] == end_of_day(1)
    assert (found["window"]["enqueued"], found["window"]["proven"]) == (100, 0)
    assert (found["window"]["verdict"], status(found)) == ("unknown", 2)


def test_accepted_incidents_are_shown_for_ever_and_decide_no_exit_code(system: System) -> None:
    system.day(lost=range(41, 46))
    (incident,) = system.audit()["incidents"]
    accepted(system, incident["id"], "disk of dc1\nreplaced")
    found = system.again(baseline=Baseline())
    assert (found["verdict"], found["window"]["verdict"], status(found)) == ("lost", "accepted", 0)
    assert (found["window"]["incidents"], found["window"]["accepted"]) == (0, 1)
    (shown,) = found["incidents"]
    assert shown["accepted"]["reason"] == "disk of dc1\nreplaced"
    assert shown["accepted"]["covers"]
    system.day()
    later = system.audit(baseline=Baseline())
    assert (later["verdict"], later["window"]["verdict"]) == ("lost", "accepted")
    assert accept.main([str(system.state), incident["id"], "--withdraw"]) == 0
    assert system.again(baseline=Baseline())["window"]["verdict"] == "lost"


def test_an_accepted_incident_that_becomes_worse_counts_again(system: System) -> None:
    system.day()
    system.day(open_from=191)
    found = system.audit()
    assert (found["verdict"], found["messages"]["proven"]) == ("complete", 100)
    (incident,) = found["incidents"]
    assert (incident["kinds"], incident["messages"]) == (["undelivered"], 10)
    accepted(system, incident["id"])
    through = system.again()["window"]["through"]
    assert through == end_of_day(2) > found["through"]  # it does not hold the window's time any more
    system.group.add(2 * DAY + 2, "declared", STREAM, 191, 200, reason="expired", elapsed=30.0)
    system.group.add(2 * DAY + 3, "connected", site="dc1")
    worse = system.audit()
    (incident,) = worse["incidents"]
    assert (incident["severity"], incident["accepted"]["covers"]) == ("lost", False)
    assert (worse["window"]["verdict"], status(worse)) == ("lost", 1)


def test_accepted_lack_of_evidence(system: System) -> None:
    """What is known of the rest can be proven again."""
    system.day()
    path = system.place / "journals" / "role=producer" / "client=other" / "x.ndjson"
    path.parent.mkdir(parents=True)
    path.write_text("{}\n")
    found = system.audit()
    assert (found["verdict"], found["through"], status(found)) == ("unknown", None, 2)
    for each in found["incidents"]:
        accepted(system, each["id"])
    again = system.again(baseline=Baseline())
    assert (again["verdict"], again["through"]) == ("unknown", None)
    assert (again["window"]["verdict"], again["window"]["through"], again["window"]["proven"]) == (
        "accepted", end_of_day(1), 100,
    )  # fmt: skip


def test_what_can_t_be_accepted(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    system.day(lost=[41])
    assert accept.main([str(system.state), "0" * 12, "--reason", "x"]) == 66
    assert "no such directory" in capsys.readouterr().err
    system.state.mkdir()
    assert accept.main([str(system.state), "0" * 12, "--reason", "x"]) == 66
    assert "no audit has used this state yet" in capsys.readouterr().err
    (incident,) = system.audit()["incidents"]
    for arguments, code, said in (
        (["0" * 12, "--reason", "x"], 66, "has found no incident 000000000000"),
        (["../x", "--withdraw"], 66, "was not accepted"),
        ([incident["id"], "--withdraw"], 66, "was not accepted"),
        ([incident["id"]], 64, "needs a --reason"),
        ([incident["id"], "--reason", " "], 64, "needs a --reason"),
        ([incident["id"], "--reason", "x", "--withdraw"], 64, "takes no --reason"),
        (["--withdraw"], 64, "which incident?"),
    ):
        assert accept.main([str(system.state), *arguments]) == code, arguments
        assert said in capsys.readouterr().err
    accepted(system, incident["id"], "first")
    accepted(system, incident["id"], "second \x1b[2J")
    capsys.readouterr()
    assert accept.main([str(system.state)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[1:] == ["signatures were not checked (--state-keys)"]
    assert "second \\x1b[2J (lost, 1 messages, at billing)" in said
    (path,) = system.state.glob("accepted-*")
    path.write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        system.again()


def test_acceptances_survive_a_state_that_is_built_anew(system: System) -> None:
    system.day(lost=[41])
    (incident,) = system.audit()["incidents"]
    accepted(system, incident["id"])
    (system.state / "kept.json").unlink()
    found = system.again()
    assert (found["window"]["since"], found["window"]["verdict"]) == (None, "accepted")
    assert set(read_acceptances(system.state).by_id) == {incident["id"]}


# -- the hook -----------------------------------------------------------------------------------------------

SCRIPT = """\
import json, os, sys
data = json.load(sys.stdin)
assert data["incident"]["id"] == os.environ["RELIAMSG_INCIDENT"]
with open(sys.argv[1], "a") as log:
    print(os.environ["RELIAMSG_NEWS"], os.environ["RELIAMSG_SEVERITY"], data["incident"]["first"], file=log)
if os.path.exists(sys.argv[1] + ".broken"):
    sys.exit("out of paper")
"""


@dataclass
class Pager:
    place: Path

    def __post_init__(self) -> None:
        (self.place / "script.py").write_text(SCRIPT)

    @property
    def hook(self) -> Hook:
        return Hook(f"{sys.executable} '{self.place}/script.py' '{self.place}/calls of hooks'")

    def calls(self) -> list[str]:
        path = self.place / "calls of hooks"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def broken(self, is_broken: bool) -> None:
        path = self.place / "calls of hooks.broken"
        path.touch() if is_broken else path.unlink()


def test_the_hook_is_called_once_for_each_incident_and_again_when_it_grows(system: System) -> None:
    pager = Pager(system.place)
    system.day(lost=[41])
    system.audit(hook=pager.hook)
    assert pager.calls() == ["new lost 41"]
    system.day(open_from=191)
    system.group.add(2 * DAY + 1, "declared", STREAM, 191, 195, reason="expired", elapsed=30.0)
    system.audit(hook=pager.hook)
    assert pager.calls() == ["new lost 191"]
    system.again(hook=pager.hook)
    assert pager.calls() == []
    system.group.add(2 * DAY + 2, "declared", STREAM, 196, 200, reason="expired", elapsed=30.0)
    system.audit(hook=pager.hook)
    assert pager.calls() == ["grown lost 191"]


def test_a_hook_that_fails_is_called_again_by_the_next_audit(
    system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    pager = Pager(system.place)
    pager.broken(True)
    for _ in range(5):
        system.day(lost=[system.days * PER_DAY + 20])
    system.audit(hook=pager.hook)
    assert len(pager.calls()) == 3  # then it gave up
    assert capsys.readouterr().err.count("exit code 1 out of paper\n") == 3
    audited = read_audited(system.state)
    assert audited is not None
    assert len(audited.unreported) == 5
    system.again()  # without a hook, they stay unreported
    pager.broken(False)
    system.again(hook=pager.hook)
    assert sorted(pager.calls()) == sorted(f"new lost {day * 100 + 20}" for day in range(5))
    system.again(hook=pager.hook)
    assert pager.calls() == []


def test_open_messages_of_a_running_system_and_accepted_incidents_call_no_hook(system: System) -> None:
    pager = Pager(system.place)
    system.day(lost=[41], open_from=91)
    found = system.audit()
    assert {each["severity"] for each in found["incidents"]} == {"lost", "unknown"}
    accepted(system, next(each["id"] for each in found["incidents"] if each["severity"] == "lost"))
    (system.state / "kept.json").unlink()
    system.again(hook=pager.hook)
    assert pager.calls() == []


@pytest.mark.parametrize("command", ["", " ", "'unclosed"])
def test_a_hook_that_is_no_command(command: str) -> None:
    with pytest.raises(ConfigError, match="--hook"):
        Hook(command)


def test_a_hook_that_does_not_exist(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    system.day(lost=[41])
    assert system.audit(hook=Hook("/does/not/exist"))["verdict"] == "lost"
    assert "No such file" in capsys.readouterr().err


# -- days ---------------------------------------------------------------------------------------------------


def test_messages_gaps_and_repairs_by_day(system: System) -> None:
    system.day(lost=range(41, 46))
    system.day()
    system.producer.add(2 * DAY + 1, "repaired", STREAM, 150, 152, site="dc1", group="billing")
    found = system.audit()
    assert found["days"] == [
        {"day": "2026-11-26", "enqueued": 100, "declared_gaps": 5, "repaired": 0},
        {"day": "2026-11-27", "enqueued": 100, "declared_gaps": 0, "repaired": 0},
        {"day": "2026-11-28", "enqueued": 0, "declared_gaps": 0, "repaired": 3},
    ]
    assert "  2026-11-28: 0 messages, declared gaps 0, repaired 3" in table(found)


@pytest.mark.parametrize("seed", range(examples(10)))
def test_days_of_random_journals(tmp_path: Path, seed: int) -> None:
    """Each row of a client counts on the day on which it began, once, even if histories share it."""
    rng = random.Random(seed)
    run = journals(rng.getrandbits(32), "-x", changes=rng.choice((0, 2)))
    run.write(tmp_path / "journals", rng)
    for role, name, rows in run.clients:
        if rows and rng.random() < 0.5:
            for each in segments(role, name, rows[: rng.randint(1, len(rows))], rng):
                path = tmp_path / "journals" / each.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(each.data)
    expected: dict[str, Counter[str]] = {}
    names = {"enqueued": "enqueued", "declared": "declared_gaps", "repaired": "repaired"}
    for role, _, rows in run.clients:
        for row in rows:
            if row.kind in names and row.first <= row.last and (row.kind != "declared" or role == "group"):
                day = as_time(row.wall_us)[:10]
                expected.setdefault(day, Counter())[names[row.kind]] += row.last - row.first + 1
    found = audit(local_spark(seed), tmp_path / "journals", expect=Expect(now_us=2**60))["days"]
    assert found == [
        {"day": day, **{name: expected[day][name] for name in names.values()}} for day in sorted(expected)
    ]


# -- metrics ------------------------------------------------------------------------------------------------


def test_metrics(system: System, tmp_path: Path) -> None:
    system.day(lost=range(41, 46))
    system.audit()
    system.day()
    found = system.audit()
    path = tmp_path / "audit.prom"
    path.write_text("old")
    write_metrics(path, found, 1790000000.0)
    values = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(path.read_text())  # type: ignore[no-untyped-call]
        for sample in family.samples
    }
    assert values["reliamsg_audit_messages", ("fate", "enqueued")] == 200
    assert values["reliamsg_audit_messages", ("fate", "declared_gaps")] == 5
    assert values["reliamsg_audit_delivered", ("group", "billing")] == 195
    assert values["reliamsg_audit_verdict", ("reliamsg_audit_verdict", "lost")] == 1
    assert values["reliamsg_audit_verdict", ("reliamsg_audit_verdict", "complete")] == 0
    assert values["reliamsg_audit_window_verdict", ("reliamsg_audit_window_verdict", "complete")] == 1
    assert values["reliamsg_audit_proven_ratio",] == 1
    assert values["reliamsg_audit_incidents", ("scope", "all")] == 1
    assert values["reliamsg_audit_incidents", ("scope", "window")] == 0
    assert values["reliamsg_audit_timestamp_seconds",] == 1790000000
    through = values["reliamsg_audit_through_timestamp_seconds",]
    assert through == START_US / 1e6 + 2 * DAY * 60
    assert values["reliamsg_audit_site_messages", ("site", "dc1"), ("what", "confirmed")] == 200
    assert [each for each in os.listdir(tmp_path) if "prom" in each] == ["audit.prom"]


def test_metrics_of_an_audit_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = audit(local_spark(1), tmp_path / "empty")
    text = as_openmetrics(found, 1.0).decode()
    assert 'reliamsg_audit_verdict{reliamsg_audit_verdict="unknown"} 1.0' in text
    assert "proven_ratio" not in text
    assert "through_timestamp" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hook", "true"], "--hook needs --state"),
        (["--state", "s", "--hook", "'"], "--hook ': No closing quotation"),
        (["--since", "yesterday"], "--since yesterday: neither ISO 8601 nor"),
        (["--metrics", "nowhere/x.prom"], "--metrics nowhere/x.prom: there is no such directory"),
    ],
)
def test_wrong_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """Before Spark is started."""
    assert main([str(tmp_path), *options]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.integrations
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_commands(system: System, tmp_path: Path) -> None:
    pager = Pager(tmp_path)
    system.day(lost=[41])
    system.export()
    hook = f"{sys.executable} {tmp_path}/script.py '{tmp_path}/calls of hooks'"
    options = [
        tmp_path / "journals", "--state", system.state, "--hook", hook, "--metrics", tmp_path / "x.prom",
        "--master", "local[2]", "--json",
    ]  # fmt: skip
    first = command(*options)
    assert first.returncode == 1, first.stderr
    assert pager.calls() == ["new lost 41"]
    assert "reliamsg_audit_messages" in (tmp_path / "x.prom").read_text()
    (incident,) = json.loads(first.stdout)["incidents"]
    done = command("accept", system.state, incident["id"], "--reason", "known")
    assert (done.returncode, done.stdout) == (
        0, f"incident {incident['id']}: accepted as lost, 1 messages, at billing\n",
    )  # fmt: skip
    second = command(*options, "--since", "2020-01-01")
    assert second.returncode == 0, second.stderr
    found = json.loads(second.stdout)
    assert (found["verdict"], found["window"]["verdict"]) == ("lost", "accepted")
    assert pager.calls() == []


# -- rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(examples(20)))
def test_windows_of_random_journals(tmp_path: Path, seed: int) -> None:
    """A window from the beginning of time has the verdict of all time; a later one has no more incidents, and no worse
    verdict unless nothing in it is proven."""
    rng = random.Random(seed)
    for number in range(rng.randint(1, 3)):
        run = journals(
            rng.getrandbits(32), f"-{number}", clean=rng.random() < 0.4, changes=rng.choice((0, 2))
        )
        run.write(tmp_path / "journals", rng)
    expect = Expect(drained=rng.random() < 0.5, now_us=2**60)
    judged = partial(audit, local_spark(seed), tmp_path / "journals", expect=expect)
    whole = judged()
    assert whole["window"]["verdict"] == whole["verdict"]
    assert whole["window"]["enqueued"] == whole["messages"]["enqueued"]
    assert whole["window"]["proven"] == whole["messages"]["proven"]
    assert whole["window"]["incidents"] == sum(
        each["severity"] != "remark"
        and (expect.drained or each["severity"] != "unknown" or "enqueued" not in each)
        for each in whole["incidents"]
    )
    begin = judged(baseline=Baseline(0))["window"]
    assert {**begin, "since": None} == {
        **whole["window"],
        "verdict": begin["verdict"] if whole["verdict"] == "complete" else whole["verdict"],
    }
    before = whole["window"]
    for us in sorted(rng.randrange(0, 2**51) for _ in range(4)):
        window = judged(baseline=Baseline(us))["window"]
        assert window["incidents"] <= before["incidents"]
        assert window["enqueued"] <= before["enqueued"]
        assert window["proven"] <= before["proven"]
        before = window
    plain = checker.check_directory(
        tmp_path / "journals", checker.Expect(drained=expect.drained, now_us=2**60)
    )
    assert plain.verdict == whole["verdict"]


def test_incidents_that_are_not_listed_count() -> None:
    incidents = [Brief("a", "lost", 1, 1, (), (5, 5))]
    reach, scope = Reach(Through(100, []), 10, 10, False), Scope(Baseline(50))
    assert judge_window(scope, incidents, 0, reach)["verdict"] == "complete"
    found = judge_window(scope, incidents, 7, reach)
    assert (found["verdict"], found["incidents"]) == ("lost", 7)


@pytest.mark.parametrize(
    ("brief", "covered"),
    [
        (Brief("a", "lost", 5, 3, ("g",)), True),
        (Brief("a", "unknown", 4, 2, ()), True),
        (Brief("a", "violated", 5, 3, ("g",)), False),
        (Brief("a", "lost", 6, 3, ("g",)), False),
        (Brief("a", "lost", None, 3, ("g",)), False),
        (Brief("a", "lost", 5, 4, ("g",)), False),
        (Brief("a", "lost", 5, 3, ("g", "h")), False),
        (Brief("b", "lost", 5, 3, ("g",)), False),
    ],
)
def test_an_acceptance_covers_what_was_accepted(brief: Brief, covered: bool) -> None:
    acceptance = Acceptance(Brief("a", "lost", 5, 3, ("g",)), "known", "me", 1)
    assert Acceptances({"a": acceptance}).covers(brief) is covered


def test_a_state_of_an_earlier_version_begins_anew_and_keeps_acceptances(system: System) -> None:
    system.day(lost=[41])
    (incident,) = system.audit()["incidents"]
    accepted(system, incident["id"])
    manifest = json.loads((system.state / "kept.json").read_text())
    (system.state / "kept.json").write_text(json.dumps({**manifest, "version": 0}))
    kept = Kept(system.state)
    assert kept.audited is None
    assert set(kept.acceptances.by_id) == {incident["id"]}
    kept.close()
