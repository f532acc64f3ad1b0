"""Rules on what a start trusts on its own disk, and on which replica leads after all brokers have ended."""

from tests.mutants.mutant import CannotApply, CoreSchedule, Edit, Mutant, Schedule, UnitTest

FOUND = "external review: files of one disk removed between a kill of all and the start"
STALE_EPOCH_FILE = "external review: a truncation or a power cut, and a later start called a sound log damaged"
EPOCH_BIT = "external review: after one flipped bit of an epoch, which no CRC covers, 19 of 40 records were cut on all"

BOOT_ID_FIRST = (
    Edit(
        "broker.log.log_directory",
        "            await directory._settle_and_note_boot()  # last: until then a power loss shows\n",
        "",
    ),
    Edit(
        "broker.log.log_directory",
        "            await directory._load(on_progress)\n",
        "            directory_files.note_boot(disk, path, meta)\n            await directory._load(on_progress)\n",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D17a",
        title="one undisturbed log leads without a second one",
        origin=FOUND,
        rule="a killed process leaves no proof: the election waits for two undisturbed logs, or all members",
        breaks=("I3", "I21"),
        edits=(Edit("controller.core.restarted_members", "UNDISTURBED_MIN = 2\n", "UNDISTURBED_MIN = 1\n"),),
        schedule=Schedule("restarts:killed_log_is_shorter"),
    ),
    Mutant(
        name="D17b",
        title="after a kill on a machine that kept running the log counts as proven whole",
        origin=FOUND,
        rule="only a clean stop whose recorded log ends still match is a proof",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "broker.log.side_files.wholeness",
                "before.proven if before.log_ends is not None else 0\n",
                "before.proven\n",
            ),
        ),
        schedule=Schedule("restarts:killed_log_is_shorter"),
    ),
    Mutant(
        name="D17c",
        title="the high watermarks of replicas outside of the ISR are ignored",
        origin="external review: the only member of the ISR, on an older copy of its disk, made two others truncate",
        rule="a member whose log ends below a high watermark of another replica has lost records",
        breaks=("I28", "I3"),
        edits=(
            Edit(
                "controller.core.restarted_members",
                "    if not known or member.log.log_end_offset >= max(known)[0]:\n",
                "    if True:\n",
            ),
        ),
        schedule=Schedule("restarts:only_member_is_shorter_than_others_know"),
    ),
    Mutant(
        name="D51",
        title="a replica that has registered and answered no order yet is not asked what it knows",
        origin="found by the swarm (seed 17152117): a member without its tail and a replica that knew better were back at"
        " the same time, and the member led",
        rule="an election waits for what each registered replica knows, unless it is silent for a second (hardening rule 16)",
        breaks=("I28", "I3"),
        edits=(
            Edit(
                "controller.core.restarted_members",
                "        and each not in state.silent_seconds\n",
                "        and each not in state.unresponsive\n",
            ),
        ),
        schedule=Schedule("restarts:only_member_is_back_together_with_one_that_knows_more"),
    ),
    Mutant(
        name="D51b",
        title="an election goes on waiting for what a broker knows that has fallen silent",
        origin="found with D51: nothing compared the partition again",
        rule="when a broker falls silent, what waits for its knowledge is compared again (hardening rule 16)",
        breaks=("I37",),
        edits=(
            Edit(
                "controller.core.unresponsive_brokers",
                '    effects = write_effects(elect_all(state, waiting, f"broker {broker_id} does not answer"))\n',
                "    effects = write_effects([])\n",
            ),
        ),
        schedule=Schedule("restarts:only_member_is_back_together_with_a_silent_one"),
    ),
    Mutant(
        name="D18a",
        title="a log may end below its own high watermark, though the machine kept running",
        origin="external review: the last segment of the only in-sync replica was missing",
        rule="if the machine kept running, a log reaches its last checkpointed high watermark, or is damaged",
        breaks=("I28", "I3"),
        edits=(
            Edit(
                "broker.log.recovery",
                "        self.high_watermark = context.high_watermark if self.was_only_killed else 0\n",
                "        self.high_watermark = 0\n",
            ),
        ),
        schedule=Schedule("restarts:only_member_is_shorter_than_its_high_watermark"),
    ),
    Mutant(
        name="D18b",
        title="rot in the last segment is cut like a torn write, though the machine kept running",
        origin="external review: after one flipped bit 58 of 60 records of the only in-sync replica were cut, then on all",
        rule="if the machine kept running, only a batch that is cut off by the end of the file is a torn tail",
        breaks=("I28", "I3"),
        edits=(
            Edit(
                "broker.log.recovery",
                "        elif self.was_only_killed and not is_cut_off(file, position, segment.size):\n",
                "        elif False:\n",
            ),
        ),
        schedule=Schedule("restarts:only_member_rots_in_its_last_segment"),
    ),
    Mutant(
        name="D19",
        title="damage that a start finds is not noted on the disk",
        origin="external review: the second start led with half of the log",
        rule="damage is noted before its evidence is overwritten",
        breaks=("I28", "I3"),
        edits=(
            Edit(
                "broker.log.ownership",
                "        if loaded.damage is not None and noted is None:\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("restarts:only_one_start_can_see_the_damage"),
    ),
    Mutant(
        name="D20",
        title="the new boot id is written before the chain of starts is removed",
        origin="external review: a start that crashed between the two made a power cut look like a kill",
        rule="a crash in between leaves no chain rather than a false one",
        breaks=("I3", "I21"),
        edits=(
            *BOOT_ID_FIRST,
            Edit("controller.core.restarted_members", "UNDISTURBED_MIN = 2\n", "UNDISTURBED_MIN = 1\n"),
        ),
        schedule=Schedule("restarts:start_dies_after_claiming_the_directory"),
    ),
    Mutant(
        name="D20b",
        title="the new boot id is written before the logs are loaded",
        origin="found by mutant B38b and I44",
        rule="a start that crashes while it loads hides no power loss: the next one sees a torn write, not rot",
        breaks=("I44",),
        edits=BOOT_ID_FIRST,
        schedule=Schedule("storage:start_aborted_while_it_recovers"),
    ),
    Mutant(
        name="D20c",
        title="the new boot id is written while checkpointed high watermarks lie above the logs",
        origin="found by the swarm (seed 7000034 with faulty disks): the start after a power cut crashed, the next one"
        " called the log damaged",
        rule="high watermarks that a power cut left beyond the log end are lowered before the new boot id is written",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.log_directory",
                "        is_settled = await self._checkpoints.forget_lost_tails()\n",
                "        is_settled = True\n",
            ),
        ),
        schedule=Schedule("restarts:start_dies_before_it_checkpoints"),
    ),
    Mutant(
        name="D21",
        title="a member whose disk is full counts as having no records",
        origin="external review: all records on a full disk, outvoted by a log that had lost its tail",
        rule="the election waits for a replica that is offline for another reason than damage",
        breaks=("I28",),
        edits=(
            Edit(
                "controller.core.restarted_members",
                '        return Standing(broker_id=broker_id, is_waited_for=True, problem="has an offline replica")\n',
                '        return Standing(broker_id=broker_id, problem="has an offline replica")\n',
            ),
        ),
        schedule=CoreSchedule("largest_log_is_on_a_full_disk"),
    ),
    Mutant(
        name="D22",
        title="after a clean stop the epoch file is trusted even if the batches contradict it",
        origin="external review: an older copy of the file",
        rule="the epoch of the last batch must be the file's last one before the log end (sections 8 and 11)",
        breaks=("I19", "I3"),
        edits=(
            Edit(
                "broker.log.recovery",
                "        if not there or there[-1] != tail.last_epoch:\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("epochs:older_epochs_come_back"),
    ),
    Mutant(
        name="D50",
        title="recovery rebuilds the leader epochs from batches that contradict the epoch file",
        origin="found by the swarm (seed 17142375 with faulty disks): a bit of an epoch rotted while its broker was down",
        rule="unless the power was cut, an epoch file that contradicts a batch is damage (section 11)",
        breaks=("I20",),
        edits=(Edit("broker.log.recovery", "        if offset is not None and (", "        if False and ("),),
        schedule=Schedule("epochs:epoch_rots_after_a_kill"),
    ),
    Mutant(
        name="D54",
        title="recovery believes the epoch of a batch that the epoch file does not know yet",
        origin="external review: a bit of the last batch's epoch rotted upward while all brokers were down",
        rule="unless the power was cut, the epoch file names the epoch of each batch (section 11)",
        breaks=("I17", "I20"),
        edits=(
            Edit(
                "broker.log.side_files.epoch_file",
                "        if named > there or (named not in (NO_EPOCH, there) and not may_be_older):\n",
                "        if named > there:\n",
            ),
        ),
        schedule=Schedule("epochs:epoch_of_the_last_batch_rots_upward"),
    ),
    Mutant(
        name="D54b",
        title="a batch is written before its epoch",
        origin="the other half of D54: a kill between the two would make a sound log look damaged",
        rule="an epoch is written before its first batch (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.partition_log",
                "                self._write_epoch_file(epochs)\n",
                "",
            ),
        ),
        schedule=Schedule("epochs:kill_between_a_batch_and_its_epoch"),
    ),
    Mutant(
        name="D56",
        title="a start compares no epochs across the end of a closed segment",
        origin="found by the swarm (seed 17262314 with faulty disks): the last epoch of a closed segment rotted upward",
        rule="the epochs of batches never fall, also from one segment to the next (I12, 11)",
        breaks=("I13",),
        edits=(
            Edit(
                "broker.log.recovery",
                "        self.last_epoch = tail.last_epoch\n",
                "",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_recovery.py::test_an_epoch_that_falls_between_a_closed_segment_and_the_next_is_damage"
        ),
    ),
    Mutant(
        name="D55a",
        title="an epoch file with an epoch that was cut off counts as one that names the epochs before it",
        origin=STALE_EPOCH_FILE,
        rule="an epoch file that differs from its log is written before the next append that it does not cover (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.open_log",
                "last[0] if last is not None and self._epochs[-1:] == [last] else None\n",
                "self._epochs[-1][0] if last is not None and self._epochs else None\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_same_boot.py::test_a_truncation_without_a_descriptor_for_the_epoch_file_is_no_damage_later"
        ),
    ),
    Mutant(
        name="D55c",
        title="an epoch without batches stays in the epoch file when batches of an earlier one follow",
        origin="external review: a leader's first append found the disk full, the next leader had more of the epoch"
        " before, and the next kill made a sound log look damaged",
        rule="an entry at or beyond the log end goes before a batch of another epoch is appended there (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.partition_log",
                "        rebuild.keep_below(batches[0][0].base_offset)\n",
                "",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_same_boot.py::test_an_epoch_without_batches_leaves_the_file_when_batches_of_an_earlier_one_follow"
        ),
    ),
    Mutant(
        name="D55b",
        title="the new boot id is written while an epoch file has epochs of records that a power cut took",
        origin=STALE_EPOCH_FILE,
        rule="after a power cut a stale epoch file is written before the new boot id (section 11)",
        breaks=("I44",),
        edits=(
            Edit(
                "broker.log.side_files.offset_checkpoints",
                "                if not log.epochs_stored and log.damage is None:\n",
                "                if False:\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/log/test_same_boot.py::test_a_kill_right_after_a_start_behind_a_power_cut_is_no_damage"
        ),
    ),
    Mutant(
        name="D41",
        title="after a clean stop a segment may start anywhere behind the others",
        origin="external review: an empty file with a segment's name, and records acknowledged behind a gap",
        rule="after a clean stop there is no gap between segments (section 11)",
        breaks=("I19", "I28"),
        edits=(
            Edit(
                "broker.log.recovery",
                "            if following > self.synced_end and not self.clean:\n",
                "            if following > self.synced_end:\n",
            ),
        ),
        schedule=Schedule("restarts:stray_segment_lies_behind_the_end"),
    ),
    Mutant(
        name="D42",
        title="the epoch file of another partition is trusted",
        origin="external review: a leader answered with the end of another log's epoch, and committed records were cut",
        rule="an epoch file names its topic id and partition, or it is rebuilt from the batches (section 11)",
        breaks=("I32", "I13", "I19"),
        edits=(
            Edit(
                "broker.log.side_files.epoch_file",
                "    if owner is not None and named != owner:\n",
                "    if False:\n",
            ),
        ),
        schedule=Schedule("restarts:epochs_of_another_partition_come"),
    ),
    Mutant(
        name="D30",
        title="an operator's order elects the replica with the most records when it arrives",
        origin="external review: the operator confirmed a replica with 20000 records, one with 5000 was elected",
        rule="an order repeats the offered election, and elects no replica if that has changed (hardening rule 16)",
        breaks=("I28", "I21"),
        edits=(
            Edit(
                "controller.core.accepted_loss",
                "    leader = next((each for each in now.candidates if each.broker_id == confirmed.leader), None)\n",
                "    confirmed = confirmation_of(now)\n"
                "    leader = next((each for each in now.candidates if each.broker_id == confirmed.leader), None)\n",
            ),
            Edit(
                "controller.core.accepted_loss",
                "import ConfirmedElection, ElectionCandidate, ElectionPreview\n",
                "import ConfirmedElection, ElectionCandidate, ElectionPreview, confirmation_of\n",
            ),
        ),
        schedule=Schedule("restarts:candidate_changes_before_the_operator_confirms"),
    ),
    Mutant(
        name="D32a",
        title="a disturbed log outvotes two undisturbed ones",
        origin=EPOCH_BIT,
        rule="two undisturbed logs are compared with each other only (hardening rule 16, decision 0022)",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "controller.core.restarted_members",
                "    if len(undisturbed) >= UNDISTURBED_MIN:\n        return undisturbed\n",
                "    if len(undisturbed) >= UNDISTURBED_MIN:\n        return ready\n",
            ),
        ),
        schedule=Schedule("restarts:epoch_rots_beside_two_undisturbed_logs"),
    ),
    Mutant(
        name="D32b",
        title="a disturbed log outvotes one undisturbed log by its epoch alone",
        origin="derived from D32a: the same with two replicas",
        rule="a disturbed log is preferred to an undisturbed one only if it is longer as well (hardening rule 16)",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "controller.core.restarted_members",
                "    return member in undisturbed or all(_size(member)[1] > _size(each)[1] for each in undisturbed)\n",
                "    return True\n",
            ),
        ),
        schedule=Schedule("restarts:epoch_rots_beside_one_undisturbed_log"),
    ),
    Mutant(
        name="D43",
        title="an operator who accepts a loss is offered the log with the latest epoch",
        origin="derived from D32a: with the flipped bit the operator elects a replica that no election would",
        rule="an accepted loss follows the rules of an election as far as they apply (hardening rule 16)",
        breaks=("I28",),
        edits=(
            Edit(
                "controller.core.restarted_members",
                "    return max(_candidates(ready), key=_size).broker_id if ready else None\n",
                "    return max(standings, key=_size).broker_id if standings else None\n",
            ),
        ),
        schedule=Schedule("restarts:operator_elects_beside_a_rotten_epoch"),
    ),
    Mutant(
        name="D32c",
        title="a member with a later epoch may end below another member's high watermark",
        origin=EPOCH_BIT,
        rule="a member of the ISR was aligned after every accepted loss: its high watermark holds for any epoch",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "controller.core.restarted_members",
                "        and (each in leadership.in_sync_replicas or log.last_epoch >= member_log.last_epoch)\n",
                "        and log.last_epoch >= member_log.last_epoch\n",
            ),
        ),
        schedule=Schedule("restarts:epoch_rots_in_a_log_that_is_cut"),
    ),
    Mutant(
        name="D32d",
        title="after a power cut a whole batch that does not fit counts as a torn tail",
        origin=EPOCH_BIT,
        rule="a whole batch with a sound CRC and a wrong epoch or offset is damage, whatever the boot (section 11)",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "broker.log.recovery",
                "        elif is_whole_batch(file, position, segment.size):\n",
                "        elif False:\n",
            ),
        ),
        schedule=Schedule("restarts:epoch_rots_where_all_lose_power"),
    ),
    Mutant(
        name="D32e",
        title="the log end of a clean stop is compared for the chain of starts only",
        origin="external review: 20 of 40 records of an only copy with unreadable recovery points were gone",
        rule="a log that ends below the end in `whole-since` is damaged (section 11)",
        breaks=("I28", "I3"),
        edits=(
            Edit(
                "broker.log.log_directory",
                "                    clean_end=self.wholeness.clean_end(partition),\n",
                "                    clean_end=0,\n",
            ),
        ),
        schedule=Schedule("restarts:only_member_is_shorter_than_its_clean_stop_says"),
    ),
    Mutant(
        name="D32f",
        title="after a power cut rot below both checkpoints counts as a torn tail",
        origin="external review: after one flipped bit an only copy that had synced 40 records was cut to 20",
        rule="records below both the recovery point and the high watermark on a disk were synced (section 11)",
        breaks=("I28", "I3"),
        edits=(
            Edit(
                "broker.log.recovery",
                "        return max(context.clean_end, min(self.recovery_point, context.high_watermark))\n",
                "        return context.clean_end\n",
            ),
        ),
        schedule=Schedule("restarts:only_member_rots_below_its_checkpoints_and_loses_power"),
    ),
    Mutant(
        name="D32g",
        title="checkpoints name a deleted log for up to a minute",
        origin="external review: a topic was deleted, all brokers were killed, and two of three waited for the last one",
        rule="a deletion is written to both checkpoints at once (section 11, hardening rule 16)",
        breaks=("I36",),
        edits=(Edit("broker.log.log_directory", "        self._checkpoints.name_was_deleted()\n", ""),),
        schedule=Schedule("restarts:topic_was_deleted_before_all_are_killed"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
