"""What the swarm may break: of each acknowledged record, one known in-sync replica keeps its copy."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import pytest

from minibroker.client.admin import AdminClient
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.ports import FileMissing
from minibroker.simulation.checks.reference_state import STATE_SUFFIX, ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.faults.fault_schedule import FaultSchedule
from minibroker.simulation.swarm.faults.faults import Faults
from minibroker.simulation.swarm.final_checks import ANSWER_MS, FULL_ISR_SECONDS, converge, take_records
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.opening import open_run
from minibroker.simulation.swarm.options import draw_options
from minibroker.simulation.swarm.outcome import RunOutcome
from minibroker.simulation.world.message_holds import responses
from minibroker.simulation.world.zookeeper_links import ZooKeeperRequest

PARTITION = TopicPartition("a", 0)
SECONDS_MAX = 120
SESSION_SECONDS = 3


def under_faults(
    case: Callable[[FaultInjector], Awaitable[None]],
    settings: Mapping[str, str] = MappingProxyType({}),
    brokers: int = 3,
) -> None:
    """A whole cluster with one topic of three replicas, and no sync before acknowledgement."""
    cluster = SimulatedCluster(brokers=brokers, settings=dict(settings))
    options = draw_options(cluster.world.random("options"))
    options.topics, options.settings = (
        {PARTITION.topic: (1, 3, 1)},
        {"zookeeper.session.timeout.ms": str(SESSION_SECONDS * 1000), **settings},
    )
    outcome = RunOutcome(0, options, History(lambda: cluster.world.loop.elapsed))

    async def drive() -> None:
        await case(await open_run(cluster, outcome, ReferenceState(cluster, options.topics), None))

    cluster.world.run(drive(), seconds_max=SECONDS_MAX)


def writes_a_state(request: ZooKeeperRequest) -> bool:
    return any(operation.path.endswith(STATE_SUFFIX) for operation in request.operations)


def test_mending_kills_no_broker_while_another_counts_for_what_it_lost() -> None:
    """Otherwise the controller knows no member's incarnation, and the one that lost its tail may be elected (seed
    1862)."""

    async def case(injector: FaultInjector) -> None:
        was_weakened: list[bool] = []

        def look(line: str) -> None:
            if "restart after a disk error" in line:
                was_weakened.append(injector.has_weakened_broker())

        injector.listeners.append(look)
        leader = injector.leader(PARTITION)
        assert leader is not None
        injector.broken_disks |= set(injector.others(leader))
        assert injector.cut_power({leader})
        await FaultSchedule(injector, lambda: True).repair()
        assert was_weakened == [False, False]

    under_faults(case)


@pytest.mark.parametrize("had_fault", [False, True])
def test_broker_may_end_by_an_error_of_the_disk_only_if_its_disk_had_a_fault(had_fault: bool) -> None:
    async def case(injector: FaultInjector) -> None:
        if had_fault:
            injector.random = random.Random(2)  # `broker` draws it
            Faults(injector).disk_error()
        [victim] = injector.broken_disks or {1}
        injector.cluster.kill(victim)
        injector.world.crashes.append((f"broker-{victim}", FileMissing("a bug of the broker")))
        FaultSchedule(injector, lambda: True).forgive_crashes()
        assert bool(injector.world.crashes) is not had_fault
        injector.world.crashes.clear()

    under_faults(case)


def test_replica_on_a_failed_disk_does_not_count_as_a_copy() -> None:
    async def case(injector: FaultInjector) -> None:
        leader = injector.leader(PARTITION)
        assert leader is not None
        assert await injector.wait(lambda: injector.cluster.leader(PARTITION.topic) == leader, SESSION_SECONDS)
        assert injector.may_lose({leader})
        injector.zookeeper.cut()  # so that the ISR stays as it is
        for follower in injector.others(leader):
            injector.storage(follower).fail("append")
        working = asyncio.create_task(injector.workload.run())

        def are_offline() -> bool:
            replicas = [injector.replica(follower, PARTITION) for follower in injector.others(leader)]
            return all(replica is not None and replica.state.is_offline for replica in replicas)

        assert await injector.wait(are_offline, SESSION_SECONDS)
        assert not injector.may_lose({leader})
        working.cancel()

    under_faults(case)


def test_member_that_its_leader_is_about_to_leave_out_does_not_count_as_a_copy() -> None:
    """The change of the ISR is on its way when the leader loses power: then the leader is alone in it, without its
    tail."""

    async def case(injector: FaultInjector) -> None:
        leader, controller = injector.leader(PARTITION), injector.cluster.controller()
        assert leader is not None
        assert controller is not None
        working = asyncio.create_task(injector.workload.run())
        assert await injector.wait(lambda: injector.workload.acknowledged.total() > 10, SESSION_SECONDS)
        [slow, other] = injector.others(leader)
        assert injector.kill(other)
        assert await injector.wait(lambda: len(injector.reference.states()[0].members) == 2, SESSION_SECONDS)
        assert injector.may_lose({leader})
        held = injector.zookeeper.hold(f"broker-{controller}", writes_a_state)
        injector.network.hold(f"broker-{leader}", f"broker-{slow}", responses(ApiKey.FETCH))
        assert await injector.wait(lambda: bool(held.seen), SESSION_SECONDS)
        assert set(injector.reference.states()[0].members) == {leader, slow}
        assert not injector.may_lose({leader})
        assert injector.may_lose({slow})
        working.cancel()

    under_faults(case, {"replica.lag.time.max.ms": "600"})


def test_broker_that_stops_does_not_count_as_a_copy() -> None:
    """It leaves the ISR, and a member without its tail would be left alone in it (seed 17152117)."""

    async def case(injector: FaultInjector) -> None:
        leader = injector.leader(PARTITION)
        assert leader is not None
        [victim, other] = injector.others(leader)
        assert injector.kill(other)
        assert injector.may_lose({victim})
        process = injector.end_by_stop(leader)
        assert not injector.cut_power({victim})
        assert process.alive

    under_faults(case)


def test_broker_that_loses_its_disk_before_it_registers_again_counts_for_what_it_lost() -> None:
    """The ISR still lists its last incarnation, which held the bytes (seed 3036)."""

    async def case(injector: FaultInjector) -> None:
        leader = injector.leader(PARTITION)
        assert leader is not None
        [victim, other] = injector.others(leader)
        before = injector.reference.incarnation(victim)
        assert injector.bounce(victim)
        assert await injector.wait(
            lambda: injector.reference.incarnation(victim) not in (before, None), SESSION_SECONDS
        )
        assert injector.cut_power({victim}, blank=True)
        assert injector.has_weakened_broker()
        assert not injector.kill(other)

    under_faults(case)


def test_killed_container_refuses_briefly_then_is_silent_until_it_is_started() -> None:
    async def case(injector: FaultInjector) -> None:
        injector.options.containers = True
        dead, other = injector.cluster.broker_ids[:2]
        assert injector.kill(dead)
        assert injector.network.is_open(f"broker-{other}", f"broker-{dead}")
        await injector.wait(lambda: injector.injected["fault address_gone"] > 0, 1.0)
        assert not injector.network.is_open(f"broker-{other}", f"broker-{dead}")
        injector.start(dead)
        assert injector.network.is_open(f"broker-{other}", f"broker-{dead}")

    under_faults(case)


def test_container_that_is_started_again_at_once_keeps_its_address() -> None:
    async def case(injector: FaultInjector) -> None:
        injector.options.containers = True
        dead, other = injector.cluster.broker_ids[:2]
        assert injector.bounce(dead)
        await asyncio.sleep(1.0)
        assert injector.network.is_open(f"broker-{other}", f"broker-{dead}")
        assert not injector.injected["fault address_gone"]

    under_faults(case)


def test_nothing_is_calm_while_a_link_is_narrow_or_a_slow_disk_holds_a_broker() -> None:
    """What is on its way to the controller, or waits in it, then takes seconds, as on a slow link."""

    async def case(injector: FaultInjector) -> None:
        assert await injector.wait(lambda: injector.is_in_every_isr(1), SESSION_SECONDS)
        [state] = injector.guarded_states()
        assert injector.is_calm(state)
        injector.network.bandwidth["broker-1", "broker-2"] = 2_000.0
        assert not injector.is_calm(state)
        injector.network.bandwidth.clear()
        loop, held = injector.world.loop, injector.world.process("broker-2")
        loop.call_soon(loop.charge, 2.0, context=held.context)
        await asyncio.sleep(1.0)
        assert not injector.is_calm(state)

    under_faults(case)


def test_a_broker_that_a_slow_disk_holds_converges_later() -> None:
    """The call lasts as long as the disk was slow when it began, though the disk is healed by then."""

    async def case(injector: FaultInjector) -> None:
        cluster, history = injector.cluster, History()
        assert await injector.wait(lambda: injector.is_in_every_isr(2), SESSION_SECONDS)
        loop, held = injector.world.loop, injector.world.process("broker-2")
        loop.call_soon(loop.charge, FULL_ISR_SECONDS + SESSION_SECONDS + 1.0, context=held.context)
        assert await injector.wait(lambda: not injector.is_in_every_isr(2), 2 * SESSION_SECONDS)
        await converge(cluster, injector.options, injector.reference, history)
        assert history.findings == []

    under_faults(case)


def test_a_broker_that_a_slow_disk_holds_takes_records_later() -> None:
    """It is in the ISR still when the call begins, and a partition that needs all its replicas waits for it."""

    async def case(injector: FaultInjector) -> None:
        cluster, history = injector.cluster, History()
        assert await injector.wait(lambda: injector.is_in_every_isr(2), SESSION_SECONDS)
        async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
            await admin.alter_configs({"min.insync.replicas": "3"}, topic=PARTITION.topic)
        loop, held = injector.world.loop, injector.world.process("broker-2")
        loop.call_soon(loop.charge, ANSWER_MS / 1000 + SESSION_SECONDS, context=held.context)
        await injector.wait(lambda: cluster.held_seconds() > 0, SESSION_SECONDS)
        await take_records(cluster, injector.workload, history)
        assert history.findings == []

    under_faults(case)
