"""What the swarm may break: of each acknowledged record one in-sync replica that is known keeps its copy."""

import asyncio
from collections.abc import Awaitable, Callable

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.truth import Truth
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.hand import Hand
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.injector import Injector
from minibroker.simulation.swarm.opening import open_run
from minibroker.simulation.swarm.options import draw_options
from minibroker.simulation.swarm.outcome import Outcome

PARTITION = TopicPartition("a", 0)
SECONDS_MAX = 120
SESSION_SECONDS = 3


def under_the_hand(case: Callable[[Hand], Awaitable[None]]) -> None:
    """A whole cluster with one topic of three replicas, and no sync before acknowledgement."""
    cluster = SimulatedCluster()
    options = draw_options(cluster.world.random("options"))
    options.topics, options.settings = (
        {PARTITION.topic: (1, 3, 1)},
        {"zookeeper.session.timeout.ms": str(SESSION_SECONDS * 1000)},
    )
    outcome = Outcome(0, options, History(lambda: cluster.world.loop.elapsed))

    async def drive() -> None:
        await case(await open_run(cluster, outcome, Truth(cluster, options.topics), None))

    cluster.world.run(drive(), seconds_max=SECONDS_MAX)


def test_mending_kills_nobody_while_another_counts_for_what_it_lost() -> None:
    """Else all members are strangers to the controller, and the one that lost its tail may be elected (seed 1862)."""

    async def case(hand: Hand) -> None:
        hung_by_a_thread: list[bool] = []

        def look(line: str) -> None:
            if "restart after a disk error" in line:
                hung_by_a_thread.append(hand.hangs_by_a_thread())

        hand.listeners.append(look)
        leader = hand.leader(PARTITION)
        assert leader is not None
        hand.broken_disks |= set(hand.others(leader))
        assert hand.cut_power({leader})
        await Injector(hand, lambda: True).mend()
        assert hung_by_a_thread == [False, False]

    under_the_hand(case)


def test_replica_whose_disk_has_failed_is_no_copy_to_rely_on() -> None:
    async def case(hand: Hand) -> None:
        leader = hand.leader(PARTITION)
        assert leader is not None
        assert await hand.wait(lambda: hand.cluster.leader(PARTITION.topic) == leader, SESSION_SECONDS)
        assert hand.may_lose({leader})
        hand.zookeeper.cut()  # so that the ISR stays as it is
        for follower in hand.others(leader):
            hand.storage(follower).fail("append")
        working = asyncio.create_task(hand.workload.run())

        def are_offline() -> bool:
            replicas = [hand.replica(follower, PARTITION) for follower in hand.others(leader)]
            return all(replica is not None and replica.state.is_offline for replica in replicas)

        assert await hand.wait(are_offline, SESSION_SECONDS)
        assert not hand.may_lose({leader})
        working.cancel()

    under_the_hand(case)


def test_broker_that_loses_its_disk_before_it_has_registered_anew_counts_for_what_it_lost() -> None:
    """The ISR still lists its last incarnation, which held the bytes (seed 3036)."""

    async def case(hand: Hand) -> None:
        leader = hand.leader(PARTITION)
        assert leader is not None
        [victim, other] = hand.others(leader)
        before = hand.truth.incarnation(victim)
        assert hand.bounce(victim)
        assert await hand.wait(lambda: hand.truth.incarnation(victim) not in (before, None), SESSION_SECONDS)
        assert hand.cut_power({victim}, blank=True)
        assert hand.hangs_by_a_thread()
        assert not hand.kill(other)

    under_the_hand(case)


def test_killed_container_refuses_for_a_moment_is_silent_then_and_is_back_when_it_is_started() -> None:
    async def case(hand: Hand) -> None:
        hand.options.containers = True
        dead, other = hand.cluster.broker_ids[:2]
        assert hand.kill(dead)
        assert hand.network.is_open(f"broker-{other}", f"broker-{dead}")
        await hand.wait(lambda: hand.injected["fault address_gone"] > 0, 1.0)
        assert not hand.network.is_open(f"broker-{other}", f"broker-{dead}")
        hand.start(dead)
        assert hand.network.is_open(f"broker-{other}", f"broker-{dead}")

    under_the_hand(case)


def test_container_that_is_started_again_at_once_keeps_its_address() -> None:
    async def case(hand: Hand) -> None:
        hand.options.containers = True
        dead, other = hand.cluster.broker_ids[:2]
        assert hand.bounce(dead)
        await asyncio.sleep(1.0)
        assert hand.network.is_open(f"broker-{other}", f"broker-{dead}")
        assert not hand.injected["fault address_gone"]

    under_the_hand(case)
