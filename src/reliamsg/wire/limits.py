"""Bounds on everything that comes from a network or a file, checked before anything is allocated."""

from __future__ import annotations

MAX_SEQ = 2**63 - 2**32
"""Sequence numbers, epochs and timestamps are at most this. What is counted on from them, such as the position
behind the last number and the marks that are reserved ahead of it, still fits SQLite's largest integer, 2**63 - 1."""

MAX_INCARNATION = 2**64 - 1

MAX_PARTITION = 65535

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest broker message that is looked at."""

MAX_ENVELOPE_BYTES = 2048

MAX_BATCH_MESSAGES = 65_536
"""Most messages in one batch."""
