"""Idempotence: what a broker remembers of a producer, and how a retry is answered."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="B40a",
        title="only the last batch of a producer is remembered",
        origin="KAFKA-5494",
        rule="the last forty batches are remembered: a retry is answered with its first offsets (sections 3 and 10)",
        breaks=("I25", "I21"),
        edits=(
            Edit(
                "broker.replication.producer_state",
                "            batches = state.packed[(1 - BATCHES_REMEMBERED) * _BATCH.size :] + batches\n",
                "            pass\n",
            ),
        ),
        schedule=Schedule("producer:replies_lost_at_depth"),
    ),
    Mutant(
        name="B40b",
        title="followers do not learn producers from copied batches",
        origin="KAFKA-5494",
        rule="every replica that reads the batches in order knows the producers, followers included (section 10)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.replicas.partition",
                "        batches = list(zip(effect.batches, self.fetched_buffers, strict=True))\n        self.log.append(batches)\n",
                "        batches = list(zip(effect.batches, self.fetched_buffers, strict=True))\n"
                "        known = self.log.producers.copy()\n"
                "        self.log.append(batches)\n"
                "        self.log.producers = known\n",
            ),
        ),
        schedule=Schedule("strict:leader_dies_among_living_members"),
    ),
    Mutant(
        name="B40c",
        title="truncated batches are still remembered for their producers",
        origin="KAFKA-5494",
        rule="a truncation removes its batches from the producer state (section 10)",
        breaks=("I21", "I25"),
        edits=(
            Edit(
                "broker.log.cutting",
                "        snapshot_offset, producers = log.snapshots.newest(first, end, log.epoch_entries(), unusable)\n"
                "        for header in log.headers(snapshot_offset):\n"
                "            producers.update(header)\n"
                "        log.producers = producers\n",
                "        pass\n",
            ),
        ),
        schedule=Schedule("producer:batch_is_cut_and_sent_again"),
    ),
    Mutant(
        name="B40d",
        title="a duplicate is acknowledged at once",
        origin="KAFKA-5494",
        rule="a retry is answered with its first offsets, for acks=all once the high watermark covers them (section 3)",
        breaks=("I21", "I24"),
        edits=(
            Edit(
                "broker.replication.leader",
                "            _answer_when_safe(state, tokens, event.acks, checked.base_offset, checked.last_offset + 1, "
                "effects)\n",
                "            effects.append(AnswerProduce(tokens=tokens, base_offset=checked.base_offset))\n",
            ),
        ),
        schedule=Schedule("high_watermark:shrink_without_traffic"),
    ),
    Mutant(
        name="D11e",
        title="a produce request identifies the topic by name alone",
        origin="KIP-516",
        rule="records are for a topic id; a late request is not written to another topic of that name (section 3)",
        breaks=("I25",),
        edits=(
            Edit(
                "broker.requests.produce",
                "            elif not partition.is_of_topic(item.topic_id):\n",
                "            elif False:\n",
            ),
        ),
        schedule=Schedule("producer:records_come_late_to_a_topic_made_again"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
