"""Progress of a command whose output goes into a file.

Owns: when it is shown. Elsewhere the output itself shows that the work goes on, and on a terminal the line would come
between it; so it would with a pipe, whose reader may print to the same terminal.
"""

import os
import stat
import sys

from minibroker.command_line import ProgressLine


class FileProgress(ProgressLine):
    """Shown only if stdout is a file."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = self.enabled and _is_file()


def _is_file() -> bool:
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False
