"""Knowing in a child process that an object was made before fork().

A producer or consumer holds a lock, a file and threads that a child does not have. Asking for the process id on every
call would be a system call for each message; counting forks costs nothing.
"""

from __future__ import annotations

import os

__all__ = ["generation"]

generation = 0
"""How many forks lie between the first Python process and this one. Read it as an attribute: it changes."""


def _forked() -> None:
    global generation  # noqa: PLW0603 - this is what the module is for
    generation += 1


os.register_at_fork(after_in_child=_forked)
