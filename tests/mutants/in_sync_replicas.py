"""The in-sync set: the controller's answers, eligibility, incarnations, lag, and what min.insync.replicas promises."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

ANSWERS = (
    Mutant(
        name="B21",
        title="the retry of an applied AlterPartition is refused",
        origin="KAFKA-14144",
        rule="a proposal that is already applied succeeds, whatever version it carries (section 6)",
        breaks=("I36", "I38"),
        edits=(
            Edit(
                "controller.core.alter_partition",
                "    if _is_applied(current, broker_id, proposal):\n        return success(partition, current)\n"
                "    if proposal.partition_epoch != current.partition_epoch:\n",
                "    if proposal.partition_epoch == current.partition_epoch and _is_applied(current, broker_id, proposal):\n"
                "        return success(partition, current)\n"
                "    if proposal.partition_epoch != current.partition_epoch:\n",
            ),
            # and the leader does not get its state again: either rule would make up for the other
            Edit(
                "controller.core.broker_requests",
                "if result.error_code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION):",
                "if result.error_code == ErrorCode.FENCED_LEADER_EPOCH:",
            ),
        ),
        schedule=Schedule("deposed:answer_to_an_isr_change_is_lost"),
    ),
    Mutant(
        name="D24b",
        title="a leader accepts any version of its state",
        origin="external review: after one absurd answer each later order counted as late",
        rule="success commits the proposed set at the version it was proposed on, or the next one (section 6)",
        breaks=("I36", "I37"),
        edits=(
            Edit(
                "broker.replication.isr",
                "        and event.partition_epoch in (state.partition_epoch, state.partition_epoch + 1)",
                "        and event.partition_epoch >= state.partition_epoch",
            ),
        ),
        schedule=Schedule("in_sync_replicas:answer_names_a_version_far_ahead"),
    ),
    Mutant(
        name="D24c",
        title="an answer that does not match its proposal ends the retries",
        origin="external review: a proposal that was pending for ever",
        rule="a proposal is sent again until a matching answer, an error or an order settles it (hardening rule 6)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.replication.isr",
                "            )\n            _send(state, effects, after_ms=PROPOSAL_RETRY_MS)\n",
                "            )\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:answer_names_another_epoch"),
    ),
)

ELIGIBILITY = (
    Mutant(
        name="B23a",
        title="a broker that is shutting down is taken back into the ISR",
        origin="KAFKA-13916, KAFKA-14140, KIP-841",
        rule="a broker that is shutting down is not eligible: the controller checks, and the leader does not propose it (section 6)",
        breaks=("I34",),
        edits=(
            Edit(
                "controller.core.alter_partition",
                "    if broker_id in state.shutting_down and broker_id != current.leader:\n        return False\n",
                "",
            ),
            Edit("broker.replication.isr", "        and remote.eligible\n", ""),
        ),
        schedule=Schedule("in_sync_replicas:shutting_down_follower_fetches"),
    ),
    Mutant(
        name="B23b",
        title="the high watermark waits for a replica that may not join",
        origin="KAFKA-15021",
        rule="the high watermark waits for a replica outside the ISR only if it is eligible (section 2)",
        breaks=("I37",),
        edits=(
            Edit(
                "broker.replication.high_watermark",
                "starts_like_leader(state, remote) and remote.eligible and in_lag_limits",
                "starts_like_leader(state, remote) and in_lag_limits",
            ),
        ),
        schedule=Schedule("in_sync_replicas:acknowledged_after_a_shutdown"),
    ),
    Mutant(
        name="B24a",
        title="the controller accepts a joiner of an earlier incarnation",
        origin="KAFKA-14139, KAFKA-15221, KIP-903",
        rule="a joiner must be registered under the broker epoch that fetched (section 6, hardening rule 1)",
        breaks=("I31", "I6", "I21"),
        edits=(
            Edit(
                "controller.core.alter_partition",
                "    return state.is_registered_as(broker_id, member.broker_epoch)\n",
                "    return True\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:joiner_loses_power_before_the_controller_decides"),
    ),
    Mutant(
        name="B24b",
        title="position and broker epoch of a joiner come from different sources",
        origin="KAFKA-15221, KIP-903",
        rule="the proposed epoch is that of the fetch that proved the position",
        breaks=("I31", "I6", "I21"),
        edits=(
            Edit(
                "broker.replication.replica",
                "        remote.eligible = registered is not None and remote.broker_epoch in (None, registered)\n",
                "        remote.broker_epoch = registered\n        remote.eligible = registered is not None\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:joiner_loses_power_before_the_controller_decides"),
    ),
)

COMMITTED = (
    Mutant(
        name="B25",
        title="the high watermark goes on below min.insync.replicas",
        origin="KAFKA-15583, KIP-966",
        rule="below min.insync.replicas the high watermark does not move (section 2)",
        breaks=("I3", "I19", "I22"),
        edits=(
            Edit(
                "broker.replication.high_watermark",
                "    if len(state.in_sync_replicas) < state.effective_min_insync_replicas:\n        return\n"
                "    candidate = state.counted_end\n",
                "    candidate = state.counted_end\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:last_replica_standing"),
    ),
    Mutant(
        name="B26",
        title="the leader's view of its followers is empty for a moment",
        origin="KAFKA-10301",
        rule="the leader's view of its followers changes in one step: the high watermark always counts them",
        breaks=("I4", "I3", "I21"),
        edits=(
            Edit(
                "broker.replication.replica",
                "    old = state.remotes\n    state.remotes = {}\n",
                "    old = state.remotes\n    state.remotes = {}\n"
                "    if not reset:\n        advance_high_watermark(state, event.now_ms, effects)\n",
            ),
            Edit(
                "broker.replication.replica",
                "def _set_remotes(state: ReplicaState, event: ev.LeaderAndIsrReceived, reset: bool) -> None:",
                "def _set_remotes(state: ReplicaState, event: ev.LeaderAndIsrReceived, reset: bool, effects=None) -> None:"
                "\n    effects = [] if effects is None else effects",
            ),
            Edit(
                "broker.replication.replica",
                "    _set_remotes(state, event, reset=False)\n",
                "    _set_remotes(state, event, reset=False, effects=effects)\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:leader_receives_its_state_again"),
    ),
)

LAG = (
    Mutant(
        name="B27a",
        title="lag is counted in messages",
        origin="KAFKA-1546",
        rule="lag is time, not messages (section 2)",
        breaks=("I37",),
        edits=(
            Edit(
                "broker.replication.high_watermark",
                "    return now_ms - remote.last_caught_up_ms <= state.config.replica_lag_time_max_ms\n",
                "    return state.log_end_offset - (remote.log_end_offset or 0) <= 50\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:steady_load_over_a_slow_link"),
    ),
    Mutant(
        name="B27b",
        title="only a follower at the log end at this instant counts as caught up",
        origin="KAFKA-4485",
        rule="a follower that reaches the log end of its previous fetch was caught up at that fetch (section 2)",
        breaks=("I37",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    elif event.fetch_offset >= remote.leader_end_at_last_fetch:\n"
                "        remote.last_caught_up_ms = max(remote.last_caught_up_ms, remote.last_fetch_ms)\n",
                "",
            ),
        ),
        schedule=Schedule("in_sync_replicas:steady_load_over_a_slow_link"),
    ),
    Mutant(
        name="B27c",
        title="an idle follower at the log end leaves the ISR",
        origin="KAFKA-7152",
        rule="a follower at the leader's log end never lags (section 2)",
        breaks=("I36", "I37"),
        edits=(
            Edit(
                "broker.replication.high_watermark",
                "    if remote.log_end_offset == state.log_end_offset:\n        return True\n",
                "",
            ),
        ),
        schedule=Schedule("in_sync_replicas:idle_followers"),
    ),
    Mutant(
        name="B27d",
        title="any fetch counts as caught up",
        origin="KAFKA-1546",
        rule="a follower that keeps asking for the same offset is stuck, and leaves the ISR (section 2)",
        breaks=("I37",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    if event.fetch_offset >= state.log_end_offset:\n        remote.last_caught_up_ms = max(",
                "    if True:\n        remote.last_caught_up_ms = max(",
            ),
        ),
        schedule=Schedule("in_sync_replicas:follower_stuck_but_fetching"),
    ),
)

SETS = (
    Mutant(
        name="B28a",
        title="the last member leaves the ISR, too",
        origin="KAFKA-708",
        rule="without a live member the ISR stays as it is, so it is never empty (sections 6 and 9)",
        breaks=("I9", "I28", "I36"),
        edits=(
            Edit(
                "controller.core.election",
                '    return _change(state, partition, before, None, members, f"{reason}; {why_no_leader}")',
                '    return _change(state, partition, before, None, present, f"{reason}; {why_no_leader}")',
            ),
        ),
        schedule=Schedule("disk_errors:sync_finds_no_room"),
    ),
    Mutant(
        name="B28b",
        title="members that are no longer replicas stay in the ISR",
        origin="KAFKA-9672",
        rule="brokers outside of the assignment count as out of sync (section 6)",
        breaks=("I9", "I34"),
        edits=(
            Edit(
                "controller.core.election",
                "    members = [each for each in assignment if each in before.in_sync_replicas]\n"
                "    present = [each for each in members",
                "    members = list(before.in_sync_replicas)\n    present = [each for each in members",
            ),
        ),
        schedule=Schedule("in_sync_replicas:another_tool_changes_the_assignment"),
    ),
    Mutant(
        name="B28c",
        title="the fetch of a broker that is no replica creates state for it",
        origin="KAFKA-13837",
        rule="an unknown replica gets a retriable error, and no state is created for it (section 4)",
        breaks=("I9", "I36"),
        edits=(
            Edit(
                "broker.replication.leader",
                "        return FetchRefused(ErrorCode.UNKNOWN_LEADER_EPOCH)\n    known = remote.broker_epoch\n",
                "        remote = RemoteReplica(last_caught_up_ms=0, last_fetch_ms=0, leader_end_at_last_fetch=0)\n"
                "        state.remotes[event.replica_id] = remote\n    known = remote.broker_epoch\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:broker_without_a_replica_fetches"),
    ),
)

MINIMUM = (
    Mutant(
        name="B29a",
        title="acks=all is appended though too few are in sync",
        origin="KAFKA-1555",
        rule="acks=all with too few in sync: NOT_ENOUGH_REPLICAS, and nothing is appended (section 3)",
        breaks=("I24",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    if event.acks == ACKS_ALL and len(state.in_sync_replicas) < state.effective_min_insync_replicas:\n",
                "    if False:\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:too_few_in_sync"),
    ),
    Mutant(
        name="B29b",
        title="waiting producers get no error when the ISR falls below the minimum",
        origin="KAFKA-1555",
        rule="too few in sync after the append: NOT_ENOUGH_REPLICAS_AFTER_APPEND at once (section 3, hardening rule 5)",
        breaks=("I24",),
        edits=(
            Edit(
                "broker.replication.high_watermark",
                "    effects.extend(_after_append(state, waiter) for waiter in state.waiters)\n"
                "    state.waiters.clear()\n\n\ndef refuse_all_waiters",
                "\n\ndef refuse_all_waiters",
            ),
        ),
        schedule=Schedule("in_sync_replicas:shrink_between_append_and_acknowledgement"),
    ),
    Mutant(
        name="B29c",
        title="the minimum applies to acks=1",
        origin="KAFKA-1555",
        rule="min.insync.replicas concerns acks=all only (section 3)",
        breaks=("I24",),
        edits=(
            Edit(
                "broker.replication.leader",
                "    if event.acks == ACKS_ALL and len(state.in_sync_replicas)",
                "    if len(state.in_sync_replicas)",
            ),
        ),
        schedule=Schedule("in_sync_replicas:too_few_in_sync"),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*ANSWERS, *ELIGIBILITY, *COMMITTED, *LAG, *SETS, *MINIMUM)

CANNOT_APPLY: tuple[CannotApply, ...] = (
    CannotApply(
        name="B22",
        title="the answer of a deposed controller is trusted",
        origin="KAFKA-14154",
        reason=(
            "a leader learns of a later epoch or version only from a LeaderAndIsr or an AlterPartition answer, which in "
            "the same message names the later controller, and it sends requests only to that one from then on; and a controller whose "
            "session may be over answers NOT_CONTROLLER by its own clock before any judgement (`ControllerService."
            "is_active`). So no request that knows more than its controller can reach `checker`; that check stays as a "
            "second fence (turned round, 40 random seeds found nothing)"
        ),
    ),
)
