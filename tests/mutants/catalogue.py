"""The deliberate defects: small, and such as a programmer could make. None of them crashes at once."""

from __future__ import annotations

from tests.mutants.mutant import BySimulator, ByTest, Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    # -- P1: durable on return ------------------------------------------------------------------------------
    Mutant(
        "fsync-skipped",
        "store/database.py",
        'connection.execute("PRAGMA synchronous = FULL")',
        'connection.execute("PRAGMA synchronous = OFF")',
        "P1: a crash loses what a commit wrote",
        BySimulator("redelivered_after_ack", seed=0),
    ),
    Mutant(
        "told-durable-before-commit",
        "producer/engine.py",
        "        rows = outbox.append(packed.batches, packed.entries, wall_us, mono_us)",
        "        batch.commit.finish(None)\n"
        "        rows = outbox.append(packed.batches, packed.entries, wall_us, mono_us)",
        "P1: publish() returns before the message is committed",
        ByTest(
            "producer/test_accumulator.py::test_nothing_is_durable_before_it_is_committed",
            "assert seen == [(False, False)]",
        ),
    ),
    Mutant(
        "failed-fsync-tried-again",
        "store/database.py",
        "_UNKNOWN = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}",
        "_UNKNOWN = {sqlite3.SQLITE_IOERR_DIR_FSYNC}",
        "P1: after a failed fsync the producer continues, and reports a message as failed that is stored",
        ByTest(
            "producer/test_disks.py::TestDisk::test_a_failing_fsync_stops_it_for_good",
            "assert found.returncode == 0, found.stderr",
        ),
    ),
    Mutant(
        "written-after-a-failed-fsync",
        "store/database.py",
        "            if self._broken is not None:\n                raise",
        "            if self._broken is not None and False:\n                raise",
        "P1: the store goes on writing after a failed fsync",
        ByTest(
            "store/test_inbox.py::test_a_failed_fsync_is_never_tried_again",
            "with pytest.raises(InboxIndeterminate):",
            "Failed",
        ),
    ),
    Mutant(
        "halt-hides-a-failed-fsync",
        "consumer/health.py",
        "            if self.fatal is None or (self.may_write and not isinstance(error, _INBOX_UNAFFECTED)):\n",
        "            if self.fatal is None:\n",
        "P4: a consumer that had failed for another reason goes on writing after a failed fsync, without the "
        "failed commit",
        ByTest(
            "consumer/test_failed_commits.py"
            "::test_after_a_commit_that_may_have_been_written_or_not_nothing_is_written_whatever_ended_the_consumer",
            "assert isinstance(bench.engine.shared.health.fatal, error)",
        ),
    ),
    Mutant(
        "number-kept-after-failure",
        "producer/packer.py",
        "        return seq + count\n",
        "        stream.next_seq = seq + count\n        return seq + count\n",
        "P1, P9: a failed commit keeps its sequence numbers, so groups wait for messages that never existed",
        BySimulator("checker/seq_skipped", "checker/phantom_gap", seed=16),
    ),
    Mutant(
        "wakeup-with-a-lock",
        "runtime/wakeup.py",
        "        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()",
        "        self._queue: queue.Queue[None] = queue.Queue()",
        "P1: a signal handler that publishes while its thread is waking another one deadlocks",
        ByTest(
            "producer/test_interruptions.py::test_waking_while_waking[set-once more]",
            "assert not thread.is_alive()",
        ),
    ),
    Mutant(
        "header-limit-of-255",
        "config.py",
        "MAX_HEADER_VALUE_BYTES = 8 * 1024\n",
        "MAX_HEADER_VALUE_BYTES = 255\n",
        "P1: a header of 8 KiB is refused",
        ByTest(
            "wire/test_application.py::TestHeaders::test_the_largest",
            "assert check_headers(largest) == largest",
            "MessageTooLarge",
        ),
    ),
    Mutant(
        "forgotten-producer-silent",
        "producer/api.py",
        "    left = engine.remaining().messages\n",
        "    left = 0\n",
        "P1: a producer that is garbage-collected with unconfirmed messages gives no warning",
        ByTest(
            "producer/test_forgotten.py::test_one_with_unconfirmed_messages_warns_when_it_is_collected",
            "(said,) = made()",
            "ValueError",
        ),
    ),
    Mutant(
        "strangers-outbox-opened",
        "store/database.py",
        "        if found.st_uid != user:\n",
        "        if found.st_uid < 0:\n",
        "P1: an outbox that belongs to another user is opened",
        ByTest(
            "test_files.py::test_a_file_that_others_can_change_is_refused[of another user--outbox]",
            "with within(10), pytest.raises(StoreUnsafe) as raised:",
            "Failed",
        ),
    ),
    Mutant(
        "writable-outbox-opened",
        "store/database.py",
        "        if found.st_mode & stat.S_IWOTH:\n"
        '            raise StoreUnsafe(f"{name}: any user can write to it: chmod 600 {name}")',
        "        pass",
        "P1: a world-writable outbox is opened",
        ByTest(
            "test_files.py::test_a_file_that_others_can_change_is_refused[world-writable--outbox]",
            "with within(10), pytest.raises(StoreUnsafe) as raised:",
            "Failed",
        ),
    ),
    Mutant(
        "memory-inbox-accepted",
        "arguments.py",
        '    if path == ":memory:" or path.startswith("file:"):\n',
        '    if name == "outbox" and (path == ":memory:" or path.startswith("file:")):\n',
        "P1: an in-memory inbox is accepted, and its contents are lost with the process",
        ByTest(
            "badinput/test_zoo.py::test_files_that_are_none[:memory:]",
            'with pytest.raises(ConfigError, match=r"outbox|inbox"):',
            "Failed",
        ),
    ),
    # -- P2: published means published ----------------------------------------------------------------------
    Mutant(
        "one-site-counts-as-all",
        "policy.py",
        "            return sites\n",
        "            return 1\n",
        'P2: with confirm="all" a message counts as published when one site has it',
        BySimulator("published_unconfirmed", seed=0),
    ),
    Mutant(
        "quorum-one-short",
        "policy.py",
        "            return k\n",
        "            return max(1, k - 1)\n",
        "P2: k - 1 sites satisfy a quorum of k",
        BySimulator("published_unconfirmed", seed=7),
    ),
    Mutant(
        "return-counts-as-confirm",
        "producer/site.py",
        "        shared = self._shared\n        with shared.lock:\n            row = shared.core.refused(",
        "        shared = self._shared\n"
        "        if outcome is Outcome.RETURNED:\n"
        "            return self.confirmed([token])\n"
        "        with shared.lock:\n"
        "            row = shared.core.refused(",
        "P2: a batch that an AMQP broker returned as unroutable counts as confirmed because of the ack that "
        "follows",
        BySimulator("published_unconfirmed", seed=22),
    ),
    Mutant(
        "confirm-taken-as-cumulative",
        "protocol/sender/sender.py",
        "        confirmed = self.sites[site].confirm(rows, now)\n",
        "        rows = [row for row in self.sites[site].in_flight if row <= max(rows)]\n"
        "        confirmed = self.sites[site].confirm(rows, now)\n",
        "P2: a confirm of one batch counts for all batches sent before it",
        BySimulator("published_unconfirmed", seed=0),
    ),
    Mutant(
        "overdue-counts-as-confirmed",
        "protocol/sender/sender.py",
        "                overdue[name] = window.give_up(now)\n",
        "                rows = list(window.in_flight)\n"
        "                overdue[name] = window.give_up(now)\n"
        "                self.confirmed(name, rows, now)\n",
        "P2: a confirm that timed out counts as success",
        BySimulator("published_unconfirmed", seed=0),
    ),
    Mutant(
        "unanswered-never-parks",
        "protocol/sender/window.py",
        "        late = [flight for due, flight in self._oldest() if due <= now]\n",
        "        late: list[InFlight] = []\n",
        "P2: a batch that a site never answers holds up all other batches there (P18)",
        ByTest(
            "protocol/test_window.py::TestUnanswered::test_where_nothing_was_answered_it_takes_two_connections",
            "assert [queue.stream_id for queue in late(found, 90.0)] == [1]",
        ),
    ),
    Mutant(
        "blocking-retry-not-blamed",
        "protocol/sender/window.py",
        "        return next(blocking, late)\n",
        "        return late\n",
        "P2: a retry that holds up all other batches of a site is repeated at once on each connection (P18)",
        ByTest(
            "protocol/test_window.py::TestUnanswered::test_a_row_behind_a_trial_that_blocks_is_not_blamed",
            "assert [queue.stream_id for queue in late(found, now + 30.0)] == [1]",
        ),
    ),
    Mutant(
        "silenced-with-each-retry",
        "protocol/sender/window.py",
        "        if not flight.trial and self._answered_at <= flight.at:\n",
        "        if self._answered_at <= flight.at:\n",
        "P2: a batch that a site never answers is tried again with each answer to others, and holds them up (P18)",
        ByTest(
            "protocol/test_window.py::TestUnanswered::"
            "test_what_was_parked_in_a_silence_is_tried_at_once_only_once",
            'assert found.pull(now=now) == [4], "1 waits its time"',
        ),
    ),
    Mutant(
        "pause-after-a-holdup-never-grows",
        "protocol/sender/window.py",
        "            queue.holdups += 1\n",
        "            queue.holdups = 1\n",
        "P2: the more often a retry holds up others in vain, the larger its share of a site's time stays (P18)",
        ByTest(
            "protocol/test_window.py::TestUnanswered::"
            "test_the_pause_is_in_proportion_to_the_time_that_the_trial_took_from_others",
            "assert pauses == pytest.approx([30.0, 60.0, 120.0, 240.0, 240.0, 240.0])",
        ),
    ),
    Mutant(
        "removed-rows-waited-for-after-restart",
        "producer/engine.py",
        "        shared.core.opened(shared.top, held)\n",
        "        shared.core.opened(shared.top, [(1, shared.top)] if shared.top else [])\n",
        "P7: flush() waits forever for a row that was removed before a restart",
        ByTest(
            "producer/test_removal.py::test_nobody_waits_after_a_restart_for_what_was_removed_before_it",
            "assert again.status()",
        ),
    ),
    Mutant(
        "resend-forgotten",
        "protocol/sender/window.py",
        "            queue.next = queue.unanswered\n",
        "",
        "P2: batches that were in flight when a connection was lost are not sent again",
        BySimulator("stalled", seed=0),
    ),
    Mutant(
        "refused-row-passed",
        "protocol/sender/window.py",
        "        self.state = QueueState.PARKED\n        self.next = min(self.next, row)\n",
        "        self.state = QueueState.PARKED\n        self.next = row + 1\n",
        "P2: after a nack the stream's next batch is sent, and the refused one is never sent again",
        BySimulator("stalled", seed=15),
    ),
    Mutant(
        "site-cursor-too-far",
        "producer/maintenance.py",
        "    return Cursors(window.main.cursor, parked)",
        "    return Cursors(window.main.next, parked)",
        "P2: after a restart in-flight batches count as confirmed",
        BySimulator("published_unconfirmed", "checker/published_unconfirmed", seed=0),
    ),
    Mutant(
        "site-cursor-one-too-far",
        "protocol/sender/window.py",
        "            self.confirmed.add(1, cursor - 1)",
        "            self.confirmed.add(1, cursor)",
        "P2: after a restart a site is assumed to have one batch more than it confirmed",
        BySimulator("published_unconfirmed", "checker/published_unconfirmed", seed=0),
    ),
    Mutant(
        "published-cursor-too-far",
        "producer/maintenance.py",
        "            cursor = shared.core.confirms.cursor\n        try:",
        "            cursor = shared.top + 1\n        try:",
        "P2: after a restart everything that was stored counts as published",
        BySimulator("published_unconfirmed", seed=18),
    ),
    Mutant(
        "parked-row-counts-as-confirmed",
        "producer/engine.py",
        "                if row < parked.cursor:",
        "                if row <= parked.cursor:",
        "P2: after a restart the batch that parked a stream counts as confirmed",
        BySimulator("published_unconfirmed", seed=0),
    ),
    Mutant(
        "parked-stream-back-too-early",
        "protocol/sender/window.py",
        "(queue.state is QueueState.FLOWING and queue.next >= self.main.next)",
        "(queue.state is QueueState.FLOWING)",
        "P2: a parked stream rejoins the others before it has caught up, and the batches in between are not "
        "sent",
        ByTest(
            "protocol/test_window.py::TestParking::test_without_room_it_stays_apart_until_it_has_caught_up",
            "assert found.pull(now=PARK_MIN_S) == [2]",
        ),
    ),
    Mutant(
        "removed-message-counts-as-confirmed",
        "producer/removals.py",
        "                if unconfirmed(row.id):\n",
        "                if unconfirmed(row.id) and len(spans) > 1:\n",
        "P2: wait() returns for a message that was removed before any site had it",
        ByTest(
            "producer/test_receipts_random.py::test_receipts_say_what_is_so[0]",
            "assert receipt.done == done",
        ),
    ),
    Mutant(
        "cut-batch-counts-as-sent",
        "producer/removals.py",
        "        found = stream.touched.missing(of.first_row, of.last_row)\n",
        "        found = [(of.first_row, of.last_row)]\n        return found\n",
        "P2: messages that remove() left behind a hole count as published together with those before it",
        ByTest(
            "producer/test_receipts_random.py::test_receipts_say_what_is_so[1]",
            "assert outcome(receipt",
        ),
    ),
    Mutant(
        "removed-by-site-not-told",
        "producer/confirmations.py",
        '            return "removed" if self._removals.unsent(messages, name) else "confirmed"',
        '            return "confirmed"',
        "P2: a receipt claims that a site confirmed a message that was removed before the site confirmed it",
        ByTest(
            "producer/test_receipts_random.py::test_receipts_say_what_is_so[0]",
            'assert state == ("removed" if unsent.intersection(bodies) else "confirmed")',
        ),
    ),
    Mutant(
        "flush-forgets-what-moved",
        "producer/confirmations.py",
        "            return confirms.cursor > target and all(\n"
        "                row in confirms.published for row in removals.moved(target)\n"
        "            )\n",
        "            return confirms.cursor > target and removals is not None\n",
        "P2: flush() returns before the messages that remove() moved to a row of their own are confirmed",
        ByTest(
            "producer/test_receipts_random.py::test_a_flush_waits_for_what_is_moved_behind_it_meanwhile",
            "assert seen == [False, True]",
        ),
    ),
    Mutant(
        "unproven-group-counts",
        "protocol/sender/presence.py",
        "        return place in self._proven\n",
        "        return True\n",
        "P2: a confirm counts although a named group does not exist at the site",
        ByTest(
            "protocol/test_presence.py::test_each_kind_of_evidence_proves_its_group_alone[reported]",
            "assert not presence.is_proven(G)",
        ),
    ),
    Mutant(
        "reason-16-outweighs-hearing",
        "protocol/sender/presence.py",
        "        if place in self._reported and place not in self._shown:\n"
        "            return False  # the broker is mistaken: some answer reason 16 although there "
        "are subscribers\n",
        "",
        "P2: a broker that wrongly answers reason 16 makes the outbox wait for a group that was heard",
        ByTest(
            "protocol/test_presence.py::test_a_group_that_was_heard_outweighs_a_broker_that_does_not_know_i"
            "t[not_subscribed]",
            "assert not getattr(presence, absent)(G)",
        ),
    ),
    Mutant(
        "proof-outlives-the-group",
        "protocol/sender/presence.py",
        "        if self._proven.pop(place, None) is None:\n"
        "            return False\n"
        "        self._changes.add(place)\n"
        "        return True\n",
        "        return False\n",
        "P2: a group that was deleted at a broker still counts as present",
        ByTest(
            "protocol/test_presence.py::test_what_was_stored_holds_until_it_is_refuted",
            "assert presence.not_marked(H)",
        ),
    ),
    Mutant(
        "doubted-confirms-count",
        "protocol/sender/window.py",
        "            (self.confirmed if queue.uncounted is None else queue.uncounted).add(row_id, row_id)",
        "            self.confirmed.add(row_id, row_id)",
        "P2: messages that were confirmed before their group existed count as confirmed",
        ByTest(
            "protocol/test_window_unseen.py::test_it_is_sent_once_and_does_not_count",
            "assert list(site.window.confirmed) == [(2, 2), (4, 4)]",
        ),
    ),
    Mutant(
        "proven-too-soon",
        "protocol/sender/window.py",
        "        if not queue.proven or queue.in_flight or queue.uncounted is None:\n"
        "            return\n"
        "        queue.next = queue.cursor",
        "        if not queue.proven or queue.uncounted is None:\n"
        "            return\n"
        "        queue.next = queue.cursor",
        "P2: batches in flight when a group was created count, although they may have reached the broker "
        "before that",
        ByTest(
            "protocol/test_window_unseen.py::test_once_proven_all_of_it_goes_again_in_order",
            "assert len(site.arrived) == 3",
        ),
    ),
    Mutant(
        "unsigned-mark-trusted",
        "producer/presence.py",
        "                genuine = is_mark(shown, created_address(*place), self._keys)\n",
        "                genuine = is_mark(shown, created_address(*place), None)\n",
        "P2: with keys, anybody's retained message proves that a group exists",
        ByTest(
            "producer/test_unseen.py::test_with_keys_a_mark_has_to_be_signed[told-False]",
            'wait_for(lambda: set(receipt.sites.values()) == {"unseen"})',
        ),
    ),
    Mutant(
        "groups-not-probed",
        "transport/mqtt/group_prober.py",
        "                self._results[binding] = Evidence.NOT_SUBSCRIBED if puback.unmatched else "
        "Evidence.SUBSCRIBED",
        "                self._results[binding] = Evidence.SUBSCRIBED",
        "P2: a broker's answer that nobody subscribes is taken to mean the opposite",
        ByTest(
            "transport/test_mqtt_groups.py::TestScripted::test_a_broker_that_says_so_of_everybody",
            "wait_for(lambda: latest(events, B) is Evidence.NOT_SUBSCRIBED",
        ),
    ),
    Mutant(
        "proved-where-no-rule-says",
        "wire/address.py",
        'CONTROL_PREFIX + "proof:/"',
        'CONTROL_PREFIX + "proofs:/"',
        "P2: groups are proven at addresses that the documented access rules do not name, so no confirm "
        "counts there",
        ByTest(
            "e2e/test_permissions.py::test_mosquitto[5]",
            'producer.publish(TOPIC, b"1").wait(30)',
            "ConfirmTimeout",
        ),
    ),
    Mutant(
        "lock-where-no-rule-says",
        "wire/address.py",
        '    return f"reliamsg:lock:{topic}:{partition}:{group}"\n',
        '    return f"reliamsg:locks:{topic}:{partition}:{group}"\n',
        "P2: a group's lock at RabbitMQ is a queue that the documented permissions do not cover, so no "
        "consumer can read",
        ByTest(
            "transport/test_amqp_rights.py::test_what_a_group_asks_for[passive]",
            "raise Refused(ACCESS_REFUSED,",
            "Refused",
        ),
    ),
    Mutant(
        "control-queue-where-no-rule-says",
        "wire/address.py",
        '    return f"reliamsg:control:{name}"\n',
        '    return f"reliamsg:listen:{name}"\n',
        "P6: the documented permissions do not cover the queues for control frames at RabbitMQ, so no control"
        " frame arrives",
        ByTest(
            "transport/test_amqp_rights.py::test_control_frames[passive-billing]",
            "raise Refused(ACCESS_REFUSED,",
            "Refused",
        ),
    ),
    Mutant(
        "passive-declares",
        "transport/amqp/topology.py",
        '    if site.declare == "create":\n        yield from _declare_queue(',
        '    if site.declare != "none":\n        yield from _declare_queue(',
        'P2: with declare="passive" a client declares queues, which the documented permissions forbid',
        ByTest(
            "transport/test_amqp_rights.py::test_what_a_group_asks_for[passive]",
            "raise Refused(ACCESS_REFUSED,",
            "Refused",
        ),
    ),
    Mutant(
        "state-told-where-no-rule-says",
        "wire/address.py",
        'CONTROL_PREFIX + "status:"',
        'CONTROL_PREFIX + "state:"',
        "P6: a producer announces its streams at addresses that the documented topic permissions do not cover",
        ByTest(
            "transport/test_amqp_rights.py::test_control_frames[passive-billing]",
            "assert refused == {}",
        ),
    ),
    # -- P3: first in, first out ----------------------------------------------------------------------------
    Mutant(
        "number-used-twice",
        "store/outbox.py",
        "            self._by_id[stream_id].set_last(last)\n",
        "            self._by_id[stream_id].set_last(last - 1)\n",
        "P3: two messages have the same identity",
        BySimulator("corrupt", seed=0),
    ),
    Mutant(
        "prev-forgotten",
        "producer/packer.py",
        "            Origin(stream.stream, epoch, self._incarnation, stream.prev),\n",
        "            Origin(stream.stream, epoch, self._incarnation),\n",
        "P3: batches do not name the previous epoch",
        BySimulator("false_alarm", seed=0),
    ),
    Mutant(
        "prev-is-the-first",
        "store/outbox.py",
        "WHERE stream_id = ? AND epoch < ? ORDER BY epoch DESC LIMIT 1",
        "WHERE stream_id = ? AND epoch < ? ORDER BY epoch LIMIT 1",
        "P3: batches name the very first epoch as the previous one",
        BySimulator("checker/wrong_prev", "false_alarm", seed=0),
    ),
    Mutant(
        "chain-keeps-first-end",
        "store/outbox.py",
        " ON CONFLICT (stream_id, epoch) DO UPDATE SET last = excluded.last",
        " ON CONFLICT (stream_id, epoch) DO NOTHING",
        "P3, P5: the end of an epoch's first batch is remembered as the end of the epoch",
        BySimulator("checker/wrong_prev", "false_alarm", seed=0),
    ),
    Mutant(
        "epoch-from-the-clock-alone",
        "store/outbox.py",
        "                self.epoch: int = wall_ms if wall_ms > stored else self._epoch_above(stored)",
        "                self.epoch: int = wall_ms",
        "P3: after the wall clock was set back, a later epoch has a lower number",
        ByTest(
            "store/test_outbox.py::TestEpochs::test_each_opening_is_a_new_one",
            "assert epochs[0] < epochs[1] < epochs[2] < epochs[3]",
        ),
    ),
    Mutant(
        "epoch-not-raised",
        "store/outbox.py",
        "                self.epoch: int = wall_ms if wall_ms > stored else self._epoch_above(stored)",
        "                self.epoch: int = max(stored, wall_ms)",
        "P3: an outbox that is opened after the clock was set back reuses its epoch",
        ByTest(
            "store/test_outbox.py::TestEpochs::test_each_opening_is_a_new_one",
            "assert epochs[0] < epochs[1] < epochs[2] < epochs[3]",
        ),
    ),
    Mutant(
        "hole-passed",
        "protocol/receiver/reorder_buffer.py",
        "        run = self.held.run_from(head)\n        return None if run is None else (head, run)",
        "        head = self.held.next_at(head) or head\n"
        "        run = self.held.run_from(head)\n"
        "        return None if run is None else (head, run)",
        "P3, P5: messages are delivered although something before them is missing",
        BySimulator("skipped", "out_of_order", seed=2),
    ),
    Mutant(
        "epoch-left-with-a-gap",
        "protocol/receiver/stream.py",
        "            if target is None and later is not None and not self._giving:",
        "            if later is not None and (target is None or joint.kind is LinkKind.ENDS) and not self._giving:",
        "P3, P5: the next epoch is entered although the tail of the previous one is missing",
        BySimulator("let_go_unsafe", "skipped", "lost", "checker/lost", "checker/undeclared_gap", seed=12),
    ),
    Mutant(
        "epoch-left-in-the-middle",
        "protocol/receiver/stream.py",
        "            if target is None and later is not None and not self._giving:",
        "            if target is None and later is not None:",
        "P9: messages that come too late for an epoch are declared before the application was given those "
        "before them",
        ByTest(
            "consumer/test_forks_random.py::test_an_epoch_is_not_left_in_the_middle_of_a_run_of_messages",
            'assert rows(bench, "delivered", "declared") == [',
        ),
    ),
    Mutant(
        "given-before-a-crash-forgotten-at-a-fork",
        "protocol/receiver/chain.py",
        "known.incarnation, known.proven), later.epoch",
        "known.incarnation, known.highest), later.epoch",
        "P4: a message that was delivered but not acknowledged, and after a crash exists only at a broker, is"
        " not waited for",
        ByTest(
            "consumer/test_forks_random.py::"
            "test_what_was_given_before_a_crash_comes_again_before_an_epoch_that_does_not_know_of_it",
            "assert bench.take() == []",
        ),
    ),
    Mutant(
        "first-of-a-chain-is-a-fork",
        "protocol/receiver/chain.py",
        "    if later.unlinked:",
        "    if later.unlinked and later.prev is not None:",
        "P9: an epoch of which nothing is held, and of which nobody said what it follows, counts as a fork",
        ByTest(
            "protocol/test_forks.py::test_an_epoch_of_which_nothing_is_held_may_follow_on_any[False-False]",
            "assert conflicts(group) == []",
        ),
    ),
    Mutant(
        "declared-epoch-entered",
        "protocol/receiver/epochs.py",
        "        return self.current is None or (epoch > self.current.epoch and epoch > self.entered_to)",
        "        return self.current is None or epoch > self.current.epoch",
        "P3, P5: after a restart, messages are delivered that were declared because their epoch had been "
        "passed",
        ByTest(
            "consumer/test_forks_random.py::test_an_epoch_that_was_declared_is_not_entered_after_a_restart",
            "assert [(message.epoch, message.seq) for message in bench.take()] == [",
        ),
    ),
    Mutant(
        "failed-message-overtaken",
        "protocol/receiver/redelivery.py",
        "            if not known.retry.empty:\n"
        "                if now < self.retry_at:\n"
        "                    return None, False\n",
        "            if not known.retry.empty and now >= self.retry_at:\n",
        "P3: later messages are delivered while a message whose handler raised waits for redelivery",
        ByTest(
            "protocol/test_group.py::test_a_message_that_failed_is_overtaken_by_none[same epoch]",
            "assert state.offer(0.05, 1) is None",
        ),
    ),
    Mutant(
        "chunk-goes-on-after-failure",
        "consumer/buffer.py",
        "        if seq > self.last or self.abandoned:\n            return None",
        "        if seq > self.last:\n            return None",
        "P3: when handling a message raises, the messages behind it are delivered before it is delivered "
        "again",
        ByTest(
            "consumer/test_engine.py::test_behind_a_message_that_failed_nothing_is_given_out_of_a_chunk_in_hand",
            "assert chunk.next() is None",
        ),
    ),
    Mutant(
        "batch-goes-on-after-failure",
        "consumer/buffer.py",
        "        if start >= stop or self.abandoned:\n",
        "        if start >= stop:\n",
        "P3: when handling a message raises, a batch handler gets the messages behind it before it is "
        "delivered again",
        ByTest(
            "consumer/test_engine.py::test_behind_a_message_that_failed_nothing_is_given_out_of_a_chunk_in_hand",
            "assert chunk.take(5) == []",
        ),
    ),
    Mutant(
        "late-message-delivered",
        "protocol/receiver/stream.py",
        "        new = known.place(first, top) if first <= top else []\n",
        "        for span in late:\n"
        "            known.place_at(span[0])\n"
        "        new = known.place(first, top) if first <= top else []\n",
        "P3: a message that arrives after its gap was declared is delivered behind later messages",
        BySimulator("redelivered_after_ack", "out_of_order", "delivered_after_gap", seed=1),
    ),
    Mutant(
        "epoch-not-raised-on-restore",
        "protocol/sender/fencing.py",
        "            return Verdict.RENUMBER if self.above else Verdict.SEND",
        "            return Verdict.SEND",
        "P3, P5: a restored outbox publishes in an epoch below the one that groups have entered",
        ByTest(
            "protocol/test_fencing.py::test_a_higher_epoch_is_renumbered_above_once_a_twin_has_had_its_time",
            "assert gate.verdict(1.4) is Verdict.RENUMBER",
        ),
    ),
    Mutant(
        "failed-message-overtaken-by-an-epoch",
        "protocol/receiver/redelivery.py",
        "                if now < self.retry_at:\n                    return None, False\n",
        "                if now < self.retry_at:\n                    continue\n",
        "P3: messages of the next epoch are delivered while a message whose handler raised waits for "
        "redelivery",
        ByTest(
            "protocol/test_group.py::test_a_message_that_failed_is_overtaken_by_none[next epoch]",
            "assert state.offer(0.05, 1) is None",
        ),
    ),
    Mutant(
        "dropped-message-passed",
        "transport/mqtt/receive_window.py",
        "        if self.dropped or (len(self._mids) >= self._window and self.bytes + size > self._held_bytes):",
        "        if len(self._mids) >= self._window and self.bytes + size > self._held_bytes:",
        "P3, P5: after a message that was not taken in, later ones are taken in, and their acknowledgements "
        "cover it",
        ByTest(
            "transport/test_mqtt_full_window.py::test_what_follows_a_dropped_message_is_dropped",
            "assert window.receive(0) is None",
        ),
    ),
    Mutant(
        "quarantine-overtaken",
        "consumer/site.py",
        "        if shared.quarantine.any_roomless and shared.admission.quarantine_comes_first(stream):\n"
        "            # Earlier messages are there. Were this one taken in first, the stream might begin with it.\n"
        "            self._refuse(delivery, frame, stream)\n"
        "            return False\n",
        "",
        "P3: a stream begins with what arrives, although earlier messages wait in the quarantine",
        ByTest(
            "consumer/test_many_streams.py::test_a_stream_begins_with_what_is_in_quarantine[message]",
            "assert bench.engine.shared.core.streams == {}",
        ),
    ),
    Mutant(
        "never-offered-stays-behind",
        "protocol/sender/fencing.py",
        "        if epoch >= self._lowest and named:",
        "        if epoch >= self.epoch and named:",
        "P3: messages that an earlier opening stored in an epoch below its group's, and never offered, are sent there",
        ByTest(
            "producer/test_control_fences.py::TestRenumbering::test_what_was_stored_while_the_clock_was_behind",
            "assert second._outbox.epoch < epochs[0] < epochs[1]",
        ),
    ),
    Mutant(
        "far-claim-believed-at-once",
        "protocol/sender/fencing.py",
        "        return not self._signed and epoch > max(wall_ms, self.epoch) + FAR_MS",
        "        return False",
        "P3: a single forged state frame sends a producer's epochs far ahead",
        ByTest(
            "protocol/test_fencing.py::test_one_made_up_state_with_a_far_epoch_costs_a_moment",
            "assert gate.verdict(5.1) is Verdict.SEND",
        ),
    ),
    Mutant(
        "fenced-by-no-limit",
        "protocol/sender/fencing.py",
        "        if epoch < MAX_EPOCH - ROOM:\n",
        "        if epoch < MAX_EPOCH:\n",
        "P3: a producer moves above an epoch that leaves no room above it, instead of stopping",
        ByTest(
            "protocol/test_fencing.py::test_a_group_that_entered_what_no_producer_can_exceed_fences",
            "assert gate.verdict(2.0) is verdict",
        ),
    ),
    Mutant(
        "epoch-without-a-limit",
        "wire/data.py",
        "    epoch: Epoch\n    incarnation: Incarnation\n    seq",
        "    epoch: Seq\n    incarnation: Incarnation\n    seq",
        "P3: a frame is accepted whose epoch no producer can exceed",
        ByTest(
            "wire/test_data.py::TestLimits::test_a_field_out_of_range",
            "with pytest.raises",
            "Failed",
        ),
    ),
    # -- P4: once -------------------------------------------------------------------------------------------
    Mutant(
        "repeat-not-flagged",
        "protocol/receiver/reorder_buffer.py",
        "        self.high_water = self.redelivered_below = high_water\n",
        "        self.high_water = high_water\n",
        "P4: messages that are delivered again after a crash are not flagged",
        BySimulator("duplicate", seed=0),
    ),
    Mutant(
        "high-water-not-stored",
        "store/inbox.py",
        '" high_water = excluded.high_water, settled = excluded.settled, last = excluded.last,"',
        '" settled = excluded.settled, last = excluded.last,"',
        "P4: a commit does not record how far messages may have been delivered, so repeats are not flagged",
        BySimulator("duplicate", seed=6),
    ),
    Mutant(
        "clean-stop-forgets-the-open-ones",
        "protocol/receiver/stream.py",
        "                high = known.cursor if entered else 0",
        "                high = known.position if entered else 0",
        "P4: messages that were delivered but not acknowledged when a consumer was closed are delivered again"
        " without a flag",
        BySimulator("duplicate", seed=6),
    ),
    Mutant(
        "dedupe-forgets-settled",
        "protocol/receiver/reorder_buffer.py",
        "        if self.settled.empty:\n            new",
        "        if True:\n            new",
        "P4: a duplicate of a message that was acknowledged out of order is delivered again",
        BySimulator("redelivered_after_ack", "duplicate", seed=6),
    ),
    Mutant(
        "settled-ranges-not-stored",
        "protocol/receiver/stream.py",
        "known.position, high, settled, known.last",
        "known.position, high, [], known.last",
        "P4: messages that were acknowledged out of order are delivered again after a crash",
        BySimulator("redelivered_after_ack", seed=1),
    ),
    Mutant(
        "finished-epochs-forgotten",
        "consumer/commits.py",
        "        [(f.epoch, f.incarnation, f.last) for f in history.finished],",
        "        [(f.epoch, f.incarnation, f.last) for f in history.finished[:-1]],",
        "P4, P9: after a restart it is no longer known that the latest epoch was finished",
        BySimulator("false_gap", "redelivered_after_ack", "checker/phantom_gap", seed=6),
    ),
    Mutant(
        "full-disk-counts-as-success",
        "consumer/commits.py",
        "            self._failed(plan, error)\n            return False\n",
        "            self._failed(plan, error)\n            left = QuarantineChange([], [])\n",
        "P4, P5: data that could not be committed counts as durable, and brokers may forget it",
        ByTest(
            "consumer/test_failed_commits.py::test_what_a_failed_commit_should_have_held_stays_at_its_broker",
            'assert bench.queued()["dc1"] == 1',
        ),
    ),
    Mutant(
        "durable-before-commit",
        "consumer/commits.py",
        "        batch = self._batch(snapshot, pending, entries, missed)\n",
        "        batch = self._batch(snapshot, pending, entries, missed)\n"
        "        shared.durability.synced = sync\n",
        "P4: ack(durable=True) returns before the commit",
        BySimulator("redelivered_after_ack", seed=8),
    ),
    Mutant(
        "durable-with-the-commit-before",
        "consumer/commits.py",
        "            shared.durability.committed(plan.sync, plan.pending, self._committed_at + COMMIT_EVERY_S)\n",
        "            shared.durability.committed(\n"
        "                shared.durability.sync_wanted, plan.pending, self._committed_at + COMMIT_EVERY_S\n"
        "            )\n",
        "P4: an acknowledgement counts as durable with a commit that began before it",
        ByTest(
            "consumer/test_failed_commits.py::test_what_is_to_be_durable_while_a_commit_is_written_is_so"
            "_with_the_next",
            "assert durable[:2] == [[False], [True, False]]",
        ),
    ),
    Mutant(
        "lease-not-checked",
        "consumer/deliveries.py",
        "            if self._ended or shared.durability.blocked or role.barred or now >= role.lease.until:\n",
        "            if self._ended or shared.durability.blocked or role.barred:\n",
        "P4: a consumer that was suspended wakes up and delivers although another one has taken over",
        ByTest(
            "consumer/test_lease.py::test_what_waits_is_not_handed_out_by_one_that_wakes_up_before_it_has_a_new_proof",
            "assert bench.engine.deliveries.take(1, 10) is None",
        ),
    ),
    Mutant(
        "takeover-not-flagged",
        "protocol/receiver/takeover.py",
        "            known.flag_redelivered(self.high_water)",
        "            known.flag_redelivered(0)",
        "P4: a standby that takes over redelivers, without a flag, what the other consumer had delivered",
        ByTest(
            "protocol/test_status_standby.py::test_a_standby_flags_what_the_other_may_have_handed_out",
            "assert next((flag, first) for first, _, flag in flags) == (True, 21)",
        ),
    ),
    Mutant(
        "renewal-counts-as-lost",
        "consumer/connector.py",
        ' and site.state != "connected" and not renewing\n',
        ' and site.state != "connected"\n',
        "P5: an inbox that took over and renews its connection before its first proof waits again, without end",
        ByTest(
            "consumer/test_succession.py::test_a_session_is_kept_before_the_first_proof_if_its_own_client_renews_the_connection[renewed]",
            'assert phase(second) == ("active" if ended == "renewed" else "waiting")',
        ),
    ),
    Mutant(
        "doubt-forgotten",
        "consumer/restore.py",
        "        None if uncertainty is None else Uncertainty(*uncertainty, saved.history.answered),\n",
        "        None,\n",
        "P4: a standby that took over and was killed delivers, without a flag, what its predecessor had "
        "delivered",
        ByTest(
            "consumer/test_succession.py::test_that_another_may_have_handed_out_more_outlives_a_kill[a"
            "mqp-after taking over]",
            "assert [(m.epoch, m.redelivered) for m in got][-10:] == [(epoch, True)] * 10",
        ),
    ),
    Mutant(
        "failed-commit-forgotten",
        "protocol/receiver/group.py",
        "            self.context.mark(change.stream)\n            self.streams[change.stream].change_failed(change)",
        "            self.streams[change.stream].change_failed(change)",
        "P4: the contents of a failed commit are left out of the next one, and count as durable",
        ByTest(
            "protocol/test_group.py::test_deliveries_are_released_only_by_the_commit_that_makes_them_safe",
            'assert sorted(map(str, commit(run.core))) == ["1"',
        ),
    ),
    Mutant(
        "retired-stream-begins-anew",
        "consumer/loading.py",
        "                        core.restore_retired(restored(row, core.context), now)\n",
        "                        pass\n",
        "P4: a stream that left memory starts over, and its messages are delivered again",
        ByTest(
            "consumer/test_many_streams.py::test_a_restart_loads_only_what_is_not_settled[False]",
            'assert got == {f"p{number}": [1, 2] for number in range(STREAMS)}',
        ),
    ),
    Mutant(
        "forgotten-without-a-tombstone",
        "consumer/forgetting.py",
        "    return Tombstone(msgspec.structs.replace(row, prev=None), joined, _trimmed(history))\n",
        "    return None\n",
        "P4: messages that a site delivers again of a stream that an operator had forgotten are delivered "
        "again",
        ByTest(
            "consumer/test_forgetting.py::test_what_comes_again_of_a_forgotten_stream_is_known_and_what_"
            "is_new_is_delivered",
            "assert (known(bench), bench.inbox.tombstone_count) == (0, 1)",
        ),
    ),
    Mutant(
        "recording-taken-for-new",
        "protocol/receiver/joining.py",
        "        proven = self._view.proof is not None or not self._rules.signed\n",
        "        proven = True\n",
        "P4: recorded frames that are replayed to a new group are delivered as new",
        ByTest(
            "protocol/test_unproven.py::test_whoever_is_new_and_whatever_arrives[new-answers-backlog]",
            "assert unflagged == new",
        ),
    ),
    Mutant(
        "answer-of-nothing-is-final",
        "protocol/receiver/stream.py",
        "            return proof is None or (self.joining.proof_is_empty and end_of(announced) > end_of(proof))\n",
        "            return proof is None\n",
        "P5: a group that asked before anything was held for it never learns of what was published since and lost",
        ByTest(
            "protocol/test_unproven.py::"
            "test_what_is_published_after_an_answer_that_held_nothing_and_reaches_no_site_is_repaired",
            "assert group.core.challenges.due(group.now) == [STREAM]",
        ),
    ),
    Mutant(
        "unproven-not-flagged",
        "protocol/receiver/joining.py",
        '            self._takeover.note_unproven()\n            return "unproven"',
        '            return "unproven"',
        "P4: messages that no producer vouches for are delivered without the flag",
        ByTest(
            "protocol/test_unproven.py::test_whoever_is_new_and_whatever_arrives[new-silent-backlog]",
            "assert set(given) <= group.flagged",
        ),
    ),
    Mutant(
        "old-answer-proves",
        "consumer/control.py",
        "        self._began = self.shared.numbers.latest\n"
        "        self._nonce = self.shared.inbox.random_bytes(CHALLENGE_BYTES)\n"
        "        self._challenges.clear()\n",
        "        self._began = self.shared.numbers.latest\n",
        "P4: an answer to a question from before a takeover vouches for what is new since then",
        ByTest(
            "consumer/test_far_epochs.py::test_an_answer_to_what_was_asked_before_proves_nothing[a takeover]",
            "assert (bench.take(), kept(bench)) == ([], [(FAR, 1, 5)])",
        ),
    ),
    Mutant(
        "any-answer-proves",
        "consumer/control.py",
        "        if any(nonce == self._nonce or nonce in self._challenges for nonce in status.nonces):\n",
        "        if status.nonces:\n",
        "P4: an answer to anybody's question vouches for what is new to this group",
        ByTest(
            "consumer/test_far_epochs.py::test_an_answer_to_what_was_asked_before_proves_nothing[a restart]",
            "assert (bench.take(), kept(bench)) == ([], [(FAR, 1, 5)])",
        ),
    ),
    Mutant(
        "not-challenged",
        "protocol/receiver/stream.py",
        "                    self._context.challenges.want(self.stream, now)\n",
        "                    pass\n",
        "P4: a group without a position does not ask what is new to it",
        ByTest(
            "protocol/test_unproven.py::test_the_very_first_message_comes_as_soon_as_the_producer_answers[Tru"
            "e-earliest]",
            "assert group.core.challenges.due(group.now) == [STREAM]",
        ),
    ),
    Mutant(
        "delivered-while-it-closes",
        "consumer/deliveries.py",
        "        self._ended = True\n",
        "        self._ended = False\n",
        "P4: what a thread is given while another one closes the consumer comes again without the flag",
        ByTest(
            "consumer/test_ends.py::test_nothing_is_delivered_once_the_inbox_was_left_as_after_a_clean_stop",
            "assert not bench.engine.deliveries.may_take",
        ),
    ),
    Mutant(
        "refused-answer-forgotten",
        "consumer/control.py",
        "            if stream not in core.streams:\n                if not places:\n",
        "            if True:\n                if not places:\n",
        "P5: a stream from the quarantine begins behind messages that its producer announced while there was no room",
        ByTest(
            "consumer/test_many_streams.py"
            "::test_a_stream_that_enters_memory_from_the_quarantine_learns_where_it_begins[40.0]",
            "assert (10, 1, 1) in answer(3.5)",
        ),
    ),
    Mutant(
        "handed-out-before-reserved",
        "protocol/receiver/redelivery.py",
        "        last = min(last, known.high_water - 1)\n        if last < first:\n            return None, True\n",
        "",
        "P4: messages are delivered before a commit records that they may have been, so after a kill they "
        "come again without a flag",
        ByTest(
            "protocol/test_group.py::test_nothing_is_offered_before_a_commit_says_that_it_may_have_been",
            "assert state.offer(0.0, 1) is None",
        ),
    ),
    # -- P5: no silent loss ---------------------------------------------------------------------------------
    Mutant(
        "consumer-cursor-too-far",
        "protocol/receiver/stream.py",
        "known, known.position, high, settled",
        "known, known.cursor, high, settled",
        "P5: after a crash delivered messages count as acknowledged",
        BySimulator("redelivered_after_ack", "lost", "let_go_unsafe", "skipped", seed=11),
    ),
    Mutant(
        "acknowledged-before-commit",
        "protocol/receiver/reorder_buffer.py",
        "        first = max(first, self.safe_position)\n        if self.last",
        "        first = max(first, self.cursor)\n        if self.last",
        "P5: the broker is told that a message is safe before its acknowledgement is committed",
        ByTest(
            "consumer/test_engine.py::test_nothing_is_acknowledged_to_the_broker_before_it_is_safe",
            'assert bench.queued()["dc1"] == 1',
        ),
    ),
    Mutant(
        "unsafe-duplicate-acknowledged",
        "protocol/receiver/stream.py",
        "    release = not new and not late and (last < known.safe_position or known.is_safe(first, last))",
        "    release = not new and not late",
        "P5: the broker may forget a duplicate although the first copy exists only in memory",
        BySimulator("let_go_unsafe", seed=0),
    ),
    Mutant(
        "left-to-who-does-not-keep-it",
        "protocol/receiver/producer_view.py",
        "        if not (latest.consumed and self.answered) or self.cut:\n",
        "        if not self.answered or self.cut:\n",
        "P5: messages behind a held gap are left to a producer that keeps them only until they are confirmed",
        BySimulator("let_go_unsafe", seed=302),
    ),
    Mutant(
        "left-to-who-kept-it-once",
        "protocol/receiver/producer_view.py",
        "        return owner.is_fresh(now) and owner.keeps(epoch, incarnation, first, last)\n",
        "        return owner.keeps(epoch, incarnation, first, last)\n",
        "P5: messages behind a held gap are left to a producer that has not been heard for a long time",
        ByTest(
            "consumer/test_letting_go.py::test_what_is_not_proven_to_be_kept_is_kept_here[long_ago]",
            "assert let_go(bench) == set()",
        ),
    ),
    Mutant(
        "left-though-named-later",
        "protocol/receiver/producer_view.py",
        "        if latest.since is None or (epoch, first) < latest.since:\n",
        "        if latest.since is None:\n",
        "P5: messages published before their producer named the group are left to it",
        ByTest(
            "consumer/test_letting_go.py::test_what_is_not_proven_to_be_kept_is_kept_here[named_later]",
            "assert let_go(bench) == set()",
        ),
    ),
    Mutant(
        "left-and-forgotten",
        "protocol/receiver/reorder_buffer.py",
        "            self.announced = let_go\n",
        "            pass\n",
        "P5: after a crash nobody knows that anything was left to a producer",
        ByTest(
            "consumer/test_letting_go.py::test_what_its_producer_keeps_is_let_go_of_and_comes_again[amqp-True]",
            "assert gap is not None",
        ),
    ),
    Mutant(
        "held-frame-dropped",
        "store/inbox.py",
        "self._drop_held(connection, stream_id, row.epoch, 0, row.position - 1)",
        "self._drop_held(connection, stream_id, row.epoch, 0, row.position)",
        "P5: the inbox deletes the batch that ends with the next message",
        ByTest(
            "store/test_inbox.py::test_a_full_disk_loses_nothing_and_works_again_when_there_is_room",
            "assert inbox.held_bytes == stored * 20_000",
        ),
    ),
    Mutant(
        "taken-and-not-given",
        "consumer/deliveries.py",
        "            if unused is not None:\n",
        "            if unused is not None and not portion.abandoned:\n",
        "P5: messages behind one whose handler raised count as delivered",
        ByTest(
            "consumer/test_engine.py::test_behind_a_message_that_failed_nothing_is_given_out_of_a_chunk_in_hand",
            "assert seqs(bench.take()) == list(range(1, 11))",
        ),
    ),
    Mutant(
        "gap-skipped-without-a-word",
        "protocol/receiver/stream.py",
        "            self.declare(gap, now)\n            return\n        if self._rules.hold_gaps:",
        "            known.settle(first, last or known.highest)\n"
        "            self.advance(now)\n"
        "            return\n"
        "        if self._rules.hold_gaps:",
        'P5: with on_gap="skip" a gap is skipped without being declared',
        BySimulator("skipped", "stalled", "checker/lost", "checker/undeclared_gap", seed=1),
    ),
    Mutant(
        "gap-clock-not-restarted",
        "protocol/receiver/gaps.py",
        "        before, self.target = self.target, target\n"
        "        self.elapsed = self.saved = self.waited = 0.0\n",
        "        before, self.target = self.target, target\n",
        "P5: a gap expires early because its clock continues where that of the previous gap stopped",
        ByTest(
            "protocol/test_gaps.py::test_another_gap_starts_at_zero_and_the_same_goes_on",
            "assert (clock.elapsed, clock.waited) == (0.0, 0.0)",
        ),
    ),
    Mutant(
        "gap-expires-while-stopped",
        "protocol/receiver/gaps.py",
        "            step = min(max(0.0, now - self._at), MAX_STEP_S)",
        "            step = max(0.0, now - self._at)",
        "P5: a gap expires while its consumer's process is suspended",
        ByTest(
            "protocol/test_gaps.py::test_one_step_counts_at_most_a_second",
            "assert clock.tick(10_000.0, True) == 1.0",
        ),
    ),
    Mutant(
        "gap-expires-while-cut-off",
        "protocol/receiver/stream.py",
        "        running = idle and counts\n",
        "        running = idle\n",
        "P5: a gap expires while its consumer is connected to no site",
        ByTest(
            "protocol/test_group.py::test_no_gap_expires_while_no_site_is_connected",
            "assert run.core.streams[STREAM].gaps.undecided is None",
        ),
    ),
    Mutant(
        "joined-where-it-arrives",
        "protocol/receiver/joining.py",
        "        return lowest.epoch, 0, first - 1\n",
        "        self.join(lowest, first)\n        return None\n",
        "P5: a group treats missing messages before its first delivery as older than itself",
        ByTest(
            "protocol/test_status_tails.py::test_a_lost_head_is_repaired_before_what_came_after",
            "assert group.got == []",
        ),
    ),
    Mutant(
        "stream-read-from-its-end",
        "transport/amqp/receiver.py",
        'FROM_THE_START = {STREAM_OFFSET: "first"}',
        'FROM_THE_START = {STREAM_OFFSET: "next"}',
        "P5: a stream queue delivers only what is published from now on",
        ByTest(
            "transport/test_amqp_attaching.py::test_a_queue_that_an_operator_declared_is_attached_to_as_w"
            "hat_it_is",
            "assert channel.consumed[QUEUE] == attached",
        ),
    ),
    Mutant(
        "stream-not-recognised",
        "transport/amqp/topology.py",
        "        if streams is not None and \"current is 'stream'\" in refused.reason:\n"
        "            streams.add(queue)\n",
        "",
        "P5: a queue that an operator declared as a stream is consumed like any other queue, and delivers "
        "nothing",
        ByTest(
            "transport/test_amqp_attaching.py::test_a_queue_that_an_operator_declared_is_attached_to_as_w"
            "hat_it_is",
            "assert channel.consumed[QUEUE] == attached",
        ),
    ),
    Mutant(
        "stream-not-found-out",
        "transport/amqp/receiver.py",
        "            self._queues.streams.add(queue)\n"
        '            self.connection.drop(Ended(f"queue {queue} is a stream: it is to be read from its '
        'start"))\n'
        "            return\n",
        "            self._queues.streams.add(queue)\n",
        "P5: a queue that turns out to be a stream only when it delivers is not read from its start",
        ByTest(
            "transport/test_amqp_attaching.py::test_what_only_its_deliveries_show_to_be_a_stream_is_read_"
            "from_its_start_by_the_next_connection",
            'assert dropped == [f"queue {QUEUE} is a stream: it is to be read from its start"]',
        ),
    ),
    Mutant(
        "tail-not-believed",
        "protocol/receiver/epochs.py",
        "                known.announce(last)\n",
        "                known.announce(min(last, known.arrived))\n",
        "P5: a producer's announcement of a stream's end is ignored, so a lost tail is never missed",
        ByTest(
            "protocol/test_status_tails.py::test_a_lost_tail_is_asked_for_and_repaired",
            "assert group.got == all_of(teller)",
        ),
    ),
    Mutant(
        "damaged-body-trusted",
        "wire/data.py",
        "        return len(body) == self.envelope.body_size and zlib.crc32(body) == self.envelope.body_crc",
        "        return len(body) == self.envelope.body_size",
        "P5: a body with a wrong checksum is delivered",
        ByTest(
            "wire/test_data.py::TestDamage::test_every_single_bit_flipped[False]",
            "with pytest.raises(data.FrameError) as caught:",
            "Failed",
        ),
    ),
    Mutant(
        "damaged-body-not-checked",
        "consumer/intake.py",
        '    if not frame.intact():\n        return Rejected("undecodable", frame)\n',
        "",
        "P5: without keys, where no signature reveals it, a damaged body is accepted",
        ByTest(
            "consumer/test_control.py::test_a_repair_that_is_damaged_or_for_another_topic_is_set_aside",
            "assert sum(rejected.values()) == 4",
        ),
    ),
    Mutant(
        "dead-letter-lost",
        "consumer/durability.py",
        "        for name in _LISTS:\n",
        "        for name in _LISTS[1:]:\n",
        "P5: a message that was given up while the disk was full is lost",
        ByTest(
            "consumer/test_failed_commits.py::test_a_dead_letter_that_a_failed_commit_should_have_held"
            "_is_in_the_next",
            "assert [letter.seq for letter in read_dead_letters(bench.path)] == [1]",
        ),
    ),
    Mutant(
        "unsigned-frame-trusted",
        "wire/data.py",
        '    if envelope.key_id is None or envelope.signature is None:\n        raise FrameError("unsigned")',
        "    if envelope.key_id is None or envelope.signature is None:\n        return",
        "P5: with keys configured, a batch without a signature is delivered",
        ByTest(
            "wire/test_signatures.py::TestBatches::test_unsigned_and_half_signed_ones_are_refused",
            "with pytest.raises(FrameError) as raised:",
            "Failed",
        ),
    ),
    Mutant(
        "prev-last-ignored",
        "protocol/receiver/chain.py",
        "    return Link(LinkKind.ENDS, last=prev.last)",
        "    return Link(LinkKind.ENDS, last=known.last)",
        "P5: an epoch counts as complete when everything known of it has arrived",
        ByTest(
            "protocol/test_chain.py::test_links[prev1-LinkKind.ENDS-25]",
            "assert (found.kind, found.last) == (kind, last)",
        ),
    ),
    Mutant(
        "damaged-envelope-trusted",
        "wire/data.py",
        "    if zlib.crc32(packed) != crc:",
        "    if len(packed) != size:",
        "P5: an envelope with a wrong checksum is believed",
        ByTest(
            "wire/test_data.py::TestDamage::test_every_single_bit_flipped[False]",
            "with pytest.raises(data.FrameError) as caught:",
            "Failed",
        ),
    ),
    Mutant(
        "gap-expires-while-busy",
        "protocol/receiver/stream.py",
        "        running = idle and counts\n",
        "        running = counts\n",
        "P5: a gap's clock starts while messages before the gap are still being handled",
        ByTest(
            "protocol/test_group.py::test_the_time_of_a_gap_begins_when_all_before_it_is_dealt_with",
            "assert state.gaps.undecided is None",
        ),
    ),
    Mutant(
        "silent-when-one-group-has-it",
        "protocol/sender/group_progress.py",
        "        return all(member.position >= tail for member in members.values())",
        "        return any(member.position >= tail for member in members.values())",
        "P5: a producer stops announcing a tail once one of its groups has it",
        ByTest(
            "protocol/test_group_progress.py::test_settled_needs_all_groups_named_or_heard",
            "assert not made.settled(ORDERS)",
        ),
    ),
    Mutant(
        "taken-counts-as-given",
        "consumer/deliveries.py",
        "            if unused is not None:\n",
        "            if unused is not None and portion.abandoned:\n",
        "P5: messages that were taken but not passed to the application count as delivered",
        ByTest(
            "consumer/test_engine.py::test_what_was_taken_and_not_given_is_handed_out_again_without_the_flag",
            "assert seqs(rest) == list(range(4, 11))",
        ),
    ),
    Mutant(
        "part-counts-as-whole",
        "consumer/buffer.py",
        "        contents, size = _Contents(frame), len(frame.data)\n",
        "        contents, size = _Contents(frame), len(frame.data)\n"
        "        spans = [(spans[0][0], spans[-1][1])]\n",
        "P5: where parts of a frame have come from another site, the range between them counts as held",
        ByTest(
            "consumer/test_engine.py::test_a_part_of_a_frame_is_stored_as_a_frame_of_its_own",
            "assert 99 * 100 < bench.inbox.held_bytes < 99 * 120",
        ),
    ),
    Mutant(
        "frame-dropped-with-a-part",
        "consumer/buffer.py",
        "        while done < len(batches) and batches[done].last < position:",
        "        while done < len(batches) and batches[done].first < position:",
        "P5: a frame leaves memory although only part of it is settled",
        ByTest(
            "consumer/test_engine.py::test_a_frame_stays_in_memory_until_all_of_it_is_settled",
            "item = self.engine.deliveries.take",
            "StoreCorrupt",
        ),
    ),
    Mutant(
        "full-window-stops-reading",
        "simulation/transport.py",
        'and the repairs that these may wait for."""\n        return True\n',
        'and the repairs that these may wait for."""\n        return len(self._window) < window_of(self.site)\n',
        "P5: a receiver whose window is full stops reading its connection, and so no longer hears its own "
        "heartbeats; the simulator has to see the stall",
        ByTest(
            "simulation/test_mqtt.py::test_a_full_window_stalls_nobody",
            'assert "stalled" not in outcome.kinds',
        ),
    ),
    Mutant(
        "full-window-drops-control-frames",
        "transport/mqtt/receive_window.py",
        "        if self.dropped or (len(self._mids) >= self._window and self.bytes + size > self._held_bytes):",
        "        if self.dropped or len(self._mids) >= self._window:",
        "P5: beyond its window an MQTT site takes in nothing although there is room in memory, so what a "
        "stream waits for may be dropped",
        ByTest(
            "transport/test_mqtt_full_window.py::test_what_follows_a_dropped_message_is_dropped",
            "assert window.receive(mid) == mid - 1",
        ),
    ),
    Mutant(
        "gap-expires-while-the-inbox-is-full",
        "consumer/fullness.py",
        "        if now - self._short_at > LOOK_EVERY_S:\n            return False\n",
        "        return False\n",
        "P5: a gap expires while the application keeps the inbox full, although the missing messages may wait"
        " at a broker",
        ByTest(
            "consumer/test_full_inbox.py::test_no_gap_expires_while_the_application_keeps_the_inbox_full",
            "assert isinstance(item, DeliverySlice), item",
        ),
    ),
    Mutant(
        "coroutine-handler-accepted",
        "arguments.py",
        '        if inspect.iscoroutinefunction(one) or hasattr(one, "_is_coroutine"):  # the '
        "latter: a mock\n"
        '            return "a coroutine function (async def)"\n',
        "",
        "P5: run(async_handler) acknowledges every message, and the handler never runs",
        ByTest(
            "consumer/test_handlers.py::test_functions_whose_body_would_not_run_are_refused[coroutine "
            "function]",
            "with pytest.raises(ConfigError, match=name):",
            "Failed",
        ),
    ),
    Mutant(
        "awaitable-result-ignored",
        "arguments.py",
        "    if inspect.iscoroutine(result) or inspect.isgenerator(result):\n"
        "        result.close()  # avoids a later warning from Python\n"
        "    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result)):\n"
        "        return None\n",
        "    return None\n",
        "P5: a handler's message is acknowledged although the handler returned an awaitable, which never runs",
        ByTest(
            "consumer/test_handlers.py::test_callbacks_that_return_what_nobody_runs_are_reported",
            "wait_for(lambda: told",
        ),
    ),
    Mutant(
        "pickled-message-acknowledged-nowhere",
        "pickling.py",
        "    return msgspec.structs.replace(Message(*content), _settler=_ELSEWHERE)\n",
        "    return Message(*content)\n",
        "P5: a pickled message is acknowledged in another process, and its consumer never learns of it",
        ByTest(
            "test_message.py::test_a_pickled_message_is_equal_and_cannot_be_acknowledged[5]",
            'with pytest.raises(ClosedError, match="was pickled"):',
            "Failed",
        ),
    ),
    Mutant(
        "message-pickled-with-its-consumer",
        "pickling.py",
        "copyreg.pickle(Message, _reduce)\n",
        "",
        "P9: a consumer's message cannot be pickled",
        ByTest(
            "test_message.py::test_a_pickled_message_is_equal_and_cannot_be_acknowledged[5]",
            "again = pickle.loads(pickle.dumps([message], protocol))[0]",
            "TypeError",
        ),
    ),
    Mutant(
        "refused-stream-acknowledged",
        "consumer/site.py",
        "        if arrival.refused:\n"
        "            self._refuse(delivery, frame, stream)\n"
        "        elif arrival.deferred:\n"
        "            self.deferred.put",
        "        if arrival.refused:\n"
        "            return True\n"
        "        elif arrival.deferred:\n"
        "            self.deferred.put",
        "P5: messages of streams beyond max_streams are acknowledged and lost",
        ByTest(
            "consumer/test_many_streams.py::test_beyond_the_hard_limit_messages_wait_until_it_is_raised",
            'assert sorted(got) == [f"p{number}" for number in range(8)]',
        ),
    ),
    Mutant(
        "gap-expires-though-in-quarantine",
        "protocol/receiver/stream.py",
        "            if self._is_kept(kept):\n"
        "                clock.rewind()\n"
        "                return now + POLL_S\n"
        "            self._expire",
        "            self._expire",
        "P5: a gap expires although the missing messages are in the quarantine",
        ByTest(
            "consumer/test_many_streams.py::test_a_gap_does_not_expire_while_what_is_missing_is_in_quarantine",
            "assert bench.take() == []",
        ),
    ),
    Mutant(
        "hold-not-reported",
        "protocol/receiver/stream.py",
        "            self._context.emit(GapHeld(gap))\n",
        "",
        "P5: nobody is told that a stream is held, or by which gap",
        ByTest(
            "consumer/test_holds.py::test_it_goes_on_by_itself_when_the_messages_arrive",
            "assert [type(error) for error in errors] == [GapHeld]",
        ),
    ),
    Mutant(
        "hold-ends-never",
        "protocol/receiver/stream.py",
        "        gaps = self.gaps\n        gaps.resume()\n",
        "        gaps = self.gaps\n",
        "P5: a held stream does not resume when the messages arrive",
        ByTest(
            "consumer/test_holds.py::test_it_goes_on_by_itself_when_the_messages_arrive",
            "assert not is_held(bench)",
        ),
    ),
    Mutant(
        "held-gap-skipped",
        "protocol/receiver/stream.py",
        "            elif self.gaps.held_by is None:\n                self._hold(gap)\n",
        "            else:\n                self.declare(gap, now)\n",
        'P5: with on_gap="hold" a gap is skipped when its time is over',
        ByTest(
            "consumer/test_holds.py::test_it_goes_on_by_itself_when_the_messages_arrive",
            "assert bench.take() == []",
        ),
    ),
    Mutant(
        "removed-gap-holds",
        "protocol/receiver/stream.py",
        '            if reason == "removed":\n'
        "                self.declare(gap, now)\n"
        "            elif self.gaps.held_by is None:\n",
        "            if self.gaps.held_by is None:\n",
        "P5: messages that their producer removed hold a stream as if they could still arrive",
        ByTest(
            "consumer/test_holds.py::test_what_its_producer_removed_holds_nobody_and_is_declared_at_once",
            "assert seqs(bench.take()) == [5, 6]",
        ),
    ),
    Mutant(
        "acceptance-not-stored",
        "consumer/commits.py",
        "        list(change.accepted),",
        "        [],",
        "P5: a crash loses what an operator accepted",
        ByTest(
            "consumer/test_holds.py::test_what_was_accepted_behind_unacknowledged_messages_outlives_a_crash",
            "assert seqs(bench.take()) == [1, 2, 5, 6]",
        ),
    ),
    Mutant(
        "hold-ends-the-run",
        "protocol/receiver/stream.py",
        "        if self._rules.hold_gaps:",
        "        if self._rules.hold_gaps and False:",
        "P5: with the default policy, one stream's gap stops all streams",
        ByTest(
            "consumer/test_holds.py::test_it_goes_on_by_itself_when_the_messages_arrive",
            "assert isinstance(item, DeliverySlice), item",
        ),
    ),
    Mutant(
        "past-epoch-acknowledged-before-commit",
        "protocol/receiver/stream.py",
        "            if history.is_safe:\n                return Arrival(release=True)",
        "            if history is not None:\n                return Arrival(release=True)",
        "P5: a duplicate of an epoch whose end is not on disk is acknowledged to its broker",
        ByTest(
            "protocol/test_let_go.py::test_a_duplicate_of_an_epoch_whose_end_is_not_on_disk_is_kept_until_it_is",
            'assert not reader.receive("dc2", 10, 3, 5)',
        ),
    ),
    Mutant(
        "epoch-end-safe-before-commit",
        "protocol/receiver/chain.py",
        "        return not (self.changed or self._saving)",
        "        return not self.changed",
        "P5: an epoch's end counts as on disk while it is still being written",
        ByTest(
            "protocol/test_let_go.py::test_so_is_one_that_arrives_while_that_is_being_written",
            'assert not reader.receive("dc2", 10, 3, 5)',
        ),
    ),
    Mutant(
        "far-epoch-believed",
        "protocol/horizon.py",
        "        return epoch > self.limit(vouched)\n",
        "        return False\n",
        "P5: a single forged packet with an epoch far ahead silences a producer for good",
        ByTest(
            "protocol/test_horizon.py::test_an_epoch_far_ahead_leaves_no_trace_and_has_its_producer_asked",
            "assert group.take(FAR, 1, 1, Prev(NOW_MS, NOW_MS * 7, 3)).far",
        ),
    ),
    Mutant(
        "far-epoch-acknowledged",
        "consumer/site.py",
        "            self._keep_far(delivery, frame, stream, now)\n            return False\n",
        "            return True\n",
        "P5: messages of an epoch too far ahead are acknowledged and lost",
        ByTest(
            "consumer/test_far_epochs.py::test_forged_epochs_hold_up_nobody_and_are_acknowledged_only_"
            "when_they_are_safe[173800000]",
            "assert kept(bench) == [(epoch, 1, 1)]",
        ),
    ),
    Mutant(
        "horizon-learns-from-anybody",
        "protocol/horizon.py",
        "        if self._signed:\n            self._newest_ms = max(self._newest_ms, epoch, ts_us // 1000)",
        "        self._newest_ms = max(self._newest_ms, epoch, ts_us // 1000)",
        "P5: without keys, each forged frame raises the limit for what the next one may claim",
        ByTest(
            "protocol/test_horizon.py::test_no_number_of_forgeries_raises_the_horizon_without_keys",
            "assert group.take(FAR, 1, 1).far",
        ),
    ),
    Mutant(
        "zero-secret-accepted",
        "keys.py",
        "    if not any(secret):\n"
        '        raise ConfigError(f"the secret of key {number} is all zeros: use '
        'secrets.token_bytes(32)")\n',
        "",
        "P5: a secret of zeros is accepted",
        ByTest(
            "test_secrets.py::test_a_mistyped_file_of_keys_is_refused_and_not_repeated[all zeros]",
            "with pytest.raises(click.BadParameter) as raised:",
            "Failed",
        ),
    ),
    Mutant(
        "short-secret-accepted",
        "keys.py",
        "MIN_SECRET_BYTES = 16\n",
        "MIN_SECRET_BYTES = 1\n",
        "P5: a secret that can be guessed is accepted",
        ByTest(
            "test_keys.py::test_what_is_no_key_ring_is_refused[keys8-None-at least 16]",
            "with pytest.raises(ConfigError, match=says) as raised:",
            "Failed",
        ),
    ),
    Mutant(
        "open-keys-file-accepted",
        "keys.py",
        "    if found.st_mode & 0o027:",
        "    if found.st_mode & 0o002:",
        "P5: a key file that everybody can read is accepted",
        ByTest(
            "test_secrets.py::test_a_file_of_keys_that_others_can_open_is_refused[420-False]",
            'with pytest.raises(click.BadParameter, match="chmod 600") as raised:',
            "Failed",
        ),
    ),
    Mutant(
        "control-unheard-behind-a-full-window",
        "transport/mqtt/receiver.py",
        "            if control:\n                self._on_control(publish)",
        "            if control and not self._window.dropped:\n                self._on_control(publish)",
        "P5: control frames behind messages that are not taken in are not heard, and a reader deposes itself",
        ByTest(
            "transport/test_mqtt_full_window.py::test_what_does_not_fit_comes_again[5]",
            'wait_for(lambda: picky.say(GROUP, b"behind it all") and got.frames',
        ),
    ),
    Mutant(
        "told-of-what-is-over-ignored",
        "protocol/receiver/stream.py",
        "        self._past.supersede_announced(whole)\n",
        "",
        "P5: messages that are published in a finished epoch, and lost by every broker, are never declared",
        ByTest(
            "protocol/test_superseding.py::test_a_status_of_an_epoch_that_is_over_declares_it",
            'assert group.told("declared") == SUPERSEDED',
        ),
    ),
    Mutant(
        "lost-outbox-came-before",
        "protocol/receiver/epochs.py",
        "        return self.joined_after is None or epoch <= self.joined_after\n",
        "        return True\n",
        "P5: messages that the replacement of a lost outbox publishes in a lower epoch count as published "
        "before the group joined",
        ByTest(
            "protocol/test_superseding.py::test_an_outbox_that_was_lost_and_goes_on_before_the_place_of_joining_is_declared"
            "[False]",
            'assert group.told("declared") == SUPERSEDED',
        ),
    ),
    Mutant(
        "settled-in-another-history",
        "protocol/receiver/joining.py",
        "    position = remembered.settled_in(announced.chain)\n",
        "    position = remembered.position\n",
        "P5: a new inbox skips what a restored outbox published between epochs that the group had settled",
        ByTest(
            "protocol/test_superseding.py::test_what_a_group_had_settled_in_another_history_is_not_settled_in_this_one",
            "assert given | {n for _, first, last in told for n in range(first, last + 1)} == set(range(1, 11))",
        ),
    ),
    Mutant(
        "lost-outbox-says-all",
        "protocol/receiver/joining.py",
        "    return any(entry[0] == epoch for entry in announced.chain)\n",
        "    return announced.epoch >= epoch\n",
        "P5: a group that joined when its producer's outbox had lost the epoch is never told what it missed "
        "of that epoch",
        ByTest(
            "protocol/test_superseding.py"
            "::test_an_outbox_that_has_lost_the_epoch_says_nothing_of_what_came_before_in_it",
            'assert group.told("declared") == [(10, 1, 5, JOINED_LATE)]',
        ),
    ),
    Mutant(
        "what-comes-later-is-forgotten",
        "protocol/receiver/stream.py",
        "        if closing and current is not None and self.takeover.keep(current.epoch):\n",
        "        if False:\n",
        "P4: what a lost inbox had delivered of later epochs is redelivered without the flag if its stream made room",
        ByTest(
            "protocol/test_lost_inbox.py"
            "::test_it_makes_room_where_the_outbox_has_lost_what_led_on_and_flags_what_comes_after_all[producer]",
            "assert group.flagged == {(20, n) for n in range(1, 9)}",
        ),
    ),
    Mutant(
        "what-comes-later-needs-room",
        "protocol/receiver/stream.py",
        "        return not self.view.waiting\n",
        "        remembered = self.takeover.remembered\n"
        "        if remembered is not None and known.epoch < remembered.epoch:\n"
        "            return False\n"
        "        return not self.view.waiting\n",
        "P7: a stream whose next messages its producer has lost keeps others out of memory for good",
        ByTest(
            "protocol/test_lost_inbox.py"
            "::test_it_makes_room_where_the_outbox_has_lost_what_led_on_and_flags_what_comes_after_all[producer]",
            'raise AssertionError("it is not idle")',
        ),
    ),
    Mutant(
        "an-outbox-without-the-group-says-all",
        "protocol/receiver/joining.py",
        '        return self._rules.begin == "latest" or announced.since is not None\n',
        "        return True\n",
        "P5: a group that joined after it had been removed is never told what it missed, although its outbox "
        "goes back to before that",
        ByTest(
            "protocol/test_superseding.py::test_a_copy_from_before_the_group_was_removed_says_what_it_missed[True]",
            'assert group.told("declared") == [(10, 4, 6, JOINED_LATE)]',
        ),
    ),
    Mutant(
        "takeover-forgets-what-came-before",
        "protocol/receiver/epochs.py",
        "        elif self.joined is None or self.joined[0] != known.epoch:\n",
        "        else:\n",
        "P5: an inbox that learns how far its group was mistakes another history for messages from before it "
        "joined",
        ByTest(
            "protocol/test_superseding.py"
            "::test_what_came_before_the_epoch_of_joining_is_known_also_where_the_group_was_further"
            "[earliest-producer]",
            'assert group.told("declared") == SUPERSEDED',
        ),
    ),
    Mutant(
        "stands-where-its-outbox-has-nothing",
        "protocol/receiver/joining.py",
        "        position = max(ends, default=position)\n",
        "        list(ends)\n",
        "P5: an older copy of an inbox waits forever for an epoch that its producer's outbox has lost",
        ByTest(
            "protocol/test_lost_inbox.py"
            "::test_so_it_is_where_the_group_was_in_an_epoch_that_the_outbox_has_lost[False]",
            "assert group.got == [(10, 1), *again, *((30, n) for n in range(1, 5))]",
        ),
    ),
    Mutant(
        "lost-history-not-flagged",
        "protocol/receiver/takeover.py",
        "            return True\n        self.link = own\n",
        "            return False\n        self.link = own\n",
        "P4: a standby delivers messages of a lost history again without the flag",
        ByTest(
            "protocol/test_status_standby.py::test_so_is_all_of_a_history_that_its_producer_has_lost",
            "assert group.flagged == set(group.got) - {(20, 3), (50, 1), (50, 2)}",
        ),
    ),
    Mutant(
        "moved-under-both-numbers-unflagged",
        "protocol/receiver/epochs.py",
        "            if incarnation == known.incarnation and above < epoch < known.epoch:\n",
        "            if incarnation == known.incarnation and above < epoch < known.epoch and not last:\n",
        "P4: a message that was renumbered and sent under both numbers is delivered twice without the flag",
        ByTest(
            "protocol/test_forks.py::test_what_was_moved_and_sent_under_both_numbers_comes_again_flagged",
            "assert again <= group.flagged if crash else again == group.flagged",
        ),
    ),
    Mutant(
        "moved-flag-not-read",
        "consumer/buffer.py",
        "        self.redelivered: bool = offer.redelivered or envelope.flags & FLAG_MOVED != 0\n",
        "        self.redelivered: bool = offer.redelivered\n",
        "P4: messages that a restored outbox may have sent before are delivered again without the flag",
        ByTest(
            "consumer/test_engine.py::test_what_may_have_been_published_in_another_epoch_is_flagged",
            "assert [message.seq for message in given if message.redelivered] == [1, 2, 4, 5, 9, 10]",
        ),
    ),
    Mutant(
        "only-the-opening-itself-tells-what-was-left",
        "protocol/receiver/past_epochs.py",
        "            own = went_back or incarnation == announced.incarnation\n",
        "            own = incarnation == announced.incarnation\n",
        "P1: messages of an outbox that was lost, and opened again since, are lost without being declared",
        ByTest(
            "protocol/test_superseding.py"
            "::test_what_an_opening_left_that_no_longer_answers_is_declared[0-25-False]",
            'assert group.told("declared") == [(20, settled + 1, 8, "superseded")]',
        ),
    ),
    Mutant(
        "surpassed-is-forgotten",
        "producer/epoch_gate.py",
        "        if self._fence.above > self._outbox.surpassed_by:\n",
        "        if False:\n",
        "P1: an opening that no group answers sends messages in an epoch that the groups have left behind",
        ByTest(
            "producer/test_control_fences.py"
            "::TestRenumbering::test_the_next_opening_moves_them_although_no_group_answers",
            "assert all(epoch > ahead for epoch, _, _ in sent(bench))",
        ),
    ),
    Mutant(
        "surpassed-only-by-epochs",
        "producer/control.py",
        "            self._note_surpassed(stream, group, reported, (*reported.entered, position[1] - 1))",
        "            pass\n",
        "P9: the journal does not record that a group had more of an epoch than the restored outbox knows",
        ByTest(
            "producer/test_control_fences.py"
            "::TestRenumbering::test_so_does_one_of_which_a_group_had_more_of_an_epoch_that_is_over[1]",
            "assert found == ([(engine._outbox.epoch, known)] if further else [])",
        ),
    ),
    Mutant(
        "report-without-its-row-proves",
        "checker/groups.py",
        "        return self.sound and self.rows.get(boot, 0) > lsn > 0\n",
        "        return self.sound\n",
        "P9: what an inbox had settled by rows that were lost with it counts as lost, and its report as false",
        ByTest(
            "checker/test_restores.py"
            "::test_a_report_proves_what_the_journal_says_by_the_row_that_it_names[False-a row beyond its end]",
            "assert {f.kind for f in found if f.stream == S} == kinds",
        ),
    ),
    Mutant(
        "reported-rows-not-missed",
        "checker/references.py",
        "        if lsn > self._rows[boot] and boot not in self._growing:\n",
        "        if False:\n",
        "P9: a group reported more rows than its journal has, and all is complete",
        ByTest(
            "checker/test_restores.py"
            "::test_a_report_proves_what_the_journal_says_by_the_row_that_it_names[False-a row beyond its end]",
            'assert {f.text for f in found if "of group g" in f.text} == ({line} if line else set())',
        ),
    ),
    Mutant(
        "report-names-an-older-row",
        "consumer/control.py",
        "(int(journal.newest_boot, 16), journal.newest_lsn) if",
        "(int(journal.newest_boot, 16), 1) if",
        "P9: a state names a row by which its position was not settled yet",
        ByTest(
            "consumer/test_journals.py::test_producers_journal_the_row_by_which_a_group_had_settled",
            "assert lsn >= settled.lsn",
        ),
    ),
    Mutant(
        "missed-reported-early",
        "consumer/protocol_events.py",
        "            self._missed.append(event.gap)\n",
        "            self._health.report(GapError(event.gap))\n",
        "P5: messages are delivered after they were reported as lost, if a consumer on a full disk terminates",
        ByTest(
            "consumer/test_failed_commits.py::test_a_gap_that_was_missed_is_reported_once_that_is_durable",
            "assert [type(error) for error in health.take_errors()] == [InboxWriteError]",
        ),
    ),
    Mutant(
        "missed-forgotten-on-failure",
        "consumer/commits.py",
        "            shared.events.commit_failed(plan.missed)\n",
        "",
        "P5: a gap is not reported if the disk was full",
        ByTest(
            "consumer/test_failed_commits.py::test_a_gap_that_was_missed_is_reported_once_that_is_durable",
            'assert [(gap.epoch, gap.first, gap.last, gap.reason) for gap in missed] == [(10, 1, 4, "joined late")]',
        ),
    ),
    Mutant(
        "declared-and-not-reported",
        "consumer/engine.py",
        "            shared.events.tell_again(shared.inbox.untold)\n",
        "",
        "P5: a gap is never reported if the process ends right after it was declared",
        ByTest(
            "consumer/test_failed_commits.py"
            "::test_a_gap_that_was_missed_is_reported_again_if_the_process_ended_before_that",
            'assert [(gap.first, gap.last, gap.reason) for gap in _gaps(bench)] == [(1, 4, "joined late")] * times',
        ),
    ),
    Mutant(
        "numbers-far-ahead",
        "store/inbox.py",
        "STATES_RESERVED = 2**18\n",
        "STATES_RESERVED = 2**36\n",
        "P7: with keys, no producer answers an older copy of an inbox until its clock has passed the lost numbers",
        ByTest(
            "consumer/test_control.py::test_numbers_of_states_rise_though_the_inbox_is_an_older_copy",
            'assert producer.states("call", call_address(TOPIC))[0].number > newest',
        ),
    ),
    Mutant(
        "no-more-numbers",
        "consumer/commits.py",
        "            shared.numbers.reserved(plan.batch.states_until)\n",
        "",
        "P7: an inbox falls silent after a quarter of a million states",
        ByTest(
            "consumer/test_control.py::test_more_numbers_are_reserved_before_they_run_out",
            "assert len(numbers) > 2 * 20",
        ),
    ),
    Mutant(
        "numbers-used-again",
        "consumer/state_numbers.py",
        "        return number <= self._until\n",
        "        return True\n",
        "P7: after a crash, states have numbers that were sent before, and with keys no producer answers them",
        ByTest(
            "consumer/test_control.py::test_states_that_have_no_number_of_their_own_are_not_sent",
            "assert 10 <= len(told) <= 20",
        ),
    ),
    Mutant(
        "own-opening-named-early",
        "consumer/control.py",
        "(int(journal.newest_boot, 16), journal.newest_lsn) if producer and journal.newest_boot else None",
        "(int(journal.boot, 16), journal.newest_lsn) if producer else None",
        "P9: a state names an opening of which no row is durable, and no journal of it is found after a crash",
        ByTest(
            "consumer/test_control.py::test_a_state_names_no_opening_of_which_nothing_is_committed",
            'assert [(f"{boot:016x}", lsn >= settled) for boot, lsn in filter(None, named)] == [(earlier, True)]',
        ),
    ),
    Mutant(
        "head-before-opened",
        "export/heads.py",
        "if not exported.journal.begun_here:",
        "if False:",
        "P9: the head of an opening of which no row is durable: its journal seems to lack the last boot",
        ByTest(
            "export/test_heads.py::test_an_opening_without_a_row_states_nothing",
            "assert two.heads == {}",
        ),
    ),
    Mutant(
        "newest-boot-forgotten",
        "store/exported.py",
        'get_meta(connection, "journal_last_boot", "")',
        'get_meta(connection, "", "")',
        "P9: a state names no row where the opening before was exported",
        ByTest(
            "export/test_exported.py::test_the_opening_that_wrote_the_newest_row_is_known_once_it_is_exported",
            "assert (exported.journal.newest_boot, exported.journal.begun_here) == (earlier, False)",
        ),
    ),
    Mutant(
        "joined-twice-is-lost",
        "checker/losses.py",
        "missing & group.settled_before_joining(key, announced)\n",
        "Spans()\n",
        "P9: messages that a lost inbox had settled before its successor joined count as never owed",
        ByTest(
            "checker/test_restores.py"
            "::test_what_was_settled_before_a_group_joined_was_settled_by_an_inbox_that_is_gone",
            'assert found_in(h) == {("settled_unseen", E1, 1, 20)}',
        ),
    ),
    Mutant(
        "no-room-no-takeover",
        "protocol/receiver/group.py",
        "                put_off += [report] if len(put_off) < MAX_PUT_OFF else []\n",
        "                put_off += [report] if far and len(put_off) < MAX_PUT_OFF else []\n",
        "P5: a standby without room for a stream forgets where the other consumer was in it",
        ByTest(
            "protocol/test_status_standby.py::test_where_there_is_no_room_for_the_stream_that_happens_once_there_is",
            "assert group.got == [(10, n) for n in range(5, 13)]",
        ),
    ),
    Mutant(
        "taken-in-before-it-was",
        "consumer/quarantine.py",
        "        self.replaying[one.id] = one.stream, one.reason\n",
        "        self.replaying[one.id] = one.stream, one.reason\n        self.took_in(one)\n",
        "P5: a stream begins with a message that arrived before quarantined messages of it were replayed",
        ByTest(
            "consumer/test_many_streams.py::test_what_arrived_just_before_a_replay_does_not_begin_the_stream",
            "assert seqs(bench.take()) == [1, 2, 3, 4]",
        ),
    ),
    Mutant(
        "replay-dropped-like-a-status",
        "consumer/absent.py",
        "        if site is None:\n            if self._statuses",
        "        if site in (None, QUARANTINE):\n            if self._statuses",
        "P5: replayed messages are dropped when too many streams wait to be loaded",
        ByTest(
            "consumer/test_many_streams.py"
            "::test_no_replay_is_forgotten_however_much_waits_for_streams_to_be_loaded",
            'assert got == {f"p{number}": [1, 2, 3, 4, 5, 6, 7] for number in range(6)}',
        ),
    ),
    # -- P6: end to end -------------------------------------------------------------------------------------
    Mutant(
        "forged-state-trusted",
        "wire/control.py",
        "    if not ring.verifies(key_id, signature, _canonical(kind, address, key_id, body)):\n"
        '        raise FrameError("forged", f"not signed with a trusted key {key_id!r} for this address")',
        "    ring.verifies(key_id, signature, _canonical(kind, address, key_id, body))",
        "P6: claims about a group from somebody without the key are believed",
        ByTest(
            "wire/test_control.py::TestSignatures::test_frames_of_another_with_the_same_key_id_or_an_un"
            "known_key_are_refused",
            "with pytest.raises(FrameError) as raised:",
            "Failed",
        ),
    ),
    Mutant(
        "released-before-consumed",
        "protocol/sender/sender.py",
        "        if consumed is not None:\n"
        "            full, partly = _within(full, consumed), _within(partly, consumed)\n",
        "",
        "P6: messages leave the outbox although a group has not acknowledged them",
        ByTest(
            "protocol/test_sender.py::test_where_groups_matter_only_what_they_are_done_with_may_leave",
            "assert world.core.releasable(0, RangeSet([(2, 3)])) == ([(3, 3)], [(2, 2)])",
        ),
    ),
    Mutant(
        "released-once-anything-is-consumed",
        "protocol/sender/sender.py",
        "        if consumed is not None:\n            full, partly",
        "        if consumed is not None and consumed.empty:\n            full, partly",
        "P6: once a group has acknowledged anything, messages leave the outbox that it has not acknowledged",
        ByTest(
            "protocol/test_sender.py::test_where_groups_matter_only_what_they_are_done_with_may_leave",
            "assert world.core.releasable(0, RangeSet([(2, 3)])) == ([(3, 3)], [(2, 2)])",
        ),
    ),
    Mutant(
        "fastest-group-decides",
        "protocol/sender/group_progress.py",
        "        return min(named, key=lambda member: (member.position, member.group), default=None)",
        "        return max(named, key=lambda member: (member.position, member.group), default=None)",
        "P6: messages leave the outbox when one of their groups has acknowledged them",
        ByTest(
            "protocol/test_group_progress.py::test_the_slowest_named_group_counts_and_heard_ones_do_not",
            "assert (slowest.group, slowest.position) ==",
        ),
    ),
    Mutant(
        "consumed-one-too-far",
        "producer/groups.py",
        "            if position is not None and position <= (row.epoch, row.last):",
        "            if position is not None and position < (row.epoch, row.last):",
        "P6: a batch leaves the outbox although its last message is not acknowledged",
        ByTest(
            "producer/test_control.py::TestConsumed::test_batches_stay_until_all_named_groups_are_done",
            "assert inspect_outbox(bench.path).messages == 1",
        ),
    ),
    Mutant(
        "repair-not-sent",
        "producer/control.py",
        "        if fresh and (reported.wanted or reported.missing):",
        "        if fresh and reported.missing and not reported.wanted:",
        "P6: messages that a group asks for are not sent again",
        ByTest(
            "producer/test_control.py::TestRepairs::test_what_is_wanted_goes_to_the_group_alone",
            "assert group.repaired() == [5, 6, 7, 8]",
        ),
    ),
    Mutant(
        "held-range-understated",
        "producer/announcements.py",
        "    return min(oldest[1], last + 1) if epoch == oldest[0] else 1",
        "    return last + 1 if epoch == oldest[0] else 1",
        "P6: a producer denies holding what it holds, so nobody asks for it",
        ByTest(
            "producer/test_control.py::TestStatuses::test_the_end_of_a_stream_is_told_when_it_goes_quiet",
            "assert group.newest().chain == [ChainEpoch(outbox.epoch, outbox.incarnation, 1, 2)]",
        ),
    ),
    Mutant(
        "asked-only-once",
        "protocol/receiver/repair_requests.py",
        "        due = requests.requested_to is None or now >= requests.next_at\n",
        "        due = requests.requested_to is None\n",
        "P6: a repair request that was lost is not repeated",
        ByTest(
            "protocol/test_status_asks.py::test_progress_ends_the_backoff",
            "assert len(group.asked) - before >= 3",
        ),
    ),
    Mutant(
        "uncommitted-state-told",
        "protocol/receiver/stream.py",
        "        return Report(*self.committed, missing, self.gaps.passed, self.gaps.accepted_committed)",
        "        return Report(\n"
        "            max(self.epochs.position, self.committed[0]),\n"
        "            *self.committed[1:],\n"
        "            missing,\n"
        "            self.gaps.passed,\n"
        "            self.gaps.accepted_committed,\n"
        "        )",
        "P6: a group reports its acknowledgements before they are committed",
        ByTest(
            "protocol/test_status_asks.py::test_a_report_holds_only_what_is_committed",
            "assert core.report(STREAM).position == (10, 1)",
        ),
    ),
    Mutant(
        "repair-misses-the-middle",
        "store/rewriting.py",
        "    start = first if found is None else int(found)\n",
        "    start = first\n",
        "P6: a message in the middle of a batch is not found when a group asks for it",
        ByTest(
            "store/test_outbox_groups.py::TestNumbers::test_batches_by_number",
            "assert [row.seq for row in find(stream, epoch, 4, 8, 10_000)] == [3, 5, 7]",
        ),
    ),
    Mutant(
        "newcomer-shares-the-blame",
        "transport/mqtt/quarantine.py",
        "        if len(unanswered) == 1:\n            (address,) = unanswered\n",
        "        for address in unanswered:\n",
        "P6: innocent addresses are quarantined together with a control address that a broker refuses",
        ByTest(
            "transport/test_mqtt_quarantine.py::test_addresses_that_are_unanswered_together_are_isolated_and_not_quarantined",
            'assert not quarantine.connection_ended(["innocent", "newcomer"]',
        ),
    ),
    Mutant(
        "refused-address-tried-for-ever",
        "transport/mqtt/quarantine.py",
        "            proven = isolated.strikes >= STRIKES\n",
        "            proven = False\n",
        "P6: a control address that makes the broker close the connection is retried endlessly",
        ByTest(
            "transport/test_mqtt_quarantine.py::test_one_alone_is_quarantined_by_the_second_connection",
            'assert quarantine.connection_ended(["newcomer"], "reset", 1.0)',
        ),
    ),
    Mutant(
        "coincidence-condemns",
        "transport/mqtt/quarantine.py",
        "STRIKES = 2\n",
        "STRIKES = 1\n",
        "P6: a connection that is lost by coincidence causes an address to be quarantined",
        ByTest(
            "transport/test_mqtt_quarantine.py::test_one_alone_is_quarantined_by_the_second_connection",
            'assert not quarantine.connection_ended(["newcomer"], "reset", 0.0)',
        ),
    ),
    Mutant(
        "suspects-not-tried-alone",
        "transport/mqtt/control_sender.py",
        "            if address not in self._quarantine:\n",
        "            if address:\n",
        "P6: after a refusal, suspected control addresses are used together with all others, so the guilty "
        "one is never found",
        ByTest(
            "transport/test_mqtt_control_sender.py::test_isolated_addresses_are_tried_alone_and_the_cause_is_found",
            "assert broker.unanswered == [address]",
        ),
    ),
    Mutant(
        "suspect-tried-beside-others",
        "transport/mqtt/control_sender.py",
        "        elif sent.idle:\n",
        "        else:\n",
        "P6: a suspected control address is tried while others are unanswered",
        ByTest(
            "transport/test_mqtt_control_sender.py::test_isolated_addresses_are_tried_alone_and_the_cause_is_found",
            "assert broker.unanswered == [address]",
        ),
    ),
    Mutant(
        "suspect-not-waited-for",
        "transport/mqtt/control_sender.py",
        "        if sent.trial is not None:\n            return\n",
        "",
        "P6: other addresses are used before the broker has answered for a suspected control address",
        ByTest(
            "transport/test_mqtt_control_sender.py::test_isolated_addresses_are_tried_alone_and_the_cause_is_found",
            "assert broker.unanswered[0] not in isolated",
        ),
    ),
    Mutant(
        "later-batch-leaves-first",
        "producer/retention.py",
        "        if self._next[stream] != row.id:\n"
        "            self.kept_back = True\n"
        "            return False\n",
        "",
        "P6: batches leave the outbox while an earlier one of their stream stays",
        ByTest(
            "producer/test_leaving_in_order.py::test_what_is_confirmed_ahead_of_an_earlier_batch_stays_with_it",
            "assert release(outbox, [2, 3, 4], [1], NOTHING) == [4]",
        ),
    ),
    # -- P7: bounded ----------------------------------------------------------------------------------------
    Mutant(
        "window-full-drops",
        "protocol/sender/window.py",
        "is sent alone\n                break\n",
        "is sent alone\n                queue.next = row.id + 1\n                break\n",
        "P7: a batch is skipped when a site's window has no room for it",
        BySimulator("stalled", seed=0),
    ),
    Mutant(
        "outbox-with-the-wrong-limit",
        "producer/admission.py",
        "        self.max_bytes = max_bytes\n",
        "        self.max_bytes = QUEUE_BYTES\n",
        "P7: an outbox accepts more than max_bytes",
        ByTest(
            "producer/test_admission.py::TestBudget::test_reserve_transfer_release",
            'assert not admission.reserve("b", 401)',
        ),
    ),
    Mutant(
        "outbox-without-a-limit",
        "producer/admission.py",
        "            and self._taken - self._released + reserved + more <= self.max_bytes\n",
        "",
        "P7: a full outbox accepts more",
        ByTest(
            "producer/test_admission.py::TestBudget::test_reserve_transfer_release",
            'assert not admission.reserve("b", 401)',
        ),
    ),
    Mutant(
        "whole-frame-stored-for-a-part",
        "consumer/buffer.py",
        "        if (self.first, self.last) == (frame.envelope.seq, frame.envelope.last):\n"
        "            return frame.data\n",
        "        if frame.data:\n            return frame.data\n",
        "P7: the inbox stores a whole frame again for each part of it",
        ByTest(
            "consumer/test_engine.py::test_a_part_of_a_frame_is_stored_as_a_frame_of_its_own",
            "assert 99 * 100 < bench.inbox.held_bytes < 99 * 120",
        ),
    ),
    Mutant(
        "full-inbox-not-reported",
        "consumer/fullness.py",
        "        self._shared.health.report(error)\n",
        "",
        "P7: nobody is told that an inbox is full, or which stream fills it",
        ByTest(
            "consumer/test_full_inbox.py::test_a_gap_is_named_and_told_of_once_for_each_episode",
            "(error,) = [each for each in bench.engine.shared.health.take_errors() if isinstance(each, InboxFull)]",
            "ValueError",
        ),
    ),
    Mutant(
        "gap-blamed-on-the-handler",
        "consumer/fullness.py",
        '    return "gap" if idle and state.gaps.clock.target is not None else "handler"',
        '    return "handler"',
        "P7: an inbox that is full of messages behind a gap is blamed on the handler",
        ByTest(
            "consumer/test_full_inbox.py::test_a_gap_is_named_and_told_of_once_for_each_episode",
            "assert error.cause == cause",
        ),
    ),
    Mutant(
        "interrupted-waiter-stays",
        "runtime/wakeup.py",
        "                with contextlib.suppress(ValueError):\n                    self._locks.remove(lock)",
        "                pass",
        "P7: a call that was interrupted while it waited for room counts as waiting forever",
        ByTest(
            "producer/test_interruptions.py::test_waking_while_waking[set-once more]",
            "assert all(done)",
        ),
    ),
    Mutant(
        "waits-for-who-publishes",
        "producer/admission.py",
        "        self._released += size\n",
        "        with self._lock:\n            self._released += size\n",
        "P7: a signal handler that asks for the status waits for a thread that waits for what it interrupted",
        ByTest(
            "producer/test_lock_order.py::test_the_life_of_a_producer",
            "assert not found, found[0]",
        ),
    ),
    Mutant(
        "stream-entered-without-the-lock",
        "producer/engine.py",
        "                with self.shared.lock:\n                    self.shared.streams.open(row)\n",
        "                self.shared.streams.open(row)\n",
        "P7: asking for the status fails while the first message of a topic is stored",
        ByTest(
            "producer/test_lock_order.py::test_the_life_of_a_producer",
            "assert not found, found[0]",
        ),
    ),
    Mutant(
        "writer-dies-in-silence",
        "producer/engine.py",
        "            shared.wake()  # the next step wakes all threads that wait\n",
        "            pass\n",
        "P7: whoever waits in publish() waits forever when the writer has failed",
        ByTest(
            "producer/test_faults.py::TestWriter::test_whatever_fails_in_it_nobody_is_left_waiting[accumulator-take-after]",
            "assert not thread.is_alive()",
        ),
    ),
    Mutant(
        "reservation-forgotten",
        "producer/admission.py",
        "        reserved = sum(self._claims.values())\n        return (",
        "        reserved = 0\n        return (",
        "P7: messages that are accepted but not stored yet do not count against max_bytes",
        ByTest(
            "producer/test_admission.py::TestBudget::test_reserve_transfer_release",
            'assert not admission.reserve("b", 401)',
        ),
    ),
    Mutant(
        "reservation-not-looked-at-again",
        "producer/admission.py",
        "            if self._has_room():  # unless an interruption has taken it meanwhile\n"
        "                return True\n"
        "            del self._claims[claim]\n"
        "            return False\n",
        "            return True\n",
        "P7: a signal handler that publishes takes room that its thread has already taken",
        ByTest(
            "producer/test_interruptions.py::test_room_that_is_asked_for_while_it_is_asked_for",
            "assert engine.admission.used <= 6_000",
        ),
    ),
    Mutant(
        "reservation-not-given-back",
        "producer/admission.py",
        "        self.transfer(owner, 0)\n",
        "        self._room.notify_all()\n",
        "P7: messages that were not stored occupy room in the outbox forever",
        ByTest(
            "producer/test_admission.py::TestBudget::test_reserve_transfer_release",
            "assert (admission.stored, admission.used) == (0, 100)",
        ),
    ),
    Mutant(
        "idle-streams-stay",
        "consumer/loading.py",
        "        if surplus >= 0:\n",
        "        if surplus < 0:\n",
        "P7: idle streams stay in memory forever, until there are max_streams of them",
        ByTest(
            "consumer/test_many_streams.py::test_more_streams_than_memory_bears_are_delivered_once_and"
            "_in_order",
            "assert len(core.streams) + core.known_elsewhere == STREAMS",
        ),
    ),
    Mutant(
        "quarantine-without-a-limit",
        "consumer/quarantine.py",
        '        if not self._room.take(f"{reason} {site}", len(frame.data) + ROW_BYTES):\n'
        "            return None\n",
        "",
        "P7: the quarantine grows without limit",
        ByTest(
            "consumer/test_quarantine.py::test_a_full_quarantine_ends_reading_and_drops_nothing",
            "assert 5 <= kept < 30",
        ),
    ),
    Mutant(
        "held-streams-take-all-room",
        "consumer/admission.py",
        "        self._left = self._limit - self._inbox.held_bytes - held\n",
        "        self._left = 2 * (self._limit - self._inbox.held_bytes)\n",
        "P7: streams held by gaps fill the inbox and leave no room for the others",
        ByTest(
            "consumer/test_hold_room.py::test_a_hold_of_ten_times_the_inbox_stops_nobody_and_ends_in_ord"
            "er[amqp-0]",
            "assert stats.held_bytes <= INBOX * 3 // 8 + 1_000",
        ),
    ),
    Mutant(
        "replayed-row-not-deleted",
        "consumer/site.py",
        "        if arrival.release:\n            shared.durability.pending.unquarantined.append(row.id)\n",
        "",
        "P7: replayed deliveries stay in the quarantine forever",
        ByTest(
            "consumer/test_quarantine.py::test_a_second_replay_is_a_duplicate",
            "assert bench.inbox.quarantine.select(Selection()) == []",
        ),
    ),
    Mutant(
        "columns-not-counted",
        "wire/data.py",
        "    if any(column is not None and _items(column) != count for column in (bodies, "
        "own_keys, own_headers)):\n"
        '        raise FrameError("undecodable", "the body and the envelope differ in the number of '
        'messages")\n',
        "",
        "P7: a frame of 600 bytes is decoded into a gigabyte",
        ByTest(
            "wire/test_bombs.py::test_a_body_that_claims_more_than_it_holds[empty bodies, received-plain]",
            "with pytest.raises(FrameError) as caught:",
            "Failed",
        ),
    ),
    Mutant(
        "header-column-not-counted",
        "wire/data.py",
        'own_headers)):\n        raise FrameError("undecodable", "the body and the envelope differ',
        'own_keys)):\n        raise FrameError("undecodable", "the body and the envelope differ',
        "P7: for a frame of one message, as many headers are decoded as its body claims",
        ByTest(
            "fuzz/test_targets.py::test_real_inputs[batch-grown]",
            "assert peak < ceiling",
        ),
    ),
    Mutant(
        "raw-size-not-bounded",
        "wire/data.py",
        "        if not trusted and max(len(body), envelope.raw_size) > envelope.count * "
        "MAX_RECORD_BYTES:\n"
        '            raise FrameError("undecodable", f"larger than the limit for {envelope.count} messages")\n',
        "",
        "P7: a body is decompressed beyond the size that its messages can have",
        ByTest(
            "wire/test_bombs.py::test_a_body_is_not_decompressed_beyond_what_its_messages_can_take",
            "assert peak_of(lambda: refused(raw, limit=MAX_FRAME_BYTES)) < SLACK",
        ),
    ),
    Mutant(
        "announced-size-trusted",
        "wire/data.py",
        "        if declared not in (raw_size, zstandard.CONTENTSIZE_UNKNOWN):\n"
        '            raise FrameError("undecodable", "the size differs from the envelope")\n',
        "",
        "P7: memory is allocated according to zstd's header, whatever the envelope says",
        ByTest(
            "wire/test_bombs.py::test_what_zstd_announces_is_bounded",
            "assert peak_of(lambda raw=raw: refused(raw)) < len(raw) + SLACK # type: ignore[misc]",
        ),
    ),
    Mutant(
        "quadratic-buffering",
        "transport/amqp/frames.py",
        "            if len(self._rest) < self._needed:\n                return\n",
        "",
        "P7: a frame that arrives in many pieces is copied again with each piece",
        ByTest(
            "transport/test_amqp_frames.py::test_twice_the_bytes_are_twice_the_work[one large frame-7]",
            "assert twice <= 2.1 * once",
        ),
    ),
    Mutant(
        "frame-limit-not-enforced",
        "transport/amqp/frames.py",
        "        if length > self.limit:\n"
        '            raise ProtocolViolation(f"the broker sent a frame of {length} bytes; the '
        'limit is {self.limit}")\n',
        "",
        "P7: anyone who answers at a broker's address may send frames of 4 GiB before the login",
        ByTest(
            "transport/test_amqp_frames.py::test_limits_before_and_after_tune",
            'with pytest.raises(ProtocolViolation, match="limit is 4096"):',
            "Failed",
        ),
    ),
    Mutant(
        "handshake-without-end",
        "transport/amqp/frames.py",
        "        if self.handshake_left is not None and self.handshake_left < 0:\n",
        "        if self.limit < 0:\n",
        "P7: anyone who answers at a broker's address may send endless data before the login",
        ByTest(
            "transport/test_amqp_frames.py::test_a_handshake_without_end[1]",
            "assert taken <= MAX_HANDSHAKE_BYTES + chunk + len(HEARTBEAT)",
        ),
    ),
    Mutant(
        "held-streams-keep-others-out",
        "protocol/receiver/group.py",
        "        return min(len(self.context.held), self.rules.max_streams)\n",
        "        return 0\n",
        "P7: streams held by gaps use up max_streams for all others",
        ByTest(
            "consumer/test_holds.py::test_held_streams_have_places_of_their_own_in_memory",
            "assert seqs(bench.take()) == [number]",
        ),
    ),
    Mutant(
        "full-quarantine-not-reported",
        "consumer/site.py",
        "        shared.admission.fail_for_want_of_room(reason, stream)\n        return False\n",
        "        return True\n",
        "P7: nobody is told that the quarantine is full, and reading continues",
        ByTest(
            "consumer/test_quarantine.py::test_a_full_quarantine_ends_reading_and_drops_nothing",
            "(error,) = errors",
            "ValueError",
        ),
    ),
    # -- P9: what is told is so -----------------------------------------------------------------------------
    Mutant(
        "unknown-stream-not-surpassed",
        "producer/control.py",
        "        if 0 < reported.entered[0] <= self._outbox.epoch:\n",
        "        if False:\n",
        "P9: an outbox that lacks a whole stream leaves no record of that, so what its group was given counts"
        " as made up",
        ByTest(
            "producer/test_control_fences.py::TestRenumbering"
            "::test_one_that_a_group_surpassed_journals_how_far_the_group_is[False-False]",
            "assert found == (surpassed if ahead or not known else [])",
        ),
    ),
    Mutant(
        "cut-ends-with-the-copy",
        "checker/restores.py",
        "            beyond = ENDLESS if one.is_above else one.epoch\n",
        "            beyond = one.epoch\n",
        "P9: messages that went with the disk of an outbox whose clock went back count as never published",
        ByTest(
            "checker/test_restores.py::test_a_copy_whose_clock_went_back_lacks_what_lies_beyond_its_own_epoch[group]",
            'assert found_in(h) == {UNPROVEN, ("unproven", E3, 1, 2), ("phantom", E2, 21, 22)}',
        ),
    ),
    Mutant(
        "journal-begins-the-world",
        "checker/restores.py",
        "    cuts = {producer: {Cut(0, False, epoch)} for producer, epoch in _beginnings(chains).items()}\n",
        "    cuts: dict[str, set[Cut]] = {}\n",
        "P9: what an outbox that was lost had published counts as never published",
        ByTest(
            "checker/test_controlled.py::test_scenario[an outbox takes the place of one that was lost]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "unmet-openings-are-whole",
        "checker/restores.py",
        "        own.update(_unmet(chain, entered[chain.client]))\n",
        "",
        "P9: what went with the disk of an outbox that has published nothing since counts as never published",
        ByTest(
            "checker/test_controlled.py::test_scenario[an opening of an outbox was never met]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "opening-without-journal-complete",
        "checker/references.py",
        "        elif not journals.is_later(reference.epoch):\n",
        "        elif False:\n",
        "P9: the segments of an opening of which a group only received something are away, and all is complete",
        ByTest(
            "checker/test_references.py::test_what_a_row_tells_of_is_missing[received]",
            "assert found == {line}, report.text()",
        ),
    ),
    Mutant(
        "rows-told-of-not-asked-for",
        "checker/references.py",
        "            if journals.lacks_rows(reference):\n",
        "            if False:\n",
        "P9: a status told of more rows than an opening's journal has, and all is complete",
        ByTest(
            "checker/test_references.py::test_what_a_row_tells_of_is_missing[a status told more]",
            "assert found == {line}, report.text()",
        ),
    ),
    Mutant(
        "link-to-nothing-followed",
        "store/database.py",
        "    if os.path.islink(path) and not os.path.lexists(real):\n",
        "    if False:\n",
        "P1: an outbox whose disk is not mounted begins anew where a symbolic link to it points",
        ByTest(
            "test_files.py::test_a_link_to_nothing_begins_no_file[a link-outbox]",
            'with pytest.raises(StoreUnsafe, match="which does not exist: is its disk mounted") as raised:',
            "Failed",
        ),
    ),
    Mutant(
        "gone-inbox-met-nobody",
        "checker/restores.py",
        "        own.update(_passed_unmet(chain, passed, has))\n",
        "",
        "P9: what went with the disk of an outbox counts as never published if the inbox that met the copy is gone",
        ByTest(
            "checker/test_controlled.py::test_scenario[whoever met an older copy of an outbox is gone]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "between-inboxes-all-is-lost",
        "checker/losses.py",
        "        perhaps = self.group.perhaps_settled(key) if tail else self.group.unaccounted(key)\n",
        "        perhaps = self.group.perhaps_settled(key) if tail else Spans()\n",
        "P9: what an inbox may have settled after its last exported row counts as lost once its successor is past it",
        ByTest(
            "checker/test_controlled.py::test_scenario[an inbox that was not closed is gone]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "closed-inbox-may-have-gone-on",
        "checker/groups.py",
        "            course = Course(begin, end, self.chain.end_unknown)\n",
        "            course = Course(begin, end, True)\n",
        "P8: messages that no inbox received are excused because one that was closed may have had them",
        ByTest(
            "checker/test_controlled.py::test_scenario[the same, and the inbox was closed]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "passed-messages-may-be-settled",
        "checker/groups.py",
        "        return in_epoch(beyond, key[1]) - in_epoch(own, key[1])\n",
        "        return in_epoch(beyond, key[1])\n",
        "P8: messages that an inbox passed are excused because another one was not closed",
        ByTest(
            "checker/test_controlled.py::test_scenario[the same, and its successor passes messages]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-between-inboxes-all-is-lost",
        "audit/fates.py",
        "        if piece.settled_unseen or (perhaps if tail else self._group.accounts.lacks(place)):\n",
        "        if piece.settled_unseen or (tail and perhaps):\n",
        "P9: the audit takes for lost what an inbox may have settled after its last exported row",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[an inbox that was not closed is gone]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-closed-inbox-may-have-gone-on",
        "audit/streams.py",
        "            if not course.journal.finished:\n",
        "            if True:\n",
        "P8: the audit excuses messages that no inbox received because one that was closed may have had them",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[the same, and the inbox was closed]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-passed-messages-may-be-settled",
        "audit/fates.py",
        "            begin <= place < end for begin, end in self.own\n",
        "            begin <= place < end for begin, end in ()\n",
        "P8: the audit excuses messages that an inbox passed because another one was not closed",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[the same, and its successor passes messages]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "settled-before-moving-forgotten",
        "checker/losses.py",
        "                if report.epoch != report.key[1]:\n",
        "                if False:\n",
        "P9: what a group settled before an older copy of the outbox moved it counts as never settled",
        ByTest(
            "checker/test_controlled.py::test_scenario[settled messages get another epoch]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "moved-counts-as-settled",
        "checker/losses.py",
        "                    claimed = claimed - self._settled((report.key[0], report.epoch), producer)\n",
        "                    claimed = Spans()\n",
        "P8: a claim that a group had settled messages goes unexamined once they were moved",
        ByTest(
            "checker/test_controlled.py::test_scenario[messages that are said to be settled get another epoch]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-settled-before-moving-forgotten",
        "audit/streams.py",
        "            false = unsettled(views[then], at_group(then), ranges)\n",
        "            false = ranges\n",
        "P9: the audit takes for never settled what a group settled before an older copy of the outbox moved it",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[settled messages get another epoch]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-moved-counts-as-settled",
        "audit/streams.py",
        "            false = unsettled(views[then], at_group(then), ranges)\n",
        "            false = []\n",
        "P8: the audit examines no claim that a group had settled messages once they were moved",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[messages that are said to be settled get another epoch]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "left-to-group-must-come-again",
        "checker/groups.py",
        "        spans -= in_epoch(reader.left.get(stream, ()), epoch)  # noqa: PLW2901\n",
        "",
        "P9: what an inbox owed counts as forgotten, although it was told that its group had settled it",
        ByTest(
            "checker/test_controlled.py::test_scenario[another inbox had settled what was owed]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "all-of-own-epoch-was-left",
        "checker/groups.py",
        "            self.left.setdefault(stream, []).append((own, begin))\n",
        "            self.left.setdefault(stream, []).append(((own[0], 1), begin))\n",
        "P8: what an inbox owed is excused, although its group never said that it had settled it",
        ByTest(
            "checker/test_controlled.py::test_scenario[what was owed is before what another inbox had settled]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-left-to-group-must-come-again",
        "audit/repeats.py",
        "dealt <= {history.rank} and not settled and not history.is_left:\n",
        "dealt <= {history.rank} and not settled:\n",
        "P9: the audit takes for forgotten what an inbox owed, although it was told that its group had settled it",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[another inbox had settled what was owed]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-all-of-own-epoch-was-left",
        "audit/order.py",
        "                    self._left.append((own, begin))\n",
        "                    self._left.append(((own[0], 1), begin))\n",
        "P8: the audit excuses what an inbox owed, although its group never said that it had settled it",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[what was owed is before what another inbox had settled]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "replays-need-rows-that-are-truncated",
        "checker/groups.py",
        '                if not self.chain.broken:\n                    self._find("false_replay", row, *piece)\n',
        '                self._find("false_replay", row, *piece)\n',
        "P9: a replay counts as made up, although the row that could prove it is one of those that are truncated",
        ByTest(
            "checker/test_controlled.py::test_scenario[the same, and the row that says so is truncated]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "holes-begin-at-rows-that-are-truncated",
        "checker/groups.py",
        '            holes.within(row.first, last) if row.kind == "declared" and not self.chain.broken else ()\n',
        '            holes.within(row.first, last) if row.kind == "declared" else ()\n',
        "P9: a gap counts as declared late, although the row by which the group joined behind it is truncated",
        ByTest(
            "checker/test_controlled.py::test_scenario[the same, and the row in which it joined is truncated]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-replays-need-rows-that-are-truncated",
        "audit/repeats.py",
        'not history.before("dead", lsn) and not mark.course.journal.broken:\n',
        'not history.before("dead", lsn):\n',
        "P9: the audit takes a replay for made up, although the row that could prove it is truncated",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[the same, and the row that says so is truncated]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-holes-begin-at-rows-that-are-truncated",
        "audit/repeats.py",
        "                if not filled and not mark.course.journal.broken:\n",
        "                if not filled:\n",
        "P9: the audit takes a gap for declared late, although the row by which the group joined is truncated",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[the same, and the row in which it joined is truncated]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "epoch-without-messages-examined",
        "checker/producers.py",
        "        if key_of(row) in self.renumbering.entered or key_of(row) not in self.used:\n",
        "        if key_of(row) in self.renumbering.entered:\n",
        "P9: an epoch counts as entered wrongly, though the journal may have ended before it says what was moved",
        ByTest(
            "checker/test_controlled.py::test_scenario[a journal ends where an epoch is entered]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "no-epoch-examined",
        "checker/producers.py",
        "        if key_of(row) in self.renumbering.entered or key_of(row) not in self.used:\n",
        "        if True:\n",
        "P8: it does not matter which epoch a producer names as the one before",
        ByTest(
            "checker/test_controlled.py::test_scenario[messages are enqueued in an epoch that follows on nothing]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-epoch-without-messages-examined",
        "audit/numbers.py",
        '    judged = {row.fact.epoch for row in history.of_kind("enqueued")} - {',
        '    judged = {row.fact.epoch for row in history.of_kind("epoch")} - {',
        "P9: the audit takes an epoch for entered wrongly, though its journal may lack what was moved there",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[a journal ends where an epoch is entered]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-no-epoch-examined",
        "audit/numbers.py",
        '    judged = {row.fact.epoch for row in history.of_kind("enqueued")} - {',
        "    judged = set[int]() - {",
        "P8: it does not matter to the audit which epoch a producer names as the one before",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[messages are enqueued in an epoch that follows on nothing]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "claims-about-gone-inbox-are-false",
        "checker/losses.py",
        "        found = found | self._settled_unseen(key, producer) | group.unaccounted(key)\n",
        "        found = found | self._settled_unseen(key, producer)\n",
        "P9: messages count as falsely consumed, although an inbox that was not closed may have settled them",
        ByTest(
            "checker/test_controlled.py::test_scenario"
            "[the same, and it was open, and its successor says that everything is settled]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-claims-about-gone-inbox-are-false",
        "audit/fates.py",
        "        unseen = piece.settled_unseen or self._group.accounts.lacks((self._epoch, piece.first))\n",
        "        unseen = piece.settled_unseen\n",
        "P9: the audit takes messages for falsely consumed that an inbox that was not closed may have settled",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[the same, and it was open, and its successor says that everything is settled]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "moved-counts-as-done-with",
        "producer/engine.py",
        "        self.groups.find_moved(epochs.values())\n",
        "",
        "P1: a message that moved leaves the outbox before any group has it under its new number",
        ByTest(
            "producer/test_control_fences.py"
            "::TestRenumbering::test_what_moves_is_kept_until_its_groups_have_it_again",
            "assert inspect_outbox(path).messages == 2",
        ),
    ),
    Mutant(
        "positions-move-with-their-epochs",
        "protocol/sender/group_progress.py",
        "            member.position = max(member.since, before_moved(member.position, moves))\n",
        "            member.position = max(member.since, _moved(member.position, moves))\n",
        "P1: a message that moved leaves the outbox before any group has it under its new number",
        ByTest(
            "protocol/test_group_progress.py::test_a_group_has_settled_nothing_of_what_was_renumbered",
            "assert found == {",
        ),
    ),
    Mutant(
        "unknown-epoch-left-silently",
        "protocol/receiver/joining.py",
        "        if elsewhere and not found and own < position:\n",
        "        if False:\n",
        "P9: no journal says that an inbox left an epoch unknown to its producer, so messages of it are made up",
        ByTest(
            "protocol/test_lost_inbox.py::test_where_other_epochs_begin_later_the_journal_says_where_the_inbox_was",
            '(note,) = [note for note in group.notes if note.kind == "behind"]',
            "ValueError",
        ),
    ),
    Mutant(
        "rows-never-grow",
        "checker/groups.py",
        "        return self.sound and self.rows.get(boot, 0) > lsn > 0\n",
        "        return self.sound and self.rows.get(boot, 0) >= lsn > 0\n",
        "P9: a report counts as false because a journal that went back has its row from before",
        ByTest(
            "checker/test_controlled.py::test_scenario[a row was exported before it had grown]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-rows-never-grow",
        "audit/context.py",
        "        return self.sound and self.rows.get(boot, 0) > lsn > 0\n",
        "        return self.sound and self.rows.get(boot, 0) >= lsn > 0\n",
        "P9: the audit takes a report for false because a journal that went back has its row from before",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[a row was exported before it had grown]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "lost-history-still-counts",
        "checker/producers.py",
        "                counted[key] = counted[key] - spans[key]\n",
        "                pass\n",
        "P9: what a copy of an outbox does not owe to a removed group counts as lost, because a lost file had owed it",
        ByTest(
            "checker/test_controlled.py::test_scenario[a copy that goes on removes a group]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "lost-history-decides",
        "checker/producers.py",
        "    for _, own in sorted(by_epoch.items()):\n",
        "    for _, own in sorted(by_epoch.items(), reverse=True):\n",
        "P8: a loss is excused because a copy that is gone had removed the group",
        ByTest(
            "checker/test_controlled.py::test_scenario[a copy that did not go on had removed a group]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-lost-history-still-counts",
        "audit/streams.py",
        "                _, counts = max(said)\n",
        "                counts = any(each for _, each in said)\n",
        "P9: the audit takes for lost what a copy of an outbox does not owe to a removed group",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[a copy that goes on removes a group]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-lost-history-decides",
        "audit/streams.py",
        "                _, counts = max(said)\n",
        "                _, counts = min(said)\n",
        "P8: the audit excuses a loss because a copy that is gone had removed the group",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[a copy that did not go on had removed a group]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "own-place-left-out",
        "protocol/receiver/joining.py",
        '                detail["own"] = list(own)\n',
        "                pass\n",
        "P9: no journal says that an inbox's group had settled what the inbox owed, so it counts as forgotten",
        ByTest(
            "protocol/test_lost_inbox.py::test_where_other_epochs_begin_later_the_journal_says_where_the_inbox_was",
            "assert (note.epoch, note.last, note.detail) == (20, settled + 1, detail)",
        ),
    ),
    Mutant(
        "all-who-received-went-on",
        "checker/losses.py",
        "            if not self.group.went_on(key, last, ends.epochs):\n                return True\n",
        "            pass\n",
        "P9: what went with the disk of an outbox counts as never published if no inbox that had received it is left",
        ByTest(
            "checker/test_controlled.py::test_scenario[whoever received what an outbox lost is gone]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "missing-rows-met-nothing",
        "checker/groups.py",
        "        if self.chain.broken:  # the missing rows may say what it met\n            return\n",
        "",
        "P9: what went with the disk of an outbox counts as never published if rows of whoever met that are missing",
        ByTest(
            "checker/test_controlled.py::test_scenario[whoever received what an outbox lost goes on, and what it met is"
            " truncated]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "positions-stay-before-moved",
        "checker/renumbered.py",
        "        return max([at, *((each, ENDLESS) for each in before if each > at[0])])\n",
        "        return at\n",
        "P9: what moved before a group was added counts as owed to the group",
        ByTest(
            "checker/test_controlled.py::test_scenario[messages get another epoch after a group was added behind them]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "removed-position-moves",
        "checker/named_groups.py",
        "self._renumbering.position(stream, at, row.lsn) if added else at\n",
        "self._renumbering.position(stream, at, row.lsn)\n",
        "P9: what moved after a group was removed counts as owed to the group",
        ByTest(
            "checker/test_controlled.py"
            "::test_scenario[messages get another epoch after their group was removed, which had them under the old"
            " one]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "met-over-an-unknown-gap",
        "checker/groups.py",
        "        if not ends:  # what follows meets nothing that is before this gap\n",
        "        if False:\n",
        "P9: what went with the disk of an outbox counts as never published if its group passed the place unseen",
        ByTest(
            "checker/test_controlled.py"
            "::test_scenario[whoever received what an outbox lost passes a gap of unknown extent]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "nobody-who-received-went-on",
        "checker/losses.py",
        "            if not self.group.went_on(key, last, ends.epochs):\n",
        "            if True:\n",
        "P9: made-up messages are excused as lost with a disk, although their group went on and met no other history",
        ByTest(
            "checker/test_controlled.py::test_scenario[whoever received what was never published goes on]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "closed-openings-lose-their-end",
        "checker/restores.py",
        "            own.unclosed.update(_end(boot) for boot in chain.boots[:-1] if not boot.closed)\n",
        "            own.unclosed.update(_end(boot) for boot in chain.boots[:-1])\n",
        "P9: made-up messages at the end of an opening that was closed are excused as lost with a disk",
        ByTest(
            "checker/test_controlled.py::test_scenario[the same, and the outbox had been closed then]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "audit-all-who-received-went-on",
        "audit/streams.py",
        "        unmet, accounts = self._unmet(courses, views), self._accounts(group, courses)\n",
        "        unmet, accounts = set[int](), self._accounts(group, courses)\n",
        "P9: the audit takes what went with the disk of an outbox for never published if no inbox that had received it"
        " is left",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[whoever received what an outbox lost is gone]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-nobody-who-received-went-on",
        "audit/streams.py",
        "if epoch < entered and last > ends.get(epoch, 0)}\n",
        "if False}\n",
        "P9: the audit excuses made-up messages as lost with a disk, although their group went on and met no other"
        " history",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[whoever received what was never published goes on]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "audit-closed-openings-lose-their-end",
        "audit/clients.py",
        "        unclosed = {max(opening.entered) for opening in followed if not opening.closed}\n",
        "        unclosed = {max(opening.entered) for opening in followed}\n",
        "P9: the audit excuses made-up messages at the end of an opening that was closed as lost with a disk",
        ByTest(
            "audit/test_controlled.py::test_each_is_judged_like_by_the_plain_checker"
            "[the same, and the outbox had been closed then]",
            "assert not differences(plain(chains), by_audit(chains))",
        ),
    ),
    Mutant(
        "copy-lacks-its-own",
        "checker/restores.py",
        "    for epoch in sorted({epoch for boot in own for epoch in boot if cut.low < epoch < cut.high}):\n",
        "    for epoch in ():\n",
        "P9: made-up messages in the epochs of a restored copy are excused as lost with the disk",
        ByTest(
            "checker/test_restores.py::test_a_copy_whose_clock_went_back_lacks_what_lies_beyond_its_own_epoch[group]",
            'assert found_in(h) == {UNPROVEN, ("unproven", E3, 1, 2), ("phantom", E2, 21, 22)}',
        ),
    ),
    Mutant(
        "beyond-the-end-no-fork",
        "protocol/receiver/past_epochs.py",
        "            self._find_fork_before(Finished(epoch, incarnation, span[1]))\n",
        "",
        "P9: where a copy of an outbox is just as old as what a group was given, nothing tells of that",
        ByTest(
            "protocol/test_forks.py"
            "::test_what_arrives_from_beyond_the_end_of_an_epoch_was_not_known_to_the_opening_that_named_it[False]",
            "assert conflicts(group) == [(20, 140, known(10, 70, 14, entered=30))]",
        ),
    ),
    Mutant(
        "one-part-for-each-opening",
        "protocol/receiver/past_epochs.py",
        "        self.report(epoch, incarnation, reason)\n        if self._record(epoch, incarnation, known):\n",
        "        if self.report(epoch, incarnation, reason):\n",
        "P9: nothing tells of the second part that an outbox lost which was restored twice",
        ByTest(
            "protocol/test_forks.py::test_each_part_that_an_opening_did_not_know_of_is_journalled[False]",
            "assert of_the_last == [(30, 210, known(10, 70, 10)), (30, 210, known(20, 140, 7))]",
        ),
    ),
    Mutant(
        "behind-no-fork",
        "protocol/receiver/stream.py",
        "            if self.epochs.was_passed_over(epoch):\n",
        "            if False:\n",
        "P9: an outbox that was lost while its clock went back leaves no witness of what went with it",
        ByTest(
            "protocol/test_forks.py::test_an_opening_behind_the_stream_says_what_it_did_not_know[None]",
            "assert (20, 140, known(10, 70, 10, entered=30)) in conflicts(group)",
        ),
    ),
    Mutant(
        "gone-on-with-no-fork",
        "protocol/receiver/stream.py",
        "            if not self.epochs.is_ahead(known.epoch):\n",
        "            if False:\n",
        "P9: an inbox that goes on where another one stopped does not tell what the opening there did not know",
        ByTest(
            "protocol/test_forks.py"
            "::test_an_epoch_that_another_inbox_went_on_to_is_held_against_what_this_one_was_given[None-False]",
            "assert conflicts(group) == [(20, 140, known(10, 70, 12))]",
        ),
    ),
    Mutant(
        "unknown-extent-forgotten",
        "consumer/restore.py",
        "history.superseded, history.unended",
        "history.superseded",
        "P9: after a restart, what comes late from before a gap of unknown extent is taken for another history",
        ByTest(
            "protocol/test_forks.py::test_behind_a_gap_of_unknown_extent_nothing_contradicts[True]",
            "assert conflicts(group) == []",
        ),
    ),
    Mutant(
        "copy-cuts-short-what-was-settled",
        "protocol/receiver/joining.py",
        "                position\n                if epoch == position[0]\n                else min(position,",
        "                min(position,",
        "P9: what an inbox that is gone had settled beyond what a copy of the outbox knows counts as passed over",
        ByTest(
            "protocol/test_lost_inbox.py"
            "::test_what_an_inbox_had_settled_beyond_what_an_older_copy_of_the_outbox_knows_is_told_as_well",
            "(10, 16, [0, 1])",
        ),
    ),
    Mutant(
        "copy-cuts-short-what-was-left",
        "protocol/receiver/joining.py",
        "        return max(last, self._epochs.reached(epoch) if same else 0) + 1\n",
        "        return last + 1\n",
        "P9: of an epoch that its group has left, an inbox redelivered more than a copy of the outbox knows",
        ByTest(
            "protocol/test_lost_inbox.py"
            "::test_what_the_group_left_includes_what_this_inbox_had_of_it_and_an_older_copy_of_the_outbox_has_lost",
            "assert behind[-1] == (10, 13)",
        ),
    ),
    Mutant(
        "moved-and-offered-is-made-up",
        "checker/losses.py",
        "stray & producer.moved[key] if self._may_lack_rows(key) else Spans()",
        "Spans()",
        "P9: what an outbox that was put back did not know was offered counts as never published",
        ByTest(
            "checker/test_controlled.py"
            "::test_scenario[an older copy of an outbox does not know what was offered]",
            "assert _found(report.findings) == scenario.found",
        ),
    ),
    Mutant(
        "unopened-copy-is-whole",
        "checker/restores.py",
        "        if chain.boots and chain.to_the_end and not chain.finished:\n",
        "        if False:\n",
        "P9: what went with the disk of an outbox that was not opened again counts as never published",
        ByTest(
            "checker/test_until.py::test_an_unclosed_journal_proves_no_phantom[True-False]",
            'assert "phantom" in kinds if closed else "phantom" not in kinds',
        ),
    ),
    Mutant(
        "later-openings-excluded",
        "checker/producers.py",
        "        return self.sound and epoch <= self.newest_epoch and not self.may_follow(epoch)\n",
        "        return self.sound and not self.may_follow(epoch)\n",
        "P9: a message of an opening whose journal has not arrived counts as made up",
        ByTest(
            "checker/test_controlled.py::test_scenario[all that a group had met was made up]",
            "assert _found(report.findings) == scenario.found, report.text()",
        ),
    ),
    Mutant(
        "open-journal-proven-to-its-last-change",
        "checker/journals.py",
        "last.begun_us if self.end_unknown else last.changed_us)\n",
        "last.changed_us)\n",
        "P9: complete through a time by which rows began that have not arrived",
        ByTest(
            "checker/test_until.py::test_an_open_journal_is_proven_to_the_beginning_of_its_last_row",
            'assert (report.verdict, report.through.us) == ("complete", T - 300)',
        ),
    ),
    Mutant(
        "dead-disk-under-the-same-name",
        "checker/references.py",
        "            if chain.rows[0].boot != newest and not chain.finished\n",
        "            if False\n",
        "P9: what an outbox had not exported when its disk failed is not missed once another one has its name",
        ByTest(
            "checker/test_references.py::test_the_end_of_a_file_that_another_one_replaced[False]",
            "assert (line in found) != closed, found",
        ),
    ),
    Mutant(
        "copied-deliveries-count-twice",
        "checker/groups.py",
        "        elsewhere = elsewhere - self.shared.get(row.boot, SpanMap())[key_of(row)]\n",
        "",
        "P9: the deliveries before an inbox was copied count as delivered by two inboxes",
        ByTest(
            "checker/test_restores.py::test_histories_of_a_copied_inbox_share_their_first_openings[False]",
            "assert bool(found) == again",
        ),
    ),
    Mutant(
        "head-of-an-earlier-row-proves",
        "checker/journals.py",
        "if (head.boot, head.lsn) == tip), default=0)\n",
        "if head.boot == last.name), default=0)\n",
        "P9: a head from before the journal's last row proves the time up to it, although rows may follow",
        ByTest(
            "checker/test_until.py::test_a_head_proves_the_time_until_which_nothing_had_followed",
            "assert check([writer, replace(reader, heads=(early,))]).through.us == T - 150",
        ),
    ),
    Mutant(
        "clock-step-ignored",
        "checker/through.py",
        '        if row.kind == "clock_step":\n',
        "        if False:\n",
        "P9: complete through a time that a client's clock skipped or showed twice",
        ByTest(
            "checker/test_until.py::test_no_time_is_in_a_step_of_a_clock",
            "assert report.through.us == us",
        ),
    ),
    Mutant(
        "rows-with-digests-never-end",
        "store/journal.py",
        "    if new.digest is not None and old.last % SUMMED == 0:\n",
        "    if False:\n",
        "P9: contents of a stream that never pauses can't be compared",
        ByTest(
            "store/test_journal.py::test_rows_with_a_digest_end_at_common_numbers",
            "assert ends == [1000, 2000, 2500]",
        ),
    ),
    Mutant(
        "open-questions-do-not-hold-the-time",
        "checker/through.py",
        "*(since - 1 for since, _ in questions)])\n",
        "])\n",
        "P9: complete through a time by which messages were enqueued that have not been delivered",
        ByTest(
            "checker/test_until.py::test_the_verdict_is_complete_through_the_least_end_of_a_journal",
            'assert (report.verdict, report.through.us) == ("complete", T + 99)',
        ),
    ),
    Mutant(
        "clock-that-ran-backwards-proves",
        "checker/through.py",
        "for _, low, high in periods if low <= us < high]",
        "for _, low, high in periods if False]",
        "P9: complete through a time at which later rows of the client began, too",
        ByTest(
            "checker/test_until.py::test_no_time_is_in_a_period_in_which_a_clock_ran_backwards",
            'assert (mixed.verdict, mixed.through.us, mixed.messages.proven) == ("complete", T + 249, 10)',
        ),
    ),
    Mutant(
        "contents-beside-a-question-count-as-verified",
        "checker/run.py",
        "        (hidden if beside else found).extend(\n",
        "        ([] if beside else found).extend(\n",
        "P9: complete although the contents of the messages before an open one could not be compared",
        ByTest(
            "checker/test_until.py::test_contents_are_proven_up_to_where_both_journals_end_a_row",
            'assert (report.verdict, report.messages.proven) == ("unknown", 0)',
        ),
    ),
    Mutant(
        "known-and-journalled-is-a-cut",
        "checker/restores.py",
        "                if one.known.last > has.get((one.stream, one.known.epoch), 0):\n",
        "                if True:\n",
        "P9: a group that tells of two histories where there is one excuses what was made up",
        ByTest(
            "checker/test_restores.py"
            "::test_what_an_opening_did_not_know_says_behind_which_one_the_copy_was_made[detail1-False]",
            "assert found == {",
        ),
    ),
    Mutant(
        "journal-row-over-a-hole",
        "store/journal.py",
        "    if old.last + 1 != new.first or",
        "    if old.last >= new.first or",
        "P9: a journal row claims the hole between two ranges",
        ByTest(
            "store/test_journal.py::test_anything_else_is_a_row_of_its_own[a hole]",
            "assert len(writer.rows) == 2",
        ),
    ),
    Mutant(
        "journal-digest-not-summed",
        "store/journal.py",
        "(old.digest + (new.digest or 0)) & _MASK",
        "new.digest or old.digest",
        "P9: a row's digest is that of its last part, so contents cannot be compared",
        ByTest(
            "store/test_journal.py::test_a_successor_makes_the_row_longer",
            "assert (row.first, row.last, row.digest, row.latency) == (1, 9, 2, {3: 9})",
        ),
    ),
    Mutant(
        "journal-rows-of-a-failed-commit-lost",
        "consumer/commits.py",
        "            shared.journal.put_back(plan.entries)\n",
        "",
        "P9: events before a failed commit are not journalled",
        ByTest(
            "consumer/test_failed_commits.py::test_the_journal_has_what_happened_before_a_commit_that_failed",
            'assert [(row.first, row.last, row.site) for row in rows(bench.path, "received")]',
        ),
    ),
    Mutant(
        "stamps-run-backwards",
        "store/stamps.py",
        "Reading(wall_us if wall_us > latest_us else latest_us, offset_us, step)",
        "Reading(wall_us, offset_us, step)",
        "P9: after a clock was set back, rows that are still to come seem to belong to a time that is accounted for",
        ByTest(
            "store/test_stamps.py::test_a_clock_that_was_set_back_while_the_file_was_closed",
            "assert [row.wall_us for row in file.rows[2:]] == [latest] * 3",
        ),
    ),
    Mutant(
        "stamp-leaves-with-the-rows",
        "store/exported.py",
        '            put_meta(connection, "journal_stamp_us", str(self.journal.stamps.latest_us))\n',
        "",
        "P9: a file whose rows were exported forgets its latest stamp",
        ByTest(
            "store/test_stamps.py::test_the_file_keeps_its_latest_stamp_when_its_rows_have_left",
            'assert file.kinds == ["opened", "clock_step"]',
        ),
    ),
    Mutant(
        "rows-grow-for-ever",
        "store/journal.py",
        "return now.stamp_us - self.stamp_us <= LIVENESS_US and now.mono_us - self.mono_us <= LIVENESS_US",
        "return True",
        "P9: a row that began hours ago hides when its messages were handled",
        ByTest(
            "store/test_stamps.py::test_no_row_is_extended_for_longer_than_a_minute",
            "assert [(row.first, row.last) for row in rows] == [(1, 4), (5, 7)]",
        ),
    ),
    # -- signed journals ------------------------------------------------------------------------------------
    Mutant(
        "head-not-signed",
        "export/heads.py",
        "encode_head(head, self._key))",
        "encode_head(head))",
        "P9: a client with a key writes heads that its audit calls damaged",
        ByTest(
            "export/test_heads.py::test_a_client_with_a_key_signs_its_segments_and_its_head",
            "assert [(len(chain.rows), len(chain.heads)) for chain in found.chains] == [(1, 1)]",
        ),
    ),
    Mutant(
        "retired-without-signature",
        "export/retire.py",
        "export_rest(database, exported, destination, key=key)",
        "export_rest(database, exported, destination)",
        "P9: the end of a signed journal is not signed",
        ByTest(
            "cli/test_journal_keys.py::test_retire_signs",
            'assert reliamsg_here("journal", "verify", target, "--journal-keys", keys).returncode == 0',
        ),
    ),
    Mutant(
        "signature-of-heads-not-checked",
        "audit/tasks.py",
        "        if isinstance(head, StatedIdle) and self._trust is not None:\n",
        "        if isinstance(head, StatedIdle) and self._trust is None:\n",
        "P9: anyone can state that a client was idle",
        ByTest("audit/test_signed.py::test_heads_are_signed", "assert by_audit == plainly"),
    ),
    Mutant(
        "key-of-another-role",
        "checker/signatures.py",
        'found.get("key"), trust.keys.of(role, client)\n',
        'found.get("key"), {\n'
        '        **trust.keys.of("group", client), **trust.keys.of("producer", client)\n'
        "    }\n",
        "P9: a group can sign the journal of the producer that has its name",
        ByTest(
            "audit/test_signed.py::test_a_group_does_not_sign_as_the_producer_of_its_name",
            "assert by_audit == plainly",
        ),
    ),
    Mutant(
        "unsigned-accepted-with-keys",
        "checker/journals.py",
        "        if segment.signed or self._trust is None:\n",
        "        if segment is not None:\n",
        "P9: a journal without signatures counts as its client's",
        ByTest("audit/test_signed.py::test_a_chain_that_somebody_else_made", "assert by_audit == plainly"),
    ),
    Mutant(
        "unsigned-after-the-position",
        "audit/job.py",
        "            if not used[each.part.role, each.part.client].issuperset(each.part.unsigned):\n",
        "            if each.part.unsigned and not used[each.part.role, each.part.client]:\n",
        "P9: one position makes all unsigned segments of its client acceptable",
        ByTest("audit/test_signed.py::test_an_earlier_position", "assert by_audit == plainly"),
    ),
    Mutant(
        "every-history-before-the-position",
        "checker/journals.py",
        "        accepted: set[str] = set()\n",
        "        accepted: set[str] = {d for d, p in parents.items() if p is None}\n",
        "P9: anyone can add an unsigned history to a client that began without signing",
        ByTest(
            "audit/test_signed.py::test_nobody_adds_an_unsigned_history_before_the_position",
            "assert by_audit == plainly",
        ),
    ),
    Mutant(
        "kept-without-keys-and-not-read-again",
        "audit/kept.py",
        "            if trust is not None and not is_trusted([each.part for each in own], trust)\n",
        "            if trust is not None and not own\n",
        "P9: what an audit without keys has read counts as verified in one with keys",
        ByTest(
            "audit/test_signed.py::TestState::test_facts_that_were_not_verified_are_read_again",
            "assert by_audit == plainly",
        ),
    ),
    Mutant(
        "one-secret-of-two-clients",
        "trust.py",
        "        if owners.setdefault(secret, owner) != owner:\n",
        "        if owners.setdefault(secret, owner) is None:\n",
        "P9: two clients have the same key, and each can sign as the other",
        ByTest(
            "audit/test_signed.py::test_files_of_keys",
            "with pytest.raises(ConfigError, match=says)",
            "Failed",
        ),
    ),
    Mutant(
        "idle-with-rows-in-the-file",
        "export/heads.py",
        "now < self._due_at or exported.backlog or digest is None",
        "now < self._due_at or digest is None",
        "P9: a client states that nothing has happened, while its file has rows that say otherwise",
        ByTest(
            "export/test_heads.py::test_one_with_rows_that_are_not_exported_states_nothing",
            'assert "journal_head" not in meta(tmp_path / "out.db")',
        ),
    ),
    Mutant(
        "idle-stamp-not-kept",
        "store/exported.py",
        '            put_meta(connection, "journal_stamp_us", str(stamp_us + 1))\n',
        "",
        "P9: a row of the next opening seems to belong to the time in which the client stated that it was idle",
        ByTest(
            "export/test_heads.py::test_neither_do_those_of_the_next_boot",
            "assert all(row.wall_us > head.wall_us for row in rows)",
        ),
    ),
    Mutant(
        "retired-file-opened",
        "store/database.py",
        "            if not self._opens_retired:\n                self._check_not_retired(connection)\n",
        "",
        "P9: a journal continues after a row that says that it is over",
        ByTest(
            "export/test_retire.py::test_the_journal_ends_and_the_file_is_not_opened_again[False]",
            "with pytest.raises(StoreRetired, match=",
            "Failed",
        ),
    ),
    Mutant(
        "journal-believes-a-failed-commit",
        "store/journal.py",
        "        if committed:\n            self._tips.update(self._staged)",
        "        if committed or self._staged:\n            self._tips.update(self._staged)",
        "P9: journal rows that a failed commit rolled back are extended as if they existed",
        ByTest(
            "store/test_journal.py::test_an_undone_transaction_leaves_no_trace",
            'assert writer.spans == [("enqueued", 1, 7)]',
        ),
    ),
    Mutant(
        "trouble-said-each-time",
        "producer/connectivity.py",
        "        if failure in self._logged:\n            return False\n",
        "",
        "P9: that a site is down is logged at every attempt",
        ByTest(
            "producer/test_trouble.py::test_a_trouble_is_said_once_until_the_site_is_connected_again",
            'assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]',
        ),
    ),
    Mutant(
        "trouble-said-softly",
        "producer/connectivity.py",
        'log.warning(\n                "producer.site_unreachable"',
        'log.info(\n                "producer.site_unreachable"',
        "P9: a wrong login, virtual host or CA is not logged as a warning",
        ByTest(
            "producer/test_trouble.py::test_a_trouble_is_said_once_until_the_site_is_connected_again",
            'assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]',
        ),
    ),
    Mutant(
        "timeout-without-a-reason",
        "producer/confirmations.py",
        '            elif site.error:\n                why = f"{site.state}: {site.error}"\n',
        "",
        "P9: ConfirmTimeout does not say why a site has not confirmed",
        ByTest(
            "producer/test_trouble.py::TestTable::test_log_status_and_confirm_timeout[mqtt down]",
            'assert word in error.sites["dc1"]',
        ),
    ),
    Mutant(
        "refused-login-counts-as-silence",
        "cli/subscribe.py",
        "    if away:\n",
        "    if away and count is not None:\n",
        "P9: `reliamsg sub --timeout` exits with 0 although no site lets it in",
        ByTest(
            "badinput/test_commands.py::test_a_refused_login_is_no_silence[mqtt-any number]",
            "assert result.returncode == status, (result.returncode, text)",
        ),
    ),
    Mutant(
        "refused-login-counts-as-incomplete",
        "cli/subscribe.py",
        '_REACHED = ("connected", "listening", "busy")\n',
        '_REACHED = ("connected", "listening", "busy", "refused")\n',
        "P9: `reliamsg sub --count --timeout` blames the topic when a login is refused",
        ByTest(
            "badinput/test_commands.py::test_a_refused_login_is_no_silence[mqtt-one]",
            "assert result.returncode == status, (result.returncode, text)",
        ),
    ),
    Mutant(
        "number-of-any-type",
        "arguments.py",
        "    if isinstance(value, bool) or not isinstance(value, (int, float)):\n"
        '        raise ConfigError(f"{name} must be a number, not {_kind(value)}")\n',
        "",
        "P9: a string passed as a duration raises a TypeError from inside the library",
        ByTest(
            "badinput/test_zoo.py::test_settings[number as text-Site]",
            "attempt(lambda given: make(**given), good | {name: wrong})",
            "TypeError",
        ),
    ),
    Mutant(
        "count-of-any-type",
        "arguments.py",
        "    if isinstance(value, bool) or not isinstance(value, int):\n",
        "    if isinstance(value, bool):\n",
        "P9: a string passed as a number of messages raises a TypeError from inside the library",
        ByTest(
            "badinput/test_zoo.py::test_settings[number as text-Quorum]",
            "attempt(lambda given: make(**given), good | {name: wrong})",
            "TypeError",
        ),
    ),
    Mutant(
        "instance-of-any-class",
        "arguments.py",
        "    if not isinstance(value, kind):\n",
        "    if value is None:\n",
        "P9: an object of another type in place of a MessageId raises an AttributeError from inside the "
        "library",
        ByTest(
            "badinput/test_zoo.py::test_methods[text]",
            "attempt(lambda given, call=call: call(**given), good | {name: wrong})",
            "AttributeError",
        ),
    ),
    Mutant(
        "list-of-anything",
        "arguments.py",
        "    if isinstance(value, (str, bytes, bytearray, memoryview, dict)) or not isinstance(value, Iterable):\n",
        "    if isinstance(value, dict) or not isinstance(value, Iterable):\n",
        "P9: a group name passed in place of a list of names is read letter by letter",
        ByTest(
            "badinput/test_zoo.py::test_what_is_said[arguments3-must be a list of group names, not str]",
            "with pytest.raises(ConfigError, match=words):",
            "Failed",
        ),
    ),
    Mutant(
        "gap-not-named",
        "protocol/sender/group_progress.py",
        "            member.gap = gap\n            self.gaps_changed |= member.named\n",
        "            self.gaps_changed |= member.named\n",
        "P9: a producer does not name the gap that holds up the group that fills its outbox",
        ByTest(
            "producer/test_control.py::test_what_fills_the_outbox_is_named_with_its_gap",
            'assert held.gap == Gap(Stream("p", "t"), epoch, 3, 4, "missing")',
        ),
    ),
    Mutant(
        "headers-not-checked-again",
        "wire/data.py",
        "    check_header_column(headers, signs)\n",
        "",
        "P9: headers that publish would refuse are delivered",
        ByTest(
            "wire/test_bombs.py::test_what_publish_refuses_is_refused[a reserved header]",
            "with pytest.raises(FrameError):",
            "Failed",
        ),
    ),
    Mutant(
        "keys-not-checked-again",
        "wire/data.py",
        "    check_key_column(keys, signs_in(column))\n",
        "",
        "P9: keys that publish would refuse are delivered",
        ByTest(
            "wire/test_bombs.py::test_what_publish_refuses_is_refused[an escape in a key]",
            "with pytest.raises(FrameError):",
            "Failed",
        ),
    ),
    Mutant(
        "controls-printed",
        "terminal.py",
        "    if shown.isprintable() and (shown.isascii() or _suspect(shown) is None):\n"
        "        return shown\n",
        "    return shown\n",
        "P9: a name in a journal can move the cursor of a terminal",
        ByTest(
            "cli/test_terminal.py::test_every_code_point",
            'assert not forbidden(shown.replace("\\n"',
        ),
    ),
    Mutant(
        "invisible-printed",
        "terminal.py",
        "    if shown.isprintable() and (shown.isascii() or _suspect(shown) is None):",
        "    if shown.isprintable():",
        "P9: invisible characters in names are printed unescaped",
        ByTest(
            "cli/test_terminal.py::test_every_code_point",
            'assert not forbidden(shown.replace("\\n"',
        ),
    ),
    Mutant(
        "json-not-ascii",
        "terminal.py",
        "    return _NOT_ASCII.sub(_json_escape, text) if not (text.isascii() and "
        "text.isprintable()) else text",
        "    return text",
        "P9: JSON output contains whatever characters a name contains",
        ByTest(
            "cli/test_terminal.py::test_json_is_ascii_and_means_the_same",
            "assert safe.isascii()",
        ),
    ),
    Mutant(
        "mistyped-secret-repeated",
        "keys.py",
        '            f"key id {number}: use 1 to {MAX_KEY_ID_BYTES} printable ASCII characters, no space"',
        '            f"key id {key_id!r}: use 1 to {MAX_KEY_ID_BYTES} printable ASCII characters, no space"',
        "P9: a secret given in place of a key id is printed",
        ByTest(
            "test_secrets.py::test_wrong_keys_are_not_repeated[keys5-None]",
            "assert not any(secret in text for secret in secrets), text",
        ),
    ),
    Mutant(
        "ambiguous-url-accepted",
        "config.py",
        '    if _AMBIGUOUS_LOGIN.search(login) or "@" in path:',
        "    if _AMBIGUOUS_LOGIN.search(login):",
        "P9: a password with a slash becomes part of what is shown",
        ByTest(
            "test_secrets.py::test_a_url_that_is_refused_is_not_repeated[amqp://svc:123/S3cretMARKER@broker/v]",
            "with pytest.raises(ConfigError) as raised:",
            "Failed",
        ),
    ),
    Mutant(
        "url-options-ignored",
        "config.py",
        '    if "?" in hosts + path or "#" in hosts + path:\n'
        '        raise ConfigError(f"site {name}: settings are arguments of Site(), not part of the URL")\n',
        '    path = path.partition("?")[0]\n',
        "P9: an option in a URL is ignored",
        ByTest(
            "test_config.py::TestUrls::test_bad[amqp://h/v?heartbeat=5]",
            'with pytest.raises(ConfigError, match="dc1") as caught:',
            "Failed",
        ),
    ),
    Mutant(
        "password-in-the-fields",
        "config.py",
        '        put(self, "url", f"{parsed.scheme}://{\',\'.join(map(str, parsed.endpoints))}{parsed.path}")\n',
        "",
        "P9: asdict(site) shows the password",
        ByTest(
            "test_secrets.py::test_a_site_shows_no_password",
            "assert not [text for text in looks_at(site) if MARK in str(text)]",
        ),
    ),
    Mutant(
        "password-in-the-pickle",
        "config.py",
        "    def __reduce__(self) -> str | tuple[object, ...]:\n"
        "        raise TypeError(\n"
        '            "a site with a password can\'t be pickled: create it where it is used, or pass credentials="\n'
        "        )\n",
        "    def __reduce__(self) -> str | tuple[object, ...]:\n        return _Login, self._ask()\n",
        "P9: a pickled site carries its password",
        ByTest(
            "test_secrets.py::test_a_site_shows_no_password",
            'with pytest.raises(TypeError, match="can\'t be pickled") as raised:',
            "Failed",
        ),
    ),
    Mutant(
        "odd-files-not-reported",
        "files.py",
        "                if kind is not None and (stat.S_ISLNK(mode) if name in names else listed):\n"
        "                    found.append((path, kind))",
        "                if kind is not None and (stat.S_ISLNK(mode) if name in names else listed):\n"
        "                    continue",
        "P9: anything among journals that is not a regular file is silently skipped",
        ByTest(
            "test_files.py::test_the_checker_reports_it_and_reads_the_rest[segment-a link to a directory]",
            "(problem,) = [text for text in found.problems if name in text]",
            "ValueError",
        ),
    ),
    Mutant(
        "private-file-by-the-umask",
        "files.py",
        "    descriptor = os.open(path, flags, 0o600)\n"
        "    with contextlib.suppress(PermissionError):  # a file system without modes\n"
        "        os.fchmod(descriptor, 0o600)\n",
        "    descriptor = os.open(path, flags, 0o666)\n",
        "P9: the umask decides who can read outboxes, inboxes and journals",
        ByTest(
            "test_files.py::test_whatever_the_umask_files_and_directories_are_private[0o22]",
            "assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600)",
        ),
    ),
    Mutant(
        "private-directory-by-the-umask",
        "files.py",
        "            os.mkdir(each, 0o700)\n"
        "        except FileExistsError:\n"
        "            continue  # created by another process\n"
        "        os.chmod(each, 0o700)\n",
        "            os.mkdir(each)\n"
        "        except FileExistsError:\n"
        "            continue  # created by another process\n",
        "P9: the umask decides who can list journal directories",
        ByTest(
            "test_files.py::test_whatever_the_umask_files_and_directories_are_private[0o22]",
            "assert mode == (0o700 if (tmp_path / name).is_dir() else 0o600)",
        ),
    ),
    # -- what sites have lost ---------------------------------------------------------------------------------
    Mutant(
        "later-status-proves-a-loss",
        "consumer/latest_statuses.py",
        "        marked, self._before[site] = self._before[site], {}\n",
        "        marked, self._before[site] = {n: self.by_producer[n] for n in self.news[site]}, {}\n",
        "P8: what was confirmed after a queue had been created again counts as lost, although it is in that queue",
        ByTest(
            "consumer/test_control.py::TestNewQueue::test_statuses_before_the_attempt_count_and_later_ones_do_not",
            'assert self.heard_at_last(bench) == {"p": [41, f"{77:016x}"]}',
        ),
    ),
    Mutant(
        "failed-attempt-not-marked",
        "consumer/site.py",
        "        changed = reason != self.error\n        self._statuses.mark(self.name)\n",
        "        changed = reason != self.error\n",
        "P8: of what a site lost, only what was announced before it failed is counted",
        ByTest(
            "consumer/test_control.py::TestNewQueue::test_statuses_before_the_attempt_count_and_later_ones_do_not",
            'assert self.heard_at_last(bench) == {"p": [41, f"{77:016x}"]}',
        ),
    ),
    Mutant(
        "empty-queue-not-marked",
        "consumer/site.py",
        "        self._statuses.mark(self.name)  # it is asked again later\n",
        "",
        "P8: a queue that is seen empty proves nothing while producers announce often",
        ByTest(
            "consumer/test_control.py::TestNewQueue::"
            "test_an_empty_queue_proves_what_was_announced_before_it_was_seen_empty_before",
            "assert len(found) > 20",
        ),
    ),
    Mutant(
        "restart-forgets-its-session",
        "consumer/site.py",
        "        self._read_before = shared.inbox.stream_count > 0\n",
        "        self._read_before = False\n",
        "P8: what a site lost while a consumer did not run is not counted",
        ByTest(
            "consumer/test_control.py::TestNewQueue::"
            "test_a_restarted_consumer_had_a_queue_and_a_new_group_had_none",
            'assert self.heard_at_last(bench) == {"p": [43, f"{77:016x}"]}',
        ),
    ),
    Mutant(
        "lost-site-not-announced",
        "producer/site.py",
        "            self._control.disconnected.add(name)\n",
        "            pass\n",
        "P8: groups do not learn what a lost site had confirmed",
        ByTest(
            "producer/test_control.py::TestStatuses::test_the_confirms_of_a_lost_site_are_announced_by_the_others",
            '(status,) = [status for _, address, status in group.statuses if address == group_address("g")]',
            "ValueError",
        ),
    ),
    Mutant(
        "urgent-announcement-waits",
        "store/journal.py",
        "        reserved = 0 if urgent else _ANNOUNCED_URGENTLY\n",
        "        reserved = _ANNOUNCED_URGENTLY\n",
        "P8: after many announcements, the one about a lost site does not cover its latest confirms",
        ByTest(
            "store/test_journal.py::test_urgent_announcements_have_a_reserve",
            "assert writer.journal.lsn_to_announce(0, urgent=True) == writer.journal.newest_lsn",
        ),
    ),
    Mutant(
        "window-drops-contradictions",
        "audit/windows.py",
        "        return known is None or not incident.is_within(known)\n",
        "        return False\n",
        "P8: an incident in a time that was declared complete does not count in the window",
        ByTest(
            "audit/test_windows.py::test_what_an_earlier_audit_should_have_found_counts",
            'assert (found["window"]["verdict"], status(found)) == ("violated", 1)',
        ),
    ),
    Mutant(
        "acceptance-covers-growth",
        "audit/accepted.py",
        "        return found is not None and incident.is_within(found.incident)\n",
        "        return found is not None\n",
        "P8: an accepted incident that became worse does not count",
        ByTest(
            "audit/test_windows.py::test_an_accepted_incident_that_becomes_worse_counts_again",
            'assert (incident["severity"], incident["accepted"]["covers"]) == ("lost", False)',
        ),
    ),
    Mutant(
        "empty-proof-completes-window",
        "audit/windows.py",
        '        found = "complete" if proven or not enqueued else "unknown"\n',
        '        found = "complete"\n',
        "P8: a window of which nothing is proven is complete",
        ByTest(
            "audit/test_windows.py::test_a_window_of_which_nothing_is_proven_is_unknown",
            'assert (found["window"]["verdict"], status(found)) == ("unknown", 2)',
        ),
    ),
    Mutant(
        "failed-hook-forgotten",
        "audit/hook.py",
        "        if earlier is None or brief.id in unreported:\n",
        "        if earlier is None:\n",
        "P8: an incident is never reported if the hook fails once",
        ByTest(
            "audit/test_windows.py::test_a_hook_that_fails_is_called_again_by_the_next_audit",
            "assert sorted(pager.calls()) == sorted(",
        ),
    ),
    Mutant(
        "kept-times-to-acknowledgements-lost",
        "audit/joining.py",
        "        latencies.setdefault(hop, Counter()).update(counts)\n",
        '        latencies.setdefault(hop, Counter()).update(counts if hop[0] != "acknowledged" else {})\n',
        "P9: an audit with a state forgets how long messages took, once it joins what it has kept",
        ByTest(
            "audit/test_latencies.py::test_the_state_of_audits_keeps_them",
            'assert verdict["latency"].get(HOP) == {',
        ),
    ),
    Mutant(
        "declared-though-others-heard-more",
        "audit/retired.py",
        "    if more:\n",
        "    if False:\n",
        "P9: a client counts as gone although others have heard of later messages",
        ByTest(
            "audit/test_retired.py::test_a_declaration_is_void_if_anyone_heard_more[another_message]",
            "assert {name: (mine[name], other[name]) for name in mine if mine[name] != other[name]} == {}",
        ),
    ),
    Mutant(
        "unclosed-client-declared",
        "checker/retired.py",
        "            elif not all(chains[number].finished for number in ends):\n",
        "            elif False:\n",
        "P9: what an unclosed client wrote at the end counts as complete once it is declared as gone",
        ByTest(
            "audit/test_retired.py::test_an_unclosed_client_stays_unknown",
            "assert {name: (mine[name], other[name]) for name in mine if mine[name] != other[name]} == {}",
        ),
    ),
    Mutant(
        "report-vouches-for-later-rows",
        "audit/offsets.py",
        "        if at >= 0 and ends[at][1] <= lsn:\n",
        "        if at >= 0:\n",
        "P9: clocks count as apart because of messages that a group settled after it had reported",
        ByTest(
            "audit/test_offsets.py::test_a_report_vouches_for_what_was_there[1100-7-6500--1495]",
            "assert not differences(plain(chains), by_audit(chains, seed=seed))",
        ),
    ),
    Mutant(
        "row-counts-by-its-beginning",
        "checker/offsets.py",
        "        return self.began_us if number == self.first else self.ended_us\n",
        "        return self.began_us\n",
        "P9: clocks count as apart because a long row of deliveries began before its last message was published",
        ByTest(
            "audit/test_offsets.py::test_bounds_are_exact[0]",
            'assert offset_of(chains, "g") == Offset("producer", "p", (ahead - 300) * MS, (ahead + 5) * MS)',
        ),
    ),
    # -- judges ---------------------------------------------------------------------------------------------
    Mutant(
        "checker-forgets-discarded",
        "checker/losses.py",
        '        self._put("discarded", key, discarded)\n',
        "",
        "P8: the plain checker leaves out messages that were discarded; its own sums show it",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[rows: group archive of west: the end of the stream is discarded]",
            'found = _shown(check_directory(place / "journals", expect)',
            "SumsDiffer",
        ),
    ),
    Mutant(
        "checker-does-not-add-up-fates",
        "checker/losses.py",
        "        own.check_sums(named)\n",
        "",
        "P8: the plain checker gives a verdict although its numbers contradict each other",
        ByTest(
            "spoilt/test_sums.py::test_the_checker_compares_fates_with_what_was_enqueued",
            "with pytest.raises(SumsDiffer",
            "Failed",
        ),
    ),
    Mutant(
        "checker-does-not-add-up-sites",
        "checker/sites.py",
        "        _check_sums(producers, group, lost_of_group)\n",
        "",
        "P8: the plain checker says that a site lost more than it confirmed",
        ByTest(
            "spoilt/test_sums.py::test_the_checker_compares_what_sites_lost_with_what_they_confirmed",
            "with pytest.raises(SumsDiffer",
            "Failed",
        ),
    ),
    Mutant(
        "audit-forgets-removed",
        "audit/fates.py",
        '        if piece.taken_back:\n            return "removed"\n',
        '        if piece.taken_back:\n            return "strange"\n',
        "P8: the audit leaves out messages that were removed; its own sums show it",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[rows: group archive of east: the end of the stream is removed]",
            "each for each in own if function(each)",
            "SumsDiffer",
        ),
    ),
    Mutant(
        "audit-does-not-add-up-fates",
        "audit/streams.py",
        "        compare_fates(self.stream, group, self._accounted if named else 0, every)\n",
        "",
        "P8: the audit gives a verdict although its numbers contradict each other",
        ByTest(
            "spoilt/test_sums.py::test_the_audit_compares_fates_with_what_was_enqueued",
            "with pytest.raises(",
            "Failed",
        ),
    ),
    Mutant(
        "audit-does-not-add-up-sites",
        "audit/passages.py",
        "        compare_passages(group, every, ours, (of_group.came, of_group.lost, of_group.unproven))\n",
        "",
        "P8: the audit counts what came out of a site twice",
        ByTest(
            "spoilt/test_sums.py::test_the_audit_compares_what_sites_lost_with_what_they_confirmed",
            "with pytest.raises(AuditSumsDiffer",
            "Failed",
        ),
    ),
    Mutant(
        "latency-counts-of-any-size",
        "audit/segment.py",
        "    latency: dict[str, _Count] | None = None\n",
        "    latency: dict[str, _Long] | None = None\n",
        "P8: an audit with a state crashes over the sum of absurd latencies in a journal",
        ByTest(
            "audit/test_hostile_files.py::test_whatever_numbers_a_file_and_its_name_claim",
            "assert (found.problem, len(found.lines or ())) == expected",
        ),
    ),
    Mutant(
        "buckets-of-latencies-unchecked",
        "audit/segment.py",
        "        and all(map(_is_bucket, buckets))\n",
        "",
        "P8: an audit crashes over a latency whose bucket is no number",
        ByTest(
            "audit/test_hostile_files.py::test_whatever_numbers_a_file_and_its_name_claim",
            "assert (found.problem, len(found.lines or ())) == expected",
        ),
    ),
    Mutant(
        "odd-file-is-an-error",
        "checker/journals.py",
        "                if isinstance(place, DirectoryTarget) and (what := special_kind(os.lstat(full).st_mode)):\n",
        "                if False and (what := special_kind(os.lstat(full).st_mode)):\n",
        "P8: the plain checker reports a link among journals in other words than the audit",
        ByTest(
            "checker/test_segments.py::test_a_file_that_is_none",
            'assert "lost.ndjson: not a file: a symbolic link, which is not followed" in broken(report)[0]',
        ),
    ),
    Mutant(
        "odd-file-of-nobody",
        "audit/job.py",
        '        Damaged(path, path.rpartition("/")[2], owner_of(path), f"not a file: {what}")\n',
        '        Damaged(path, path.rpartition("/")[2], None, f"not a file: {what}")\n',
        "P8: the audit does not attribute a link among a client's segments to the client",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[files: a link among a client's segments]",
            'assert found, f"{what}: nothing says {part!r}: {lines}"',
        ),
    ),
    Mutant(
        "stray-copy-read-again",
        "audit/kept.py",
        "            if owner is None and name is not None:\n",
        "            if False and owner is None and name is not None:\n",
        "P8: an audit with a state takes a copy of a segment, found elsewhere, for another segment",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[segments: one of producer west also at {name}]",
            "assert not left",
        ),
    ),
    Mutant(
        "stray-fork-misplaced",
        "audit/sources.py",
        "        if len(starts) < len(own) or starts & strays:\n",
        "        if len(starts) < len(own):\n",
        "P8: the audit takes a copy of a client's file, whose segments are elsewhere, for damage",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[chains: a copy of group billing did nothing, at the root]",
            "assert not left",
        ),
    ),
    Mutant(
        "checker-complete-through-nothing",
        "checker/report.py",
        '        if found in ("violated", "lost") or self.all_counts or self.through.us is None:\n',
        '        if found != "unknown" or self.all_counts or self.through.us is None:\n',
        "P8: the plain checker calls a run complete through a time before every message",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[clocks: the judge's is before the run: running]",
            "assert not differ",
        ),
    ),
    Mutant(
        "audit-complete-through-nothing",
        "audit/verdict.py",
        '    if found in ("violated", "lost") or all_counts or through.us is None:\n',
        '    if found != "unknown" or all_counts or through.us is None:\n',
        "P8: the audit calls a run complete through a time before every message",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[clocks: the judge's is before the run: running]",
            "assert not differ",
        ),
    ),
    Mutant(
        "checker-loses-what-a-lost-opening-had",
        "checker/losses.py",
        "        at_the_end = self.drained and self.group.finished and not self._lacks_rows\n",
        "        at_the_end = self.drained and self.group.finished\n",
        "P8: the plain checker reports as lost what an opening without a journal may have delivered",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[boots: the last of group archive is gone]",
            "assert found == expected.found",
        ),
    ),
    Mutant(
        "audit-loses-what-a-lost-opening-had",
        "audit/fates.py",
        "        at_the_end = self._view.context.drained and self._finished and not self._lacks_rows\n",
        "        at_the_end = self._view.context.drained and self._finished\n",
        "P8: the audit reports as lost what an opening without a journal may have delivered",
        ByTest(
            "spoilt/test_spoilt.py::test_every_judge_gives_the_verdict_that_it_deserves"
            "[boots: the last of group archive is gone]",
            "assert found == expected.found",
        ),
    ),
    Mutant(
        "checkpoint-hides-a-fork",
        "audit/compacted.py",
        "        damaged += [Damaged(path, name, owner, why) for name, path in sorted(paths.items())]\n",
        "",
        "P8: segments of a copy from before a checkpoint's end are neither judged nor reported",
        ByTest(
            "audit/test_checkpoints.py::TestForks::test_before_a_checkpoint_whose_segments_are_gone[False-0]",
            "assert by_audit == by_checker",
        ),
    ),
    Mutant(
        "checkpoint-hides-a-fork-from-the-checker",
        "checker/checkpoints.py",
        '        [f"{line}: {why}" for line in lines],\n',
        "        [],\n",
        "P8: the checker ignores segments of a copy from before a checkpoint's end",
        ByTest(
            "audit/test_checkpoints.py::TestForks::test_before_a_checkpoint_whose_segments_are_gone[False-1]",
            "assert by_audit == by_checker",
        ),
    ),
    Mutant(
        "checkpoint-covers-a-hole",
        "audit/compaction.py",
        "            if header.first_lsn != end + 1:\n",
        "            if header.first_lsn <= end:\n",
        "P8: a checkpoint claims rows that were missing",
        ByTest(
            "audit/test_checkpoints.py::test_a_hole_is_never_covered",
            'assert (done[owner].problem or "").endswith("are missing")',
        ),
    ),
    Mutant(
        "checkpoint-of-a-forged-segment",
        "audit/compaction.py",
        "            verified = None if self._trust is None else self._verified(base, self._trust)\n",
        "            verified = None\n",
        "P9: a checkpoint vouches for a segment that its client has not signed",
        ByTest(
            "audit/test_compacted_signed.py::test_a_chain_of_another_key_is_left_out",
            'assert problem(compacted(journals, trust), TILL).endswith(f": {WRONG}")',
        ),
    ),
    Mutant(
        "checkpoint-of-an-unsigned-segment",
        "audit/compaction.py",
        "            if digest not in accepted:\n",
        "            if not accepted:\n",
        "P9: a checkpoint vouches for unsigned segments behind those that an operator accepts",
        ByTest(
            "audit/test_compacted_signed.py::test_an_unsigned_segment_behind_the_accepted_ones",
            'assert problem(compacted(journals, trust), TILL) == f"{bad.name}: {UNSIGNED}"',
        ),
    ),
    Mutant(
        "locked-directory-left-out",
        "audit/directories.py",
        "os.walk(root, onerror=fails)",
        "os.walk(root)",
        "P8: a client whose directory can't be read is left out of an audit",
        ByTest(
            "audit/test_no_input.py::test_a_directory_that_cant_be_read_is_not_left_out[audit]",
            "assert _PROGRAMS[program](str(journals)) == _NO_INPUT",
        ),
    ),
    Mutant(
        "checkpoint-digest-not-checked",
        "audit/checkpoint.py",
        "    if hashlib.sha256(data).hexdigest() != name.digest:\n",
        "    if not name.digest:\n",
        "P8: an edited checkpoint is not recognized as such",
        ByTest(
            "audit/test_checkpoints.py::test_a_damaged_checkpoint_is_reported_and_segments_are_used_instead"
            "[there-edited]",
            "assert by_audit == by_checker",
        ),
    ),
    Mutant(
        "emptied-client-not-noticed",
        "audit/sources.py",
        "emptied={owner for owner in empty if owner is not None}",
        "emptied=set()",
        "P8: a client whose whole journal was removed is not missed",
        ByTest(
            "audit/test_emptied.py::test_of_a_client_that_nobody_names[-group]",
            "assert shared(found) == shared(plain)",
        ),
    ),
    Mutant(
        "emptied-client-not-noticed-by-the-checker",
        "checker/journals.py",
        "emptied={owner for owner in empty if owner is not None}",
        "emptied=set()",
        "P8: the checker does not miss a client whose whole journal was removed",
        ByTest(
            "audit/test_emptied.py::test_of_a_client_that_nobody_names[-group]",
            "assert shared(found) == shared(plain)",
        ),
    ),
    Mutant(
        "checkpoint-hides-unsigned-segments",
        "audit/job.py",
        "required=self._rules.trust is not None",
        "required=False",
        "P8: with keys of clients, segments that nobody signed count if a checkpoint lists them",
        ByTest(
            "audit/test_checkpoints.py::TestSignatures::test_those_of_clients_can_be_hidden_by_a_checkpoint",
            "assert by_audit == by_checker",
        ),
    ),
    Mutant(
        "unsigned-checkpoint-accepted",
        "audit/signed.py",
        '    if signature is None:\n        return "not signed"\n',
        "    if signature is None:\n        return None\n",
        "P8: a checkpoint that nobody signed is accepted although signatures are checked",
        ByTest(
            "audit/test_checkpoints.py::TestSignatures::test_none",
            "assert by_audit == by_checker",
        ),
    ),
    Mutant(
        "checkpoint-signature-not-verified",
        "checker/checkpoints.py",
        '    if not keys.verifies(signature.key, bytes.fromhex(signature.hmac), [b"reliamsg checkpoint 1", header]):\n',
        "    if not signature.hmac:\n",
        "P8: the checker accepts a checkpoint that somebody else signed",
        ByTest(
            "audit/test_checkpoints.py::TestSignatures::test_does_not_cover_other_content",
            "assert by_audit == by_checker",
        ),
    ),
    Mutant(
        "returned-frames-change-nothing",
        "protocol/returned_frames.py",
        "        if found.rounds < ROUNDS or now - found.since < LEAST_S or now < self._not_before:\n",
        "        if found.rounds >= 0:\n",
        "P6: a client stays connected to a node from which nothing reaches its peer",
        ByTest(
            "simulation/test_unrouted.py::test_repairs_find_another_way[79]", "assert not outcome.violations"
        ),
    ),
    Mutant(
        "own-route-unproven",
        "consumer/control.py",
        "            if address == self._own_address and address not in site.refused_addresses:\n",
        "            if False:\n",
        "P6: a group whose own heartbeats are returned goes on sending them through the same node",
        ByTest(
            "consumer/test_returned_frames.py::test_that_the_group_listens_at_its_own_address_needs_no_proof",
            "assert returned_at_dc1(bench, group_address(GROUP)) == [True]",
        ),
    ),
    Mutant(
        "copies-prove-nobody",
        "producer/site.py",
        "        if is_copy and not (self._returned.any or self._listens_for_groups()):\n",
        "        if is_copy and not self._listens_for_groups():\n",
        "P6: a group that is heard first over another site does not count as heard where its frames are returned",
        ByTest(
            "producer/test_returned_frames.py::test_copies_count_where_frames_are_returned",
            "assert over_both == [True]",
        ),
    ),
    Mutant(
        "repairs-dropped-silently",
        "transport/amqp/control.py",
        "mandatory=is_for_one(frame[0])",
        "mandatory=False",
        "P6: a broker drops frames for one group without telling the sender",
        ByTest(
            "transport/test_amqp_control.py::test_frames_for_one_client_are_returned_while_it_does_not_listen",
            "wait_for(lambda: sent.returned and got.returned",
        ),
    ),
    Mutant(
        "state-shadows-a-checkpoint",
        "audit/kept.py",
        "            if owner in digests and not all(digests[owner].issuperset(each) for each in own)\n",
        "            if owner not in digests\n",
        "P8: with a state, the rows of a checkpoint that the state lacks are ignored",
        ByTest(
            "audit/test_checkpoints.py::TestState::test_a_checkpoint_covers_more_than_the_state",
            "assert by_audit == by_checker",
        ),
    ),
    Mutant(
        "state-signed-as-an-acceptance",
        "audit/signed.py",
        'ACCEPTANCE = b"reliamsg audit acceptance 1"\n',
        "ACCEPTANCE = STATE\n",
        "P8: a signature that the auditor made for something else makes a state valid",
        ByTest(
            "audit/test_state_keys.py::test_forged_files_are_refused[state-as the other file]",
            "with pytest.raises(ConfigError) as error:",
            "Failed",
        ),
    ),
    Mutant(
        "state-of-another-version-not-verified",
        "audit/kept.py",
        "        data = read_signed(path, keys, STATE, _REMEDY).data\n"
        "        if msgspec.json.decode(data, type=_Version).version != VERSION:\n"
        "            return empty\n",
        "        data = path.read_bytes()\n"
        "        if msgspec.json.decode(data, type=_Version).version != VERSION:\n"
        "            return empty\n"
        "        data = read_signed(path, keys, STATE, _REMEDY).data\n",
        "P8: whoever changes the version of a state has the audit discard what was proven",
        ByTest(
            "audit/test_state_keys.py::test_every_field_is_signed[{'version': 99}]",
            "with pytest.raises(ConfigError) as error:",
            "Failed",
        ),
    ),
    Mutant(
        "acceptance-not-verified",
        "audit/acceptances.py",
        "            found = read_signed(path, keys, ACCEPTANCE, _REMEDY)\n",
        "            found = read_signed(path, None, ACCEPTANCE, _REMEDY)\n",
        "P8: anyone who can write to the directory of a signed state accepts incidents",
        ByTest(
            "audit/test_state_keys.py::test_forged_files_are_refused[acceptance-another key]",
            "with pytest.raises(ConfigError) as error:",
            "Failed",
        ),
    ),
    Mutant(
        "acceptance-of-any-name",
        "audit/acceptances.py",
        "        if path != _path(directory, each.incident.id):\n",
        "        if not path.name.startswith(PREFIX):\n",
        "P8: an acceptance has a second file, and stays when it is withdrawn",
        ByTest(
            "audit/test_state_keys.py::test_an_acceptance_is_of_one_incident",
            "with pytest.raises(ConfigError) as error:",
            "Failed",
        ),
    ),
    Mutant(
        "withdrawn-acceptance-signed-again",
        "audit/acceptances.py",
        "    if all(_is_current(signature, keys) for _, signature in _read(directory, keys)):\n"
        "        return\n"
        "    with _changing(directory):  # or one that is withdrawn meanwhile would be back\n"
        "        for each, signature in _read(directory, keys):\n",
        "    found = list(_read(directory, keys))\n"
        "    with _changing(directory):\n"
        "        for each, signature in found:\n",
        "P8: an acceptance that is withdrawn while keys are rotated is back",
        ByTest(
            "audit/test_state_keys.py::test_an_acceptance_that_is_withdrawn_while_keys_are_rotated_stays_withdrawn",
            "assert not read_acceptances(system.state, BOTH).by_id",
        ),
    ),
    Mutant(
        "signature-of-a-state-dropped",
        "audit/kept.py",
        "    if keys is None and (_is_signed(directory) or has_signed_acceptances(directory)):\n",
        "    if keys is None and has_signed_acceptances(directory):\n",
        "P8: an audit without keys takes the signature of a state away",
        ByTest(
            "audit/test_state_keys.py::test_without_keys_a_signed_state_is_not_written[state]",
            "with pytest.raises(ConfigError) as error:",
            "Failed",
        ),
    ),
    Mutant(
        "facts-hashed-as-others-left-them",
        "audit/kept.py",
        "    return KeptFile(name, file.hash.hexdigest())\n",
        "    return KeptFile(name, hashlib.sha256((Path(directory) / name).read_bytes()).hexdigest())\n",
        "P8: an auditor signs facts that others put in the place of his while he wrote them",
        ByTest(
            "audit/test_state_keys.py::test_facts_that_others_change_while_they_are_written_are_not_signed",
            "with pytest.raises(ConfigError, match=",
            "Failed",
        ),
    ),
    # -- asyncio ------------------------------------------------------------------------------------------------
    Mutant(
        "published-to-a-task-before-the-commit",
        "aio/producer.py",
        "        receipt = await opened.room.accept(content_of(topic, body, key, headers))\n"
        "        await opened.commits.wait_durable(receipt.commit)\n",
        "        receipt = await opened.room.accept(content_of(topic, body, key, headers))\n",
        "P1: await publish() returns before the message is committed",
        ByTest(
            "aio/test_producer.py::TestPublishing::test_the_loop_runs_while_the_disk_does_not_answer[asyncio]",
            "assert not publishing.done()",
        ),
    ),
    Mutant(
        "waiting-tasks-overtaken",
        "aio/commits.py",
        "        receipt = None if self._waiting else self._accumulator.accept_now(content)\n",
        "        receipt = self._accumulator.accept_now(content)\n",
        "P3: while the outbox is full, a small message of a later call is published before a large one",
        ByTest(
            "aio/test_producer.py::TestRoom::test_a_large_one_that_gives_up_lets_the_next_pass[asyncio]",
            "assert not small.done()",
        ),
    ),
    Mutant(
        "messages-of-a-task-that-never-ran-forgotten",
        "aio/dispatcher.py",
        "        if item is not None:\n            self._shared.uninterrupted",
        "        if item is None:\n            self._shared.uninterrupted",
        "P5: a task is cancelled before it begins, and its stream is never delivered again",
        ByTest(
            "aio/test_consumer.py::TestRun"
            "::test_a_task_that_is_cancelled_before_it_runs_gives_its_messages_back[asyncio]",
            "assert message is not None",
        ),
    ),
    Mutant(
        "taken-behind-a-failure-returned",
        "consumer/api.py",
        "            self._calls.call(self._drop_behind_failures)\n",
        "            pass\n",
        "P3: messages of an interrupted call are returned before one of their stream that has failed",
        ByTest(
            "consumer/test_consumer.py"
            "::test_what_an_interrupted_call_had_taken_comes_behind_a_message_of_it_that_fails",
            "assert found == [(1, True), (2, True), (3, True), (4, False), (5, False)]",
        ),
    ),
    Mutant(
        "callbacks-dropped-at-close",
        "producer/engine.py",
        "            self.commands.refuse(ended)\n            self.tracker.stopped()\n",
        "            self.commands.refuse(ended)\n",
        "P7: a callback that waits for a confirm is never called when the producer is closed",
        ByTest(
            "producer/test_publishing.py::TestCallbacks"
            "::test_when_the_producer_is_closed_although_nothing_is_confirmed",
            "assert [type(error) for error in errors] == [ClosedError]",
        ),
    ),
    Mutant(
        "delivery-that-nobody-handled-halts-again",
        "protocol/receiver/redelivery.py",
        "                if counts and count >= rules.max_deliveries:\n",
        "                if count >= rules.max_deliveries:\n",
        "P7: a message that had used up its deliveries halts its stream again, although its handler did not run",
        ByTest(
            "consumer/test_handlers.py::test_a_delivery_that_nobody_handled_does_not_halt_a_stream_again",
            "assert not isinstance(caught.value, DeadLetterHalt)",
        ),
    ),
    Mutant(
        "cancelled-handler-forgotten",
        "aio/dispatcher.py",
        '                self._failed(messages, NotRun("cancelled"), report=False)\n',
        "                pass\n",
        "P5: messages whose handler was cancelled are never delivered again",
        ByTest("aio/test_simulated.py::test_no_cancellation_breaks_a_promise[0]", "assert not failed"),
    ),
    Mutant(
        "cancelled-while-waiting-published",
        "aio/commits.py",
        "            content, future = self._waiting[0]\n            if not future.done():\n",
        "            content, future = self._waiting[0]\n            if not future.done() or future.cancelled():\n",
        "P1: a message whose task was cancelled while it waited for room is published",
        ByTest("aio/test_simulated.py::test_no_cancellation_breaks_a_promise[0]", "assert not failed"),
    ),
    Mutant(
        "replayed-while-being-replayed",
        "consumer/dead_letters.py",
        "set(ids) - self._replaying.keys() - shared.durability.reviving",
        "set(ids) - shared.durability.reviving",
        "P4: a dead letter that is delivered again is delivered once more before the application is done with it",
        ByTest(
            "consumer/test_dead_letters.py::test_one_is_not_replayed_twice_at_a_time",
            "assert bench.engine.dead_letters.replay([letter.id]) == (0, 0)",
        ),
    ),
    Mutant(
        "replayed-rejected-and-acknowledged",
        "consumer/dead_letters.py",
        "            if self._done:\n                return\n            self._done = True\n            if revive:\n",
        "            self._done = True\n            if revive:\n",
        "P5: a dead letter that is delivered again and rejected is acknowledged when its handler returns",
        ByTest(
            "consumer/test_dead_letters.py::test_the_first_outcome_counts",
            "assert read_dead_letters(bench.path)",
        ),
    ),
    Mutant(
        "replayed-after-its-acknowledgement",
        "consumer/dead_letters.py",
        "set(ids) - self._replaying.keys() - shared.durability.reviving",
        "set(ids) - self._replaying.keys()",
        "P4: a dead letter that was delivered again and acknowledged is delivered once more before the next commit",
        ByTest(
            "consumer/test_dead_letters.py::test_one_that_was_acknowledged_is_not_replayed_before_the_commit",
            "assert bench.engine.dead_letters.replay([letter.id]) == (0, 0)",
        ),
    ),
    Mutant(
        "replayed-acknowledgement-lost",
        "consumer/durability.py",
        "        self.pending.revived.append(dead_letter_id)\n",
        "",
        "P4: a dead letter that was delivered again and acknowledged stays a dead letter",
        ByTest(
            "simulation/test_replays.py::test_replaying_breaks_no_promise", "assert not outcome.violations"
        ),
    ),
    Mutant(
        "parked-messages-uncounted",
        "store/outbox.py",
        "                count += int(more)\n",
        "                pass\n",
        "P9: what a forgotten site had not confirmed is reported without the messages of parked streams",
        ByTest(
            "producer/test_forgotten_sites.py"
            "::test_messages_that_were_parked_or_behind_others_were_not_confirmed",
            'assert [row.detail for row in rows] == [{"unconfirmed": 4}]',
        ),
    ),
)
"""All of them."""
