"""What counts for the high watermark, which replica may join the ISR, and how a proposal ends (B05, B16 to B20)."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, Search, UnitTest

HIGH_WATERMARK = "broker.replication.high_watermark"
ISR = "broker.replication.isr"
STATE = "broker.replication.state"

MUTANTS = (
    Mutant(
        name="B05",
        title="a replica below the start of the leader's epoch joins the ISR",
        origin="KAFKA-7128",
        rule="a joiner holds everything up to the high watermark and up to the leader epoch's start (section 6)",
        breaks=("I6", "I3", "I19"),
        edits=(
            Edit(
                ISR,
                "floor = max(state.high_watermark, state.leader_epoch_start)",
                "floor = state.high_watermark",
            ),
        ),
        schedule=Search("joining", 16),
    ),
    Mutant(
        name="B16",
        title="retention deletes what is not committed",
        origin="KAFKA-5634",
        rule="only segments that end at or below the high watermark may be deleted (section 1)",
        breaks=("I14", "I10"),
        edits=(
            Edit(
                "broker.log.retention",
                "        if end > high_watermark or not (",
                "        if not (",
            ),
            Edit(
                "broker.log.retention",
                "    if active.size and log.log_end_offset <= high_watermark and _is_too_old(log, active, now_ms):\n",
                "    if active.size and _is_too_old(log, active, now_ms):\n",
            ),
        ),
        schedule=Schedule("high_watermark:retention_while_followers_are_cut_off"),
    ),
    Mutant(
        name="B17",
        title="a reset of the log leaves the high watermark where it was",
        origin="KAFKA-9491",
        rule="after a full truncation to n, log start, log end and high watermark are n (section 1)",
        breaks=("I10",),
        edits=(
            Edit(
                "broker.replication.follower",
                "    state.high_watermark = max(log_start_offset, min(state.high_watermark, log_end_offset))\n",
                "    state.high_watermark = min(state.high_watermark, log_end_offset)\n",
            ),
        ),
        schedule=Schedule("high_watermark:follower_behind_retention"),
    ),
    Mutant(
        name="B18a",
        title="a proposed shrink counts before it is confirmed",
        origin="KAFKA-8836, KIP-497",
        rule="the high watermark counts the larger of the committed and the proposed set (section 2)",
        breaks=("I4", "I3", "I21"),
        edits=(
            Edit(
                STATE,
                "        extra = tuple(b for b in self.pending_isr",
                "        if self.pending_isr.kind is IsrKind.SHRINK:\n"
                "            return self.pending_isr.in_sync_replicas\n"
                "        extra = tuple(b for b in self.pending_isr",
            ),
        ),
        schedule=Schedule("high_watermark:shrink_is_not_confirmed"),
    ),
    Mutant(
        name="B18b",
        title="a proposed joiner does not count until it is confirmed",
        origin="KAFKA-8836, KIP-497",
        rule="the high watermark counts the larger of the committed and the proposed set (section 2)",
        breaks=("I4", "I3", "I21"),
        edits=(
            Edit(
                HIGH_WATERMARK,
                "    must_hold = state.maximal_in_sync_replicas\n",
                "    must_hold = state.in_sync_replicas\n",
            ),
            Edit(
                HIGH_WATERMARK,
                "        elif end is None or not _may_join(state, remote, now_ms):\n            continue\n",
                "        else:\n            continue\n",
            ),
        ),
        schedule=Schedule("high_watermark:joiner_is_not_counted"),
    ),
    Mutant(
        name="B19",
        title="a LeaderAndIsr frees the slot of a proposal in flight",
        origin="KAFKA-12686",
        rule="one proposal is in flight; its slot is freed by its reply alone (section 6)",
        breaks=("I8", "I36"),
        edits=(
            Edit(
                ISR,
                "    state.pending_isr = None\n    state.shrink_waits_for_sync = None\n    state.partition_epoch",
                "    state.pending_isr = None\n    state.proposal_in_flight = None\n"
                "    state.shrink_waits_for_sync = None\n    state.partition_epoch",
            ),
        ),
        schedule=Schedule("high_watermark:proposal_outlives_its_leader_epoch"),
    ),
    Mutant(
        name="B20a",
        title="the slot is freed after the proposal was repeated",
        origin="KAFKA-14010",
        rule="first the slot is free, then the proposal is sent again (section 6)",
        breaks=("I36", "I38"),
        edits=(
            Edit(
                ISR,
                "    state.proposal_in_flight = None\n"
                "    pending = state.pending_isr\n"
                "    if pending is None or pending.proposal_id != event.proposal_id or not state.is_leader:\n",
                "    pending = state.pending_isr\n"
                "    if pending is None or pending.proposal_id != event.proposal_id or not state.is_leader:\n"
                "        state.proposal_in_flight = None\n",
            ),
            Edit(
                ISR,
                "    state.proposal_in_flight = None\n"
                "    pending = state.pending_isr\n"
                "    if pending is not None and pending.proposal_id == event.proposal_id and state.is_leader:\n"
                "        _send(state, effects, after_ms=PROPOSAL_RETRY_MS)\n",
                "    pending = state.pending_isr\n"
                "    if pending is not None and pending.proposal_id == event.proposal_id and state.is_leader:\n"
                "        _send(state, effects, after_ms=PROPOSAL_RETRY_MS)\n"
                "    state.proposal_in_flight = None\n",
            ),
            Edit(
                ISR,
                "    elif event.error_code not in OUTCOME_UNKNOWN:\n"
                "        _send(state, effects, after_ms=PROPOSAL_RETRY_MS)\n",
                "    elif event.error_code not in OUTCOME_UNKNOWN:\n"
                "        _send(state, effects, after_ms=PROPOSAL_RETRY_MS)\n"
                "    state.proposal_in_flight = None\n",
            ),
        ),
        schedule=Schedule("high_watermark:proposal_is_repeated"),
    ),
    Mutant(
        name="B20b",
        title="a confirmed shrink does not recompute the high watermark",
        origin="KAFKA-13091",
        rule="a confirmed set moves the high watermark, even without traffic (section 2)",
        breaks=("I36", "I37"),
        edits=(
            Edit(
                ISR,
                "    refuse_waiters_below_minimum(state, effects)\n"
                "    advance_high_watermark(state, now_ms, effects)  # also without traffic (KAFKA-13091)\n",
                "    refuse_waiters_below_minimum(state, effects)\n",
            ),
            Edit(
                ISR,
                "        maybe_expand(state, event.now_ms, effects)\n"
                "        advance_high_watermark(state, event.now_ms, effects)\n",
                "        maybe_expand(state, event.now_ms, effects)\n",
            ),
            Edit(
                "broker.replication.replica",
                "    maybe_expand(state, event.now_ms, effects)\n"
                "    advance_high_watermark(state, event.now_ms, effects)\n",
                "    maybe_expand(state, event.now_ms, effects)\n",
            ),
        ),
        schedule=Schedule("high_watermark:shrink_without_traffic"),
    ),
    Mutant(
        name="D62a",
        title="a follower that lists its position again is not told the high watermark again",
        origin="seed 17354891",
        rule="what a follower drops, because it has listed its position again meanwhile, is told again (section 4)",
        breaks=("I36",),
        edits=(
            Edit(
                "broker.requests.fetch_sessions",
                "        if not (entry.awaits_position and is_same_epoch):  # the follower drops what it was told since it"
                " listed before\n            entry.sent = None\n",
                "",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_fetch.py::test_a_position_that_is_listed_again_is_told_the_watermarks_again"
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = (
    CannotApply(
        name="B20c",
        title="an answer with the present version is called stale",
        origin="KAFKA-12751",
        reason=(
            "a leader never proposes the set that it holds, and every LeaderAndIsr with a newer version settles what is "
            "pending, so the answer to a pending proposal always has a newer version (B20a and B20b are the other two)"
        ),
    ),
)
