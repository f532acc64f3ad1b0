"""Proposals reach the controller even if a connection fails."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas import alter_partition_sender
from minibroker.broker.replicas.alter_partition_sender import STILL_FAILING_MS, AlterPartitionSender
from minibroker.broker.replication.events import AlterPartitionLost, ProposeIsr
from minibroker.broker.replication.state import IsrKind
from minibroker.protocol.events.replica_events import AlterPartitionFailed
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import AlterPartitionResponse, ApiKey
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.request_channel import RequestFailed, RequestRefused
from minibroker.runtime.rpc import ConnectionClosed, RpcConnection
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


class FailingSender:
    """A sender whose requests all fail, at the times and under the registrations that a test sets."""

    def __init__(self) -> None:
        self.broker_epoch = 7
        self.now_ms = 0
        self.address = (2, "controller", 9092)
        self.sender = AlterPartitionSender(
            dialer=cast(BrokerDialer, Unreachable()),
            broker_id=1,
            broker_epoch=lambda: self.broker_epoch,
            controller_address=lambda: self.address,
            request_timeout_ms=1_000,
            now_ms=lambda: self.now_ms,
        )

    def fail_at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        asyncio.run(self.sender._send([]))

    def unreachable_ms_at(self, now_ms: int) -> int:
        self.now_ms = now_ms
        return self.sender.unreachable_ms()


def test_a_proposal_names_the_id_of_its_topic() -> None:
    """One that is late must not change the ISR of the next topic of that name."""
    change = ProposeIsr(kind=IsrKind.SHRINK, proposal_id=5, leader_epoch=0, partition_epoch=0, new_isr_with_epochs=())
    proposals = [
        (
            cast(Any, SimpleNamespace(topic_partition=TopicPartition(name, 0), log=SimpleNamespace(topic_id=known))),
            change,
        )
        for name, known in (("t", "one"), ("u", "another"), ("v", None))
    ]
    request = alter_partition_sender._request(1, 7, proposals)
    assert [(each.topic_name, each.topic_id) for each in request.topics] == [("t", "one"), ("u", "another"), ("v", "")]


def test_failures_under_a_former_registration_do_not_count() -> None:
    """A leader that was unregistered for them and led again was unregistered again (seed 17290212)."""
    failing = FailingSender()
    failing.fail_at(0)
    assert failing.unreachable_ms_at(300) == 300
    failing.broker_epoch = 8
    assert failing.unreachable_ms_at(300) == 0
    failing.fail_at(300)
    assert failing.unreachable_ms_at(400) == 100


def test_failures_of_a_former_leadership_do_not_count() -> None:
    """A leader whose first request got no answer was unregistered for one that had failed ten seconds before, when it
    led the last time (seed 17300988); another one for requests that it did not need any more (seed 17406569)."""
    failing = FailingSender()
    failing.fail_at(0)
    assert failing.unreachable_ms_at(STILL_FAILING_MS) == STILL_FAILING_MS
    assert failing.unreachable_ms_at(STILL_FAILING_MS + 1) == 0
    failing.fail_at(10_000)
    assert failing.unreachable_ms_at(10_001) == 1


def test_failures_in_a_row_count_from_the_first() -> None:
    failing = FailingSender()
    for now_ms in (0, STILL_FAILING_MS, 2 * STILL_FAILING_MS):
        failing.fail_at(now_ms)
    assert failing.unreachable_ms_at(2 * STILL_FAILING_MS) == 2 * STILL_FAILING_MS


def test_a_request_that_waits_long_for_its_answer_continues_the_failures_before_it() -> None:
    """TCP may take a quarter of an hour to notice that the controller's machine is gone."""
    failing = FailingSender()
    told: list[int] = []

    async def wait_long(*_: object) -> None:
        told.append(failing.unreachable_ms_at(failing.now_ms + 30_000))
        raise RequestFailed("silence")

    failing.fail_at(0)
    failing.sender._channel = cast(Any, SimpleNamespace(ask=wait_long, hang_up=lambda: None))
    failing.fail_at(STILL_FAILING_MS)
    failing.fail_at(failing.now_ms + STILL_FAILING_MS)
    assert told == [30_000 + STILL_FAILING_MS, 60_000 + 2 * STILL_FAILING_MS]
    assert failing.unreachable_ms_at(failing.now_ms + STILL_FAILING_MS + 1) == 0


@pytest.mark.parametrize(
    ("failure", "problem", "unreachable_ms"),
    [
        (RequestRefused("it is not the controller"), "was refused: it is not the controller", 0),
        (RequestFailed("silence"), "got no answer: silence", 500),
    ],
)
def test_a_request_that_fails_is_reported_and_its_proposals_sent_again(
    failure: RequestFailed, problem: str, unreachable_ms: int
) -> None:
    """One that is refused has reached a controller, so that this broker is not cut off."""
    failing, events, handled = FailingSender(), list[object](), list[object]()

    async def fail(*_: object) -> None:
        raise failure

    sender = cast(Any, failing.sender)
    sender._channel = SimpleNamespace(ask=fail, hang_up=lambda: None)
    sender._observer = Observers(events.append)
    log = SimpleNamespace(topic_id="id")
    partition = SimpleNamespace(topic_partition=TopicPartition("a", 0), handle=handled.append, log=log)
    proposal = ProposeIsr(kind=IsrKind.SHRINK, proposal_id=5, leader_epoch=0, partition_epoch=0, new_isr_with_epochs=())
    asyncio.run(sender._send([(partition, proposal)]))
    assert events == [AlterPartitionFailed(problem=problem)]
    assert handled == [AlterPartitionLost(proposal_id=5)]
    assert failing.unreachable_ms_at(500) == unreachable_ms


@pytest.mark.parametrize("is_refused", [True, False])
def test_an_answer_ends_the_silence_of_a_controller(is_refused: bool) -> None:
    """A leader that was cut off before must not be unregistered for what is over."""
    failing = FailingSender()
    failing.fail_at(0)

    async def ask(*_: object) -> AlterPartitionResponse:
        if is_refused:
            raise RequestRefused("it is not the controller")
        return AlterPartitionResponse()

    failing.sender._channel = cast(Any, SimpleNamespace(ask=ask, hang_up=lambda: None))
    failing.now_ms = 500
    asyncio.run(failing.sender._send([]))
    assert failing.unreachable_ms_at(600) == 0


@pytest.mark.parametrize("after_ms", [0, 500])
async def test_a_retry_waits_as_long_as_it_was_told_and_a_first_proposal_not_at_all(after_ms: int) -> None:
    """Without the wait a refused proposal would be repeated as fast as it is answered."""
    sender, loop, delays = cast(Any, FailingSender().sender), asyncio.get_running_loop(), list[float]()
    proposal = ProposeIsr(
        kind=IsrKind.SHRINK,
        proposal_id=5,
        leader_epoch=0,
        partition_epoch=0,
        new_isr_with_epochs=(),
        after_ms=after_ms,
    )
    state = SimpleNamespace(proposal_in_flight=5)
    partition = SimpleNamespace(topic_partition=TopicPartition("a", 0), state=state)
    with pytest.MonkeyPatch.context() as patch:

        def call_later(delay: float, call: Callable[..., None], *arguments: object) -> None:
            delays.append(delay)
            call(*arguments)

        patch.setattr(loop, "call_later", call_later)
        sender.propose(partition, proposal)
    assert delays == ([after_ms / 1000] if after_ms else [])
    assert list(sender._waiting) == [partition.topic_partition]


class Line:
    """A connection on which every request succeeds."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address, self.closed, self.requests = address, False, 0

    async def request(self, *_: object) -> AlterPartitionResponse:
        self.requests += 1
        return AlterPartitionResponse()

    def abort(self) -> None:
        self.closed = True


class Dialled:
    """A dialer that connects at once, and its connections."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    async def connect(self, _: int, address: tuple[str, int], **__: object) -> Line:
        self.lines.append(Line(address))
        return self.lines[-1]


async def test_requests_share_a_connection_until_the_controller_has_another_address() -> None:
    """A request on the old connection would be refused by a former controller, or wait for its timeout."""
    failing, dialled = FailingSender(), Dialled()
    sender = failing.sender
    sender._dialer = cast(BrokerDialer, dialled)
    await sender._send([])
    await sender._send([])
    assert [(line.address, line.closed, line.requests) for line in dialled.lines] == [(("controller", 9092), False, 2)]

    failing.address = (3, "another", 9092)
    await sender._send([])
    await sender._send([])
    assert [(line.address, line.closed, line.requests) for line in dialled.lines] == [
        (("controller", 9092), True, 2),
        (("another", 9092), False, 2),
    ]


async def test_news_of_the_same_controller_does_not_end_its_connection() -> None:
    """They come with each broker that comes or goes; the proposal in flight would have to be sent again."""
    failing, dialled = FailingSender(), Dialled()
    sender = failing.sender
    sender._dialer = cast(BrokerDialer, dialled)
    await sender._send([])
    sender.controller_changed()
    assert not dialled.lines[0].closed
    failing.address = (3, "another", 9092)
    sender.controller_changed()
    assert dialled.lines[0].closed


def test_brokers_that_come_and_go_do_not_end_the_silence_of_a_controller_that_was_never_reached() -> None:
    """A leader that cannot reach a new controller would keep its partitions for as long as any broker restarts."""
    failing = FailingSender()
    failing.fail_at(0)
    failing.fail_at(400)
    failing.sender.controller_changed()
    assert failing.unreachable_ms_at(400) == 400
    failing.address = (3, "another", 9092)
    failing.sender.controller_changed()
    assert failing.unreachable_ms_at(400) == 0, "the failures of the former one do not count"


async def test_a_request_that_a_change_of_controller_ends_does_not_count_against_the_new_one() -> None:
    """The first request to it waits for its answer, perhaps until it has taken over, and none to it has failed."""
    failing = FailingSender()
    asked: list[asyncio.Future[AlterPartitionResponse]] = []

    class Silent(Line):
        async def request(self, *_: object) -> AlterPartitionResponse:
            asked.append(asyncio.get_running_loop().create_future())
            return await asked[-1]

        def abort(self) -> None:
            if not asked[-1].done():
                asked[-1].set_exception(ConnectionClosed("closed"))

    class Dials:
        async def connect(self, _: int, address: tuple[str, int], **__: object) -> Silent:
            return Silent(address)

    sender = failing.sender
    sender._dialer = cast(BrokerDialer, Dials())
    sending = asyncio.create_task(sender._send([]))
    await turns()
    failing.now_ms = 300
    failing.address = (3, "another", 9092)
    sender.controller_changed()
    await sending
    failing.now_ms = 350
    sending = asyncio.create_task(sender._send([]))
    await turns()
    assert failing.unreachable_ms_at(8_000) == 0
    sender._channel.hang_up()
    await sending
    assert failing.unreachable_ms_at(8_500) == 500


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
