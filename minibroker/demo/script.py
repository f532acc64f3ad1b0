"""The demo, step by step. Each step is one function; `output.check` notes what must hold."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from minibroker.client.admin import AdminClient
from minibroker.command_line import human_bytes
from minibroker.demo.comparison import compare_with_input
from minibroker.demo.input_lines import InputLines
from minibroker.demo.ledger import Ledger
from minibroker.demo.output import DemoOutput
from minibroker.demo.sabotage import SABOTAGES, plant
from minibroker.demo.writing import write_all
from minibroker.local_cluster.broker_process import SESSION_TIMEOUT_MS
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.observation.cluster_changes import told_by
from minibroker.observation.cluster_view import ClusterView
from minibroker.observation.event_stream import EventStream
from minibroker.protocol.ids import TopicPartition

TOPIC = "lines"
PARTITIONS = 3
HEAL_TIMEOUT_S = 60.0
"""A restarted broker fetches at most the 64 MB again."""
SESSION_S = SESSION_TIMEOUT_MS / 1000


class DemoFailed(Exception):
    """The demo could not go on; the message is one sentence."""


async def run_demo(
    output: DemoOutput, directory: Path, lines: InputLines, sabotage: str | None, ledger: Ledger, acked_file: Path
) -> None:
    """All but the audit. Raises what stops it; failed checks are in the output."""
    output.tell(f"input: {lines.count} lines, {human_bytes(lines.total_bytes)}, from {lines.source}")
    if sabotage is not None:
        output.tell(f"sabotage: {sabotage} ({SABOTAGES[sabotage]})")
    cluster = LocalCluster(directory, brokers=3)
    with cluster.ownership:
        try:
            await _start(output, cluster)
            async with _watched(output, cluster):
                killed = await write_all(output, cluster, lines, ledger, acked_file, kill=sabotage != "no-kill")
                if killed is not None:
                    await _bring_back(output, cluster, killed)
                await compare_with_input(output, cluster.bootstrap_servers, TOPIC, lines, ledger)
                await _lose_power(output, cluster)
        finally:
            problems = await cluster.ownership.finish(cluster.down())
    output.tell("stopped the cluster" + "".join(f"; {problem}" for problem in problems))
    if sabotage is not None and sabotage != "no-kill":
        output.tell(f"sabotage: {plant(sabotage, [cluster.log_directory(i) for i in cluster.broker_ids])}")


async def _start(output: DemoOutput, cluster: LocalCluster) -> None:
    output.progress("starting ZooKeeper and three brokers")
    before = output.seconds
    view = await cluster.up()
    took = output.seconds - before
    output.tell(
        f"started ZooKeeper ({cluster.record.zookeeper.connect}) and brokers {cluster.broker_ids}"
        f" ({cluster.bootstrap_servers}) in {took:.1f} s; controller is broker {view.controller_id}"
    )
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(
            TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
        )
    view = await _wait_for_topic(cluster)
    leaders = ", ".join(f"{name} led by {partition.leader_id}" for name, partition in view.partitions.items())
    output.tell(f"created topic {TOPIC}: replication factor 3, min.insync.replicas 2; {leaders}")


async def _wait_for_topic(cluster: LocalCluster) -> ClusterView:
    deadline = asyncio.get_running_loop().time() + HEAL_TIMEOUT_S
    while True:
        view = await cluster.wait_healthy(HEAL_TIMEOUT_S)
        if len(view.partitions) == PARTITIONS:
            return view
        if asyncio.get_running_loop().time() > deadline:
            raise DemoFailed(f"topic {TOPIC} has {len(view.partitions)} partitions after {HEAL_TIMEOUT_S:g} s")
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _watched(output: DemoOutput, cluster: LocalCluster) -> AsyncIterator[None]:
    """Print each election, truncation and ISR change as it happens."""
    watching = asyncio.create_task(_watch(output, cluster))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _watch(output: DemoOutput, cluster: LocalCluster) -> None:
    async with BrokerQueries("minibroker-demo-watch") as queries:
        stream = EventStream(queries, cluster.bootstrap_servers)
        with contextlib.suppress(NoAnswer):
            await stream.poll()  # what happened before
        async for events in stream.follow():
            for change in filter(None, map(told_by, events)):
                output.tell(f"  {change.what}")


async def _bring_back(output: DemoOutput, cluster: LocalCluster, killed: int) -> None:
    """Restart the killed broker and wait until all its replicas are in sync again."""
    before = output.seconds
    await cluster.start(killed)
    output.tell(f"restarted broker {killed}")
    try:
        await cluster.wait_healthy(HEAL_TIMEOUT_S, lambda why: output.progress(f"waiting for broker {killed}: {why}"))
    except ClusterFailed as error:
        output.check("the killed broker is back in sync", False, str(error))
        raise
    detail = f"broker {killed} is in every ISR {output.seconds - before:.1f} s after its restart"
    output.check("the killed broker is back in sync", True, detail)


async def _lose_power(output: DemoOutput, cluster: LocalCluster) -> None:
    """A leader loses power and is back within its ZooKeeper session: no replica may follow its truncated log."""
    name = TopicPartition(TOPIC, 1)
    before = (await cluster.look()).partitions[name]
    victim = before.leader_id
    started = output.seconds
    cuts = await cluster.lose_power(victim)
    lost = sum(cut.bytes_lost for cut in cuts)
    output.tell(f"broker {victim}, leader of {name}, lost power: {human_bytes(lost)} it had not synced are gone")
    await cluster.start(victim)
    took = output.seconds - started
    output.tell(f"broker {victim} is back {took:.1f} s later (ZooKeeper session: {SESSION_S:g} s)")
    try:
        after = await _wait_until_power_loss_is_healed(output, cluster, name, before.leader_epoch)
    except ClusterFailed as error:
        output.check("a leader that lost its tail does not lead on", False, str(error))
        raise
    output.check(
        "a leader that lost its tail does not lead on",
        True,
        f"{name}: broker {victim} epoch {before.leader_epoch}, then broker {after.partitions[name].leader_id} epoch"
        f" {after.partitions[name].leader_epoch}; all in sync after {output.seconds - started:.1f} s",
    )


async def _wait_until_power_loss_is_healed(
    output: DemoOutput, cluster: LocalCluster, name: TopicPartition, old_epoch: int
) -> ClusterView:
    deadline = asyncio.get_running_loop().time() + HEAL_TIMEOUT_S
    while True:
        left = max(0.1, deadline - asyncio.get_running_loop().time())
        view = await cluster.wait_healthy(left, lambda why: output.progress(f"after the power cut: {why}"))
        if view.partitions[name].leader_epoch > old_epoch:
            return view
        if left <= 0.1:
            raise ClusterFailed(f"{name} is still led under epoch {old_epoch} by the broker that lost its tail")
        await asyncio.sleep(0.1)
