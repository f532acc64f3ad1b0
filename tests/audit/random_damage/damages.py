"""Random damages of real files: the catalogue of the table of losses, on logs of any shape.

Owns: the damages, at places that the seed's generator chooses. Each returns False where the data has no place for it.
Leaves to others: the audit's results.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import LogStart, LogStartReason
from minibroker.protocol.files.meta_properties import format_meta_properties, parse_meta_properties
from minibroker.protocol.files.partition_metadata import PartitionMetadata, format_partition_metadata
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from tests.audit.damage import with_other_values
from tests.audit.planted_cluster import put, restamped, split_batches
from tests.audit.random_damage.simulated_data import BROKERS, SimulatedData

HIGH_WATERMARKS = checkpoints.HIGH_WATERMARK_CHECKPOINT

Batches = list[bytes]


class Place:
    """One replica, chosen at random."""

    def __init__(self, run: SimulatedData, chooser: random.Random) -> None:
        self.run = run
        self.chooser = chooser
        self.broker = chooser.choice(BROKERS)
        self.partition = chooser.choice(run.partitions)

    @property
    def log_directory(self) -> Path:
        return self.run.log_directory(self.broker)

    @property
    def directory(self) -> Path:
        return self.log_directory / str(self.partition)

    def segments(self) -> list[Path]:
        """Those that are not empty, in order."""
        return [file for file in sorted(self.directory.glob("*.log")) if file.stat().st_size]

    def change_batches(self, change: Callable[[Batches], Batches], least: int = 1, *, last: bool = False) -> bool:
        """Of one segment."""
        files = [file for file in self.segments() if len(split_batches(file.read_bytes())) >= least]
        if not files:
            return False
        file = files[-1] if last else self.chooser.choice(files)
        put(file, b"".join(change(split_batches(file.read_bytes()))))
        return True

    def change_bytes(self, change: Callable[[bytearray, int], None], files: list[Path]) -> bool:
        files = [file for file in files if file.is_file() and file.stat().st_size]
        if not files:
            return False
        file = self.chooser.choice(sorted(files))
        content = bytearray(file.read_bytes())
        change(content, self.chooser.randrange(len(content)))
        put(file, bytes(content))
        return True


Damage = Callable[[Place], bool]


# ------------------------------------------------------------------------------------------------------------- absence
def replica_removed(place: Place) -> bool:
    shutil.rmtree(place.directory)
    return True


def broker_removed(place: Place) -> bool:
    shutil.rmtree(place.log_directory)
    return True


def segment_removed(place: Place) -> bool:
    files = place.segments()
    if files:
        place.chooser.choice(files).unlink()
    return bool(files)


def small_file_removed(place: Place) -> bool:
    files = [file for file in sorted(place.directory.iterdir()) if file.suffix != ".log"]
    place.chooser.choice(files).unlink()
    return True


# ------------------------------------------------------------------------------------------------------------- content
def cut_anywhere(place: Place) -> bool:
    def cut(content: bytearray, at: int) -> None:
        del content[at:]

    return place.change_bytes(cut, place.segments())


def last_batches_cut_off(place: Place) -> bool:
    return place.change_batches(lambda batches: batches[: place.chooser.randrange(len(batches))], last=True)


def bit_flipped(place: Place) -> bool:
    def flip(content: bytearray, at: int) -> None:
        content[at] ^= 1 << place.chooser.randrange(8)

    return place.change_bytes(flip, place.segments())


def bit_flipped_in_a_small_file(place: Place) -> bool:
    def flip(content: bytearray, at: int) -> None:
        content[at] ^= 1 << place.chooser.randrange(8)

    files = [file for file in place.directory.iterdir() if file.suffix != ".log"]
    return place.change_bytes(flip, files + [file for file in place.log_directory.iterdir() if file.is_file()])


def foreign_bytes(place: Place) -> bool:
    def insert(content: bytearray, at: int) -> None:
        content[at:at] = place.chooser.randbytes(place.chooser.randrange(1, 200))

    return place.change_bytes(insert, place.segments())


def batches_exchanged(place: Place) -> bool:
    def exchange(batches: list[bytes]) -> list[bytes]:
        at = place.chooser.randrange(len(batches) - 1)
        return [*batches[:at], batches[at + 1], batches[at], *batches[at + 2 :]]

    return place.change_batches(exchange, 2)


def batch_taken_out(place: Place) -> bool:
    def take_out(batches: list[bytes]) -> list[bytes]:
        at = place.chooser.randrange(len(batches))
        return [*batches[:at], *batches[at + 1 :]]

    return place.change_batches(take_out, 2)


def batch_twice(place: Place) -> bool:
    def repeat(batches: list[bytes]) -> list[bytes]:
        at = place.chooser.randrange(len(batches))
        return [*batches[: at + 1], *batches[at:]]

    return place.change_batches(repeat)


def value_rewritten(place: Place) -> bool:
    def rewrite(batches: list[bytes]) -> list[bytes]:
        at = place.chooser.randrange(len(batches))
        return [*batches[:at], with_other_values(batches[at]), *batches[at + 1 :]]

    return place.change_batches(rewrite)


def epoch_raised(place: Place) -> bool:
    def raise_epoch(batches: list[bytes]) -> list[bytes]:
        at = place.chooser.randrange(len(batches))
        header = read_header(batches[at])
        batches[at] = restamped(batches[at], header.base_offset, header.partition_leader_epoch + 1)
        return batches

    return place.change_batches(raise_epoch)


def taken_out_and_renumbered(place: Place) -> bool:
    def take_out(batches: list[bytes]) -> list[bytes]:
        at = place.chooser.randrange(len(batches) - 1)
        return _renumbered([*batches[:at], *batches[at + 1 :]], read_header(batches[0]).base_offset)

    return place.change_batches(take_out, 2, last=True)


def appended_twice(place: Place) -> bool:
    def repeat(batches: list[bytes]) -> list[bytes]:
        at = place.chooser.randrange(len(batches))
        return _renumbered([*batches[: at + 1], *batches[at:]], read_header(batches[0]).base_offset)

    return place.change_batches(repeat, last=True)


def _renumbered(batches: list[bytes], offset: int) -> list[bytes]:
    result = []
    for batch in batches:
        header = read_header(batch)
        result.append(restamped(batch, offset, header.partition_leader_epoch))
        offset += header.record_count
    return result


def value_rewritten_on_all(place: Place) -> bool:
    """The same batch of every replica that holds it."""
    if not place.segments():
        return False
    chosen = place.chooser.choice(split_batches(place.chooser.choice(place.segments()).read_bytes()))
    for broker in BROKERS:
        for file in sorted((place.run.log_directory(broker) / str(place.partition)).glob("*.log")):
            content = file.read_bytes()
            if chosen in content:
                put(file, content.replace(chosen, with_other_values(chosen)))
    return True


# ------------------------------------------------------------------------------------------------------------- backups
def older_backup_of_the_replica(place: Place) -> bool:
    return _restore(place, f"{place.partition}/")


def older_backup_of_the_broker(place: Place) -> bool:
    return _restore(place, "")


def older_backup_of_all(place: Place) -> bool:
    for place.broker in BROKERS:
        _restore(place, "")
    return True


def _restore(place: Place, prefix: str) -> bool:
    files = {name: content for name, content in place.run.older[place.broker].items() if name.startswith(prefix)}
    if not files:
        return False
    shutil.rmtree(place.log_directory / prefix)
    place.run.write_broker(place.broker, files)
    return True


# ------------------------------------------------------------------------------------------------------------- foreign
def another_topic_id(place: Place) -> bool:
    number = place.partition.partition
    metadata = PartitionMetadata(topic_id="another", partition=number)
    put(place.directory / checkpoints.PARTITION_METADATA, format_partition_metadata(metadata))
    start = checkpoints.parse_log_start((place.directory / checkpoints.LOG_START).read_bytes())[0]
    start = msgspec.structs.replace(start, topic_id="another")
    put(place.directory / checkpoints.LOG_START, checkpoints.format_log_start(start))
    return True


def another_partition(place: Place) -> bool:
    others = [each for each in place.run.partitions if each != place.partition]
    if not others:
        return False
    shutil.rmtree(place.directory)
    shutil.copytree(place.log_directory / str(place.chooser.choice(others)), place.directory)
    return True


def copy_of_another_broker(place: Place) -> bool:
    other = place.chooser.choice([broker for broker in BROKERS if broker != place.broker])
    shutil.rmtree(place.log_directory)
    shutil.copytree(place.run.log_directory(other), place.log_directory)
    return True


def meta_properties_exchanged(place: Place) -> bool:
    other = place.chooser.choice([broker for broker in BROKERS if broker != place.broker])
    result, two = (place.run.log_directory(broker) / checkpoints.META_PROPERTIES for broker in (place.broker, other))
    first, second = result.read_bytes(), two.read_bytes()
    put(result, second)
    put(two, first)
    return True


def another_disk(place: Place) -> bool:
    file = place.log_directory / checkpoints.META_PROPERTIES
    meta = msgspec.structs.replace(parse_meta_properties(file.read_bytes()), directory_id="another")
    put(file, format_meta_properties(meta))
    return True


# ------------------------------------------------------------------------------------------------------------ metadata
def high_watermark_removed(place: Place) -> bool:
    return _change_offset(place, lambda _: None)


def high_watermark_lowered_and_tail_cut(place: Place) -> bool:
    """To the first offset of one of the last segment's batches: log and high watermark match."""
    files = place.segments()
    if not files:
        return False
    batches = split_batches(files[-1].read_bytes())
    kept = place.chooser.randrange(len(batches))
    put(files[-1], b"".join(batches[:kept]))
    end = read_header(batches[kept]).base_offset
    _change_offset(place, lambda offset: min(offset, end), checkpoints.RECOVERY_POINT_CHECKPOINT)
    return _change_offset(place, lambda offset: min(offset, end))


def _change_offset(place: Place, change: Callable[[int], int | None], name: str = HIGH_WATERMARKS) -> bool:
    file = place.log_directory / name
    if not file.exists():
        return False
    content = file.read_bytes()
    high_watermarks: dict[TopicPartition, int] = dict(checkpoints.parse_offset_checkpoint(content))
    ids = checkpoints.parse_checkpoint_topic_ids(content)
    if place.partition not in high_watermarks:
        return False
    changed = change(high_watermarks.pop(place.partition))
    if changed is not None:
        high_watermarks[place.partition] = changed
    put(file, checkpoints.format_offset_checkpoint(high_watermarks, ids))
    return True


def log_start_raised(place: Place) -> bool:
    """And the first segment is deleted, as retention does."""
    files = place.segments()
    if len(files) < 2:
        return False
    start = checkpoints.parse_log_start((place.directory / checkpoints.LOG_START).read_bytes())[0]
    raised = LogStart(
        topic_id=start.topic_id,
        partition=start.partition,
        offset=int(files[1].stem),
        reason=LogStartReason.RETENTION,
    )
    put(place.directory / checkpoints.LOG_START, checkpoints.format_log_start(raised))
    for file in sorted(place.directory.glob(f"{files[0].stem}.*")):
        file.unlink()
    history = place.directory / checkpoints.EPOCH_CHECKPOINT
    if history.exists():
        entries = list(checkpoints.parse_epoch_checkpoint(history.read_bytes()))
        at = max((n for n, (_, begin) in enumerate(entries) if begin <= raised.offset), default=0)
        kept = [(entries[at][0], max(entries[at][1], raised.offset)), *entries[at + 1 :]]
        put(history, checkpoints.format_epoch_checkpoint(kept))
    return True


DAMAGES: tuple[Damage, ...] = (
    replica_removed,
    broker_removed,
    segment_removed,
    small_file_removed,
    cut_anywhere,
    last_batches_cut_off,
    bit_flipped,
    bit_flipped_in_a_small_file,
    foreign_bytes,
    batches_exchanged,
    batch_taken_out,
    batch_twice,
    value_rewritten,
    epoch_raised,
    taken_out_and_renumbered,
    appended_twice,
    value_rewritten_on_all,
    older_backup_of_the_replica,
    older_backup_of_the_broker,
    older_backup_of_all,
    another_topic_id,
    another_partition,
    copy_of_another_broker,
    meta_properties_exchanged,
    another_disk,
    high_watermark_removed,
    high_watermark_lowered_and_tail_cut,
    log_start_raised,
)
FOREIGN = frozenset({another_partition, copy_of_another_broker, meta_properties_exchanged, another_disk})
"""The records may be the same as before, but they belong elsewhere, and the audit must report that."""
