"""Lines of a broker's log become the same notes as on the simulated stage."""

import logging
from pathlib import Path

from minibroker.scenarios.live.log_watcher import LogWatcher

FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def line(template: str, *arguments: object, name: str = "minibroker.partition") -> str:
    """As a broker process prints it."""
    return FORMAT.format(logging.LogRecord(name, logging.INFO, "", 0, template, arguments, None)) + "\n"


def test_relevant_lines_are_shortened(tmp_path: Path) -> None:
    log = tmp_path / "broker-1.log"
    log.write_text(
        line("%s: truncated from %d to %d under leader epoch %s: %s", "story-0", 2, 1, 1, "the leader's log ends there")
        + line("%s: ISR %s -> %s (leader epoch %s, partition epoch %d)", "story-0", [1, 2, 3], [1, 2], 0, 1)
        + line("%s: follower in leader epoch %d", "story-0", 1)
        + "Traceback (most recent call last):\n"
    )
    assert list(LogWatcher(log).new_events()) == [
        "cuts its log from 2 to 1: the leader's log ends there",
        "ISR A B C -> A B",
    ]


def test_a_line_is_returned_once_and_only_when_complete(tmp_path: Path) -> None:
    log = tmp_path / "broker-1.log"
    watcher = LogWatcher(log)
    assert list(watcher.new_events()) == []  # no file yet
    whole = line("%s: deleted up to offset %d by retention", "story-0", 7, name="minibroker.replica_manager")
    log.write_text(whole[:30])
    assert list(watcher.new_events()) == []
    log.write_text(whole)
    assert list(watcher.new_events()) == ["retention deletes up to offset 7"]
    assert list(watcher.new_events()) == []
