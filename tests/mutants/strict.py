"""Hazards derived from reading code and papers, and the rules in which this broker is stricter than Kafka."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, Search, UnitTest

DERIVED = (
    Mutant(
        name="H1",
        title="a re-elected leader keeps its followers' old ends",
        origin="read in Kafka's Replica.resetReplicaState; Kip320 rule 3",
        rule="positions count only if they were reported under this leader epoch",
        breaks=("I5", "I4", "I21"),
        edits=(
            Edit(
                "broker.replication.replica",
                "    _set_remotes(state, event, reset=True)\n",
                "    _set_remotes(state, event, reset=False)\n",
            ),
        ),
        schedule=Search("elections", 8),
    ),
    Mutant(
        name="H2",
        title="a fetch moves the follower's state some time after its epoch was checked",
        origin="read in Kafka's Partition.fetchRecords",
        rule="a fetch is checked and counted in one synchronous step",
        breaks=("I5", "I4"),
        edits=(
            Edit("broker.replicas.partition", "import logging\n", "import asyncio\nimport logging\n"),
            Edit(
                "broker.replicas.partition",
                "ReplicaStepped(self, event, effects, isinstance(answer, FetchRefused)))\n        self._perform(effects)\n",
                "ReplicaStepped(self, event, effects, isinstance(answer, FetchRefused)))\n"
                "        self._perform(effects)\n"
                "\n"
                "        def move_state() -> None:\n"
                "            if self.state.is_leader and event.replica_id in self.state.remotes:\n"
                "                self.state.remotes[event.replica_id].log_end_offset = event.fetch_offset\n"
                "\n"
                "        if isinstance(answer, FetchGranted):\n"
                "            asyncio.get_running_loop().call_later(0.02, move_state)\n",
            ),
        ),
        schedule=UnitTest("tests/broker/test_partition_shell.py::test_a_fetch_changes_nothing_after_its_answer"),
    ),
    Mutant(
        name="H3",
        title="producers that wait for the high watermark go on waiting when leadership is lost",
        origin="read in Kafka's DelayedProduce, KAFKA-9198",
        rule="a replica that loses leadership answers all waiting producers",
        breaks=("I33", "I21"),
        edits=(
            Edit(
                "broker.replication.leaving",
                "    refuse_all_waiters(state, code, why, effects)\n    state.leader_epoch_start = state.elected_log_start = None\n",
                "    state.leader_epoch_start = state.elected_log_start = None\n",
            ),
        ),
        schedule=Schedule("disk_errors:sync_finds_no_room"),
    ),
    Mutant(
        name="H4",
        title="a duplicate is acknowledged before the check whether this broker leads",
        origin="derived from KAFKA-5494",
        rule="a retry passes the same checks as a first attempt, and waits for the high watermark, too",
        breaks=("I21",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    refusal = refuse_as_leader(state)\n"
                "    if refusal is not None:\n"
                "        effects.append(AnswerProduce(tokens=event.tokens, error_code=refusal))\n",
                "    if event.headers[0].producer_id != NO_PRODUCER_ID and len(event.headers) == 1:\n"
                "        verdict = event.producers.check(event.headers[0])\n"
                "        if isinstance(verdict, Duplicate):\n"
                "            effects.append(AnswerProduce(tokens=event.tokens, base_offset=verdict.base_offset))\n"
                "            return\n"
                "    refusal = refuse_as_leader(state)\n"
                "    if refusal is not None:\n"
                "        effects.append(AnswerProduce(tokens=event.tokens, error_code=refusal))\n",
            ),
        ),
        schedule=Schedule("high_watermark:shrink_without_traffic"),
    ),
    Mutant(
        name="H5",
        title="an unclean election keeps the old in-sync set in addition to the new leader",
        origin="derived; Kafka's OfflinePartitionLeaderElectionStrategy",
        rule="after an unclean election the leader alone is in sync",
        breaks=("I1", "I28"),
        edits=(
            Edit(
                "controller.core.election",
                "_change(state, partition, before, first, [first], why, is_unclean=True)",
                "_change(state, partition, before, first, [first, *members], why, is_unclean=True)",
            ),
        ),
        schedule=Schedule("strict:unclean_election_without_loss"),
    ),
    Mutant(
        name="H6a",
        title="a clean election keeps dead members in the in-sync set",
        origin="derived; replication rules, section 9",
        rule="an election leaves the members that are usable, and no others",
        breaks=("I37", "I34"),
        edits=(
            Edit(
                "controller.core.election",
                "        return _change(state, partition, before, leader, usable, reason)\n",
                "        kept = members if leader != before.leader else usable\n"
                "        return _change(state, partition, before, leader, kept, reason)\n",
            ),
        ),
        schedule=Schedule("strict:leader_dies_among_living_members"),
    ),
    Mutant(
        name="H6b",
        title="a clean election drops live members from the in-sync set",
        origin="derived; replication rules, section 9",
        rule="an election leaves the members that are usable, and no others",
        breaks=("I6", "I37"),
        edits=(
            Edit(
                "controller.core.election",
                "        return _change(state, partition, before, leader, usable, reason)\n",
                "        kept = [leader] if leader != before.leader else usable\n"
                "        return _change(state, partition, before, leader, kept, reason)\n",
            ),
        ),
        schedule=Schedule("strict:leader_dies_among_living_members"),
    ),
)

STRICTER = (
    Mutant(
        name="H7",
        title="a broker that was started again keeps its place in the in-sync set",
        origin="hardening rule 1",
        rule="a member registered under another incarnation was down, then up",
        breaks=("I21", "I3", "I16"),
        edits=(
            Edit(
                "controller.core.controller_state",
                "        return broker is not None and leadership.incarnation_of(broker_id) == broker.incarnation_id\n",
                "        return broker is not None\n",
            ),
        ),
        schedule=Search("power", 8),
    ),
    Mutant(
        name="H9a",
        title="the leader counts its log end while flushing is on",
        origin="hardening rule 2",
        rule="with flushing on, only synced bytes count for the high watermark",
        breaks=("I21", "votes"),
        edits=(
            Edit(
                "broker.replication.state",
                "self.config.counts_only_synced or self.is_shrinking_below_minimum\n",
                "self.is_shrinking_below_minimum\n",
            ),
        ),
        schedule=Schedule("disk_errors:sync_finds_no_room"),
    ),
    Mutant(
        name="H9b",
        title="a follower reports an unsynced end while flushing is on",
        origin="hardening rule 2",
        rule="a follower never reports an end beyond its own synced end",
        breaks=("I21", "votes"),
        edits=(
            Edit(
                "broker.replication.follower",
                "    is_unsafe = state.config.counts_only_synced and state.synced_end_offset < state.log_end_offset\n"
                "    effects.append(SyncLog() if is_unsafe else FetchNext())\n",
                "    effects.append(FetchNext())\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/replication/test_flush_reports.py::test_a_restarted_follower_syncs_before_it_reports_its_end"
        ),
    ),
    Mutant(
        name="H11a",
        title="the fencing deadline counts from the arrival of ZooKeeper's answer",
        origin="hardening rule 8",
        rule="the deadline counts from when the last answered request was sent",
        breaks=("fence",),
        edits=(
            Edit(
                "simulation.world.coordination",
                "                self._session_deadline = max(self._session_deadline, sent_at + self._granted_ms / 1000)\n",
                "                now = self._loop.time()\n"
                "                self._session_deadline = max(self._session_deadline, now + self._granted_ms / 1000)\n",
            ),
        ),
        schedule=Schedule("strict:zookeeper_answers_late_and_goes_silent"),
    ),
    Mutant(
        name="H11b",
        title="the fencing deadline uses the requested session timeout, not the granted one",
        origin="hardening rule 8",
        rule="ZooKeeper grants a session timeout within its own bounds, and that one counts",
        breaks=("fence",),
        edits=(
            Edit(
                "simulation.world.coordination",
                "                self._session_deadline = max(self._session_deadline, sent_at + self._granted_ms / 1000)\n",
                "                self._session_deadline = max(self._session_deadline, sent_at + self._timeout_ms / 1000)\n",
            ),
        ),
        schedule=Schedule("strict:zookeeper_grants_a_shorter_session"),
    ),
    Mutant(
        name="H12",
        title="a truncation leaves the truncated records in memory",
        origin="derived",
        rule="records served from memory are truncated together with the log",
        breaks=("I22", "I16"),
        edits=(Edit("broker.log.open_log", "        self._tail.truncate_to(end)\n", ""),),
        schedule=UnitTest("tests/broker/log/test_cutting.py::test_a_reader_never_sees_truncated_records"),
    ),
    Mutant(
        name="H13",
        title="the sequence of an expired record is given to the next one",
        origin="hardening rule 12",
        rule="a sequence belongs to its batch for ever",
        breaks=("I21", "I25"),
        edits=(
            Edit(
                "client.producer.accumulator",
                "        if batch.identity is not None:\n            queue.broken = True\n",
                "        if batch.base_sequence is not None and not queue.attempted:\n"
                "            queue.next_sequence = batch.base_sequence\n",
            ),
        ),
        schedule=Schedule("strict:record_expires_while_its_answer_is_held_back"),
    ),
    Mutant(
        name="H14",
        title="the in-sync set falls below its minimum without an fsync",
        origin="hardening rule 4",
        rule="before and after the set falls below the minimum the leader syncs its log",
        breaks=("I3", "I21", "sole copy"),
        edits=(
            Edit(
                "broker.replication.isr",
                "    below_minimum = len(kept) < state.effective_min_insync_replicas\n",
                "    below_minimum = False\n",
            ),
            Edit(
                "broker.replication.isr",
                "    if state.counted_end < state.log_end_offset:\n"
                "        effects.append(SyncLog())  # appended meanwhile; it does not count before\n",
                "",
            ),
            Edit(
                "broker.replication.isr",
                "    if len(after) < state.effective_min_insync_replicas:\n"
                "        effects.append(SyncLog())  # hardening rule 4, again for what was appended meanwhile\n",
                "",
            ),
            Edit(
                "broker.replication.state",
                "        only_synced = self.config.counts_only_synced or self.is_shrinking_below_minimum\n",
                "        only_synced = self.config.counts_only_synced\n",
            ),
        ),
        schedule=Search("minimum", 9),
    ),
    Mutant(
        name="H15",
        title="a proposal waits for ever for a controller that does not answer",
        origin="hardening rule 6",
        rule="a proposal is given up after half of the lag limit, or when the controller changes, and sent again",
        breaks=("I36", "I37"),
        edits=(
            Edit(
                "broker.replicas.replica_manager",
                "request_timeout_ms=max(200, config.replica_lag_time_max_ms // 2),",
                "request_timeout_ms=3_600_000,",
            ),
            Edit(
                "broker.replicas.alter_partition_sender",
                "            self._silence = None\n            self._channel.hang_up()\n",
                "            self._silence = None\n",
            ),
        ),
        schedule=Schedule("strict:controller_never_answers_a_proposal"),
    ),
    Mutant(
        name="H16",
        title="the leader's own stall counts as its followers' lag",
        origin="hardening rule 7",
        rule="lag counts only time in which the leader's loop ran",
        breaks=("I36", "I37"),
        edits=(
            Edit(
                "broker.replication.replica",
                "    for remote in state.remotes.values():\n"
                "        remote.last_caught_up_ms = min(event.now_ms, remote.last_caught_up_ms + event.stalled_ms)\n"
                "        remote.last_fetch_ms = min(event.now_ms, remote.last_fetch_ms + event.stalled_ms)\n",
                "    pass\n",
            ),
        ),
        schedule=Schedule("strict:leader_is_stopped_under_load"),
    ),
    Mutant(
        name="H16b",
        title="a stall is forgiven to followers that were at the leader's end after it, too",
        origin="the swarm (seed 17510234 with loads)",
        rule="lag counts only time in which the leader's loop ran, and all of it",
        breaks=("I37",),
        edits=(
            Edit(
                "broker.replication.replica",
                "        remote.last_caught_up_ms = min(event.now_ms, remote.last_caught_up_ms + event.stalled_ms)\n",
                "        remote.last_caught_up_ms += event.stalled_ms\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/replication/test_proposals.py::"
            "test_a_stall_of_the_leader_is_not_forgiven_to_a_follower_that_was_at_the_end_after_it"
        ),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*DERIVED, *STRICTER)

LATER: tuple[CannotApply, ...] = (
    CannotApply(
        name="H10",
        title="the offset of a pipelined fetch counts as the follower's log end",
        origin="hardening rule 3",
        reason="a follower has one fetch in flight for each leader, so its fetch offset is its log end",
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
