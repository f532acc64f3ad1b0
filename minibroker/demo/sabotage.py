"""The errors that DEMO_SABOTAGE plants, to prove that the demo finds them: one per run, in files of a stopped cluster.

Owns: what each error does to the segment files. `no-kill` does nothing here: the script leaves the kill out.
"""

from pathlib import Path

from minibroker.local_cluster.power_loss import list_segments
from minibroker.offline.segment_files import SegmentBatch, open_segment, walk

SABOTAGES = {
    "drop-record": "the last acknowledged batch of lines-1 is cut off all three replicas",
    "flip-bit": "one bit of one replica of lines-2 is flipped",
    "swap-batch": "two batches of one replica of lines-0 change places",
    "no-kill": "the leader of lines-0 is not killed",
}


def plant(name: str, log_directories: list[Path]) -> str:
    """Plant it in a stopped cluster; returns what was done and where."""
    if name == "drop-record":
        return _drop_last_batch([directory / "lines-1" for directory in log_directories])
    if name == "flip-bit":
        return _flip_bit(log_directories[1] / "lines-2")
    if name == "swap-batch":
        return _swap_batches(log_directories[-1] / "lines-0")
    raise AssertionError(f"{name} changes no files")


def _batches(segment: Path) -> list[SegmentBatch]:
    return [item for item in walk(open_segment(segment)) if isinstance(item, SegmentBatch)]


def _fullest_segment(partition: Path) -> Path:
    return max((path for _, path in list_segments(partition)), key=lambda path: path.stat().st_size)


def _drop_last_batch(partitions: list[Path]) -> str:
    dropped = []
    for partition in partitions:
        segment = [path for _, path in list_segments(partition) if path.stat().st_size][-1]
        last = _batches(segment)[-1]
        with segment.open("r+b") as file:
            file.truncate(last.position)
        dropped.append(f"offsets {last.header.base_offset} to {last.header.last_offset} of {segment}")
    return "cut off: " + "; ".join(dropped)


def _flip_bit(partition: Path) -> str:
    segment = _fullest_segment(partition)
    batches = _batches(segment)
    batch = batches[len(batches) // 2]
    position = batch.position + batch.header.size_bytes - 2
    with segment.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    return f"flipped a bit at position {position} of {segment}"


def _swap_batches(partition: Path) -> str:
    segment = _fullest_segment(partition)
    batches = _batches(segment)
    first, second = batches[len(batches) // 2 - 1 : len(batches) // 2 + 1]
    content = segment.read_bytes()
    middle, end = second.position, second.position + second.header.size_bytes
    with segment.open("r+b") as file:
        file.seek(first.position)
        file.write(content[middle:end] + content[first.position : middle])
    return f"swapped the batches at offsets {first.header.base_offset} and {second.header.base_offset} of {segment}"
