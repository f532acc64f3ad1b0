"""Proposals reach the controller even if a connection fails."""

import asyncio
from typing import cast

from minibroker.broker.replicas.alter_partition_sender import AlterPartitionSender
from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.rpc import RpcConnection
from minibroker.simulation.world.message_holds import requests
from tests.broker.requests import TOPIC, ClusterClient, in_cluster

GIVEN_UP_WITHIN_SECONDS = 5
"""Half of replica.lag.time.max.ms below, and some attempts."""


async def _proposal_on_a_dead_connection(client: ClusterClient) -> None:
    cluster = client.cluster
    controller = cluster.controller()
    assert controller is not None
    if client.leader == controller:
        cluster.kill(controller)
        await cluster.until(lambda: cluster.leader(TOPIC) not in (None, controller), what="another leader")
        cluster.start(controller)
        await cluster.until(lambda: len(cluster.in_sync_replicas(TOPIC)) == 3, what="a full ISR")
        controller = cluster.controller()
    third = next(b for b in client.followers if b != controller)
    leader = client.leader
    cluster.kill(third)
    await cluster.until(lambda: third not in cluster.in_sync_replicas(TOPIC), what="an ISR of two")
    proposals = requests(ApiKey.ALTER_PARTITION)
    stuck = cluster.world.network.hold(f"broker-{leader}", f"broker-{controller}", proposals, times=1)
    cluster.start(third)
    await stuck.caught()
    await cluster.until(
        lambda: third in cluster.in_sync_replicas(TOPIC), GIVEN_UP_WITHIN_SECONDS, "a proposal over another connection"
    )


def test_a_proposal_that_is_not_answered_is_repeated_over_another_connection() -> None:
    """TCP may take a quarter of an hour to detect a dead peer."""
    in_cluster(_proposal_on_a_dead_connection, settings={"replica.lag.time.max.ms": "2000"})


class Unreachable:
    """A dialer in a network without a controller."""

    async def connect(self, *_: object, **__: object) -> RpcConnection:
        raise NetworkError("refused")


def test_failures_under_a_former_registration_do_not_count() -> None:
    """A leader that was unregistered for them and led again was unregistered again (seed 17290212)."""
    broker_epoch, now_ms = 7, 0
    sender = AlterPartitionSender(
        dialer=cast(BrokerDialer, Unreachable()),
        broker_id=1,
        broker_epoch=lambda: broker_epoch,
        controller_address=lambda: (2, "controller", 9092),
        request_timeout_ms=1_000,
        now_ms=lambda: now_ms,
    )
    asyncio.run(sender._send([]))
    now_ms = 3_000
    assert sender.unreachable_ms() == 3_000
    broker_epoch = 8
    assert sender.unreachable_ms() == 0
    asyncio.run(sender._send([]))
    now_ms = 4_000
    assert sender.unreachable_ms() == 1_000
