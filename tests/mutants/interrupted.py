"""Rules on what a process left behind that was killed between two disk calls, or had no room for one."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, UnitTest

FOUND = "external review: a search of short histories in which each disk call of a log is interrupted"
TESTS = "tests/broker/log/test_interrupted_steps.py"
MADE_AGAIN = "external review: random histories of one disk with topics made again, each disk call interrupted"
TESTS_MADE_AGAIN = "tests/broker/log/test_topics_made_again.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D57a",
        title="a start relies on what the killed process before it wrote, and never syncs it",
        origin=FOUND,
        rule="side files and names that a killed process left are synced before anything relies on them (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.log_directory",
                "            await self._sync_what_a_killed_process_left()\n",
                "            pass\n",
            ),
        ),
        schedule=UnitTest(
            f"{TESTS}::test_a_start_that_a_killed_reset_wrote_is_synced_before_records_count_on_it",
        ),
    ),
    Mutant(
        name="D57b",
        title="an epoch file that a start rebuilt from the batches is not written on the same boot",
        origin=FOUND,
        rule="the epoch file fits the log before the start is finished (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.log_directory",
                "        is_settled = await self._checkpoints.forget_lost_tails()\n",
                "        is_settled = self.same_boot or await self._checkpoints.forget_lost_tails()\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS}::test_a_kill_right_after_a_start_that_rebuilt_an_older_epoch_file_is_no_damage"),
    ),
    Mutant(
        name="D57d",
        title="a boot id that a full disk had no room for is not written later",
        origin=FOUND,
        rule="the boot id is written as soon as there is room: until then rot looks like a power cut (section 11)",
        breaks=("I20",),
        edits=(
            Edit(
                "broker.log.log_directory",
                "        await self._try(self._note_boot_if_due())\n",
                "",
            ),
        ),
        schedule=UnitTest(f"{TESTS}::test_a_boot_id_without_room_is_written_once_there_is_room"),
    ),
    Mutant(
        name="D57e",
        title="a reset to an earlier start is recorded once its files are gone",
        origin=FOUND,
        rule="before the first file of a reset goes, the log start file says that the log is reset (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.cutting",
                "    log.record_at_once(max(offset, log.log_start_offset), LogStartReason.RESET)\n",
                "    if offset > log.log_start_offset:\n        log.record_at_once(offset, LogStartReason.RESET)\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS}::test_a_kill_within_a_reset_to_an_earlier_start_is_no_damage"),
    ),
    Mutant(
        name="D58a",
        title="high watermarks that wait for the recovery points are written as they were before the wait",
        origin=MADE_AGAIN,
        rule="a log that is cut or replaced while its high watermark is to be written lowers it (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.side_files.offset_checkpoints",
                "        merged = {**self.high_watermarks, **high_watermarks}\n"
                "        self.high_watermarks = {partition: offset for partition, offset in merged.items()"
                " if partition in self._logs}\n"
                "        if self._is_out_of_date(RECOVERY_POINT_CHECKPOINT):\n"
                "            await self.write_recovery_points()\n",
                "        if self._is_out_of_date(RECOVERY_POINT_CHECKPOINT):\n"
                "            await self.write_recovery_points()\n"
                "        merged = {**self.high_watermarks, **high_watermarks}\n"
                "        self.high_watermarks = {partition: offset for partition, offset in merged.items()"
                " if partition in self._logs}\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_promised_ends.py"
            "::test_high_watermarks_that_wait_for_the_recovery_points_are_lowered_by_a_cut_meanwhile"
        ),
    ),
    Mutant(
        name="D58b",
        title="checkpoint entries of a deleted log count for the directory that its name has now",
        origin=MADE_AGAIN,
        rule="what the checkpoints say of a log whose directory is still to be removed is forgotten (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.side_files.offset_checkpoints",
                "                gone |= ownership.read_claims(self._health.disk, directory).owners\n",
                "                pass\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS_MADE_AGAIN}::test_an_end_at_any_disk_call_while_a_topic_is_made_again_is_no_damage"),
    ),
    Mutant(
        name="D58c",
        title="the directory of a deleted log goes before the checkpoints that name the log",
        origin=MADE_AGAIN,
        rule="the directory of a deleted log is removed after both checkpoints were written without it (section 11)",
        breaks=("I44",),
        edits=(Edit("broker.log.log_directory", "        if due and not self.full:\n", "        if False:\n"),),
        schedule=UnitTest(f"{TESTS_MADE_AGAIN}::test_a_deleted_log_is_not_missing_after_a_kill_at_any_disk_call"),
    ),
    Mutant(
        name="D58d",
        title="batches without an owner go to the next topic of the name",
        origin=MADE_AGAIN,
        rule="batches that no file assigns to a topic go to none (section 11)",
        breaks=("I41",),
        edits=(
            Edit(
                "broker.log.log_directory",
                "            if topic_id is None and loaded.has_batches and loaded.damage is None:\n",
                "            if False:\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS_MADE_AGAIN}::test_batches_that_a_power_cut_left_without_an_owner_go_to_no_topic"),
    ),
    Mutant(
        name="D58e",
        title="a log that lost both names goes to the next topic of its name, whatever the checkpoints say",
        origin=MADE_AGAIN,
        rule="the topic id of a log is also in the checkpoints (section 11)",
        breaks=("I41",),
        edits=(
            Edit(
                "broker.log.ownership",
                "claims.start.topic_id if claims.start is not None else named_elsewhere\n",
                "claims.start.topic_id if claims.start is not None else None\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS_MADE_AGAIN}::test_the_checkpoints_name_the_owner_of_a_log_that_lost_its_names"),
    ),
    Mutant(
        name="D59a",
        title="a log start whose write failed half way counts as not written",
        origin=MADE_AGAIN,
        rule="after a failed write a log start file may hold either start, and is written again (section 11)",
        breaks=("I21",),
        edits=(
            Edit("broker.log.side_files.log_start_file", "        self.is_certain = False\n", ""),
            Edit(
                "broker.log.side_files.log_start_file",
                "                self.is_certain = self.is_certain and self._change != change\n",
                "",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_log_starts.py"
            "::test_a_start_whose_write_failed_half_way_does_not_count_after_the_next_start"
        ),
    ),
    Mutant(
        name="D59b",
        title="a lower start is recorded before the later segments are durably gone",
        origin=MADE_AGAIN,
        rule="the names that a reset removed are synced before it records a lower start (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.cutting",
                "        log.health.disk.sync_directory(log.directory)\n    log.record_if_changed()\n",
                "        pass\n    log.record_if_changed()\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS}::test_a_kill_within_a_reset_to_an_earlier_start_is_no_damage"),
    ),
    Mutant(
        name="D59c",
        title="a repair begins while a checkpoint is written with what the damaged log had",
        origin="derived from D58a",
        rule="a damaged log is not set aside while a checkpoint is being written (section 12)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.disk_faults.repairs", "        if not self._directory.may_set_aside:\n", "        if False:\n"
            ),
        ),
        schedule=UnitTest(
            "tests/simulation/test_damage.py::test_a_repair_waits_for_a_checkpoint_that_is_being_written"
        ),
    ),
)
CANNOT_APPLY: tuple[CannotApply, ...] = ()
