"""The progress of a run, from the files of its processes alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from reliamsg.checker.applog import AppRecord
from reliamsg.checker.journals import read_chain
from reliamsg.checker.spans import SpanMap, total
from reliamsg.cli.demo.plan import GROUPS, PRODUCERS, SITES, Plan
from reliamsg.errors import StoreCorrupt
from reliamsg.message import Stream
from reliamsg.store.journal import JournalRow

__all__ = ["PlainCounts", "Watch"]


class Growing:
    """Reads a growing log, each line once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._decode = msgspec.json.Decoder(AppRecord).decode

    def __call__(self) -> list[AppRecord]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = []
        for line in whole.splitlines():
            try:
                records.append(self._decode(line))
            except msgspec.DecodeError:
                continue  # truncated by a SIGKILL; the checker examines these
        return records


@dataclass
class PlainCounts:
    """The fate of plain paho's messages, by its applications' own logs."""

    published: int = 0
    confirmed: set[tuple[str, int]] = field(default_factory=set)
    delivered: set[tuple[str, int]] = field(default_factory=set)
    duplicates: int = 0
    out_of_order: int = 0
    _highest: dict[str, int] = field(default_factory=dict)

    def add(self, record: AppRecord) -> None:
        message = (record.producer, record.n or 0)
        if record.op == "publish" and record.outcome == "invoked":
            self.published += 1
        elif record.op == "publish" and record.outcome == "ok":
            self.confirmed.add(message)
        elif record.op == "delivered" and message in self.delivered:
            self.duplicates += 1
        elif record.op == "delivered":
            self.delivered.add(message)
            highest = self._highest.get(record.producer, 0)
            self.out_of_order += message[1] < highest
            self._highest[record.producer] = max(highest, message[1])

    @property
    def lost(self) -> int:
        """Messages confirmed by the broker and never delivered."""
        return len(self.confirmed - self.delivered)

    def as_dict(self) -> dict[str, int]:
        return {
            "published": self.published,
            "confirmed": len(self.confirmed),
            "delivered": len(self.delivered),
            "lost": self.lost,
            "duplicates": self.duplicates,
            "out_of_order": self.out_of_order,
        }


class Watch:
    """The numbers of one run; :meth:`look` updates them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.plain: PlainCounts = PlainCounts()
        self.published: dict[str, int] = dict.fromkeys(PRODUCERS, 0)
        self.acknowledged: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.reading: dict[str, set[str]] = {group: set() for group in GROUPS}
        """By group, the sites to which its consumer has been connected since it started last."""
        self.boots: dict[str, str] = dict.fromkeys(GROUPS, "")
        """By group, its consumer's last start."""
        self._confirmed: dict[str, SpanMap] = {}
        self._confirmed_row: dict[tuple[str, str], int] = {}
        """By producer and site, the last row of the producer's journal with a confirm of the site."""
        self._arrived: dict[tuple[str, str], SpanMap] = {}
        self._logs = {name: Growing(plan.published(name)) for name in PRODUCERS}
        self._plain_logs = [Growing(plan.plain_published), Growing(plan.plain_delivered)]

    def look(self) -> None:
        """Read new lines and rows."""
        for producer, log in self._logs.items():
            self.published[producer] += sum(record.outcome == "ok" for record in log())
        for log in self._plain_logs:
            for record in log():
                self.plain.add(record)
        self._confirmed = {site: SpanMap() for site in SITES}
        for producer in PRODUCERS:
            rows = self._read(self._plan.outbox(producer), {"confirmed": self._confirmed})
            self._confirmed_row |= {(producer, row.site): row.lsn for row in rows if row.kind == "confirmed"}
        for group in GROUPS:
            arrived = {site: SpanMap() for site in SITES}
            acknowledged = {"": SpanMap()}
            rows = self._read(
                self._plan.inbox(group),
                {"received": arrived, "duplicate": arrived, "acknowledged": acknowledged},
            )
            self.boots[group] = newest = rows[-1].boot if rows else ""
            self.reading[group] = {row.site for row in rows if (row.kind, row.boot) == ("connected", newest)}
            self.acknowledged[group] = total(acknowledged[""].values())
            self._arrived |= {(site, group): spans for site, spans in arrived.items()}

    def _read(self, path: Path, kinds: dict[str, dict[str, SpanMap]]) -> Sequence[JournalRow]:
        if not path.exists():
            return ()
        try:
            chain = read_chain(path)
        except StoreCorrupt:
            return ()  # it is just being created
        for row in chain.rows:
            # What a producer sends again does not come from a queue.
            if row.kind in kinds and row.site in kinds[row.kind] and row.reason != "repair":
                key = (Stream(row.producer, row.topic, row.partition), row.epoch)
                kinds[row.kind][row.site].put(key, row.first, row.last)
        return chain.rows

    @property
    def confirmed(self) -> dict[str, int]:
        """For each site, the number of confirmed messages."""
        return {site: total(spans.values()) for site, spans in self._confirmed.items()}

    def announced(self, site: str) -> bool:
        """Whether the consumers of all groups have heard from the producers of everything that `site` confirmed."""
        return all(
            self._heard(group).get(producer, 0) >= self._confirmed_row.get((producer, site), 0)
            for group in GROUPS
            for producer in PRODUCERS
        )

    def _heard(self, group: str) -> dict[str, int]:
        """By producer, how far its journal goes, as far as the group's consumer has heard since it started."""
        path = self._plan.heard(group)
        heard: dict[str, int] = json.loads(path.read_bytes()) if path.exists() else {}
        return heard

    def queued(self, site: str) -> dict[str, int]:
        """For each group, the number of messages that `site` has confirmed and not delivered to it."""
        confirmed = self._confirmed.get(site, SpanMap())
        found = {}
        for group in GROUPS:
            arrived = self._arrived.get((site, group), SpanMap())
            found[group] = sum((spans - arrived[key]).count for key, spans in confirmed.items())
        return found

    @property
    def plain_queued(self) -> int:
        """The number of messages that the plain broker has confirmed and not delivered to the subscriber."""
        return self.plain.lost
