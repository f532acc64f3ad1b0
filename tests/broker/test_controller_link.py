"""A broker reports replicas on a failed disk to the controller until a report has arrived."""

import asyncio
import itertools

from minibroker.broker.membership.controller_link import ControllerLink
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ControlledShutdownRequest, ControlledShutdownResponse
from minibroker.runtime.server.server import IncomingRequest, RpcServer
from minibroker.simulation.world.world import SimulatedWorld
from tests.authenticated import Answering, dialer

PORT = 9092
FAILED, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)


class Scene:
    """A broker's link, and a controller that records the reports it receives."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.offline: list[TopicPartition] = []
        self.led: list[TopicPartition] = []
        self.address: tuple[int, str, int] | None = (1, "controller", PORT)
        self.reports: list[list[TopicPartition]] = []
        self.numbers: list[int] = []
        self.answer_after_seconds = 0.0
        self.link = ControllerLink(
            dialer=dialer(self.world.runtime("broker").network, 2),
            broker_id=2,
            broker_epoch=lambda: 77,
            controller_address=lambda: self.address,
            offline_partitions=lambda: self.offline,
            leads=lambda name: name in self.led,
            request_timeout_ms=1_000,
        )

    def play(self, story) -> None:  # type: ignore[no-untyped-def]
        async def main() -> None:
            server = RpcServer(self.world.runtime("controller").network, Answering(1, self._answer))
            await server.start("controller", PORT, "INTERNAL")
            running = asyncio.create_task(self.link.run())
            await story()
            running.cancel()
            await server.stop()

        self.world.run(main(), seconds_max=100)

    def _answer(self, request: IncomingRequest) -> None:
        body = request.body
        assert isinstance(body, ControlledShutdownRequest)
        assert body.offline_partitions is not None
        self.numbers.append(body.report_number)
        self.reports.append([TopicPartition(t.topic_name, p) for t in body.offline_partitions for p in t.partitions])
        asyncio.get_running_loop().call_later(self.answer_after_seconds, request.respond, ControlledShutdownResponse())

    async def disk(self, *offline: TopicPartition) -> None:
        self.offline = list(offline)
        self.link.replicas_changed()
        await asyncio.sleep(0.01)


def test_failure_and_recovery_are_reported() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.disk(FAILED)
        await asyncio.sleep(2)
        await scene.disk()
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports[0] == [FAILED]
    assert scene.reports[-1] == []


def test_recovery_is_reported_even_if_no_replica_failed() -> None:
    """The controller may know of failures that the broker does not count: the refused LeaderAndIsr of a new
    replica."""
    scene = Scene()

    async def story() -> None:
        await scene.disk()
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports
    assert scene.reports[-1] == []


def test_a_failure_is_reported_even_after_recovery() -> None:
    """The replicas have lost their roles: they get no new ones unless the controller moves the leaders."""
    scene = Scene()

    async def story() -> None:
        scene.address = None
        await scene.disk(FAILED)
        await scene.disk()
        scene.address = (1, "controller", PORT)
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports == [[FAILED], [], []]


def test_a_failure_is_not_reported_late_of_a_replica_that_leads_again() -> None:
    """Found by the swarm (seed 17130752): a new controller had elected it meanwhile, and the late report deposed it."""
    scene = Scene()

    async def story() -> None:
        scene.address = None
        await scene.disk(FAILED)
        await scene.disk()
        scene.led = [FAILED]
        scene.address = (1, "controller", PORT)
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports == [[], []]


def test_an_already_reported_failure_does_not_delay_the_recovery_report() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.disk(FAILED)
        await asyncio.sleep(1)
        await scene.disk(FAILED)
        await scene.disk()
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports == [[FAILED], [], []]


def test_a_repeated_failure_is_reported_again() -> None:
    """Between the two failures, a new controller that knew of neither may have given the replica a role."""
    scene = Scene()

    async def story() -> None:
        await scene.disk(FAILED)
        await asyncio.sleep(1)
        scene.address = None
        await scene.disk()
        await scene.disk(FAILED)
        await scene.disk()
        scene.address = (1, "controller", PORT)
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports == [[FAILED], [FAILED], [], []]


def test_a_failure_during_a_report_is_reported_even_after_recovery() -> None:
    """The answer to the report before says nothing about it."""
    scene = Scene()

    async def story() -> None:
        scene.answer_after_seconds = 0.5
        await scene.disk(FAILED)
        await scene.disk(FAILED, OTHER)
        await scene.disk()
        await asyncio.sleep(5)

    scene.play(story)
    assert scene.reports == [[FAILED], [OTHER], [], []]


def test_a_failure_during_the_report_of_an_earlier_one_is_reported_too() -> None:
    """Between the two, a new controller that knew of neither may have given the replica a role."""
    scene = Scene()

    async def story() -> None:
        scene.answer_after_seconds = 0.5
        for _ in range(2):
            await scene.disk(FAILED)
            await scene.disk()
        await asyncio.sleep(5)

    scene.play(story)
    assert scene.reports == [[FAILED], [FAILED], [], []]


def test_recovery_is_reported_twice_in_case_a_refusal_is_in_flight() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.disk(FAILED)
        await asyncio.sleep(1)
        await scene.disk()
        await asyncio.sleep(5)

    scene.play(story)
    assert scene.reports == [[FAILED], [], []]


def test_a_recovery_is_reported_twice_while_another_replica_stays_offline() -> None:
    """An answer of this broker that names the recovered replica as offline may be in flight, too: the controller that
    took it last kept a sound replica out of the ISR until the other one recovered."""
    scene = Scene()

    async def story() -> None:
        await scene.disk(FAILED, OTHER)
        await asyncio.sleep(2)
        await scene.disk(FAILED)
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports == [[FAILED, OTHER], [FAILED], [FAILED]]


def test_a_recovery_of_replicas_that_this_broker_does_not_have_is_reported_though_another_stays_offline() -> None:
    """Their logs could not be created, for lack of room or of a descriptor. The controller knows them by refused orders
    alone, and offers them again when a report does not name them: it is the same report as before."""
    scene = Scene()

    async def story() -> None:
        await scene.disk(OTHER)
        await asyncio.sleep(2)
        scene.link.replicas_recovered()
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports == [[OTHER], [OTHER], [OTHER]]


def test_each_attempt_to_report_has_a_later_number() -> None:
    """The controller refuses one that comes behind a later one: its connection hung, and what it says is over."""
    scene = Scene()

    async def story() -> None:
        scene.answer_after_seconds = 1.5
        await scene.disk(FAILED)
        await asyncio.sleep(2)
        scene.answer_after_seconds = 0.0
        await asyncio.sleep(2)
        await scene.disk()
        await asyncio.sleep(2)

    scene.play(story)
    assert scene.reports == [[FAILED], [FAILED], [FAILED], [], []]
    assert scene.numbers == [1, 2, 3, 4, 5]


def test_a_replica_that_fails_again_before_its_recovery_is_reported_is_left_out_of_one_report() -> None:
    """A damaged replica that began its repair, and was damaged again at once, waits for a new leader epoch. To the
    controller it was offline all the time, so none came (trial 108 of tests/simulation/failed_disk_trials.py)."""
    scene = Scene()

    async def story() -> None:
        await scene.disk(FAILED, OTHER)
        await asyncio.sleep(2)
        for offline in ([OTHER], [FAILED, OTHER]):
            scene.offline = offline
            scene.link.replicas_changed()
        await asyncio.sleep(2)

    scene.play(story)
    assert [each for each, _ in itertools.groupby(scene.reports)] == [[FAILED, OTHER], [OTHER], [FAILED, OTHER]]


def test_a_replica_that_fails_again_during_the_report_of_its_failure_is_left_out_of_one_report() -> None:
    """Its recovery came while that report waited for its answer."""
    scene = Scene()
    scene.answer_after_seconds = 0.1

    async def story() -> None:
        await scene.disk(FAILED)
        await asyncio.sleep(0.02)
        for offline in ([], [FAILED]):
            scene.offline = offline
            scene.link.replicas_changed()
        await asyncio.sleep(2)

    scene.play(story)
    assert [each for each, _ in itertools.groupby(scene.reports)] == [[FAILED], [], [FAILED]]


def test_nothing_is_reported_if_nothing_failed() -> None:
    scene = Scene()

    async def story() -> None:
        scene.link.registered()
        await asyncio.sleep(5)

    scene.play(story)
    assert scene.reports == []


def test_a_new_registration_reports_replicas_that_are_still_offline() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.disk(FAILED)
        await asyncio.sleep(1)
        scene.link._broker_epoch = lambda: 78
        scene.link.registered()
        await asyncio.sleep(1)

    scene.play(story)
    assert scene.reports == [[FAILED], [FAILED]]
