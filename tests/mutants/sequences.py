"""Idempotence where a broker forgets a producer, or two producers share an identity: nothing is claimed unproven."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

ACCEPT_ANY = Edit(
    "broker.replication.producer_state",
    "            if header.base_sequence == 0 and not (is_retry and len(self._states) >= PRODUCERS_MAX):\n"
    "                return ACCEPT\n",
    "            return ACCEPT\n",
)
BELIEVE_DUPLICATE = Edit(
    "client.sender",
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
        title="a broker without state takes any sequence, and a client takes 'duplicate' for 'written'",
        origin="KIP-360, found by attack",
        rule="no state, no sequence but 0; 'duplicate, offset unknown' proves nothing (10, hardening 12)",
        breaks=("I21",),
        edits=(ACCEPT_ANY, BELIEVE_DUPLICATE),
        schedule=Schedule("sequences:later_batch_overtakes_a_refused_one"),
    ),
    Mutant(
        name="D06a",
        title="a broker without state takes any sequence",
        origin="KIP-360, found by attack",
        rule="a broker that knows nothing of a producer takes sequence 0 alone (hardening 12)",
        breaks=("I25",),
        edits=(ACCEPT_ANY,),
        schedule=Schedule("sequences:answer_lost_and_producer_forgotten"),
    ),
    Mutant(
        name="D06b",
        title="a client takes 'duplicate' for 'written'",
        origin="found by attack",
        rule="'duplicate, offset unknown' proves nothing: the outcome is unknown (10)",
        breaks=("I21",),
        edits=(BELIEVE_DUPLICATE,),
        schedule=Schedule("sequences:another_producer_ran_far_ahead"),
    ),
    Mutant(
        name="D06c",
        title="producers expire by the timestamps of their records",
        origin="found by attack",
        rule="silence is counted from the append, by the broker's clock (hardening 12)",
        breaks=("I25",),
        edits=(
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
        title="what is in doubt is sent again under the next producer epoch",
        origin="KIP-360, found by attack",
        rule="a broker that forgot a producer proves nothing: what is in doubt ends with an unknown outcome (10)",
        breaks=("I25",),
        edits=(
            Edit(
                "client.accumulator",
                "                self._fail_maybe_written(queue, error)\n",
                "                pass\n",
            ),
        ),
        schedule=Schedule("sequences:answer_lost_and_producer_forgotten"),
    ),
    Mutant(
        name="D06e",
        title="an unanswered first batch is taken anew by a broker that had to forget producers",
        origin="derived from D06",
        rule="where producers are forgotten for lack of room, an unanswered first batch proves nothing (hardening 12)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.replication.producer_state",
                "            if header.base_sequence == 0 and not (is_retry and len(self._states) >= PRODUCERS_MAX):\n",
                "            if header.base_sequence == 0:\n",
            ),
        ),
        schedule=Schedule("sequences:answer_lost_and_producer_pushed_out"),
    ),
    Mutant(
        name="D12c",
        title="a replica that starts anew knows no producers",
        origin="found by seed 914212",
        rule="a replica that starts anew at its leader's log start is told who wrote below it (10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.partition",
                "        self._cut(lambda: self.log.reset_to(effect.offset, producers))\n",
                "        self._cut(lambda: self.log.reset_to(effect.offset))\n",
            ),
        ),
        schedule=Schedule("sequences:answer_lost_and_the_next_leader_was_reset"),
    ),
    Mutant(
        name="D15",
        title="records are taken that nobody can decode",
        origin="found by attack",
        rule="a leader decodes small batches before it takes them: every consumer would stop at one (3)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.produce",
                "        if header.record_count <= DECODED_RECORDS_MAX:\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("sequences:producer_sends_undecodable_records"),
    ),
    Mutant(
        name="D27",
        title="a snapshot of producers is believed wherever it is of",
        origin="found from outside: an older one under the newest's name, and a retry was written a second time",
        rule="a snapshot names topic, partition and offset; what is of another place is not used (10)",
        breaks=("I25",),
        edits=(Edit("broker.replication.producer_state", "        if found != place:\n", "        if False:\n"),),
        schedule=Schedule("sequences:older_snapshot_comes_back"),
    ),
    Mutant(
        name="D14",
        title="other bytes under a known sequence are acknowledged as a duplicate",
        origin="found by attack",
        rule="a repetition has the same bytes: the CRC is remembered beside each sequence (hardening 12)",
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
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
