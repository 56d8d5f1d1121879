"""Limits for all data from a network or a file, checked before memory is allocated."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_SEQ = 2**63 - 2**32
"""The maximum of sequence numbers, epochs and timestamps. Numbers derived from them, such as the position behind the
last number and marks reserved ahead of it, still fit into SQLite's largest integer, 2**63 - 1."""

MAX_EPOCH = MAX_SEQ - 2**32
"""Epochs are below this, so that a producer whose groups know a later epoch can move above it."""

MAX_INCARNATION = 2**64 - 1

MAX_PARTITION = 65535

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Larger broker messages are not processed."""

MAX_ENVELOPE_BYTES = 2048

MAX_BATCH_MESSAGES = 65_536
"""The maximum number of messages in a batch."""

MAX_PLAIN_HEADERS = 256
"""The maximum number of headers of a message in the plain format, including headers that brokers add."""

MAX_STORED_HEADERS = 1_024
"""The maximum number of headers of a message from a local file. Messages of other clients keep their headers, within
the limits of the transports, which are lower."""

MAX_CONTROL_BYTES = 64 * 1024
"""The maximum size of a control frame. One stream at all limits below still fits."""

MAX_CONTROL_STREAMS = 1_000
"""The maximum number of streams in a control frame."""

MAX_CHAIN = 1_000
"""The maximum number of epochs of a stream in a status."""

MAX_SPANS = 300
"""The maximum number of ranges of each kind for a stream in a control frame."""

MAX_NAMED_GROUPS = 100
"""The maximum number of named groups of a stream in a status."""

MAX_NONCE_BYTES = 32

CHALLENGE_BYTES = 16
"""Length of a nonce that requests an answer. Nonces of other lengths only make frames unique."""

MAX_ANSWERED = 3
"""The maximum number of nonces that a status answers."""

# msgspec checks these ranges while it decodes.

Partition = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION)]
Epoch = Annotated[int, msgspec.Meta(ge=1, lt=MAX_EPOCH)]
Incarnation = Annotated[int, msgspec.Meta(ge=0)]
"""At most MAX_INCARNATION, the maximum of MessagePack."""
Seq = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQ)]
Next = Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ + 1)]
"""The number after a number that may be 0."""
