"""One seed: data of a simulated cluster that the audit finds clean, one random damage, and the audit's result.

Owns: the definition of harm. A damage harms where an in-sync replica no longer holds everything that was committed as
it was before. This is determined here from the files, by the headers of their batches, without the audit's own readers.
"""

import random
from pathlib import Path
from typing import NamedTuple

import msgspec

from minibroker.audit.reports.report import AuditOutcome, AuditReport, describe
from minibroker.audit.run import run_audit
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.cluster_state import CLUSTER_STATE, format_cluster_state
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import CorruptBatch, check_batch, read_header
from tests.audit.planted_cluster import put
from tests.audit.random_damage.damages import DAMAGES, FOREIGN, Damage, Place
from tests.audit.random_damage.simulated_data import BROKERS, SimulatedData

Batches = list[tuple[int, int, int, int]]
"""(base offset, end offset, epoch, CRC) up to the first byte that is not a batch in order."""


class SeedResult(NamedTuple):
    """Result of one seed."""

    seed: int
    end: str
    clean: AuditOutcome
    damage: str
    is_harm: bool
    outcome: AuditOutcome
    false_error: str | None
    """An error reported on the clean data, or None."""
    first: str

    @property
    def is_fine(self) -> bool:
        """No error was reported on the clean data, and no harm was called consistent."""
        return self.false_error is None and not (self.is_harm and self.outcome is AuditOutcome.CONSISTENT)


def play(seed: int, root: Path) -> SeedResult:
    run = SimulatedData(seed, root)
    run.play()
    before = audited(run)
    false_error = false_error_on_clean_data(run)
    held, committed = batches_held(run), {partition: committed_offset(run, partition) for partition in run.partitions}
    chooser = random.Random(f"{seed}/which damage")
    while True:
        damage, place = chooser.choice(DAMAGES), Place(run, chooser)
        if is_done(damage, place):
            break
    is_harm = damage in FOREIGN or is_harmed(run, held, batches_held(run), committed)
    after = audited(run)
    first = describe(after.findings[0]) if after.findings else after.summary
    name = damage.__name__
    return SeedResult(
        seed, run.end, before.outcome, name, is_harm, after.outcome, false_error, f"{place.broker}: {first}"
    )


def is_done(damage: Damage, place: Place) -> bool:
    try:
        return damage(place)
    except (CorruptBatch, FileNotFoundError):
        return False  # a power cut left no log to change batch by batch, or the file does not exist


def audited(run: SimulatedData, *, acked: bool = True) -> AuditReport:
    return run_audit([str(run.root)], "local", str(run.acked_file) if acked else None)


def false_error_on_clean_data(run: SimulatedData) -> str | None:
    """An error on data that is as the brokers left it, whatever sources the audit has."""
    file = run.root / CLUSTER_STATE
    state = file.read_bytes()
    without_witness = format_cluster_state(msgspec.structs.replace(run.state, witnesses={}))
    try:
        for content in (state, without_witness, None):
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_bytes(content)
            for acked in (True, False):
                report = audited(run, acked=acked)
                if report.outcome is AuditOutcome.INCONSISTENT:
                    known = "no state file" if content is None else "a state file"
                    return f"{describe(report.findings[0])} (with {known}, {'a' if acked else 'no'} list)"
    finally:
        put(file, state)
    return None


def batches_held(run: SimulatedData) -> dict[tuple[int, TopicPartition], Batches]:
    return {
        (broker, partition): batches_of(run.log_directory(broker) / str(partition))
        for broker in BROKERS
        for partition in run.partitions
    }


def batches_of(directory: Path) -> Batches:
    found: Batches = []
    for file in sorted(directory.glob("*.log")):
        content, position = file.read_bytes(), 0
        while position < len(content):
            try:
                header = read_header(content, position)
                check_batch(content, position)
            except CorruptBatch:
                return found
            if found and header.base_offset != found[-1][1]:
                return found
            found.append((header.base_offset, header.end_offset, header.partition_leader_epoch, header.crc))
            position += header.size_bytes
    return found


def committed_offset(run: SimulatedData, partition: TopicPartition) -> int:
    """The highest offset shown by a high watermark, the witness or an acknowledgement."""
    known = [0, *(offset + 1 for offset in run.acked[partition])]
    witness = run.state.witnesses.get(str(partition))
    if witness is not None:
        known.append(witness.committed_offset)
    for broker in BROKERS:
        file = run.log_directory(broker) / checkpoints.HIGH_WATERMARK_CHECKPOINT
        if file.exists():
            known.append(checkpoints.parse_offset_checkpoint(file.read_bytes()).get(partition, 0))
    return max(known)


def is_harmed(
    run: SimulatedData,
    before: dict[tuple[int, TopicPartition], Batches],
    after: dict[tuple[int, TopicPartition], Batches],
    committed: dict[TopicPartition, int],
) -> bool:
    for (broker, partition), batches in before.items():
        if broker not in run.state.partitions[str(partition)].isr:
            continue
        # Records in front of the starts that the others have recorded may be deleted at any time.
        floor = min(recorded_start(run, each, partition) for each in BROKERS if each != broker)
        left = [batch for batch in after[broker, partition] if batch[1] > floor]
        promised = [batch for batch in batches if floor < batch[1] and batch[0] < committed[partition]]
        if left[: len(promised)] == promised or _as_a_power_cut_leaves_it(
            run, broker, partition, batches, after[broker, partition]
        ):
            continue
        return True
    return False


def recorded_start(run: SimulatedData, broker: int, partition: TopicPartition) -> int:
    """Of an in-sync replica."""
    file = run.log_directory(broker) / str(partition) / checkpoints.LOG_START
    if broker not in run.state.partitions[str(partition)].isr or not file.exists():
        return 1 << 62
    return checkpoints.parse_log_start(file.read_bytes())[0].offset


def _as_a_power_cut_leaves_it(
    run: SimulatedData, broker: int, partition: TopicPartition, batches: Batches, left: Batches
) -> bool:
    """Indistinguishable from the effect of a power cut, and the other replicas have the records."""
    file = run.log_directory(broker) / checkpoints.RECOVERY_POINT_CHECKPOINT
    points = checkpoints.parse_offset_checkpoint(file.read_bytes()) if file.exists() else {}
    end = left[-1][1] if left else 0
    return broker in run.without_power and batches[: len(left)] == left and end >= points.get(partition, 0)
