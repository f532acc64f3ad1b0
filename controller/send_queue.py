"""The orders that still wait for one broker, in sequence and bounded. Pure.

Owns: the order of what is queued for one broker, and its merging. Leaves to others: connections (`broker_channel`).

Theory (replication rules, section 9). A broker must get decisions in the order in which they were taken; but of several
waiting decisions about one partition only the last one matters, because each holds the complete state of that partition
and its epochs. So neighbours of one kind are merged at once. A broker that hangs for minutes while its session lives
would still collect an endless sequence of alternating kinds. Such a sequence is compacted: first all metadata (the
cache may run ahead of the logs), then, in order, the last LeaderAndIsr and the last StopReplica of each partition. What
remains is bounded by the number of partitions, not by time.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from minibroker.controller.core.instructions import Instruction, LeaderAndIsr, UpdateMetadata
from minibroker.protocol.wire.messages import LiveBroker

BATCHES_MAX = 50
"""Batches a queue may hold before it is compacted. The queue of a healthy broker holds a handful."""

InstructionKey: TypeAlias = tuple[str, str, int]


class InstructionBatch(msgspec.Struct, kw_only=True):
    """Instructions of one kind. None: UpdateMetadata that only names the live brokers."""

    kind: type[Instruction]
    live_brokers: tuple[LiveBroker, ...]
    instructions: dict[InstructionKey, Instruction]


class SendQueue:
    """First-in, first-out queue of batches."""

    def __init__(self) -> None:
        self._batches: list[InstructionBatch] = []

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, live_brokers: tuple[LiveBroker, ...], instructions: Sequence[Instruction]) -> None:
        kind = type(instructions[0]) if instructions else UpdateMetadata
        assert all(type(each) is kind for each in instructions), "a batch is of one kind"
        if not self._batches or self._batches[-1].kind is not kind:
            self._batches.append(InstructionBatch(kind=kind, live_brokers=live_brokers, instructions={}))
        _add(self._batches[-1], live_brokers, instructions)
        if len(self._batches) > BATCHES_MAX:
            self._batches = compact(self._batches)

    def take(self) -> InstructionBatch | None:
        """The oldest batch; nothing is merged into it from now on."""
        return self._batches.pop(0) if self._batches else None


def compact(batches: list[InstructionBatch]) -> list[InstructionBatch]:
    """The same contents in as few batches as the order allows."""
    newest_brokers = batches[-1].live_brokers
    metadata = InstructionBatch(kind=UpdateMetadata, live_brokers=newest_brokers, instructions={})
    last: dict[tuple[type[Instruction], InstructionKey], int] = {}
    for index, batch in enumerate(batches):
        if batch.kind is UpdateMetadata:
            _add(metadata, newest_brokers, list(batch.instructions.values()))
        else:
            last.update({(batch.kind, key): index for key in batch.instructions})
    found = [metadata]
    for index, batch in enumerate(batches):
        kept = [each for key, each in batch.instructions.items() if last.get((batch.kind, key)) == index]
        if not kept:
            continue
        if found[-1].kind is not batch.kind:
            found.append(InstructionBatch(kind=batch.kind, live_brokers=newest_brokers, instructions={}))
        _add(found[-1], newest_brokers, kept)
    return found


def _add(batch: InstructionBatch, live_brokers: tuple[LiveBroker, ...], instructions: Sequence[Instruction]) -> None:
    """The last instruction about a partition counts; `is_new` stays true until the broker has got it."""
    batch.live_brokers = live_brokers
    for each in instructions:
        key = (each.partition.topic, each.topic.topic_id, each.partition.partition)
        earlier = batch.instructions.pop(key, None)
        if isinstance(earlier, LeaderAndIsr) and isinstance(each, LeaderAndIsr) and earlier.content.is_new:
            each = LeaderAndIsr(each.partition, each.topic, msgspec.structs.replace(each.content, is_new=True))
        batch.instructions[key] = each
