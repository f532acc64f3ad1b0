"""Where a log starts: what explains a missing head, and which replica decides it."""

from tests.mutants.mutant import CannotApply, CoreSchedule, Edit, Mutant, Schedule, UnitTest

RECOVERY = "broker.log.recovery"
OWNERSHIP = "broker.log.ownership"

MUTANTS = (
    Mutant(
        name="D01",
        title="segments in front of a gap below the recovery point count as the rest of a deletion",
        origin="fault injection: one bit of a base offset, 63 of 65 records lost on all replicas",
        rule="a contradiction is damage; only segments below the recorded log start are the rest of a deletion (section 11)",
        breaks=("I21", "I39"),
        edits=(
            Edit(
                RECOVERY,
                "            if following <= self.start and self._read_tail(self.segments[number]).end_offset != following:\n",
                "            if following <= max(self.start, self.recovery_point) and (\n"
                "                self._read_tail(self.segments[number]).end_offset != following\n"
                "            ):\n"
                "                self.start = max(self.start, following)\n",
            ),
        ),
        schedule=Schedule("log_starts:bit_of_a_base_offset"),
    ),
    Mutant(
        name="D04",
        title="the log start of another topic is trusted",
        origin="fault injection: a topic made again under its name, and a kill within a second",
        rule="a log start carries the topic id; with another one it explains nothing, and the log is damaged (section 11)",
        breaks=("I21", "I39"),
        edits=(
            Edit(
                OWNERSHIP,
                "    if metadata is not None and start is not None and metadata.topic_id != start.topic_id:\n",
                "    if False:\n",
            ),
        ),
        schedule=Schedule("log_starts:log_start_of_an_earlier_topic"),
    ),
    Mutant(
        name="D11",
        title="every replica applies retention by its own clock",
        origin="fault injection: a follower whose clock runs ahead deletes what the others keep",
        rule="the leader alone raises a log start (section 1)",
        breaks=("I39",),
        edits=(
            Edit(
                "broker.replicas.log_start_recorder",
                "            if state.is_leader and not state.fenced:\n",
                "            if True:\n",
            ),
            Edit(
                "broker.replication.log_starts",
                "    if not state.is_leader or state.fenced or event.leader_epoch != state.leader_epoch:\n",
                "    if state.fenced or event.leader_epoch != state.leader_epoch:\n",
            ),
        ),
        schedule=Schedule("log_starts:clock_of_a_follower_runs_ahead"),
    ),
    Mutant(
        name="D13",
        title="a log starts at its first segment, whatever start is recorded",
        origin="fault injection: the oldest segment of one replica was removed, 110 of 400 records were lost on all",
        rule="a log that begins behind its recorded start has lost its head, and is damaged (section 11)",
        breaks=("I21", "I39"),
        edits=(Edit(RECOVERY, "            if first > self.start:\n", "            if False:\n"),),
        schedule=Schedule("log_starts:oldest_segment_is_missing"),
    ),
    Mutant(
        name="D13b",
        title="a replica joins wherever its log starts",
        origin="fault injection: as D13",
        rule="a replica joins only if its log starts where the leader's does (section 6)",
        breaks=("I39",),
        edits=(
            Edit(RECOVERY, "            if first > self.start:\n", "            if False:\n"),
            Edit(
                "broker.replication.isr",
                "        and starts_like_leader(state, remote)\n",
                "",
            ),
        ),
        schedule=Schedule("log_starts:oldest_segment_of_a_follower_is_missing"),
    ),
    Mutant(
        name="D13f",
        title="a new leader assumes that nothing was deleted before it led",
        origin="derived: it does not know the low watermark of the previous leader",
        rule="a replica whose log starts before the new leader's log start at its election does not join (section 6)",
        breaks=("I39",),
        edits=(
            Edit(
                "broker.replication.log_starts",
                "max(state.low_watermark, state.elected_log_start)\n",
                "state.low_watermark\n",
            ),
        ),
        schedule=CoreSchedule("joiner_starts_before_the_new_leader"),
    ),
    Mutant(
        name="D13c",
        title="segments are deleted as soon as the leader's log start rises",
        origin="derived: the leader fails before the others know its log start",
        rule="files are deleted only once every in-sync replica has recorded the log start (section 1)",
        breaks=("I39",),
        edits=(
            Edit(
                "broker.replicas.partition",
                "        first = delete_head(self.log, self.state.low_watermark)\n",
                "        first = delete_head(self.log, self.log.log_start_offset)\n",
            ),
        ),
        schedule=Schedule("log_starts:leader_falls_before_its_start_is_known"),
    ),
    Mutant(
        name="D13g",
        title="a log start is decided before earlier writes of it are over",
        origin="found by seed 17403586: a kill made a damaged log of it",
        rule="no start is recorded below which files are gone, or might soon be (section 11)",
        breaks=("I39",),
        edits=(
            Edit(
                "broker.log.side_files.log_start_file",
                "        async with self._writing:\n            start = wanted()\n",
                "        start = wanted()\n        async with self._writing:\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_log_starts.py::test_a_start_that_waits_for_a_higher_one_does_not_replace_it",
        ),
    ),
    Mutant(
        name="D31",
        title="a log is reset to its leader's log start before every member of the ISR has recorded it",
        origin="swarm, seed 9000346: the leader failed, the next one started earlier, and the new log was called damaged",
        rule="a log is reset only once the low watermark has reached its leader's log start (section 11)",
        breaks=("I39", "I44"),
        edits=(
            Edit(
                "broker.replication.follower",
                "        if event.low_watermark is not None and event.low_watermark < event.log_start_offset:\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("log_starts:log_is_reset_before_its_start_is_known"),
    ),
    Mutant(
        name="D24",
        title="a follower accepts any low watermark",
        origin="external review: after one absurd answer the follower, as leader, let no replica join any more",
        rule="an answer with contradictory watermarks is refused; a low watermark is at most the own log start (section 11)",
        breaks=("crash", "I36"),
        edits=(
            Edit("broker.replication.follower", "(low is not None and low > start) or ", ""),
            Edit("broker.replication.log_starts", "min(leader_low, state.log_start_offset)", "leader_low"),
        ),
        schedule=Schedule("log_starts:low_watermark_above_the_start"),
    ),
    Mutant(
        name="D13d",
        title="a directory is taken for the log of the partition in its name",
        origin="fault injection: two partitions of a topic exchanged on one disk, and each served as the other",
        rule="a directory whose files name another partition is damaged, and none of its files counts (section 11)",
        breaks=("I2", "I16", "I21"),
        edits=(
            Edit(
                OWNERSHIP,
                "    elsewhere = belongs_elsewhere(partition.partition, metadata, start)\n",
                "    elsewhere = None\n",
            ),
        ),
        schedule=Schedule("log_starts:directories_of_two_partitions_are_swapped"),
    ),
    Mutant(
        name="D13e",
        title="the log start of another partition of the topic is trusted",
        origin="fault injection: as D13d, with the file alone; 50 records were deleted on all replicas",
        rule="a log start carries the partition number; with another one it explains nothing (section 11)",
        breaks=("I21", "I39"),
        edits=(
            Edit(
                "protocol.files.partition_metadata",
                "((PARTITION_METADATA, metadata), (LOG_START, start))",
                "((PARTITION_METADATA, metadata),)",
            ),
        ),
        schedule=Schedule("log_starts:start_of_another_partition"),
    ),
    Mutant(
        name="D13h",
        title="a log start may be written over the only one that is stored",
        origin="found by a reviewer: after one lack of descriptors a kill or a torn write made a sound log a damaged one",
        rule="a new start goes to the slot that does not hold the newest stored one (section 11)",
        breaks=("I39",),
        edits=(
            Edit(
                "broker.log.side_files.log_start_file",
                "        return following + (following % LOG_START_SLOTS == self._stored_change % LOG_START_SLOTS)\n",
                "        return following\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_log_start_writes.py::test_the_newest_stored_start_stays_until_another_one_is_stored",
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
