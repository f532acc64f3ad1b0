"""Outdated controllers, brokers and requests: two controllers, bounces, late orders, lost answers."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule, UnitTest

CONTROLLERS = (
    Mutant(
        name="B30a",
        title="the controller's writes are not tied to its epoch",
        origin="KAFKA-6082",
        rule="every write of a controller is one multi with a check of the epoch it won (section 9)",
        breaks=("I30", "I18"),
        edits=(
            Edit(
                "controller.cluster_store",
                "                return await self._coordination.multi([self._epoch_check, *operations])\n",
                "                return [None, *await self._coordination.multi([*operations])]\n",
            ),
            Edit("controller.cluster_store", "            if error.index == 0:\n", "            if False:\n"),
        ),
        schedule=Schedule("deposed:write_of_a_deposed_controller"),
    ),
    Mutant(
        name="B30b",
        title="a deposed controller adopts the epoch of its successor",
        origin="KAFKA-1096",
        rule="a controller never adopts an epoch that it did not win (section 9)",
        breaks=("I30", "I18"),
        edits=(
            Edit(
                "controller.cluster_store",
                "                raise Deposed("
                'f"controller epoch {self._fence.controller_epoch} is over") from error\n'
                "            raise\n",
                "                _, stat = await self._coordination.get(znodes.CONTROLLER_EPOCH)\n"
                "                self._epoch_check = CheckOp(path=znodes.CONTROLLER_EPOCH, version=stat.version)\n"
                "                return await self.multi(operations)\n"
                "            raise\n",
            ),
        ),
        schedule=Schedule("deposed:write_of_a_deposed_controller"),
    ),
    Mutant(
        name="B30c",
        title="brokers obey a controller of a lower epoch",
        origin="KAFKA-532, KAFKA-1188",
        rule="a request of a controller of a lower epoch is refused (section 9)",
        breaks=("I29",),
        edits=(
            Edit(
                "broker.membership.metadata_image",
                "        if controller_epoch < self.controller_epoch:\n            return MetadataChange(",
                "        if False:\n            return MetadataChange(",
            ),
        ),
        schedule=Schedule("deposed:request_of_a_deposed_controller"),
    ),
)

BROKERS = (
    Mutant(
        name="B31a",
        title="the controller compares registrations by id alone",
        origin="KAFKA-7235, KIP-380",
        rule="a broker epoch that has changed since the last check means a broker that went down and came up (section 9)",
        breaks=("I31", "I36", "I38"),
        edits=(
            Edit(
                "controller.core.steps",
                "    bounced = sorted(each for each in now if each in before and before[each].broker_epoch "
                "!= now[each].broker_epoch)\n",
                "    bounced: list[BrokerId] = []\n",
            ),
        ),
        schedule=Schedule("in_sync_replicas:joiner_loses_power_before_the_controller_decides"),
    ),
    Mutant(
        name="B31b",
        title="a broker obeys requests for its earlier registration",
        origin="KAFKA-7235, KIP-380",
        rule="a broker refuses requests for a broker epoch below its own (section 9)",
        breaks=("I29", "I21"),
        edits=(
            Edit(
                "broker.membership.metadata_image",
                "        if own_broker_epoch is None or request.broker_epoch < own_broker_epoch:\n",
                "        if own_broker_epoch is None:\n",
            ),
        ),
        schedule=Schedule("deposed:orders_for_an_earlier_registration"),
    ),
)

ORDERS = (
    Mutant(
        name="B32a",
        title="a late StopReplica stops a replica of a later epoch",
        origin="KAFKA-9539, KIP-570",
        rule="StopReplica carries a leader epoch; a stale one changes nothing (section 7)",
        breaks=("I35", "I29"),
        edits=(
            Edit(
                "broker.replicas.replica_orders",
                "        if epoch is not None and known is not None and epoch < known:\n"
                "            return ErrorCode.FENCED_LEADER_EPOCH\n",
                "",
            ),
            Edit(
                "broker.replication.replica",
                "    if event.leader_epoch is not None and state.leader_epoch is not None and event.leader_epoch < "
                "state.leader_epoch:\n        return\n",
                "",
            ),
        ),
        schedule=Schedule("deposed:late_stop_replica"),
    ),
    Mutant(
        name="B32b",
        title="a late deletion removes the topic that has the name now",
        origin="KAFKA-9539, KIP-570",
        rule="a deletion is of a topic id, not of a name (section 7)",
        breaks=("I35", "I21"),
        edits=(
            Edit(
                "broker.replicas.replica_orders",
                "        if topic_id and partition.log.topic_id not in (None, topic_id):\n"
                "            return ErrorCode.NONE  # meant for an earlier topic of this name, which is gone\n",
                "",
            ),
        ),
        schedule=Schedule("deposed:late_deletion"),
    ),
)

CACHES = (
    Mutant(
        name="B33a",
        title="a new controller does not look for leaders that failed meanwhile",
        origin="KAFKA-3143",
        rule="taking over compares all states with the live brokers (section 9)",
        breaks=("I37",),
        edits=(
            Edit(
                "controller.core.unresponsive_brokers",
                '    return _compare(state, state.partitions(), state.brokers, "controller failover")\n',
                "    return send_leader_and_isr(state, state.partitions(), state.brokers)\n",
            ),
        ),
        schedule=Schedule("deposed:leader_and_controller_die_together"),
    ),
    Mutant(
        name="B33b",
        title="the controller's cache keeps the old leader after an election",
        origin="KAFKA-9212",
        rule="a written state is adopted, and only then sent to brokers (section 9)",
        breaks=("I29", "I37", "I38"),
        edits=(
            Edit(
                "controller.core.steps",
                "        _assert_follows(state, change)\n        state.leaderships[change.partition] = change.after\n",
                "        _assert_follows(state, change)\n"
                "        if change.before is None:\n"
                "            state.leaderships[change.partition] = change.after\n",
            ),
        ),
        schedule=Schedule("strict:leader_dies_among_living_members"),
    ),
    Mutant(
        name="B34a",
        title="a write whose answer was lost is repeated for ever",
        origin="KAFKA-1382, KAFKA-2729",
        rule="after a lost answer ZooKeeper is read again: it holds the written state, or another one",
        breaks=("I36", "I38"),
        edits=(
            Edit(
                "controller.cluster_store",
                "                stored, unreadable = await self.read_leaderships("
                "[change.partition for change in changes])\n",
                "                stored, unreadable = {change.partition: change.before for change in changes}, frozenset()\n",
            ),
        ),
        schedule=Schedule("deposed:answer_of_zookeeper_is_lost"),
    ),
    Mutant(
        name="B34b",
        title="a late proposal for the ISR is written over a newer one",
        origin="KAFKA-2729",
        rule="an ISR change is applied only if its version is the present one (section 6)",
        breaks=("I8", "I28", "I4"),
        edits=(
            Edit(
                "controller.core.alter_partition",
                "    if proposal.partition_epoch != current.partition_epoch:\n"
                "        return refusal(proposal.partition_index, ErrorCode.INVALID_UPDATE_VERSION)\n",
                "",
            ),
        ),
        schedule=Schedule("deposed:late_alter_partition"),
    ),
    Mutant(
        name="D37b",
        title="a second fence lifts the fence of an earlier registration",
        origin="found by a reviewer: a former leader served its old epoch while another one led",
        rule="only an order to the new registration lifts the fence of a partition (section 6)",
        breaks=("I20",),
        edits=(
            Edit(
                "broker.replicas.replica_manager",
                "            if not partition.awaits_order:\n",
                "            if True:\n",
            ),
        ),
        schedule=UnitTest(
            "tests/broker/test_reported_events.py::test_a_second_fence_lifts_no_fence_of_an_earlier_registration",
        ),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*CONTROLLERS, *BROKERS, *ORDERS, *CACHES)
CANNOT_APPLY: tuple[CannotApply, ...] = ()
