"""Detects in a child process that an object was created before fork().

A producer or consumer has a lock, a file and threads that a child does not have. Comparing process ids would need a
system call for each message; a counter of forks costs nothing.
"""

from __future__ import annotations

import os

__all__ = ["generation"]

generation: int = 0
"""The number of forks between the first Python process and this one. Read it as an attribute of the module: it
changes."""


def _forked() -> None:
    global generation  # noqa: PLW0603 - the purpose of the module
    generation += 1


os.register_at_fork(after_in_child=_forked)
