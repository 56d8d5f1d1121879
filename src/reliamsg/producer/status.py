"""What a producer reports about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from reliamsg.export.exporter import JournalStatus
from reliamsg.message import Gap

__all__ = [
    "GroupStatus",
    "MessageState",
    "ParkedStream",
    "ProducerStatus",
    "Remaining",
    "SenderSite",
    "UnseenGroup",
    "messages_remain",
]

MessageState = Literal[
    "confirmed", "pending", "sent", "nacked", "returned", "refused", "dropped", "timed out", "disconnected",
    "released", "removed", "unseen",
]  # fmt: skip
"""The state of a message at a site.

``confirmed``: the site has it. ``sent``: in flight. ``pending``: not sent yet. ``nacked``, ``returned``, ``refused``,
``dropped``: the site rejected it, or dropped the connection over it; the stream is parked there and is tried again.
``timed out``: no answer in time. ``disconnected``: no connection, so the outcome is open. ``released``: it left the
outbox before this site had confirmed it, since other sites had and its room was needed. ``removed``: it was removed
with :meth:`Producer.remove`. ``unseen``: an MQTT broker has confirmed it, but a named group is not known to exist there
and may not receive it; it is sent again once the group exists.
"""


def messages_remain(count: int) -> str:
    """The sentence with the right number."""
    return "1 message remains" if count == 1 else f"{count} messages remain"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"


@dataclass(frozen=True)
class ParkedStream:
    """A stream that a site refuses; it is tried again."""

    topic: str
    partition: int
    reason: str
    attempts: int


@dataclass(frozen=True)
class UnseenGroup:
    """A named group that nothing proves to exist at an MQTT site, so that the site's confirms do not count."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True)
class SenderSite:
    """One site of a producer."""

    state: str
    """``connecting``, ``connected``, ``blocked``, ``unreachable``, ``refused credentials``, ``refused`` (the
    broker refused the connection for another reason, such as an unknown virtual host) or ``closed``."""
    endpoint: str
    """The endpoint it is connected to, or tried last."""
    error: str
    """The latest reason of a failure; empty while all is well."""
    behind: int
    """Batches that the site has not confirmed."""
    in_flight: int
    """Batches that are sent and unanswered."""
    parked: tuple[ParkedStream, ...]
    refused_addresses: tuple[str, ...] = ()
    """Control addresses that the site does not let us send to or listen at, as far as it reports them."""
    unseen: tuple[UnseenGroup, ...] = ()
    """Named groups that are not known to exist there. Start their consumers, or run ``reliamsg group create``."""

    @property
    def connected(self) -> bool:
        return self.state in ("connected", "blocked")

    def __str__(self) -> str:
        text = f"{self.state}, {_batches(self.behind)} behind"
        if self.parked:
            text += f", parked: {', '.join(stream.topic for stream in self.parked)}"
        if self.refused_addresses:
            text += f", refuses {', '.join(self.refused_addresses)}"
        if self.unseen:
            text += f", unseen: {', '.join(f'{each.group} on {each.topic}' for each in self.unseen)}"
        return text + (f" ({self.error})" if self.error else "")


@dataclass(frozen=True)
class GroupStatus:
    """One group of one stream, as its producer knows it."""

    group: str
    topic: str
    partition: int
    named: bool
    """False for a group that was only heard: messages are not kept for it."""
    since: tuple[int, int]
    """It counts for messages from this (epoch, number) on; (0, 1) where it is not named."""
    position: tuple[int, int]
    """It has acknowledged everything before this (epoch, number), or declared it missing."""
    behind: int
    """Messages that it has not acknowledged."""
    heard_s: float | None
    """Seconds since its last state; None if there was none since this producer was opened."""
    gap: Gap | None = None
    """The gap that holds it up, by its last state: everything before is settled, and these messages have not arrived.
    With ``release="consumed"`` they stay in the outbox, as all that follows, until they do or the gap is accepted."""

    def __str__(self) -> str:
        heard = "never heard" if self.heard_s is None else f"heard {self.heard_s:.0f} s ago"
        gap = (
            ""
            if self.gap is None
            else f", held up by a gap: {self.gap.first} to {self.gap.last} are missing there"
        )
        return f"{self.group} on {self.topic}: {self.behind} messages behind, {heard}{gap}"


@dataclass(frozen=True)
class ProducerStatus:
    """A producer at one moment."""

    producer: str
    epoch: int
    incarnation: int
    pending: int
    """Messages whose confirm policy is not met."""
    stored_bytes: int
    """Bytes of batches in the outbox, retained ones included."""
    oldest_age_s: float | None
    """Age of the oldest message whose confirm policy is not met, in seconds."""
    sites: dict[str, SenderSite]
    groups: tuple[GroupStatus, ...] = ()
    """Every named group of every stream, and those that were heard."""
    journal: JournalStatus | None = None
    """The journal's export; None where it stays in the outbox."""
    repaired: int = 0
    """Messages that were sent again to groups that lacked them."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Control frames that were refused, by reason: ``forged``, ``malformed`` and so on."""
    gated: bool = False
    """Whether published messages wait until the named groups have reported the epoch that they have entered."""


@dataclass(frozen=True)
class Remaining:
    """What ``close()`` left in the outbox; it is sent when the outbox is opened again."""

    messages: int
    """Messages whose confirm policy is not met."""
    sites: dict[str, int]
    """Batches that each site has not confirmed."""
    journal_rows: int = 0
    """Journal rows that are not at their target, and follow then as well. No messages."""
    unacknowledged: int = 0
    """With ``release="consumed"``: messages that some named group has not acknowledged; they are kept for it."""

    @property
    def nothing(self) -> bool:
        """Whether all is confirmed."""
        return self.messages == 0

    def __str__(self) -> str:
        if self.nothing and self.unacknowledged:
            kept = messages_remain(self.unacknowledged)
            return f"{kept} in the outbox until all groups have acknowledged them"
        if self.nothing:
            return "nothing remains"
        where = ", ".join(f"{name}: {_batches(count)}" for name, count in self.sites.items() if count)
        return f"{messages_remain(self.messages)} in the outbox, unconfirmed at {where or 'no site'}"
