"""What the runs share: starting and killing the applications, watching their logs, and judging the outcome."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reliamsg import Consumer
from reliamsg.errors import StoreCorrupt
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.segment import decode
from reliamsg.verify import Report, check_directory
from tests import patience
from tests.runs.collected import keep

ROOT = Path(__file__).resolve().parents[2]
SiteSpec = tuple[str, str, dict[str, Any]]
"""Name, URL and further arguments of a Site."""


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until `condition` is true, and return its value: :func:`tests.patience.wait_for`."""
    return patience.wait_for(condition, what, seconds, poll=0.02)


def wait_until_reading(consumer: Consumer) -> None:
    """Wait until a consumer reads all its sites: from then on an MQTT site keeps messages for it."""
    wait_for(
        lambda: all(site.state == "connected" for site in consumer.status().sites.values()),
        20,
        "all sites are read",
    )


@dataclass
class App:
    """One application process, which may be killed and started again with the same files."""

    module: str
    config: dict[str, Any]
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def log(self) -> Path:
        return Path(self.config["log"])

    @property
    def stderr(self) -> Path:
        return self.log.with_suffix(".stderr")

    def start(self, **changes: Any) -> App:
        config = {**self.config, **changes}
        with self.stderr.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, json.dumps(config)],
                cwd=ROOT, stdout=errors, stderr=errors, start_new_session=True,
            )  # fmt: skip
        self.starts += 1
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and reap."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)

    def stop(self, seconds: float = 30.0) -> None:
        """SIGTERM; it must end by itself, without an error."""
        assert self.process is not None
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        self.ended(seconds)

    def ended(self, seconds: float) -> None:
        """It must end by itself, without an error."""
        assert self.process is not None
        try:
            status = self.process.wait(patience.patient(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.log.stem} did not end in {patience.patient(seconds):.0f} s: {self.errors()}"
            ) from None
        assert status == 0, f"{self.log.stem} ended with {status}: {self.errors()}"

    def errors(self) -> str:
        return self.stderr.read_text()[-3000:] if self.stderr.exists() else ""

    def killed(self) -> bool:
        return self.process is not None and self.process.poll() == -signal.SIGKILL

    def rss_mb(self) -> float:
        assert self.process is not None
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
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
        config = {
            "producer": name, "sites": sites, "topic": topic, "groups": {topic: groups}, "last": last,
            "outbox": str(self.directory / f"{name}.outbox.db"), "log": str(self.directory / f"{name}.pub.ndjson"),
            "journal": str(self.journals),
            **more,
        }  # fmt: skip
        return self._app("tests.runs.publisher", config)

    def consumer(self, group: str, sites: list[SiteSpec], topics: list[str], **more: Any) -> App:
        config = {
            "group": group, "sites": sites, "topics": topics,
            "inbox": str(self.directory / f"{group}.inbox.db"), "log": str(self.directory / f"{group}.sub.ndjson"),
            "journal": str(self.journals),
            **more,
        }  # fmt: skip
        return self._app("tests.runs.consumer", config)

    def _app(self, module: str, config: dict[str, Any]) -> App:
        app = App(module, config, self.directory)
        self.apps.append(app)
        return app

    def delivered(self, app: App) -> Lines:
        return Lines(app.log, b'"op":"delivered"')

    def accepted(self, app: App) -> Lines:
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
        path = app.config.get("outbox") or app.config["inbox"]
        # A file that is just being made is no database yet. It is read first, so that no row is missed on its way.
        with contextlib.suppress(StoreCorrupt), contextlib.closing(open_readonly(path)) as connection:
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
        """Numbers that a group's application was given, per account, in order, by its own log.

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
                number = published[account, record["sha256"]]
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

    def end(self) -> None:
        for app in self.apps:
            if app.running and app.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(app.process.pid, signal.SIGKILL)
                app.process.wait(60)


@contextlib.contextmanager
def run_in(directory: Path) -> Iterator[Run]:
    """A run whose applications end with it."""
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(directory)
    try:
        yield run
    finally:
        run.end()
    if run.checked:
        keep(run.directory)


def assert_complete(report: Report) -> None:
    """Nothing lost, doubled, reordered, made up or pending."""
    assert report.verdict == "complete", report.text()
    messages = report.as_dict()["messages"]
    for kind in ("lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending"):
        assert messages[kind] == 0, report.text()
