"""Interrupts a call at every point at which Python may run a signal handler, one after the other.

CPython checks for signals after calls, at backward jumps, and at the start of functions. Tracing stops before every
instruction; a handler can run, and an exception can be raised, at instructions that follow such a place in their
function. (If the call is the last thing inside a ``with`` or ``try``, a real exception still belongs to that block, and
one raised by tracing does not. Such points are left out.)
"""

from __future__ import annotations

import dis
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

CHECKED = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}

LOCKING = (queue.__file__, threading.__file__)
"""Functions written in Python that hold locks: their users can be interrupted meanwhile."""

_names: dict[CodeType, dict[int, tuple[str, int | None]]] = {}


def _instructions(code: CodeType) -> dict[int, tuple[str, int | None]]:
    """By offset: the instruction's name, and the handler of exceptions that it raises."""
    found = _names.get(code)
    if found is None:
        table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
        found = _names[code] = {
            at.offset: (at.opname, next((e.target for e in table if e.start <= at.offset < e.end), None))
            for at in dis.get_instructions(code)
        }
    return found


class Interruption:
    """Call `action` at the `number`-th point of a call, once. `everywhere`: at every instruction, not only where an
    exception can be raised."""

    def __init__(self, number: int, action: Callable[[], object], everywhere: bool = False) -> None:
        self.number = number
        self.happened = False
        self._action = action
        self._everywhere = everywhere
        self._before: dict[FrameType, tuple[str, int | None]] = {}

    def __enter__(self) -> Interruption:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._before.clear()

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if "reliamsg" not in file.replace("tests", "") and file not in LOCKING:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "opcode" or self.happened:
            return self._step
        now = _instructions(frame.f_code)[frame.f_lasti]
        before = self._before.get(frame)
        self._before[frame] = now
        if self._everywhere or (before is not None and before[0] in CHECKED and before[1] == now[1]):
            self.number -= 1
            if self.number < 0:
                self.happened = True
                self._action()
        return self._step


def points(
    call: Callable[[], object],
    action: Callable[[], object],
    everywhere: bool = False,
    prepare: Callable[[], object] = lambda: None,
) -> Iterator[bool]:
    """Make the call repeatedly, after `prepare`, interrupted at each of its points in turn; yields after each call
    whether the interruption ended it."""
    number = 0
    while True:
        prepare()
        interruption = Interruption(number, action, everywhere)
        ended = False
        try:
            with interruption:
                call()
        except KeyboardInterrupt:
            ended = True
        if not interruption.happened:
            return
        yield ended
        number += 1


def interrupt() -> None:
    raise KeyboardInterrupt
