"""What should be present: brokers, partitions, replicas, ids and ISRs, each with the source that demands it. Pure.

Owns: combining the recorded cluster state (`cluster-state.json`, ZooKeeper), the partitions that each broker's own
checkpoints list, and the owner of each directory. A contradiction between sources is a finding, never a silent choice.
Leaves to others: the logs; what is absent (presence.py); and whether the logs fit the expectation (partition_check.py).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.protocol.files.cluster_state import ClusterState, PartitionSnapshot
from minibroker.protocol.files.meta_properties import MetaProperties
from minibroker.protocol.witness import PartitionWitness, newer


class SourcedState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of the whole cluster, with its source."""

    source: str
    """A file, or ZooKeeper's address."""
    state: ClusterState
    stopped: bool = True
    """Recorded when the cluster was stopped: nothing may have happened since."""


class AuditedLogDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """One broker's log directory."""

    path: str
    broker: int
    meta: MetaProperties | None = None
    cleanly_stopped: bool
    listed: dict[str, str | None] = {}
    """Topic id by partition, for the partitions that its own checkpoints list."""


class ExpectedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as it should be."""

    source: str | None = None
    """The source of leader and ISR; None: there is none, only checkpoints are known."""
    unknown_to: str | None = None
    """The available sources, if none of them knows this partition."""
    stopped: bool = True
    is_whole: bool = False
    """The source knows assignments and describes the state after the last broker had stopped (version 2)."""
    topic_id: str | None = None
    leader: int | None = None
    leader_epoch: int | None = None
    isr: tuple[int, ...] = ()
    isr_before: tuple[int, ...] = ()
    """In sync when the cluster was about to stop: a stop removes one broker after the other from the ISR."""
    committed_before: int | None = None
    """Each member of `isr_before` held everything below it."""
    replicas: tuple[int, ...] = ()
    witness: PartitionWitness | None = None
    others_are_witnessed: bool = False
    """The source has witnesses, at least of other partitions."""
    holders: dict[int, str] = {}
    """Brokers that should hold a replica, and how that is known."""
    listed: dict[int, str | None] = {}
    """Brokers whose own checkpoints list the partition, and under which topic id."""
    absent_brokers: tuple[int, ...] = ()
    """The brokers among those that should hold it for which no directory was given."""


def expected_partitions(
    logs: Sequence[AuditedLogDirectory], held: Iterable[tuple[int, str]], states: Sequence[SourcedState]
) -> tuple[dict[str, ExpectedPartition], list[Finding]]:
    """What should be present by `topic-partition`, and contradictions between the sources and the directories. `held`:
    (broker, topic-partition) of each replica that is present."""
    found: list[Finding] = []
    present = {log.broker for log in logs}
    snapshots = _newest(states, found)
    witnesses: dict[str, PartitionWitness] = {}
    for each in states:
        for name, witness in each.state.witnesses.items():
            if name not in each.state.partitions:
                text = f"{each.source} has a witness of {name} (committed to {witness.committed_offset}), but no such"
                found.append(
                    contradiction(f"{text} partition: one of the two was edited, the partition is not looked for")
                )
            witnesses[name] = newer(witnesses[name], witness) if name in witnesses else witness
    listed: dict[str, dict[int, str | None]] = {}
    for log in logs:
        for name, topic_id in log.listed.items():
            listed.setdefault(name, {})[log.broker] = topic_id
    on_disk = {name for _, name in held}
    stopped = {log.broker for log in logs if log.cleanly_stopped}
    unknown_to = ", ".join(each.source for each in states) or None
    expected = {}
    for name in sorted({*snapshots, *witnesses, *listed, *on_disk}):
        if name in snapshots:
            expected[name] = _expected_partition(*snapshots[name], witnesses.get(name), listed.get(name, {}), present)
        else:
            # A topic may be deleted while a running broker's checkpoint still lists it, and that of a killed one for
            # good. Another broker may not have deleted yet: it counts only where nothing says which topics there are.
            held_by_others = name in on_disk and not states
            certain = {b for b in listed.get(name, {}) if held_by_others or b in stopped}
            expected[name] = ExpectedPartition(
                unknown_to=unknown_to,
                witness=witnesses.get(name),
                holders=dict.fromkeys(sorted(certain), "its own checkpoint lists it"),
                listed=listed.get(name, {}),
            )
    if not states:
        found.append(nothing_known())
    found += _brokers(logs, states, expected, present)
    return expected, found


def nothing_known() -> Finding:
    return finding(
        Kind.UNPROVEN,
        "nothing says which brokers, topics and replicas should be there: give the data directory with the"
        " cluster-state.json that `minibroker cluster down` leaves, or ask ZooKeeper with --zookeeper HOST:PORT;"
        " --allow-unproven accepts that only what is there was compared",
    )


def _newest(states: Sequence[SourcedState], found: list[Finding]) -> dict[str, tuple[SourcedState, PartitionSnapshot]]:
    """For each partition, the snapshot from the source with the highest leader epoch. Where ZooKeeper still says what
    the state file does, nothing has happened since the stop, and the file says more: what was in sync before it."""
    snapshots: dict[str, tuple[SourcedState, PartitionSnapshot]] = {}
    for each in sorted(states, key=lambda each: each.state.taken_at):
        for name, snapshot in each.state.partitions.items():
            if not snapshot.isr:
                found.append(contradiction(f"{each.source} has an empty ISR for {name}, but an ISR is never empty"))
            earlier = snapshots.get(name)
            if earlier is None:
                snapshots[name] = (each, snapshot)
                continue
            found += _contradictions(name, earlier, (each, snapshot))
            if earlier[0].stopped and not each.stopped and _is_unchanged(earlier[1], snapshot):
                continue
            if snapshot.leader_epoch >= earlier[1].leader_epoch:
                snapshots[name] = (each, snapshot)
    return snapshots


def _is_unchanged(before: PartitionSnapshot, now: PartitionSnapshot) -> bool:
    return (
        msgspec.structs.replace(now, isr_before=before.isr_before, committed_before=before.committed_before) == before
    )


def _contradictions(
    name: str, one: tuple[SourcedState, PartitionSnapshot], other: tuple[SourcedState, PartitionSnapshot]
) -> list[Finding]:
    versions = [
        f"{states.source} says topic id {snapshot.topic_id}, epoch {snapshot.leader_epoch}, ISR {list(snapshot.isr)}"
        for states, snapshot in (one, other)
    ]
    ids = {snapshot.topic_id for _, snapshot in (one, other)} - {None}
    same_epoch = one[1].leader_epoch == other[1].leader_epoch
    if len(ids) > 1 or (same_epoch and set(one[1].isr) != set(other[1].isr) and one[0].stopped and other[0].stopped):
        return [contradiction(f"two sources contradict each other about {name}: " + "; ".join(versions))]
    return []


def contradiction(message: str) -> Finding:
    return finding(Kind.CONTRADICTION, message)


def _expected_partition(
    source: SourcedState,
    snapshot: PartitionSnapshot,
    newest_witness: PartitionWitness | None,
    listed: dict[int, str | None],
    present: set[int],
) -> ExpectedPartition:
    holders: dict[int, str] = {}
    topic_id = snapshot.topic_id
    witness = newest_witness
    if witness is not None and topic_id is not None and witness.topic_id != topic_id:
        witness = None  # of an earlier topic of this name
    others_are_witnessed = len(source.state.witnesses) > (newest_witness is not None)
    assigned = set(snapshot.replicas) | set(snapshot.isr)
    for broker, own_id in listed.items():
        if own_id == topic_id if topic_id is not None else broker in assigned:
            holders[broker] = "its own checkpoint lists it"
    if witness is not None and witness.leader_epoch == snapshot.leader_epoch:
        holders.update({broker: "the witness counts it in sync" for broker in witness.isr})
    holders.update({broker: f"in sync before the stop, according to {source.source}" for broker in snapshot.isr_before})
    holders.update({broker: f"in sync, according to {source.source}" for broker in snapshot.isr})
    return ExpectedPartition(
        source=source.source,
        stopped=source.stopped,
        is_whole=source.state.version >= 2,
        topic_id=topic_id,
        leader=snapshot.leader,
        leader_epoch=snapshot.leader_epoch,
        isr=snapshot.isr,
        isr_before=snapshot.isr_before,
        committed_before=snapshot.committed_before,
        replicas=snapshot.replicas,
        witness=witness,
        others_are_witnessed=others_are_witnessed,
        holders=dict(sorted(holders.items())),
        listed=listed,
        absent_brokers=tuple(sorted((assigned | set(holders)) - present)),
    )


# brokers


def _brokers(
    logs: Sequence[AuditedLogDirectory],
    states: Sequence[SourcedState],
    expected: Mapping[str, ExpectedPartition],
    present: set[int],
) -> list[Finding]:
    found = []
    registered: dict[int, tuple[str | None, str]] = {}
    for each in sorted(states, key=lambda each: each.state.taken_at):
        for number, directory_id in each.state.brokers.items():
            if number.isdecimal() and (directory_id is not None or int(number) not in registered):
                registered[int(number)] = (directory_id, each.source)
    assigned: dict[int, list[str]] = {}
    for name, partition in expected.items():
        for broker in partition.absent_brokers:
            assigned.setdefault(broker, []).append(name)
    for broker in sorted({*registered, *assigned} - present):
        names = assigned.get(broker, [])
        source = registered[broker][1] if broker in registered else expected[names[0]].source
        which = f"{len(names)} partitions have" if len(names) != 1 else f"{names[0]} has"
        what = which + " a replica on it" if names else "it is registered"
        message = (
            f"broker {broker} should be present ({what}, according to {source}), but no log directory of it was given"
        )
        found.append(finding(Kind.MISSING_BROKER, message, broker=broker))
    found += _directory_ids(logs, registered)
    for each in states:
        for log in logs:
            if each.stopped and log.broker in each.state.stopped_cleanly and not log.cleanly_stopped:
                message = (
                    f"broker {log.broker} was stopped cleanly, according to {each.source}, but its clean-shutdown file"
                    " is gone"
                )
                found.append(finding(Kind.CHECKPOINT_DAMAGE, message, broker=log.broker, file=log.path))
            if each.state.cluster_id is not None and log.meta and log.meta.cluster_id != each.state.cluster_id:
                message = (
                    f"{log.path} belongs to cluster {log.meta.cluster_id}, {each.source} is of {each.state.cluster_id}"
                )
                found.append(contradiction(message))
    return found


def _directory_ids(
    logs: Sequence[AuditedLogDirectory], registered: Mapping[int, tuple[str | None, str]]
) -> list[Finding]:
    """A directory with another id than the one registered for this broker, and one id in two directories."""
    found = []
    by_id: dict[str, AuditedLogDirectory] = {}
    owners = {directory_id: broker for broker, (directory_id, _) in registered.items() if directory_id}
    for log in logs:
        if log.meta is None:
            continue
        own = log.meta.directory_id
        known, source = registered.get(log.broker, (None, ""))
        if known is not None and known != own:
            owner = f", which is broker {owners[own]}'s" if own in owners else ""
            message = f"claims to be broker {log.broker}'s and has directory id {own}{owner}; {source} has {known}"
            found.append(finding(Kind.WRONG_DIRECTORY, message, broker=log.broker, file=log.path))
        if own in by_id and by_id[own].broker != log.broker:
            message = f"has the directory id {own} of {by_id[own].path}: one is a copy of the other"
            found.append(finding(Kind.WRONG_DIRECTORY, message, broker=log.broker, file=log.path))
        by_id.setdefault(own, log)
    return found


def one_directory_each(logs: Sequence[AuditedLogDirectory]) -> tuple[list[AuditedLogDirectory], list[Finding]]:
    """Two directories of one broker are not two replicas. The first one whose name contains the broker id is
    audited."""
    found = []
    by_broker: dict[int, list[AuditedLogDirectory]] = {}
    for log in logs:
        by_broker.setdefault(log.broker, []).append(log)
    kept = []
    for broker, claimants in by_broker.items():
        claimants.sort(key=lambda log: (not log.path.endswith(f"broker-{broker}"), log.path))
        kept.append(claimants[0])
        if len(claimants) > 1:
            others = ", ".join(log.path for log in claimants[1:])
            message = (
                f"{len(claimants)} directories claim to be broker {broker}'s: {claimants[0].path}, {others}."
                f" One of them is a copy, or has another's meta.properties; only the first is audited"
            )
            found.append(finding(Kind.BROKER_TWICE, message, broker=broker, file=claimants[1].path))
    return sorted(kept, key=lambda log: (log.broker, log.path)), found
