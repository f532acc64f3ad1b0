"""One replica as the files of a real broker show it, whether the broker runs or not. Only reads."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from minibroker.local_cluster.power_loss import list_segments
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import decode_records, iterate_headers


class FilesContent(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as its files show it."""

    log_end_offset: int = 0
    high_watermark: int | None = None
    """As of the last checkpoint."""
    epoch_file: tuple[tuple[int, int], ...] = ()
    records: tuple[str, ...] = ()

    def as_row(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


def read_files(log_directory: Path, partition: TopicPartition) -> FilesContent:
    """Empty if there is no replica. A file may be read while it is being written: the next read is complete."""
    directory = log_directory / checkpoints.partition_directory_name(partition)
    records: list[str] = []
    end = 0
    with contextlib.suppress(OSError, ProtocolError):
        for _, path in list_segments(directory):
            content = path.read_bytes()
            for position, header in iterate_headers(content):
                records += [(record.value or b"").decode() for record in decode_records(content, position)]
                end = header.end_offset
    marks: dict[TopicPartition, int] = {}
    epochs: tuple[tuple[int, int], ...] = ()
    with contextlib.suppress(OSError, ProtocolError):
        marks = checkpoints.parse_offset_checkpoint(
            (log_directory / checkpoints.HIGH_WATERMARK_CHECKPOINT).read_bytes()
        )
    with contextlib.suppress(OSError, ProtocolError):
        found = checkpoints.parse_epoch_checkpoint((directory / checkpoints.EPOCH_CHECKPOINT).read_bytes())
        epochs = tuple((epoch, start) for epoch, start in found)
    return FilesContent(
        log_end_offset=end, high_watermark=marks.get(partition), epoch_file=epochs, records=tuple(records)
    )
