"""What clients are told: order, what acks=1 means, and how soon something happens."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="J01",
        title="without idempotence several batches of a partition are in flight",
        origin="Kafka's max.in.flight.requests.per.connection, which reorders retries",
        rule="records are in the order of their send calls, also after retries (CLIENT.md, promise 1)",
        breaks=("first-copies-out-of-order",),
        edits=(
            Edit(
                "client.producer.accumulator",
                "            self.in_flight_max = in_flight_max * PRODUCE_BATCHES_MAX if idempotent else 1\n",
                "            self.in_flight_max = in_flight_max * PRODUCE_BATCHES_MAX\n",
            ),
        ),
        schedule=Schedule("promises:first_of_two_batches_is_refused"),
    ),
    Mutant(
        name="J03",
        title="a confirmed failure is reported, and the registration is left to the end of its session",
        origin="planted for the checker",
        rule="a dead broker is unregistered when a second broker confirms it (decision 0011)",
        breaks=("I37",),
        edits=(
            Edit(
                "controller.detection.failure_detection",
                "    return [report, Unregister(broker_id=event.broker_id, broker_epoch=event.broker_epoch)]\n",
                "    return [report]\n",
            ),
        ),
        schedule=Schedule("promises:leader_dies_in_a_quiet_cluster"),
    ),
    Mutant(
        name="J04",
        title="a changed setting takes effect on leaders only",
        origin="planted for the checker",
        rule="a topic's settings hold on each of its replicas (decision 0004)",
        breaks=("I45",),
        edits=(
            Edit(
                "broker.replicas.replica_manager",
                "            if topics is not None and topic_partition.topic not in topics:\n",
                "            if not partition.state.is_leader or topics is not None and topic_partition.topic not in topics:\n",
            ),
        ),
        schedule=Schedule("promises:settings_change"),
    ),
    Mutant(
        name="J05",
        title="acks=all needs every assigned replica",
        origin="planted for the checker",
        rule="acks=all needs min.insync.replicas members of the ISR (section 3)",
        breaks=("I37",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    if event.acks == ACKS_ALL and len(state.in_sync_replicas) < state.effective_min_insync_replicas:\n",
                "    if event.acks == ACKS_ALL and len(state.in_sync_replicas) < len(state.assignment):\n",
            ),
        ),
        schedule=Schedule("promises:one_broker_stays_down"),
    ),
    Mutant(
        name="J06",
        title="a follower is proposed for the ISR only when it copies something",
        origin="planted for the checker",
        rule="a caught-up follower joins, also without traffic (section 6)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    _note_progress(state, remote, event)\n",
                "    moved = remote.log_end_offset is not None and remote.log_end_offset < event.fetch_offset\n"
                "    _note_progress(state, remote, event)\n",
            ),
            Edit(
                "broker.replication.leader",
                "    maybe_expand(state, event.now_ms, effects)\n    advance_high_watermark(state, event.now_ms, effects)\n"
                "    return grant",
                "    if moved:\n        maybe_expand(state, event.now_ms, effects)\n"
                "    advance_high_watermark(state, event.now_ms, effects)\n    return grant",
            ),
            Edit(
                "broker.replication.isr",
                "        maybe_expand(state, event.now_ms, effects)\n        advance_high_watermark",
                "        advance_high_watermark",
            ),
        ),
        schedule=Schedule("promises:follower_returns_without_load"),
    ),
    Mutant(
        name="J07",
        title="a segment is as old as its first record",
        origin="planted for the checker",
        rule="a segment is as old as its last write, by the leader's clock (log/retention.py)",
        breaks=("I43",),
        edits=(
            Edit(
                "broker.log.retention",
                "    return now_ms - log.health.disk.modified_ms(segment.log_path) > log.config.retention_ms\n",
                "    return now_ms - first_append_ms(segment, log.health.disk) > log.config.retention_ms\n",
            ),
        ),
        schedule=Schedule("promises:young_and_old_records_share_a_segment"),
    ),
    Mutant(
        name="J08",
        title="the directory of a deleted topic stays, and the next topic of that name loads it",
        origin="planted for the checker",
        rule="a topic made again begins with empty logs (CLIENT.md, reading)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.log.log_directory",
                "        target = self._take_away(partition, deleted_directory_name)\n",
                "        self._forget(partition)\n        target = None\n",
            ),
            Edit(
                "broker.log.log_directory",
                "            self._renamed.set_aside_stray(directory, topic_id, partition)\n",
                "",
            ),
            # else no replica leads, because each log has reached the first leader epoch already
            Edit("broker.replication.replica", "or event.leader_epoch > latest:", "or True:"),
        ),
        schedule=Schedule("promises:topic_is_made_again"),
    ),
    Mutant(
        name="J25a",
        title="followers are told a log start that retention raised only with the next records",
        origin="planted by a reviewer",
        rule="what retention does not keep is gone from every replica soon, also without load (section 11)",
        breaks=("I46",),
        edits=(
            Edit(
                "broker.replication.log_starts",
                "reason=event.reason))\n        effects.append(StartsChanged())\n",
                "reason=event.reason))\n",
            ),
        ),
        schedule=Schedule("promises:all_records_expire_without_load"),
    ),
    Mutant(
        name="J25b",
        title="followers are told a low watermark only with the next records",
        origin="planted by a reviewer",
        rule="what retention does not keep is gone from every replica soon, also without load (section 11)",
        breaks=("I46",),
        edits=(
            Edit(
                "broker.requests.fetch_sessions",
                "            or state.low_watermark != sent.low_watermark\n",
                "",
            ),
        ),
        schedule=Schedule("promises:all_records_expire_without_load"),
    ),
    Mutant(
        name="J26",
        title="refused records count as appended",
        origin="found by the checker",
        rule="broker_topic_records_in counts the records that a leader appended (OPERATIONS.md)",
        breaks=("I47",),
        edits=(
            Edit(
                "broker.requests.produce",
                "        headers = tuple([item.header for item in run])\n",
                "        headers = tuple([item.header for item in run])\n"
                "        self.counters.records_in += sum(header.record_count for header in headers)\n",
            ),
            Edit("broker.replicas.partition", "        counters.records_in += end - effect.base_offset\n", ""),
        ),
        schedule=Schedule("promises:too_few_in_sync_are_refused_and_not_counted"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
