"""The swarm's loads in a cluster in which nothing fails: what the client library returns is wrong by itself."""

import asyncio
from collections import Counter

from minibroker.client.errors import UndeserializableRecord
from minibroker.simulation.swarm.final_checks import compare_history, compare_lookups
from minibroker.simulation.swarm.loads.all_loads import open_loads
from minibroker.simulation.swarm.loads.load_options import TOPIC, LoadOptions
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.parcels import pack_most
from minibroker.simulation.swarm.loads.watched_consumer import WatchedConsumer
from tests.mutants.directed_run import FIRST, ClusterSetup, DirectedRun, with_setup

SECONDS = 8.0
TIMES = 20
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


async def _run_loads(directed: DirectedRun, *clients: str) -> None:
    scene = _scene(directed, *clients)
    async with asyncio.TaskGroup() as group:
        for run in open_loads(scene):
            group.create_task(run())
        await asyncio.sleep(SECONDS)
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
    await _run_loads(directed, "topic_maker")


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
