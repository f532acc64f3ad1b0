"""Reading a segment again: what is found at its end and at each index entry, in pieces of any size."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.scrub import SegmentScrub
from minibroker.broker.log.segments.segment_index import SegmentIndex
from minibroker.protocol.record_batch import HEADER_BYTES
from tests.broker.log.machine import SMALL, Machine, append

WHOLE = 1 << 20
SUFFIXES = (".index", ".timeindex")
PIECES = (HEADER_BYTES, 200, WHOLE)
"""A batch at a time, some, all at once."""


def closed_segments(machine: Machine) -> PartitionLog:
    """At least three segments of several batches, the indexes of the closed ones in files."""
    _, log = machine.open_log()
    append(log, 40)
    assert len(log.segments) >= 3
    return log


def scrubbed(log: PartitionLog, machine: Machine, number: int = 0, piece: int = WHOLE, **changes: Any) -> SegmentScrub:
    """One segment, read to the end; `changes` say what is expected of it."""
    segment = log.segments[number]
    is_active = segment is log.segments[-1]
    fields: dict[str, Any] = {
        "path": segment.path,
        "base_offset": segment.base_offset,
        "size": segment.size,
        "end_offset": None if is_active else log.segment_end(number),
        "epochs": log.epoch_entries(),
        "offset": segment.base_offset,
    }
    scrub = SegmentScrub(**{**fields, **changes})
    read = scrub.position
    while not scrub.is_done:
        before = scrub.position
        read += scrub.read_piece(machine.disk(), piece, SMALL.index_interval_bytes)
        if scrub.position == before:
            break
    assert scrub.suspicion is not None or read == scrub.position
    return scrub


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_sound_segment_is_read_to_its_end_without_a_suspicion(machine: Machine, number: int, piece: int) -> None:
    log = closed_segments(machine)
    scrub = scrubbed(log, machine, number, piece)
    assert (scrub.suspicion, scrub.index_suspicion) == (None, None)
    assert (scrub.position, scrub.is_done) == (log.segments[number].size, True)
    assert scrub.total_digest == log.segments[number].digest.value


@pytest.mark.parametrize("piece", PIECES)
def test_a_segment_whose_last_batches_are_gone_is_suspected(machine: Machine, piece: int) -> None:
    log = closed_segments(machine)
    positions = [position for position, _ in log.segments[0].headers_from(0)]
    file = machine.disk().open(log.segments[0].log_path)
    file.truncate(positions[-1])
    file.close()
    suspicion = scrubbed(log, machine, 0, piece).suspicion
    assert suspicion == f"it is cut at {positions[-1]} of {log.segments[0].size} bytes"


def test_a_segment_that_was_cut_below_what_was_read_is_suspected(machine: Machine) -> None:
    """A follower truncates its log while it is read in pieces (seed 70335540042): that ended the broker as a bug. The
    suspicion is looked into on the loop."""
    log = closed_segments(machine)
    segment, positions = log.segments[0], [position for position, _ in log.segments[0].headers_from(0)]
    file = machine.disk().open(segment.log_path)
    file.truncate(positions[1])
    file.close()
    scrub = scrubbed(log, machine, position=positions[2], offset=segment.base_offset + 2)
    assert scrub.suspicion == f"it is cut at {positions[2]} of {segment.size} bytes"


@pytest.mark.parametrize("missing", [1, -1])
def test_a_segment_that_does_not_end_where_the_next_begins_is_suspected(machine: Machine, missing: int) -> None:
    log = closed_segments(machine)
    scrub = scrubbed(log, machine, 0, end_offset=log.segment_end(0) + missing)
    assert scrub.suspicion is not None
    assert scrub.suspicion.startswith(f"it ends at offset {log.segment_end(0)}, ")


def test_an_index_with_a_wrong_last_entry_is_suspected_and_its_batches_are_not(machine: Machine) -> None:
    log = closed_segments(machine)
    first = log.segments[0]
    for suffix in SUFFIXES:
        name = first.path.rpartition("/")[2] + suffix
        content = bytearray(machine.content(name))
        content[-1] ^= 1
        machine.edit(name, bytes(content))
    assert scrubbed(log, machine, 0).index_suspicion is not None
    assert scrubbed(log, machine, 1).index_suspicion is None
    assert scrubbed(log, machine, 0).suspicion is None, "the batches are sound"


def test_an_index_whose_last_entry_is_behind_the_last_batch_is_suspected(machine: Machine) -> None:
    """No batch is compared with it."""
    log = closed_segments(machine)
    first = log.segments[0]
    content = [machine.content(f"{first.base_offset:020d}{suffix}") for suffix in SUFFIXES]
    index = SegmentIndex.decode(content[0], content[1], first.size, SMALL.index_interval_bytes)
    (*_, (last, _)) = first.headers_from(0)
    index.positions[-1] = last + 1
    for suffix, changed in zip(SUFFIXES, index.encode(0), strict=True):
        machine.edit(f"{first.base_offset:020d}{suffix}", changed)
    assert scrubbed(log, machine, 0).index_suspicion == f"entry {len(index) - 1} points at no batch"


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_batch_of_another_epoch_than_the_history_says_is_suspected_where_it_is(machine: Machine, epoch: int) -> None:
    log = closed_segments(machine)
    offset = [header.base_offset for _, header in log.segments[0].headers_from(0)][1]
    scrub = scrubbed(log, machine, 0, epochs=[(0, 0), (1, offset)] if epoch == 0 else [(epoch, 0)])
    assert scrub.suspicion is not None
    assert scrub.suspicion.startswith("leader epoch 0 where ")
    assert scrub.offset == (offset if epoch == 0 else 0)
