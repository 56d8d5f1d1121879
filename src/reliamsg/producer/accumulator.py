"""Where the application's messages wait for their commit.

It has a lock of its own: publishing threads never wait for a site's I/O thread, and the writer takes a whole batch at
once. No thread that holds the engine's lock waits for this one (see `reliamsg.producer.admission`).

A publishing thread may be interrupted between any two instructions: by a signal handler (or finalizer) that publishes
as well, or by an exception such as ``KeyboardInterrupt``. So the lock is reentrant, and a thread that works on what the
lock guards also holds a *token*: the number of bytes that are left of those reserved for the current batch. Taking and
returning the token are single operations.

- A thread that finds the lock free and the token missing knows that an earlier one was interrupted for good. It
  continues without what was left of the reservation; all messages of the batch are whole.
- A thread that already owns the lock before it takes it has interrupted itself, and what it interrupted will continue.
  It touches nothing, and puts its message into a batch of its own, which comes after what was published before and
  before what comes next.

The writer is woken, with the lock held, before a message is put where it will look: so no interruption comes between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from reliamsg.errors import FatalError, OutboxFull, ReliamsgError
from reliamsg.keys import MAX_KEY_ID_BYTES
from reliamsg.producer.admission import Admission
from reliamsg.producer.commit import Commit, Content, Run
from reliamsg.producer.confirmations import ConfirmationTracker
from reliamsg.producer.receipt import Receipt
from reliamsg.producer.state import Shared

__all__ = ["Accumulator", "CommitBatch"]

COMMIT_BYTES = 8 * 1024 * 1024
"""Beyond this another batch begins: while a large one is stored nothing is read for sites that are behind."""
LEASE_BYTES = 64 * 1024
"""Reserved at a time while there is room, so that few messages have to ask for it."""
SMALL_LEASE_BYTES = 4 * 1024
"""The same where there is little room."""
MESSAGE_OVERHEAD = 64
"""What a message counts for beside its content, in bytes. It takes up to 8 in its batch; the rest covers its share of
the envelope, if it shares that with at least ENVELOPE_SHARES others."""
HEADER_OVERHEAD = 6
"""What a key, or a header, takes beside its text."""
ENVELOPE_BYTES = 140
"""Most that a batch takes beside its messages, its producer's name, topic and signature."""
SIGNATURE_BYTES = MAX_KEY_ID_BYTES + 40
MAX_TOPIC_BYTES = 100
ENVELOPE_SHARES = 32


class CommitBatch:
    """Messages that are published between two commits, and share the next one."""

    __slots__ = ("commit", "leased", "runs", "wall_us")

    def __init__(self, tracker: ConfirmationTracker) -> None:
        self.commit: Commit = Commit(tracker)
        self.runs: list[Run] = []
        """In the order of publishing."""
        self.leased: int = 0
        """About how many bytes are reserved for it."""
        self.wall_us: int = 0
        """When the first message was published, in µs since 1970."""

    @property
    def count(self) -> int:
        """The number of messages."""
        count = 0
        for run in list(self.runs):
            count += len(run.bodies)
        return count

    def finish(self, error: ReliamsgError | None = None) -> None:
        """The outcome of the commit is known: wake all threads that wait for it, and release the messages."""
        runs, self.runs = self.runs, []
        for run in runs:
            run.bodies.clear()
        self.commit.finish(error)


class Accumulator:
    """Accepts messages from any thread; the writer takes them in batches."""

    def __init__(
        self, shared: Shared, admission: Admission, tracker: ConfirmationTracker,
        explain: Callable[[], OutboxFull],
    ) -> None:  # fmt: skip
        """`explain` says why there is no room."""
        settings = shared.settings
        self.refusal: FatalError | None = None
        """Why nothing more is accepted."""
        self._clock, self._wake = shared.clock, shared.wake
        self._admission, self._tracker, self._explain = admission, tracker, explain
        self._envelope = ENVELOPE_BYTES + len(shared.producer_id.encode())
        if settings.keys is not None:
            self._envelope += SIGNATURE_BYTES
        # Batches are cut by count, and by size: two that follow each other hold more than max_batch_bytes. So messages
        # of that size may take two envelopes more, and as many as max_batch_messages one.
        widest = self._envelope + MAX_TOPIC_BYTES
        self._each = MESSAGE_OVERHEAD
        self._share = (2 * widest, settings.max_batch_bytes)
        """Envelopes may take this many bytes, for this many bytes of messages."""
        if min(settings.max_batch_messages, settings.max_batch_bytes // widest) < ENVELOPE_SHARES:
            self._each += widest  # one for each message
            self._share = (0, 1)
        self._lock = threading.RLock()
        self._token = [0]
        """The bytes that are left of the reservation for the last batch; nothing while a thread works on it."""
        self._batches = deque([CommitBatch(tracker)])
        """Oldest first. All but the last are complete."""
        self._batch = self._batches[0]
        """The last one, for which the token's bytes are."""
        self._no_run = Run(self._batch.commit, Content("", (), None, None, 0))
        """Nothing is ever appended to it, since no topic has its name."""
        self._run = self._no_run
        """Where the next message goes, if it is of this topic and has neither key nor headers."""
        self._aside: deque[CommitBatch] = deque()
        """Batches of threads that interrupted themselves."""
        self._storing: CommitBatch | None = None

    def accept_one(self, topic: str, body: bytes, block: float = 0.0) -> Receipt:
        """Accept one message without key and headers, the usual case; waits at most `block` seconds for room."""
        size = len(body) + self._each
        token = self._token
        with self._lock:
            try:
                left = token.pop()
            except IndexError:
                pass
            else:
                run = self._run
                if size <= left and run.topic == topic and not self._aside:
                    bodies = run.bodies
                    receipt = Receipt(run, len(bodies), 1)
                    bodies.append(body)
                    token.append(left - size)
                    return receipt
                token.append(left)
        return self._accept(Content(topic, (body,), None, None, size), block)

    def accept(self, content: Content, block: float = 0.0) -> Receipt:
        """Accept messages, all or none; waits at most `block` seconds for room. Their size is that of bodies, keys and
        headers."""
        return self._accept(self._sized(content), block)

    def accept_now(self, content: Content) -> Receipt | None:
        """The same without waiting; None where there is no room. For event loops, which wait for room by themselves:
        :meth:`accept` says why there is none."""
        return self._try(self._sized(content))

    def _sized(self, content: Content) -> Content:
        each = self._each + HEADER_OVERHEAD * ((content.key is not None) + len(content.headers or ()))
        return content._replace(size=content.size + each * len(content.bodies))

    def _accept(self, content: Content, block: float) -> Receipt:
        deadline = None
        while (receipt := self._try(content)) is None:
            deadline = self._wait(
                self._with_envelopes(content.size + self._envelope_of(content.topic)), block, deadline
            )
        return receipt

    def _try(self, content: Content) -> Receipt | None:
        if self._lock._is_owned():  # type: ignore[attr-defined]  # the caller has interrupted its own thread here
            return self._put_aside(content)
        with self._lock:
            return self._place(content)

    def _place(self, content: Content) -> Receipt | None:
        """Put messages into the last batch; None where there is no room. With the lock held, unless the caller has
        interrupted itself."""
        if self.refusal is not None:
            raise self.refusal
        left = self._take_token()
        batch, run = self._batch, self._run
        plain = content.key is None and not content.headers and len(content.bodies) == 1
        fits = plain and run.topic == content.topic
        need = content.size if fits else content.size + self._envelope_of(content.topic)
        if need > left:
            left = self._lease(batch, need, left)
        if need > left:
            self._token.append(left)
            return None
        self._wake()
        if fits:
            receipt = Receipt(run, len(run.bodies), 1)
            run.bodies.append(content.bodies[0])
        else:
            self._run = self._no_run  # first: what comes after this must not go to a run before it
            run = Run(batch.commit, content)
            receipt = Receipt(run, 0, len(run.bodies))
            if not batch.runs:
                batch.wall_us = self._clock.wall_us()
            batch.runs.append(run)
            if plain:
                self._run = run
        self._token.append(left - need)
        return receipt

    def _put_aside(self, content: Content) -> Receipt | None:
        """The same for a thread that has interrupted itself: in a batch of its own. One that stays empty is dropped
        later."""
        if self.refusal is not None:
            raise self.refusal
        batch = CommitBatch(self._tracker)
        self._aside.append(batch)
        size = self._with_envelopes(content.size + self._envelope_of(content.topic))
        if not self._admission.reserve(batch, size):
            return None
        self._wake()
        run = Run(batch.commit, content)
        batch.wall_us = self._clock.wall_us()
        batch.runs.append(run)
        return Receipt(run, 0, len(run.bodies))

    # -- room, with the lock held -----------------------------------------------------------------------------

    def _take_token(self) -> int:
        """The token, with everything in order: `_batch` is the last batch, and takes more."""
        try:
            left = self._token.pop()
        except IndexError:  # a thread was interrupted for good
            left = 0
        while self._aside:
            if (
                self._batches[-1] is not self._aside[0]
            ):  # else an interruption came between the next two lines
                self._batches.append(self._aside[0])
            self._aside.popleft()
        if self._batch is self._batches[-1] and self._batch.leased >= COMMIT_BYTES:
            self._batches.append(CommitBatch(self._tracker))
        if self._batch is not self._batches[-1]:
            left, self._run = 0, self._no_run
            self._batch = self._batches[-1]
        return left

    def _envelope_of(self, topic: str) -> int:
        """What a batch of a topic may take beside its messages."""
        return self._envelope + len(topic.encode())

    def _lease(self, batch: CommitBatch, need: int, left: int) -> int:
        """Reserve more for the last batch, of which `left` bytes are left; returns how much is left then."""
        if batch.leased and not batch.runs:  # begin anew: it may be this that takes the room
            self._admission.give_back(batch)
            batch.leased = 0
            left = 0
        lack = need - left
        most = max(0, COMMIT_BYTES - batch.leased)
        for amount in (LEASE_BYTES, SMALL_LEASE_BYTES, 0):
            more = max(lack, min(amount, most))
            if self._admission.reserve(batch, self._with_envelopes(more)):
                batch.leased += more
                return left + more
        return left

    def _with_envelopes(self, size: int) -> int:
        """What messages of `size` bytes take together with their envelopes."""
        envelopes, messages = self._share
        return size - (-size * envelopes // messages)

    def _wait(self, size: int, block: float, deadline: float | None) -> float:
        """Wait until there may be room for `size` bytes; returns the deadline for all waits of one publish."""
        admission = self._admission
        if size > admission.max_bytes and self.refusal is None:
            raise OutboxFull(f"{size} bytes can't fit: the outbox holds at most {admission.max_bytes}")
        if deadline is None:
            deadline = self._clock.now() + block
        room = admission.wait(
            lambda: self.refusal is not None or admission.fits(size), max(0.0, deadline - self._clock.now())
        )
        if self.refusal is not None:
            raise self.refusal
        if not room:
            raise self._explain()
        return deadline

    def hold(self, held: bool) -> None:
        """Accept nothing, as if there were no room, or (False) accept again."""
        self._admission.hold(held)
        self._revoke()

    def refuse(self, error: FatalError) -> None:
        """Accept nothing more; the first reason stays."""
        if self.refusal is None:
            self.refusal = error
        self._revoke()
        self._admission.look_again()

    def _revoke(self) -> None:
        """Have the next message ask for room."""
        if not self._lock._is_owned():  # type: ignore[attr-defined]  # else the interrupted call will return the token
            with self._lock:
                self._take_token()
                self._token.append(0)

    # -- for the writer -------------------------------------------------------------------------------------

    def take(self) -> CommitBatch | None:
        """What has waited longest, to be stored; None if nothing does. :meth:`stored` must follow."""
        with self._lock:
            left = self._take_token()
            while len(self._batches) > 1 and not self._batches[0].runs:
                self._admission.give_back(self._batches.popleft())
            batch = self._batches[0]
            if not batch.runs:
                if batch.leased:
                    self._admission.give_back(batch)
                    batch.leased = 0
                self._token.append(0)
                return None
            if batch is self._batch:
                self._batches.append(CommitBatch(self._tracker))
                self._batch, self._run, left = self._batches[-1], self._no_run, 0
            self._storing = batch  # first, so that it is somewhere at every instant
            self._batches.popleft()
            self._token.append(left)
            return batch

    def stored(self) -> None:
        """What was taken is stored, or has failed."""
        self._storing = None

    def fail(self, error: ReliamsgError) -> None:
        """There will be no further commit: wake all threads that wait for one."""
        with self._lock:
            self._take_token()
            batches = list(self._batches)
            self._batches.append(CommitBatch(self._tracker))
            self._batch, self._run = self._batches[-1], self._no_run
            while self._batches[0] is not self._batch:
                self._batches.popleft()
            self._token.append(0)
        if self._storing is not None:  # the writer failed in the middle of it
            batches.insert(0, self._storing)
            self._storing = None
        for batch in batches:
            self._admission.give_back(batch)
            batch.finish(error)

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._batches[0].runs and len(self._batches) == 1 and not self._aside

    @property
    def idle(self) -> bool:
        """Whether, besides, nothing is reserved. Where a thread was interrupted for good, :meth:`take` returns it."""
        batches = self._batches
        return not batches[0].runs and not batches[0].leased and len(batches) == 1 and not self._aside

    @property
    def open_batches(self) -> list[CommitBatch]:
        """The batches whose outcome is open, oldest first. May be called with the engine's lock held, so it does not
        wait for its own. A batch that moves on meanwhile is met twice at most, since this looks in the direction in
        which batches move."""
        aside, batches, storing = list(self._aside), list(self._batches), self._storing
        found = dict.fromkeys((storing, *batches, *aside))
        return [batch for batch in found if batch is not None and batch.runs]

    @property
    def messages(self) -> int:
        """How many messages are accepted and not stored."""
        return sum(batch.count for batch in self.open_batches)
