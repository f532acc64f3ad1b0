"""The note in the directory of a damaged replica: a restart must not make its log look sound again.

Owns: the file `damage`, plain text for people. Refuses to judge a log: who finds damage says why. What the note says is
true until the directory is set aside, or an operator removes it with `minibroker log repair`.
"""

import logging

from minibroker.broker.log.storage import Storage
from minibroker.protocol.checkpoints import DAMAGE_NOTE, SMALL_FILE_BYTES_MAX
from minibroker.runtime.ports import Disk, DiskError, FileMissing, FileTooLarge, SyncFailed

READ_MAX = 500
"""Characters of a note that are repeated to others, of its first line: anybody may have written to the file."""

logger = logging.getLogger(__name__)


def write_damage_note(storage: Storage, directory: str, reason: str) -> None:
    """Without it a restart finds the same damage again only if it looks there; that alone stops nobody. A sync that
    fails is final for the whole disk, here as anywhere (hardening rule 13)."""
    try:
        replace_damage_note(storage.disk, directory, reason)
    except SyncFailed as error:
        storage.failed(error)
    except DiskError as error:
        logger.warning("no note of the damage in %s: %s", directory, error)


def replace_damage_note(disk: Disk, directory: str, reason: str) -> None:
    """Durably. Raises DiskError."""
    disk.replace_file(f"{directory}/{DAMAGE_NOTE}", f"{reason}\n".encode())


def read_damage_note(disk: Disk, directory: str) -> str | None:
    """Why the log there is damaged; None if nobody has said so."""
    try:
        text = disk.read_file(f"{directory}/{DAMAGE_NOTE}", SMALL_FILE_BYTES_MAX).decode(errors="replace").strip()
    except FileMissing:
        return None
    except FileTooLarge as error:
        return f"found damaged before the start ({error})"
    first = text.split("\n", 1)[0][:READ_MAX]
    return "".join(each if each.isprintable() else " " for each in first).strip() or "found damaged before the start"
