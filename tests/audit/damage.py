"""Every kind of damage the audit must see, each with what must be said of it.

Used by the test of each kind (local engine) and, all at once, by the test that Spark says the same.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minibroker.audit.findings import Kind
from minibroker.protocol import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from tests.audit.planted_cluster import PlantedCluster, PlantedReplica, encode, restamped, some_batches

BROKER = 2
"""The broker whose replica is damaged."""


class Expected(NamedTuple):
    kind: Kind
    offset: int | None
    file: str | None
    position: int | None


Damage = Callable[[PlantedCluster, TopicPartition], Expected]
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


def flip_bit(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    at = positions[1] + 80
    byte = replica.file(segment).read_bytes()[at]
    replica.patch(segment, at, bytes([byte ^ 4]))
    return Expected(Kind.CORRUPT_BATCH, offsets[1], name_of(segment), positions[1])


def flip_length_bit(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    at = positions[2] + 11
    byte = replica.file(segment).read_bytes()[at]
    replica.patch(segment, at, bytes([byte ^ 1]))
    return Expected(Kind.CORRUPT_BATCH, offsets[2], name_of(segment), positions[2])


def flip_offset_bit(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    """The base offset stands outside the CRC."""
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    at = positions[1] + 6
    byte = replica.file(segment).read_bytes()[at]
    replica.patch(segment, at, bytes([byte ^ 1]))
    return Expected(Kind.MISSING_RANGE, offsets[1], name_of(segment), positions[1])


def cut_tail(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    file = replica.rewrite(lambda batches: batches[:-1])
    last = read_header(ENCODED[-1])
    return Expected(Kind.MISSING_RANGE, last.base_offset, file.name, file.stat().st_size)


def cut_inside_last_batch(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    file = replica.rewrite(lambda batches: [*batches[:-1], batches[-1][:-5]])
    last = read_header(ENCODED[-1])
    return Expected(Kind.TORN_TAIL, last.base_offset, file.name, file.stat().st_size - (last.size_bytes - 5))


def cut_inside_a_segment(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [*batches[:-1], batches[-1][:30]], segment)
    return Expected(Kind.CORRUPT_BATCH, offsets[-1], name_of(segment), positions[-1])


def swap_batches(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    file = replica.rewrite(lambda batches: [batches[0], batches[2], batches[1], *batches[3:]], segment)
    size = read_header(file.read_bytes(), positions[1]).size_bytes
    return Expected(Kind.OUT_OF_ORDER, offsets[1], name_of(segment), positions[1] + size)


def swap_contents(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    """Two batches of equal length change places and take each other's offset: every CRC and offset is fine."""
    replica = cluster.replica(BROKER, partition)
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


def remove_segment(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segments = replica.segments
    replica.file(segments[1]).unlink()
    return Expected(Kind.MISSING_RANGE, segments[1], name_of(segments[2]), 0)


def remove_first_segment(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segments = replica.segments
    replica.file(segments[0]).unlink()
    return Expected(Kind.MISSING_RANGE, 0, name_of(segments[1]), 0)


def remove_last_segment(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segments = replica.segments
    replica.file(segments[-1]).unlink()
    kept = replica.file(segments[-2])
    return Expected(Kind.MISSING_RANGE, segments[-1], kept.name, kept.stat().st_size)


def remove_log(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    for segment in replica.segments:
        replica.file(segment).unlink()
    return Expected(Kind.MISSING_RANGE, 0, str(partition), None)


def raise_epoch(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[1] + 12, (9).to_bytes(4, "big"))
    return Expected(Kind.EPOCH_DECREASES, offsets[2], name_of(segment), positions[2])


def raise_epoch_seen_by_replicas(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[1] + 12, (9).to_bytes(4, "big"))
    return Expected(Kind.CONFLICTING_EPOCH, offsets[1], name_of(segment), positions[1])


def lower_epoch(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[-1] + 12, (0).to_bytes(4, "big"))
    return Expected(Kind.EPOCH_CHECKPOINT, offsets[-1], name_of(segment), positions[-1])


def foreign_bytes_between_batches(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [batches[0], b"MMMM foreign bytes " * 9, *batches[1:]], segment)
    return Expected(Kind.CORRUPT_BATCH, offsets[1], name_of(segment), positions[1])


def foreign_bytes_over_batches(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.patch(segment, positions[1] - 7, b"\x00" * (positions[2] - positions[1]))
    return Expected(Kind.CORRUPT_BATCH, offsets[0], name_of(segment), positions[0])


def zeros_at_the_end(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    file = replica.rewrite(lambda batches: [*batches, b"\x00" * 500])
    return Expected(Kind.CORRUPT_BATCH, read_header(ENCODED[-1]).end_offset, file.name, file.stat().st_size - 500)


def duplicate_batch(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [batches[0], batches[1], batches[1], *batches[2:]], segment)
    return Expected(Kind.OFFSET_OVERLAP, offsets[1], name_of(segment), positions[2])


def drop_batch(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    replica.rewrite(lambda batches: [batches[0], *batches[2:]], segment)
    return Expected(Kind.MISSING_RANGE, offsets[1], name_of(segment), positions[1])


def change_record(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    """A record is changed and the CRC computed anew: only the other replicas know."""
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)
    index = ENCODED.index(replica.file(segment).read_bytes()[positions[1] : positions[2]])
    epoch, values = BATCHES[index]
    forged = encode([(epoch, [b"forged" + (value or b"")[6:] for value in values])], offsets[1])[0]
    header = read_header(ENCODED[index])
    assert len(forged) == header.size_bytes
    replica.patch(segment, positions[1], forged)
    return Expected(Kind.DIVERGED_BELOW_HIGH_WATERMARK, offsets[1], name_of(segment), positions[1])


def other_shape(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    """The same records in other batches: not the bytes that the leader wrote."""
    replica = cluster.replica(BROKER, partition)
    segment, positions, offsets = second(replica)

    def split(batches: list[bytes]) -> list[bytes]:
        index = next(n for n, batch in enumerate(batches) if read_header(batch).record_count == 3)
        header = read_header(batches[index])
        whole = BATCHES[ENCODED.index(batches[index])]
        parts = encode([(whole[0], whole[1][:1]), (whole[0], whole[1][1:])], header.base_offset)
        return [*batches[:index], *parts, *batches[index + 1 :]]

    replica.rewrite(split, segment)
    index = next(n for n, batch in enumerate(ENCODED[4:], 4) if read_header(batch).record_count == 3)
    at = offsets.index(read_header(ENCODED[index]).base_offset)
    return Expected(Kind.DIVERGED_BELOW_HIGH_WATERMARK, offsets[at], name_of(segment), positions[at])


def garble_index(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, _, _ = second(replica)
    file = replica.file(segment, ".index")
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    offset = int.from_bytes(content[:4], "big") + segment
    return Expected(Kind.INDEX_DAMAGE, offset, file.name, 0)


def garble_index_offset(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, _, _ = second(replica)
    file = replica.file(segment, ".index")
    content = bytearray(file.read_bytes())
    content[3] ^= 64
    file.write_bytes(content)
    return Expected(Kind.INDEX_DAMAGE, int.from_bytes(content[:4], "big") + segment, file.name, 0)


def garble_time_index(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, _, _ = second(replica)
    file = replica.file(segment, ".timeindex")
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    return Expected(Kind.INDEX_DAMAGE, int.from_bytes(content[8:12], "big") + segment, file.name, 0)


def cut_index(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    segment, _, _ = second(replica)
    file = replica.file(segment, ".index")
    file.write_bytes(file.read_bytes()[:-3])
    return Expected(Kind.INDEX_DAMAGE, None, file.name, None)


def garble_epoch_checkpoint(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    replica = cluster.replica(BROKER, partition)
    file = replica.directory / checkpoints.EPOCH_CHECKPOINT
    file.write_bytes(b"0\n2\n0 0\n")
    return Expected(Kind.CHECKPOINT_DAMAGE, None, file.name, None)


def false_epoch_checkpoint(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    """The second epoch began one batch earlier, if one believes the file."""
    replica = cluster.replica(BROKER, partition)
    replica.write_epochs([(0, 0), (1, 6), (2, 19)])
    return Expected(Kind.EPOCH_CHECKPOINT, 0, name_of(0), 0)


def falling_epoch_checkpoint(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    cluster.replica(BROKER, partition).write_epochs([(0, 0), (2, 9), (1, 19)])
    return Expected(Kind.EPOCH_CHECKPOINT, 19, checkpoints.EPOCH_CHECKPOINT, None)


def remove_epoch_checkpoint(cluster: PlantedCluster, partition: TopicPartition) -> Expected:
    file = cluster.replica(BROKER, partition).directory / checkpoints.EPOCH_CHECKPOINT
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
