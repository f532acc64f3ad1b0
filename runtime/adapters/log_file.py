"""A broker's log in a rotated file, with everything else that the process prints.

Owns: how large the log may get. `FILE` is being written, `FILE.1` is the one before, and so on.

The process itself rotates, because only it can close the file. Its standard output and error go to the same file and
follow each rotation: what Python or a library prints when the process crashes comes after the last line.
"""

import logging
import os
from logging.handlers import RotatingFileHandler

FILE_BYTES_MAX = 10 * 1024 * 1024
"""Weeks of an undisturbed broker; an editor still opens it."""
FILES_BEFORE = 4
"""With these and the current file the log of a broker takes at most 50 MiB, whatever happens."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RotatedLog(RotatingFileHandler):
    """Appends to the file, and makes it the process's standard output and error."""

    def __init__(self, path: str, file_bytes_max: int = FILE_BYTES_MAX, files_before: int = FILES_BEFORE) -> None:
        super().__init__(
            path, maxBytes=file_bytes_max, backupCount=files_before, encoding="utf-8", errors="backslashreplace"
        )
        self.setFormatter(logging.Formatter(FORMAT))
        self._redirect_output()

    def doRollover(self) -> None:
        """Begin another file, or this one anew if it cannot be renamed: the newest lines say more than the oldest."""
        try:
            super().doRollover()
        except OSError as error:
            os.truncate(self.baseFilename, 0)
            self.stream = self._open()
            reason = f"cannot be renamed ({error.strerror}): its earlier lines are gone"
            self.stream.write(f"{self.baseFilename} {reason}\n")
        self._redirect_output()

    def _redirect_output(self) -> None:
        assert self.stream is not None, "the file is opened at once"
        for descriptor in (1, 2):
            os.dup2(self.stream.fileno(), descriptor)
