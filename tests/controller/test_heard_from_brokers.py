"""What the controller hears from brokers becomes an event: one table, situation -> the events that the core gets."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from minibroker.controller.broker_channel import BrokerChannel
from minibroker.controller.controller_channels import (
    SILENT_SECONDS,
    UNAVAILABLE_SECONDS,
    WATCH_SECONDS,
    ChannelSettings,
    ControllerChannels,
    silence_of,
)
from minibroker.controller.core.control_requests import leader_and_isr, live_brokers, stop_replica
from minibroker.controller.core.controller_state import RegisteredBroker, ReplicaLog
from minibroker.controller.core.events import (
    AskLogs,
    BrokerAnswered,
    BrokerRefused,
    BrokerSilent,
    ConfirmFailure,
    ControllerEvent,
    FailureConfirmed,
    FailureUnconfirmed,
    LivenessConnectionHeld,
    LivenessConnectionLost,
    LogsReceived,
    ReplicasErased,
    ReplicasFailed,
    Send,
)
from minibroker.controller.detection.liveness_connection import STEADY_SECONDS
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ApiKey,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    ReplicaLogInfo,
    TopicPartitions,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.wire.messages import ReplicaLogInfoTopic as LogsOfTopic
from minibroker.simulation.world.message_holds import MessageHold, responses
from tests.authenticated import dialer
from tests.controller.cluster import LISTENER, PORT, Cluster, simulated
from tests.controller.facts import T0, broker, cluster_state, leadership


class Scene:
    """The channels of a controller, broker 1, to the fake brokers 2 and 3."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.state = cluster_state(1, self.registration(2), self.registration(3), now=leadership(2, 2, 3))
        self.heard: list[ControllerEvent] = []
        self.silences: list[BrokerSilent | None] = []
        self.channels = ControllerChannels(
            self.state,
            dialer(cluster.world.runtime("controller").network, 1),
            lambda: True,
            ChannelSettings(inter_broker_listener=LISTENER, request_timeout_ms=30_000, detects_lost_connections=True),
            on_event=self.heard.append,
            on_silence=self._note_silence,
        )

    def _note_silence(self, channel: BrokerChannel) -> None:
        self.silences.append(silence_of(channel))

    def registration(self, broker_id: int) -> RegisteredBroker:
        fake = self.cluster.brokers[broker_id]
        return RegisteredBroker(
            broker_id=broker_id,
            broker_epoch=fake.broker_epoch,
            incarnation_id=fake.incarnation,
            directory_id=f"d{broker_id}",
            listeners=((LISTENER, fake.host, PORT),),
        )

    @property
    def epoch(self) -> int:
        return self.cluster.brokers[2].broker_epoch

    def greet(self) -> None:
        """Send broker 2 an order."""
        self.channels.send(Send(broker_id=2, live_brokers=live_brokers(self.state)))

    def hold_answer(self, api: ApiKey) -> MessageHold:
        return self.cluster.world.network.hold("broker2", "controller", responses(api), times=1)

    def confirm(self) -> None:
        confirmers = (self.registration(3),)
        self.channels.confirm_failure(ConfirmFailure(broker=self.registration(2), confirmers=confirmers, attempt=4))

    async def run(self, story: Story) -> None:
        """Open the channel to broker 2, and let something happen once its liveness connection is held."""
        async with asyncio.TaskGroup() as group:
            self.channels.group = group
            self.channels.open(self.registration(2))
            watch = group.create_task(self.channels.watch_answers())
            await self.cluster.until(lambda: self.heard)
            assert self.heard == [LivenessConnectionHeld(broker_id=2, broker_epoch=self.epoch)]
            self.heard.clear()
            await asyncio.sleep(STEADY_SECONDS)
            await story(self)
            watch.cancel()
            self.channels.close(2)


Story = Callable[[Scene], Awaitable[None]]


async def it_fails(scene: Scene) -> None:
    now_seconds = asyncio.get_running_loop().time()
    scene.cluster.world.kill("broker2")
    await asyncio.sleep(0.008)
    (lost,) = (each for each in scene.heard if isinstance(each, LivenessConnectionLost))
    assert 0 <= lost.at_seconds - now_seconds < 0.008


async def its_name_vanishes_when_it_fails(scene: Scene) -> None:
    """A container: its address refuses for a moment, and nothing answers from then on."""
    scene.cluster.world.network.forget_name("broker2")
    scene.cluster.world.kill("broker2")
    await asyncio.sleep(0.01)
    scene.cluster.world.network.isolate("broker2")
    scene.heard[:] = scene.heard[-1:]  # the last refusal
    await scene.cluster.until(lambda: len(scene.heard) > 1)


async def its_connection_breaks(scene: Scene) -> None:
    scene.cluster.world.network.reset_connections("controller", "broker2")
    await asyncio.sleep(1.0)


async def it_answers_for_the_first_time(scene: Scene) -> None:
    scene.state.unresponsive = frozenset([2])
    scene.greet()
    await scene.channels.all_answered()


async def it_answers_for_the_first_time_with_offline_replicas(scene: Scene) -> None:
    """A new controller knows of none, and would elect one; the members that are down would leave the ISR for it."""
    offline = [TopicPartitions(topic_name="lines", partitions=[0])]
    scene.cluster.brokers[2].answers[UpdateMetadataRequest] = UpdateMetadataResponse(offline_partitions=offline)
    await it_answers_for_the_first_time(scene)
    scene.state.unresponsive = frozenset()
    await it_answers_as_usual(scene)


async def it_answers_after_a_silence_to_an_order_that_names_no_offline_replicas(scene: Scene) -> None:
    """Which order waited when it fell silent is chance. The only other member may have failed meanwhile: it would leave
    the ISR for a replica that went offline during the silence."""
    offline = [TopicPartitions(topic_name="lines", partitions=[0])]
    scene.cluster.brokers[2].answers[UpdateMetadataRequest] = UpdateMetadataResponse(offline_partitions=offline)
    scene.state.unresponsive = frozenset([2])
    scene.channels.send(Send(broker_id=2, live_brokers=(), orders=tuple(leader_and_isr(scene.state, [T0]))))
    await scene.channels.all_answered()


async def it_answers_the_first_of_many_orders_after_a_silence(scene: Scene) -> None:
    """Each of the others may take seconds on a slow disk: they create logs. Elections would wait for all of them."""
    scene.state.unresponsive = frozenset([2])
    answer = scene.hold_answer(ApiKey.LEADER_AND_ISR)
    orders = tuple(leader_and_isr(scene.state, [T0]))
    scene.channels.send(Send(broker_id=2, live_brokers=(), orders=orders))
    await answer.caught()
    scene.channels.send(Send(broker_id=2, live_brokers=(), orders=tuple(stop_replica(scene.state, [T0], delete=True))))
    answer.release()
    await scene.channels.all_answered()


async def its_replica_goes_offline_while_its_answer_is_held_up(scene: Scene) -> None:
    """For a second or more. Its report may be held up, too, and the answer is as old as the silence."""
    scene.state.unresponsive = frozenset([2])
    answer = scene.hold_answer(ApiKey.UPDATE_METADATA)
    scene.greet()
    await answer.caught()
    await asyncio.sleep(SILENT_SECONDS + WATCH_SECONDS)
    scene.silences.clear()
    offline = [TopicPartitions(topic_name="lines", partitions=[0])]
    scene.cluster.brokers[2].answers[UpdateMetadataRequest] = UpdateMetadataResponse(offline_partitions=offline)
    answer.release()
    await scene.channels.all_answered()


async def it_reports_while_its_first_answer_is_under_way(scene: Scene) -> None:
    """Its replica is well again, or went offline, between the answer and the report: it is asked once more."""
    offline = [TopicPartitions(topic_name="lines", partitions=[0])]
    scene.cluster.brokers[2].answers[UpdateMetadataRequest] = UpdateMetadataResponse(offline_partitions=offline)
    scene.state.unresponsive = frozenset([2])
    answer = scene.hold_answer(ApiKey.UPDATE_METADATA)
    scene.greet()
    await answer.caught()
    scene.channels.note_report(2, scene.epoch)
    scene.cluster.brokers[2].answers[UpdateMetadataRequest] = UpdateMetadataResponse()
    answer.release()
    await scene.channels.all_answered()


async def it_reports_while_its_refusal_is_under_way(scene: Scene) -> None:
    """Another registration's report, or one that came before the order, says nothing of a refusal."""
    error = PartitionError(topic_name="lines", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    scene.cluster.brokers[2].answers[LeaderAndIsrRequest] = LeaderAndIsrResponse(partition_errors=[error])
    order = Send(broker_id=2, live_brokers=(), orders=tuple(leader_and_isr(scene.state, [T0])))
    for broker_epoch in (scene.epoch, scene.epoch - 1):
        answer = scene.hold_answer(ApiKey.LEADER_AND_ISR)
        scene.channels.send(order)
        await answer.caught()
        scene.channels.note_report(2, broker_epoch)
        answer.release()
        await scene.channels.all_answered()
        scene.channels.note_report(2, scene.epoch)
        scene.channels.note_report(7, scene.epoch)


async def it_answers_as_usual(scene: Scene) -> None:
    scene.greet()
    await scene.channels.all_answered()


async def it_has_deleted_a_replica(scene: Scene) -> None:
    scene.channels.send(Send(broker_id=2, live_brokers=(), orders=tuple(stop_replica(scene.state, [T0], delete=True))))
    await scene.channels.all_answered()


async def it_says_what_its_log_holds(scene: Scene) -> None:
    topic = LogsOfTopic(topic_name="lines", partitions=[ReplicaLogInfo(partition=0, exists=True, log_end_offset=9)])
    answer = GetReplicaLogInfoResponse(broker_epoch=scene.epoch, topics=[topic])
    scene.cluster.brokers[2].answers[GetReplicaLogInfoRequest] = answer
    scene.channels.ask_for_logs(AskLogs(broker=scene.registration(2), partitions=(T0,)))
    await asyncio.sleep(0.1)


async def another_broker_confirms_that_it_failed(scene: Scene) -> None:
    scene.cluster.brokers[3].is_refused = True
    scene.confirm()
    await asyncio.sleep(0.1)


async def no_other_broker_confirms_that_it_failed(scene: Scene) -> None:
    scene.confirm()
    await asyncio.sleep(0.1)


async def it_is_suspected_four_times(scene: Scene) -> None:
    """Thrice while the others are asked, which is one inquiry, and once more when they have answered."""
    for _ in range(3):
        scene.confirm()
    await asyncio.sleep(0.1)
    scene.confirm()
    await asyncio.sleep(0.1)


HEARD: dict[Story, Callable[[int], Sequence[ControllerEvent]]] = {
    it_fails: lambda epoch: [
        LivenessConnectionLost(broker_id=2, broker_epoch=epoch, at_seconds=0),
        BrokerRefused(broker_id=2, broker_epoch=epoch, attempt=1),
    ],
    its_name_vanishes_when_it_fails: lambda epoch: [
        BrokerRefused(broker_id=2, broker_epoch=epoch, attempt=1),
        BrokerRefused(broker_id=2, broker_epoch=epoch, attempt=2),
    ],
    its_connection_breaks: lambda epoch: [
        LivenessConnectionLost(broker_id=2, broker_epoch=epoch, at_seconds=0),
        LivenessConnectionHeld(broker_id=2, broker_epoch=epoch),
    ],
    it_answers_for_the_first_time: lambda epoch: [BrokerAnswered(broker_id=2, broker_epoch=epoch)],
    it_answers_for_the_first_time_with_offline_replicas: lambda epoch: [
        ReplicasFailed(broker_id=2, broker_epoch=epoch, partitions=(T0,)),
        BrokerAnswered(broker_id=2, broker_epoch=epoch),
    ],
    it_answers_after_a_silence_to_an_order_that_names_no_offline_replicas: lambda epoch: [
        ReplicasFailed(broker_id=2, broker_epoch=epoch, partitions=(T0,)),
        BrokerAnswered(broker_id=2, broker_epoch=epoch),
    ],
    it_answers_the_first_of_many_orders_after_a_silence: lambda epoch: [
        BrokerAnswered(broker_id=2, broker_epoch=epoch),
        ReplicasErased(broker_id=2, topic="lines", topic_id="t1", erased=(0,)),
        BrokerAnswered(broker_id=2, broker_epoch=epoch),  # it still counts as silent here
    ],
    its_replica_goes_offline_while_its_answer_is_held_up: lambda epoch: [
        ReplicasFailed(broker_id=2, broker_epoch=epoch, partitions=(T0,)),
        BrokerAnswered(broker_id=2, broker_epoch=epoch),
    ],
    it_reports_while_its_first_answer_is_under_way: lambda epoch: [BrokerAnswered(broker_id=2, broker_epoch=epoch)],
    it_reports_while_its_refusal_is_under_way: lambda epoch: [
        ReplicasFailed(broker_id=2, broker_epoch=epoch, partitions=(T0,), is_overtaken=True),
        ReplicasFailed(broker_id=2, broker_epoch=epoch, partitions=(T0,)),
    ],
    it_answers_as_usual: lambda epoch: [],
    it_has_deleted_a_replica: lambda epoch: [ReplicasErased(broker_id=2, topic="lines", topic_id="t1", erased=(0,))],
    it_says_what_its_log_holds: lambda epoch: [
        LogsReceived(broker_id=2, broker_epoch=epoch, logs={T0: ReplicaLog(exists=True, log_end_offset=9)})
    ],
    another_broker_confirms_that_it_failed: lambda epoch: [
        FailureConfirmed(broker_id=2, broker_epoch=epoch, confirmer_id=3, address=f"broker2:{PORT}", took_ms=0)
    ],
    no_other_broker_confirms_that_it_failed: lambda epoch: [
        FailureUnconfirmed(broker_id=2, broker_epoch=epoch, attempt=4)
    ],
    it_is_suspected_four_times: lambda epoch: 2 * [FailureUnconfirmed(broker_id=2, broker_epoch=epoch, attempt=4)],
}


def without_times(event: ControllerEvent) -> ControllerEvent:
    if isinstance(event, LivenessConnectionLost):
        return msgspec.structs.replace(event, at_seconds=0)
    return msgspec.structs.replace(event, took_ms=0) if isinstance(event, FailureConfirmed) else event


@pytest.mark.parametrize("story", HEARD)
def test_each_thing_heard_from_a_broker_becomes_an_event(story: Story) -> None:
    @simulated
    async def play(cluster: Cluster) -> None:
        await cluster.start(2, 3)
        scene = Scene(cluster)
        await scene.run(story)
        assert [without_times(each) for each in scene.heard] == HEARD[story](scene.epoch)
        assert scene.silences == []

    play()


async def it_leaves_an_order_unanswered(scene: Scene) -> None:
    scene.cluster.brokers[2].is_mute = True
    scene.greet()
    await asyncio.sleep(SILENT_SECONDS + 3.5 * WATCH_SECONDS)


async def it_loses_the_connection_of_each_attempt(scene: Scene) -> None:
    """The order is sent again and again, and no attempt lasts long."""
    scene.cluster.brokers[2].is_mute = True
    scene.greet()
    for _ in range(int((SILENT_SECONDS + 3.5 * WATCH_SECONDS) / 0.25)):
        await asyncio.sleep(0.25)
        for connection in list(scene.cluster.brokers[2].server.connections.values()):
            connection.abort_because("the test says so")


@pytest.mark.parametrize("story", [it_leaves_an_order_unanswered, it_loses_the_connection_of_each_attempt])
def test_a_silence_is_told_as_soon_as_it_is_long_enough_and_again_while_it_lasts(story: Story) -> None:
    @simulated
    async def play(cluster: Cluster) -> None:
        await cluster.start(2, 3)
        scene = Scene(cluster)
        await scene.run(story)
        seconds = [SILENT_SECONDS, SILENT_SECONDS + WATCH_SECONDS, SILENT_SECONDS + 2 * WATCH_SECONDS]
        assert scene.silences == [BrokerSilent(broker_id=2, broker_epoch=scene.epoch, seconds=each) for each in seconds]

    play()


async def it_is_asked_for_its_logs_without_an_answer(scene: Scene) -> None:
    """After some inquiries that it has answered."""
    question = AskLogs(broker=scene.registration(2), partitions=(T0,))
    topic = LogsOfTopic(topic_name="lines", partitions=[ReplicaLogInfo(partition=0)])
    answer = GetReplicaLogInfoResponse(broker_epoch=scene.epoch, topics=[topic])
    scene.cluster.brokers[2].answers[GetReplicaLogInfoRequest] = answer
    for _ in range(5):
        scene.channels.ask_for_logs(question)
        await asyncio.sleep(0.1)
    scene.cluster.brokers[2].is_mute = True
    scene.channels.ask_for_logs(question)
    gc.collect()
    assert len([each for each in gc.get_objects() if is_inquiry(each)]) <= 2, "those that are over are kept"


def is_inquiry(each: object) -> bool:
    """Of this test: what earlier ones left may not be collected yet."""
    if not isinstance(each, asyncio.Task) or each.get_loop() is not asyncio.get_running_loop():
        return False
    return each.get_name() == "logs-of-2"


@simulated
async def test_an_inquiry_ends_with_the_registration_that_it_goes_to(cluster: Cluster) -> None:
    """Else it dials the former address once per second, without an end."""
    await cluster.start(2, 3)
    async with asyncio.timeout(60):
        await Scene(cluster).run(it_is_asked_for_its_logs_without_an_answer)


async def its_log_is_unavailable_when_it_is_asked(scene: Scene) -> None:
    """And is well later, and another time."""
    fake, question = scene.cluster.brokers[2], AskLogs(broker=scene.registration(2), partitions=(T0,))

    def say(unavailable: str | None) -> None:
        info = ReplicaLogInfo(partition=0, exists=True, unavailable=unavailable)
        topic = LogsOfTopic(topic_name="lines", partitions=[info])
        fake.answers[GetReplicaLogInfoRequest] = GetReplicaLogInfoResponse(broker_epoch=scene.epoch, topics=[topic])

    def told() -> list[str | None]:
        return [each.logs[T0].unavailable for each in scene.heard if isinstance(each, LogsReceived)]

    restarted = leadership(None, 2, incarnations={2: "the one before"})
    scene.state.leaderships = cluster_state(now=restarted).leaderships
    say("its answer cannot be read")
    scene.channels.ask_for_logs(question)
    await asyncio.sleep(2.5 * UNAVAILABLE_SECONDS)
    assert told() == ["its answer cannot be read"], "nothing new is told once"
    say(None)
    await asyncio.sleep(UNAVAILABLE_SECONDS)
    assert told() == ["its answer cannot be read", None]
    fake.requests.clear()
    await asyncio.sleep(3 * UNAVAILABLE_SECONDS)
    assert not [each for each in fake.requests if isinstance(each, GetReplicaLogInfoRequest)]


@simulated
async def test_a_broker_is_asked_again_for_a_log_that_was_unavailable(cluster: Cluster) -> None:
    """No event asks again after an answer that could not be decoded: the partition stayed without a leader."""
    await cluster.start(2, 3)
    await Scene(cluster).run(its_log_is_unavailable_when_it_is_asked)


async def a_broker_that_has_just_left_is_asked(scene: Scene) -> None:
    scene.channels.ask_for_logs(AskLogs(broker=broker(9), partitions=(T0,)))
    assert not [each for each in asyncio.all_tasks() if each.get_name() == "logs-of-9"]


@simulated
async def test_a_broker_without_a_channel_is_not_asked_for_its_logs(cluster: Cluster) -> None:
    """Its channel was closed while the question waited in the queue."""
    await cluster.start(2, 3)
    await Scene(cluster).run(a_broker_that_has_just_left_is_asked)


async def it_is_left_alone_for_long(scene: Scene) -> None:
    await scene.channels.all_answered()
    scene.cluster.brokers[2].requests.clear()
    await asyncio.sleep(20.0)


@simulated
async def test_a_broker_that_is_sent_nothing_is_probed_twice_within_the_longest_silence(cluster: Cluster) -> None:
    """Else a leader that can be reached no more would lead until the next order."""
    await cluster.start(2, 3)
    scene = Scene(cluster)
    await scene.run(it_is_left_alone_for_long)
    longest = scene.state.settings.answer_seconds_max
    assert len(cluster.brokers[2].requests) == pytest.approx(20.0 / (longest / 2), abs=1)
    assert scene.silences == []
