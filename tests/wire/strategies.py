"""Random names, messages and batches."""

from __future__ import annotations

from hypothesis import strategies as st

from reliamsg.config import MAX_NAME_BYTES, unsafe_characters
from reliamsg.message import Prev, Stream
from reliamsg.wire import control, data, limits
from reliamsg.wire.address import call_address, group_address, producer_address, status_address
from reliamsg.wire.application import RESERVED_PREFIX
from reliamsg.wire.control import ChainEpoch, State, Status, StreamState, StreamStatus
from reliamsg.wire.limits import MAX_EPOCH, MAX_INCARNATION, MAX_PARTITION, MAX_SEQ


def text(max_bytes: int, min_size: int = 0) -> st.SearchStrategy[str]:
    """Text that brokers carry, of at most this many bytes in UTF-8."""
    return st.text(
        st.characters(exclude_categories=["Cs", "Cc"]), min_size=min_size, max_size=max_bytes
    ).filter(lambda t: len(t.encode()) <= max_bytes and not unsafe_characters(t))


names = text(MAX_NAME_BYTES, min_size=1).filter(lambda n: not set(n) & set("+#*:~") and n[0] not in "$/")
keys = st.none() | text(60)
headers = st.none() | st.dictionaries(
    text(30, min_size=1).filter(lambda n: n[:3].lower() != RESERVED_PREFIX), text(30), max_size=5
)
bodies = st.binary(max_size=200)
sequence_numbers = st.integers(1, MAX_SEQ - 100)
timestamps = st.integers(0, MAX_SEQ)


@st.composite
def previous_epochs(draw: st.DrawFn, epoch: int) -> Prev | None:
    if epoch == 1 or draw(st.booleans()):
        return None
    return Prev(
        draw(st.integers(1, epoch - 1)), draw(st.integers(0, MAX_INCARNATION)), draw(st.integers(1, MAX_SEQ))
    )


@st.composite
def frames(draw: st.DrawFn, max_count: int = 20) -> bytes:
    """An encoded batch."""
    count = draw(st.integers(1, max_count))
    epoch = draw(st.integers(1, MAX_EPOCH - 1))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=count, max_size=count))

    return data.encode(
        data.Origin(
            Stream(draw(names), draw(names), draw(st.integers(0, MAX_PARTITION))),
            epoch,
            draw(st.integers(0, MAX_INCARNATION)),
            draw(previous_epochs(epoch)),
            draw(st.booleans()),
        ),
        draw(sequence_numbers),
        (draw(timestamps), draw(timestamps)),
        data.make_records(column(bodies), column(keys), column(headers)),  # type: ignore[arg-type]
        compress=draw(st.booleans()),
    )


positions = st.tuples(st.integers(0, MAX_SEQ), st.integers(1, MAX_SEQ + 1))
incarnations = st.integers(0, MAX_INCARNATION)
counts = st.integers(0, MAX_SEQ)


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int, int]:
    first = draw(st.integers(1, MAX_SEQ))
    return draw(st.integers(1, MAX_SEQ)), first, draw(st.integers(first, MAX_SEQ))


@st.composite
def chains(draw: st.DrawFn) -> list[ChainEpoch]:
    epochs = sorted(draw(st.sets(st.integers(1, MAX_EPOCH - 1), max_size=5)))
    found = []
    for epoch in epochs:
        last = draw(st.integers(0, MAX_SEQ))
        found.append(ChainEpoch(epoch, draw(incarnations), draw(st.integers(1, last + 1)), last))
    return found


@st.composite
def statuses(draw: st.DrawFn) -> Status:
    producer = draw(names)
    places = st.tuples(names, st.integers(0, MAX_PARTITION))
    to = draw(st.sampled_from(["group", "producer", "status"]))
    topic, partition = draw(places)
    streams = []
    for _ in range(draw(st.integers(0, 4))):
        name, number = (topic, partition) if to == "status" else draw(places)
        streams.append(
            StreamStatus(
                name,
                number,
                draw(chains()),
                draw(st.lists(spans(), max_size=4)),
                draw(st.dictionaries(names, positions, max_size=3)),
                draw(st.none() | st.tuples(positions, positions)),
            )
        )
    address = {
        "group": group_address(draw(names)),
        "producer": producer_address(producer),
        "status": status_address(topic, partition),
    }[to]
    return Status(
        control.VERSION, producer, draw(st.integers(1, MAX_EPOCH - 1)), draw(incarnations), draw(counts), draw(counts),
        draw(counts), draw(counts), draw(st.booleans()), address, streams,
        draw(st.none() | st.tuples(st.text(max_size=100), counts)),
        draw(st.lists(st.binary(max_size=32), max_size=3)),
    )  # fmt: skip


@st.composite
def states(draw: st.DrawFn) -> State:
    group, producer = draw(names), draw(names)
    kind = draw(st.sampled_from(["call", "heartbeat", "told"]))
    some = st.lists(spans(), max_size=4)
    streams = [
        StreamState(
            draw(names),
            draw(st.integers(0, MAX_PARTITION)),
            draw(positions),
            (draw(counts), draw(incarnations)),
            draw(counts),
            draw(some),
            draw(some),
            draw(some),
        )
        for _ in range(0 if kind == "call" else draw(st.integers(0, 4)))
    ]
    to = {
        "call": call_address(draw(names), draw(st.integers(0, MAX_PARTITION))),
        "heartbeat": group_address(group),
        "told": draw(st.sampled_from([producer_address(producer), group_address(group)])),
    }[kind]
    return State(
        control.VERSION, group, draw(st.text(max_size=20)), draw(counts), draw(counts), to,
        producer if kind == "told" else "", "call" if kind == "call" else draw(st.sampled_from(["active", "standby"])),
        draw(st.binary(max_size=limits.MAX_NONCE_BYTES)), streams,
    )  # fmt: skip
