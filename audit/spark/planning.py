"""Splits segments into ranges, ranges into portions of work, and partitions into shares to check. Reads at most an
index and one batch per cut."""

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from minibroker.audit.reading.regular_files import read_regular
from minibroker.audit.reading.replica import ReplicaFacts, segment_file
from minibroker.audit.reading.segment_reader import SEGMENT_BYTES_MAX, RangeTask, open_window
from minibroker.protocol.files.checkpoints import INDEX_FILE_BYTES_MAX, INDEX_SUFFIX, CorruptCheckpoint, decode_index
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import CorruptBatch

RANGE_BYTES_MAX = 64 * 1024 * 1024
RANGE_BYTES_MIN = 4 * 1024 * 1024
RANGES = 16
"""Enough to keep a few cores busy until the end."""
PORTION_BYTES_MAX = 1024 * 1024 * 1024
"""Read by one task at most: its result waits in the worker for the shuffle."""
TASK_BYTES = 4 * 1024
"""A range counts at least this much: a file must be opened, however little it holds."""
PORTIONS_PER_CORE = 4
"""Enough that no core waits long for the last one, few enough that starting them costs little (20 ms each, cold)."""
SHARE_BYTES = 4 * 1024 * 1024 * 1024
"""Log bytes that one task checks, if there are several partitions: it holds the rows of all of them at once (58 bytes
per batch; with batches of 1 KB that is 250 MB)."""


def range_bytes_for(total_bytes: int) -> int:
    """A range size that gives every core several ranges, none of them very small or very large."""
    return max(RANGE_BYTES_MIN, min(RANGE_BYTES_MAX, total_bytes // RANGES))


def portion_bytes_for(total_bytes: int, cores: int) -> int:
    """How much of the logs one task reads."""
    return max(RANGE_BYTES_MIN, min(PORTION_BYTES_MAX, -(-total_bytes // (PORTIONS_PER_CORE * cores))))


def plan_exact_ranges(facts: ReplicaFacts, range_bytes: int) -> list[RangeTask]:
    """Split segments only where the index and the batch there agree: for readers that do not stitch ranges."""
    tasks = []
    for segment, size in facts.segments:
        cuts = [0, *_exact_cuts(facts.directory, segment, size, range_bytes), size]
        tasks += [
            RangeTask(directory=facts.directory, segment=segment, size=size, start=start, end=end)
            for start, end in pairwise(cuts)
        ]
    return tasks


def _exact_cuts(directory: str, segment: int, size: int, range_bytes: int) -> list[int]:
    if size <= range_bytes or size > SEGMENT_BYTES_MAX:
        return []
    cuts: list[int] = []
    whole = RangeTask(directory=directory, segment=segment, size=size, start=0, end=size)
    try:
        entries = decode_index(read_regular(segment_file(directory, segment, INDEX_SUFFIX), INDEX_FILE_BYTES_MAX))
        positions = [entry.position for entry in entries]
        with open_window(whole) as window:
            for target in range(range_bytes, size, range_bytes):
                number = bisect_right(positions, target) - 1
                if number < 0 or positions[number] <= (cuts[-1] if cuts else 0):
                    continue
                header = window.check(positions[number])
                if header.last_offset == segment + entries[number].relative_offset:
                    cuts.append(positions[number])
    except (OSError, CorruptCheckpoint, CorruptBatch):
        pass  # a damaged index or log: longer ranges, same rows
    return cuts


def portions(tasks: Iterable[RangeTask], portion_bytes: int) -> list[list[RangeTask]]:
    """Group ranges up to a size: thousands of tiny partitions must not become thousands of Spark tasks."""
    filled: list[list[RangeTask]] = []
    room = 0
    for task in tasks:
        if room <= 0:
            filled.append([])
            room = portion_bytes
        filled[-1].append(task)
        room -= max(task.end - task.start, TASK_BYTES)
    return filled


def comparison_shares(replicas: Iterable[ReplicaFacts], cores: int) -> dict[TopicPartition, int]:
    """The share of each partition, numbered from 0: one share per core, or as many as keep each below SHARE_BYTES."""
    sizes: dict[TopicPartition, int] = {}
    for facts in replicas:
        partition = TopicPartition(facts.topic, facts.partition)
        sizes[partition] = sizes.get(partition, 0) + sum(size for _, size in facts.segments)
    count = min(len(sizes), max(cores, -(-sum(sizes.values()) // SHARE_BYTES)))
    loads = [(0, share) for share in range(count)]
    shares = {}
    for partition in sorted(sizes, key=lambda partition: (-sizes[partition], partition)):
        load, share = loads[0]
        # An empty partition counts, too: a thousand of them are work for every share.
        heapq.heapreplace(loads, (load + sizes[partition] + 1, share))
        shares[partition] = share
    return shares
