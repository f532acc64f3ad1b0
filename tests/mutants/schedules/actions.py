"""Actions that several scripts share: separate roles, single requests, changes in ZooKeeper, and reading as a consumer."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial

from minibroker.broker.membership.noted_changes import CHECK_MS
from minibroker.broker.requests import handlers
from minibroker.client.admin import AdminClient
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.messages import ApiKey, Request, Response
from minibroker.protocol.znodes import CONTROLLER
from minibroker.runtime.ports import Coordination, NoNode
from minibroker.runtime.rpc import connect
from minibroker.simulation.cluster import PORT
from minibroker.simulation.world.message_holds import Match
from tests.mutants.directed_run import FIRST, DirectedRun

ATTEMPTS = 8
ANSWER_MS = 5_000
SOON_SECONDS = 3.0


def host(broker_id: int) -> str:
    return f"broker-{broker_id}"


async def separate_roles(directed: DirectedRun) -> tuple[int, int, int]:
    """(leader, controller, third): the leader is not the controller. A broker that is both is bounced until it is not."""
    cluster = directed.cluster
    for _ in range(ATTEMPTS):
        leader, controller = directed.leader, directed.controller
        if leader != controller:
            third = next(b for b in cluster.broker_ids if b not in (leader, controller))
            return leader, controller, third
        cluster.kill(controller)
        await directed.until(partial(_is_replaced, directed, controller), "another controller and leader")
        cluster.start(controller)
        await directed.until_isr(*cluster.broker_ids)
    raise AssertionError("the leader is always the controller")


async def until_changes_are_noted() -> None:
    """Each broker has counted what it has learned, in ZooKeeper and on its disk (decision 0032): it writes nothing more
    of its own accord."""
    await asyncio.sleep(2 * CHECK_MS / 1000)


def _is_replaced(directed: DirectedRun, broker_id: int) -> bool:
    if CONTROLLER not in directed.world.zookeeper.tree.nodes or directed.controller == broker_id:
        return False
    return directed.cluster.leader(FIRST.topic) not in (None, broker_id)


def members(directed: DirectedRun, partition: TopicPartition = FIRST) -> tuple[int, ...]:
    """The ISR according to ZooKeeper."""
    return next(state.members for state in directed.reference.states() if state.partition == partition)


def report(directed: DirectedRun, invariant: str, text: str) -> None:
    """Report a violation that no general checker can see, because only the script knows what happened before."""
    directed.history.find(invariant, text, FIRST)


def broker_epoch(directed: DirectedRun, broker_id: int) -> int:
    """As registered; -1 while it is not."""
    broker = directed.cluster.brokers[broker_id]
    epoch = broker.registration.broker_epoch if hasattr(broker, "registration") else None
    return -1 if epoch is None else epoch


async def until_registered_again(directed: DirectedRun, broker_id: int, old_epoch: int) -> None:
    """Wait until a broker that was started again is registered."""
    await directed.until(lambda: broker_epoch(directed, broker_id) > old_epoch, f"broker {broker_id} registered again")


async def send_to(directed: DirectedRun, broker_id: int, request: Request, timeout_ms: int = ANSWER_MS) -> Response:
    """One request on a separate connection. Authorization is off meanwhile: it would refuse late or foreign requests,
    but the rules behind it must hold without it."""
    network = directed.cluster.client_runtime().network
    connection = await connect(network, host(broker_id), PORT, client_id="script", timeout_ms=ANSWER_MS)
    module = vars(handlers)
    refuse = module["refuse"]
    try:
        module["refuse"] = lambda *told: None
        return await connection.request(request, timeout_ms)
    finally:
        module["refuse"] = refuse
        connection.abort()


def batch(value: bytes) -> bytearray:
    """One record, as a producer without idempotence packs it."""
    return build_batch([(None, value, 0, ())])


def fetch_answer_with(value: bytes) -> Match:
    """For holds: fetch responses with this record."""
    return lambda frame: not frame.is_request and frame.api is ApiKey.FETCH and value in bytes(frame.body)


def produce_with(value: bytes) -> Match:
    """For holds: produce requests with this record."""
    return lambda frame: frame.is_request and frame.api is ApiKey.PRODUCE and value in bytes(frame.body)


@contextlib.asynccontextmanager
async def zookeeper_client(directed: DirectedRun) -> AsyncGenerator[Coordination]:
    """An operator with a ZooKeeper shell."""
    coordination = directed.cluster.client_runtime().open_coordination("zookeeper:2181", 3_000)
    await coordination.start()
    try:
        yield coordination
    finally:
        await coordination.close()


async def remove_controller(coordination: Coordination) -> None:
    """How operators of Kafka force another controller election: the broker and its session stay alive."""
    with contextlib.suppress(NoNode):
        await coordination.delete(CONTROLLER)


async def read_all(directed: DirectedRun, seconds: float = 2.0) -> None:
    """A consumer reads all that it can; the history records it."""
    consumer = directed.workload.consumer()
    async with consumer:
        consumer.assign([FIRST])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                        for record in records:
                            directed.history.read[partition, record.offset] = record.value or b""


def admin_client(directed: DirectedRun) -> AdminClient:
    """Creates and deletes topics."""
    return AdminClient(bootstrap_servers=directed.cluster.bootstrap_servers, runtime=directed.cluster.client_runtime())


async def must_be_acknowledged(directed: DirectedRun, when: str, seconds: float = SOON_SECONDS) -> None:
    """A check of liveness that depends on what happened before."""
    sending = directed.produce_soon(when)
    done, _ = await asyncio.wait([sending], timeout=seconds)
    if not done:
        report(directed, "I37", f"{when}: no acknowledgement within {seconds} s, ISR {members(directed)}")
