"""The commands that messages name, as the user can paste them: with the data directory that was given.

Owns: adding --data-dir. Leaves to others: the messages, which name a command without it.
"""

import os
import re
import shlex
from pathlib import Path

from minibroker.command_line import DEFAULT_DATA_DIRECTORY

CLUSTER_COMMAND = re.compile(r"`minibroker cluster ([^`]+)`")


def with_data_directory(text: str, data_directory: Path) -> str:
    """The text; unless the directory is the default one, its `minibroker cluster ..` name it."""
    default = os.environ.get("MINIBROKER_DATA_DIR") or DEFAULT_DATA_DIRECTORY
    if data_directory.absolute() == Path(default).absolute():
        return text
    option = f"--data-dir {shlex.quote(str(data_directory))}"

    def complete(found: re.Match[str]) -> str:
        return found[0] if "--data-dir" in found[1] else f"`minibroker cluster {found[1]} {option}`"

    return CLUSTER_COMMAND.sub(complete, text)
