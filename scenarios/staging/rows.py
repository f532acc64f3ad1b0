"""The table's rows, one for each broker, what a script expects of them, and how they are printed.

Owns: the columns. Pure. LEO is the log end offset, the offset of the next record; HW the high watermark, the first
offset that a consumer may not read; remote LEO a follower's LEO as the leader knows it (`?`: it has not fetched in this
epoch).
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

HEADER = ("BROKER", "ROLE", "EPOCH", "START", "LEO", "HW", "REMOTE LEO", "ISR", "EPOCH FILE", "RECORDS")
RECORDS_SHOWN = 6
_NUMBERED = re.compile(r"(.*?)([0-9]+)")


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """One replica at one moment; of a dead broker as its disk shows it."""

    broker: str
    role: str
    leader_epoch: int | None = None
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int | None = None
    remote_ends: dict[str, int | None] = {}
    isr: str = ""
    """Letters; on the leader only."""
    pending_isr: str = ""
    """The leader's proposal, while it has no answer."""
    epoch_file: tuple[tuple[int, int], ...] = ()
    records: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        isr = " ".join(self.isr) + (f" (-> {' '.join(self.pending_isr)})" if self.pending_isr else "")
        return (
            self.broker,
            self.role,
            _text(self.leader_epoch),
            _text(self.log_start_offset),
            _text(self.log_end_offset),
            _text(self.high_watermark),
            " ".join(f"{name}:{_text(end, '?')}" for name, end in sorted(self.remote_ends.items())),
            isr,
            ", ".join(f"{epoch} {start}" for epoch, start in self.epoch_file),
            shortened(self.records),
        )


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a script expects of a row; fields that are None are not checked."""

    role: str | None = None
    epoch: int | None = None
    start: int | None = None
    leo: int | None = None
    hw: int | None = None
    remote: Mapping[str, int | None] | None = None
    """Only the brokers named here."""
    isr: str | None = None
    pending: str | None = None
    epochs: Sequence[tuple[int, int]] | None = None
    records: str | None = None
    """Values with spaces between."""

    def problems(self, row: ReplicaRow) -> list[str]:
        """How the row differs."""
        remote = None if self.remote is None else {name: row.remote_ends.get(name) for name in self.remote}
        expected = (
            ("role", self.role, row.role),
            ("epoch", self.epoch, row.leader_epoch),
            ("start", self.start, row.log_start_offset),
            ("LEO", self.leo, row.log_end_offset),
            ("HW", self.hw, row.high_watermark),
            ("remote LEO", None if self.remote is None else dict(self.remote), remote),
            ("ISR", None if self.isr is None else sorted(self.isr), sorted(row.isr)),
            ("pending ISR", None if self.pending is None else sorted(self.pending), sorted(row.pending_isr)),
            ("epoch file", None if self.epochs is None else tuple(self.epochs), row.epoch_file),
            ("records", None if self.records is None else tuple(self.records.split()), row.records),
        )
        return [
            f"{row.broker}: {name} is {_shown(found)}, expected {_shown(wanted)}"
            for name, wanted, found in expected
            if wanted is not None and wanted != found
        ]


def problems_of(rows: Sequence[ReplicaRow], expected: Mapping[str, Expected]) -> list[str]:
    """How the table differs from what is expected."""
    by_name = {row.broker: row for row in rows}
    return [problem for name, shows in expected.items() for problem in shows.problems(by_name[name])]


def changed_cells(before: Sequence[ReplicaRow], after: Sequence[ReplicaRow]) -> set[tuple[str, int]]:
    """(broker, column) of each cell that is new."""
    old = {row.broker: row.cells() for row in before}
    return {
        (row.broker, column)
        for row in after
        if row.broker in old
        for column, cell in enumerate(row.cells())
        if cell != old[row.broker][column]
    }


def shortened(records: Sequence[str]) -> str:
    """`m0 m1`; many records as `m0..m49 n0..n9`: runs of one name with rising numbers."""
    if len(records) <= RECORDS_SHOWN:
        return " ".join(records)
    runs: list[list[str]] = []
    for value in records:
        if runs and _follows(runs[-1][-1], value):
            runs[-1].append(value)
        else:
            runs.append([value])
    return " ".join(run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _follows(before: str, after: str) -> bool:
    one, two = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(after)
    return one is not None and two is not None and one[1] == two[1] and int(two[2]) == int(one[2]) + 1


def _text(value: int | None, absent: str = "-") -> str:
    return absent if value is None else str(value)


def _shown(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
