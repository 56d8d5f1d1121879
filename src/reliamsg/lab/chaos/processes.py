"""Our clients as applications in processes of their own: starting and killing them, watching their logs, and judging
what they leave behind."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reliamsg.checker import Report, check_directory
from reliamsg.errors import StoreCorrupt
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.process import Child, LabError
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.segment import decode

__all__ = ["App", "Lines", "Run", "SiteSpec", "run_in"]

_OF_CONNECTIONS = {"opened", "connected", "disconnected", "took_over", "closed"}
_LAST_ROWS = 20

SiteSpec = tuple[str, str, dict[str, Any]]
"""Name, URL and further arguments of a Site."""


@dataclass
class App:
    """One application process, which may be killed and started again with the same files."""

    module: str
    config: dict[str, Any]
    child: Child | None = None
    starts: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    """What is added to ours."""
    _ready: Path = Path("/nonexistent")

    @property
    def log(self) -> Path:
        """The application's own log."""
        return Path(self.config["log"])

    @property
    def name(self) -> str:
        return self.log.stem

    @property
    def database(self) -> Path:
        """Its outbox or inbox."""
        return Path(self.config.get("outbox") or self.config["inbox"])

    def start(self, **changes: Any) -> App:
        """Start it, with `changes` of its configuration for this once."""
        config = {"ready": str(self.log.with_suffix(".ready")), **self.config, **changes}
        self.kill()  # nothing happens to one that has ended, but that it is reaped
        self._ready = Path(config["ready"])
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", self.module, json.dumps(config)]
        self.child = Child(
            self.name, command, output=self.log.with_suffix(".stderr"), environment=self.environment
        )
        self.starts += 1
        return self

    @property
    def started(self) -> Child:
        """Its process; LabError before its first start."""
        if self.child is None:
            raise LabError(f"{self.name} was not started")
        return self.child

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.alive

    def enough(self) -> None:
        """Tell it, a publisher, to publish nothing more."""
        Path(self.config["enough"]).touch()

    def ready(self) -> bool:
        """Whether it has opened its outbox or inbox, and takes signals."""
        return self._ready.exists()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.started.signal(number)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        if self.child is not None:
            self.child.kill()

    def stop(self, seconds: float = 30.0) -> None:
        """SIGTERM, once it knows what to do then; it must end by itself, without an error."""
        wait_for(lambda: self.ready() or not self.running, lambda: f"{self.name} starts: {self.errors()}")
        self.signal(signal.SIGTERM)
        self.ended(seconds)

    def ended(self, seconds: float) -> None:
        """It must end by itself, without an error."""
        child = self.started
        wait_for(lambda: not child.alive, lambda: f"{self.name} ends: {self.errors()}", seconds)
        code = child.exit_code
        child.kill()  # reaps it
        if code:
            raise Unmet(f"{self.name} ended with {code}: {self.errors()}")

    def errors(self) -> str:
        """The last lines that it wrote."""
        return self.child.output_tail(3000) if self.child is not None else ""

    def killed(self) -> bool:
        return self.child is not None and self.child.exit_code == -signal.SIGKILL

    def rss_mb(self) -> float:
        """Its memory, in megabytes; 0 where it is gone."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{self.started.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        return 0.0


@dataclass
class Lines:
    """Counts the lines of a growing log that contain something, without reading any twice."""

    path: Path
    needle: bytes
    count: int = 0
    _offset: int = 0

    def __call__(self) -> int:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._offset += len(data)
            self.count += data.count(self.needle)
        return self.count


@dataclass
class Run:
    """One run: its applications and their files under one directory."""

    directory: Path
    apps: list[App] = field(default_factory=list)
    checked: bool = False

    @property
    def journals(self) -> Path:
        """Where all clients export their journals to."""
        return self.directory / "journals"

    def producer(
        self, name: str, sites: list[SiteSpec], topic: str, groups: list[str], last: int, **more: Any
    ) -> App:
        """An application that publishes messages 1 to `last`; see :mod:`reliamsg.lab.chaos.publisher`."""
        config = {
            "producer": name, "sites": sites, "topic": topic, "groups": {topic: groups}, "last": last,
            "outbox": str(self.directory / f"{name}.outbox.db"), "log": str(self.directory / f"{name}.pub.ndjson"),
            "journal": str(self.journals), "enough": str(self.directory / f"{name}.enough"),
            **more,
        }  # fmt: skip
        return self._app("reliamsg.lab.chaos.publisher", config)

    def consumer(self, group: str, sites: list[SiteSpec], topics: list[str], **more: Any) -> App:
        """An application that is handed messages; see :mod:`reliamsg.lab.chaos.subscriber`."""
        config = {
            "group": group, "sites": sites, "topics": topics,
            "inbox": str(self.directory / f"{group}.inbox.db"), "log": str(self.directory / f"{group}.sub.ndjson"),
            "journal": str(self.journals),
            **more,
        }  # fmt: skip
        return self._app("reliamsg.lab.chaos.subscriber", config)

    def _app(self, module: str, config: dict[str, Any]) -> App:
        app = App(module, config)
        self.apps.append(app)
        return app

    def delivered(self, app: App) -> Lines:
        """Counts what a consumer was handed, by its own log."""
        return Lines(app.log, b'"op":"delivered"')

    def accepted(self, app: App) -> Lines:
        """Counts what a producer's publish() returned for, by its own log."""
        return Lines(app.log, b'"outcome":"ok"')

    def queued(self, site: str, group: str) -> int:
        """Messages that `site` has confirmed and not yet given to `group`, by the journals."""
        confirmed = received = 0
        for app in self.apps:
            if "outbox" in app.config:
                confirmed += self._journalled(app, {"confirmed"}, site)
            elif app.config["group"] == group:
                received += self._journalled(app, {"received", "duplicate"}, site)
        return confirmed - received

    def _journalled(self, app: App, kinds: set[str], site: str) -> int:
        return sum(
            row.last - row.first + 1 for row in self.rows(app) if row.kind in kinds and row.site == site
        )

    def rows(self, app: App) -> list[JournalRow]:
        """An application's journal so far: what its file holds, and what has left it."""
        found: dict[tuple[int, str], JournalRow] = {}
        # A file that is just being made is no database yet. It is read first, so that no row is missed on its way.
        with contextlib.suppress(StoreCorrupt), contextlib.closing(open_readonly(app.database)) as connection:
            found = {(row.lsn, row.boot): row for row in read_journal(connection)}
        role = "producer" if "outbox" in app.config else "group"
        own = self.journals / f"role={role}" / f"client={quote(app.config[role], safe='')}"
        for segment in own.rglob("*.ndjson"):
            if not segment.name.startswith("."):
                found |= {(row.lsn, row.boot): row for row in decode(segment.read_bytes())[1]}
        return [found[place] for place in sorted(found)]

    def check(self) -> Report:
        """Judge files, segments and logs together."""
        self.checked = True
        return check_directory(self.directory)

    def outcome(self, app: App) -> dict[str, list[int]]:
        """Numbers that a group's application was given, per producer, in order, by its own log.

        What comes again flagged ``redelivered`` is left out; what comes first with that flag counts.
        """
        numbers: dict[str, list[int]] = defaultdict(list)
        seen: set[tuple[str, int]] = set()
        published = self._numbers()
        for line in app.log.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # a torn line of a killed process
                record = json.loads(line)
                if record["op"] != "delivered":
                    continue
                account = record["producer"]
                number = published.get((account, record["sha256"]))
                if number is None:  # of somebody who keeps no log
                    continue
                if not (record.get("redelivered") and (account, number) in seen):
                    numbers[account].append(number)
                    seen.add((account, number))
        return numbers

    def _numbers(self) -> dict[tuple[str, str], int]:
        found = {}
        for path in self.directory.glob("*.pub.ndjson"):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    if record["op"] == "publish":
                        found[record["producer"], record["sha256"]] = record["n"]
        return found

    def last_words(self, app: App) -> str:
        """What an application wrote last, and what it journalled of its connections."""
        rows = [row for row in self.rows(app) if row.kind in _OF_CONNECTIONS]
        state = "running" if app.running else "ended"
        return "\n".join([f"{app.name} ({state}):", app.errors(), *(str(row) for row in rows[-_LAST_ROWS:])])

    def end(self) -> None:
        """Kill what still runs."""
        for app in self.apps:
            app.kill()


@contextlib.contextmanager
def run_in(directory: Path) -> Iterator[Run]:
    """A run whose applications end with it. What fails says what each of them wrote and journalled last."""
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(directory)
    try:
        yield run
    except Exception as error:
        for app in run.apps:
            error.add_note(run.last_words(app))
        raise
    finally:
        run.end()
