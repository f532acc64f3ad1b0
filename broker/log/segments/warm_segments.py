"""Which segments have an open file or their index in memory; beyond a limit the least recently used ones are released.

Owns: the two limits. Leaves to others: files and indexes.

Theory: a broker holds thousands of partitions with many segments each, but a process may have only about a thousand
open files, and an idle partition should cost almost nothing.
"""

from collections import OrderedDict
from typing import Protocol

from minibroker.broker.log.config import INDEX_BYTES_MAX
from minibroker.runtime.descriptor_shares import LOG_FILES_MAX


class WarmSegment(Protocol):
    """The part of a segment's interface that is needed here."""

    @property
    def index_bytes(self) -> int: ...
    def close_file(self) -> None: ...
    def drop_index(self) -> bool:
        """False if the index has to stay for now."""
        ...


class WarmSegments:
    """Shared by all logs of one log directory."""

    def __init__(self, files_max: int = LOG_FILES_MAX, index_bytes_max: int = INDEX_BYTES_MAX) -> None:
        assert files_max >= 1
        self.files_max = files_max
        self.index_bytes_max = index_bytes_max
        self._files: OrderedDict[WarmSegment, None] = OrderedDict()
        self._indexes: OrderedDict[WarmSegment, None] = OrderedDict()

    @property
    def open_files(self) -> int:
        return len(self._files)

    def file_opened(self, segment: WarmSegment) -> None:
        self._files[segment] = None
        while len(self._files) > self.files_max:
            self._files.popitem(last=False)[0].close_file()

    def close_oldest(self) -> bool:
        """Free one descriptor; False if no file is open."""
        if not self._files:
            return False
        self._files.popitem(last=False)[0].close_file()
        return True

    def file_used(self, segment: WarmSegment) -> None:
        self._files.move_to_end(segment)

    def index_loaded(self, segment: WarmSegment) -> None:
        self._indexes[segment] = None
        total = sum(held.index_bytes for held in self._indexes)
        for held in list(self._indexes):
            if total <= self.index_bytes_max or held is segment:
                return
            freed = held.index_bytes
            if held.drop_index():
                del self._indexes[held]
                total -= freed

    def index_used(self, segment: WarmSegment) -> None:
        if segment in self._indexes:  # that of an empty segment is not
            self._indexes.move_to_end(segment)

    def forget(self, segment: WarmSegment) -> None:
        """The segment is gone (deleted or closed)."""
        self._files.pop(segment, None)
        self._indexes.pop(segment, None)
