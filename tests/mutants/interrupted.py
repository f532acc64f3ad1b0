"""Rules on what a process left behind that was killed between two disk calls, or had no room for one."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, UnitTest

FOUND = "found from outside: a search of short histories in which each disk call of a log is interrupted"
TESTS = "tests/broker/log/test_interrupted_steps.py"

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
        name="D57c",
        title="the epoch file of a log that learns its topic id goes on naming no owner",
        origin=FOUND,
        rule="a log that learns its topic id names it in its epoch file first: else the next start ignores it (section 11)",
        breaks=("I20",),
        edits=(
            Edit(
                "broker.log.log_directory",
                "            log.store_epochs(topic_id)  # first: a start ignores an epoch file that does not name its log\n",
                "            pass\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS}::test_a_log_that_learns_its_topic_id_names_it_in_its_epoch_file"),
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
        rule="before the first file of a reset goes, the log start file says that the log is started anew (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.cutting",
                "    log.record_at_once(max(offset, log.log_start_offset), LogStartReason.STARTED_ANEW)\n",
                "    if offset > log.log_start_offset:\n"
                "        log.record_at_once(offset, LogStartReason.STARTED_ANEW)\n",
            ),
        ),
        schedule=UnitTest(f"{TESTS}::test_a_kill_within_a_reset_to_an_earlier_start_is_no_damage"),
    ),
)
CANNOT_APPLY: tuple[CannotApply, ...] = ()
