"""Orders of events around failure detection: suspicions that are false, unconfirmed, or noticed late by the suspected."""

import asyncio
import contextlib
from typing import Any

from minibroker.protocol.wire.messages import MetadataRequest
from minibroker.protocol.znodes import broker_path
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host, members, send_to, separate_roles

LONG_SINCE = 4.0
"""Seconds after which no decision rests on the time before a leader epoch began (see `checks.control.fencing`)."""
LONG_SESSION = {"zookeeper.session.timeout.ms": "10000"}


async def _refuse(directed: DirectedRun, victim: int, *others: int) -> None:
    """A firewall: these brokers are refused by a broker that lives."""
    for other in others:
        directed.world.network.reject(host(other), host(victim))


@with_setup(ClusterSetup(settings=LONG_SESSION))
async def leader_refuses_the_others(directed: DirectedRun) -> None:
    """Hardening rule 11: a false suspicion that is confirmed; clients and ZooKeeper still reach the leader."""
    leader, controller, third = await separate_roles(directed)
    await asyncio.sleep(LONG_SINCE)
    await directed.produce("everywhere")
    await _refuse(directed, leader, controller, third)
    for number in range(100):
        directed.produce_soon(f"{number}", acks=1)
        await asyncio.sleep(0.01)
    await directed.until(lambda: directed.cluster.leader(TOPIC) != leader, "another leader")
    await asyncio.sleep(1.0)


@with_setup(ClusterSetup(settings={**LONG_SESSION, "replica.lag.time.max.ms": "20000"}))
async def leader_is_unreachable(directed: DirectedRun) -> None:
    """The controller's connections to the leader break, and then nothing answers there: no refusal, so no suspicion."""
    leader, controller, third = await separate_roles(directed)
    await asyncio.sleep(LONG_SINCE)
    await directed.produce("everywhere")
    network = directed.world.network
    for other in (controller, third):
        network.half_open(host(other), host(leader))
        network.partition(host(leader), host(other))
    await asyncio.sleep(8.0)


@with_setup(ClusterSetup(settings=LONG_SESSION))
async def leader_refuses_the_controller_only(directed: DirectedRun) -> None:
    """Only the controller is refused by the leader: an unconfirmed suspicion."""
    leader, controller, _ = await separate_roles(directed)
    await asyncio.sleep(LONG_SINCE)
    await directed.produce("everywhere")
    await _refuse(directed, leader, controller)
    await asyncio.sleep(3.0)


@with_setup(ClusterSetup(settings=LONG_SESSION))
async def controller_refuses_the_others(directed: DirectedRun) -> None:
    """Both candidates are refused by a live controller."""
    leader, controller, third = await separate_roles(directed)
    await asyncio.sleep(LONG_SINCE)
    await directed.produce("everywhere")
    await _refuse(directed, controller, leader, third)
    with contextlib.suppress(
        AssertionError
    ):  # a controller that has lost its fence without a successor is none, either
        await directed.until(lambda: directed.controller != controller, "another controller", 5)
    await asyncio.sleep(1.0)


@with_setup(ClusterSetup(settings=LONG_SESSION))
async def fenced_leader_has_a_slow_zookeeper(directed: DirectedRun) -> None:
    """It learns that its registration is gone, and must wait for a new one; clients keep sending requests meanwhile."""
    leader, controller, third = await separate_roles(directed)
    await asyncio.sleep(LONG_SINCE)
    await directed.produce("everywhere")
    directed.world.zookeeper.slow_hosts[host(leader)] = 0.3
    await _refuse(directed, leader, controller, third)
    for number in range(200):
        directed.produce_soon(f"{number}", acks=1)
        await asyncio.sleep(0.01)
    await directed.until(lambda: leader not in members(directed) or len(members(directed)) == 3, "an ISR")


@with_setup(ClusterSetup(topics={TOPIC: (3, 3, 1)}, settings=LONG_SESSION))
async def controller_reads_that_it_is_removed(directed: DirectedRun) -> None:
    """Seed 911627. A live controller is unregistered; it reads all registrations just then, and so sees that its own is
    gone before its broker's watch fires. ZooKeeper is slow."""
    controller = directed.controller
    others = [b for b in directed.cluster.broker_ids if b != controller]
    await asyncio.sleep(LONG_SINCE)
    zookeeper, path = directed.world.zookeeper, broker_path(controller)
    service: Any = directed.cluster.brokers[controller].controller
    store = service._active.store
    zookeeper.options.extra_delay = 0.2
    await _refuse(directed, controller, *others)
    await directed.until(lambda: path not in zookeeper.tree.nodes, "the end of its registration")
    assert await store._read_broker(str(controller)) is None
    await asyncio.sleep(0.01)
    await send_to(directed, controller, MetadataRequest())
    await asyncio.sleep(1.0)
