"""A broker's log in a file that is rotated, with everything else that the process prints.

Owns: how large the log may get. `FILE` is being written, `FILE.1` is the one before, and so on.

The process itself rotates, because only it can let go of the file. Its standard output and error lead into the same
file and follow each rotation: what Python or a library prints when the process crashes stands behind the last line.
"""

import logging
import os
from logging.handlers import RotatingFileHandler

FILE_BYTES_MAX = 10 * 1024 * 1024
"""Weeks of a broker that is left in peace; an editor still opens it."""
FILES_BEFORE = 4
"""With these, and the one being written, the log of a broker takes 50 MiB at most, whatever happens to it."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RotatedLog(RotatingFileHandler):
    """Appends to the file, and makes it the process's standard output and error."""

    def __init__(self, path: str, file_bytes_max: int = FILE_BYTES_MAX, files_before: int = FILES_BEFORE) -> None:
        super().__init__(
            path, maxBytes=file_bytes_max, backupCount=files_before, encoding="utf-8", errors="backslashreplace"
        )
        self.setFormatter(logging.Formatter(FORMAT))
        self._lead_output_here()

    def doRollover(self) -> None:
        """Begin another file."""
        super().doRollover()
        self._lead_output_here()

    def _lead_output_here(self) -> None:
        assert self.stream is not None, "the file is opened at once"
        for descriptor in (1, 2):
            os.dup2(self.stream.fileno(), descriptor)
