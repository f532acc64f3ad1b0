"""Reads the small files of a log directory that have a parser."""

from collections.abc import Callable
from typing import TypeVar

from minibroker.audit.reading.regular_files import read_regular
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.files.checkpoints import OFFSETS_FILE_BYTES_MAX

T = TypeVar("T")


def read_parsed(
    path: str, parse: Callable[[bytes], T], damage: list[tuple[str, str]], limit: int = OFFSETS_FILE_BYTES_MAX
) -> T | None:
    """The parsed content; None when the file is missing or invalid (then `damage` holds the reason). Raises
    PermissionError: it may be sound, and another user may read it."""
    try:
        content = read_regular(path, limit)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise
    except OSError as error:
        damage.append((path, f"cannot be read: {error.strerror}"))
        return None
    try:
        return parse(content)
    except ProtocolError as error:
        damage.append((path, str(error)))
        return None
