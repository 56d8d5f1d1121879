"""The phases of a stream at a group, and how it comes from one to another.

A row is a phase, a column is what happens in it:

- ``next``: what comes next in order arrives, up to whatever has arrived beyond it;
- ``ahead``: something arrives beyond a message that is missing;
- ``told``: the producer's status tells of a message that has not arrived, and it does not arrive soon;
- ``ask``, ``hold``, ``skip``: ``gap_timeout`` passes, under each of these policies for gaps;
- ``accept``: the application or an operator accepts the gap at the head;
- ``fail``: a message has used up its deliveries, and is to halt its stream;
- ``taken``: this inbox takes the place of another one, which had settled all that has arrived here.

========  ========  ========  ========  ========  ========  ========  ========  ========  ========
phase     next      ahead     told      ask       hold      skip      accept    fail      taken
========  ========  ========  ========  ========  ========  ========  ========  ========  ========
NEW       FLOWING   JOINING   GAP       NEW       NEW       NEW       NEW       HALTED    FLOWING
JOINING   FLOWING   JOINING   GAP       FLOWING   FLOWING   FLOWING   JOINING   HALTED    FLOWING
FLOWING   FLOWING   GAP       GAP       FLOWING   FLOWING   FLOWING   FLOWING   HALTED    FLOWING
GAP       FLOWING   GAP       GAP       EXPIRED   HELD      FLOWING   FLOWING   HALTED    FLOWING
EXPIRED   FLOWING   EXPIRED   EXPIRED   EXPIRED   -         -         FLOWING   HALTED    FLOWING
HELD      FLOWING   HELD      HELD      -         HELD      -         FLOWING   HALTED    FLOWING
HALTED    HALTED    HALTED    HALTED    HALTED    HALTED    HALTED    HALTED    HALTED    HALTED
========  ========  ========  ========  ========  ========  ========  ========  ========  ========

``-``: the policy does not lead to this phase. A test tries every pair.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Phase"]


class Phase(Enum):
    """What a stream waits for."""

    NEW = "new"
    """It is not joined, and nothing of it has arrived."""
    JOINING = "joining"
    """It is not joined: what comes before its first delivery may still arrive."""
    FLOWING = "flowing"
    """Nothing is missing before what comes next, as far as is known."""
    GAP = "gap"
    """Messages that are missing hold it up. The gap's clock runs once all before them is settled."""
    EXPIRED = "expired"
    """They have had their time, and the application is to decide."""
    HELD = "held"
    """They have had their time, and it waits until they arrive or are accepted as lost."""
    HALTED = "halted"
    """A message has used up its deliveries, and nothing more is delivered."""
