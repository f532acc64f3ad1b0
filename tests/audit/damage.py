"""Every kind of damage that the audit must find, each with its expected finding.

Used by the test of each kind (local engine) and, all at once, by the test that compares Spark with it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from minibroker.audit.checks.findings import Kind
from minibroker.protocol.files import checkpoints
from minibroker.protocol.record_batch import build_batch, decode_records, read_header
from tests.audit.planted_cluster import PlantedReplica, encode, restamped, some_batches

BROKER = 2
"""The broker whose replica is damaged."""


class Expected(NamedTuple):
    kind: Kind
    offset: int | None
    file: str | None
    position: int | None


Damage = Callable[[PlantedReplica], Expected]
BATCHES = some_batches()
ENCODED = encode(BATCHES)


def name_of(segment: int, suffix: str = ".log") -> str:
    return checkpoints.segment_file_name(segment, suffix)


def second(replica: PlantedReplica) -> tuple[int, list[int], list[int]]:
    """The second segment: its base offset, and position and base offset of each of its batches."""
    segment = replica.segments[1]
    content = replica.file(segment).read_bytes()
    positions, offsets = [], []
    position = 0
    while position < len(content):
        header = read_header(content, position)
        positions.append(position)
        offsets.append(header.base_offset)
        position += header.size_bytes
    return segment, positions, offsets


def with_other_values(batch: bytes) -> bytes:
    """The same batch with other values and a valid CRC, as its producer might have sent it."""
    header = read_header(batch)
    changed = build_batch(
        [(kept.key, forged(kept.value), kept.timestamp_ms, kept.headers) for kept in decode_records(batch)],
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return bytes(changed)


def forged(value: bytes | None) -> bytes:
    return b"forged" + (value or b"")[6:]


def flip_bit(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    at = positions[1] + 80
    byte = replica.file(segment).read_bytes()[at]
    replica.patch(segment, at, bytes([byte ^ 4]))
    return Expected(Kind.CORRUPT_BATCH, offsets[1], name_of(segment), positions[1])


def flip_length_bit(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    at = positions[2] + 11
    byte = replica.file(segment).read_bytes()[at]
    replica.patch(segment, at, bytes([byte ^ 1]))
    return Expected(Kind.CORRUPT_BATCH, offsets[2], name_of(segment), positions[2])


def flip_offset_bit(replica: PlantedReplica) -> Expected:
    """The base offset is not covered by the CRC."""
    segment, positions, offsets = second(replica)
    at = positions[1] + 6
    byte = replica.file(segment).read_bytes()[at]
    replica.patch(segment, at, bytes([byte ^ 1]))
    return Expected(Kind.MISSING_RANGE, offsets[1], name_of(segment), positions[1])


def cut_tail(replica: PlantedReplica) -> Expected:
    last = read_header(replica.batches()[-1])
    file = replica.rewrite(lambda batches: batches[:-1])
    return Expected(Kind.MISSING_RANGE, last.base_offset, file.name, file.stat().st_size)


def cut_inside_last_batch(replica: PlantedReplica) -> Expected:
    last = read_header(replica.batches()[-1])
    file = replica.rewrite(lambda batches: [*batches[:-1], batches[-1][:-5]])
    return Expected(Kind.TORN_TAIL, last.base_offset, file.name, file.stat().st_size - (last.size_bytes - 5))


def cut_inside_a_segment(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [*batches[:-1], batches[-1][:30]], segment)
    return Expected(Kind.CORRUPT_BATCH, offsets[-1], name_of(segment), positions[-1])


def swap_batches(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    file = replica.rewrite(lambda batches: [batches[0], batches[2], batches[1], *batches[3:]], segment)
    size = read_header(file.read_bytes(), positions[1]).size_bytes
    return Expected(Kind.OUT_OF_ORDER, offsets[1], name_of(segment), positions[1] + size)


def swap_contents(replica: PlantedReplica) -> Expected:
    """Two batches of equal length are swapped and take each other's offset: every CRC and offset is valid."""
    segment, positions, offsets = second(replica)

    def swap(batches: list[bytes]) -> list[bytes]:
        first, last = batches[0], batches[3]
        assert len(first) == len(last)
        headers = read_header(first), read_header(last)
        batches[0] = restamped(last, headers[0].base_offset, headers[0].partition_leader_epoch)
        batches[3] = restamped(first, headers[1].base_offset, headers[1].partition_leader_epoch)
        return batches

    replica.rewrite(swap, segment)
    return Expected(Kind.DIVERGED_BELOW_HIGH_WATERMARK, offsets[0], name_of(segment), positions[0])


def remove_segment(replica: PlantedReplica) -> Expected:
    segments = replica.segments
    replica.file(segments[1]).unlink()
    return Expected(Kind.MISSING_RANGE, segments[1], name_of(segments[2]), 0)


def remove_first_segment(replica: PlantedReplica) -> Expected:
    segments = replica.segments
    replica.file(segments[0]).unlink()
    return Expected(Kind.MISSING_RANGE, 0, name_of(segments[1]), 0)


def remove_last_segment(replica: PlantedReplica) -> Expected:
    segments = replica.segments
    replica.file(segments[-1]).unlink()
    kept = replica.file(segments[-2])
    return Expected(Kind.MISSING_RANGE, segments[-1], kept.name, kept.stat().st_size)


def remove_log(replica: PlantedReplica) -> Expected:
    for segment in replica.segments:
        replica.file(segment).unlink()
    return Expected(Kind.MISSING_RANGE, 0, str(replica.partition), None)


def raise_epoch(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[1] + 12, (9).to_bytes(4, "big"))
    return Expected(Kind.EPOCH_DECREASES, offsets[2], name_of(segment), positions[2])


def raise_epoch_seen_by_replicas(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[1] + 12, (9).to_bytes(4, "big"))
    return Expected(Kind.CONFLICTING_EPOCH, offsets[1], name_of(segment), positions[1])


def lower_epoch(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[-1] + 12, (0).to_bytes(4, "big"))
    return Expected(Kind.EPOCH_CHECKPOINT, offsets[-1], name_of(segment), positions[-1])


def foreign_bytes_between_batches(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [batches[0], b"MMMM foreign bytes " * 9, *batches[1:]], segment)
    return Expected(Kind.CORRUPT_BATCH, offsets[1], name_of(segment), positions[1])


def foreign_bytes_over_batches(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[1] - 7, b"\x00" * (positions[2] - positions[1]))
    return Expected(Kind.CORRUPT_BATCH, offsets[0], name_of(segment), positions[0])


def zeros_at_the_end(replica: PlantedReplica) -> Expected:
    end = read_header(replica.batches()[-1]).end_offset
    file = replica.rewrite(lambda batches: [*batches, b"\x00" * 500])
    return Expected(Kind.CORRUPT_BATCH, end, file.name, file.stat().st_size - 500)


def duplicate_batch(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [batches[0], batches[1], batches[1], *batches[2:]], segment)
    return Expected(Kind.OFFSET_OVERLAP, offsets[1], name_of(segment), positions[2])


def drop_batch(replica: PlantedReplica) -> Expected:
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [batches[0], *batches[2:]], segment)
    return Expected(Kind.MISSING_RANGE, offsets[1], name_of(segment), positions[1])


def change_record(replica: PlantedReplica) -> Expected:
    """A record is changed and the CRC recomputed: only the other replicas show it."""
    segment, positions, offsets = second(replica)
    original = replica.file(segment).read_bytes()[positions[1] : positions[2]]
    forged = with_other_values(original)
    assert len(forged) == len(original)
    replica.patch(segment, positions[1], forged)
    return Expected(Kind.DIVERGED_BELOW_HIGH_WATERMARK, offsets[1], name_of(segment), positions[1])


def other_shape(replica: PlantedReplica) -> Expected:
    """The same records in other batches: not the bytes that the leader wrote."""
    segment, positions, offsets = second(replica)

    def split(batches: list[bytes]) -> list[bytes]:
        index = next(n for n, batch in enumerate(batches) if read_header(batch).record_count == 3)
        header = read_header(batches[index])
        epoch, values = header.partition_leader_epoch, [record.value for record in decode_records(batches[index])]
        parts = encode([(epoch, values[:1]), (epoch, values[1:])], header.base_offset)
        return [*batches[:index], *parts, *batches[index + 1 :]]

    counts = [end - start for start, end in pairwise(offsets)]
    at = counts.index(3)
    replica.rewrite(split, segment)
    return Expected(Kind.DIVERGED_BELOW_HIGH_WATERMARK, offsets[at], name_of(segment), positions[at])


def garble_index(replica: PlantedReplica) -> Expected:
    segment, _, _ = second(replica)
    file = replica.file(segment, ".index")
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    offset = int.from_bytes(content[:4], "big") + segment
    return Expected(Kind.INDEX_DAMAGE, offset, file.name, 0)


def garble_index_offset(replica: PlantedReplica) -> Expected:
    segment, _, _ = second(replica)
    file = replica.file(segment, ".index")
    content = bytearray(file.read_bytes())
    content[3] ^= 64
    file.write_bytes(content)
    return Expected(Kind.INDEX_DAMAGE, int.from_bytes(content[:4], "big") + segment, file.name, 0)


def garble_time_index(replica: PlantedReplica) -> Expected:
    segment, _, _ = second(replica)
    file = replica.file(segment, ".timeindex")
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    return Expected(Kind.INDEX_DAMAGE, int.from_bytes(content[8:12], "big") + segment, file.name, 0)


def cut_index(replica: PlantedReplica) -> Expected:
    segment, _, _ = second(replica)
    file = replica.file(segment, ".index")
    file.write_bytes(file.read_bytes()[:-3])
    return Expected(Kind.INDEX_DAMAGE, None, file.name, None)


def garble_epoch_checkpoint(replica: PlantedReplica) -> Expected:
    file = replica.directory / checkpoints.EPOCH_CHECKPOINT
    file.write_bytes(b"0\n2\n0 0\n")
    return Expected(Kind.CHECKPOINT_DAMAGE, None, file.name, None)


def false_epoch_checkpoint(replica: PlantedReplica) -> Expected:
    """According to the file, the second epoch began one batch earlier."""
    replica.write_epochs([(0, 0), (1, 6), (2, 19)])
    return Expected(Kind.EPOCH_CHECKPOINT, 0, name_of(0), 0)


def falling_epoch_checkpoint(replica: PlantedReplica) -> Expected:
    replica.write_epochs([(0, 0), (2, 9), (1, 19)])
    return Expected(Kind.EPOCH_CHECKPOINT, 19, checkpoints.EPOCH_CHECKPOINT, None)


def remove_epoch_checkpoint(replica: PlantedReplica) -> Expected:
    file = replica.directory / checkpoints.EPOCH_CHECKPOINT
    file.unlink()
    return Expected(Kind.EPOCH_CHECKPOINT, None, file.name, None)


ALL: Sequence[Damage] = (
    flip_bit,
    flip_length_bit,
    flip_offset_bit,
    cut_tail,
    cut_inside_last_batch,
    cut_inside_a_segment,
    swap_batches,
    swap_contents,
    remove_segment,
    remove_first_segment,
    remove_last_segment,
    remove_log,
    raise_epoch,
    raise_epoch_seen_by_replicas,
    lower_epoch,
    foreign_bytes_between_batches,
    foreign_bytes_over_batches,
    zeros_at_the_end,
    duplicate_batch,
    drop_batch,
    change_record,
    other_shape,
    garble_index,
    garble_index_offset,
    garble_time_index,
    cut_index,
    garble_epoch_checkpoint,
    false_epoch_checkpoint,
    falling_epoch_checkpoint,
    remove_epoch_checkpoint,
)
