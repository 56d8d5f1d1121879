"""Accounts up to a given time for running clients, and the last hop of lost messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliamsg.checker import Chain, Expect, Report, check
from reliamsg.checker.journals import Role
from reliamsg.store.head import Head
from reliamsg.store.journal import JournalRow

T = 1_700_000_000_000_000
"""The time of all accounts; a row's `at` is in µs after it."""
STREAM = {"producer": "A", "topic": "orders", "epoch": 7, "incarnation": 9}


class Client:
    """Writes rows, one after the other."""

    def __init__(self, role: str, name: str, opened: dict[str, object]) -> None:
        self.role, self.name = role, name
        self.rows: list[JournalRow] = []
        self.add("opened", -1000, detail=opened)

    def add(self, kind: str, at: int, first: int = 0, last: int = 0, **more: object) -> None:
        row = JournalRow(
            len(self.rows) + 1, f"{1:016x}", kind, T + at, T + at, at + 1000, "", "", 0, 0, 0, first, last,
            "", self.name if self.role == "group" else "", "", None, None, None,
        )  # fmt: skip
        place = STREAM if first else {}
        self.rows.append(replace(row, **(place | more)))  # type: ignore[arg-type]

    def chain(self, to_the_end: bool = False) -> Chain:
        role: Role = "producer" if self.role == "producer" else "group"
        return Chain(role, self.name, self.name, self.rows, to_the_end=to_the_end)


def producer(*published: tuple[int, int, int]) -> Client:
    """`published`: (at, first, last), confirmed by both sites."""
    client = Client("producer", "A", {"groups": {"orders": ["g"]}, "sites": ["dc1", "dc2"], "confirm": "all"})
    for at, first, last in published:
        client.add("enqueued", at, first, last, digest=0)
        for site in ("dc1", "dc2"):
            client.add("confirmed", at, first, last, site=site)
        client.add("published", at, first, last)
    return client


def group(*handed: tuple[int, int, int], acknowledged: bool = True) -> Client:
    client = Client("group", "g", {"topics": ["orders"], "begin": "earliest"})
    for at, first, last in handed:
        client.add("received", at, first, last, site="dc1")
        client.add("delivered", at, first, last, digest=0)
        if acknowledged:
            client.add("acknowledged", at, first, last)
    return client


def judged(
    *clients: Client, until_us: int | None = T, to_the_end: bool = False, drained: bool = False
) -> Report:
    expect = Expect(until_us=until_us, drained=drained)
    return check([client.chain(to_the_end) for client in clients], expect=expect)


def test_a_running_system_is_complete_up_to_a_time() -> None:
    """The group is ahead of the producer's exported rows, and has acknowledged only a part of them."""
    consumer = group((-400, 1, 5), (-300, 6, 10), (200, 11, 15))
    consumer.add("delivered", 300, 16, 30, digest=0)
    clients = producer((-500, 1, 10), (100, 11, 20)), consumer
    report = judged(*clients)
    assert report.verdict == "complete", report.text()
    assert report.messages.enqueued == 10
    assert report.messages.delivered == {"g": 10}
    drained = judged(*clients, until_us=None, drained=True)
    assert {finding.kind for finding in drained.findings} >= {"unclosed", "unproven"}


def test_later_evidence_counts_for_earlier_messages() -> None:
    report = judged(producer((-500, 1, 10), (100, 11, 20)), group((-400, 1, 5), (200, 6, 10)))
    assert report.verdict == "complete", report.text()


def test_undelivered_messages_are_open_not_lost() -> None:
    report = judged(producer((-500, 1, 10), (100, 11, 20)), group((-400, 1, 5), (200, 6, 8)))
    assert [(f.kind, f.first, f.last) for f in report.findings] == [("undelivered", 9, 10)]
    assert report.messages.pending == 2


def test_unconfirmed_messages_are_pending() -> None:
    client = producer((-500, 1, 10))
    client.add("enqueued", -10, 11, 12, digest=0)
    client.add("enqueued", 10, 13, 14, digest=0)
    report = judged(client, group((-400, 1, 10), (20, 11, 12)))
    assert [(f.kind, f.first, f.last) for f in report.findings] == [("pending", 11, 12)]


def test_a_row_counts_as_a_whole_from_its_beginning() -> None:
    client = producer((-500, 1, 10))
    client.rows[1] = replace(client.rows[1], wall_last_us=T + 1)
    client.add("connected", 5, site="dc1")
    report = judged(client, group((-400, 1, 4), (200, 5, 6)))
    assert report.verdict == "unknown", report.text()
    assert [(f.kind, f.first, f.last) for f in report.findings] == [("undelivered", 7, 10)]
    assert (report.messages.enqueued, report.messages.delivered) == (10, {"g": 6})


@pytest.mark.parametrize("ends", ["producer", "group"])
@pytest.mark.parametrize("closed", [False, True])
def test_no_journal_may_end_before_that_time(ends: str, closed: bool) -> None:
    """Even if it was closed: a later opening may be missing."""
    clients = [producer((-500, 1, 10)), group((-400, 1, 10))]
    for client in clients:
        if client.role != ends:
            client.add("connected", 5, site="dc1")
        elif closed:
            client.add("closed", -100)
    report = judged(*clients)
    assert report.verdict == "unknown"
    assert [f.kind for f in report.findings] == ["ends_early"], report.text()
    at = T - 100 if closed else T - (500 if ends == "producer" else 400)
    assert [(hold.role, hold.through_us) for hold in report.through.held_by] == [(ends, at)]
    assert report.messages.proven == 10


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("to_the_end", [False, True])
def test_an_unclosed_journal_proves_no_phantom(to_the_end: bool, closed: bool) -> None:
    """With segments, another one may be on its way; a file that was read may be an older copy that was not
    opened yet."""
    clients = producer((-500, 1, 10)), group((-400, 1, 10), (-350, 11, 12))
    if closed:
        clients[0].add("closed", -300)
    report = judged(*clients, until_us=None, to_the_end=to_the_end)
    kinds = {f.kind for f in report.findings}
    assert "phantom" in kinds if closed else "phantom" not in kinds
    assert "unproven" in kinds if to_the_end and not closed else "unproven" not in kinds
    if not closed and not to_the_end:  # they were enqueued later, by the rows that follow
        assert (report.verdict, report.messages.proven) == ("complete", 10)
        assert report.through.us == T - 500


def test_an_unclosed_file_shows_phantoms_of_finished_epochs() -> None:
    """A copy has all openings before its last."""
    client, consumer = producer((-500, 1, 10)), group((-400, 1, 12))
    client.rows[0] = replace(client.rows[0], epoch=client.rows[1].epoch)
    later = replace(client.rows[0], boot=f"{2:016x}", epoch=client.rows[1].epoch + 1, incarnation=0xB)
    client.rows += [replace(client.rows[0], kind="closed"), later]
    client.rows = [replace(row, lsn=lsn) for lsn, row in enumerate(client.rows, 1)]
    findings = judged(client, consumer, until_us=None, to_the_end=True).findings
    assert ("phantom", 11, 12) in {(f.kind, f.first, f.last) for f in findings}


def test_losses_are_distinguished_by_their_last_hop() -> None:
    """1 to 4 delivered; 5 and 6 buffered; 7, 8 received; 9, 10 confirmed at one site, 11 at both; 12 at none."""
    client = Client("producer", "A", {"groups": {"orders": ["g"]}, "sites": ["dc1", "dc2"], "confirm": "any"})
    client.add("enqueued", -500, 1, 20, digest=0)
    client.add("confirmed", -400, 1, 11, site="dc1")
    client.add("confirmed", -400, 11, 20, site="dc2")
    client.add("published", -400, 1, 20)
    client.add("closed", -100, detail={"pending": 0})
    consumer = group((-300, 1, 4))
    consumer.add("received", -290, 5, 8, site="dc1")
    consumer.add("received", -290, 7, 7, site="dc2")
    consumer.add("buffered", -280, 5, 6, site="dc1")
    consumer.add("buffered", -280, 9, 9, site="dc1")
    consumer.add("declared", -270, 12, 14, reason="expired")
    consumer.add("received", -260, 20, 20, site="dc2")
    consumer.add("delivered", -260, 20, 20, digest=0)
    consumer.add("acknowledged", -260, 20, 20)
    consumer.add("closed", -100)
    report = judged(client, consumer, until_us=None)
    lost = [(f["kind"], f["first"], f["last"], f["hop"], f["sites"]) for f in report.as_dict()["lost_ranges"]]
    assert sorted(lost, key=lambda piece: piece[1]) == [
        ("lost", 5, 6, "buffered", ["dc1"]),
        ("lost", 7, 7, "received", ["dc1", "dc2"]),
        ("lost", 8, 8, "received", ["dc1"]),
        ("lost", 9, 10, "confirmed", ["dc1"]),
        ("lost", 11, 11, "confirmed", ["dc1", "dc2"]),
        ("declared_gap", 12, 14, "confirmed", ["dc2"]),
        ("lost", 15, 19, "confirmed", ["dc2"]),
    ]
    assert report.messages.lost == 12


def test_unsent_messages_have_no_site() -> None:
    client = Client("producer", "A", {"groups": {"orders": ["g"]}, "sites": ["dc1"], "confirm": "any"})
    client.add("enqueued", -500, 1, 2, digest=0)
    client.add("removed", -400, 1, 2)
    client.add("closed", -100, detail={"pending": 0})
    consumer = Client("group", "g", {"topics": ["orders"], "begin": "earliest"})
    consumer.add("joined", -450, 1, 1)
    consumer.add("closed", -100)
    found = judged(client, consumer, until_us=None).as_dict()["lost_ranges"]
    assert [(f["kind"], f["hop"], f["sites"]) for f in found] == [("removed", "enqueued", [])]


# -- without a time, the greatest one is found ---------------------------------------------------------------


def test_the_verdict_is_complete_through_the_least_end_of_a_journal() -> None:
    clients = producer((-500, 1, 10), (100, 11, 20)), group((-400, 1, 10), (200, 11, 18))
    report = judged(*clients, until_us=None)
    assert (report.verdict, report.through.us) == ("complete", T + 99)
    assert (report.messages.enqueued, report.messages.proven) == (20, 10)
    assert {(hold.role, hold.client) for hold in report.through.held_by} == {("group", "g")}
    assert "19 to 20" in report.through.held_by[0].why
    clients[1].add("delivered", 300, 19, 20, digest=0)
    clients[1].add("acknowledged", 300, 19, 20)
    whole = judged(*clients, until_us=None)
    assert (whole.verdict, whole.through.us, whole.messages.proven) == ("complete", T + 100, 20)
    assert [(hold.role, hold.client) for hold in whole.through.held_by] == [("producer", "A")]


def test_an_open_journal_is_proven_to_the_beginning_of_its_last_row() -> None:
    """What has not arrived began after it, whenever the rows before it were extended."""
    client = producer((-500, 1, 10), (-300, 11, 20))
    client.rows[1] = replace(client.rows[1], wall_last_us=T - 100)
    client.rows[2] = replace(client.rows[2], wall_last_us=T - 50)
    report = judged(client, group((-200, 1, 10), (-150, 11, 20)), until_us=None)
    assert (report.verdict, report.through.us) == ("complete", T - 300)


def test_contents_are_proven_up_to_where_both_journals_end_a_row() -> None:
    """A digest sum of a row that goes further proves nothing about its beginning."""
    clients = producer((-500, 1, 10), (100, 11, 20), (200, 21, 30)), group((-400, 1, 12), (210, 13, 25))
    report = judged(*clients, until_us=None)
    assert (report.verdict, report.messages.proven) == ("unknown", 0)
    assert {f.kind for f in report.findings} == {"undelivered"}
    clients[1].rows[:] = group((-400, 1, 12), (150, 13, 20), (210, 21, 25)).rows
    report = judged(*clients, until_us=None)
    assert (report.verdict, report.messages.proven) == ("complete", 20)


def test_nothing_is_complete_before_the_first_message() -> None:
    report = judged(producer((-500, 1, 10)), group((-400, 2, 10)), until_us=None)
    assert report.verdict == "violated", "the first is skipped without being declared"
    nothing = judged(producer((-500, 1, 10)), group((-400, 1, 9)), until_us=None)
    assert (nothing.verdict, nothing.messages.proven) == ("unknown", 0)
    assert nothing.through.us == T - 501


def test_a_loss_decides_whenever_it_happened() -> None:
    clients = producer((-500, 1, 10), (100, 11, 20)), group((-400, 1, 10))
    clients[1].add("declared", 200, 11, 11, reason="expired", detail={"elapsed": 5.0})
    report = judged(*clients, until_us=None)
    assert report.verdict == "lost"


def test_missing_evidence_is_missing_at_every_time() -> None:
    clients = producer((-500, 1, 10)), group((-400, 1, 10))
    clients[1].add("received", 0, 1, 3, site="dc1", epoch=8, incarnation=10)
    report = judged(*clients, until_us=None)
    assert (report.verdict, report.through.us) == ("unknown", None)
    assert {f.kind for f in report.findings} == {"missing"}


def test_no_time_is_in_a_period_in_which_a_clock_ran_backwards() -> None:
    client = producer((-500, 1, 10), (400, 11, 20), (250, 21, 30), (600, 31, 40))
    clients = client, group((500, 1, 40))
    report = judged(*clients, until_us=None)
    assert (report.verdict, report.through.us, report.messages.proven) == ("complete", T + 500, 30)
    clients[1].rows[:] = group((300, 1, 40)).rows
    mixed = judged(*clients, until_us=None)
    assert (mixed.verdict, mixed.through.us, mixed.messages.proven) == ("complete", T + 249, 10)
    assert "its clock was set" in mixed.through.held_by[0].why
    asked = judged(*clients, until_us=T + 290)
    assert (asked.verdict, [f.kind for f in asked.findings]) == ("unknown", ["mixed_clock"])


def test_nothing_is_proven_beyond_the_clock_of_the_auditor() -> None:
    clients = producer((-500, 1, 10), (100, 11, 20)), group((-400, 1, 10), (200, 11, 20))
    chains = [client.chain() for client in clients]
    report = check(chains, expect=Expect(now_us=T))
    assert (report.verdict, report.through.us, report.messages.proven) == ("complete", T, 10)
    assert [hold.why for hold in report.through.held_by] == ["it is the time of the audit"]
    later = check(chains, expect=Expect(now_us=T, until_us=T + 50))
    assert (later.verdict, [f.kind for f in later.findings]) == ("unknown", ["ends_early"])


def test_a_head_proves_the_time_until_which_nothing_had_followed() -> None:
    writer, reader = (client.chain() for client in (producer((-500, 1, 10)), group((-150, 1, 10))))
    tip = reader.rows[-1]
    assert check([writer, reader]).through.us == T - 500
    idle = writer.rows[-1]
    head = Head(role="producer", client="A", boot=idle.boot, lsn=idle.lsn, digest="0" * 64, wall_us=T + 5_000)
    writer = replace(writer, heads=(head,))
    report = check([writer, reader])
    assert (report.verdict, report.through.us) == ("complete", T - 150)
    assert [(hold.role, hold.why) for hold in report.through.held_by] == [
        ("group", "its journal has no row after that")
    ]
    late, early = (
        Head(role="group", client="g", boot=tip.boot, lsn=tip.lsn + by, digest="0" * 64, wall_us=T + 3_000)
        for by in (0, -1)
    )
    assert check([writer, replace(reader, heads=(late,))]).through.us == T + 3_000
    assert check([writer, replace(reader, heads=(early,))]).through.us == T - 150


def test_nothing_follows_in_a_retired_file() -> None:
    clients = producer((-500, 1, 10), (100, 11, 20)), group((-400, 1, 10))
    clients[1].add("retired", -390)
    report = judged(*clients, until_us=None)
    assert (report.verdict, report.messages.proven) == ("complete", 10)
    assert report.through.us == T + 99, "the group was retired before it had everything"
    assert [(each.role, each.ends) for each in report.through.chains] == [
        ("producer", "open"),
        ("group", "retired"),
    ]
    assert report.as_dict()["clients"][1]["proven"] is None


def test_no_time_is_in_a_step_of_a_clock() -> None:
    clients = producer((-500, 1, 10), (100, 11, 20)), group((-400, 1, 10))
    clients[1].add("clock_step", -370, detail={"from_us": T - 380, "to_us": T - 370})
    clients[0].add("clock_step", 200, detail={"from_us": "soon"})
    for at, us in ((-370, T - 370), (-375, T - 381)):
        clients[1].rows[-1] = replace(clients[1].rows[-1], wall_us=T + at, wall_last_us=T + at)
        report = judged(*clients, until_us=None)
        assert report.through.us == us
    assert (report.verdict, report.through.us) == ("complete", T - 381)
    assert report.messages.proven == 10
