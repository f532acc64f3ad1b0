"""Damages of one, two or all three replicas: the rows of the table of losses.

Owns: the damages, and the lawful differences. The audit's results are not written here: the table shows them
(tests/docs/loss_table.py), and `test_losses` checks what must hold in every cell.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from minibroker.protocol.files import checkpoints
from minibroker.protocol.record_batch import BatchHeader, build_batch, decode_records, read_header
from tests.audit import damage
from tests.audit.damage import with_other_values
from tests.audit.losses.scene import BROKERS, LOG, Scene, witness_of
from tests.audit.planted_cluster import PlantedReplica, encode, restamped, some_batches

DAMAGED = {1: (2,), 2: (2, 3), 3: BROKERS}
"""Which brokers are damaged, by their number; broker 1 leads."""

Action = Callable[[Scene, Sequence[int]], None]
Change = Callable[[list[bytes]], list[bytes]]


class Row(NamedTuple):
    """One action, in words and as code."""

    what: str
    do: Action
    on: tuple[int, ...] = (1, 2, 3)
    """How many replicas (brokers, directories) it is applied to."""
    lawful: bool = False
    """Nothing is lost, and the audit must not report a loss."""
    numbered: bool = True
    """The producer numbers its batches, as clients of this project do."""


# ------------------------------------------------------------------------------------------------------------- helpers
def files(plant: Callable[[PlantedReplica], Any]) -> Action:
    """The same damage to the files of each replica."""

    def do(scene: Scene, brokers: Sequence[int]) -> None:
        for broker in brokers:
            plant(scene.replica(broker))

    return do


def another_log(change: Change, *, with_checkpoints: bool = True) -> Action:
    """A log that is valid in itself, with all files next to it; `with_checkpoints`: its checkpoints match, too."""

    def do(scene: Scene, brokers: Sequence[int]) -> None:
        scene.replace_log(change(list(scene.log)), brokers, with_checkpoints=with_checkpoints)

    return do


def renumbered(batches: Sequence[bytes]) -> list[bytes]:
    """Dense offsets again; the producer's sequences stay."""
    offset, result = 0, []
    for batch in batches:
        header = read_header(batch)
        result.append(restamped(batch, offset, header.partition_leader_epoch))
        offset += header.record_count
    return result


def _rebuilt(batch: bytes, key: bytes) -> bytes:
    header: BatchHeader = read_header(batch)
    records = [(key, kept.value, kept.timestamp_ms, kept.headers) for kept in decode_records(batch)]
    return bytes(
        build_batch(
            records,
            base_offset=header.base_offset,
            leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    )


def with_batch(number: int, change: Callable[[bytes], bytes]) -> Change:
    return lambda log: [*log[:number], change(log[number]), *log[number + 1 :]]


def swapped(log: list[bytes]) -> list[bytes]:
    return renumbered([*log[:5], log[8], *log[6:8], log[5], *log[9:]])


# ------------------------------------------------------------------------------------------------------------- absence
def remove_replica(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        shutil.rmtree(scene.replica(broker).directory)


def remove_replica_and_its_checkpoints(scene: Scene, brokers: Sequence[int]) -> None:
    remove_replica(scene, brokers)
    for broker in brokers:
        for name in (checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.RECOVERY_POINT_CHECKPOINT):
            (scene.cluster.log_directory(broker) / name).unlink()


def remove_broker(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        shutil.rmtree(scene.cluster.log_directory(broker))


# ------------------------------------------------------------------------------------------------------------- foreign
def other_topic_id(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        scene.replica(broker).write_snapshot(scene.log, "other-id")
        scene.replica(broker).write_metadata("other-id")
        scene.replica(broker).write_log_start(0, "other-id")


def other_partition(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        scene.replica(broker).write_metadata(partition=1)
        scene.replica(broker).write_log_start(0, partition=1)


def copy_of_another_broker(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        shutil.rmtree(scene.cluster.log_directory(broker))
        shutil.copytree(scene.cluster.log_directory(1), scene.cluster.log_directory(broker))


def other_disk(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        scene.cluster.replace_disk(broker)


def exchange_meta_properties(scene: Scene, brokers: Sequence[int]) -> None:
    paths = [scene.cluster.log_directory(broker) / checkpoints.META_PROPERTIES for broker in brokers]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(content)


def two_directories_of_the_partition(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        own = scene.replica(broker).directory
        shutil.copytree(own, own.with_name(f"{own.name}0"))


# ------------------------------------------------------------------------------------------------------------ metadata
def without_high_watermark(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        scene.cluster.set_high_watermark(broker, scene.partition, None)


def lowered_high_watermarks(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        scene.cluster.set_high_watermark(broker, scene.partition, 9)


def rewritten_above_a_lowered_high_watermark(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        changed = [*scene.log[:8], *map(with_other_values, scene.log[8:])]
        scene.replace_log(changed, [broker])
    lowered_high_watermarks(scene, brokers)


def rewritten_without_high_watermark(scene: Scene, brokers: Sequence[int]) -> None:
    rewritten_above_a_lowered_high_watermark(scene, brokers)
    without_high_watermark(scene, brokers)


def raised_log_start(scene: Scene, brokers: Sequence[int]) -> None:
    """The first segment is deleted, with everything else that retention does."""
    for broker in brokers:
        replica = scene.replica(broker)
        first, second, *_ = replica.segments
        for suffix in (".log", ".index", ".timeindex"):
            replica.file(first, suffix).unlink()
        replica.write_log_start(second)
        replica.write_epochs([(1, second), (2, 19)])


def without_log_start(replica: PlantedReplica) -> None:
    (replica.directory / checkpoints.LOG_START).unlink()


def snapshot_of_other_batches(replica: PlantedReplica) -> None:
    replica.write_snapshot([*replica.batches()[:-1], with_other_values(replica.batches()[-1])])


def garbled_checkpoint(name: str) -> Action:
    def do(scene: Scene, brokers: Sequence[int]) -> None:
        for broker in brokers:
            (scene.cluster.log_directory(broker) / name).write_bytes(b"0\n7\n")

    return do


def older_state_of_the_cluster(scene: Scene, brokers: Sequence[int]) -> None:
    scene.cluster.write_state(scene.partition, 1, 1, BROKERS)
    state = scene.cluster.state.partitions[str(scene.partition)]
    assert state.leader_epoch < 2


def garbled_state(scene: Scene, brokers: Sequence[int]) -> None:
    scene.state_is_garbled = True


# --------------------------------------------------------------------------------------------------------- permissions
def no_permission(scene: Scene, brokers: Sequence[int]) -> None:
    for broker in brokers:
        scene.unreadable.add(str(scene.replica(broker).file(9).resolve()))


def segment_does_not_open(replica: PlantedReplica) -> None:
    file = replica.file(9)
    file.unlink()
    file.symlink_to(file.name)


# -------------------------------------------------------------------------------------------------------------- lawful
def nothing_done(scene: Scene, brokers: Sequence[int]) -> None:
    assert not brokers or scene.log


def lagging_out_of_sync(scene: Scene, brokers: Sequence[int]) -> None:
    scene.replace_log(scene.log[:8], brokers)
    _out_of_sync(scene, brokers)


def _out_of_sync(scene: Scene, brokers: Sequence[int]) -> None:
    isr = [broker for broker in BROKERS if broker not in brokers]
    scene.cluster.write_state(scene.partition, isr[0], 2, isr)
    scene.witness = replace(scene.witness, isr=tuple(isr))


def tail_of_a_deposed_leader(scene: Scene, brokers: Sequence[int]) -> None:
    """It wrote these records alone, under its earlier epoch, when the others had elected another leader."""
    kept = scene.log[:10]
    end = read_header(kept[-1]).end_offset
    own = encode([(1, [b"never committed"]), (1, [b"nor this"])], end)
    scene.replace_log([*kept, *own], brokers)
    for broker in brokers:
        scene.cluster.set_high_watermark(broker, scene.partition, end)
    _out_of_sync(scene, brokers)


def absent_out_of_sync(scene: Scene, brokers: Sequence[int]) -> None:
    remove_replica_and_its_checkpoints(scene, brokers)
    _out_of_sync(scene, brokers)


def trimmed_by_retention(scene: Scene, brokers: Sequence[int]) -> None:
    """All in-sync replicas have recorded the new start, and the witness contains it; not all have deleted yet."""
    raised_log_start(scene, brokers)
    for broker in BROKERS:
        scene.replica(broker).write_log_start(9)
        scene.replica(broker).write_epochs([(1, 9), (2, 19)])
    scene.witness = witness_of([batch for batch in scene.log if read_header(batch).base_offset >= 9])


def killed_with_old_high_watermarks(scene: Scene, brokers: Sequence[int]) -> None:
    """The last batch was not committed yet and is on broker 1 only; high watermarks and witness are some seconds
    old."""
    scene.killed.update(BROKERS)
    scene.replace_log(scene.log[:-1], brokers)
    for broker in BROKERS:
        scene.cluster.set_high_watermark(broker, scene.partition, 9)
        scene.cluster.set_recovery_point(broker, scene.partition, 9)
    scene.witness = witness_of(scene.log[:8])
    scene.acked = scene.log[:-1]


def lost_power(scene: Scene, brokers: Sequence[int]) -> None:
    """Its unsynced records are gone, and it has not been started since."""
    for broker in brokers:
        scene.replica(broker).write(scene.log[:8])
        scene.cluster.set_recovery_point(broker, scene.partition, 9)
    scene.cluster.lose_power(*brokers)
    scene.killed.update(brokers)


def torn_write(scene: Scene, brokers: Sequence[int]) -> None:
    """A batch that was being written when its broker was killed."""
    scene.killed.update(brokers)
    end = read_header(scene.log[-1]).end_offset
    torn = encode([(2, [b"not acknowledged"])], end)[0][:40]
    for broker in brokers:
        replica = scene.replica(broker)
        file = replica.file(replica.segments[-1])
        file.write_bytes(file.read_bytes() + torn)


def witnessed_before(scene: Scene, brokers: Sequence[int]) -> None:
    """Records were committed after the witness was written."""
    scene.killed.update(brokers)
    scene.witness = witness_of(scene.log[:8])


def checkpoints_of_a_former_topic(scene: Scene, brokers: Sequence[int]) -> None:
    """The topic was created again under its name, and the brokers were killed before they rewrote their checkpoints."""
    scene.killed.update(brokers)
    for broker in brokers:
        for name in (checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.RECOVERY_POINT_CHECKPOINT):
            content = checkpoints.format_offset_checkpoint({scene.partition: 900}, {scene.partition: "former-id"})
            (scene.cluster.log_directory(broker) / name).write_bytes(content)
    if len(brokers) == len(BROKERS):
        scene.witness = witness_of(scene.log, "former-id")


def former_topic(scene: Scene, brokers: Sequence[int]) -> None:
    """These were down while the topic was deleted and created again on the others."""
    other_topic_id(scene, brokers)
    for broker in brokers:
        offsets = {scene.partition: 24}
        for name in (checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.RECOVERY_POINT_CHECKPOINT):
            content = checkpoints.format_offset_checkpoint(offsets, {scene.partition: "other-id"})
            (scene.cluster.log_directory(broker) / name).write_bytes(content)
    isr = [broker for broker in BROKERS if broker not in brokers]
    scene.cluster.write_state(scene.partition, isr[0], 2, isr, replicas=isr)
    scene.witness = replace(scene.witness, isr=tuple(isr))


def without_indexes(replica: PlantedReplica) -> None:
    for segment in replica.segments:
        for suffix in (".index", ".timeindex"):
            replica.file(segment, suffix).unlink()


def epoch_without_a_batch(replica: PlantedReplica) -> None:
    replica.write_epochs([(0, 0), (1, 9), (2, 19), (5, 24)])


def lost(scene: Scene, brokers: Sequence[int]) -> None:
    """Older backup of the whole directories of these brokers."""
    scene.replace_log(scene.log[:6], brokers)


LOSSES: tuple[Row, ...] = (
    Row("replica's directory removed", remove_replica),
    Row("the same, and its broker's checkpoints", remove_replica_and_its_checkpoints),
    Row("broker's directory removed", remove_broker),
    Row("all segments of a replica removed", files(damage.remove_log)),
    Row("first segment removed", files(damage.remove_first_segment)),
    Row("middle segment removed", files(damage.remove_segment)),
    Row("last segment removed", files(damage.remove_last_segment)),
    Row("last batch cut off", files(damage.cut_tail)),
    Row("cut inside the last batch", files(damage.cut_inside_last_batch)),
    Row("older backup of the replica's directory", another_log(lambda log: log[:6], with_checkpoints=False)),
    Row("older backup of the broker's directory", lost),
    Row("bit flipped in a batch", files(damage.flip_bit)),
    Row("bit flipped in a base offset", files(damage.flip_offset_bit)),
    Row("leader epoch of a batch raised", files(damage.raise_epoch_seen_by_replicas)),
    Row("foreign bytes between batches", files(damage.foreign_bytes_between_batches)),
    Row("two batches swapped in the file", files(damage.swap_batches)),
    Row("two batches swapped, offsets set to fit", another_log(swapped)),
    Row("value rewritten, CRC set to fit", another_log(with_batch(4, with_other_values))),
    Row("key rewritten, CRC set to fit", another_log(with_batch(4, lambda batch: _rebuilt(batch, b"K")))),
    Row("same records in other batches", files(damage.other_shape)),
    Row("batch twice in the file", files(damage.duplicate_batch)),
    Row("batch appended twice", another_log(lambda log: renumbered([*log[:5], *log[4:]]))),
    Row(
        "the same, of a producer without numbers",
        another_log(lambda log: renumbered([*log[:5], *log[4:]])),
        numbered=False,
    ),
    Row("batch removed", files(damage.drop_batch)),
    Row("batch removed, the rest renumbered", another_log(lambda log: renumbered([*log[:4], *log[5:]]))),
    Row(
        "the same, of a producer without numbers",
        another_log(lambda log: renumbered([*log[:4], *log[5:]])),
        numbered=False,
    ),
    Row(
        "all leader epochs set to the last",
        another_log(lambda log: [restamped(each, read_header(each).base_offset, 2) for each in log]),
    ),
    Row("another topic id", other_topic_id),
    Row("directory of another partition", other_partition),
    Row("copy of broker 1's directory in its place", copy_of_another_broker, (1, 2)),
    Row("another disk (directory id)", other_disk),
    Row("`meta.properties` swapped", exchange_meta_properties, (2, 3)),
    Row("high watermark missing", without_high_watermark),
    Row("high watermark missing, last records rewritten", rewritten_without_high_watermark),
    Row("high watermark lowered, records above rewritten", rewritten_above_a_lowered_high_watermark),
    Row("log start raised, head deleted", raised_log_start),
    Row("`leader-epoch-checkpoint` removed", files(damage.remove_epoch_checkpoint)),
    Row("epoch history contradicts the batches", files(damage.false_epoch_checkpoint)),
    Row("index entry garbled", files(damage.garble_index)),
    Row("producer snapshot names another batch", files(snapshot_of_other_batches)),
    Row("checkpoint of the high watermarks garbled", garbled_checkpoint(checkpoints.HIGH_WATERMARK_CHECKPOINT)),
    Row("`meta.properties` garbled", garbled_checkpoint(checkpoints.META_PROPERTIES)),
    Row("segment without permission to read", no_permission),
    Row("segment that does not open", files(segment_does_not_open)),
    Row("state or ZooKeeper older than the logs", older_state_of_the_cluster, (3,)),
    Row("`cluster-state.json` garbled", garbled_state, (3,)),
)

LAWFUL: tuple[Row, ...] = tuple(
    row._replace(lawful=True)
    for row in (
        Row("nothing", nothing_done, (3,)),
        Row("a replica lags, out of sync", lagging_out_of_sync, (1,)),
        Row("uncommitted tail of a deposed leader, out of sync", tail_of_a_deposed_leader, (1,)),
        Row("no replica on a broker that was out of sync", absent_out_of_sync, (1, 2)),
        Row("head trimmed by retention", trimmed_by_retention),
        Row("killed; without the last batch", killed_with_old_high_watermarks, (1, 2)),
        Row("killed inside a write", torn_write),
        Row("power lost, not started since", lost_power, (1, 2)),
        Row("records committed since the witness, killed", witnessed_before, (3,)),
        Row("checkpoints of a former topic of the name, killed", checkpoints_of_a_former_topic),
        Row("a former topic on a broker that was down", former_topic, (1, 2)),
        Row("high watermark some records behind", lowered_high_watermarks),
        Row("a folder `lines-00` next to `lines-0`", two_directories_of_the_partition),
        Row("`log-start` removed where the log begins at 0", files(without_log_start)),
        Row("indexes removed (brokers rebuild them)", files(without_indexes)),
        Row("leader epoch without a batch", files(epoch_without_a_batch)),
    )
)

ROWS = LOSSES + LAWFUL


def scene_of(row: Row, count: int, root: Path, name: str = "lines") -> Scene:
    """The scene after this row was applied to `count` replicas."""
    scene = Scene(root, name, LOG if row.numbered else encode(some_batches()))
    row.do(scene, DAMAGED[count])
    return scene


# ------------------------------------------------------------------------------------------- the same, at every place
def exchanged(log: list[bytes], number: int) -> list[bytes]:
    other = (number + 1) % len(log)
    log[number], log[other] = log[other], log[number]
    return renumbered(log)


def with_flipped_bit(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


ANYWHERE: dict[str, Callable[[list[bytes], int], list[bytes]]] = {
    "rewritten": lambda log, number: with_batch(number, with_other_values)(log),
    "flipped": lambda log, number: with_batch(number, with_flipped_bit)(log),
    "taken-out": lambda log, number: renumbered([*log[:number], *log[number + 1 :]]),
    "twice": lambda log, number: renumbered([*log[: number + 1], *log[number:]]),
    "exchanged": exchanged,
}
"""Applied to one batch of a log, including the first and the last one of a segment."""
PLACES = [(name, number, count) for name in ANYWHERE for number in range(len(LOG)) for count in (1, 3)]


def scene_at(name: str, number: int, count: int, root: Path, topic: str = "lines") -> Scene:
    """The batch may change where the segments meet; indexes and histories match."""
    scene = Scene(root, topic)
    another_log(lambda log: ANYWHERE[name](log, number))(scene, DAMAGED[count])
    return scene
