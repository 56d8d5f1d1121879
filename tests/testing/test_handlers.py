"""Handlers alone: redeliveries, gaps, late messages and crashes without a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable

import pytest

from reliamsg import Gap, Message
from reliamsg.errors import ConfigError
from reliamsg.testing import DurableDatabase, HandlerTest
from tests.testing.planted import Handler, add, once, opened


def ledger(database: DurableDatabase) -> Callable[[], Handler]:
    """A correct application: what it has done, and which messages it knows, are in one transaction."""

    def start() -> Handler:
        connection = opened(database)

        def handle(message: Message) -> None:
            with connection:
                if once(connection, message):
                    add(connection, message)

        return handle

    return start


def entries(database: DurableDatabase) -> list[bytes]:
    connection = opened(database)
    found = [body for (body,) in connection.execute("SELECT body FROM doubled ORDER BY number")]
    connection.close()
    return found


# -- in order -----------------------------------------------------------------------------------------------


def test_bodies_are_numbered_in_one_stream() -> None:
    seen: list[Message] = []
    test = HandlerTest(seen.append)
    test.deliver(b"one", b"two")
    test.deliver(Message(producer="other", seq=40, body=b"three"), b"four")
    assert [(message.id.producer, message.seq, message.body) for message in seen] == [
        ("producer", 1, b"one"), ("producer", 2, b"two"), ("other", 40, b"three"), ("producer", 3, b"four"),
    ]  # fmt: skip
    assert test.acknowledged == [b"one", b"two", b"three", b"four"]


def test_a_message_out_of_order_is_a_mistake_of_the_test() -> None:
    test = HandlerTest(lambda message: None)
    test.deliver(Message(seq=5))
    with pytest.raises(ConfigError, match=r"does not follow epoch 1, number 5.*redeliver"):
        test.deliver(Message(seq=5))
    test.deliver(Message(epoch=2, seq=1))


def test_everything_happens_in_the_thread_of_the_test() -> None:
    threads = set()
    HandlerTest(lambda message: threads.add(threading.get_ident())).deliver(b"one", b"two")
    assert threads == {threading.get_ident()}


def test_batches_have_messages_of_one_stream() -> None:
    calls: list[list[bytes]] = []
    test = HandlerTest(lambda messages: calls.append([each.body for each in messages]), batch=2)
    test.deliver(b"1", b"2", b"3", Message(producer="other", body=b"4"), b"5")
    assert calls == [[b"1", b"2"], [b"3"], [b"4"], [b"5"]]
    assert len(test.deliveries) == 5


def test_coroutine_functions_run_in_one_loop() -> None:
    loops = set()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())

    with HandlerTest(handle) as test:
        test.deliver(b"one", b"two")
    assert len(loops) == 1
    assert loops.pop().is_closed()


# -- failures and rejections ----------------------------------------------------------------------------------


def test_an_expected_error_leads_to_redeliveries_and_to_a_dead_letter() -> None:
    def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ConnectionError

    test = HandlerTest(handle, errors=ConnectionError, max_deliveries=3)
    calls = test.deliver(b"bad", b"good")
    assert [call.outcome for call in calls] == ["failed"] * 3 + ["acknowledged"]
    assert [call.message.redelivered for call in calls] == [False, True, True, False]
    assert [letter.body for letter in test.dead_letters] == [b"bad"]


def test_an_unexpected_error_reaches_the_test_and_the_message_waits() -> None:
    broken = True

    def handle(message: Message) -> None:
        if broken:
            raise ValueError("broken")

    test = HandlerTest(handle, errors=ConnectionError)
    with pytest.raises(ValueError, match="broken"):
        test.deliver(b"one", b"two")
    assert test.deliveries[-1].outcome == "failed"
    broken = False
    again, other = test.deliver()
    assert again.message.redelivered
    assert not other.message.redelivered
    assert test.acknowledged == [b"one", b"two"]


def test_rejected_messages_are_dead_letters_and_can_be_replayed() -> None:
    valid = False

    def handle(message: Message) -> None:
        if not (valid or message.body == b"two"):
            message.reject("invalid")

    test = HandlerTest(handle)
    assert [call.outcome for call in test.deliver(b"one", b"two")] == ["rejected", "acknowledged"]
    assert test.replay().outcome == "rejected"
    valid = True
    found = test.replay()
    assert found.message.replayed
    assert (found.outcome, test.dead_letters, test.acknowledged) == ("acknowledged", [], [b"two", b"one"])


def test_a_handler_that_returns_a_generator_did_nothing() -> None:
    def handle(message: Message) -> object:
        yield message

    with pytest.raises(Exception, match="never run"):
        HandlerTest(handle).deliver(b"one")


# -- crashes ------------------------------------------------------------------------------------------------


def test_what_is_not_durable_is_delivered_again_to_a_new_handler() -> None:
    starts: list[list[Message]] = []

    def start() -> Handler:
        starts.append([])
        return starts[-1].append

    test = HandlerTest()
    test.start(start)
    test.deliver(b"one", b"two", b"three")
    calls = test.redeliver(2)
    assert [(call.message.body, call.message.redelivered) for call in calls] == [
        (b"two", True),
        (b"three", True),
    ]
    assert len(starts) == 2
    assert test.acknowledged == [b"one", b"two", b"three"]
    test.crash()
    assert not test.deliver()


def test_a_crash_at_any_point_of_a_correct_handler_leaves_one_effect() -> None:
    with HandlerTest() as test:
        database = test.database()
        test.start(ledger(database))
        points = test.deliver(b"0")[0].points
        assert points == 3, "before and after the commit, and after the handler"
        for at in range(1, points + 1):
            body = str(at).encode()
            assert test.deliver(body, crash_at=at)[-1].outcome == "crashed"
            (again,) = test.deliver()
            assert (again.message.redelivered, again.outcome) == (True, "acknowledged")
        assert entries(database) == [b"0", b"1", b"2", b"3"] == test.acknowledged


def test_only_what_the_handler_does_counts_as_a_point() -> None:
    with HandlerTest() as test:
        database = test.database()

        def start() -> Callable[[Message], None]:
            handle = ledger(database)()
            with contextlib.closing(database.connect()) as connection, connection:
                connection.execute("CREATE TABLE IF NOT EXISTS starts (at INTEGER)")
                connection.execute("INSERT INTO starts VALUES (1)")
            return handle

        test.start(start)
        assert test.deliver(b"one", crash_at=2)[0].outcome == "crashed"
        assert entries(database) == [b"one"]
        with contextlib.closing(database.connect()) as connection, connection:
            connection.execute("INSERT INTO starts VALUES (2)")  # the test itself
        assert test.deliver()[0].points == 3, "those of the handler, not those of the start"


@pytest.mark.parametrize("which", ["crash_at", "fail_at"])
def test_a_point_that_the_handler_does_not_reach(which: str) -> None:
    with HandlerTest() as test:
        test.start(ledger(test.database()))
        with pytest.raises(ConfigError, match=f"{which}=4: the handler returned after 3 points"):
            test.deliver(b"one", **{which: 4})
        assert test.acknowledged == [b"one"]


def test_wrong_arguments_are_explained() -> None:
    test = HandlerTest(lambda message: None)
    test.deliver(b"one")
    with pytest.raises(ConfigError, match="2 acknowledgements can't be lost: there are 1"):
        test.redeliver(2)
    with pytest.raises(ConfigError, match="there is no dead letter 0: there are 0"):
        test.replay()
    with pytest.raises(ConfigError, match="a body must be bytes, not str; encode it first"):
        test.deliver("two")  # type: ignore[arg-type]


def test_the_open_transaction_of_a_crash_is_rolled_back() -> None:
    with HandlerTest() as test:
        database = test.database()
        test.start(ledger(database))
        test.deliver(b"one", crash_at=1)
        assert entries(database) == []


def test_an_operation_can_fail() -> None:
    with HandlerTest() as test:
        database = test.database()
        test.start(ledger(database))
        calls = test.deliver(b"one", fail_at=1)
        assert [call.outcome for call in calls] == ["failed", "acknowledged"]
        assert isinstance(calls[0].error, sqlite3.OperationalError)
        assert entries(database) == [b"one"]


def test_nothing_of_a_handler_goes_on_after_a_crash() -> None:
    test = HandlerTest()
    received = test.durable_list()

    def handle(message: Message) -> None:
        try:
            received.append(message.body)
        finally:
            received.append(b"cleaned up")

    test.start(lambda: handle)
    assert test.deliver(b"one", crash_at=1)[0].outcome == "crashed"
    assert list(received) == []
    test.deliver(crash_at=2)
    assert list(received) == [b"one"]


def test_only_durable_acknowledgements_survive_a_crash() -> None:
    test = HandlerTest()

    def handle(message: Message) -> None:
        message.ack(durable=message.body == b"durable")
        test.point()

    test.start(lambda: handle)
    assert test.deliver(b"durable", crash_at=1)[0].outcome == "acknowledged"
    assert test.deliver(b"not", crash_at=1)[0].outcome == "crashed"


# -- gaps and late messages -----------------------------------------------------------------------------------


def test_gaps_and_late_messages_go_to_their_callbacks() -> None:
    gaps: list[Gap] = []
    late: list[Message] = []
    seen: list[Message] = []

    def on_gap(gap: Gap) -> str:
        gaps.append(gap)
        return "skip" if gap.count == 2 else "wait"

    test = HandlerTest(seen.append, on_gap=on_gap, on_late=late.append)
    test.deliver(b"one")
    assert test.gap(2) == "skip"
    assert test.gap(1) == "wait"
    test.deliver(b"four")
    test.late(b"two")
    assert [(gap.first, gap.last) for gap in gaps] == [(2, 3), (4, 4)]
    assert [message.seq for message in seen] == [1, 4]
    assert [(message.seq, message.body) for message in late] == [(2, b"two")]
    assert test.late().seq == 3
    with pytest.raises(ConfigError, match="nothing is late"):
        test.late()


def test_on_gap_has_to_decide() -> None:
    with pytest.raises(ConfigError, match="must return 'skip', 'wait' or 'raise'"):
        HandlerTest(lambda message: None, on_gap=lambda gap: "").gap()


def test_a_handler_or_what_starts_it_is_needed() -> None:
    test = HandlerTest()
    with pytest.raises(ConfigError, match="there is no handler"):
        test.deliver(b"one")
    test.start(lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="start returned None"):
        test.deliver()
