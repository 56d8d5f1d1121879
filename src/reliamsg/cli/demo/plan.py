"""What a run of the demo consists of: names, numbers and places, the same for all of its processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from reliamsg.config import Site

__all__ = ["GROUPS", "PRODUCERS", "SITES", "SUBSCRIBED", "TOPIC", "Kind", "Plan"]

Kind = Literal["embedded", "mosquitto", "rabbitmq", "mixed"]

TOPIC = "payments"
PRODUCERS = ("A", "B")
GROUPS = ("primary", "secondary")
SITES = ("dc1", "dc2")
SUBSCRIBED = "subscribed"
"""What the plain subscriber notes once the broker has its subscription."""

_SHORTEST_SECONDS = 4.0
"""Publishing takes at least so long: faults in the middle need a middle."""
_MOST_PER_SECOND = 1250.0
"""Messages a second of one producer: what embedded brokers on a small machine take from all clients."""
_CHUNKS_PER_SECOND = 50


@dataclass(frozen=True)
class Plan:
    """One run. Paths and URLs are known to all processes; the command line of each is its plan and its name."""

    directory: str
    messages: int
    """Of each producer."""
    urls: dict[str, str]
    plain_url: str
    options: dict[str, dict[str, Any]]
    """Further arguments of each :class:`Site`."""
    slowness: float = 2.0
    """By how much the groups are slower than the producers, so that messages queue up at the sites."""

    @property
    def total(self) -> int:
        """Messages of all producers."""
        return self.messages * len(PRODUCERS)

    @property
    def rate(self) -> float:
        """Messages a second of one producer."""
        return min(self.messages / _SHORTEST_SECONDS, _MOST_PER_SECOND)

    @property
    def chunk(self) -> int:
        """Messages that a producer publishes together."""
        return max(1, round(self.rate / _CHUNKS_PER_SECOND))

    @property
    def handling_seconds(self) -> float:
        """What a message costs a group, with one worker for each producer's stream."""
        return self.slowness / self.rate

    @property
    def inbox_bytes(self) -> int:
        """What a group may hold back: so little that what it has not handled yet stays queued at the sites, where
        it is at stake."""
        return max(2048, min(64 * 1024, self.messages * 4))

    @property
    def evidence(self) -> Path:
        """Where the clients' stores and applications' logs are: all that the checker is given."""
        return Path(self.directory) / "reliamsg"

    @property
    def journals(self) -> Path:
        """Where the clients' journals are in the end, as segments."""
        return self.evidence / "journals"

    @property
    def control(self) -> Path:
        """Where plain paho's logs are."""
        return Path(self.directory) / "plain"

    def outbox(self, producer: str) -> Path:
        return self.evidence / f"{producer}.outbox.db"

    def inbox(self, group: str) -> Path:
        return self.evidence / f"{group}.inbox.db"

    def published(self, producer: str) -> Path:
        return self.evidence / f"{producer}.published.ndjson"

    def delivered(self, group: str) -> Path:
        return self.evidence / f"{group}.delivered.ndjson"

    @property
    def plain_published(self) -> Path:
        return self.control / "published.ndjson"

    @property
    def plain_delivered(self) -> Path:
        return self.control / "delivered.ndjson"

    def sites(self, **options: Any) -> list[Site]:
        """The sites as a client is given them."""
        return [
            Site(
                name,
                url,
                backoff_max=0.5,
                connect_timeout=3.0,
                confirm_timeout=10.0,
                **self.options[name],
                **options,
            )
            for name, url in self.urls.items()
        ]

    def body(self, producer: str, number: int) -> bytes:
        """What message `number` of a producer says."""
        return f"payment {number} of account {producer}".encode()

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
