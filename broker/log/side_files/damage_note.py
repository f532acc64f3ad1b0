"""The note in the directory of a damaged replica: a restart must not make its log look sound again.

Owns: the file `damage`, plain text for people. Leaves to others: finding damage and its reason. The note holds until
the directory is set aside, or an operator removes it with `minibroker log repair`.
"""

import logging

from minibroker.broker.log.directory_health import DirectoryHealth
from minibroker.protocol.files.checkpoints import DAMAGE_NOTE, SMALL_FILE_BYTES_MAX
from minibroker.runtime.ports import Disk, DiskError, FileMissing, FileTooLarge

READ_MAX = 500
"""How many characters of the note's first line are passed on: any program may have written to the file."""

logger = logging.getLogger(__name__)


def write_damage_note(health: DirectoryHealth, directory: str, reason: str) -> None:
    """Without the note a restart finds the damage only if it reads that place, so the replica goes on without it; what
    the error says of the whole disk counts, here as anywhere (hardening rule 13)."""
    try:
        replace_damage_note(health.disk, directory, reason)
    except DiskError as error:
        health.record_error(error)
        logger.warning("no note of the damage in %s: %s", directory, error)


def replace_damage_note(disk: Disk, directory: str, reason: str) -> None:
    """Write the note durably. Raises DiskError."""
    disk.replace_file(f"{directory}/{DAMAGE_NOTE}", f"{reason}\n".encode())


def read_damage_note(disk: Disk, directory: str) -> str | None:
    """Why the log there is damaged; None without a note."""
    try:
        text = disk.read_file(f"{directory}/{DAMAGE_NOTE}", SMALL_FILE_BYTES_MAX).decode(errors="replace").strip()
    except FileMissing:
        return None
    except FileTooLarge as error:
        return f"found damaged before the start ({error})"
    first = text.split("\n", 1)[0][:READ_MAX]
    return "".join(each if each.isprintable() else " " for each in first).strip() or "found damaged before the start"
