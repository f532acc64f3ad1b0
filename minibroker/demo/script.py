"""The demo's story, step by step. Each step is one function; `story.check` notes what must hold."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from minibroker.client.admin import AdminClient
from minibroker.command_line import human_bytes
from minibroker.demo.comparison import compare_with_input
from minibroker.demo.input_lines import InputLines
from minibroker.demo.ledger import Ledger
from minibroker.demo.sabotage import SABOTAGES, plant
from minibroker.demo.story import Story
from minibroker.demo.verdict import audit_files
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


async def run_demo(story: Story, directory: Path, lines: InputLines, sabotage: str | None, engine: str) -> None:
    """The whole story. Raises what stops it; failed checks are in the story."""
    story.tell(f"input: {lines.count} lines, {human_bytes(lines.total_bytes)}, from {lines.source}")
    if sabotage is not None:
        story.tell(f"sabotage: {sabotage} ({SABOTAGES[sabotage]})")
    ledger = Ledger()
    acked_file = directory / "acknowledged.tsv"
    cluster = LocalCluster(directory, brokers=3)
    with cluster.ownership:
        try:
            await _start(story, cluster)
            async with _watched(story, cluster):
                killed = await write_all(story, cluster, lines, ledger, acked_file, kill=sabotage != "no-kill")
                if killed is not None:
                    await _bring_back(story, cluster, killed)
                await compare_with_input(story, cluster.bootstrap_servers, TOPIC, lines, ledger)
                await _lose_power(story, cluster)
        finally:
            problems = await cluster.ownership.finish(cluster.down())
    story.tell("stopped the cluster" + "".join(f"; {problem}" for problem in problems))
    if sabotage is not None and sabotage != "no-kill":
        story.tell(f"sabotage: {plant(sabotage, [cluster.log_directory(i) for i in cluster.broker_ids])}")
    await audit_files(story, directory, acked_file, ledger, engine)


async def _start(story: Story, cluster: LocalCluster) -> None:
    story.progress("starting ZooKeeper and three brokers")
    before = story.seconds
    view = await cluster.up()
    took = story.seconds - before
    story.tell(
        f"started ZooKeeper ({cluster.record.zookeeper.connect}) and brokers {cluster.broker_ids}"
        f" ({cluster.bootstrap_servers}) in {took:.1f} s; controller is broker {view.controller_id}"
    )
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(
            TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
        )
    view = await _wait_for_topic(cluster)
    leaders = ", ".join(f"{name} led by {partition.leader_id}" for name, partition in view.partitions.items())
    story.tell(f"created topic {TOPIC}: replication factor 3, min.insync.replicas 2; {leaders}")


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
async def _watched(story: Story, cluster: LocalCluster) -> AsyncIterator[None]:
    """Print each election, truncation and ISR change as it happens."""
    watching = asyncio.create_task(_watch(story, cluster))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _watch(story: Story, cluster: LocalCluster) -> None:
    async with BrokerQueries("minibroker-demo-watch") as queries:
        stream = EventStream(queries, cluster.bootstrap_servers)
        with contextlib.suppress(NoAnswer):
            await stream.poll()  # what happened before
        async for events in stream.follow():
            for change in filter(None, map(told_by, events)):
                story.tell(f"  {change.what}")


async def _bring_back(story: Story, cluster: LocalCluster, killed: int) -> None:
    """Restart the killed broker and wait until all its replicas are in sync again."""
    before = story.seconds
    await cluster.start(killed)
    story.tell(f"restarted broker {killed}")
    try:
        await cluster.wait_healthy(HEAL_TIMEOUT_S, lambda why: story.progress(f"waiting for broker {killed}: {why}"))
    except ClusterFailed as error:
        story.check("the killed broker is back in sync", False, str(error))
        raise
    detail = f"broker {killed} is in every ISR {story.seconds - before:.1f} s after its restart"
    story.check("the killed broker is back in sync", True, detail)


async def _lose_power(story: Story, cluster: LocalCluster) -> None:
    """A leader loses power and is back within its ZooKeeper session: no replica may follow its truncated log."""
    name = TopicPartition(TOPIC, 1)
    before = (await cluster.look()).partitions[name]
    victim = before.leader_id
    started = story.seconds
    cuts = await cluster.lose_power(victim)
    lost = sum(cut.bytes_lost for cut in cuts)
    story.tell(f"broker {victim}, leader of {name}, lost power: {human_bytes(lost)} it had not synced are gone")
    await cluster.start(victim)
    took = story.seconds - started
    story.tell(f"broker {victim} is back {took:.1f} s later (ZooKeeper session: {SESSION_S:g} s)")
    try:
        after = await _wait_until_power_loss_is_healed(story, cluster, name, before.leader_epoch)
    except ClusterFailed as error:
        story.check("a leader that lost its tail does not lead on", False, str(error))
        raise
    story.check(
        "a leader that lost its tail does not lead on",
        True,
        f"{name}: broker {victim} epoch {before.leader_epoch}, then broker {after.partitions[name].leader_id} epoch"
        f" {after.partitions[name].leader_epoch}; all in sync after {story.seconds - started:.1f} s",
    )


async def _wait_until_power_loss_is_healed(
    story: Story, cluster: LocalCluster, name: TopicPartition, old_epoch: int
) -> ClusterView:
    deadline = asyncio.get_running_loop().time() + HEAL_TIMEOUT_S
    while True:
        left = max(0.1, deadline - asyncio.get_running_loop().time())
        view = await cluster.wait_healthy(left, lambda why: story.progress(f"after the power cut: {why}"))
        if view.partitions[name].leader_epoch > old_epoch:
            return view
        if left <= 0.1:
            raise ClusterFailed(f"{name} is still led under epoch {old_epoch} by the broker that lost its tail")
        await asyncio.sleep(0.1)
