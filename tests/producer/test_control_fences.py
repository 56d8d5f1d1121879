"""Outboxes that were restored or copied: the hello gate, renumbering, conflicts and fences, on simulated time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from reliamsg.errors import OutboxFull, OutboxWriteError, ProducerConflict, ProducerFenced
from reliamsg.producer.engine import ProducerEngine
from reliamsg.store.outbox_view import inspect_outbox
from reliamsg.transport.base import Outcome
from reliamsg.wire.control import StreamState
from reliamsg.wire.limits import CHALLENGE_BYTES
from tests.producer.control_tools import Bench, Group, settled, state, twin_status
from tests.producer.tools import journal

GROUPS = {"t": ["g"]}


def sent(bench: Bench) -> list[tuple[int, int, bytes]]:
    """What the broker got: (epoch, number, body), in order."""
    return bench.sinks["dc1"].messages


def knows(epoch: int, incarnation: int = 77, next_: int = 5) -> dict[str, StreamState]:
    """A group that has entered another history's epoch."""
    return {"t": state("t", (epoch, next_), (epoch, incarnation))}


def eager(bench: Bench, answers: dict[str, StreamState] | None = None) -> Group:
    """A group that answers at once."""
    group = bench.group("g")
    group.answers = answers or {}
    return group


def put_back(bench: Bench, tmp_path: Path) -> tuple[ProducerEngine, ProducerEngine]:
    """An outbox is copied, goes on, and is replaced by the copy. Returns the openings before and after the copy."""
    first = bench.open(GROUPS, hello_timeout=0)
    bench.publish(first, "t", b"1")
    bench.close(first)
    shutil.copy(bench.path, tmp_path / "copy.db")
    bench.run(100.0)
    second = bench.open(GROUPS, hello_timeout=0)
    bench.publish(second, "t", b"2")
    bench.close(second)
    shutil.copy(tmp_path / "copy.db", bench.path)
    return first, second


class TestGate:
    def test_it_opens_when_the_groups_have_answered(self, bench: Bench) -> None:
        eager(bench)
        engine = bench.open(GROUPS)
        receipt = bench.publish(engine, "t", b"1")
        assert receipt.done
        assert bench.now < 1_000.01
        assert not engine.status().gated

    def test_what_is_published_meanwhile_is_durable_and_waits(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        receipt = bench.publish(engine, "t", b"1")
        assert engine.status().gated
        assert receipt.durable
        assert not receipt.done
        bench.run(0.9)
        assert sent(bench) == []
        assert receipt.sites == {"dc1": "pending"}
        bench.run(0.2)
        assert receipt.done
        assert [body for _, _, body in sent(bench)] == [b"1"]

    def test_the_time_starts_with_the_first_connection(self, bench: Bench) -> None:
        bench.network["dc1"].down()
        engine = bench.open(GROUPS)
        receipt = bench.publish(engine, "t", b"1")
        bench.run(30.0)
        bench.network["dc1"].up()
        bench.run(0.5)
        assert not receipt.done
        bench.run(0.6)
        assert receipt.done

    def test_nothing_is_announced_that_may_be_renumbered(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        bench.publish(engine, "t", b"1")
        group = bench.group("g")
        bench.run(0.9)
        assert group.statuses
        assert all(not s.chain for _, _, status in group.statuses for s in status.streams)
        bench.run(0.5)
        assert group.newest().chain[-1].last == 1

    def test_older_epochs_do_not_wait(self, bench: Bench) -> None:
        bench.network["dc1"].refuse("t", Outcome.NACKED)
        engine = bench.open(GROUPS, hello_timeout=0)
        old = bench.publish(engine, "t", b"old")
        assert not old.done
        bench.close(engine, crash=True)
        bench.network["dc1"].accept("t")
        bench.run(1.0)
        engine = bench.open(GROUPS)
        bench.publish(engine, "t", b"new")
        bench.run(0.8)
        assert [body for _, _, body in sent(bench)] == [b"old"]
        bench.run(0.5)
        assert [body for _, _, body in sent(bench)] == [b"old", b"new"]

    def test_without_groups_there_is_none(self, bench: Bench) -> None:
        assert bench.publish(bench.open(), "t", b"1").done

    def test_all_named_groups_are_waited_for(self, bench: Bench) -> None:
        eager(bench)
        engine = bench.open({"t": ["g", "h"]})
        receipt = bench.publish(engine, "t", b"1")
        bench.run(0.5)
        assert not receipt.done
        other = bench.group("h")
        other.answers = {}
        bench.run(0.3)  # the hello is repeated
        assert receipt.done

    def test_a_group_that_is_no_longer_named_is_not_waited_for(self, bench: Bench) -> None:
        eager(bench)
        engine = bench.open({"t": ["g", "h"]}, hello_timeout=1_000.0)
        receipt = bench.publish(engine, "t", b"1")
        bench.run(2.0)
        assert not receipt.done
        engine.remove_group("t", "h")
        bench.run(2.0)
        assert receipt.done

    def test_a_disk_that_is_full_when_it_opens(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = bench.open(GROUPS)
        receipt = bench.publish(engine, "t", b"1")

        def full() -> None:
            raise OutboxWriteError("full")

        with monkeypatch.context() as patch:
            patch.setattr(engine._outbox, "offer", full)
            bench.run(3.0)
            assert not receipt.done
        bench.run(2.0)
        assert receipt.done


class TestRenumbering:
    def test_above_what_a_group_has_entered(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        before = engine._outbox.epoch
        group = eager(bench, knows(before + 1_000_000))
        receipt = bench.publish(engine, "t", b"1", b"2")
        assert receipt.id is not None
        assert receipt.id.epoch == before
        assert bench.publish(engine, "t", b"3").durable
        bench.run(0.5)
        assert sent(bench) == []
        bench.run(1.0)
        epoch = engine._outbox.epoch
        assert epoch > before + 1_000_000
        assert sent(bench) == [(epoch, 1, b"1"), (epoch, 2, b"2"), (epoch, 3, b"3")]
        assert receipt.done
        assert receipt.id.epoch == epoch
        receipt = bench.publish(engine, "t", b"4")
        assert receipt.id is not None
        assert (receipt.id.epoch, receipt.id.seq) == (epoch, 4)
        assert [type(error) for error in bench.errors] == [ProducerConflict]
        bench.run(1.0)
        assert group.newest().chain[-1].epoch == epoch
        assert group.newest().since == {"g": (epoch, 1)}
        kinds = [
            (row.kind, row.epoch, row.last)
            for row in journal(bench.path)
            if row.kind in ("renumbered", "epoch")
        ]
        assert kinds == [("epoch", before, 0), ("epoch", epoch, 0), ("renumbered", before, 3)]

    def test_with_the_clock_a_day_behind(self, bench: Bench, tmp_path: Path) -> None:
        """Stopped, copied, gone on, stopped; the copy is put back, the clock is set back."""
        first, second = put_back(bench, tmp_path)
        bench.wall_offset_us -= 86_400 * 10**6
        eager(bench, {"t": settled(second, "t", 1)})
        third = bench.open(GROUPS)
        opened = third._outbox.epoch
        assert opened < second._outbox.epoch
        receipt = bench.publish(third, "t", b"3")
        bench.run(2.0)
        assert receipt.done
        assert third._outbox.epoch > second._outbox.epoch
        assert [body for _, _, body in sent(bench)] == [b"1", b"2", b"3"]
        frame = bench.sinks["dc1"].frames[-1]
        assert frame.envelope.prev == (first._outbox.epoch, first._outbox.incarnation, 1), (
            "which tells of the fork"
        )
        (error,) = bench.errors
        assert isinstance(error, ProducerConflict)

    def test_what_was_stored_while_the_clock_was_behind(self, bench: Bench, tmp_path: Path) -> None:
        """Put back with the clock set back, it stores messages and ends before it may send them. When it is opened with
        the right clock, its own epoch is above the group's, but not theirs."""
        first, second = put_back(bench, tmp_path)
        bench.wall_offset_us -= 50 * 10**6
        third = bench.open(GROUPS)
        bench.publish(third, "t", b"3")
        stored = third._outbox.epoch
        bench.close(third)
        assert first._outbox.epoch < stored < second._outbox.epoch
        bench.run(100.0)
        eager(bench, {"t": settled(second, "t", 1)})
        fourth = bench.open(GROUPS)
        assert fourth._outbox.epoch > second._outbox.epoch
        receipt = bench.publish(fourth, "t", b"4")
        bench.run(2.0)
        assert receipt.done
        assert [body for _, _, body in sent(bench)] == [b"1", b"2", b"3", b"4"]
        epochs = [frame.envelope.epoch for frame in bench.sinks["dc1"].frames[-2:]]
        assert second._outbox.epoch < epochs[0] < epochs[1]

    def test_the_next_opening_moves_them_although_no_group_answers(self, bench: Bench) -> None:
        """It terminates between learning that a group is ahead and moving its messages."""
        first = bench.open(GROUPS)
        ahead = first._outbox.epoch + 1_000_000
        group = eager(bench, knows(ahead))
        bench.publish(first, "t", b"1")
        bench.run(0.5)
        assert sent(bench) == []
        bench.close(first, crash=True)
        bench.run(1.0)
        group.answers = None
        second = bench.open(GROUPS)
        assert second._outbox.epoch < ahead
        bench.publish(second, "t", b"2")
        bench.run(0.9)
        assert sent(bench) == []
        bench.run(1.0)
        assert [body for _, _, body in sent(bench)] == [b"1", b"2"]
        assert all(epoch > ahead for epoch, _, _ in sent(bench))
        bench.close(second)
        bench.run(1.0)
        third = bench.open(GROUPS, hello_timeout=0)
        assert bench.publish(third, "t", b"3").done, "that was settled"

    def test_a_group_has_settled_nothing_of_an_epoch_that_moved(self, bench: Bench, tmp_path: Path) -> None:
        """Copied with one message, gone on, put back; its epoch moves because of what another group entered. No number
        is told to the group that it has not settled, or of which nothing exists."""
        groups = {"t": ["g", "h"]}
        first = bench.open(groups)
        bench.publish(first, "t", b"1")
        shutil.copy(bench.path, tmp_path / "copy.db")
        shutil.copy(f"{bench.path}-wal", tmp_path / "copy.db-wal")
        bench.run(2.0)
        for body in (b"2", b"3", b"4"):
            bench.publish(first, "t", body)
        had = settled(first, "t", 4)
        bench.close(first)
        second = bench.open(groups, path=tmp_path / "copy.db")
        group, other = bench.group("g"), bench.group("h")
        bench.publish(second, "t", b"5")
        group.tell(had)
        bench.run(0.0)
        other.tell(knows(second._outbox.epoch + 1_000)["t"])
        bench.run(2.0)
        moved = second._outbox.epoch - 1
        assert [(epoch, body) for epoch, _, body in sent(bench)[-2:]] == [(moved, b"1"), (moved + 1, b"5")]
        where = {status.group: status.position for status in second.status().groups}
        assert where["g"] == (moved, 1)
        bench.close(second)
        third = bench.open(groups, path=tmp_path / "copy.db")
        group.nonce = b"n" * CHALLENGE_BYTES
        group.statuses.clear()
        group.call("t")
        bench.run(1.0)
        assert {status.group: status.position for status in third.status().groups}["g"] == (moved, 1)
        told = {told.reached for _, _, status in group.statuses for told in status.streams}
        assert told == {None}

    def test_what_moves_is_kept_until_its_groups_have_it_again(self, bench: Bench, tmp_path: Path) -> None:
        """Copied before it offered its message, gone on in another epoch, put back. In that epoch the group had settled
        everything, as it says before and after the message moves."""
        first = bench.open(GROUPS)
        bench.publish(first, "t", b"1")
        shutil.copy(bench.path, tmp_path / "copy.db")
        shutil.copy(f"{bench.path}-wal", tmp_path / "copy.db-wal")
        bench.run(2.0)
        bench.close(first)
        bench.run(5.0)
        other = bench.open(GROUPS, hello_timeout=0)
        bench.publish(other, "t", b"2")
        had = settled(other, "t", 1)
        bench.close(other)
        bench.run(5.0)
        path = tmp_path / "copy.db"
        second = bench.open(GROUPS, path=path, release="consumed", retain_seconds=0.0)
        group = bench.group("g")
        bench.publish(second, "t", b"3")
        group.tell(had)
        assert second.groups.consumed is not None
        bench.run(0.5)
        assert second.groups.consumed.total, "the group is done with the message that moves"
        bench.run(10.0)
        moved = second._outbox.epoch - 1
        assert [(epoch, body) for epoch, _, body in sent(bench)[-2:]] == [(moved, b"1"), (moved + 1, b"3")]
        assert inspect_outbox(path).messages == 2
        group.tell(had)
        bench.run(10.0)
        assert inspect_outbox(path).messages == 2
        group.tell(state("t", (moved, 2), (moved, first._outbox.incarnation)))
        bench.run(10.0)
        assert inspect_outbox(path).messages == 1
        group.tell(settled(second, "t", 1))
        bench.run(10.0)
        assert inspect_outbox(path).messages == 0
        assert second.admission.stored == second.retention.stored_bytes == 0

    def test_a_full_one_has_room_once_groups_say_that_they_were_further(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        """Copied full, gone on, put back: nothing can be published before the group's word counts."""
        options: dict[str, Any] = {"release": "consumed", "max_bytes": 3_000, "retain_seconds": 0.0}
        first = bench.open(GROUPS, hello_timeout=0, **options)
        bench.publish(first, "t", bytes(2_000))
        shutil.copy(bench.path, tmp_path / "copy.db")
        shutil.copy(f"{bench.path}-wal", tmp_path / "copy.db-wal")
        group = bench.group("g")
        group.tell(settled(first, "t", 1))
        bench.run(2.0)
        bench.publish(first, "t", bytes(2_000))
        went_on = settled(first, "t", 2)
        bench.close(first)
        second = bench.open(GROUPS, path=tmp_path / "copy.db", **options)
        with pytest.raises(OutboxFull):
            bench.publish(second, "t", bytes(2_000))
        group.tell(went_on)
        bench.run(2.0)
        receipt = bench.publish(second, "t", bytes(2_000))
        bench.run(2.0)
        assert receipt.done
        assert receipt.id is not None
        assert (receipt.id.epoch, receipt.id.seq) == (second._outbox.epoch, 1)

    def test_above_what_a_group_has_entered_that_is_named_later(self, bench: Bench) -> None:
        """Else it declares everything as superseded, and an outbox that keeps that for it stays full."""
        engine = bench.open(release="consumed", max_bytes=3_000, retain_seconds=0.0)
        before = engine._outbox.epoch
        bench.publish(engine, "t", b"1")
        group = eager(bench, knows(before + 1_000_000))
        bench.run(2.0)
        assert engine._outbox.epoch == before
        engine.add_group("t", "g")
        bench.publish(engine, "t", bytes(2_000))
        with pytest.raises(OutboxFull):
            bench.publish(engine, "t", bytes(2_000))
        group.tell(knows(before + 1_000_000)["t"])
        bench.run(3.0)
        assert engine._outbox.epoch > before + 1_000_000
        group.tell(knows(before + 1_000_000)["t"])
        bench.run(2.0)
        receipt = bench.publish(engine, "t", bytes(2_000))
        bench.run(2.0)
        assert receipt.done
        assert receipt.id is not None
        assert receipt.id.epoch == engine._outbox.epoch

    @pytest.mark.parametrize("known", [True, False])
    @pytest.mark.parametrize("ahead", [True, False])
    def test_one_that_a_group_surpassed_journals_how_far_the_group_is(
        self, bench: Bench, known: bool, ahead: bool
    ) -> None:
        """Also of a stream that is not in it, and though no group was waited for."""
        engine = bench.open(GROUPS if known else {"other": ["g"]}, hello_timeout=0)
        if known:
            bench.publish(engine, "t", b"1")
        opened = engine._outbox.epoch
        entered = opened + (5 if ahead else -5)
        group = bench.group("g")
        for _ in range(2):
            group.tell(state("t", (entered, 7), (entered, 77)))
            bench.run(0.5)
        rows = journal(bench.path, "surpassed")
        found = [(row.topic, row.epoch, (row.detail or {})["entered"]) for row in rows]
        surpassed = [("t", opened, entered)]
        # An epoch before all that is known of a stream may have been let go of and forgotten.
        assert found == (surpassed if ahead or not known else [])

    @pytest.mark.parametrize("further", [0, 1, 5])
    def test_so_does_one_of_which_a_group_had_more_of_an_epoch_that_is_over(
        self, bench: Bench, further: int
    ) -> None:
        """It was put back to a copy that was made in the middle of that epoch, and went on in a later one."""
        first = bench.open(GROUPS, hello_timeout=0)
        for _ in range(3):
            bench.publish(first, "t", b"1")
        entered = first._outbox.epoch, first._outbox.incarnation
        bench.close(first, crash=True)
        engine = bench.open(GROUPS, hello_timeout=0)
        bench.publish(engine, "t", b"2")
        group = bench.group("g")
        for _ in range(2):
            group.tell(state("t", (entered[0], 4 + further), entered))
            bench.run(0.5)
        found = [(row.epoch, (row.detail or {})["known"]) for row in journal(bench.path, "surpassed")]
        known = [entered[0], f"{entered[1]:016x}", 3 + further]
        assert found == ([(engine._outbox.epoch, known)] if further else [])

    def test_what_a_crash_left_behind_the_gate_moves_too(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        bench.publish(engine, "t", b"1")
        bench.close(engine, crash=True)
        bench.run(0.01)
        eager(bench, knows(engine._outbox.epoch + 10**6))
        again = bench.open(GROUPS)
        bench.publish(again, "t", b"2")
        bench.run(2.0)
        base = again._outbox.epoch - 1
        assert base > engine._outbox.epoch + 10**6
        assert sent(bench) == [(base, 1, b"1"), (base + 1, 1, b"2")]
        told = [(row.epoch, row.detail) for row in journal(bench.path, "renumbered")]
        assert told[0] == (engine._outbox.epoch, {"epoch": base, "first": 1})
        assert [detail for _, detail in told[1:]] == [{"epoch": base + 1, "first": 1}]

    def test_found_out_later_what_follows_gets_another_epoch(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        bench.publish(engine, "t", b"1")
        bench.run(1.5)
        epoch = engine._outbox.epoch
        assert sent(bench) == [(epoch, 1, b"1")]
        group = bench.group("g")
        group.tell(knows(epoch + 50)["t"])
        bench.run(0.0)
        receipt = bench.publish(engine, "t", b"2")
        bench.run(0.5)
        assert not receipt.done
        bench.run(1.0)
        assert receipt.done
        assert sent(bench) == [(epoch, 1, b"1"), (engine._outbox.epoch, 1, b"2")]
        assert engine._outbox.epoch > epoch + 50

    def test_a_group_that_is_not_named_changes_nothing(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        epoch = engine._outbox.epoch
        other = bench.group("other")
        other.tell(knows(epoch + 10)["t"])
        bench.publish(engine, "t", b"1")
        bench.run(2.0)
        assert sent(bench) == [(epoch, 1, b"1")]
        assert [type(error) for error in bench.errors] == [ProducerConflict], "it is reported all the same"

    def test_a_crash_before_and_after(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        class Killed(BaseException):
            pass

        for when in ("before", "after"):
            engine = bench.open(GROUPS)
            group = eager(bench, knows(engine._outbox.epoch + 10**6))
            bench.publish(engine, "t", when.encode())
            renumber = engine._outbox.renumber

            def dies(*args: object, when: str = when, renumber: object = renumber) -> None:
                if when == "after":
                    renumber(*args)  # type: ignore[operator]
                raise Killed

            monkeypatch.setattr(engine._outbox, "renumber", dies)
            with pytest.raises(Killed):
                bench.run(2.0)
            bench.close(engine, crash=True)
            group._transport.kill()
            bench.run(0.01)
        eager(bench)
        bench.open(GROUPS)
        bench.run(2.0)
        assert [body for _, _, body in sent(bench)] == [b"before", b"after"]
        numbers = [(epoch, n) for epoch, n, _ in sent(bench)]
        assert numbers == sorted(numbers)


class TestTwins:
    def opened_twice(
        self, bench: Bench, tmp_path: Path, hello_timeout: float
    ) -> tuple[ProducerEngine, ProducerEngine]:
        low = bench.open(GROUPS, hello_timeout=hello_timeout)
        bench.publish(low, "t", b"low")
        bench.run(2.0)
        shutil.copy(bench.path, tmp_path / "copy.db")
        bench.run(1.0)
        return low, bench.open(GROUPS, path=tmp_path / "copy.db", hello_timeout=hello_timeout)

    @pytest.mark.parametrize("hello_timeout", [0.0, 1.0])
    def test_the_lower_one_is_fenced(self, bench: Bench, tmp_path: Path, hello_timeout: float) -> None:
        low, high = self.opened_twice(bench, tmp_path, hello_timeout)
        bench.run(2.0)
        assert isinstance(low.fatal, ProducerFenced)
        assert high.fatal is None
        with pytest.raises(ProducerFenced, match="another owner of producer id 'p' is alive"):
            bench.publish(low, "t", b"refused")
        receipt = bench.publish(high, "t", b"high")
        bench.run(2.0)
        assert receipt.done
        (row,) = journal(bench.path, "fenced")
        assert row.detail == {"epoch": high._outbox.epoch, "incarnation": f"{high._outbox.incarnation:016x}"}

    def test_a_newcomer_below_a_living_owner(self, bench: Bench, tmp_path: Path) -> None:
        """The group tells of the higher epoch first: nothing is renumbered before its owner had time to answer."""
        old = bench.open(GROUPS, hello_timeout=0)
        bench.publish(old, "t", b"1")
        bench.close(old)
        shutil.copy(bench.path, tmp_path / "copy.db")
        bench.run(100.0)
        owner = bench.open(GROUPS, hello_timeout=0)
        bench.publish(owner, "t", b"2")
        eager(bench, {"t": settled(owner, "t", 1)})
        bench.wall_offset_us -= 86_400 * 10**6
        late = bench.open(GROUPS, path=tmp_path / "copy.db")
        receipt = bench.publish(late, "t", b"3") if late.fatal is None else None
        bench.run(3.0)
        assert isinstance(late.fatal, ProducerFenced)
        assert receipt is None or not receipt.done
        assert owner.fatal is None
        assert journal(tmp_path / "copy.db", "renumbered") == []

    def test_one_that_was_here_before_fences_nobody(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        outbox = engine._outbox
        group = bench.group("g")
        for epoch, incarnation in ((outbox.epoch - 1, 5), (outbox.epoch, outbox.incarnation)):
            to, frames = twin_status(epoch, incarnation)
            for frame in frames:
                group._transport.send_control(to, frame)
        bench.run(2.0)
        assert engine.fatal is None
        assert bench.publish(engine, "t", b"1").done

    def test_what_the_fenced_one_did_not_send_is_still_there(self, bench: Bench) -> None:
        engine = bench.open(GROUPS)
        receipt = bench.publish(engine, "t", b"1")
        to, frames = twin_status(engine._outbox.epoch + 1, 5)
        group = bench.group("g")
        for frame in frames:
            group._transport.send_control(to, frame)
        bench.run(2.0)
        assert isinstance(engine.fatal, ProducerFenced)
        with pytest.raises(ProducerFenced):
            receipt.wait(1.0)
        bench.close(engine)
        bench.run(2.0)
        again = bench.open(GROUPS, hello_timeout=0)
        bench.run(0.1)
        assert again.fatal is None
        assert [body for _, _, body in sent(bench)] == [b"1"]
