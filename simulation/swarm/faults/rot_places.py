"""Where rot on a disk matters: fields of batch headers, payloads, digits of checkpoints, identities, notes.

Owns: finding such places on a simulated disk from outside, without the broker's code. Leaves to others: to change a
byte (`faulty_disk`) and to choose a time (`disk_faults`).
"""

import random

from minibroker.protocol.files.checkpoints import (
    CLEAN_SHUTDOWN,
    DAMAGE_NOTE,
    EPOCH_CHECKPOINT,
    INDEX_SUFFIX,
    LOG_START,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    WHOLE_SINCE,
)
from minibroker.simulation.world.storage import FileNode, SimulatedStorage

LOG_DIRECTORY = "/data/log"
HEADER_BYTES = 61
LENGTH_AT, LENGTH_ENDS = 8, 12
MAGIC_AT = 16
"""Never zero in a batch."""
FIELDS = {
    "base offset": (0, 8),
    "length": (8, 12),
    "epoch": (12, 16),
    "magic": (16, 17),
    "CRC": (17, 21),
    "last offset delta": (23, 27),
    "producer": (43, 57),
    "count": (57, 61),
}
FIELD_WEIGHTS = {"base offset": 5, "epoch": 3, "last offset delta": 2, "length": 2}
"""Fields outside of the CRC, or that locate a batch, may be trusted although they are wrong."""
LOW_BYTES_SHARE = 0.7
"""How often the flipped bit is in a field's last byte: the value stays near the right one, and may be trusted."""
DIGIT_SHARE = 0.7
"""How often a checkpoint's digit becomes another digit, so that the file still parses."""
DIGITS = range(ord("0"), ord("9") + 1)
PADDING = ord("\n")
"""Fills up a log start file."""

Place = tuple[str, int, int]
"""A file, a position in it, and what the byte becomes."""


def below(storage: SimulatedStorage, *suffixes: str, directory: str = LOG_DIRECTORY) -> list[tuple[str, FileNode]]:
    """Files that are not empty and have one of these suffixes; without suffixes all files."""
    files = [(path, file) for path, file in storage.files(f"{directory}/") if file.content]
    return [(path, file) for path, file in files if not suffixes or path.endswith(suffixes)]


def batches_of(content: bytes | bytearray) -> list[tuple[int, int]]:
    """(position, size) of each batch, as far as the lengths are valid."""
    found, position = [], 0
    while position + HEADER_BYTES <= len(content):
        size = LENGTH_ENDS + int.from_bytes(content[position + LENGTH_AT : position + LENGTH_ENDS], "big")
        if size < HEADER_BYTES or position + size > len(content):
            break
        found.append((position, size))
        position += size
    return found


class RotPlaces:
    """Draws one place of each kind; None if the disk has no such file."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng

    def rot_header(self, storage: SimulatedStorage) -> Place | None:
        found = self._batch(storage)
        if found is None:
            return None
        path, file, position, _ = found
        names = sorted(FIELDS)
        [name] = self._random.choices(names, [FIELD_WEIGHTS.get(each, 1) for each in names])
        start, end = FIELDS[name]
        at = end - 1 if self._random.random() < LOW_BYTES_SHARE else self._random.randrange(start, end)
        return self._flipped(path, file, position + at)

    def rot_payload(self, storage: SimulatedStorage) -> Place | None:
        found = self._batch(storage)
        if found is None:
            return None
        path, file, position, size = found
        return self._flipped(path, file, position + self._random.randrange(HEADER_BYTES, size))

    def _batch(self, storage: SimulatedStorage) -> tuple[str, FileNode, int, int] | None:
        """The first, the last or any batch of a segment."""
        logs = [
            (path, file, batches) for path, file in below(storage, LOG_SUFFIX) if (batches := batches_of(file.content))
        ]
        if not logs:
            return None
        full = [each for each in logs if len(each[2]) > 1]
        path, file, batches = self._random.choice(full or logs)
        position, size = self._random.choice((batches[0], batches[-1], self._random.choice(batches)))
        return path, file, position, size

    def rot_index(self, storage: SimulatedStorage) -> Place | None:
        return self._any_bit(storage, INDEX_SUFFIX, TIME_INDEX_SUFFIX)

    def rot_snapshot(self, storage: SimulatedStorage) -> Place | None:
        return self._any_bit(storage, SNAPSHOT_SUFFIX)

    def rot_identity(self, storage: SimulatedStorage) -> Place | None:
        return self._any_bit(storage, META_PROPERTIES, PARTITION_METADATA, CLEAN_SHUTDOWN)

    def rot_checkpoint(self, storage: SimulatedStorage) -> Place | None:
        """Of the log directory: recovery points, high watermarks."""
        return self._digit(storage, "-offset-checkpoint")

    def rot_epochs(self, storage: SimulatedStorage) -> Place | None:
        return self._digit(storage, EPOCH_CHECKPOINT)

    def rot_notes(self, storage: SimulatedStorage) -> Place | None:
        """`log-start`, `whole-since` or the note of damage."""
        kinds = [files for name in (LOG_START, WHOLE_SINCE, DAMAGE_NOTE) if (files := below(storage, f"/{name}"))]
        if not kinds:
            return None
        path, file = self._random.choice(self._random.choice(kinds))
        written = [at for at, byte in enumerate(file.content) if byte != PADDING]
        return self._flipped(path, file, self._random.choice(written)) if written else None

    def _any_bit(self, storage: SimulatedStorage, *suffixes: str) -> Place | None:
        files = below(storage, *suffixes)
        if not files:
            return None
        path, file = self._random.choice(files)
        return self._flipped(path, file, self._random.randrange(len(file.content)))

    def _digit(self, storage: SimulatedStorage, suffix: str) -> Place | None:
        files = below(storage, suffix)
        if not files:
            return None
        path, file = self._random.choice(files)
        digits = [at for at, byte in enumerate(file.content) if byte in DIGITS]
        if not digits or self._random.random() > DIGIT_SHARE:
            return self._flipped(path, file, self._random.randrange(len(file.content)))
        at = self._random.choice(digits)
        return path, at, self._random.choice([digit for digit in DIGITS if digit != file.content[at]])

    def _flipped(self, path: str, file: FileNode, at: int) -> Place:
        return path, at, file.content[at] ^ (1 << self._random.randrange(8))
