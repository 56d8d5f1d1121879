"""The deliberate defects: small, and such as a programmer could make. None of them crashes at once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One defect."""

    name: str
    file: str
    """Below ``src/reliamsg``."""
    old: str
    """What it replaces; occurs exactly once in the file."""
    new: str
    breaks: str
    """The promise of the design that it breaks, and how."""

    def applied(self, text: str) -> str:
        """The text of the file with the defect."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: what it replaces occurs {text.count(self.old)} times in {self.file}"
            )
        return text.replace(self.old, self.new)


MUTANTS = (
    # -- P1: durable on return ------------------------------------------------------------------------------
    Mutant(
        "fsync-skipped",
        "store/database.py",
        'connection.execute("PRAGMA synchronous = FULL")',
        'connection.execute("PRAGMA synchronous = OFF")',
        "P1: what a commit wrote is lost by a crash",
    ),
    Mutant(
        "told-durable-before-commit",
        "sending/engine.py",
        "        rows = self._outbox.append(packed.batches, packed.entries, wall_us, self.mono_us())",
        "        group.event.set()\n"
        "        rows = self._outbox.append(packed.batches, packed.entries, wall_us, self.mono_us())",
        "P1: publish() returns before the message is committed",
    ),
    Mutant(
        "failed-fsync-tried-again",
        "store/database.py",
        "_UNKNOWN = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}",
        "_UNKNOWN = {sqlite3.SQLITE_IOERR_DIR_FSYNC}",
        "P1: after a failed fsync the producer goes on, and calls a message failed that is stored",
    ),
    Mutant(
        "number-kept-after-failure",
        "sending/packing.py",
        "        return seq + count\n",
        "        stream.next_seq = seq + count\n        return seq + count\n",
        "P1, P9: a commit that failed keeps its sequence numbers, and groups wait for messages that never were",
    ),
    Mutant(
        "number-used-twice",
        "store/outbox.py",
        "            self._by_id[stream_id].next_seq = last + 1\n",
        "            self._by_id[stream_id].next_seq = last\n",
        "P3: two messages have one identity",
    ),
    # -- P2: published means published ----------------------------------------------------------------------
    Mutant(
        "one-site-counts-as-all",
        "core/confirms.py",
        "                return len(counted) == len(self._sites)",
        "                return len(counted) >= 1",
        'P2: with confirm="all" a message counts as published when one site has it',
    ),
    Mutant(
        "quorum-one-short",
        "core/confirms.py",
        "                return len(counted) >= k",
        "                return len(counted) >= max(1, k - 1)",
        "P2: a quorum of k is met by k - 1 sites",
    ),
    Mutant(
        "return-counts-as-confirm",
        "sending/link.py",
        "        engine = self._engine\n        with engine.lock:\n            flight = engine.core.refused(",
        "        engine = self._engine\n"
        "        if outcome is Outcome.RETURNED:\n"
        "            return self.confirmed([token])\n"
        "        with engine.lock:\n"
        "            flight = engine.core.refused(",
        "P2: what an AMQP broker returned as unroutable counts as confirmed, as its later ack says",
    ),
    Mutant(
        "confirm-taken-as-cumulative",
        "core/producer.py",
        "        flights = [flight for row in rows if (flight := window.confirm(row, now)) is not None]",
        "        rows = [row for row in window.flights if row <= max(rows)]\n"
        "        flights = [flight for row in rows if (flight := window.confirm(row, now)) is not None]",
        "P2: a confirm of one batch counts for all that were sent before it",
    ),
    Mutant(
        "overdue-counts-as-confirmed",
        "core/producer.py",
        "                window.give_up(now)\n",
        "                rows = list(window.flights)\n"
        "                self.confirmed(name, rows, now)\n"
        "                window.give_up(now)\n",
        "P2: a confirm that timed out counts as success",
    ),
    Mutant(
        "resend-forgotten",
        "core/window.py",
        "            lane.next = lane.unanswered\n",
        "",
        "P2: what was in flight when a connection was lost is not sent again",
    ),
    Mutant(
        "refused-row-passed",
        "core/window.py",
        "        self.state = LaneState.PARKED\n        self.next = min(self.next, row)\n",
        "        self.state = LaneState.PARKED\n        self.next = row + 1\n",
        "P2: after a nack the next batch of the stream is sent, and the one that was refused never again",
    ),
    Mutant(
        "site-cursor-too-far",
        "sending/housekeeping.py",
        "    return Cursors(link.window.main.cursor, parked)",
        "    return Cursors(link.window.main.next, parked)",
        "P2: after a restart what was in flight counts as confirmed",
    ),
    Mutant(
        "site-cursor-one-too-far",
        "core/window.py",
        "            self.confirmed.add(1, cursor - 1)",
        "            self.confirmed.add(1, cursor)",
        "P2: after a restart a site is taken to have one batch more than it confirmed",
    ),
    Mutant(
        "published-cursor-too-far",
        "sending/housekeeping.py",
        "            cursor = engine.core.confirms.cursor\n        try:",
        "            cursor = engine.core.top + 1\n        try:",
        "P2: after a restart everything that was stored counts as published",
    ),
    Mutant(
        "parked-row-counts-as-confirmed",
        "sending/engine.py",
        "                if row < parked.cursor:",
        "                if row <= parked.cursor:",
        "P2: after a restart the batch for which a stream was parked counts as confirmed",
    ),
    Mutant(
        "window-full-drops",
        "core/producer.py",
        "        return window.room(lane, row.size)",
        "        if not window.room(lane, row.size):\n"
        "            lane.next = row.id + 1\n"
        "            return False\n"
        "        return True",
        "P7: a batch for which a site's window has no room is passed over",
    ),
    # -- P3: first in, first out ----------------------------------------------------------------------------
    Mutant(
        "prev-forgotten",
        "sending/packing.py",
        "            seq,\n            stream.prev,\n",
        "            seq,\n            None,\n",
        "P3: batches do not say which epoch came before",
    ),
    Mutant(
        "prev-is-the-first",
        "store/outbox.py",
        "WHERE stream_id = ? AND epoch < ? ORDER BY epoch DESC LIMIT 1",
        "WHERE stream_id = ? AND epoch < ? ORDER BY epoch LIMIT 1",
        "P3: batches name the first epoch of all as the one before",
    ),
    Mutant(
        "chain-keeps-first-end",
        "store/outbox.py",
        " ON CONFLICT (stream_id, epoch) DO UPDATE SET last = excluded.last",
        " ON CONFLICT (stream_id, epoch) DO NOTHING",
        "P3, P5: an epoch's end is remembered as that of its first batch",
    ),
    Mutant(
        "epoch-from-the-clock-alone",
        "store/outbox.py",
        "                self.epoch = wall_ms if wall_ms > stored else self._epoch_above(stored)",
        "                self.epoch = wall_ms",
        "P3: when the wall clock was set back a later epoch has a lower number",
    ),
    Mutant(
        "epoch-not-raised",
        "store/outbox.py",
        "                self.epoch = wall_ms if wall_ms > stored else self._epoch_above(stored)",
        "                self.epoch = max(stored, wall_ms)",
        "P3: an outbox that is opened after the clock was set back uses its epoch again",
    ),
    Mutant(
        "hole-passed",
        "core/reorder.py",
        "        run = self.held.run_from(head)\n        return None if run is None else (head, run)",
        "        head = self.held.next_at(head) or head\n"
        "        run = self.held.run_from(head)\n"
        "        return None if run is None else (head, run)",
        "P3, P5: what has arrived is handed out though something before it is missing",
    ),
    Mutant(
        "epoch-left-with-a-gap",
        "core/passage.py",
        "        if target is None and later is not None:",
        "        if later is not None and (target is None or joint.kind is LinkKind.ENDS):",
        "P3, P5: the next epoch is entered though the tail of the one before is missing",
    ),
    Mutant(
        "failed-message-overtaken",
        "core/delivery.py",
        "        if not known.retry.empty:\n            if now < state.retry_at:\n                return None, False\n",
        "        if not known.retry.empty and now >= state.retry_at:\n",
        "P3: while a message whose handling raised waits to be handed out again, later ones are handed out",
    ),
    Mutant(
        "chunk-goes-on-after-failure",
        "receiving/lane.py",
        "        if seq > self.last or self.abandoned:\n            return None",
        "        if seq > self.last:\n            return None",
        "P3: when handling a message raises, those behind it are handed out before it comes again",
    ),
    # -- P4: once -------------------------------------------------------------------------------------------
    Mutant(
        "repeat-not-flagged",
        "receiving/restore.py",
        "    known.redelivered_below = row.high_water\n",
        "",
        "P4: what comes again after a crash is not flagged",
    ),
    Mutant(
        "high-water-not-stored",
        "store/inbox.py",
        '" high_water = excluded.high_water, settled = excluded.settled, last = excluded.last,"',
        '" settled = excluded.settled, last = excluded.last,"',
        "P4: a commit does not say up to where messages may have been handed out, so repeats are not flagged",
    ),
    Mutant(
        "clean-stop-forgets-the-open-ones",
        "core/snapshots.py",
        "            high = known.cursor if entered else 0",
        "            high = known.position if entered else 0",
        "P4: what was handed out and not acknowledged when a consumer was closed comes again without a flag",
    ),
    Mutant(
        "dedupe-forgets-settled",
        "core/reorder.py",
        "        if not self.settled.empty:\n"
        "            new = [part for span in new for part in self.settled.missing(*span)]\n"
        "        for span in new:\n",
        "        for span in new:\n",
        "P4: a duplicate of what was acknowledged out of order is handed out again",
    ),
    Mutant(
        "settled-ranges-not-stored",
        "core/snapshots.py",
        "known.position, high, list(known.settled), known.last",
        "known.position, high, [], known.last",
        "P4: what was acknowledged out of order comes again after a crash",
    ),
    Mutant(
        "finished-epochs-forgotten",
        "receiving/commits.py",
        "            [(f.epoch, f.incarnation, f.last) for f in state.history.finished],",
        "            [(f.epoch, f.incarnation, f.last) for f in state.history.finished[:-1]],",
        "P4, P9: after a restart it is not known any more that the latest epoch was finished",
    ),
    Mutant(
        "full-disk-counts-as-success",
        "receiving/commits.py",
        "            self._failed(plan, error)\n            return False\n",
        "            self._failed(plan, error)\n",
        "P4, P5: what could not be committed counts as durable, and brokers may forget it",
    ),
    Mutant(
        "durable-before-commit",
        "receiving/commits.py",
        "        self._fill(batch, snapshot, pending, entries)\n        batch.entries += [",
        "        self._fill(batch, snapshot, pending, entries)\n        self.synced = sync\n        batch.entries += [",
        "P4: ack(durable=True) returns before the commit",
    ),
    Mutant(
        "lease-not-checked",
        "receiving/state.py",
        "        return not self.standing_by and self.clock() < self.lease.until",
        "        return not self.standing_by",
        "P4: a consumer that was stopped wakes up and hands out though another one has taken over",
    ),
    Mutant(
        "takeover-not-flagged",
        "core/stream.py",
        "            known.redelivered_below = max(known.redelivered_below, self.high_water)",
        "            known.redelivered_below = max(known.redelivered_below, 0)",
        "P4: a standby that takes over hands out again without a flag what the other had handed out",
    ),
    # -- P5: no silent loss ---------------------------------------------------------------------------------
    Mutant(
        "consumer-cursor-too-far",
        "core/snapshots.py",
        "        epochs.append(EpochChange(known, known.position, high,",
        "        epochs.append(EpochChange(known, known.cursor, high,",
        "P5: what was handed out counts as acknowledged after a crash",
    ),
    Mutant(
        "acknowledged-before-commit",
        "core/reorder.py",
        "        first = max(first, self.safe_position)\n        if first > last:\n            return True",
        "        first = max(first, self.cursor)\n        if first > last:\n            return True",
        "P5: the broker is told that a message is safe before its acknowledgement is committed",
    ),
    Mutant(
        "unsafe-duplicate-acknowledged",
        "core/arrivals.py",
        "release=not new and not late and known.is_safe(first, last))",
        "release=not new and not late)",
        "P5: the broker may forget a duplicate though the first copy is only in memory",
    ),
    Mutant(
        "held-frame-dropped",
        "store/inbox.py",
        "freed += self._drop_held(connection, stream_id, row.epoch, 0, row.position - 1)",
        "freed += self._drop_held(connection, stream_id, row.epoch, 0, row.position)",
        "P5: the inbox deletes the batch that ends with the next message",
    ),
    Mutant(
        "taken-and-not-given",
        "receiving/engine.py",
        "            if unused is not None:\n",
        "            if unused is not None and not chunk.abandoned:\n",
        "P5: messages behind one whose handling raised count as handed out",
    ),
    Mutant(
        "gap-skipped-without-a-word",
        "core/passage.py",
        "        declare(core, state, gap, now)\n        return\n    if core.rules.hold_gaps:",
        "        known.settle(first, last or known.highest)\n"
        "        follow(core, state, now)\n"
        "        return\n"
        "    if core.rules.hold_gaps:",
        'P5: with on_gap="skip" a gap is passed without being declared',
    ),
    Mutant(
        "late-message-delivered",
        "core/arrivals.py",
        "        late = state.closed.arrived(known.epoch, first, last)\n    new",
        "        late = state.closed.arrived(known.epoch, first, last)\n"
        "        for span in late:\n"
        "            known.place_at(span[0])\n"
        "    new",
        "P3: what comes after its gap was declared is handed out behind later messages",
    ),
    Mutant(
        "gap-clock-not-restarted",
        "core/gaps.py",
        "        before, self.target = self.target, target\n"
        "        self.elapsed = self.saved = self.waited = 0.0\n",
        "        before, self.target = self.target, target\n",
        "P5: a gap expires early, since its clock goes on where the one of the gap before it stopped",
    ),
    Mutant(
        "gap-expires-while-stopped",
        "core/gaps.py",
        "            step = min(max(0.0, now - self._at), MAX_STEP_S)",
        "            step = max(0.0, now - self._at)",
        "P5: a gap expires while its consumer's process is stopped",
    ),
    Mutant(
        "gap-expires-while-cut-off",
        "core/ticking.py",
        "    running = idle and counts\n",
        "    running = idle\n",
        "P5: a gap expires while its consumer is connected to no site",
    ),
    Mutant(
        "joined-where-it-arrives",
        "core/joining.py",
        "    return lowest.epoch, 0, first - 1\n",
        "    join(core, state, lowest, first)\n    return None\n",
        "P5: a group takes what it lacks from before its first delivery for older than itself",
    ),
    Mutant(
        "tail-not-believed",
        "core/heard.py",
        "            known.announced = max(known.announced, last)\n",
        "            known.announced = max(known.announced, min(last, known.arrived))\n",
        "P5: what a producer says about the end of a stream is not believed, so a lost tail is never missed",
    ),
    Mutant(
        "damaged-body-trusted",
        "wire/data.py",
        "        return len(body) == self.envelope.body_size and zlib.crc32(body) == self.envelope.body_crc",
        "        return len(body) == self.envelope.body_size",
        "P5: a body whose checksum does not match is handed out",
    ),
    Mutant(
        "dead-letter-lost",
        "receiving/state.py",
        "        self.dead[:0] = earlier.dead\n",
        "",
        "P5: a message that was given up while the disk was full is nowhere",
    ),
    Mutant(
        "unsigned-frame-trusted",
        "wire/data.py",
        '    if envelope.key_id is None or envelope.signature is None:\n        raise FrameError("unsigned")',
        "    if envelope.key_id is None or envelope.signature is None:\n        return",
        "P5: with keys configured a batch without a signature is handed out",
    ),
    Mutant(
        "forged-state-trusted",
        "wire/control.py",
        "    if not ring.verifies(key_id, signature, _canonical(kind, address, key_id, body)):\n"
        '        raise FrameError("forged", f"not signed with a trusted key {key_id!r} for this address")',
        "    ring.verifies(key_id, signature, _canonical(kind, address, key_id, body))",
        "P6: what somebody without the key says about a group is believed",
    ),
    # -- P6: end to end -------------------------------------------------------------------------------------
    Mutant(
        "released-before-consumed",
        "core/producer.py",
        "        if consumed is not None:\n"
        "            full, partly = _within(full, consumed), _within(partly, consumed)\n",
        "",
        "P6: messages leave the outbox though a group has not acknowledged them",
    ),
    Mutant(
        "fastest-group-decides",
        "core/groups.py",
        "        return min(named, key=lambda member: (member.position, member.group), default=None)",
        "        return max(named, key=lambda member: (member.position, member.group), default=None)",
        "P6: messages leave the outbox when one of their groups has acknowledged them",
    ),
    Mutant(
        "consumed-one-too-far",
        "sending/membership.py",
        "            if position is not None and position <= (row.epoch, row.last):",
        "            if position is not None and position < (row.epoch, row.last):",
        "P6: a batch leaves the outbox though its last message is not acknowledged",
    ),
    Mutant(
        "repair-not-sent",
        "sending/control.py",
        "        if fresh and (told.wanted or told.missing):",
        "        if fresh and told.missing and not told.wanted:",
        "P6: what a group asks for is not sent again",
    ),
    Mutant(
        "held-range-understated",
        "sending/announcing.py",
        "    return min(oldest[1], last + 1) if epoch == oldest[0] else 1",
        "    return last + 1 if epoch == oldest[0] else 1",
        "P6: a producer says that it does not hold what it holds, so nobody asks for it",
    ),
    # -- P7, P9 ---------------------------------------------------------------------------------------------
    Mutant(
        "outbox-with-the-wrong-limit",
        "sending/admission.py",
        "        self.max_bytes = max_bytes\n",
        "        self.max_bytes = QUEUE_BYTES\n",
        "P7: an outbox takes more than max_bytes",
    ),
    Mutant(
        "journal-row-over-a-hole",
        "store/journal.py",
        "                and tip.entry.last + 1 == entry.first\n",
        "                and tip.entry.last < entry.first\n",
        "P9: a journal row claims what lies between two ranges",
    ),
    Mutant(
        "journal-digest-not-summed",
        "store/journal.py",
        "((old.digest + (entry.digest or 0)) & _MASK)",
        "(entry.digest or old.digest)",
        "P9: the digest of a row is that of its last part, so nobody can tell whether contents are the same",
    ),
    Mutant(
        "journal-rows-of-a-failed-commit-lost",
        "receiving/commits.py",
        "            shared.ledger.put_back(plan.entries)\n",
        "",
        "P9: what happened before a commit that failed is not journalled",
    ),
)
"""All of them."""
