"""The producer's control plane on simulated time: statuses out, states in, repairs, and what groups are done with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from reliamsg.cli.outbox import outbox
from reliamsg.errors import ConfigError, ConfirmTimeout, OutboxFull
from reliamsg.keys import KeyRing
from reliamsg.message import Gap, Stream
from reliamsg.producer import groups as groups_module
from reliamsg.producer.commit import Content
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.wire.address import group_address, status_address
from reliamsg.wire.control import ChainEpoch
from reliamsg.wire.limits import CHALLENGE_BYTES, MAX_ANSWERED
from tests.producer.control_tools import Bench, settled, state, stream
from tests.producer.tools import journal

GROUPS = {"t": ["g"]}


class TestStatuses:
    def test_the_end_of_a_stream_is_told_when_it_goes_quiet(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0)
        group = bench.group("g")
        bench.publish(engine, "t", b"1", b"2")
        start = bench.now
        bench.run(0.2)
        assert not group.statuses
        bench.run(0.1)
        ((at, address, status),) = group.statuses
        assert at == pytest.approx(start + 0.25, abs=0.01)
        assert address == status_address("t")
        outbox = engine._outbox
        assert group.newest().chain == [ChainEpoch(outbox.epoch, outbox.incarnation, 1, 2)]
        assert (status.epoch, status.incarnation, status.consumed) == (
            outbox.epoch,
            outbox.incarnation,
            False,
        )
        assert status.lsn == outbox.journal.newest_lsn > 0
        assert status.interval_ms == pytest.approx(1_500, abs=1)

    def test_the_confirms_of_a_lost_site_are_announced_by_the_others(self, tmp_path: Path) -> None:
        path = tmp_path / "p.db"
        bench = Bench(path, "dc1", "dc2")
        engine = bench.open(GROUPS, hello_timeout=0)
        group = bench.group("g", site="dc2")
        outbox = engine._outbox
        for number in range(200):  # as many as may be announced at once, and more
            bench.publish(engine, "t", b"%d" % number)
            bench.run(0.01)
            outbox.journal.lsn_to_announce(int(bench.now * 1e6))
        group.statuses.clear()
        bench.network["dc1"].down()
        bench.run(0.4)
        assert group_address("g") not in [address for _, address, _ in group.statuses]
        lost = max(row.lsn for row in journal(path, "disconnected"))
        bench.run(0.3)
        (status,) = [status for _, address, status in group.statuses if address == group_address("g")]
        assert status.streams == []
        assert status.lsn >= lost
        confirmed = [row for row in journal(path, "confirmed") if row.site == "dc1"]
        assert max(row.last for row in confirmed if row.lsn <= status.lsn) == 200

    def test_it_backs_off_and_ends_when_all_have_acknowledged(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, hello_timeout=0)
        group = bench.group("g")
        bench.publish(engine, "t", b"1", b"2")
        bench.run(300.0)
        times = [at for at, _, _ in group.statuses]
        waits = [b - a for a, b in pairwise(times)]
        assert [round(wait) for wait in waits[:8]] == [1, 2, 4, 8, 16, 32, 60, 60]
        group.tell(settled(engine, "t", 2))
        bench.run(1.0)
        group.statuses.clear()
        bench.run(600.0)
        assert not group.statuses
        bench.publish(engine, "t", b"3")
        bench.run(0.3)
        assert group.newest().chain[-1].last == 3

    def test_a_call_is_answered_to_the_group_alone(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0)
        bench.publish(engine, "t", b"1")
        bench.run(1.0)
        group, other = bench.group("g"), bench.group("other", "nothing")
        group.call("t")
        bench.run(0.0)
        assert [address for _, address, _ in group.statuses] == [group_address("g")]
        assert group.newest().chain[-1].last == 1
        assert group.statuses[0][2].heard == ("inbox", group.number), "and says what it answers"
        assert not other.statuses
        group.call("unknown")
        bench.run(0.1)
        assert len(group.statuses) == 1

    def test_a_group_that_is_behind_is_answered_once_a_second_at_most(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0)
        bench.publish(engine, "t", b"1")
        group = bench.group("g")
        group.answers = {}  # every status is answered: nothing of the stream is known
        bench.run(100.0)
        # 0.25, then at intervals that double: the answers to them ask for nothing more.
        assert len(group.statuses) <= 8
        group.statuses.clear()
        for _ in range(100):  # it goes on telling the same
            group.tell(state())
            bench.run(0.1)
        assert len(group.statuses) <= 1
        for number in range(100):
            bench.publish(engine, "t", b"%d" % number)
        group.statuses.clear()
        for number in range(100):  # it makes progress
            group.tell(settled(engine, "t", number))
            bench.run(0.1)
        assert 5 <= len(group.statuses) <= 12

    def test_a_nonce_is_answered_once_for_each_stream_though_the_group_is_not_behind(
        self, bench: Bench
    ) -> None:
        engine = bench.open(GROUPS, hello_timeout=0)
        group = bench.group("g")
        bench.publish(engine, "t", b"1")
        group.tell(settled(engine, "t", 1))
        bench.run(100.0)
        group.statuses.clear()
        for number in range(5):
            group.nonce = bytes([number]) * CHALLENGE_BYTES
            for _ in range(10):  # the same again, as a group says it in answer to every status
                group.tell(settled(engine, "t", 1))
                bench.run(1.0)
            ((_, address, status),) = group.statuses
            assert address == group_address("g")
            assert status.nonces[-1] == group.nonce
            assert len(status.nonces) == min(number + 1, MAX_ANSWERED)
            assert [each.topic for each in status.streams] == ["t"]
            group.statuses.clear()
        bench.publish(engine, "t", b"2")
        bench.run(1.0)
        assert [status.nonces for _, address, status in group.statuses if address == status_address("t")] == [
            []
        ]

    def test_an_older_copy_of_a_group_learns_how_far_it_was(self, bench: Bench) -> None:
        """It says little besides answers to what everybody is told, in which that is not."""
        engine = bench.open(hello_timeout=0)
        bench.publish(engine, "t", b"1", b"2", b"3")
        group = bench.group("g")
        group.tell(settled(engine, "t", 2))
        bench.run(10.0)
        group.statuses.clear()
        group.answers = {"t": settled(engine, "t", 1)}
        bench.run(100.0)
        answers = [status.streams[0].reached for _, to, status in group.statuses if to == group_address("g")]
        epoch = engine._outbox.epoch
        assert set(answers) == {((epoch, 3), (epoch, 3))}
        assert len(group.statuses) <= 12, "and that is no endless talk"

    def test_a_connection_announces_everything(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0)
        for topic in ("t", "u"):
            bench.publish(engine, topic, b"1")
        bench.run(1.0)
        group = bench.group("g", "t", "u")
        group.tell(settled(engine, "t", 1), settled(engine, "u", 1))
        bench.run(100.0)
        group.statuses.clear()
        bench.network["dc1"].cut()
        bench.network.run_pending()
        bench.run(0.0)
        assert {s.topic for _, _, status in group.statuses for s in status.streams} == {"t", "u"}

    def test_an_unseen_group_is_told_though_it_has_everything(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its mark was lost, and it has nothing to say by itself: what it answers proves it."""
        engine = bench.open({"t": ["g"]}, hello_timeout=0)
        bench.publish(engine, "t", b"1")
        group = bench.group("g")
        monkeypatch.setattr(engine.shared, "unseen", lambda site, stream: ["g"])
        group.tell(settled(engine, "t", 1))
        bench.run(100.0)
        group.statuses.clear()
        bench.run(100.0)
        assert group.statuses
        monkeypatch.setattr(engine.shared, "unseen", lambda site, stream: [])
        bench.run(100.0)
        group.statuses.clear()
        bench.run(1_000.0)
        assert not group.statuses

    def test_the_chain_is_what_is_held_and_one_before(self, bench: Bench) -> None:
        epochs = []
        for number in range(4):
            engine = bench.open(hello_timeout=0, retain_seconds=0.0)
            bench.publish(engine, "t", b"1", b"2")
            epochs.append(engine._outbox.epoch)
            if number < 3:
                bench.run(2.0)  # released
                bench.close(engine)
                bench.run(0.01)
        group = bench.group("g")
        bench.run(0.3)
        assert [(c.epoch, c.first, c.last) for c in group.newest().chain] == [
            (epochs[2], 3, 2),
            (epochs[3], 1, 2),
        ]
        bench.run(5.0)
        group.call("t")
        bench.run(0.0)
        assert [(c.epoch, c.first, c.last) for c in group.newest().chain] == [
            (epochs[2], 3, 2),
            (epochs[3], 3, 2),
        ]

    def test_it_goes_back_to_the_slowest_named_group(self, bench: Bench) -> None:
        epochs = []
        for number in range(5):
            engine = bench.open(GROUPS, hello_timeout=0, retain_seconds=0.0)
            bench.publish(engine, "t", b"1", b"2")
            epochs.append(engine._outbox.epoch)
            bench.run(2.0)
            if number == 1:
                bench.group("g").tell(settled(engine, "t", 1))
                bench.run(2.0)
            if number < 4:
                bench.close(engine)
                bench.run(0.01)
        group = bench.group("g")
        group.call("t")
        bench.run(0.0)
        assert [c.epoch for c in group.newest().chain] == epochs
        assert group.newest().since == {"g": (epochs[0], 1)}

    def test_old_epochs_are_forgotten_in_the_end(self, bench: Bench) -> None:
        for _ in range(25):
            engine = bench.open(hello_timeout=0, retain_seconds=0.0)
            bench.publish(engine, "t", b"1")
            bench.run(2.0)
            bench.close(engine)
            bench.run(0.01)
        outbox = bench.open(hello_timeout=0)._outbox
        assert 2 <= len(outbox.chain(outbox.stream("t", 0).id)) <= 18


class TestConsumed:
    def test_batches_stay_until_all_named_groups_are_done(self, bench: Bench) -> None:
        engine = bench.open(
            {"t": ["g", "h"], "u": []}, release="consumed", retain_seconds=0.0, hello_timeout=0
        )
        one, other = bench.group("g"), bench.group("h")
        receipt = bench.publish(engine, "t", b"1", b"2")
        bench.publish(engine, "t", b"3")
        bench.publish(engine, "u", b"nobody is named")
        bench.run(10.0)
        assert receipt.done
        assert inspect_outbox(bench.path).messages == 3, "u has left"
        one.tell(settled(engine, "t", 3))
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 3
        with pytest.raises(ConfirmTimeout, match="by h"):
            receipt.wait(0.0, until="consumed")
        other.tell(settled(engine, "t", 2))
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 1
        receipt.wait(0.0, until="consumed")
        other.tell(settled(engine, "t", 3))
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 0
        assert engine.admission.stored == engine.retention.stored_bytes == 0
        told = [(row.group, row.first, row.last) for row in journal(bench.path, "consumed")]
        assert sorted(told) == [("g", 1, 3), ("h", 1, 2), ("h", 3, 3)] or sorted(told) == [
            ("g", 1, 3),
            ("h", 1, 3),
        ]

    def test_a_position_in_the_middle_of_a_batch(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0)
        bench.publish(engine, "t", b"1", b"2", b"3")
        bench.group("g").tell(settled(engine, "t", 2))
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 3
        (member,) = inspect_outbox(bench.path).members
        assert (member.position, member.behind) == ((engine._outbox.epoch, 3), 1)

    def test_a_full_outbox_names_who_lags(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, release="consumed", max_bytes=10_000, retain_seconds=0.0, hello_timeout=0)
        group = bench.group("g")
        for _ in range(4):
            bench.publish(engine, "t", bytes(2_000))
        bench.run(5.0)
        with pytest.raises(OutboxFull, match="group g is 4 messages behind on t and was never heard"):
            bench.publish(engine, "t", bytes(2_000))
        group.tell(settled(engine, "t", 3))
        bench.run(5.0)
        bench.publish(engine, "t", bytes(2_000))
        with pytest.raises(OutboxFull, match="group g is 2 messages behind on t"):
            bench.publish(engine, "t", bytes(9_000))

    def test_positions_outlast_a_crash(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0)
        first = engine._outbox.epoch
        for n in range(4):
            bench.publish(engine, "t", b"%d" % n)
        bench.group("g").tell(settled(engine, "t", 3))
        bench.run(0.2)  # stored, and nothing is released before a second
        bench.close(engine, crash=True)
        bench.run(0.01)
        again = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0)
        assert again.status().groups[0].position == (first, 4)
        held = again.admission.stored
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 1
        assert again.retention.stored_bytes == again.admission.stored == held > 0

    def test_streams_that_interleave_leave_independently(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(groups_module, "WALK_ROWS", 7)
        groups = {"t": ["g"], "u": ["g"]}
        engine = bench.open(groups, release="consumed", retain_seconds=0.0, hello_timeout=0)
        for n in range(50):
            bench.publish(engine, "tu"[n % 2], b"%d" % n)
        bench.group("g").tell(settled(engine, "u", 25))
        bench.run(10.0)
        assert {m.topic: m.behind for m in inspect_outbox(bench.path).members} == {"t": 25, "u": 0}
        assert inspect_outbox(bench.path).messages == 25
        bench.close(engine)
        again = bench.open(groups, release="consumed", retain_seconds=0.0, hello_timeout=0)
        bench.group("g").tell(
            state("t", (engine._outbox.epoch, 26), (engine._outbox.epoch, engine._outbox.incarnation))
        )
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 0
        assert again.admission.stored == 0

    def test_what_is_not_published_stays_too(self, bench: Bench, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "two.db", "dc1", "dc2")
        bench.network["dc2"].down()
        engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0)
        receipt = bench.publish(engine, "t", b"1")
        bench.group("g").tell(settled(engine, "t", 1))
        bench.run(10.0)
        receipt.wait(0.0, until="consumed")
        assert not receipt.done
        assert inspect_outbox(bench.path).messages == 1
        bench.network["dc2"].up()
        bench.run(10.0)
        assert receipt.done
        assert inspect_outbox(bench.path).messages == 0
        bench.close(engine)

    def test_positions_that_cannot_be(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0)
        group, outbox = bench.group("g"), engine._outbox
        bench.publish(engine, "t", b"1", b"2")
        epoch = outbox.epoch
        entered = (epoch, outbox.incarnation)
        group.tell(state("t", (epoch, 4), entered))  # more than there is
        group.tell(state("t", (epoch + 1, 1), entered))
        group.tell(state("t", (epoch, 3), (epoch, outbox.incarnation ^ 1)))  # of another history
        group.tell(state("made up", (epoch, 3), entered))
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 2
        assert engine.status().groups[0].position == (epoch, 1)

    def test_waiting_needs_the_mode_and_a_group(self, bench: Bench) -> None:
        engine = bench.open(release="consumed", hello_timeout=0)
        with pytest.raises(ConfigError, match="no group is named for topic 't'"):
            bench.publish(engine, "t", b"1").wait(until="consumed")


class TestMembership:
    def test_a_group_counts_from_when_it_is_added(self, bench: Bench) -> None:
        engine = bench.open(release="consumed", retain_seconds=0.0, hello_timeout=0)
        bench.publish(engine, "t", b"1", b"2")
        engine.add_group("t", "g")
        bench.publish(engine, "t", b"3")
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 1
        (group,) = engine.status().groups
        assert (group.since, group.behind, group.heard_s) == ((engine._outbox.epoch, 3), 1, None)
        (row,) = journal(bench.path, "group_added")
        assert (row.topic, row.group, row.epoch, row.first) == ("t", "g", engine._outbox.epoch, 3)

    def test_removing_lets_go_of_what_was_kept(self, bench: Bench) -> None:
        engine = bench.open({"t": ["g", "h"]}, release="consumed", retain_seconds=0.0, hello_timeout=0)
        bench.publish(engine, "t", b"1")
        bench.group("g").tell(settled(engine, "t", 1))
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 1
        engine.remove_group("t", "h")
        bench.run(10.0)
        assert inspect_outbox(bench.path).messages == 0
        with pytest.raises(ConfigError, match="not named"):
            engine.remove_group("t", "h")
        (row,) = journal(bench.path, "group_removed")
        assert (row.group, row.detail) == ("h", {"position": [engine._outbox.epoch, 1]})

    def test_removing_journals_first_how_far_the_group_was(self, bench: Bench) -> None:
        """What it was done with may leave for that reason alone, so the journal must say so, and say it before."""
        engine = bench.open({"t": ["g", "h"]}, release="consumed", retain_seconds=300.0, hello_timeout=0)
        bench.publish(engine, "t", b"1", b"2", b"3")
        bench.group("h").tell(settled(engine, "t", 2))
        bench.run()
        assert not journal(bench.path, "consumed"), "heard, and not stored yet"
        engine.remove_group("t", "h")
        rows = [row for row in journal(bench.path) if row.kind in ("consumed", "group_removed")]
        assert [(row.kind, row.group, row.first, row.last) for row in rows] == [
            ("consumed", "h", 1, 2),
            ("group_removed", "h", 1, 1),
        ]
        bench.close(engine)
        assert len(journal(bench.path, "consumed")) == 1, "once"

    @pytest.mark.parametrize("release", ["confirmed", "consumed"])
    def test_who_is_not_named_any_more(self, bench: Bench, release: str) -> None:
        bench.close(bench.open({"t": ["g", "h"]}, release=release))
        engine = bench.open({"t": ["h", "i"]}, release=release)
        names = ["g", "h", "i"] if release == "consumed" else ["h", "i"]
        assert [member.group for member in engine.status().groups] == names
        assert inspect_outbox(bench.path).groups == {"t": names}
        assert journal(bench.path, "opened")[-1].detail["groups"] == {"t": names}  # type: ignore[index]
        assert [row.group for row in journal(bench.path, "group_added")] == ["i"], (
            "the first opening names the others"
        )
        assert [row.group for row in journal(bench.path, "group_removed")] == (
            [] if release == "consumed" else ["g"]
        )

    def test_heard_groups_are_shown_and_not_waited_for(self, bench: Bench) -> None:
        engine = bench.open(release="consumed", retain_seconds=0.0, hello_timeout=0)
        bench.publish(engine, "t", b"1")
        bench.group("g").tell(state())
        bench.run(10.0)
        (group,) = engine.status().groups
        assert (group.group, group.named, group.behind) == ("g", False, 1)
        assert group.heard_s == pytest.approx(10.0, abs=0.1)
        assert inspect_outbox(bench.path).messages == 0


class TestRepairs:
    def test_what_is_wanted_goes_to_the_group_alone(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0)
        for n in range(10):
            bench.publish(engine, "t", b"%d" % (2 * n), b"%d" % (2 * n + 1))
        group, other = bench.group("g"), bench.group("h")
        epoch = engine._outbox.epoch
        group.tell(state(missing=[(epoch, 5, 8)], wanted=[(epoch, 5, 6), (epoch, 8, 8)]))
        bench.run(0.0)
        assert group.repaired() == [5, 6, 7, 8], "whole batches"
        assert other.repairs == []
        assert [f.records().bodies for f in group.repairs] == [[b"4", b"5"], [b"6", b"7"]]
        assert engine.status().repaired == 4
        bench.run(1.0)
        told = [(row.group, row.site, row.first, row.last) for row in journal(bench.path, "repaired")]
        assert told in ([("g", "dc1", 5, 8)], [("g", "dc1", 5, 6), ("g", "dc1", 7, 8)])

    def test_at_every_site_that_is_up(self, bench: Bench, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "two.db", "dc1", "dc2", "dc3")
        engine = bench.open(hello_timeout=0, confirm="any")
        bench.publish(engine, "t", b"1")
        bench.network["dc3"].down()
        bench.run(0.1)
        groups = [bench.group("g", site=site) for site in ("dc1", "dc2")]
        groups[0].tell(state(missing=[(engine._outbox.epoch, 1, 1)], wanted=[(engine._outbox.epoch, 1, 1)]))
        bench.run(0.0)
        assert [group.repaired() for group in groups] == [[1], [1]]
        bench.close(engine)
        assert sorted(row.site for row in journal(bench.path, "repaired")) == ["dc1", "dc2"]

    def test_asking_for_what_is_gone_is_answered_with_a_status(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0, retain_seconds=0.0)
        bench.publish(engine, "t", b"1", b"2")
        bench.run(10.0)
        group, epoch = bench.group("g"), engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 2)], wanted=[(epoch, 1, 2)]))
        bench.run(0.5)
        assert group.repairs == []
        assert [(c.first, c.last) for c in group.newest().chain] == [(3, 2)]

    def test_absurd_requests_cost_nothing(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0)
        bench.publish(engine, "t", b"1", b"2")
        group, epoch = bench.group("g"), engine._outbox.epoch
        spans = [(epoch, 1, 2**60), (epoch + 1, 1, 5), (1, 1, 2**62), (epoch, 3, 9)]
        group.tell(state(missing=spans, wanted=spans))
        bench.run(1.0)
        assert group.repaired() == [1, 2]

    def test_large_batches_are_split_as_the_site_needs_it(self, bench: Bench) -> None:
        sites = [replace(bench.network.sites[0], max_frame_bytes=5_000)]
        engine = bench.open(hello_timeout=0, sites=sites)
        bench.publish(engine, "t", *[bytes(1_000)] * 20)
        group, epoch = bench.group("g"), engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 20)], wanted=[(epoch, 1, 20)]))
        bench.run(0.0)
        assert group.repaired() == list(range(1, 21))
        assert max(len(frame.data) for frame in group.repairs) <= 5_000

    def test_the_budget_spreads_them_over_time(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0, max_repair_bytes_per_second=50_000)
        for _ in range(200):
            bench.publish(engine, "t", bytes(1_000))
        group, epoch = bench.group("g"), engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 200)], wanted=[(epoch, 1, 200)]))
        bench.run(0.0)
        first = len(group.repairs)
        bench.run(1.0)
        second = len(group.repairs) - first
        assert 30 <= second <= 80
        bench.run(10.0)
        assert sorted(set(group.repaired())) == list(range(1, 201))

    def test_a_site_that_refuses_control_frames_is_not_pestered(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0)
        bench.publish(engine, "t", b"1")
        group, epoch = bench.group("g"), engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 1)], wanted=[(epoch, 1, 1)]))
        bench.network["dc1"].control.refuse()
        reads = []
        read = engine._outbox.numbered
        engine._outbox.numbered = lambda *args: reads.append(1) or read(*args)  # type: ignore[method-assign,func-returns-value]
        bench.run(10.0)
        assert 1 <= len(reads) < 40
        bench.network["dc1"].control.refuse(False)
        bench.run(1.0)
        assert group.repaired() == [1]

    def test_live_messages_go_first(self, bench: Bench) -> None:
        engine = bench.open(hello_timeout=0, max_batch_messages=1)
        for _ in range(40):
            bench.publish(engine, "t", bytes(40_000))
        group, epoch = bench.group("g"), engine._outbox.epoch
        group.tell(state(missing=[(epoch, 1, 40)], wanted=[(epoch, 1, 40)]))
        bench.network.run_pending()
        engine.step()
        assert 1 <= engine.repairs.messages < 20, "a step sends a bounded part"
        receipt = engine.accumulator.accept(Content("t", [b"live"], None, None, 4))
        engine.step()
        bench.network.run_pending()
        assert receipt.done
        assert engine.repairs.messages < 40
        bench.run(1.0)
        assert sorted(set(group.repaired())) == list(range(1, 41))


class TestKeys:
    RING = KeyRing({"a": bytes(range(32))}, sign_with="a")

    def test_only_what_is_signed_counts(self, bench: Bench) -> None:
        engine = bench.open(GROUPS, release="consumed", retain_seconds=0.0, hello_timeout=0, keys=self.RING)
        bench.publish(engine, "t", b"1")
        bench.group("g").tell(settled(engine, "t", 1))
        bench.run(5.0)
        assert inspect_outbox(bench.path).messages == 1
        assert engine.status().rejected == {"unsigned": 1}
        signed = bench.group("g", keys=self.RING)
        signed.tell(settled(engine, "t", 1))
        bench.run(5.0)
        assert inspect_outbox(bench.path).messages == 0

    def test_a_ring_that_only_verifies_is_refused(self, bench: Bench) -> None:
        with pytest.raises(ConfigError, match="sign_with"):
            bench.open(keys=KeyRing({"a": bytes(range(32))}))


def test_a_stream_that_is_known_again(bench: Bench) -> None:
    engine = bench.open(GROUPS)
    assert engine.shared.table.find(stream(), "g") is not None


def test_a_group_that_lags_on_one_stream_costs_the_others_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has left between batches that must stay is not looked for again and again."""
    engine = bench.open({"t": ["g"], "u": []}, release="consumed", retain_seconds=0.0, hello_timeout=0)
    for _ in range(300):
        bench.publish(engine, "t", b"stays")
        bench.publish(engine, "u", b"leaves")
    bench.run(10.0)
    assert inspect_outbox(bench.path).messages == 300
    looked = []
    rows = engine._outbox.rows
    monkeypatch.setattr(engine._outbox, "rows", lambda *args: looked.append(args) or rows(*args))  # type: ignore[func-returns-value]
    bench.publish(engine, "u", b"leaves")
    bench.run(10.0)
    assert inspect_outbox(bench.path).messages == 300
    assert len(looked) < 60
    bench.close(engine)
    again = bench.open({"t": ["g"], "u": []}, release="consumed", retain_seconds=0.0, hello_timeout=0)
    assert again.groups.consumed is not None
    assert again.groups.consumed.empty
    bench.group("g").tell(
        state("t", (engine._outbox.epoch, 301), (engine._outbox.epoch, engine._outbox.incarnation))
    )
    bench.run(10.0)
    assert inspect_outbox(bench.path).messages == 0
    assert again.admission.stored == again.retention.stored_bytes == 0


def test_what_fills_the_outbox_is_named_with_its_gap(bench: Bench) -> None:
    engine = bench.open({"t": ["g", "h"]}, release="consumed", retain_seconds=0.0, hello_timeout=0)
    bench.publish(engine, "t", *(b"%d" % number for number in range(1, 7)))
    epoch = engine._outbox.epoch
    entered = (epoch, engine._outbox.incarnation)
    bench.group("h").tell(settled(engine, "t", 6))
    group = bench.group("g")
    group.tell(state("t", (epoch, 3), entered, missing=[(epoch, 3, 4), (epoch, 6, 6)]))
    bench.run(10.0)
    held, other = engine.status().groups
    assert (held.group, held.behind) == ("g", 4)
    assert held.gap == Gap(Stream("p", "t"), epoch, 3, 4, "missing")
    assert "held up by a gap: 3 to 4 are missing there" in str(held)
    assert other.gap is None
    assert f"held up by a gap: it lacks 3 to 4 of epoch {epoch}" in engine.groups.lagging()
    assert [member.lacks for member in inspect_outbox(bench.path).members] == [(epoch, 3, 4), None]
    shown = CliRunner().invoke(outbox, ["stats", str(bench.path)]).output
    assert (
        f"group g on t: all before 3 of epoch {epoch} acknowledged, 4 messages behind, held up by a gap"
        in shown
    )
    group.tell(state("t", (epoch, 5), entered, missing=[(epoch, 6, 6)]))  # it handles what comes before 6
    bench.run(10.0)
    assert engine.status().groups[0].gap is None
    assert [member.lacks for member in inspect_outbox(bench.path).members] == [None, None]
    group.tell(settled(engine, "t", 6))
    bench.run(10.0)
    assert "gap" not in engine.groups.lagging()
