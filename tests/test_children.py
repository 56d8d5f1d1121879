"""A child process that hangs says where."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.children import ended, run_child

HANGS = """
import sys, threading, time

def never_ends():
    begun.set()
    time.sleep(1000)

def waits():
    print("begun", file=sys.stderr, flush=True)
    print("waiting", flush=True)
    time.sleep(1000)

begun = threading.Event()
threading.Thread(target=never_ends).start()
begun.wait()
waits()
"""


def test_a_hang_has_the_stacks_of_all_threads() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        with pytest.raises(
            AssertionError, match=r"(?s)did not end within 0 s.*begun.*in never_ends.*in waits"
        ):
            ended(child, timeout=0.1)


def test_what_a_failed_program_wrote_is_told() -> None:
    code = "import sys; print(sys.stdin.read()); sys.exit('it failed')"
    with pytest.raises(AssertionError, match=r"(?s)ended with 1.*given.*it failed"):
        run_child([sys.executable, "-c", code], stdin="given", text=True, check=True)
