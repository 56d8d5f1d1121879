"""What the tests of all transports share: recording events, waiting with a deadline, messages to send."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from reliamsg.transport.base import (
    Binding,
    Delivery,
    Evidence,
    Mark,
    Outcome,
    Outgoing,
    ReceiverTransport,
    SenderTransport,
)
from reliamsg.wire.address import status_address
from reliamsg.wire.data import CONTENT_TYPE
from tests.patience import wait_for

T = TypeVar("T", bound=SenderTransport | ReceiverTransport)


def message(token: int, topic: str = "orders", body: bytes | None = None, **more: Any) -> Outgoing:
    """A message to send, whose body tells its token unless one is given."""
    fields: dict[str, Any] = {
        "partition": 0,
        "body": b"frame %d" % token if body is None else body,
        "content_type": CONTENT_TYPE,
        "headers": None,
        "message_id": f"p/1/{topic}/0/{token}",
        "timestamp_us": 1_700_000_000_000_000,
    }
    return Outgoing(token=token, topic=topic, **{**fields, **more})


@contextmanager
def running(transport: T) -> Iterator[T]:
    """Started, and closed in the end."""
    transport.start()
    try:
        yield transport
    finally:
        transport.close(5.0)


class Recorded:
    """What senders and receivers both tell, and failing on demand."""

    def __init__(self) -> None:
        self.down: list[str] = []
        self.failed: list[tuple[str, str, bool]] = []
        self.frames: list[tuple[str, bytes]] = []
        """Control frames that were heard."""
        self.threads: set[int] = set()
        """That called any of the events."""
        self.returned: list[str] = []
        """Addresses of control frames that the broker returned."""
        self.elsewhere = False
        """What to say of them: whether another endpoint is to be tried."""
        self.fail_in: str | None = None
        """The event that is to raise once."""

    def note(self, event: str) -> None:
        self.threads.add(threading.get_ident())
        if self.fail_in == event:
            self.fail_in = None
            raise RuntimeError("an event handler that fails")

    def disconnected(self, reason: str, renewing: bool = False) -> None:
        self.note("disconnected")
        self.down.append(reason)

    def unreachable(self, endpoint: str, reason: str, credentials: bool) -> None:
        self.note("unreachable")
        self.failed.append((endpoint, reason, credentials))

    def control_received(self, address: str, body: bytes) -> None:
        self.note("heard")
        self.frames.append((address, body))

    def control_returned(self, address: str) -> bool:
        self.note("returned")
        self.returned.append(address)
        return self.elsewhere


def told(tell: Callable[[str, bytes], bool], address: str, body: bytes, events: Recorded) -> None:
    """Tell until it is heard: what is told while the other side is on its way may be lost."""

    def once() -> bool:
        tell(address, body)
        return (address, body) in events.frames

    wait_for(once, f"{address} is heard", poll=0.05)


def replace_addresses(
    sender: SenderTransport, receiver: ReceiverTransport, got: Recorded, topic: str
) -> None:
    """Have a connected receiver listen at one address, then at another; what comes to the one given up is not heard."""
    status, other = status_address(topic), status_address(topic, 7)
    receiver.listen([status])
    told(sender.send_control, status, b"first", got)
    receiver.listen([other])
    told(sender.send_control, other, b"second", got)
    got.frames.clear()
    sender.send_control(status, b"of an address given up")
    told(sender.send_control, other, b"third", got)
    assert {address for address, _ in got.frames} == {other}
    # Again and again, faster than the broker answers: the last one counts.
    for _ in range(50):
        receiver.listen([status])
        receiver.listen([status, other])
    receiver.listen([status])
    told(sender.send_control, status, b"last", got)
    got.frames.clear()
    sender.send_control(other, b"of an address given up")
    told(sender.send_control, status, b"the end", got)
    assert {address for address, _ in got.frames} == {status}


class Sending(Recorded):
    """Sender events that record; hands out what is put into `queue`."""

    def __init__(self, most_open: int = 1000) -> None:
        super().__init__()
        self.queue: deque[Outgoing] = deque()
        self.most_open = most_open
        """So many tokens at most are handed out and neither confirmed nor refused."""
        self.most_at_once = 100_000
        """So many messages at most in one pull, except that a token's parts stay together."""
        self.open: set[int] = set()
        self.pulls = 0
        self.up: list[tuple[str, int | None]] = []
        self.confirms: list[int] = []
        self.refusals: list[tuple[int, Outcome, str]] = []
        self.blocks: list[str | None] = []
        self.evidence: list[dict[Binding, Evidence | Mark]] = []

    def connected(self, endpoint: str, window: int | None) -> None:
        self.note("connected")
        self.open.clear()
        self.up.append((endpoint, window))

    def pull(self) -> Sequence[Outgoing]:
        self.pulls += 1
        self.note("pull")
        found: list[Outgoing] = []
        while self.queue and len(self.open) < self.most_open and len(found) < self.most_at_once:
            self.open.add(self.queue[0].token)
            found.append(self.queue.popleft())
            while found[-1].parts_left:
                found.append(self.queue.popleft())
        return found

    def confirmed(self, tokens: Sequence[int]) -> None:
        self.note("confirmed")
        self.confirms += tokens
        self.open.difference_update(tokens)

    def refused(self, token: int, outcome: Outcome, reason: str) -> None:
        self.note("refused")
        self.refusals.append((token, outcome, reason))
        self.open.discard(token)

    def found(self, evidence: Mapping[Binding, Evidence | Mark]) -> None:
        self.evidence.append(dict(evidence))

    def blocked(self, reason: str | None) -> None:
        self.note("blocked")
        self.blocks.append(reason)


class Receiving(Recorded):
    """Receiver events that record, and acknowledge at once on `transport` where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.transport: ReceiverTransport | None = None
        self.up: list[tuple[str, bool | None]] = []
        self.held: list[str] = []
        self.deliveries: list[Delivery] = []
        self.empty = 0

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    def connected(self, endpoint: str, session_present: bool | None) -> None:
        self.note("connected")
        self.up.append((endpoint, session_present))

    def busy(self, holder: str) -> None:
        self.note("busy")
        self.held.append(holder)

    def received(self, deliveries: Sequence[Delivery]) -> None:
        self.note("received")
        self.deliveries += deliveries
        if self.transport is not None:
            self.transport.acknowledge([delivery.token for delivery in deliveries])

    def drained(self) -> None:
        self.note("drained")
        self.empty += 1
