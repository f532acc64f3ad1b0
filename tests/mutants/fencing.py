"""Which fetches and answers count: the fence of leader epochs (B04, B10 to B12, B14)."""

from tests.mutants.mutant import CannotApply, CoreSchedule, Edit, Mutant, Schedule, Search, UnitTest
from tests.mutants.truncation import FETCH_WITHOUT_ASKING, FOLLOWER, LEADER

FETCH_IS_JUDGED = (
    "    refusal = _refuse_follower(state, event) or "
    "_refuse_position(state, event.fetch_offset, event.last_fetched_epoch)\n"
    "    if refusal is not None:\n"
    "        return refusal\n"
    "    remote = _remote_for(state, event)\n"
    "    _note_progress(state, remote, event)\n"
)
FENCE_OF_QUESTION = (
    "    refusal = refuse_epoch(state, current_leader_epoch) or refuse_as_leader(state)\n"
    "    if refusal is not None:\n"
    "        return refusal, None, None\n"
)

MUTANTS = (
    Mutant(
        name="B04a",
        title="fetches of an older leader epoch are served and counted",
        origin="KAFKA-6880, 7395, KIP-320",
        rule="a fetch carries the follower's leader epoch; a lower one is FENCED, a higher one UNKNOWN_LEADER_EPOCH (section 4)",
        breaks=("I5", "I3", "I7"),
        edits=(
            Edit(
                LEADER,
                "    if current_leader_epoch < state.leader_epoch:\n        return ErrorCode.FENCED_LEADER_EPOCH\n",
                "",
            ),
        ),
        schedule=Search("elections", 6),
    ),
    Mutant(
        name="B04b",
        title="the request for an epoch's end is not fenced",
        origin="KAFKA-6880, 7395, KIP-320",
        rule="OffsetForLeaderEpoch carries the same fence as Fetch (section 4)",
        breaks=("I7", "I3"),
        edits=(
            Edit(
                LEADER,
                FENCE_OF_QUESTION,
                "    refusal = refuse_as_leader(state)\n"
                "    if refusal is not None:\n"
                "        return refusal, None, None\n",
            ),
            Edit(
                LEADER,
                "    if last_fetched_epoch is not None:\n",
                "    if last_fetched_epoch is not None and fetch_offset < state.log_start_offset:\n",
            ),
        ),
        schedule=Search("elections", 13),
    ),
    Mutant(
        name="B04c",
        title="only the epoch of the last record is checked (Kip320FirstTry)",
        origin="KIP-320, Kip320FirstTry.tla",
        rule="a matching log is not enough: both sides must mean the same leader epoch (section 4)",
        breaks=("I5", "I3"),
        edits=(
            Edit(
                LEADER,
                "    refusal = refuse_epoch(state, event.current_leader_epoch) or refuse_as_leader(state)\n",
                "    refusal = refuse_as_leader(state)\n",
            ),
        ),
        schedule=Search("elections", 6),
    ),
    Mutant(
        name="B11",
        title="a diverging fetch moves the follower's known end",
        origin="KAFKA-13141",
        rule="only a valid read proves a follower's end (section 4)",
        breaks=("I4", "I5", "I3"),
        edits=(
            FETCH_WITHOUT_ASKING,
            Edit(
                LEADER,
                FETCH_IS_JUDGED,
                FETCH_IS_JUDGED.replace(
                    "    if refusal is not None:\n",
                    "    if refusal is not None and refusal.diverging is not None:\n"
                    "        _note_progress(state, _remote_for(state, event), event)\n"
                    "        advance_high_watermark(state, event.now_ms, effects)\n"
                    "    if refusal is not None:\n",
                ),
            ),
        ),
        schedule=Search("elections", 8),
    ),
    Mutant(
        name="B12a",
        title="a refused fetch counts as a read",
        origin="KAFKA-8400",
        rule="an error never updates the leader's view of a follower (section 4)",
        breaks=("I5", "I36"),
        edits=(
            Edit(
                LEADER,
                FETCH_IS_JUDGED,
                FETCH_IS_JUDGED.replace(
                    "    if refusal is not None:\n",
                    "    if refusal is not None and event.replica_id in state.remotes:\n"
                    "        _note_progress(state, _remote_for(state, event), event)\n"
                    "    if refusal is not None:\n",
                ),
            ),
        ),
        schedule=Search("elections", 8),
    ),
    Mutant(
        name="B12b",
        title="a fetch below the leader's log start is answered as diverging",
        origin="KAFKA-12996",
        rule="out of range is checked before divergence (section 4)",
        breaks=("I36", "I44"),
        edits=(
            Edit(
                LEADER,
                "        if found is None or fetch_offset < state.log_start_offset:\n"
                "            return FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)\n"
                "        epoch, end_offset = found\n"
                "        if epoch < last_fetched_epoch or end_offset < fetch_offset:\n",
                "        if found is None:\n"
                "            return FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)\n"
                "        epoch, end_offset = found\n"
                "        if fetch_offset < state.log_start_offset or epoch < last_fetched_epoch:\n",
            ),
        ),
        schedule=Schedule("high_watermark:follower_behind_retention_again_and_again"),
    ),
    Mutant(
        name="B14",
        title="a fetch reply counts in a later epoch if only its offset fits",
        origin="KAFKA-18723, 18991",
        rule="a fetch reply counts only under the leader epoch of its request, and while aligned (section 4)",
        breaks=("I7", "I16"),
        edits=(
            Edit(
                FOLLOWER,
                "    if _is_stale(state, event.leader_epoch) or not isinstance(state.phase, Fetching):\n        return\n",
                "    if state.role is not Role.FOLLOWER or isinstance(state.phase, AskingLeaderEnds):\n        return\n",
            ),
        ),
        schedule=CoreSchedule("records_of_an_older_epoch"),
    ),
    Mutant(
        name="D48",
        title="an order lifts a fence that was set while the order was carried out",
        origin="seed 17002492",
        rule="a broker past ZooKeeper's deadline decides nothing as a leader (hardening rule 8)",
        breaks=("I29", "hardening rule 11"),
        edits=(
            Edit(
                "broker.replicas.partition",
                "        self.services.check_fence()\n        return replace(order, fenced=self.services.fenced)\n",
                "        is_fenced = self.services.fenced\n"
                "        self.services.check_fence()\n"
                "        return replace(order, fenced=is_fenced)\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_partition_shell.py::test_an_order_that_took_longer_than_the_session_lifts_no_fence"
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = (
    CannotApply(
        name="B10",
        title="the epoch of the last record is forgotten at an empty reply",
        origin="KAFKA-15510",
        reason=(
            "it is not stored: `ReplicaState.last_fetched_epoch` is computed from the history of the log for every "
            "fetch, so no reply can change it"
        ),
    ),
)
