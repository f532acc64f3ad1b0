"""One seed: data of a simulated cluster that the audit finds clean, one random damage, and what the audit says of it.

Owns: what harm is. A damage harms where an in-sync replica no longer holds all that was committed as it was before.
That is worked out here from the files, by the headers of their batches, past the audit's own readers.
"""

import random
from pathlib import Path
from typing import NamedTuple

import msgspec

from minibroker.audit.report import AuditOutcome, AuditReport, describe
from minibroker.audit.run import run_audit
from minibroker.protocol import checkpoints
from minibroker.protocol.cluster_state import CLUSTER_STATE, format_cluster_state
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import CorruptBatch, check_batch, read_header
from tests.audit.planted_cluster import put
from tests.audit.random_damage.damages import DAMAGES, FOREIGN, Damage, Place
from tests.audit.random_damage.simulated_data import BROKERS, Run

Batches = list[tuple[int, int, int, int]]
"""(base offset, end offset, epoch, CRC) up to the first byte that is no batch in order."""


class Told(NamedTuple):
    """What came of one seed."""

    seed: int
    end: str
    clean: AuditOutcome
    damage: str
    is_harm: bool
    outcome: AuditOutcome
    accused: str | None
    """Of the clean data, or None."""
    first: str

    @property
    def is_fine(self) -> bool:
        """The clean data was not accused, and a harm was not called consistent."""
        return self.accused is None and not (self.is_harm and self.outcome is AuditOutcome.CONSISTENT)


def play(seed: int, root: Path) -> Told:
    run = Run(seed, root)
    run.play()
    before = audited(run)
    accused = accusation(run)
    held, committed = must_reach(run), {partition: committed_offset(run, partition) for partition in run.partitions}
    chooser = random.Random(f"{seed}/which damage")
    while True:
        damage, place = chooser.choice(DAMAGES), Place(run, chooser)
        if is_done(damage, place):
            break
    is_harm = damage in FOREIGN or is_harmed(run, held, must_reach(run), committed)
    after = audited(run)
    first = describe(after.findings[0]) if after.findings else after.summary
    name = damage.__name__
    return Told(seed, run.end, before.outcome, name, is_harm, after.outcome, accused, f"{place.broker}: {first}")


def is_done(damage: Damage, place: Place) -> bool:
    try:
        return damage(place)
    except (CorruptBatch, FileNotFoundError):
        return False  # what a power cut has left is no log to change batch by batch, or the replica has no such file


def audited(run: Run, *, acked: bool = True) -> AuditReport:
    return run_audit([str(run.root)], "local", str(run.acked_file) if acked else None)


def accusation(run: Run) -> str | None:
    """Of data that is as the brokers left it, whatever the audit knows."""
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


def must_reach(run: Run) -> dict[tuple[int, TopicPartition], Batches]:
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


def committed_offset(run: Run, partition: TopicPartition) -> int:
    """As far as a mark, the witness or an acknowledgement says."""
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
    run: Run,
    before: dict[tuple[int, TopicPartition], Batches],
    after: dict[tuple[int, TopicPartition], Batches],
    committed: dict[TopicPartition, int],
) -> bool:
    for (broker, partition), batches in before.items():
        if broker not in run.state.partitions[str(partition)].isr:
            continue
        # What lies in front of the starts that the others have recorded may be deleted at any time.
        floor = min(recorded_start(run, each, partition) for each in BROKERS if each != broker)
        left = [batch for batch in after[broker, partition] if batch[1] > floor]
        promised = [batch for batch in batches if floor < batch[1] and batch[0] < committed[partition]]
        if left[: len(promised)] == promised or _as_a_power_cut_leaves_it(
            run, broker, partition, batches, after[broker, partition]
        ):
            continue
        return True
    return False


def recorded_start(run: Run, broker: int, partition: TopicPartition) -> int:
    """Of a replica in sync."""
    file = run.log_directory(broker) / str(partition) / checkpoints.LOG_START
    if broker not in run.state.partitions[str(partition)].isr or not file.exists():
        return 1 << 62
    return checkpoints.parse_log_start(file.read_bytes())[0].offset


def _as_a_power_cut_leaves_it(
    run: Run, broker: int, partition: TopicPartition, batches: Batches, left: Batches
) -> bool:
    """Nothing tells it from what a power cut takes, and the other replicas have it."""
    file = run.log_directory(broker) / checkpoints.RECOVERY_POINT_CHECKPOINT
    points = checkpoints.parse_offset_checkpoint(file.read_bytes()) if file.exists() else {}
    end = left[-1][1] if left else 0
    return broker in run.without_power and batches[: len(left)] == left and end >= points.get(partition, 0)
