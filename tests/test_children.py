"""A child process that hangs says where."""

from __future__ import annotations

import sys

import pytest

from tests.children import run_child

HANGS = """
import threading, time

def never_ends():
    print("begun", flush=True)
    time.sleep(1000)

threading.Thread(target=never_ends).start()
"""


def test_a_hang_has_the_stacks_of_all_threads() -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)did not end within 2 s.*begun.*in never_ends.*in _shutdown"
    ):
        run_child([sys.executable, "-c", HANGS], timeout=2, text=True)


def test_what_a_failed_program_wrote_is_told() -> None:
    code = "import sys; print(sys.stdin.read()); sys.exit('it failed')"
    with pytest.raises(AssertionError, match=r"(?s)ended with 1.*given.*it failed"):
        run_child([sys.executable, "-c", code], stdin="given", text=True, check=True)
