"""A file without newlines is no history, and does not fill the memory; a pipe cannot be read several times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minibroker.chaos.history.history_file import BadHistory
from minibroker.chaos.run import history_reading


def test_a_file_without_newlines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_reading, "LINE_BYTES_MAX", 100)
    file = tmp_path / "history.jsonl"
    file.write_bytes(b'{"index":0,"time_ns":5,"process":"a","type":"invoke","f":"poll"}\n' + bytes(1_000))
    with pytest.raises(BadHistory, match="line 2 is longer than 100 bytes"):
        list(history_reading.read_history(file, lambda text: None))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    os.mkfifo(file)
    with pytest.raises(OSError, match="named pipe"):
        list(history_reading.read_history(file, lambda text: None))
