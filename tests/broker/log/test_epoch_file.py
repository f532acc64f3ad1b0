"""Which stored leader epochs are used at a start."""

from __future__ import annotations

import pytest

from minibroker.broker.log.side_files.epoch_file import EpochEntry, read_epoch_file
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import EPOCH_CHECKPOINT, format_epoch_checkpoint
from tests.broker.log.machine import OWNER, PARTITION, PATH, Machine


def read(machine: Machine, entries: list[EpochEntry]) -> tuple[list[EpochEntry], list[str]]:
    """The entries that count, and why a file does not."""
    machine.open_log()
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint(entries, OWNER))
    found: list[FileNotUsed] = []
    return read_epoch_file(machine.disk(), f"{PATH}/{PARTITION}", found, OWNER), [each.reason for each in found]


@pytest.mark.parametrize("entries", [[], [(0, 0)], [(3, 7)], [(0, 0), (1, 1)], [(2, 0), (5, 9), (6, 10)]])
def test_entries_that_rise_in_both_columns_count(machine: Machine, entries: list[EpochEntry]) -> None:
    assert read(machine, entries) == (entries, [])


@pytest.mark.parametrize(
    "entries",
    [
        [(1, 0), (1, 5)],
        [(2, 0), (1, 5)],
        [(1, 5), (2, 5)],
        [(1, 5), (2, 4)],
        [(0, 0), (1, 3), (2, 9), (2, 12)],
        [(0, 0), (1, 3), (2, 9), (3, 9)],
    ],
)
def test_entries_that_do_not_rise_are_not_used_and_named(machine: Machine, entries: list[EpochEntry]) -> None:
    assert read(machine, entries) == ([], ["its entries do not rise"])
