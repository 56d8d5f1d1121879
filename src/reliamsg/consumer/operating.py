"""Carrying out what operators ask of a running consumer, on the thread that owns the inbox."""

from __future__ import annotations

import logging
from dataclasses import replace

from reliamsg.consumer.engine import ConsumerEngine
from reliamsg.consumer.forgetting import Forgetting
from reliamsg.errors import ReliamsgError
from reliamsg.message import Gap
from reliamsg.store.quarantine import Selection
from reliamsg.store.requests import Answer, Request, RequestBox

__all__ = ["Operating"]

log = logging.getLogger("reliamsg.consumer")

EVERY_S = 0.25
"""Requests are looked for so often."""


class Operating:
    """See the module."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self._box = RequestBox(engine.shared.inbox.path)
        self.looks_at = float("-inf")
        """When :meth:`step` looks for requests again."""

    def step(self, now: float) -> None:
        """Carry out what was asked since the last time. Each request is answered when it is durable; one that fails
        for want of room on the disk stays."""
        self.looks_at = now + EVERY_S
        if not self._engine.shared.health.may_write:
            return
        for name, request in self._box.waiting():
            try:
                answer = self._carry_out(request, now)
            except ReliamsgError as error:
                log.warning("%s: %s", request.action, error)
                return
            log.info("operator: %s: %s", request.action, answer.text)
            self._box.answer(name, answer)

    def _carry_out(self, request: Request, now: float) -> Answer:
        if request.action == "accept":
            return self._accept(request, now)
        if request.action == "forget":
            return self._forget(request, now)
        which = Selection(request.ids, request.reason, request.stream)
        return self._replay(which) if request.action == "replay" else self._discard(which, now)

    def _accept(self, request: Request, now: float) -> Answer:
        if request.stream is None:
            return Answer(False, "no stream is named")
        gap = Gap(request.stream, request.epoch, request.first, request.last, "accepted")
        done = self._engine.deliveries.accept(gap)
        self._make_durable(now)
        if done:
            self._engine.tell_accepted(gap.stream)
        return Answer(done, f"{gap.stream}: accepted" if done else f"{gap.stream}: this is no gap (any more)")

    def _forget(self, request: Request, now: float) -> Answer:
        what = Forgetting(request.streams, unused_since_us=request.unused_since_us)
        if request.epoch:
            what = replace(what, below=min(what.below, request.epoch))
        count = self._engine.forget(what, now)
        left = len(request.streams) - count
        text = f"{count:,} forgotten"
        if left:
            text += f"; {left:,} kept: in use, not settled to their end, or not known any more"
        return Answer(not left, text)

    def _make_durable(self, now: float) -> None:
        number = self._engine.shared.durability.want_soon()
        self._engine.flush(now)
        self._engine.shared.durability.is_durable(number)  # raises where it is not

    def _replay(self, which: Selection) -> Answer:
        shared = self._engine.shared
        count = shared.inbox.quarantine.mark(which, True)
        with shared.lock:
            shared.quarantine.replay(Selection(ids=()))
            shared.agenda.due(0.0)
        return Answer(True, f"{count:,} deliveries are replayed")

    def _discard(self, which: Selection, now: float) -> Answer:
        shared = self._engine.shared
        found = shared.inbox.quarantine.select(which)
        with shared.lock:
            gone = [one for one in found if one.id not in shared.quarantine.replaying]
            for one in gone:
                shared.journal.note(
                    "quarantine_discarded", stream=one.stream, epoch=one.epoch, incarnation=one.incarnation,
                    first=one.first, last=one.last, site=one.site, reason=one.reason,
                )  # fmt: skip
            shared.durability.pending.unquarantined.extend(one.id for one in gone)
        self._make_durable(now)
        return Answer(True, f"{len(gone):,} deliveries are discarded")
