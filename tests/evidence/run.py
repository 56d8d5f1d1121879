"""Collect the evidence, in as many sittings as it takes: ``make evidence [ONLY=seeds,fuzz] [MINUTES=30] [JOBS=2]``.

Everything is run in chunks. What ended is kept in ``PART/HASH`` below ``build/evidence`` or the directory that the
environment variable ``EVIDENCE`` names, HASH being that of the sources that decide the chunk's outcome
(:mod:`tests.evidence.parts`): as long as these stay the same, a later call goes on where an earlier one was ended, with
Ctrl-C, ``kill -9`` or by ``MINUTES``. A chunk that did not end counts for nothing and is run again. A chunk that failed
stays, with the commands that repeat what failed, until the sources change; to run it again all the same, delete its
file.

With ``SHARE=1/2``, only every second chunk is run; another machine runs the others with ``SHARE=2/2``. Copy the files
of both into one directory, or let both write to it.

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
from dataclasses import dataclass
from pathlib import Path

from tests.evidence.parts import PARTS, ROOT, Chunk, Data, Part, commit, parts
from tests.evidence.state import Busy, Record, State, alone
from tests.evidence.table import PAGE, NotComplete, problems_of, table, written

__all__ = ["Sitting", "main"]

_UNFINISHED = {-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP, 128 + signal.SIGINT}
"""How a command ends that somebody ended."""
OUTPUT_CHARACTERS = 4_000
"""How much of the output of a chunk that failed is kept."""


@dataclass(frozen=True)
class Limits:
    """What a sitting may do."""

    jobs: int = 2
    """Processes side by side."""
    minutes: float | None = None
    """Nothing is begun that would take longer."""
    share: tuple[int, int] = (1, 1)
    """Which part of the chunks is run, and of how many."""


class Sitting:
    """Runs what remains, until it is done, its time is over or it is interrupted."""

    def __init__(self, states: Sequence[State], root: Path, limits: Limits, lock: int) -> None:
        """`lock`: the descriptor from :func:`alone`."""
        self._states = list(states)
        self._root = root
        self._held = lock
        self._jobs, self._share = limits.jobs, limits.share
        self._until = None if limits.minutes is None else time.monotonic() + 60 * limits.minutes
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

    def _take(self, states: Sequence[State]) -> tuple[State, list[Chunk], subprocess.Popen[bytes]] | None:
        """The next chunk, or some that are run together, begun."""
        with self._lock:
            for state in states:
                if self._stopped or state.part.name in self._unavailable:
                    continue
                chunks = self._next(state)
                if chunks:
                    self._begun.update((state.part.name, chunk.name) for chunk in chunks)
                    joined = state.part.join(chunks) if state.part.join and len(chunks) > 1 else None
                    with state.log(chunks[0]).open("wb") as log:
                        process = subprocess.Popen(
                            joined or chunks[0].command,
                            cwd=self._root,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,  # Ctrl-C comes to us alone, who then end it
                            pass_fds=(self._held,),
                        )
                    self._running[process] = state
                    return state, chunks, process
        return None

    def _next(self, state: State) -> list[Chunk]:
        """What is to be run next, as much as there is time for."""
        number, of = self._share
        mine = {chunk.name for chunk in state.part.chunks[number - 1 :: of]}
        waiting = [
            chunk
            for chunk in state.remaining()
            if chunk.name in mine and (state.part.name, chunk.name) not in self._begun
        ]
        most = min(state.part.together, -(-len(waiting) // self._jobs))
        if self._until is not None:
            most = min(most, int((self._until - time.monotonic()) / state.seconds_each()))
        return waiting[: max(most, 0)]

    def _one(self, state: State, chunks: list[Chunk], process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        status = process.wait()
        seconds = (time.monotonic() - began) / len(chunks)
        records = self._judge(state, chunks, status, seconds)
        with self._lock:
            del self._running[process]
            if self._stopped:
                return
            for chunk, record in zip(chunks, records, strict=True):
                self._add(state, chunk, status, record)

    def _add(self, state: State, chunk: Chunk, status: int, record: Record | str) -> None:
        name = f"{state.part.name} {chunk.name}"
        if isinstance(record, str):
            self.unfinished.append(f"{name}: {record}")
            if status == state.part.unavailable:
                self._unavailable.add(state.part.name)
            _say(f"{name:48} does not count: {record}")
            return
        state.add(record)
        _say(f"{name:48} {'ok' if record.ok else 'FAILED':8} {record.seconds:7.0f} s")
        for line in record.replay:
            _say(f"    again: {line}")

    def _judge(self, state: State, chunks: list[Chunk], status: int, seconds: float) -> list[Record | str]:
        """What became of each; or why it does not count."""
        part, log = state.part, state.log(chunks[0])
        if status in _UNFINISHED:
            return ["it was ended before it was done"] * len(chunks)
        if status == part.unavailable:
            return [f"this machine lacks something: see {log}"] * len(chunks)
        output = log.read_text(errors="replace")
        if len(chunks) == 1:
            return [self._judge_one(state, chunks[0], output, seconds, log, status == 0)]
        # The status is about all of them together: each must say that it is ok, and if all do, so must the status.
        outputs = part.split(output)
        read = {chunk.name: part.read(outputs.get(chunk.name, "")) for chunk in chunks}
        plausible = status == 0 or not all(data and data["ok"] is True for data in read.values())
        return [
            self._judge_one(state, chunk, outputs.get(chunk.name, ""), seconds, log, plausible)
            for chunk in chunks
        ]

    def _judge_one(
        self, state: State, chunk: Chunk, output: str, seconds: float, log: Path, plausible: bool
    ) -> Record | str:
        """`plausible`: the exit status does not contradict an output that says that all is well."""
        if not state.fits(chunk):
            return "the sources were changed meanwhile"
        data: Data = state.part.read(output) or {"ok": False, "unreadable": True}
        ok = plausible and data["ok"] is True
        replay = [] if ok else chunk.replay(data, output) or [" ".join(chunk.command)]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Record(
            state.part.name, chunk.name, ok, list(chunk.command), replay, {**data, "ok": ok}, seconds, now,
            commit(self._root), str(log), "" if ok else output[-OUTPUT_CHARACTERS:],
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
        left = len(remaining) * state.seconds_each() / (1 if state.part.alone else jobs)
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


def _share(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    if not 1 <= number <= of:
        raise ValueError(text)
    return number, of


def main(
    arguments: Sequence[str] | None = None, every: Sequence[Part] | None = None, root: Path = ROOT
) -> int:
    """See the module. `every`: the parts that there are."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence.run", description=__doc__)
    parser.add_argument("--only", default="", help=f"parts, separated by commas, of {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, help="begin nothing that would take longer than these")
    parser.add_argument("--jobs", type=int, default=2, help="chunks side by side")
    parser.add_argument("--share", type=_share, default=(1, 1), metavar="I/N", help="the I-th of N parts")
    parser.add_argument(
        "--records",
        type=Path,
        default=os.environ.get("EVIDENCE") or root / "build" / "evidence",
        metavar="DIR",
        help="where results are kept; by default $EVIDENCE, else build/evidence",
    )
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
    records = root / options.records
    states = [State(part, root, records) for part in chosen]
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
            sitting = Sitting(states, root, Limits(options.jobs, options.minutes, options.share), lock)
            try:
                sitting.run()
            except KeyboardInterrupt:
                _say("interrupted; what had ended is kept")
    except Busy as error:
        _say(str(error))
        return 2
    # The sources may have changed meanwhile: what stands for them now is what counts.
    status = report([State(state.part, root, records) for state in states], options.jobs)
    return status or (2 if sitting.unfinished else 0)


if __name__ == "__main__":
    # A request to end is one, from whomever: what runs is ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
