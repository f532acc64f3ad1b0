"""The files of a simulated broker: records, epoch file, high watermark; and their export to a directory for the audit.

Owns: reading simulated disks from outside, whether their broker runs or not.
"""

from pathlib import Path

import msgspec

from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import decode_records, iterate_headers
from minibroker.runtime.ports import FileMissing
from minibroker.simulation.world.exported_disks import files_below
from minibroker.simulation.world.storage import DirectoryNode, FileNode, SimulatedStorage

LOG_DIRECTORY = "/data/log"


class DiskContent(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as its files show it."""

    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int | None = None
    """As of the last checkpoint."""
    epoch_file: tuple[tuple[int, int], ...] = ()
    records: tuple[str, ...] = ()


def read_disk(storage: SimulatedStorage, partition: TopicPartition) -> DiskContent:
    """The replica on this machine's disk; empty if there is none."""
    name = f"{LOG_DIRECTORY}/{checkpoints.partition_directory_name(partition)}"
    try:
        directory = storage.find_directory(name)
    except FileMissing:
        return DiskContent()
    segments: dict[int, bytes] = {}
    for file_name, node in directory.entries.items():
        parsed = checkpoints.parse_segment_file_name(file_name)
        if parsed is not None and parsed[1] == checkpoints.LOG_SUFFIX and isinstance(node, FileNode):
            segments[parsed[0]] = bytes(node.content)
    records: list[str] = []
    end = max(segments, default=0)
    for base in sorted(segments):
        for position, header in iterate_headers(segments[base]):
            records += [(record.value or b"").decode() for record in decode_records(segments[base], position)]
            end = header.end_offset
    epochs = _content(storage, f"{name}/{checkpoints.EPOCH_CHECKPOINT}")
    high_watermarks = _content(storage, f"{LOG_DIRECTORY}/{checkpoints.HIGH_WATERMARK_CHECKPOINT}")
    recorded = _content(storage, f"{name}/{checkpoints.LOG_START}")
    start = 0 if recorded is None else checkpoints.parse_log_start(recorded)[0].offset
    return DiskContent(
        log_start_offset=max(start, min(segments, default=0)),
        log_end_offset=end,
        high_watermark=None
        if high_watermarks is None
        else checkpoints.parse_offset_checkpoint(high_watermarks).get(partition),
        epoch_file=() if epochs is None else tuple((e, s) for e, s in checkpoints.parse_epoch_checkpoint(epochs)),
        records=tuple(records),
    )


def _content(storage: SimulatedStorage, path: str) -> bytes | None:
    try:
        return bytes(storage.find_file(path).content)
    except FileMissing:
        return None


def sync_all(storage: SimulatedStorage) -> None:
    """Put everything on this disk on stable storage."""
    nodes: list[DirectoryNode | FileNode] = [storage.root]
    while nodes:
        node = nodes.pop()
        node.sync()
        if isinstance(node, DirectoryNode):
            nodes += node.entries.values()


def export(storage: SimulatedStorage, directory: Path) -> None:
    """Write a broker's log directory, as it is on the simulated disk, to a real one."""
    for path, content in files_below(storage, LOG_DIRECTORY):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
