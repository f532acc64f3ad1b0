"""Decodes the next batch that a cursor holds, and handles batches that cannot be decoded.

Owns: how damage in a fetched chunk becomes the user's error. Leaves to others: returning records to the user.
"""

from collections.abc import Callable

from minibroker.client.client_log import ClientLog
from minibroker.client.consumer.cursor import Cursor
from minibroker.client.consumer.records import RecordTuple, read_batch
from minibroker.client.errors import CorruptRecords, UndecodableRecords, Where
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch, UndecodableBatch


class ChunkReader:
    """How one consumer wants its batches read."""

    def __init__(
        self, check_crcs: bool, skips_undecodable: bool, where: Callable[[TopicPartition], Where], log: ClientLog
    ) -> None:
        self._check_crcs = check_crcs
        self._skips_undecodable = skips_undecodable
        self._where = where
        self._log = log

    def read(self, cursor: Cursor) -> tuple[BatchHeader, list[RecordTuple]]:
        """The next batch; if it is skipped, without records, and the position is moved behind it. Raises CorruptRecords
        (fetch it again) and UndecodableRecords (fetching again would not help)."""
        chunk = cursor.chunks[0]
        position, header = chunk.unread[0]
        try:
            return header, read_batch(chunk.records, position, header, self._check_crcs)
        except UndecodableBatch as error:
            where = self._where(cursor.topic_partition)
            problem = UndecodableRecords(where, header.base_offset, header.end_offset, error.reason)
            if not self._skips_undecodable:
                raise problem from error
            self._log.warning("skipped: %s", problem)
            cursor.position = header.end_offset
            return header, []
        except CorruptBatch as error:
            start = cursor.position if cursor.position is not None else header.base_offset
            raise CorruptRecords(self._where(cursor.topic_partition), start, error) from error
