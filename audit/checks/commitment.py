"""What of a partition is known to be committed, and which replicas must hold it. Pure.

Owns: the committed offset of a partition, which replicas were in sync, how far two replicas must be equal, and what
missing high watermarks leave open. A high watermark proves that everything below it is committed, whichever source has
it; so does a witness.
"""

from collections.abc import Collection, Sequence

import msgspec

from minibroker.audit.checks.expectation import ExpectedPartition
from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.audit.reading.content import Content
from minibroker.audit.reading.replica import AuditedReplica, ReplicaFacts
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.witness import PartitionWitness


class Commitment(msgspec.Struct, frozen=True, kw_only=True):
    """What is known to be committed in one partition."""

    in_sync: frozenset[int] | None
    """None: unknown."""
    committed: int
    """Everything below it is committed. Records above it may be committed as well, unless `is_exact`."""
    is_exact: bool
    """Every in-sync broker was stopped cleanly and recorded its high watermark: above it nothing is committed."""
    witness: PartitionWitness | None
    """Of this topic."""
    before: frozenset[int] = frozenset()
    """In sync when the cluster was about to stop."""
    committed_before: int = 0
    """Each member of `before` held everything below it."""

    def must_hold(self, content: Content) -> int:
        """Below this offset the replica must hold what was committed; 0 if unknown."""
        return max(self.must_reach(content.replica.broker), 0 if self.is_member(content) else content.high_watermark)

    def is_member(self, content: Content) -> bool:
        return self.in_sync is not None and content.replica.broker in self.in_sync

    def must_reach(self, broker: int) -> int:
        """The offset that the broker's log must reach, regardless of its own files."""
        if self.in_sync is None:
            return 0
        if broker in self.in_sync:
            return self.committed
        return self.committed_before if broker in self.before else 0

    def settled(self, left: Content, right: Content, start: int) -> bool:
        """Whether a difference of two replicas from `start` on, above what both must hold, is known to be no loss: one
        of them is out of sync and follows again, or nothing there is committed."""
        if self.in_sync is None:
            return False
        both = left.replica.broker in self.in_sync and right.replica.broker in self.in_sync
        return not both or (self.is_exact and start >= self.committed)


def commitment_of(
    partition: TopicPartition,
    expected: ExpectedPartition,
    contents: Sequence[Content],
    contradicted: Collection[int] = (),
) -> tuple[Commitment, list[Finding]]:
    """The commitment, and how its sources contradict the logs. `contradicted`: brokers that do not hold what was
    witnessed; their own high watermark proves nothing about the others' logs."""
    found: list[Finding] = []
    witness = _own_witness(expected, contents)
    in_sync = frozenset(expected.isr) if expected.leader_epoch is not None else None
    whole = expected.is_whole and expected.stopped
    for content in contents:
        newest = max(content.replica.columns.epochs, default=0)
        if expected.leader_epoch is None or newest <= expected.leader_epoch:
            continue
        broker = content.replica.broker
        message = f"{expected.source} knows leader epoch {expected.leader_epoch}, the log of broker {broker} {newest}"
        if whole:
            message += ": written to after the cluster was stopped, or an epoch is forged"
        else:
            message += ": its ISR is not used"
            in_sync = None
        item = _finding(partition, Kind.STALE_CLUSTER_STATE, message, note=not whole)
        found.append(msgspec.structs.replace(item, broker=broker))
    trusted = [content.replica for content in contents if content.replica.broker not in contradicted]
    offsets = [replica.facts.high_watermark or 0 for replica in trusted]
    before = expected.committed_before or 0
    committed = max([*offsets, before, witness.committed_offset if witness is not None else 0])
    members = [content for content in contents if in_sync is not None and content.replica.broker in in_sync]
    commitment = Commitment(
        in_sync=in_sync,
        committed=committed,
        is_exact=bool(members) and all(_is_exact(each.replica.facts) for each in members),
        witness=witness,
        before=frozenset(expected.isr_before),
        committed_before=before,
    )
    found += _missing_high_watermarks(commitment, contents)
    found += _too_short(partition, expected, commitment, contents)
    found += _missing_heads(partition, commitment, contents)
    return commitment, found


def _is_exact(facts: ReplicaFacts) -> bool:
    return facts.cleanly_stopped and facts.high_watermark is not None


def _own_witness(expected: ExpectedPartition, contents: Sequence[Content]) -> PartitionWitness | None:
    """The witness, unless it is of a former topic of this name."""
    witness = expected.witness
    ids = {content.replica.facts.topic_id for content in contents} - {None}
    known = {expected.topic_id} if expected.topic_id is not None else ids
    return witness if witness is not None and (not known or witness.topic_id in known) else None


def _missing_high_watermarks(commitment: Commitment, contents: Sequence[Content]) -> list[Finding]:
    """A clean stop records the high watermark of every replica that is not offline. One that was offline from a kill
    on may have none. It was out of sync, and then a missing high watermark hides no more than a low one."""
    found = []
    for content in contents:
        facts = content.replica.facts
        if not content.coverage or not facts.cleanly_stopped or facts.high_watermark is not None:
            continue
        was_out = (
            bool(commitment.before) and not commitment.is_member(content) and facts.broker not in commitment.before
        )
        why = "; it was out of sync, and a broker writes none of a replica that is offline" if was_out else ""
        message = f"{checkpoints.HIGH_WATERMARK_CHECKPOINT} lacks this partition, though its broker was stopped cleanly"
        found.append(
            finding(
                Kind.CHECKPOINT_DAMAGE,
                message + why,
                note=was_out,
                broker=facts.broker,
                topic=facts.topic,
                partition=facts.partition,
                file=f"{facts.directory}/../{checkpoints.HIGH_WATERMARK_CHECKPOINT}",
            )
        )
    return found


def _too_short(
    partition: TopicPartition, expected: ExpectedPartition, commitment: Commitment, contents: Sequence[Content]
) -> list[Finding]:
    longest = max((content.replica.log_end_offset for content in contents), default=0)
    found = []
    source = _source(expected, commitment, contents)
    if contents and longest < commitment.committed:
        message = (
            f"everything below offset {commitment.committed} was committed, {source}, and no replica reaches beyond"
            f" {longest}: {commitment.committed - longest} committed records are lost on all of them"
        )
        item = _finding(partition, Kind.RECORDS_LOST, message)
        found.append(msgspec.structs.replace(item, offset=longest, end_offset=commitment.committed))
    for content in contents:
        replica = content.replica
        wanted = commitment.must_reach(replica.broker)
        if replica.log_end_offset >= wanted:
            continue
        unsynced = replica.may_lack_unsynced and longest >= wanted
        member = "was in the last known ISR" if commitment.is_member(content) else "was in sync before the stop"
        state_source = source if wanted == commitment.committed else f"according to {expected.source}"
        why = (
            " (not stopped cleanly, and all that it had synced is there: a power cut may take the rest, and its next"
            " start fetches it from the others)"
        )
        found.append(
            finding(
                Kind.MISSING_RANGE,
                f"broker {replica.broker} {member} but ends at offset {replica.log_end_offset};"
                f" {wanted} was committed, {state_source}{why if unsynced else ''}",
                note=unsynced,
                broker=replica.broker,
                topic=partition.topic,
                partition=partition.partition,
                offset=replica.log_end_offset,
                end_offset=wanted,
                file=replica.segments[-1].file if replica.segments else replica.facts.directory,
            )
        )
    return found


def _source(expected: ExpectedPartition, commitment: Commitment, contents: Sequence[Content]) -> str:
    """Which source knows the committed offset."""
    if commitment.witness is not None and commitment.witness.committed_offset == commitment.committed:
        return "according to the witness"
    if expected.committed_before == commitment.committed:
        return f"according to {expected.source}"
    brokers = [each.replica.broker for each in contents if each.replica.facts.high_watermark == commitment.committed]
    return f"according to the high watermark of broker {', '.join(map(str, brokers))}"


def _missing_heads(partition: TopicPartition, commitment: Commitment, contents: Sequence[Content]) -> list[Finding]:
    """Files are deleted only in front of the smallest log start that all in-sync replicas have recorded. A broker that
    left the ISR at the stop has deleted nothing since; those that stayed have recorded at least their start at that
    time."""
    members = [each.replica for each in contents if commitment.is_member(each) and each.replica.segments]
    before = [each for each in contents if commitment.in_sync is not None and each.replica.broker in commitment.before]
    left = [each.replica for each in before if not commitment.is_member(each) and each.replica.segments]
    found = []
    for replica in [*members, *left]:
        first = replica.segments[0].base_offset
        recorded = replica.facts.log_start
        if recorded is None or recorded.offset < first:
            continue  # side_file_rules.py reports it
        earlier = [other for other in members if _recorded_start(other) < first]
        if not earlier or any(segment.vanished for segment in replica.segments):
            continue
        start = min(_recorded_start(other) for other in earlier)
        numbers = ", ".join(str(other.broker) for other in earlier)
        others = f"that of broker {numbers}" if len(earlier) == 1 else f"those of brokers {numbers}"
        message = (
            f"the log of broker {replica.broker} begins at offset {first}, but {others}, also in"
            f" sync, at offset {start} without a recorded deletion. Files are deleted only after all in-sync replicas"
            " recorded a later start: its head is missing"
        )
        found.append(
            finding(
                Kind.MISSING_RANGE,
                message,
                broker=replica.broker,
                others=tuple(other.broker for other in earlier),
                topic=partition.topic,
                partition=partition.partition,
                offset=start,
                end_offset=first,
                file=replica.segments[0].file,
            )
        )
    return found


def _recorded_start(replica: AuditedReplica) -> int:
    """When the files of all brokers had been listed: what had been deleted then, lies in front of it."""
    return max(replica.log_start_offset, replica.facts.later_log_start)


def _finding(partition: TopicPartition, kind: Kind, message: str, *, note: bool = False) -> Finding:
    return finding(kind, message, note=note, topic=partition.topic, partition=partition.partition)
