"""Collect the evidence, in as many sittings as it takes: ``make evidence [ONLY=seeds,fuzz] [MINUTES=30] [JOBS=2]``.

Everything is run in chunks. What ended is kept in ``build/evidence/PART/HASH``, HASH being that of the sources that
decide the outcome (:mod:`tests.evidence.parts`): as long as these stay the same, a later call goes on where an earlier
one was ended, with Ctrl-C, ``kill -9`` or by ``MINUTES``. A chunk that did not end counts for nothing and is run
again. A chunk that failed stays, with the commands that repeat what failed, until the sources change; to run it again
all the same, delete its file.

Prints what is done, what failed and what remains, with an estimate of the time. ``--write`` puts the table into
``docs/reference/evidence.md``. Exit status: 0 when all is done and nothing failed; 1 when something failed; 2 when
something remains, or for wrong arguments.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.evidence.parts import PARTS, ROOT, Chunk, Data, Part, commit, parts
from tests.evidence.state import Busy, Record, State, alone
from tests.evidence.table import PAGE, NotComplete, problems_of, table, written

__all__ = ["Sitting", "main"]

_UNFINISHED = {-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP, 128 + signal.SIGINT}
"""How a command ends that somebody ended."""


class Sitting:
    """Runs what remains, until it is done, its time is over or it is interrupted."""

    def __init__(
        self, states: Sequence[State], root: Path, jobs: int, minutes: float | None, lock: int
    ) -> None:
        """`lock`: the descriptor from :func:`alone`."""
        self._states = list(states)
        self._root = root
        self._held = lock
        self._jobs = jobs
        self._until = None if minutes is None else time.monotonic() + 60 * minutes
        self._lock = threading.Lock()
        self._running: dict[subprocess.Popen[bytes], State] = {}
        self._begun: set[tuple[str, str]] = set()
        self._unavailable: set[str] = set()
        self._stopped = False
        self.unfinished: list[str] = []
        """Why chunks don't count that were begun."""

    def run(self) -> None:
        """Parts that need the machine for themselves come first, then the others, `jobs` chunks side by side."""
        for exclusive in (True, False):
            states = [state for state in self._states if state.part.alone is exclusive]
            workers = [
                threading.Thread(target=self._work, args=(states,))
                for _ in range(1 if exclusive else self._jobs)
            ]
            for worker in workers:
                worker.start()
            try:
                for worker in workers:
                    while (
                        worker.is_alive()
                    ):  # a signal that comes just before a wait without end is not heard
                        worker.join(0.5)
            except BaseException:
                self._end()
                raise

    def _end(self) -> None:
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)

    def _work(self, states: Sequence[State]) -> None:
        while (taken := self._take(states)) is not None:
            self._one(*taken)

    def _take(self, states: Sequence[State]) -> tuple[State, Chunk, subprocess.Popen[bytes]] | None:
        """The next chunk, begun."""
        with self._lock:
            for state in states:
                if state.part.one_at_a_time and state in self._running.values():
                    continue
                left = float("inf") if self._until is None else self._until - time.monotonic()
                if self._stopped or state.part.name in self._unavailable or left < state.seconds_each():
                    continue
                for chunk in state.remaining():
                    if (state.part.name, chunk.name) in self._begun:
                        continue
                    self._begun.add((state.part.name, chunk.name))
                    with state.log(chunk).open("wb") as log:
                        process = subprocess.Popen(
                            chunk.command,
                            cwd=self._root,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,  # Ctrl-C comes to us alone, who then end it
                            pass_fds=(self._held,),
                        )
                    self._running[process] = state
                    return state, chunk, process
        return None

    def _one(self, state: State, chunk: Chunk, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        status = process.wait()
        seconds = time.monotonic() - began
        record = self._judge(state, chunk, status, seconds)
        with self._lock:
            del self._running[process]
            if self._stopped:
                return
            name = f"{state.part.name} {chunk.name}"
            if isinstance(record, str):
                self.unfinished.append(f"{name}: {record}")
                if status == state.part.unavailable:
                    self._unavailable.add(state.part.name)
                _say(f"{name:48} does not count: {record}")
                return
            state.add(record)
            _say(f"{name:48} {'ok' if record.ok else 'FAILED':8} {seconds:7.0f} s")
            for line in record.replay:
                _say(f"    again: {line}")

    def _judge(self, state: State, chunk: Chunk, status: int, seconds: float) -> Record | str:
        """What became of it; or why it does not count."""
        part, log = state.part, state.log(chunk)
        if status in _UNFINISHED:
            return "it was ended before it was done"
        if status == part.unavailable:
            return f"this machine lacks something: see {log}"
        if not state.fits():
            return "the sources were changed meanwhile"
        output = log.read_text(errors="replace")
        data: Data = part.read(output) or {"ok": False, "unreadable": True}
        ok = status == 0 and data["ok"] is True
        replay = [] if ok else chunk.replay(data, output) or [" ".join(chunk.command)]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Record(
            part.name, chunk.name, ok, list(chunk.command), replay, {**data, "ok": ok}, seconds, now,
            commit(self._root), str(log),
        )  # fmt: skip


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To a command and all that it started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _say(line: str) -> None:
    print(line, flush=True)


def report(states: Sequence[State], jobs: int) -> int:
    """Print where it stands; the exit status."""
    _say(f"{'part':10} {'sources':17} {'done':>12} {'failed':>7} {'left':>9}")
    seconds, failed = 0.0, False
    for state in states:
        records, remaining = state.records(), state.remaining()
        bad = [record for record in records.values() if not record.ok]
        left = (
            len(remaining)
            * state.seconds_each()
            / (1 if state.part.alone or state.part.one_at_a_time else jobs)
        )
        seconds += left
        done = f"{len(records)} of {len(state.part.chunks)}"
        _say(f"{state.part.name:10} {state.hash:17} {done:>12} {len(bad):>7} {_duration(left):>9}")
        for record in bad:
            _say(f"  FAILED {record.chunk}: see {record.log}")
            for line in record.replay[:10]:
                _say(f"    again: {line}")
        lacking = [] if remaining else problems_of(state)
        for problem in lacking:
            _say(f"  LACKING {problem}")
        failed = failed or bool(bad or lacking)
    remain = any(state.remaining() for state in states)
    words = (
        "RED: something failed" if failed else "incomplete" if remain else "GREEN: all done, nothing failed"
    )
    _say(f"{words}; about {_duration(seconds)} of work left" if remain else words)
    return 1 if failed else 2 if remain else 0


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02}" if minutes >= 60 else f"{minutes} min"


def main(
    arguments: Sequence[str] | None = None, every: Sequence[Part] | None = None, root: Path = ROOT
) -> int:
    """See the module. `every`: the parts that there are."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.run", description=__doc__)
    parser.add_argument("--only", default="", help=f"parts, separated by commas, of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, help="begin nothing that would take longer than these")
    parser.add_argument("--jobs", type=int, default=2, help="chunks side by side")
    parser.add_argument("--status", action="store_true", help="run nothing, only print what is done")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}, if all is done")
    parser.add_argument("--incomplete", action="store_true", help="with --write: also if not, marked as such")
    options = parser.parse_args(arguments)
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - {part.name for part in every or ()} - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if options.jobs < 1:
        parser.error("--jobs: at least 1")
    chosen = [part for part in every or parts(root=root) if not only or part.name in only]
    states = [State(part, root) for part in chosen]
    if options.write:
        if only:
            parser.error("--write is about all parts")
        page = root / PAGE
        try:
            page.write_text(written(page.read_text(), table(states, incomplete=options.incomplete)))
        except NotComplete as error:
            _say(f"not written: {error}")
        return report(states, options.jobs)
    if options.status:
        return report(states, options.jobs)
    try:
        with alone(root) as lock:
            sitting = Sitting(states, root, options.jobs, options.minutes, lock)
            try:
                sitting.run()
            except KeyboardInterrupt:
                _say("interrupted; what had ended is kept")
    except Busy as error:
        _say(str(error))
        return 2
    # The sources may have changed meanwhile: what stands for them now is what counts.
    status = report([State(state.part, root) for state in states], options.jobs)
    return status or (2 if sitting.unfinished else 0)


if __name__ == "__main__":
    # A request to end is one, from whomever: what runs is ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
