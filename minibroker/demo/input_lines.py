"""What the demo writes: every line of Python's standard library, or of a file.

Owns: which files, in which order, how often. Files are read as bytes and split on b'\\n' only, because some are not
UTF-8 and some contain CR. The lines are in memory once: record number n is line n modulo the number of lines.
"""

import sysconfig
from pathlib import Path

from minibroker.records.line_source import LineSplitter

TARGET_BYTES = 64_000_000
LINES_MIN = 1_000
"""With fewer lines nothing would be left to write while the leader is down."""


class BadInput(Exception):
    """FILE cannot be used; the message is one sentence."""


class InputLines:
    """The records, by number."""

    def __init__(self, lines: list[bytes], source: str, target_bytes: int) -> None:
        self.source = source
        self._lines = lines
        total = one_pass = sum(map(len, lines)) + len(lines)
        count = len(lines)
        while total < target_bytes:
            missing = target_bytes - total
            if missing >= one_pass:
                total, count = total + one_pass, count + len(lines)
                continue
            for line in lines:
                if total >= target_bytes:
                    break
                total, count = total + len(line) + 1, count + 1
        self.count = count
        self.total_bytes = total
        """With the newlines."""

    @classmethod
    def load(cls, file: str | None) -> "InputLines":
        """FILE once, or the standard library's *.py, sorted, repeated until TARGET_BYTES. Raises BadInput."""
        if file:
            try:
                lines = _split(Path(file).read_bytes())
            except OSError as error:
                raise BadInput(f"FILE={file} cannot be read: {error.strerror}") from None
            if len(lines) < LINES_MIN:
                raise BadInput(f"FILE={file} has {len(lines)} lines: {LINES_MIN} or more are needed")
            return cls(lines, file, 0)
        root = Path(sysconfig.get_path("stdlib"))
        lines = []
        for path in sorted(root.rglob("*.py")):
            if not {"site-packages", "dist-packages"} & set(path.parts):
                lines += _split(path.read_bytes())
        if len(lines) < LINES_MIN:
            raise BadInput(f"{root} holds no sources of the standard library: give FILE=path")
        return cls(lines, f"Python's standard library in {root}", TARGET_BYTES)

    def __getitem__(self, number: int) -> bytes:
        return self._lines[number % len(self._lines)]


def _split(content: bytes) -> list[bytes]:
    splitter = LineSplitter()
    return splitter.feed(content) + splitter.finish()
