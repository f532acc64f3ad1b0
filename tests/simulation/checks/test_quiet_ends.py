"""The checks of expired records and of counters: they find what is wrong, and nothing in a sound cluster."""

import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.control.counters import CounterChecker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.expiring import CHECK_INTERVAL, can_expire, expire_all
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.options import draw_options

TOPICS = {"a": (1, 3, 2)}


def invariants_found(judge: Callable[[SimulatedCluster, ReferenceState, History], Awaitable[None]]) -> list[str]:
    """By a judge of a cluster with one acknowledged record."""
    cluster = SimulatedCluster(1, settings={CHECK_INTERVAL: "300"})
    reference, history = ReferenceState(cluster, TOPICS), History(lambda: cluster.world.loop.elapsed)

    async def run() -> None:
        cluster.start_all()
        await cluster.until_ready()
        servers, ports = cluster.bootstrap_servers, cluster.client_runtime()
        with checking(cluster, reference, CounterChecker(cluster, reference)):
            async with AdminClient(bootstrap_servers=servers, runtime=ports) as admin:
                await admin.create_topic("a", partitions=1, replication_factor=3)
            async with Producer(bootstrap_servers=servers, runtime=ports) as producer:
                await producer.send_and_wait("a", b"value", partition=0)
            await judge(cluster, reference, history)

    cluster.world.run(run(), seconds_max=120)
    return sorted({each.invariant for each in [*reference.findings, *history.findings]})


OPTIONS = msgspec.structs.replace(draw_options(random.Random(1)), topics=TOPICS)


@pytest.mark.invariant("I46")
@pytest.mark.parametrize(("is_cut_off", "found"), [(False, []), (True, ["I46"])])
def test_expired_records_must_go_from_every_replica(is_cut_off: bool, found: list[str]) -> None:
    async def judge(cluster: SimulatedCluster, reference: ReferenceState, history: History) -> None:
        leader = cluster.leader("a")
        assert leader is not None
        if is_cut_off:  # for less than replica.lag.time.max.ms
            follower = next(b for b in cluster.broker_ids if b not in (leader, cluster.controller()))
            cluster.world.network.cut(f"broker-{leader}", f"broker-{follower}")
        await expire_all(cluster, OPTIONS, reference, history)

    assert invariants_found(judge) == found


@pytest.mark.parametrize(
    ("settings", "faults", "expected"),
    [({CHECK_INTERVAL: "1000"}, (), True), ({}, (), False), ({CHECK_INTERVAL: "300"}, ("clock",), False)],
)
def test_records_expire_where_checks_come_often_and_clocks_are_right(
    settings: dict[str, str], faults: tuple[str, ...], expected: bool
) -> None:
    assert can_expire(msgspec.structs.replace(OPTIONS, settings=settings, faults=faults)) is expected


def counted_twice(counters: BrokerCounters) -> None:
    counters.records_in += 1


def elected_once_more(counters: BrokerCounters) -> None:
    counters.leader_elections += 1


def never_elected(counters: BrokerCounters) -> None:
    counters.leader_elections -= 1


def untouched(counters: BrokerCounters) -> None:
    """As the broker counted."""


@pytest.mark.invariant("I47")
@pytest.mark.parametrize(
    ("tamper", "found"),
    [(untouched, []), (counted_twice, ["I47"]), (elected_once_more, ["I47"]), (never_elected, ["I47"])],
)
def test_counters_must_be_what_happened(tamper: Callable[[BrokerCounters], None], found: list[str]) -> None:
    async def judge(cluster: SimulatedCluster, reference: ReferenceState, history: History) -> None:
        leader = cluster.leader("a")
        assert leader is not None
        tamper(cluster.brokers[leader].counters)
        reference.sample()

    assert invariants_found(judge) == found
