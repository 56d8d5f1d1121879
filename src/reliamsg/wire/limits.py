"""Bounds on everything that comes from a network or a file, checked before anything is allocated."""

from __future__ import annotations

MAX_SEQ = 2**63 - 2**32
"""Sequence numbers, epochs and timestamps are at most this. What is counted on from them, such as the position
behind the last number and the marks that are reserved ahead of it, still fits SQLite's largest integer, 2**63 - 1."""

MAX_EPOCH = MAX_SEQ - 2**32
"""Epochs are below this: a producer whose groups know of a later epoch must have room to move above it."""

MAX_INCARNATION = 2**64 - 1

MAX_PARTITION = 65535

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest broker message that is looked at."""

MAX_ENVELOPE_BYTES = 2048

MAX_BATCH_MESSAGES = 65_536
"""Most messages in one batch."""

MAX_PLAIN_HEADERS = 256
"""Most headers of a message in the plain form, with those that brokers add on the way."""

MAX_STORED_HEADERS = 1_024
"""Most headers of one message that is read from a file of our own. Messages of ordinary clients keep what headers
they came with, within the limits of the transports, which are lower."""

MAX_CONTROL_BYTES = 64 * 1024
"""Largest control frame. One stream at all of the limits below still fits into one."""

MAX_CONTROL_STREAMS = 1_000
"""Most streams in one control frame."""

MAX_CHAIN = 1_000
"""Most epochs of a stream that a status tells."""

MAX_SPANS = 300
"""Most ranges of each kind of one stream in a control frame."""

MAX_NAMED_GROUPS = 100
"""Most groups that a status says of a stream since when they count."""

MAX_NONCE_BYTES = 32

CHALLENGE_BYTES = 16
"""Length of a nonce that wants to be answered. Other nonces make their frames differ, and are not."""

MAX_ANSWERED = 3
"""Most nonces that a status answers."""
