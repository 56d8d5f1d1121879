"""The phases of a stream at a group, and the transitions between them.

Rows are phases, columns are inputs:

- ``next``: the next message in order arrives, with everything up to the highest that has arrived;
- ``ahead``: a message arrives beyond one that is missing;
- ``announced``: the producer announces a message that has not arrived, and it does not arrive soon;
- ``raise``, ``hold``, ``skip``: ``gap_timeout`` expires, under each setting of ``on_gap``;
- ``accept``: the application or an operator accepts the gap at the head;
- ``fail``: a message has exhausted its delivery attempts, and ``on_dead_letter`` is "halt";
- ``takeover``: this inbox takes over from another one, which had settled everything that has arrived here.

=========  =========  =========  =========  =========  =========  =========  =========  =========  =========
phase      next       ahead      announced  raise      hold       skip       accept     fail       takeover
=========  =========  =========  =========  =========  =========  =========  =========  =========  =========
NEW        FLOWING    JOINING    GAP        NEW        NEW        NEW        NEW        HALTED     FLOWING
JOINING    FLOWING    JOINING    GAP        FLOWING    FLOWING    FLOWING    JOINING    HALTED     FLOWING
FLOWING    FLOWING    GAP        GAP        FLOWING    FLOWING    FLOWING    FLOWING    HALTED     FLOWING
GAP        FLOWING    GAP        GAP        EXPIRED    HELD       FLOWING    FLOWING    HALTED     FLOWING
EXPIRED    FLOWING    EXPIRED    EXPIRED    EXPIRED    -          -          FLOWING    HALTED     FLOWING
HELD       FLOWING    HELD       HELD       -          HELD       -          FLOWING    HALTED     FLOWING
HALTED     HALTED     HALTED     HALTED     HALTED     HALTED     HALTED     HALTED     HALTED     HALTED
=========  =========  =========  =========  =========  =========  =========  =========  =========  =========

``-``: the stream cannot be in this phase under this setting. A test tries every pair.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Phase"]


class Phase(Enum):
    """A stream's progress, and what blocks it."""

    NEW = "new"
    """It has not joined, and none of its messages has arrived."""
    JOINING = "joining"
    """It has not joined: messages before its first delivery may still arrive."""
    FLOWING = "flowing"
    """No message is known to be missing before the next one."""
    GAP = "gap"
    """Missing messages block it. The gap's clock starts once everything before them is settled."""
    EXPIRED = "expired"
    """``gap_timeout`` has expired, and the application must decide."""
    HELD = "held"
    """``gap_timeout`` has expired, and the stream waits until the messages arrive or are accepted as lost."""
    HALTED = "halted"
    """A message has exhausted its delivery attempts, and no further message is delivered."""
