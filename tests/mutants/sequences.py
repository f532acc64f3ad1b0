"""Idempotence where a broker forgets a producer, or two producers share an identity: no acknowledgement without proof."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, UnitTest

ACCEPT_ANY = Edit(
    "broker.replication.producer_state",
    "            if header.base_sequence == 0 and not (is_retry and self._may_lack_any):\n"
    "                return ACCEPT\n",
    "            return ACCEPT\n",
)
FORGET_WHOLLY = Edit(
    "broker.replication.producer_state",
    "            if is_retry and header.producer_epoch <= self._idle.get(header.producer_id, -1):\n",
    "            if False:\n",
)
"""The ids of producers that were forgotten for their silence are a second line of defence."""
BELIEVE_DUPLICATE = Edit(
    "client.producer.sender",
    "        error = broker_error(answer.error_code, self._cluster.where(partition, channel.broker_id), "
    "answer.error_message)\n        decision =",
    "        if answer.error_code == 46:\n"
    "            self._accumulator.written(batch, None, None)\n"
    "            return\n"
    "        error = broker_error(answer.error_code, self._cluster.where(partition, channel.broker_id), "
    "answer.error_message)\n        decision =",
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D06",
        title="a broker without state accepts any sequence, and a client takes 'duplicate' for 'written'",
        origin="KIP-360, external review",
        rule="without state only sequence 0 is accepted; 'duplicate, offset unknown' proves nothing (section 10, hardening rule 12)",
        breaks=("I21",),
        edits=(ACCEPT_ANY, BELIEVE_DUPLICATE),
        schedule=Schedule("sequences:later_batch_overtakes_a_refused_one"),
    ),
    Mutant(
        name="D06a",
        title="a broker without state accepts any sequence",
        origin="KIP-360, external review",
        rule="a broker without state of a producer accepts sequence 0 only (hardening rule 12)",
        breaks=("I25",),
        edits=(ACCEPT_ANY, FORGET_WHOLLY),
        schedule=Schedule("sequences:answer_lost_and_producer_forgotten"),
    ),
    Mutant(
        name="D06b",
        title="a client takes 'duplicate' for 'written'",
        origin="external review",
        rule="'duplicate, offset unknown' proves nothing: the outcome is unknown (section 10)",
        breaks=("I21",),
        edits=(BELIEVE_DUPLICATE,),
        schedule=Schedule("sequences:another_producer_ran_far_ahead"),
    ),
    Mutant(
        name="D06c",
        title="producers expire by the timestamps of their records",
        origin="external review",
        rule="a producer's idle time counts from the append, by the broker's clock (hardening rule 12)",
        breaks=("I25",),
        edits=(
            FORGET_WHOLLY,
            Edit(
                "broker.replication.producer_state",
                "        states[header.producer_id] = ProducerState(header.producer_epoch, batches, now_ms)\n",
                "        now_ms = header.max_timestamp\n"
                "        states[header.producer_id] = ProducerState(header.producer_epoch, batches, now_ms)\n",
            ),
        ),
        schedule=Schedule("sequences:old_timestamps_and_a_lost_answer"),
    ),
    Mutant(
        name="D06d",
        title="a batch in doubt is sent again under the next producer epoch",
        origin="KIP-360, external review",
        rule="a broker that does not know a batch proves nothing: a batch in doubt ends with an unknown outcome (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "client.producer.accumulator",
                "            self._fail_maybe_written(queue, code, error)\n            self._restart(queue)\n",
                "            self._restart(queue)\n",
            ),
        ),
        schedule=Schedule("sequences:answer_lost_and_producer_forgotten"),
    ),
    Mutant(
        name="D06e",
        title="an unanswered first batch is accepted again by a broker that had to forget producers",
        origin="derived from D06",
        rule="where producers are forgotten for lack of room, an unanswered first batch proves nothing (hardening rule 12)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.replication.producer_state",
                "            if header.base_sequence == 0 and not (is_retry and self._may_lack_any):\n",
                "            if header.base_sequence == 0:\n",
            ),
        ),
        schedule=Schedule("sequences:answer_lost_and_producer_pushed_out"),
    ),
    Mutant(
        name="D12c",
        title="a replica that resets its log knows no producers",
        origin="found by seed 914212",
        rule="a replica that resets to its leader's log start gets the producers of the records below it (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.replicas.partition",
                "        self._cut(lambda: self.log.reset_to(effect.offset, producers))\n",
                "        self._cut(lambda: self.log.reset_to(effect.offset, ProducerStates()))\n",
            ),
        ),
        schedule=Schedule("sequences:answer_lost_and_the_next_leader_was_reset"),
    ),
    Mutant(
        name="D15",
        title="undecodable records are accepted",
        origin="external review",
        rule="a leader decodes small batches before it accepts them: every consumer would stop at a bad one (section 3)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.requests.produce",
                "        if header.record_count <= DECODED_RECORDS_MAX and size <= DECODED_BYTES_MAX:\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("sequences:producer_sends_undecodable_records"),
    ),
    Mutant(
        name="D27",
        title="a producer snapshot of another place is trusted",
        origin="external review: with an older snapshot under the newest one's name a retry was written twice",
        rule="a snapshot names topic, partition, offset and leader epoch; one of another place is not used (section 10)",
        breaks=("I25",),
        edits=(
            Edit("broker.replication.producer_state", "    if not _is_same(found.place, place):\n", "    if False:\n"),
        ),
        schedule=Schedule("sequences:older_snapshot_comes_back"),
    ),
    Mutant(
        name="D27b",
        title="producer states are rebuilt from the part of the batches that can be read",
        origin="found by seed 17052830 with one more fault; a dry run of docs/QUESTIONS.md",
        rule="a log whose producers cannot be rebuilt from all its batches is damaged (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.log.recovery",
                '                self._damaged(f"{segment.path}{LOG_SUFFIX} is damaged at position {error.position}: {error.reason}")\n'
                "                return\n",
                "                pass\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_producer_rebuild.py::test_producers_are_not_rebuilt_from_a_part_of_the_batches"
        ),
    ),
    Mutant(
        name="D27c",
        title="producer states are rebuilt from headers, without a check of their CRCs",
        origin="external review: one rotten producer id and lost snapshots, and a retry was written twice",
        rule="a log whose producers cannot be rebuilt from all its batches is damaged (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.log.recovery",
                "self._headers(offset, end, scan_batches)",
                "self._headers(offset, end)",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_producer_rebuild.py::test_producers_are_not_rebuilt_from_rotten_headers"
        ),
    ),
    Mutant(
        name="D14",
        title="other bytes under a known sequence are acknowledged as a duplicate",
        origin="external review",
        rule="a retry has the same bytes: the CRC is remembered with each sequence (hardening rule 12)",
        breaks=("I21",),
        edits=(
            Edit(
                "broker.replication.producer_state",
                "            if batch.crc != header.crc:\n",
                "            if False:\n",
            ),
        ),
        schedule=Schedule("sequences:another_producer_has_the_sequence"),
    ),
    Mutant(
        name="D60a",
        title="a batch of an older producer epoch is appended",
        origin="KIP-98",
        rule="behind a batch of a producer epoch no batch of an older one is appended (section 10)",
        breaks=("client: producer_name",),
        edits=(
            Edit(
                "broker.replication.producer_state",
                "            return Refuse(ErrorCode.INVALID_PRODUCER_EPOCH, later)\n",
                "            return ACCEPT\n",
            ),
        ),
        schedule=Schedule("loads:start_again_under_a_name"),
    ),
    Mutant(
        name="D60b",
        title="a start under a producer's name keeps its epoch",
        origin="KIP-98",
        rule="each start under a producer's name raises its epoch (section 10)",
        breaks=("client: producer_name",),
        edits=(
            Edit(
                "broker.requests.producer_names",
                "            producer_epoch=epoch + 1,\n",
                "            producer_epoch=epoch + 1 if claim.running_as or epoch < 0 else epoch,\n",
            ),
        ),
        schedule=Schedule("loads:start_again_under_a_name"),
    ),
    Mutant(
        name="D60c",
        title="a producer's name is written without the version that was read",
        origin="derived from D60b",
        rule="no epoch of a producer's name is given twice: each is a write under the version that was read (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.requests.producer_names",
                "            await self._coordination.set(path, node.encode(), version)\n",
                "            await self._coordination.set(path, node.encode())\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_producer_names.py::test_processes_that_start_together_get_different_epochs"
        ),
    ),
    Mutant(
        name="D60d",
        title="a late copy of a start under a producer's name counts as another start",
        origin="derived from D60b: its own process was fenced at its next epoch",
        rule="a request for the epoch of a producer's name does nothing unless what it replaces is the newest (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.requests.producer_name_rules",
                "    if is_start and not claim.process_token:\n",
                "    if is_start:\n",
            ),
        ),
        schedule=UnitTest(
            "tests/simulation/test_producer_names.py::"
            "test_a_start_that_was_held_up_and_repeated_does_not_fence_its_own_process"
        ),
    ),
    Mutant(
        name="D60e",
        title="a process gets the epoch of another one that replaced the same identity",
        origin="derived from D60d",
        rule="a repeated request gets what the first one wrote, and no other process does (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.requests.producer_name_rules",
                "(claim.process_token, claim.replaces) == (node.process_token, node.replaced)",
                "claim.replaces == node.replaced",
            ),
        ),
        schedule=UnitTest("tests/broker/test_producer_name_rules.py::test_late_requests_fence_no_process"),
    ),
    Mutant(
        name="D12f",
        title="a log that is dropped at its leader's start keeps its producers",
        origin="found by a reviewer: a retry of an overwritten batch was acknowledged, and the record was in no log",
        rule="what a dropped log knew of producers may never have been in any leader's log (section 10)",
        breaks=("I21", "I25"),
        edits=(
            Edit(
                "broker.log.partition_log",
                "            self._reset_to(start_offset, ProducerStates(is_incomplete=True))\n",
                "            self._reset_to(start_offset, self.producers)\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_producer_rebuild.py"
            "::test_a_log_that_is_dropped_at_its_leaders_start_does_not_know_its_producers",
        ),
    ),
    Mutant(
        name="D27d",
        title="the snapshot in front of which a log's head is deleted is not checked",
        origin="found by a reviewer: an older one was believed once nothing was left that contradicts it",
        rule="before the batches in front go, they tell whether the snapshot is of this log (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.log.cutting",
                "            _check_snapshot_of(log, log.segments[count].base_offset)\n",
                "            pass\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_producer_rebuild.py::test_an_older_snapshot_is_not_believed_once_the_head_is_gone",
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
