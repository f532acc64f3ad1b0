"""A simulated power loss: cuts off a killed broker's logs what was written but not synced.

Owns: which bytes of a log directory survive. It takes the worst case that a disk allows: of every log only whole
batches below its recovery point stay (`recovery-point-offset-checkpoint`: offsets below it are known to be synced).
Index files stay as they are: a broker rebuilds them from the recovery point on. Afterwards `meta.properties` names
another boot id, as after a reboot. Leaves to others: processes; the caller has killed the broker.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from minibroker.protocol.files import checkpoints, meta_properties
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import HEADER_BYTES, CorruptBatch, read_header


class CutTail(msgspec.Struct, frozen=True, kw_only=True):
    """What one log lost."""

    partition: TopicPartition
    recovery_point: int
    bytes_kept: int
    bytes_lost: int


def cut_unsynced_tails(log_directory: Path) -> list[CutTail]:
    """Cut each log of a stopped broker above its recovery point; returns what each log kept and lost."""
    recovery_points = read_recovery_points(log_directory)
    cuts = []
    for directory in sorted(path for path in log_directory.iterdir() if path.is_dir()):
        partition = checkpoints.parse_partition_directory_name(directory.name)
        if partition is not None:
            cuts.append(_cut_log(directory, partition, recovery_points.get(partition, 0)))
    _change_boot_id(log_directory / checkpoints.META_PROPERTIES)
    return cuts


def _change_boot_id(file: Path) -> None:
    """Let the broker see that its machine has rebooted."""
    try:
        meta = meta_properties.parse_meta_properties(file.read_bytes())
    except (FileNotFoundError, checkpoints.CorruptCheckpoint):
        return  # the broker itself reports the problem
    changed = msgspec.structs.replace(meta, boot_id=f"{meta.boot_id}-lost-power")
    file.write_bytes(meta_properties.format_meta_properties(changed))


def read_recovery_points(log_directory: Path) -> dict[TopicPartition, int]:
    """The recovery points as last written; empty if the broker never wrote any."""
    try:
        content = (log_directory / checkpoints.RECOVERY_POINT_CHECKPOINT).read_bytes()
    except FileNotFoundError:
        return {}
    return checkpoints.parse_offset_checkpoint(content)


def _cut_log(directory: Path, partition: TopicPartition, recovery_point: int) -> CutTail:
    kept = lost = 0
    cut = False
    for base_offset, segment in list(list_segments(directory)):
        size = segment.stat().st_size
        if cut:  # a file after the cut was never synced: all of it is lost
            _remove_segment(segment)
            lost += size
            continue
        end = _end_of_synced(segment, recovery_point) if base_offset < recovery_point else 0
        if end < size:
            with segment.open("r+b") as file:
                file.truncate(end)
            cut = True
        kept, lost = kept + end, lost + size - end
    return CutTail(partition=partition, recovery_point=recovery_point, bytes_kept=kept, bytes_lost=lost)


def list_segments(directory: Path) -> Iterator[tuple[int, Path]]:
    """(base offset, path) of a partition's `.log` files, in order of offsets."""
    for path in sorted(directory.iterdir()):
        parsed = checkpoints.parse_segment_file_name(path.name)
        if parsed is not None and parsed[1] == checkpoints.LOG_SUFFIX:
            yield parsed[0], path


def _end_of_synced(segment: Path, recovery_point: int) -> int:
    """The end position of the last batch that ends at or below the recovery point."""
    position = 0
    with segment.open("rb") as file:
        while True:
            file.seek(position)
            head = file.read(HEADER_BYTES)
            try:
                header = read_header(head)
            except CorruptBatch:
                return position
            if header.end_offset > recovery_point:
                return position
            position += header.size_bytes


def _remove_segment(segment: Path) -> None:
    for suffix in (checkpoints.LOG_SUFFIX, checkpoints.INDEX_SUFFIX, checkpoints.TIME_INDEX_SUFFIX):
        segment.with_suffix(suffix).unlink(missing_ok=True)
