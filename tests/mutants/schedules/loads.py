"""The swarm's loads in a cluster in which nothing fails: what the client library returns is wrong by itself."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from minibroker.client.errors import UndeserializableRecord
from minibroker.client.producer.partitioner import murmur2_partitioner
from minibroker.simulation.swarm.final_checks import compare_history, compare_lookups
from minibroker.simulation.swarm.loads.all_loads import open_loads
from minibroker.simulation.swarm.loads.load_options import TOPIC, LoadOptions
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.parcels import pack_most
from minibroker.simulation.swarm.loads.watched_consumer import WatchedConsumer
from minibroker.simulation.swarm.loads.watched_producer import DrawnRecord, WatchedProducer
from tests.mutants.directed_run import FIRST, ClusterSetup, DirectedRun, with_setup

SECONDS = 8.0
TIMES = 20
TURNS = 6
CALM = ClusterSetup(topics={"a": (1, 3, 1), TOPIC: (2, 3, 1)})


def _scene(directed: DirectedRun, *clients: str) -> LoadScene:
    """Of a run with these loads."""
    directed.options.loads = LoadOptions(
        clients=clients,
        brokers=3,
        topics={TOPIC: directed.options.topics[TOPIC]},
        topic_settings={TOPIC: {}},
        settings={},
        changes={},
    )
    return LoadScene(
        directed.cluster, directed.reference, directed.workload, directed.history, directed.options, Counter()
    )


async def _run_loads(directed: DirectedRun, *clients: str, seconds: float = SECONDS) -> None:
    scene = _scene(directed, *clients)
    async with asyncio.TaskGroup() as group:
        for run in open_loads(scene):
            group.create_task(run())
        await asyncio.sleep(seconds)
        directed.workload.stop.set()
    await _judge_lookups(directed)


async def _judge_lookups(directed: DirectedRun) -> None:
    """By the times of all records, which one more reader gets."""
    await compare_history(directed.cluster, directed.workload, directed.history)
    directed.history.moves("final reader")  # it begins again at the end of the run
    compare_lookups(directed.workload, directed.history)


@with_setup(CALM)
async def write_in_every_way(directed: DirectedRun) -> None:
    await _run_loads(directed, "record_writer")


@with_setup(CALM)
async def write_and_read_in_every_way(directed: DirectedRun) -> None:
    await _run_loads(directed, "record_writer", "record_reader")


@with_setup(CALM)
async def make_a_topic_again(directed: DirectedRun) -> None:
    """So often that the reader which stays has read further in one life than it may go on in the next."""
    await _run_loads(directed, "topic_maker", seconds=4 * SECONDS)


@with_setup(CALM)
async def look_up_the_time_of_each_record(directed: DirectedRun) -> None:
    """Times rise from record to record, so each look-up has one right answer."""
    for number in range(TIMES):
        await directed.produce(str(number))
        await asyncio.sleep(0.01)
    settings = {"auto_offset_reset": "earliest", "max_poll_records": 1}
    async with WatchedConsumer(_scene(directed), "reader", [FIRST], settings) as consumer:
        for _ in range(TIMES):
            await consumer.getone()
            await consumer.look_up(FIRST, consumer.last_read_ms[FIRST])
    await _judge_lookups(directed)


@with_setup(CALM)
async def seek_to_each_record(directed: DirectedRun) -> None:
    """From the last record to the first; each must be the next that is read."""
    for number in range(TIMES):
        await directed.produce(str(number))
    settings = {"auto_offset_reset": "earliest", "max_poll_records": 1}
    async with WatchedConsumer(_scene(directed), "reader", [FIRST], settings) as consumer:
        for offset in reversed(range(TIMES)):
            consumer.seek(FIRST, offset)
            await consumer.getone()


@with_setup(CALM)
async def read_what_a_deserializer_refuses(directed: DirectedRun) -> None:
    """Some records of large batches; those before them must come first, and those behind them after a seek."""
    await directed.produce("first")  # opens the producer
    await asyncio.gather(*(directed.produce_soon(str(number)) for number in range(3 * TIMES)))
    settings = {"auto_offset_reset": "earliest", "max_poll_records": 500, "value_deserializer": pack_most}
    async with WatchedConsumer(_scene(directed), "reader", [FIRST], settings) as consumer:
        for _ in range(TIMES):
            try:
                await consumer.getmany([], None)
            except UndeserializableRecord as error:
                consumer.refused(error)


@with_setup(CALM)
async def start_again_under_a_name(directed: DirectedRun) -> None:
    await _run_loads(directed, "name_holder")


@with_setup(CALM)
async def cancel_each_read(directed: DirectedRun) -> None:
    """After so many turns of the loop; what a cancelled call took would be missing afterwards."""
    for number in range(TIMES):
        await directed.produce(str(number))
    async with WatchedConsumer(_scene(directed), "reader", [FIRST], {"auto_offset_reset": "earliest"}) as consumer:
        await consumer.getone()  # the others have arrived with it
        for number in range(TURNS * TURNS):
            await _cancelled(consumer.getone(), turns=number % TURNS)
            await consumer.check_position(FIRST)


@with_setup(CALM)
async def cancel_a_send_that_waits_for_memory(directed: DirectedRun) -> None:
    """It has taken its first records by then."""
    settings = {
        "acks": "all",
        "enable_idempotence": True,
        "max_block_ms": 2_000,
        "delivery_timeout_ms": 8_000,
        "batch_size": 1_024,
        "buffer_memory": 4_096,
        "max_request_size": 4_096,
        "partitioner": murmur2_partitioner,
    }
    async with WatchedProducer(_scene(directed), "writer", True, settings) as producer:
        await producer.check_partitions(TOPIC)
        records = [DrawnRecord(name=f"{n}-", topic=TOPIC, value=b"%d-" % n + b"." * 200) for n in range(TIMES)]
        await _cancelled(producer.send_many(TOPIC, records, 0, (), None), turns=1)


async def _cancelled(call: Coroutine[Any, Any, None], turns: int) -> None:
    """Cancel it after so many turns of the loop, if it lasts as long."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
