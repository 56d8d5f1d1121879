"""The parameters of a run of the demo, shared by all its processes: names, numbers and paths."""

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
"""Logged by the plain subscriber when the broker has its subscription."""

_SHORTEST_SECONDS = 4.0
"""The minimum time for publishing, so that faults can be injected meanwhile."""
_MOST_PER_SECOND = 1250.0
"""The maximum messages per second of a producer: the capacity of embedded brokers on a small machine."""
_CHUNKS_PER_SECOND = 50


@dataclass(frozen=True)
class Plan:
    """One run. The command line of each process contains the plan and its name."""

    directory: str
    messages: int
    """Messages of each producer."""
    urls: dict[str, str]
    plain_url: str
    options: dict[str, dict[str, Any]]
    """Further arguments of each :class:`Site`."""
    slowness: float = 2.0
    """The factor by which groups are slower than producers, so that messages queue up at the sites."""

    @property
    def total(self) -> int:
        """The messages of all producers."""
        return self.messages * len(PRODUCERS)

    @property
    def rate(self) -> float:
        """Messages per second of one producer."""
        return min(self.messages / _SHORTEST_SECONDS, _MOST_PER_SECOND)

    @property
    def chunk(self) -> int:
        """Messages that a producer publishes in one call."""
        return max(1, round(self.rate / _CHUNKS_PER_SECOND))

    @property
    def handling_seconds(self) -> float:
        """The handling time of a message in a group, with one worker for each producer's stream."""
        return self.slowness / self.rate

    @property
    def inbox_bytes(self) -> int:
        """The prefetch of a group: so low that unhandled messages stay queued at the sites, where they are at stake."""
        return max(2048, min(64 * 1024, self.messages * 4))

    @property
    def evidence(self) -> Path:
        """The directory of the clients' files and the applications' logs, which the checker reads."""
        return Path(self.directory) / "reliamsg"

    @property
    def journals(self) -> Path:
        """The directory of the exported journals."""
        return self.evidence / "journals"

    @property
    def control(self) -> Path:
        """The directory of plain paho's logs."""
        return Path(self.directory) / "plain"

    def outbox(self, producer: str) -> Path:
        return self.evidence / f"{producer}.outbox.db"

    def inbox(self, group: str) -> Path:
        return self.evidence / f"{group}.inbox.db"

    def published(self, producer: str) -> Path:
        return self.evidence / f"{producer}.published.ndjson"

    def delivered(self, group: str) -> Path:
        return self.evidence / f"{group}.delivered.ndjson"

    def heard(self, group: str) -> Path:
        """What the group's consumer has heard of the producers: by name, how far their journals go."""
        return Path(self.directory) / "output" / f"{group}.heard.json"

    @property
    def plain_published(self) -> Path:
        return self.control / "published.ndjson"

    @property
    def plain_delivered(self) -> Path:
        return self.control / "delivered.ndjson"

    def sites(self, **options: Any) -> list[Site]:
        """The sites for a client."""
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
        """The body of message `number` of a producer."""
        return f"payment {number} of account {producer}".encode()

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
