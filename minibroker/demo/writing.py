"""The demo writes every line through the public Producer, and kills the leader of lines-0 meanwhile.

Owns: when the leader is killed, and what is measured: the new leader, when writes went on, how many records carry the
new epoch. Leaves to others: retries, which the Producer does.
"""

import asyncio
import contextlib
from pathlib import Path

from minibroker.client.producer.producer import Producer
from minibroker.command_line import human_bytes
from minibroker.demo.input_lines import InputLines
from minibroker.demo.ledger import Ledger
from minibroker.demo.output import DemoOutput
from minibroker.local_cluster.broker_process import SESSION_TIMEOUT_MS
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.observation.cluster_view import partitions_of
from minibroker.protocol.ids import TopicPartition
from minibroker.records.record_sender import RecordSender

VICTIM = TopicPartition("lines", 0)
KILL_AT = 0.4
"""Share of the records that are acknowledged when the leader is killed."""
HOLD_AT = 0.6
"""Share of the records that are sent before the kill at most, so that even a small input meets a dead leader."""
NEW_EPOCH_SHARE_MIN = 0.1
GO_ON_WITHIN_S = SESSION_TIMEOUT_MS / 1000 + 2.5
"""ZooKeeper needs the session timeout to notice the failure; the rest is for the election and the client."""
BATCHES_WANTED = 400
"""A small input gets small batches, so that each partition has enough of them."""
ELECTION_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.05
YIELD_EVERY = 256


class _LeaderKill:
    """The kill of the leader, and what followed."""

    def __init__(self, output: DemoOutput, cluster: LocalCluster, ledger: Ledger, needed: int, wanted: bool) -> None:
        self._output = output
        self._cluster = cluster
        self._ledger = ledger
        self._needed = needed
        self._wanted = wanted
        self._count = 0
        self._due = asyncio.Event()
        self.over = asyncio.Event()
        """Set when the leader was killed, or the kill was left out on purpose."""
        self.broker: int | None = None
        self.old_epoch = -1
        self.at_s = 0.0
        self.went_on_s: float | None = None

    def acknowledged(self, partition: TopicPartition, offset: int, leader_epoch: int, line: int) -> None:
        """Called once per record."""
        self._ledger.acknowledged(partition, offset, leader_epoch, line)
        self._count += 1
        if self._count == self._needed:
            self._due.set()
        if self.went_on_s is None and self.at_s and partition == VICTIM and leader_epoch > self.old_epoch:
            self.went_on_s = self._output.seconds

    async def happen(self) -> None:
        """Wait for the moment, kill the leader, and print the election."""
        try:
            await self._due.wait()
            await self._kill()
        finally:
            self.over.set()
        if self.broker is not None:
            await self._print_election()

    async def _kill(self) -> None:
        before = (await self._cluster.look([VICTIM.topic])).partitions[VICTIM]
        self.old_epoch = before.leader_epoch
        share = f"{self._count} records are acknowledged"
        if not self._wanted:
            self._output.tell(f"{share}; the kill is left out")
            return
        self.broker = before.leader_id
        self.at_s = self._output.seconds
        await self._cluster.kill(self.broker)
        epoch = f"epoch {before.leader_epoch}"
        self._output.tell(f"{share}; killed broker {self.broker}, leader of {VICTIM} ({epoch}), with SIGKILL")

    async def _print_election(self) -> None:
        async with BrokerQueries("minibroker-demo-election") as queries:
            while True:
                with contextlib.suppress(NoAnswer):
                    answer = await queries.metadata(self._cluster.answering_servers(), [VICTIM.topic], timeout_s=1.0)
                    now = partitions_of(answer).get(VICTIM)
                    if now is not None and now.leader_id >= 0 and now.leader_epoch > self.old_epoch:
                        break
                await asyncio.sleep(LOOK_EVERY_S)
        seconds = self._output.seconds - self.at_s
        election = f"broker {now.leader_id} was elected leader of {VICTIM} with epoch {now.leader_epoch}"
        self._output.tell(f"{election}, {seconds:.1f} s after the kill; ISR {sorted(now.isr_nodes)}")


async def write_all(
    output: DemoOutput, cluster: LocalCluster, lines: InputLines, ledger: Ledger, acked_file: Path, *, kill: bool
) -> int | None:
    """Write every line; returns the killed broker, None without `kill`. The checks go into the output."""
    leader_kill = _LeaderKill(output, cluster, ledger, int(lines.count * KILL_AT), kill)
    batch_size = max(4_096, min(131_072, lines.total_bytes // BATCHES_WANTED))
    started = output.seconds
    report = acked_file.open("wb", 1 << 20)
    killing = asyncio.create_task(leader_kill.happen())
    try:
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, client_id="demo", acks="all", batch_size=batch_size
        ) as producer:
            sender = RecordSender(producer, VICTIM.topic, report=report, on_acknowledged=leader_kill.acknowledged)
            await _send(output, sender, lines, leader_kill)
            finishing = asyncio.create_task(sender.finish())
            while not finishing.done():
                _show(output, sender, lines)
                await asyncio.wait([finishing], timeout=0.2)
            tally = await finishing
            sender.end_report()
        if leader_kill.over.is_set():
            await asyncio.wait_for(killing, ELECTION_TIMEOUT_S)
    finally:
        killing.cancel()
        report.close()
    seconds = output.seconds - started
    output.tell(f"wrote {tally.acknowledged} records in {seconds:.1f} s ({human_bytes(lines.total_bytes / seconds)}/s)")
    failure = f"; first failure: {tally.first_failure}" if tally.first_failure else ""
    detail = f"{tally.acknowledged} of {lines.count} acknowledged with acks=all{failure}"
    output.check("every record is acknowledged", tally.acknowledged == lines.count, detail)
    _check_election(output, leader_kill, ledger)
    return leader_kill.broker


async def _send(output: DemoOutput, sender: RecordSender, lines: InputLines, leader_kill: _LeaderKill) -> None:
    hold_at = int(lines.count * HOLD_AT)
    for number in range(lines.count):
        await sender.send(lines[number], tag=number)
        if number % YIELD_EVERY == 0:
            _show(output, sender, lines)
            await asyncio.sleep(0)
        if number == hold_at:
            while not leader_kill.over.is_set():
                _show(output, sender, lines)
                sender.collect()
                await asyncio.sleep(0.005)


def _show(output: DemoOutput, sender: RecordSender, lines: InputLines) -> None:
    tally = sender.tally
    output.progress(f"{100 * tally.acknowledged / lines.count:.0f} % of {lines.count} records acknowledged")


def _check_election(output: DemoOutput, leader_kill: _LeaderKill, ledger: Ledger) -> None:
    epochs = ", ".join(f"{count} under epoch {epoch}" for epoch, count in sorted(ledger.epochs[VICTIM].items()))
    if leader_kill.went_on_s is None:
        why = f"no election happened: all records of {VICTIM} carry one epoch ({epochs})"
        output.check("a new leader takes over", False, why)
        return
    seconds = leader_kill.went_on_s - leader_kill.at_s
    goal = f"goal: {GO_ON_WITHIN_S:g} s, ZooKeeper session + 2.5 s"
    output.check("a new leader takes over", True, f"writes to {VICTIM} went on {seconds:.1f} s after the kill ({goal})")
    share = ledger.share_of_epoch_above(VICTIM, leader_kill.old_epoch)
    name = f"a tenth of {VICTIM} carries the new epoch"
    output.check(name, share >= NEW_EPOCH_SHARE_MIN, f"{100 * share:.0f} %: {epochs}")
