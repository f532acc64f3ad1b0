"""Producer states follow the batches: as they are appended, and as a start rebuilds them from closed segments."""

import pytest

from minibroker.broker.log.config import LogConfig
from tests.broker.log.machine import Machine, append, append_batches, drive, make_batch

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
FIRST = f"{0:020d}.log"
MAGIC_AT = 16
BASE_OFFSET_AT = 1
PRODUCER_ID_AT = 47


def lose_snapshots(machine: Machine, stop: str) -> None:
    """Producer 0 wrote in the first of several segments alone; the log is stopped, and its snapshots are gone."""
    directory, log = machine.open_log(CONFIG)
    append(log, 1, producer=(0, 0, 0))
    append(log, 30)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    if stop == "clean":
        drive(directory.close(True, {}))
    machine.kill()
    machine.storage.boots += stop == "without power"
    for name in machine.file_names(".snapshot"):
        machine.disk().remove(f"{log.directory}/{name}")


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
def test_producers_are_not_rebuilt_from_a_part_of_the_batches(machine: Machine, stop: str) -> None:
    """Producer 0 wrote in the first segment alone. A start without a usable snapshot left out what it could not read of
    that segment, reported that, and served: a retry of that batch would have been written a second time."""
    lose_snapshots(machine, stop)
    content = bytearray(machine.content(FIRST))
    content[MAGIC_AT] ^= 0xFF
    machine.edit(FIRST, bytes(content))
    log = machine.open_log(CONFIG)[1]
    assert "magic is -78" in str(log.damage)


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
@pytest.mark.parametrize(
    ("position", "why"), [(BASE_OFFSET_AT, "where 0 belongs"), (PRODUCER_ID_AT, "CRC")], ids=["offset", "producer"]
)
def test_producers_are_not_rebuilt_from_rotten_headers(machine: Machine, stop: str, position: int, why: str) -> None:
    """A header may make sense and be wrong: the walk ended at an offset beyond the log's end without a word, and
    without its CRC a batch counted for another producer."""
    lose_snapshots(machine, stop)
    content = bytearray(machine.content(FIRST))
    content[position] ^= 0x10
    machine.edit(FIRST, bytes(content))
    log = machine.open_log(CONFIG)[1]
    assert why in str(log.damage)


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
def test_producers_are_rebuilt_from_all_batches(machine: Machine, stop: str) -> None:
    """Without any snapshot."""
    lose_snapshots(machine, stop)
    log = machine.open_log(CONFIG)[1]
    assert log.damage is None
    assert log.producers.get(0) is not None


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_producer_of_a_run_is_remembered(machine: Machine, place: int) -> None:
    """A follower appends what it fetched in one call: batches of several producers, and of some without an id. As a
    leader it would write a retry of those that it left out a second time."""
    log = machine.open_log(CONFIG)[1]
    producers: list[tuple[int, int, int] | None] = [(7, 0, 0), (8, 0, 0)]
    producers.insert(place, None)
    batches = [make_batch(2 * number, producer=producer) for number, producer in enumerate(producers)]
    append_batches(log, batches)
    assert [number for number in (7, 8) if log.producers.get(number) is None] == []
    assert -1 not in dict(log.producers)
