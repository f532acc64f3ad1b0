"""Orders of events around truncation and the fence of leader epochs."""

import asyncio
from functools import partial

from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import requests, responses
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host


def expire(directed: DirectedRun, broker_id: int) -> None:
    """Its session ends, but its process keeps running and registers again: an election without a lost byte."""
    for session in directed.world.zookeeper.sessions_of(host(broker_id)):
        directed.world.zookeeper.expire_session(session)


async def _until_epoch_beyond(directed: DirectedRun, epoch: int) -> None:
    """Wait for a later leader epoch, as its leader knows it."""

    def is_later() -> bool:
        leader = directed.cluster.leader(TOPIC)
        return leader is not None and (directed.replica(leader).state.leader_epoch or 0) > epoch

    await directed.until(is_later, f"an epoch beyond {epoch}")


def _epoch(directed: DirectedRun, broker_id: int) -> int:
    return directed.replica(broker_id).state.leader_epoch or 0


def _is_beyond(directed: DirectedRun, broker_id: int, epoch: int) -> bool:
    return _epoch(directed, broker_id) > epoch


@with_setup(ClusterSetup(settings={"replica.lag.time.max.ms": "10000"}))
async def second_leader_falls_at_once(directed: DirectedRun) -> None:
    """KIP-101, scenario 1: a record is acknowledged, its leader fails, and the next one fails before the follower has
    fetched anything."""
    first, second, third = directed.replica(directed.leader).state.assignment
    network = directed.world.network
    await directed.produce("known to all")
    await asyncio.sleep(1)
    replies = network.hold(host(first), host(third), responses(ApiKey.FETCH))
    sending = directed.produce_soon("acknowledged")
    await replies.caught()
    replies.let_one_pass()  # the record; the high watermark that covers it comes later
    await sending
    directed.cluster.kill(first)
    network.hold(host(third), host(second), requests(ApiKey.FETCH))
    await directed.until_leader(second)
    await directed.until(lambda: directed.replica(third).state.leader_id == second, "the third replica follows")
    await asyncio.sleep(0.2)
    directed.cluster.kill(second)
    await directed.until_leader(third)


@with_setup(ClusterSetup())
async def epochs_without_a_record(directed: DirectedRun) -> None:
    """KAFKA-10706, 7415: leaders change without writes."""
    await directed.produce("the only one")
    for _ in range(3):
        leader = directed.leader
        epoch = _epoch(directed, leader)
        expire(directed, leader)
        await _until_epoch_beyond(directed, epoch)
        await asyncio.sleep(1)
    await directed.produce("after them")


@with_setup(ClusterSetup())
async def refusal_of_an_older_epoch(directed: DirectedRun) -> None:
    """KAFKA-8012: a follower's epoch request is held until its leader has a later epoch; it is refused when the follower
    has that epoch, too, and has asked again."""
    leader = directed.leader
    follower, third = directed.followers()
    await directed.produce("a record")
    questions = directed.world.network.hold(host(follower), host(leader), requests(ApiKey.OFFSET_FOR_LEADER_EPOCH))
    answers = directed.world.network.hold(host(leader), host(follower), responses(ApiKey.OFFSET_FOR_LEADER_EPOCH))
    for _ in range(2):
        epoch = _epoch(directed, leader)
        directed.cluster.kill(third)
        await directed.until(partial(_is_beyond, directed, leader, epoch), "the controller drops the third")
        await directed.until(
            lambda: _epoch(directed, follower) == _epoch(directed, leader), "the follower learns of it"
        )
        directed.cluster.start(third)
        await directed.until(lambda: third in directed.cluster.in_sync_replicas(TOPIC), "the third returns")
    await questions.caught()
    questions.release()
    await answers.caught()
    answers.release()
