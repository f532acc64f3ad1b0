"""Where a follower truncates its log, and which answers of which epoch count: B01 to B03, B06 to B09, B13, B15, D53."""

from tests.mutants.mutant import CannotApply, CoreSchedule, Edit, Mutant, Schedule, Search, UnitTest

FOLLOWER = "broker.replication.follower"
LEADER = "broker.replication.leader"
REPLICA = "broker.replication.replica"

FETCH_WITHOUT_ASKING = Edit(
    FOLLOWER,
    '        _truncate(state, state.high_watermark, "high-watermark rule", effects)\n    _align(state, effects)\n',
    '        _truncate(state, state.high_watermark, "high-watermark rule", effects)\n'
    "    state.phase = Fetching()\n"
    "    fetch_once_synced(state, effects)\n",
)
"""Following begins with a fetch, as in KIP-595, and the epoch request comes only after a diverging answer. Harmless on
its own: the check of the fetch finds the difference. It makes diverging answers common, which B11 and B13 need."""

MUTANTS = (
    Mutant(
        name="B01",
        title="a follower truncates its log to its own high watermark",
        origin="KAFKA-1211, KIP-101 scenario 1",
        rule="the log is kept until the leader has answered where its epochs end (section 4)",
        breaks=("I3", "I19", "I21", "I32"),
        edits=(
            Edit(
                FOLLOWER,
                "    if state.config.truncation_rule is TruncationRule.HIGH_WATERMARK:\n"
                '        _truncate(state, state.high_watermark, "high-watermark rule", effects)\n'
                "    _align(state, effects)\n",
                '    _truncate(state, state.high_watermark, "high-watermark rule", effects)\n'
                "    _align(state, effects)\n",
            ),
        ),
        schedule=Schedule("truncation:second_leader_falls_at_once"),
    ),
    Mutant(
        name="B02",
        title="equal ends are taken for equal logs",
        origin="KAFKA-1211, KIP-101 scenario 2",
        rule="logs are compared by (epoch, end offset), not by their length (section 4)",
        breaks=("I16", "I2", "I22"),
        edits=(
            Edit(
                LEADER,
                "    if last_fetched_epoch is not None:\n",
                "    if last_fetched_epoch is not None and fetch_offset > state.log_end_offset:\n",
            ),
            Edit(
                LEADER,
                "    found = state.epoch_history.end_offset_for(epoch, state.log_end_offset)\n"
                "    return (ErrorCode.NONE, None, None) if",
                "    found = None if epoch is None else (epoch, state.log_end_offset)\n"
                "    return (ErrorCode.NONE, None, None) if",
            ),
        ),
        schedule=Schedule("elections:leader_is_cut_off_from_the_others"),
    ),
    Mutant(
        name="B03",
        title="the leader answers with an end offset for the requested epoch even if it does not know that epoch",
        origin="KAFKA-6361, KIP-279",
        rule="the leader answers with its largest epoch not above the requested one, and that epoch's end (section 4)",
        breaks=("I16", "I7"),
        edits=(
            Edit(
                "broker.replication.epoch_history",
                "                return (epoch if floor is None else floor), start_offset\n",
                "                return epoch, start_offset\n",
            ),
        ),
        schedule=Search("elections", 12),
    ),
    Mutant(
        name="B06",
        title="an epoch enters the history at the first append only",
        origin="KAFKA-7415",
        rule="a leader enters (epoch, log end) before it serves any request, even if it never appends (section 7)",
        breaks=("I13", "I7", "I16"),
        edits=(
            Edit(
                REPLICA,
                "    if state.epoch_history.assign(event.leader_epoch, state.log_end_offset):\n"
                "        effects += (ev.WriteEpochHistory(), ev.SyncEpochHistorySoon())\n",
                "",
            ),
            Edit(
                LEADER,
                "    state.log_end_offset = event.end_offset\n",
                "    assert state.leader_epoch is not None\n"
                "    state.epoch_history.assign(state.leader_epoch, event.base_offset)\n"
                "    state.log_end_offset = event.end_offset\n",
            ),
        ),
        schedule=Schedule("truncation:second_leader_falls_at_once"),
    ),
    Mutant(
        name="B07",
        title="followers do not align again for a new epoch of the same leader",
        origin="KAFKA-7164",
        rule="every new leader epoch repeats the truncation: another leader may have come in between (section 7)",
        breaks=("I7", "I16", "I36"),
        edits=(
            Edit(
                REPLICA,
                "    elif is_same_leadership and state.role is Role.FOLLOWER and not isinstance(state.phase, Halted):\n"
                "        state.partition_epoch = event.partition_epoch\n",
                "    elif event.leader_id == state.leader_id and state.role is Role.FOLLOWER:\n"
                "        state.leader_epoch = event.leader_epoch\n"
                "        state.partition_epoch = event.partition_epoch\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:another_tool_changes_the_assignment"),
    ),
    Mutant(
        name="B08a",
        title="a late answer about an epoch's end counts in a later epoch",
        origin="KAFKA-8012, 13207, 7786",
        rule="an answer counts only under the leader epoch of its request (section 4)",
        breaks=("I32", "I19", "I16"),
        edits=(
            Edit(
                FOLLOWER,
                "    return state.role is not FOLLOWER or leader_epoch != state.leader_epoch\n",
                "    return state.role is not FOLLOWER\n",
            ),
        ),
        schedule=CoreSchedule("epoch_end_of_an_older_epoch"),
    ),
    Mutant(
        name="B08b",
        title="a late refusal of an older epoch halts the follower",
        origin="KAFKA-8012, 13207, 7786",
        rule="a refusal, too, counts only under the leader epoch of its request (section 4)",
        breaks=("I36", "I38"),
        edits=(
            Edit(
                FOLLOWER,
                "    if _is_stale(state, event.leader_epoch) or state.phase != AskingEpochEnd(event.asked_epoch):\n"
                "        return\n",
                "    if event.error_code is ErrorCode.FENCED_LEADER_EPOCH and state.role is Role.FOLLOWER:\n"
                "        _on_error(state, event.error_code, effects)\n"
                "    if _is_stale(state, event.leader_epoch) or state.phase != AskingEpochEnd(event.asked_epoch):\n"
                "        return\n",
            ),
        ),
        schedule=Schedule("truncation:refusal_of_an_older_epoch"),
    ),
    Mutant(
        name="B09",
        title="without records to truncate the history keeps its empty epoch",
        origin="KAFKA-10706",
        rule="a truncation at or beyond the log end still truncates the epoch history (section 8)",
        breaks=("I13", "I36"),
        edits=(
            Edit(
                FOLLOWER,
                "    is_history_cut = state.epoch_history.truncate_to(min(end_offset, state.log_end_offset))\n",
                "    if end_offset >= state.log_end_offset:\n"
                "        return\n"
                "    is_history_cut = state.epoch_history.truncate_to(min(end_offset, state.log_end_offset))\n",
            ),
        ),
        schedule=Schedule("truncation:epochs_without_a_record"),
    ),
    Mutant(
        name="B13",
        title="the high watermark of a diverging answer is adopted before the truncation",
        origin="KAFKA-14704",
        rule="a diverging answer truncates, and leaves the high watermark alone (section 4)",
        breaks=("I22", "I11", "I32"),
        edits=(
            FETCH_WITHOUT_ASKING,
            Edit(
                FOLLOWER,
                "        _align_again(state, effects)  # truncate first; the high watermark of this answer is not used (KAFKA-14704)\n",
                "        _follow_leader_offsets(state, event.high_watermark, event.log_start_offset, effects)\n"
                "        _align_again(state, effects)\n",
            ),
        ),
        schedule=Schedule("truncation:epochs_without_a_record"),
    ),
    Mutant(
        name="B15",
        title="out of range always resets the log to the leader's start",
        origin="KAFKA-2143, 7414",
        rule="ahead of the leader: truncate to its end; below its start: reset; otherwise keep the log (section 4)",
        breaks=("I32", "I20"),
        edits=(
            Edit(
                FOLLOWER,
                "    if event.log_end_offset < state.log_end_offset:\n        message",
                "    if False:\n        message",
            ),
            Edit(
                FOLLOWER,
                "    elif event.log_start_offset > state.log_end_offset or _is_empty_behind(state, event.log_start_offset):\n",
                "    else:\n",
            ),
        ),
        schedule=CoreSchedule("out_of_range_and_back"),
    ),
    Mutant(
        name="D53",
        title="only a fetch has a deadline, and a follower's questions wait for ever",
        origin="found by the swarm, seed 17151914",
        rule="every request of a follower ends after the socket timeout and the longest wait of a fetch (section 4)",
        breaks=("I36", "I20"),
        edits=(
            Edit(
                "broker.replicas.replica_fetcher",
                "                if connection.is_waited_on and self._loop.time() - self._waits_since > limit:\n",
                "                if self._in_flight and self._loop.time() - self._waits_since > limit:\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_replica_fetcher.py::test_a_question_without_an_answer_ends_the_connection"
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
