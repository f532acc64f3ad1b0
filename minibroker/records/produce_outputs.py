"""What `produce` writes beside the records: the list of acknowledged records, and their offsets on stdout.

Owns: what becomes of such an output when it fails while records are on their way. Leaves to others: what stands in it.

Theory. An error that came out of the counting of acknowledgements would lose the counts. So a failed output takes
nothing more and keeps its problem, and who sends looks there between two chunks of lines.
"""

import os
import stat
from collections.abc import Callable
from typing import BinaryIO

from minibroker.command_line import note, print_json
from minibroker.file_lock import try_lock
from minibroker.protocol.ids import TopicPartition


class ReportFile:
    """The file of --report."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.problem: str | None = None
        """Why it lacks acknowledged records: one sentence with the cure."""
        self._path = path
        self._file = file

    def write(self, content: bytes) -> None:
        if self.problem is None:
            self._tried(lambda: self._file.write(content))

    def close(self) -> None:
        self._tried(self._file.close)  # writes what is in its buffer

    def _tried(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            self.problem = self.problem or (
                f"the report {self._path} could not be written to its end, and lacks acknowledged records:"
                f" {error.strerror}: free space, or name a file elsewhere"
            )


class OffsetLines:
    """The lines of --offsets. A reader that has ended (`| head`) is no failure: the records are the purpose."""

    def __init__(self, *, as_json: bool) -> None:
        self.problem: str | None = None
        """Why offsets are missing: one sentence with the cure."""
        self._as_json = as_json
        self._has_ended = False

    def __call__(self, partition: TopicPartition, offset: int, epoch: int, tag: int) -> None:
        if self._has_ended:
            return
        try:
            if self._as_json:
                print_json({"topic": partition.topic, "partition": partition.partition, "offset": offset})
            else:
                print(f"{partition.topic}\t{partition.partition}\t{offset}", flush=True)
        except BrokenPipeError:
            self._has_ended = True
            note("the reader of the offsets has ended: they are no longer printed, and the writing goes on")
        except OSError as error:
            self._has_ended = True
            self.problem = f"the offsets could not be printed: {error.strerror}: free space, or print them elsewhere"


def opened_report(path: str) -> ReportFile:
    """Raises BlockingIOError while another command writes this list, FileExistsError if it has content: an earlier list
    is what an audit needs. Also raises any other OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # it is empty until the first records are acknowledged
            if not try_lock(descriptor):
                raise BlockingIOError
            if os.fstat(descriptor).st_size:
                raise FileExistsError
    except OSError:
        os.close(descriptor)
        raise
    return ReportFile(os.fsdecode(path), os.fdopen(descriptor, "wb", 1 << 20))
