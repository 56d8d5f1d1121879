"""A reader and writer of segments that shares nothing with the product: neither its code nor its opinions."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = [
    "Client",
    "Files",
    "Id",
    "Journals",
    "Message",
    "Row",
    "Segment",
    "messages_of",
    "read_files",
    "sha",
]

Files = dict[str, bytes]
"""By path below a directory, its content."""
Id = tuple[str, str]
"""Role and name of a client."""
Row = dict[str, Any]
Message = tuple[str, int, int]
"""Producer, epoch, and sequence number."""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_files(directory: Path) -> Files:
    """All segments and heads below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.suffix == ".ndjson" or path.name.startswith("head-")
    }


def messages_of(row: Row) -> set[Message]:
    """The messages that a row is about."""
    if not row.get("topic") or not row.get("first"):
        return set()
    return {(row["producer"], row["epoch"], number) for number in range(row["first"], row["last"] + 1)}


@dataclass
class Segment:
    """A segment as it is found, or is to be written."""

    header: Row
    rows: list[Row]
    directory: str
    data: bytes = b""
    usable: bool = True
    """Whether its rows are evidence. Of one that is not, nothing counts."""
    kept: str = ""
    """Its path, if that is not what its content demands."""

    @property
    def digest(self) -> str:
        return sha(self.data)

    @property
    def name(self) -> str:
        return f"{self.header['boot']}-{self.header['first_lsn']:019}-{self.digest}.ndjson"

    @property
    def path(self) -> str:
        return self.kept or f"{self.directory}/{self.name}"

    def encode(self, parent: str | None) -> None:
        """Write the header and the rows anew."""
        first, last = self.rows[0], self.rows[-1]
        self.header |= {
            "boot": first["boot"], "first_lsn": first["lsn"], "last_lsn": last["lsn"], "rows": len(self.rows),
            "parent": parent,
        }  # fmt: skip
        lines = [json.dumps(each, separators=(",", ":")) for each in (self.header, *self.rows)]
        self.data = "".join(f"{line}\n" for line in lines).encode()


@dataclass
class Client:
    """One client's segments, in order."""

    role: str
    name: str
    segments: list[Segment] = field(default_factory=list)
    broken: bool = False
    """Whether rows are known to be missing."""

    @property
    def id(self) -> Id:
        return self.role, self.name

    @property
    def directory(self) -> str:
        return f"role={self.role}/client={quote(self.name, safe='')}"

    @property
    def rows(self) -> list[Row]:
        """All rows that are evidence."""
        return [row for segment in self.segments if segment.usable for row in segment.rows]

    def of(self, *kinds: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] in kinds]

    @property
    def boots(self) -> list[str]:
        return list(dict.fromkeys(row["boot"] for row in self.rows))

    def chain(self) -> None:
        """Write all segments anew, each with the digest of the one before."""
        parent = None
        for segment in self.segments:
            segment.encode(parent)
            parent = segment.digest


class Journals:
    """The journals of all clients, and files beside them."""

    def __init__(self, files: Files) -> None:
        self.clients: dict[Id, Client] = {}
        self.others: Files = {}
        self.odd: list[Callable[[Path], object]] = []
        """Called with the directory once everything else is written."""
        for path, data in files.items():
            lines = data.split(b"\n")
            if not path.endswith(".ndjson"):
                self.others[path] = data
                continue
            header, *rows = [json.loads(line) for line in lines[:-1]]
            client = self.clients.setdefault(
                (header["role"], header["client"]), Client(header["role"], header["client"])
            )
            client.segments.append(Segment(header, rows, path.rpartition("/")[0], data))
        for client in self.clients.values():
            client.segments.sort(key=lambda each: each.header["first_lsn"])

    def client(self, role: str, name: str) -> Client:
        return self.clients[role, name]

    @property
    def producers(self) -> Iterator[Client]:
        return (each for each in self.clients.values() if each.role == "producer")

    @property
    def groups(self) -> Iterator[Client]:
        return (each for each in self.clients.values() if each.role == "group")

    @property
    def heads(self) -> list[Row]:
        """What clients stated while they were idle."""
        return [json.loads(data.split(b"\n")[0]) for path, data in self.others.items() if "/head-" in path]

    def files(self) -> Files:
        """Everything that is to be written, by path."""
        files = dict(self.others)
        for client in self.clients.values():
            for segment in client.segments:
                files.setdefault(segment.path, segment.data)
        return files

    def about(
        self, *kinds: str, role: str = "", name: str = "", site: str = "", repairs: bool = True
    ) -> set[Message]:
        """The messages in all rows of these kinds; `repairs`: also in those about messages that no queue had."""
        found: set[Message] = set()
        for client in self.clients.values():
            if role in ("", client.role) and name in ("", client.name):
                for row in client.of(*kinds):
                    if site in ("", row.get("site")) and (repairs or row.get("reason") != "repair"):
                        found |= messages_of(row)
        return found

    def came(self, group: str, site: str = "") -> set[Message]:
        """The messages that a group had from a site's queue, or from any."""
        return self.about("received", "duplicate", name=group, site=site, repairs=False)

    def counts(self) -> dict[str, Any]:
        """What the rows say by themselves: messages enqueued, delivered, set aside, and those at sites."""
        enqueued = self.about("enqueued", role="producer")
        return {
            "enqueued": len(enqueued),
            "delivered": {
                each.name: len(self.about("delivered", "redelivered", name=each.name)) for each in self.groups
            },
            "dead_lettered": sum(
                len(
                    self.about("dead_lettered", name=each.name)
                    & enqueued - self.about("acknowledged", name=each.name)
                )
                for each in self.groups
            ),
            "sites": self._sites(),
        }

    def _sites(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = defaultdict(
            lambda: {"confirmed": 0, "received": 0, "saved_alone": 0}
        )
        sites = {
            row["site"]
            for each in self.clients.values()
            for row in each.of("confirmed", "received", "duplicate")
        }
        for site in sites:
            found[site]["confirmed"] = len(self.about("confirmed", role="producer", site=site))
            for each in self.groups:
                came = self.came(each.name, site)
                found[site]["received"] += len(came)
                elsewhere: set[Message] = set().union(
                    *(self.came(each.name, other) for other in sites - {site})
                )
                delivered = self.about("delivered", "redelivered", name=each.name)
                found[site]["saved_alone"] += len((came & delivered) - elsewhere)
        return dict(found)
