"""Random names, messages and batches."""

from __future__ import annotations

from hypothesis import strategies as st

from reliamsg.config import MAX_NAME_BYTES, unsafe_characters
from reliamsg.message import Prev, Stream
from reliamsg.wire import data
from reliamsg.wire.application import RESERVED_PREFIX
from reliamsg.wire.limits import MAX_INCARNATION, MAX_PARTITION, MAX_SEQ


def text(max_bytes: int, min_size: int = 0) -> st.SearchStrategy[str]:
    """Text that brokers carry, of at most so many bytes in UTF-8."""
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
    epoch = draw(sequence_numbers)

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=count, max_size=count))

    return data.encode(
        Stream(draw(names), draw(names), draw(st.integers(0, MAX_PARTITION))),
        epoch,
        draw(st.integers(0, MAX_INCARNATION)),
        draw(sequence_numbers),
        draw(previous_epochs(epoch)),
        (draw(timestamps), draw(timestamps)),
        data.make_records(column(bodies), column(keys), column(headers)),  # type: ignore[arg-type]
        compress=draw(st.booleans()),
    )
