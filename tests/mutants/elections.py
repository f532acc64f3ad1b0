"""Which replica may lead after a start: replaced disks, logs that may be short, brokers that do not answer."""

from tests.mutants.mutant import CannotApply, CoreSchedule, Edit, Mutant, Schedule, UnitTest

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D02",
        title="a member of the ISR leads with another log directory than the one that was in sync",
        origin="KIP-858, KIP-966",
        rule="the ISR records directory ids with incarnations; another directory holds no acknowledged records",
        breaks=("I28",),
        edits=(
            Edit(
                "controller.core.controller_state",
                "        return broker is not None and leadership.directory_of(broker_id) in (None, broker.directory_id)\n",
                "        return broker is not None\n",
            ),
        ),
        schedule=CoreSchedule("replaced_disk_alone_in_sync"),
    ),
    Mutant(
        name="D02b",
        title="after a restart of all members the first ones back elect among themselves",
        origin="KIP-966; Protocol-Aware Recovery, FAST'18",
        rule="where no log is proven whole, the election waits for all members of the last ISR",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "controller.core.restarted_members",
                "    waited = [each for each in standings if each.is_waited_for and (is_patient or each.must_be_asked)]\n",
                "    waited = [each for each in standings if each.must_be_asked]\n",
            ),
        ),
        schedule=Schedule("elections:synced_log_starts_last"),
    ),
    Mutant(
        name="D02c",
        title="logs count as whole after a power cut",
        origin="hardening rule 16",
        rule="the chain of starts goes on after a clean stop, or if the machine kept running and nothing was truncated",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "broker.log.side_files.wholeness",
                '            return None if same_boot else "the machine went down without a clean stop"\n',
                "            return None\n",
            ),
        ),
        schedule=Schedule("elections:synced_log_starts_last"),
    ),
    Mutant(
        name="D02d",
        title="after a restart of all members the first in the assignment leads",
        origin="KIP-966; Raft, section 5.4.1",
        rule="among logs that may be short, the one with the largest (last epoch, log end) leads",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "controller.core.restarted_members", "    best = max(candidates, key=_size)\n", "    best = ready[0]\n"
            ),
        ),
        schedule=Schedule("elections:synced_log_starts_last"),
    ),
    Mutant(
        name="D07a",
        title="a broker that has not answered under its registration is elected",
        origin="hardening rule 17",
        rule="a broker that has answered no order under its registration, or none lately, cannot be elected",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "controller.core.controller_state",
                "        return [] if self.is_gathering else [each for each in broker_ids if each not in self.unresponsive]\n",
                "        return list(broker_ids)\n",
            ),
        ),
        schedule=Schedule("elections:registration_of_a_dead_broker_remains"),
    ),
    Mutant(
        name="D07b",
        title="a leader that does not answer the controller leads until its session ends",
        origin="hardening rule 17",
        rule="a leader that leaves the controller without an answer for too long is unregistered, and replaced",
        breaks=("I37",),
        edits=(
            Edit(
                "controller.core.unresponsive_brokers",
                "    return [report, Unregister(broker_id=broker_id, broker_epoch=state.brokers[broker_id].broker_epoch)]\n",
                "    return [report]\n",
            ),
        ),
        schedule=Schedule("elections:leader_is_cut_off_from_the_others"),
    ),
    Mutant(
        name="D07c",
        title="a broker that was unregistered and registers again before the next check keeps its place",
        origin="KIP-380",
        rule="a broker whose registration the controller has removed was down, even if a new one exists",
        breaks=("I37",),
        edits=(
            Edit(
                "controller.active_controller",
                "                await self._without(effect.broker_id, effect.broker_epoch)\n",
                "",
            ),
            Edit(
                "controller.core.unresponsive_brokers",
                "NEVER_ANSWERED_SECONDS = 1.0\n",
                "NEVER_ANSWERED_SECONDS = 60.0\n",
            ),
        ),
        schedule=Schedule("elections:leader_refuses_all_and_registers_again"),
    ),
    Mutant(
        name="D07d",
        title="a leader that cannot reach its controller leads on, and can change no ISR",
        origin="hardening rule 17",
        rule="a leader reports for how long its AlterPartition has had no answer, and is replaced after too long",
        breaks=("I37",),
        edits=(
            Edit(
                "broker.replicas.alter_partition_sender",
                "        return now_ms - silence.since_ms\n",
                "        return 0\n",
            ),
        ),
        schedule=Schedule("elections:leader_does_not_reach_the_controller"),
    ),
    Mutant(
        name="D07e",
        title="the time for which a leader's AlterPartition got no answer goes on under its next registration",
        origin="found by seed 17290212",
        rule="a leader reports no failures of a former registration, which has been removed for them",
        breaks=("hardening rule 11",),
        edits=(
            Edit(
                "broker.replicas.alter_partition_sender",
                "        return broker_epoch == self.broker_epoch and asked_ms - self.last_ms <= STILL_FAILING_MS\n",
                "        return asked_ms - self.last_ms <= STILL_FAILING_MS\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_alter_partition_sender.py::test_failures_under_a_former_registration_do_not_count",
        ),
    ),
    Mutant(
        name="D07f",
        title="the time for which a leader's AlterPartition got no answer begins with one of a former leadership",
        origin="found by seed 17300988",
        rule="failures that are not in a row with the present ones do not count",
        breaks=("hardening rule 11",),
        edits=(
            Edit(
                "broker.replicas.alter_partition_sender",
                "known is not None and known.lasts(broker_epoch, asked_ms)",
                "known is not None and known.broker_epoch == broker_epoch",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_alter_partition_sender.py::test_failures_of_a_former_leadership_do_not_count",
        ),
    ),
    Mutant(
        name="D12e",
        title="a new controller does not know that a deletion has begun",
        origin="seed 770068",
        rule="once a deletion has begun no order creates replicas of the topic, or elects among them",
        breaks=("I35",),
        edits=(
            Edit(
                "controller.cluster_reader",
                "            return content == znodes.DELETION_BEGUN\n",
                "            return False\n",
            ),
            Edit(
                "broker.replicas.erased_replicas", "        return replica in self._erased\n", "        return False\n"
            ),
        ),
        schedule=Schedule("elections:controller_dies_during_a_deletion"),
    ),
    Mutant(
        name="D62b",
        title="a partition whose state another tool has removed begins again at leader epoch 0",
        origin="a new user's tour: `delete` in ZooKeeper's shell",
        rule="a partition that was led and has no state is left alone: no controller knows which replicas are whole",
        breaks=("I27", "I28"),
        edits=(
            Edit(
                "controller.active_controller",
                "        found = await self.store.without_contradicted_states(await self.store.read_topics(names), markers)\n",
                "        found = await self.store.read_topics(names)\n",
            ),
        ),
        schedule=UnitTest(
            "tests/controller/test_contradicted_states.py"
            "::test_a_new_controller_leaves_a_partition_alone_that_was_led_and_has_no_state"
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
