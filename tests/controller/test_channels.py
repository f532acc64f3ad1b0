"""The channel to one broker: order, resending, merging, sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from minibroker.controller.controller_channels import SILENT_SECONDS, WATCH_SECONDS
from minibroker.controller.core.control_requests import (
    REQUEST_BYTES_MAX,
    REQUEST_LOGS_MAX,
    REQUEST_PARTITIONS_MAX,
    ControllerIdentity,
    LeaderAndIsr,
    PartitionOrder,
    StopReplica,
    UpdateMetadata,
    leader_and_isr,
    live_brokers,
    stop_replica,
    to_requests,
    update_metadata,
)
from minibroker.controller.core.controller_state import ControllerSettings, ControllerState, Deletion, Topic
from minibroker.controller.send_queue import BATCHES_MAX, SendQueue
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    ApiKey,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    Response,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from minibroker.protocol.znodes import broker_path
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.message_holds import responses
from tests.controller import cluster as cluster_module
from tests.controller.cluster import Cluster, FakeBroker, simulated
from tests.controller.facts import T0, cluster_state, leadership

SENDER = ControllerIdentity(controller_id=1, controller_epoch=2)


def state_with(partitions: int, epoch: int = 5) -> ControllerState:
    state = cluster_state(1, 2, 3)
    state.topics = {"lines": Topic(topic_id="t1", assignment={number: (1, 2, 3) for number in range(partitions)})}
    state.leaderships = {each: leadership(1, 1, 2, 3, epoch=epoch) for each in state.partitions()}
    return state


def leader_orders(epoch: int, partition: int = 0, is_new: bool = False) -> list[LeaderAndIsr]:
    state = state_with(partition + 1, epoch)
    each = TopicPartition("lines", partition)
    return leader_and_isr(state, [each], frozenset([each] if is_new else []))


def drained(queue: SendQueue) -> list[tuple[type[PartitionOrder], list[PartitionOrder]]]:
    found = []
    while (batch := queue.take()) is not None:
        found.append((batch.kind, list(batch.orders.values())))
    return found


def test_partitions_without_a_leadership_hold_up_no_orders_about_others() -> None:
    state = state_with(3)
    first, second, third = state.partitions()
    del state.leaderships[first], state.leaderships[third]
    unknown = TopicPartition("gone", 0)
    for orders in (leader_and_isr, update_metadata):
        assert [each.partition for each in orders(state, [first, unknown, second, third])] == [second]
    stops = stop_replica(state, [first, second, third], delete=False)
    assert [each.partition for each in stops] == [second]


# ------------------------------------------------------------------------------------------------------------ queue
def test_kinds_keep_their_order_and_neighbours_of_one_kind_are_merged() -> None:
    state, queue = state_with(3), SendQueue()
    a, b, c = state.partitions()
    queue.put((), update_metadata(state, [a]))
    queue.put((), leader_and_isr(state, [a]))
    queue.put((), leader_and_isr(state, [b]))
    queue.put((), update_metadata(state, [c]))
    found = [(kind, [each.partition for each in orders]) for kind, orders in drained(queue)]
    assert found == [(UpdateMetadata, [a]), (LeaderAndIsr, [a, b]), (UpdateMetadata, [c])]


def test_the_last_order_about_a_partition_counts_and_it_stays_new_until_sent() -> None:
    queue = SendQueue()
    queue.put((), leader_orders(0, is_new=True))
    queue.put((), leader_orders(1))
    [(_, [order])] = drained(queue)
    assert isinstance(order, LeaderAndIsr)
    assert (order.content.leader_epoch, order.content.is_new) == (1, True)


def test_live_brokers_alone_travel_with_the_next_metadata() -> None:
    state, queue = state_with(1), SendQueue()
    brokers = live_brokers(state)
    queue.put((), update_metadata(state, [T0]))
    queue.put(brokers, [])
    batch = queue.take()
    assert batch is not None
    assert (batch.kind, batch.live_brokers, len(batch.orders)) == (UpdateMetadata, brokers, 1)


def test_a_broker_that_hangs_does_not_collect_an_endless_queue() -> None:
    state, queue = state_with(2), SendQueue()
    for epoch in range(1000):
        queue.put((), leader_orders(epoch))
        queue.put(live_brokers(state), update_metadata(state, state.partitions()))
        assert len(queue) <= BATCHES_MAX + 1
    last = [each for kind, orders in drained(queue) if kind is LeaderAndIsr for each in orders][-1]
    assert isinstance(last, LeaderAndIsr)
    assert last.content.leader_epoch == 999


def test_after_a_long_wait_a_broker_gets_the_newest_list_of_brokers_with_each_order() -> None:
    state, queue = state_with(1), SendQueue()
    brokers = live_brokers(state)
    for _ in range(BATCHES_MAX // 2):
        queue.put(brokers, update_metadata(state, [T0]))
        queue.put(brokers, leader_and_isr(state, [T0]))
    queue.put(brokers[:2], update_metadata(state, [T0]))
    batches = [queue.take() for _ in range(len(queue))]
    assert [batch.live_brokers for batch in batches if batch is not None] == [brokers[:2]] * 2


def test_compacting_keeps_deletion_before_the_topic_that_was_created_again() -> None:
    queue = SendQueue()
    old, new = state_with(1), state_with(1, epoch=0)
    new.topics["lines"] = Topic(topic_id="t2", assignment={0: (1, 2, 3)})
    brokers = live_brokers(new)
    queue.put(brokers, leader_and_isr(old, [T0]))
    old.deletions = {"lines": Deletion(is_started=True)}
    queue.put(brokers, update_metadata(old, [T0]))
    queue.put(brokers, stop_replica(old, [T0], delete=True))
    for _ in range(BATCHES_MAX):
        queue.put(brokers, leader_and_isr(new, [T0]))
        queue.put(brokers, update_metadata(new, [T0]))
    batches = drained(queue)
    sequence = [(kind, each.topic.topic_id) for kind, orders in batches for each in orders]
    assert sequence[:2] == [(UpdateMetadata, "t1"), (UpdateMetadata, "t2")]
    logs = list(dict.fromkeys(pair for pair in sequence if pair[0] is not UpdateMetadata))
    assert logs == [(LeaderAndIsr, "t1"), (StopReplica, "t1"), (LeaderAndIsr, "t2")]


def test_elections_go_before_what_is_left_of_a_batch_and_each_partition_keeps_its_order() -> None:
    state, queue = state_with(4), SendQueue()
    a, b, c, d = state.partitions()
    queue.put((), leader_and_isr(state, [a, b], frozenset([a, b])))
    taken = queue.take()
    assert taken is not None
    assert not queue.holds_election()
    queue.put((), update_metadata(state, [a]))
    queue.put((), stop_replica(state, [c], delete=False))
    queue.put((), leader_and_isr(state, [b, c, d]))
    assert queue.holds_election()
    queue.put_back(taken, list(taken.orders.values())[1:])
    batches = drained(queue)
    found = [(kind, [each.partition for each in orders]) for kind, orders in batches]
    assert found == [(UpdateMetadata, [a]), (LeaderAndIsr, [d]), (StopReplica, [c]), (LeaderAndIsr, [b, c])]
    later, last = batches[-1][1]
    assert isinstance(later, LeaderAndIsr) and isinstance(last, LeaderAndIsr)
    assert later.content.is_new, "its log is not created yet: a request has few of those"
    assert not last.content.is_new


@pytest.mark.parametrize("is_put_back", [True, False])
def test_no_order_that_metadata_overtakes_brings_older_settings_back(*, is_put_back: bool) -> None:
    """Logs were still to be created when min.insync.replicas was raised: the orders for them came behind the metadata
    that told it, with the former settings, which the broker then kept."""
    earlier, later, queue = state_with(3), state_with(3, epoch=1), SendQueue()
    later.topics["lines"] = msgspec.structs.replace(later.topics["lines"], configs={"min.insync.replicas": "2"})
    partitions = earlier.partitions()
    queue.put((), leader_and_isr(earlier, partitions, frozenset(partitions)))
    if is_put_back:
        taken = queue.take()
        assert taken is not None
        queue.put((), update_metadata(later, partitions))
        queue.put((), leader_and_isr(later, partitions[:1]))
        queue.put_back(taken, list(taken.orders.values())[1:])
    for _ in range(0 if is_put_back else BATCHES_MAX):
        queue.put((), update_metadata(later, partitions))
        queue.put((), stop_replica(later, partitions[:1], delete=False))
    settings = [each.topic.configs for _, orders in drained(queue) for each in orders]
    assert settings == [{"min.insync.replicas": "2"}] * len(settings)


class BusyDisk(FakeBroker):
    """It takes ten milliseconds for each log that it creates or deletes."""

    def _handle(self, incoming: IncomingRequest) -> None:
        body, count = incoming.body, 0
        answer: Response | None = None
        if isinstance(body, LeaderAndIsrRequest) and body.topic_states[0].partition_states[0].is_new:
            answer, count = LeaderAndIsrResponse(), sum(len(topic.partition_states) for topic in body.topic_states)
        elif isinstance(body, StopReplicaRequest):
            answer, count = StopReplicaResponse(), sum(len(topic.partition_states) for topic in body.topic_states)
        if answer is None:
            super()._handle(incoming)
        else:
            self.requests.append(body)
            asyncio.get_running_loop().call_later(0.01 * count, incoming.respond, answer)


def told_of_large(broker: FakeBroker, kind: type[LeaderAndIsrRequest | StopReplicaRequest]) -> set[int]:
    topics = [topic for each in broker.requests if isinstance(each, kind) for topic in each.topic_states]
    return {
        state.partition_index for topic in topics if topic.topic_name == "large" for state in topic.partition_states
    }


@pytest.mark.parametrize("is_deletion", [False, True])
def test_an_election_waits_for_one_request_of_a_large_topic_at_most(*, is_deletion: bool) -> None:
    """Its order stood behind all those that create or delete the logs of a large topic: ten seconds without a leader's
    order, where a broker has to create 1,000 logs on a busy disk."""
    found: list[float] = []

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        controller = await cluster.controller()
        await cluster.create(controller, "lines", [[1, 2, 3]])
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name="large", num_partitions=1_000, replication_factor=3)], timeout_ms=60_000
        )
        large = asyncio.ensure_future(cluster.ask(controller, request))
        if is_deletion:
            await asyncio.sleep(20)
            await large
            deletion = DeleteTopicsRequest(topic_names=["large"], timeout_ms=60_000)
            large = asyncio.ensure_future(cluster.ask(controller, deletion))
        await asyncio.sleep(2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.brokers[1].unregister()
        await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2)
        found.append(loop.time() - began)
        kind = StopReplicaRequest if is_deletion else LeaderAndIsrRequest
        await cluster.until(lambda: told_of_large(cluster.brokers[2], kind) == set(range(1_000)))
        large.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "FakeBroker", BusyDisk)
        story()
    assert found[0] < 0.5


# --------------------------------------------------------------------------------------------------------- requests
def test_orders_that_wait_together_carry_the_last_settings_of_their_topic() -> None:
    """The settings may change while a broker does not answer."""
    earlier, later = state_with(2), state_with(2)
    later.topics["lines"] = msgspec.structs.replace(later.topics["lines"], configs={"retention.ms": "5"})
    a, b = earlier.partitions()
    for orders in (
        [*leader_and_isr(earlier, [a]), *leader_and_isr(later, [b])],
        [*update_metadata(earlier, [a]), *update_metadata(later, [b])],
    ):
        [request] = to_requests(SENDER, 10, live_brokers(later), orders)
        assert isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest)
        [topic] = request.topic_states
        assert topic.configs == {"retention.ms": "5"}
        assert [each.partition_index for each in topic.partition_states] == [0, 1]


@pytest.mark.parametrize("kind", ["leaders", "metadata", "stops"])
def test_large_orders_are_split_and_nothing_is_lost(kind: str) -> None:
    state = state_with(7_000)
    partitions = state.partitions()
    orders: list[PartitionOrder]
    if kind == "leaders":
        orders = list(leader_and_isr(state, partitions))
    elif kind == "metadata":
        orders = list(update_metadata(state, partitions))
    else:
        orders = list(stop_replica(state, partitions, delete=False))
    requests = to_requests(SENDER, 10, live_brokers(state), orders)
    assert len(requests) > 1
    assert max(len(msgspec.msgpack.encode(request)) for request in requests) <= REQUEST_BYTES_MAX
    indexes = []
    for request in requests:
        assert isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest)
        if not isinstance(request, StopReplicaRequest):  # until the last one comes, a broker cannot count the rest
            assert [topic.partition_count for topic in request.topic_states] == [7_000]
        indexes += [each.partition_index for topic in request.topic_states for each in topic.partition_states]
    assert indexes == list(range(7_000))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("created", REQUEST_LOGS_MAX),
        ("deleted", REQUEST_LOGS_MAX),
        ("led", REQUEST_PARTITIONS_MAX),
        ("stopped", REQUEST_PARTITIONS_MAX),
    ],
)
def test_one_request_changes_a_limited_number_of_logs_and_partitions(kind: str, limit: int) -> None:
    state = state_with(1_200)
    partitions = state.partitions()
    orders: Sequence[PartitionOrder]
    if kind in ("created", "led"):
        orders = leader_and_isr(state, partitions, frozenset(partitions if kind == "created" else ()))
    else:
        orders = stop_replica(state, partitions, delete=kind == "deleted")
    requests = to_requests(SENDER, 10, live_brokers(state), orders)
    sizes = []
    for request in requests:
        assert isinstance(request, LeaderAndIsrRequest | StopReplicaRequest)
        sizes.append(sum(len(topic.partition_states) for topic in request.topic_states))
    assert sum(sizes) == 1_200
    assert sizes[0] == max(sizes) == limit


def test_many_topics_with_long_settings_are_split_by_their_real_size() -> None:
    state = cluster_state(1)
    configs = {"description": "x" * 2_000}
    for number in range(600):
        name = f"topic-{number:04d}"
        state.topics[name] = Topic(topic_id=f"id{number}", assignment={0: (1,)}, configs=configs)
        state.leaderships[TopicPartition(name, 0)] = leadership(1, 1)
    requests = to_requests(SENDER, 10, live_brokers(state), update_metadata(state, state.partitions()))
    assert len(requests) == 3
    assert max(len(msgspec.msgpack.encode(request)) for request in requests) <= REQUEST_BYTES_MAX


@pytest.mark.invariant("I29")
def test_requests_carry_the_controllers_epoch_and_the_brokers() -> None:
    state = state_with(1)
    every: list[Sequence[PartitionOrder]] = [
        leader_and_isr(state, [T0]),
        update_metadata(state, [T0]),
        stop_replica(state, [T0], delete=True),
    ]
    for orders in every:
        [request] = to_requests(SENDER, 77, live_brokers(state), orders)
        assert isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest)
        assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (1, 2, 77)


def test_a_stop_carries_the_epoch_it_was_decided_in() -> None:
    state = state_with(1, epoch=9)
    [stop] = stop_replica(state, [T0], delete=False)
    assert (stop.content.leader_epoch, stop.content.delete_partition) == (9, False)


# ---------------------------------------------------------------------------------------------------------- channel
@simulated
async def test_request_is_sent_again_until_it_is_answered(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    broker = cluster.brokers[1]
    broker.answers[LeaderAndIsrRequest] = LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.until(lambda: len(broker.leader_and_isr("lines", 0)) > 5)
    del broker.answers[LeaderAndIsrRequest]
    await asyncio.sleep(0.5)
    count = len(broker.leader_and_isr("lines", 0))
    await asyncio.sleep(1)
    assert len(broker.leader_and_isr("lines", 0)) == count


def numbers_of(broker: FakeBroker) -> list[int]:
    orders = (LeaderAndIsrRequest, UpdateMetadataRequest, StopReplicaRequest)
    return [each.order_number for each in broker.requests if isinstance(each, orders)]


@simulated
async def test_requests_are_numbered_and_an_attempt_keeps_the_number(cluster: Cluster) -> None:
    """A broker refuses a lower number, so a registration that is ignored for a moment must not be counted anew."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    broker = cluster.brokers[1]
    broker.answers[LeaderAndIsrRequest] = LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.until(lambda: len(broker.leader_and_isr("lines", 0)) > 1)
    assert numbers_of(broker)[-1] == numbers_of(broker)[-2] > 0
    del broker.answers[LeaderAndIsrRequest]
    await cluster.create(controller, "other", [[1, 2]])
    path = broker_path(1)
    registration, _ = await cluster.observer.get(path)
    await cluster.observer.set(path, b"garbled")
    await cluster.add_broker(3)
    active = controller.service._active
    assert active is not None
    await cluster.until(lambda: active.state.brokers.keys() == {2, 3})
    await cluster.observer.set(path, registration)
    known = len(broker.requests)
    await cluster.add_broker(4)
    await cluster.until(lambda: len(broker.requests) > known)
    assert numbers_of(broker) == sorted(numbers_of(broker))


@simulated
async def test_nothing_overtakes_a_request_that_waits_for_its_answer(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    broker = cluster.brokers[1]
    await cluster.until(lambda: broker.requests)
    broker.requests.clear()
    broker.is_mute = True
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.create(controller, "other", [[1, 2]])
    await asyncio.sleep(5)
    assert len(broker.requests) == 1
    assert not broker.leader_and_isr("other", 0)


@simulated
async def test_a_cut_connection_heals_and_delivers_what_waited(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller(request_timeout_ms=1000)
    network = cluster.world.network
    network.cut("controller", "broker1")
    await cluster.create(controller, "lines", [[1, 2]])
    await asyncio.sleep(5)
    assert not cluster.brokers[1].leader_and_isr("lines", 0)
    network.heal("controller", "broker1")
    await cluster.until(lambda: cluster.brokers[1].leader_and_isr("lines", 0), seconds=10)


@simulated
async def test_a_lost_answer_to_an_authentication_costs_less_than_the_longest_silence(cluster: Cluster) -> None:
    """Seed 18100037: a broker lost the connection unnoticed while the controller authenticated. Its next attempt came
    five seconds later, and the broker, which had not been sent an order for six by then, was unregistered."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    broker, network = cluster.brokers[1], cluster.world.network
    await cluster.until(lambda: broker.requests)
    network.count_frames(match=lambda _: False)  # from now on responses are matched with requests
    network.reset_connections("controller", "broker1")
    answers = network.hold("broker1", "controller", responses(ApiKey.SASL_AUTHENTICATE), times=1)
    await cluster.create(controller, "lines", [[1, 2]])
    await answers.caught()
    longest = ControllerSettings(controller_id=1).answer_seconds_max
    await cluster.until(lambda: broker.leader_and_isr("lines", 0), seconds=longest / 2)


@simulated
async def test_an_answer_that_came_meanwhile_ends_a_silence_that_waits_in_the_queue(cluster: Cluster) -> None:
    """A slow write to ZooKeeper holds the queue up."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    broker, active = cluster.brokers[2], controller.service._active
    assert active is not None
    await cluster.until(lambda: active.channels._channels.keys() == {1, 2} and not active.state.unresponsive)
    broker.is_mute = True
    written = asyncio.Event()

    async def slow_write() -> Response:
        await written.wait()
        return Response()

    writing = cluster.world.spawn(controller.name, active.run_queued(slow_write))
    active.channels._channels[2][0].put(live_brokers(active.state), ())
    await asyncio.sleep(SILENT_SECONDS + 3 * WATCH_SECONDS)
    assert active._queue.qsize() > 0
    broker.answer_again()
    await active.channels.all_answered()
    written.set()
    await writing
    await cluster.until(lambda: active._queue.empty())
    assert active.state.unresponsive == frozenset()


@simulated
async def test_a_broker_may_lead_until_it_has_answered_a_later_order(cluster: Cluster) -> None:
    """Orders to lead count at once: an earlier controller may have given the same. What was answered later does not."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    broker, active = cluster.brokers[1], controller.service._active
    assert active is not None
    await cluster.create(controller, "lines", [[1, 2], [2, 1]])
    (channel, _), (other, _) = active.channels._channels[1], active.channels._channels[2]
    a, b = active.state.partitions_of("lines")
    await active.channels.all_answered()
    assert (channel.may_lead, other.may_lead) == ({a}, {b})
    broker.is_mute = True
    channel.put(live_brokers(active.state), update_metadata(active.state, [a, b]))
    await cluster.until(lambda: channel.waits_for_answer)
    for each, leader in ((a, 2), (b, 1)):
        active.state.leaderships[each] = msgspec.structs.replace(active.state.leaderships[each], leader=leader)
    channel.put(live_brokers(active.state), leader_and_isr(active.state, [a, b]))
    assert channel.may_lead == {a, b}
    broker.answer_again()
    await channel.settled()
    assert channel.may_lead == {b}
    channel.put(live_brokers(active.state), stop_replica(active.state, [b], delete=False))
    await channel.settled()
    assert channel.may_lead == set()
