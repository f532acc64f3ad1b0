"""Hostile peers against a real broker: other clients are served, memory stays bounded, each peer is logged once."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.protocol.ids import TopicPartition
from tests.system.hostile_peers import KINDS

pytestmark = pytest.mark.system

TOPIC = "t"
ATTACK_SECONDS = 2.0
PAUSE_SECONDS = 0.02
MEMORY_MAX_BYTES = 64 * 1024 * 1024
DELAY_MAX_SECONDS = 4.0
"""From sending a record to reading it back, with acks=all. Usually it is below 0.1 s, but machines are noisy."""
VALUE_BYTES = 20_000
"""More than fits in a connection's own buffer, so that shared memory is needed, too."""
WARM_UP_RECORDS = 3_000
"""60 MB: more than a broker caches of its last appends."""
CONNECTION = re.compile(r"connection (\d+) from 127\.0\.0\.1:\d+")


class Target(msgspec.Struct):
    """The broker under attack, and its memory before."""

    cluster: LocalCluster
    partition: int
    """A partition that it leads."""
    pid: int
    port: int
    memory_before: int

    def memory_peak(self) -> int:
        return memory_of(self.pid, "VmHWM")

    @property
    def log_path(self) -> Path:
        return self.cluster.process_log(1)


def memory_of(pid: int, field: str) -> int:
    """Bytes in memory: now (VmRSS), or at most since the last reset (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(pid: int) -> None:
    """Reset VmHWM."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def prepare(cluster: LocalCluster) -> Target:
    await cluster.up()
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(TOPIC, partitions=3)
    view = await cluster.look()
    partition = next(tp.partition for tp, state in sorted(view.partitions.items()) if state.leader_id == 1)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(WARM_UP_RECORDS):
            await producer.send(TOPIC, os.urandom(VALUE_BYTES), partition=partition)
    process = cluster.record.brokers[1].process
    assert process is not None
    before = memory_of(process.pid, "VmRSS")
    forget_peak(process.pid)
    return Target(cluster, partition, process.pid, cluster.record.brokers[1].port, before)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    cluster = LocalCluster(tmp_path_factory.mktemp("hostile"))
    try:
        yield asyncio.run(prepare(cluster))
    finally:
        asyncio.run(cluster.down())


async def produce_and_consume(target: Target, seconds: float) -> list[float]:
    """Produce and consume one record after the other; returns the seconds that each took."""
    delays: list[float] = []
    consumer = Consumer(bootstrap_servers=target.cluster.bootstrap_servers, auto_offset_reset="latest")
    async with Producer(bootstrap_servers=target.cluster.bootstrap_servers) as producer, consumer:
        first = await producer.send_and_wait(TOPIC, b"first", partition=target.partition)
        assert first.offset is not None
        consumer.assign([TopicPartition(TOPIC, target.partition)])
        consumer.seek(TopicPartition(TOPIC, target.partition), first.offset + 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            value = os.urandom(VALUE_BYTES)
            await producer.send_and_wait(TOPIC, value, partition=target.partition)
            record = await consumer.getone(timeout_ms=20_000)
            assert record.value == value
            delays.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_SECONDS)
    return delays


def attack(target: Target, kind: str) -> "subprocess.Popen[bytes]":
    arguments = [str(target.port), kind, str(ATTACK_SECONDS), TOPIC]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.system.hostile_peers", *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_hostile_peers_do_not_disturb_other_clients(target: Target, kind: str) -> None:
    written_before = target.log_path.stat().st_size
    attacker = attack(target, kind)
    try:
        delays = await produce_and_consume(target, ATTACK_SECONDS + 0.5)
        report = attacker.communicate(timeout=20)[0].decode().strip()
    finally:
        attacker.kill()
        attacker.wait()
    connections = int(report.split()[0])
    assert connections > 0, "no peer attacked"
    grown = target.memory_peak() - target.memory_before
    assert grown <= MEMORY_MAX_BYTES, f"{kind} ({report}): {grown / 2**20:.0f} MiB more than before"
    assert max(delays) <= DELAY_MAX_SECONDS, f"{kind} ({report}): {sorted(delays)[-5:]}"
    lines = target.log_path.read_bytes()[written_before:].decode().splitlines()
    logged = Counter(number for line in lines for number in CONNECTION.findall(line))
    assert not logged or max(logged.values()) == 1, f"more than one line: {logged.most_common(3)}"
    assert not [line for line in lines if "ERROR" in line or "CRITICAL" in line or "Traceback" in line]


def leader_changes(cluster: LocalCluster) -> list[str]:
    """The lines of the brokers' logs that say why a leader changed."""
    lines = [line for broker_id in (1, 2, 3) for line in cluster.process_log(broker_id).read_text().splitlines()]
    return sorted(line for line in lines if re.search(r"leader \d+ -> \d+|no answer|does not answer|refuses", line))


async def is_led_by_the_attacked(target: Target) -> bool:
    """Whether it leads its partition without a break, and all followers are in sync."""
    view = await target.cluster.wait_healthy(30)
    state = view.partitions[TopicPartition(TOPIC, target.partition)]
    return (state.leader_id, state.leader_epoch) == (1, 0)


async def attack_another_cluster(directory: Path) -> list[str]:
    """All attacks once more; returns the changes of leaders."""
    cluster = LocalCluster(directory)
    try:
        target = await prepare(cluster)
        for kind in KINDS:
            attacker = attack(target, kind)
            await produce_and_consume(target, ATTACK_SECONDS)
            attacker.wait(timeout=20)
        return [] if await is_led_by_the_attacked(target) else leader_changes(cluster)
    finally:
        await cluster.down()


async def test_the_broker_survives_all_attacks_as_leader(target: Target, tmp_path: Path) -> None:
    """The same process still leads its partitions. A machine that stands still for seconds moves a leader, too: so a
    change counts only if the same attacks on another cluster bring about one again."""
    assert target.cluster.process_state(1) == "running"
    if not await is_led_by_the_attacked(target):
        assert not await attack_another_cluster(tmp_path / "again"), leader_changes(target.cluster)
    assert max(await produce_and_consume(target, 1.0)) < DELAY_MAX_SECONDS
