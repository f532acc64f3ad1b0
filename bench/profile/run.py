"""Profiles the four hot paths on a real cluster of this machine.

Owns: the cluster, the load and the order of the windows. Each path is first measured undisturbed (its CPU time), then
sampled (where), then its system calls are counted; the load runs all the time.
"""

import asyncio
import re
import signal
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from minibroker import AdminClient, TopicPartition
from minibroker.bench.profile.cpu import CpuMeter
from minibroker.bench.profile.hot_path import HotPath, MeasuredWindow, hot_path
from minibroker.bench.profile.samplers import count_system_calls, find_py_spy, sample_stacks
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.processes import free_ports

TOPIC = "profiled"
WARM_S = 3.0
"""Time for connections, memory and the page cache to settle."""
STOP_S = 30.0
"""A load ends within one flush."""
METRIC = re.compile(r"^minibroker_(?P<name>[a-z_]+)(?:\{api=\"(?P<api>[a-z_]+)\"\})? (?P<value>[\d.e+]+)$", re.M)


class Counters(msgspec.Struct, frozen=True):
    """What a leader has served since its start."""

    produces: float
    fetches: float
    bytes_in: float
    bytes_out: float
    replicated: float

    def since(self, before: "Counters") -> "Counters":
        return Counters(
            *(
                now - then
                for now, then in zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
            )
        )


def parse_counters(page: str) -> Counters:
    """From the text of /metrics."""
    values = {(row["name"], row["api"]): float(row["value"]) for row in METRIC.finditer(page)}
    return Counters(
        produces=values[("network_requests_total", "produce")],
        fetches=values[("network_requests_total", "fetch")],
        bytes_in=values[("broker_topic_bytes_in_total", None)],
        bytes_out=values[("broker_topic_bytes_out_total", None)],
        replicated=values[("broker_topic_replication_bytes_out_total", None)],
    )


class Target(msgspec.Struct, frozen=True):
    """One path to profile."""

    name: str
    request: str
    pid: int
    requests: Callable[[Counters], float]
    moved_bytes: Callable[[Counters], float]


class ProfiledCluster:
    """Three brokers with open metrics, one partition, and one load at a time."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory / "data")
        self._metrics_ports = dict(zip(self.cluster.broker_ids, free_ports(3), strict=True))
        for broker_id, port in self._metrics_ports.items():
            self.cluster.record.brokers[broker_id].settings["metrics.listener"] = f"127.0.0.1:{port}"
        self.leader = self.follower = 0

    async def up(self) -> None:
        await self.cluster.up()
        async with AdminClient(bootstrap_servers=self.cluster.bootstrap_servers) as admin:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        view = await self.cluster.wait_healthy()
        partition = view.partitions[TopicPartition(TOPIC, 0)]
        self.leader = partition.leader_id
        controller = view.controller_id
        self.follower = next(i for i in self.cluster.broker_ids if i not in (self.leader, controller))

    def pid(self, broker_id: int) -> int:
        process = self.cluster.record.brokers[broker_id].process
        assert process is not None
        return process.pid

    async def counters(self) -> Counters:
        """Of the leader."""
        address = f"http://127.0.0.1:{self._metrics_ports[self.leader]}/metrics"

        def read() -> str:
            with urllib.request.urlopen(address, timeout=10) as answer:
                text: str = answer.read().decode()
                return text

        return parse_counters(await asyncio.to_thread(read))

    @asynccontextmanager
    async def load(self, what: str, *words: str) -> AsyncIterator[int]:
        """The process id of a running load."""
        module = "minibroker.bench.profile.load"
        servers = self.cluster.bootstrap_servers
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, what, servers, TOPIC, *words)
        try:
            await asyncio.sleep(WARM_S)
            if process.returncode is not None:
                raise RuntimeError(f"the load '{what}' ended unexpectedly with exit code {process.returncode}")
            yield process.pid
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                try:
                    async with asyncio.timeout(STOP_S):
                        await process.wait()
                finally:
                    if process.returncode is None:
                        process.kill()

    async def window(self, targets: list[Target], during: Awaitable[object]) -> list[MeasuredWindow]:
        """The work of each target while `during` ran."""
        before, started = await self.counters(), time.monotonic()
        meters = [CpuMeter(target.pid) for target in targets]
        await during
        cpu_windows = [meter.read() for meter in meters]
        seconds, done = time.monotonic() - started, (await self.counters()).since(before)
        return [
            MeasuredWindow(seconds, max(1.0, target.requests(done)), target.moved_bytes(done) / 1e6, cpu)
            for target, cpu in zip(targets, cpu_windows, strict=True)
        ]

    async def profile(self, targets: list[Target], seconds: float, progress: Callable[[str], None]) -> list[HotPath]:
        progress("undisturbed")
        plain = await self.window(targets, asyncio.sleep(seconds))
        progress("system calls")
        counting = asyncio.ensure_future(count_system_calls([target.pid for target in targets], seconds))
        traced = await self.window(targets, counting)
        paths = []
        for number, target in enumerate(targets):
            progress(target.name)
            sampling = asyncio.ensure_future(sample_stacks(target.pid, seconds))
            (sampled,) = await self.window([target], sampling)
            calls = counting.result().get(target.pid)
            paths.append(
                hot_path(
                    target.name,
                    target.request,
                    plain[number],
                    sampled,
                    sampling.result(),
                    None if calls is None else traced[number],
                    calls or [],
                )
            )
        return paths


async def profile_hot_paths(
    directory: Path, record_bytes: int, batch_bytes: int, seconds: float, progress: Callable[[str], None]
) -> list[HotPath]:
    """Leader's produce, follower's fetch, client's send, consumer's read. Raises NoSampler, ClusterFailed."""
    find_py_spy()
    profiled = ProfiledCluster(directory)
    try:
        progress("starting three brokers")
        await profiled.up()
        produce = f"produce request, batch.size {batch_bytes}"
        async with profiled.load("produce", str(record_bytes), str(batch_bytes)) as producer:
            paths = await profiled.profile(
                [
                    Target("leader: produce", produce, profiled.pid(profiled.leader), _produces, _bytes_in),
                    Target(
                        "follower: fetch and append",
                        "fetch of one follower",
                        profiled.pid(profiled.follower),
                        lambda done: done.fetches / 2,
                        lambda done: done.replicated / 2,
                    ),
                    Target("producer: send", produce, producer, _produces, _bytes_in),
                ],
                seconds,
                progress,
            )
        async with profiled.load("consume") as consumer:
            paths += await profiled.profile(
                [
                    Target("consumer: read", "fetch", consumer, _fetches, _bytes_out),
                    Target("leader: fetch of a consumer", "fetch", profiled.pid(profiled.leader), _fetches, _bytes_out),
                ],
                seconds,
                progress,
            )
        return paths
    finally:
        await profiled.cluster.down(timeout_s=10.0, wipe=True)


def _produces(done: Counters) -> float:
    return done.produces


def _bytes_in(done: Counters) -> float:
    return done.bytes_in


def _fetches(done: Counters) -> float:
    """Two followers that wait for records fetch four times per second: a hundredth of a consumer's requests."""
    return done.fetches


def _bytes_out(done: Counters) -> float:
    return done.bytes_out
