"""The programs of docs/examples/ do what they say."""

import asyncio
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from minibroker import Consumer, Producer, ProducerFenced, Record, TopicPartition
from minibroker.protocol.ids import TOPIC_NAME_MAX_LENGTH, is_producer_name
from minibroker.testing import ClusterHarness, run, simulated
from minibroker.testing import cluster as simulated_cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SOURCE, OUTPUT = TopicPartition("words", 0), TopicPartition("lengths", 0)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------------- exactly once
exactly_once = example("exactly_once")


async def write_words(c: ClusterHarness, start: int, end: int) -> None:
    async with c.producer() as producer:
        await (await producer.send_many(SOURCE.topic, [b"x" * number for number in range(start, end)]))


async def results(c: ClusterHarness, count: int) -> list[Record]:
    """Without the markers."""
    found: list[Record] = []
    async with Consumer(OUTPUT.topic, bootstrap_servers=c.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(60):
            while len(found) < count:
                records = (await consumer.getmany(timeout_ms=500)).get(OUTPUT, [])
                found += [record for record in records if record.value is not None]
    return found


async def slow_length(value: bytes) -> bytes:
    await asyncio.sleep(0.5)
    return b"%d" % len(value)


def exactly(records: list[Record], count: int) -> bool:
    return [record.value for record in records] == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("victim", ["leader of the output", "leader of the source", "controller", "power"])
@pytest.mark.parametrize("seed", [1, 2])
def test_each_record_is_processed_once_whatever_dies(victim: str, seed: int) -> None:
    """Processes follow each other as a supervisor starts them, sometimes before the one before has ended."""

    async def story() -> None:
        async with simulated_cluster(brokers=3, seed=seed) as c:
            for topic in (SOURCE.topic, OUTPUT.topic):
                await c.create_topic(topic)
            await write_words(c, 0, 40)
            running = []
            for number in range(4):
                running.append(
                    asyncio.create_task(exactly_once.process(c.bootstrap_servers, SOURCE, OUTPUT, slow_length))
                )
                await asyncio.sleep(3.3)
                if number == 1:
                    dead = await strike(c, victim)
                if number == 2:
                    await c.start(dead)
            assert exactly(await results(c, 40), 40)
            *older, newest = running
            for task in older:
                with pytest.raises(ProducerFenced):
                    await task
            newest.cancel()
            await asyncio.wait([newest])
            assert (await c.audit()).success

    run(story())


async def strike(c: ClusterHarness, victim: str) -> int:
    if victim == "controller":
        dead = await c.controller()
        assert dead is not None
        await c.kill(dead)
        return dead
    if victim == "power":
        dead = await c.wait_for_leader(OUTPUT.topic)
        await c.power_loss(dead)
        return dead
    return await c.kill_leader(OUTPUT.topic if victim.endswith("output") else SOURCE.topic)


@simulated(brokers=3, seed=4)
async def test_a_process_that_was_asleep_does_nothing_twice(c: ClusterHarness) -> None:
    for topic in (SOURCE.topic, OUTPUT.topic):
        await c.create_topic(topic)
    await write_words(c, 0, 10)
    asleep = asyncio.Event()

    async def sleepy(value: bytes) -> bytes:
        if len(value) == 4:
            await asleep.wait()
        return b"%d" % len(value)

    older = asyncio.create_task(exactly_once.process(c.bootstrap_servers, SOURCE, OUTPUT, sleepy))
    await asyncio.sleep(5)
    async with c.running(exactly_once.process(c.bootstrap_servers, SOURCE, OUTPUT, exactly_once.length)):
        await asyncio.sleep(5)
        asleep.set()
        with pytest.raises(ProducerFenced):
            await older
        await write_words(c, 10, 20)
        assert exactly(await results(c, 20), 20)


@simulated(brokers=3, seed=5)
async def test_the_end_of_a_long_output_is_found(c: ClusterHarness) -> None:
    """Also behind many markers of processes that did nothing."""
    await c.create_topic(OUTPUT.topic)
    async with Producer(bootstrap_servers=c.bootstrap_servers) as producer:
        for number in range(3):
            await producer.send_and_wait(OUTPUT.topic, b"", headers={exactly_once.SOURCE_OFFSET: b"%d" % (7 + number)})
        await (await producer.send_many(OUTPUT.topic, [None] * 2_500))
    assert await exactly_once.last_source_offset(c.bootstrap_servers, OUTPUT, 2_503) == 9
    assert await exactly_once.last_source_offset(c.bootstrap_servers, OUTPUT, 2) == 8
    assert await exactly_once.last_source_offset(c.bootstrap_servers, OUTPUT, 0) is None


def test_long_names_of_topics_make_legal_names_of_producers() -> None:
    long = "x" * TOPIC_NAME_MAX_LENGTH
    partitions = [TopicPartition(topic, index) for topic in (long, long[1:] + "y", "a", "a-0") for index in (0, 10**9)]
    names = [exactly_once.producer_name(source, output) for source in partitions for output in partitions]
    assert all(is_producer_name(name) for name in names)
    assert len(set(names)) == len(names)
    assert exactly_once.producer_name(SOURCE, OUTPUT).startswith("lengths-0-"), "people read it in lists"


# ------------------------------------------------------------------------------------------------------- the README
def test_the_readme_shows_the_first_example() -> None:
    program = (EXAMPLES / "first_records.py").read_text()
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown in program


@pytest.mark.parametrize("earlier", [0, 3])
def test_the_first_example_reads_what_it_wrote(earlier: int, capsys: pytest.CaptureFixture[str]) -> None:
    """In a simulated cluster, of which the example's address is replaced."""
    text = (EXAMPLES / "first_records.py").read_text()

    async def story() -> None:
        async with simulated_cluster(brokers=3) as c:
            await c.create_topic("lines")
            async with c.producer() as producer:
                for _ in range(earlier):
                    await producer.send_and_wait("lines", b"another")
            program = text.replace("localhost:9092", c.bootstrap_servers).replace("asyncio.run(main())\n", "")
            names: dict[str, object] = {}
            exec(compile(program, "first_records.py", "exec"), names)
            main = names["main"]
            assert callable(main)
            await main()

    run(story())
    assert f"written to 0 at offset {earlier} under epoch 0" in (printed := capsys.readouterr().out)
    assert f"read from 0 at offset {earlier} b'key' b'value'" in printed


def test_an_example_without_arguments_says_which_it_needs() -> None:
    """It was a ValueError."""
    run = subprocess.run([sys.executable, EXAMPLES / "exactly_once.py"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (1, "usage: exactly_once.py HOST:PORT SOURCE_TOPIC OUTPUT_TOPIC\n")
