"""Client applications in separate processes: starting and killing them, following their logs, and judging the files
that they leave behind."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reliamsg.checker import Expect, Report, check_directory
from reliamsg.checker.spans import Spans
from reliamsg.errors import StoreCorrupt
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.process import Child, LabError
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.segment import decode

__all__ = ["App", "LineCounter", "Run", "SiteSpec", "run_in"]

_CONNECTION_KINDS = {"opened", "connected", "disconnected", "took_over", "closed"}
_LAST_ROWS = 20

SiteSpec = tuple[str, str, dict[str, Any]]
"""Name, URL and further arguments of a Site."""


@dataclass
class App:
    """An application process that can be killed, and started again with the same files."""

    module: str
    config: dict[str, Any]
    child: Child | None = None
    starts: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    """Variables added to the environment of this process."""
    _ready: Path = Path("/nonexistent")

    @property
    def log(self) -> Path:
        """The application's log."""
        return Path(self.config["log"])

    @property
    def name(self) -> str:
        return self.log.stem

    @property
    def database(self) -> Path:
        """Its outbox or inbox."""
        return Path(self.config.get("outbox") or self.config["inbox"])

    def configure(self, **changes: Any) -> None:
        """Change its configuration, from the next start on."""
        self.config.update(changes)

    def run_under(self, module: str) -> None:
        """Start `module` from now on, which runs the application that ``config["application"]`` names."""
        self.configure(application=self.module)
        self.module = module

    def add_environment(self, variables: Mapping[str, str]) -> None:
        """Add variables to its environment, from the next start on."""
        self.environment = {**self.environment, **variables}

    def start(self, **changes: Any) -> App:
        """Start it, with `changes` to its configuration for this start only."""
        config = {"ready": str(self.log.with_suffix(".ready")), **self.config, **changes}
        self.kill()  # reaps a process that has exited
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
        """Its process; LabError before the first start."""
        if self.child is None:
            raise LabError(f"{self.name} was not started")
        return self.child

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.alive

    def enough(self) -> None:
        """Tell a publisher to stop publishing."""
        Path(self.config["enough"]).touch()

    def ready(self) -> bool:
        """Whether it has opened its outbox or inbox, and handles signals."""
        return self._ready.exists()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.started.signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and reap it."""
        if self.child is not None:
            self.child.kill()

    def stop(self, seconds: float = 30.0) -> None:
        """Send SIGTERM once it can handle it, and wait until it exits without an error."""
        wait_for(lambda: self.ready() or not self.running, lambda: f"{self.name} starts: {self.errors()}")
        self.signal(signal.SIGTERM)
        self.wait_ended(seconds)

    def wait_ended(self, seconds: float) -> None:
        """Wait until it exits without an error."""
        child = self.started
        wait_for(lambda: not child.alive, lambda: f"{self.name} exits: {self.errors()}", seconds)
        code = child.exit_code
        child.kill()  # reaps it
        if code:
            raise Unmet(f"{self.name} exited with {code}: {self.errors()}")

    def errors(self) -> str:
        """The end of its output."""
        return self.child.output_tail(3000) if self.child is not None else ""

    def killed(self) -> bool:
        """Whether SIGKILL terminated it."""
        return self.child is not None and self.child.exit_code == -signal.SIGKILL

    def rss_mb(self) -> float:
        """Its resident memory, in megabytes; 0 if it is gone."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{self.started.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        return 0.0


@dataclass
class LineCounter:
    """Counts the lines of a growing log that contain `needle`. Reads each line only once."""

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
    """One run: its applications, and their files in one directory."""

    directory: Path
    apps: list[App] = field(default_factory=list)
    checked: bool = False

    @property
    def journals(self) -> Path:
        """The directory to which all clients export their journals."""
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
        return self.add("reliamsg.lab.chaos.publisher", config)

    def consumer(self, group: str, sites: list[SiteSpec], topics: list[str], **more: Any) -> App:
        """An application that consumes messages; see :mod:`reliamsg.lab.chaos.subscriber`."""
        config = {
            "group": group, "sites": sites, "topics": topics,
            "inbox": str(self.directory / f"{group}.inbox.db"), "log": str(self.directory / f"{group}.sub.ndjson"),
            "journal": str(self.journals),
            **more,
        }  # fmt: skip
        return self.add("reliamsg.lab.chaos.subscriber", config)

    def add(self, module: str, config: dict[str, Any]) -> App:
        """An application that runs `module`; it is killed at the end of the run."""
        app = App(module, config)
        self.apps.append(app)
        return app

    def delivered(self, app: App) -> LineCounter:
        """Counts the messages that a consumer received, by its log."""
        return LineCounter(app.log, b'"op":"delivered"')

    def accepted(self, app: App) -> LineCounter:
        """Counts the messages for which a producer's publish() returned, by its log."""
        return LineCounter(app.log, b'"outcome":"ok"')

    def queued(self, site: str, group: str) -> int:
        """Messages that `site` has confirmed and not yet delivered to `group`, by the journals."""
        confirmed = received = 0
        for app in self.apps:
            if "outbox" in app.config:
                confirmed += self._journalled(app, {"confirmed"}, site)
            elif app.config["group"] == group:
                received += self._journalled(app, {"received", "duplicate"}, site)
        return confirmed - received

    def not_stored(self, site: str, group: str) -> int:
        """Messages that `site` has confirmed and that `group` has neither stored in its inbox nor acknowledged, by the
        journals. They are at the site, whether or not it has sent them: Mosquitto 2.0.11 sends several more for each
        acknowledgement, whatever MQTT's Receive Maximum allows, so few are left in its queue."""
        confirmed, stored = (
            defaultdict[tuple[Any, ...], Spans](Spans),
            defaultdict[tuple[Any, ...], Spans](Spans),
        )
        for app in self.apps:
            is_producer = "outbox" in app.config
            if not is_producer and app.config["group"] != group:
                continue
            for row in self.rows(app):
                key = (row.producer, row.topic, row.partition, row.epoch)
                if is_producer and row.kind == "confirmed" and row.site == site:
                    confirmed[key].add(row.first, row.last)
                elif not is_producer and row.kind in {"buffered", "acknowledged", "dead_lettered"}:
                    stored[key].add(row.first, row.last)
        for key, spans in stored.items():
            for first, last in spans:
                confirmed[key].discard(first, last)
        return sum(last - first + 1 for spans in confirmed.values() for first, last in spans)

    def _journalled(self, app: App, kinds: set[str], site: str) -> int:
        return sum(
            row.last - row.first + 1 for row in self.rows(app) if row.kind in kinds and row.site == site
        )

    def rows(self, app: App) -> list[JournalRow]:
        """An application's journal so far: the rows in its file, and those that it has exported."""
        found: dict[tuple[int, str], JournalRow] = {}
        # A file that is being created may not be a database yet. Read it first: rows move from the file to segments.
        with contextlib.suppress(StoreCorrupt), contextlib.closing(open_readonly(app.database)) as connection:
            found = {(row.lsn, row.boot): row for row in read_journal(connection)}
        role = "producer" if "outbox" in app.config else "group"
        own = self.journals / f"role={role}" / f"client={quote(app.config[role], safe='')}"
        for segment in own.rglob("*.ndjson"):
            if not segment.name.startswith("."):
                found |= {(row.lsn, row.boot): row for row in decode(segment.read_bytes())[1]}
        return [found[place] for place in sorted(found)]

    def check(self) -> Report:
        """Have the checker judge files, segments and logs together."""
        self.checked = True
        return check_directory(self.directory, Expect(drained=True))

    def outcome(self, app: App) -> dict[str, list[int]]:
        """The numbers of the messages that a group's application received, by producer, in order, by its log.

        Repeated messages that are flagged ``redelivered`` are left out.
        """
        numbers: dict[str, list[int]] = defaultdict(list)
        seen: set[tuple[str, int]] = set()
        published = self._numbers()
        for line in app.log.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # a line that a killed process left incomplete
                record = json.loads(line)
                if record["op"] != "delivered":
                    continue
                account = record["producer"]
                number = published.get((account, record["sha256"]))
                if number is None:  # from a producer without a log
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
        """The end of an application's output, and the journal rows about its connections."""
        rows = [row for row in self.rows(app) if row.kind in _CONNECTION_KINDS]
        state = "running" if app.running else "exited"
        return "\n".join([f"{app.name} ({state}):", app.errors(), *(str(row) for row in rows[-_LAST_ROWS:])])

    def end(self) -> None:
        """Kill all applications that are still running."""
        for app in self.apps:
            app.kill()


@contextlib.contextmanager
def run_in(directory: Path) -> Iterator[Run]:
    """A run whose applications end with it. Each exception gets their last output and journal rows as notes."""
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
