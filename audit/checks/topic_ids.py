"""Which replicas are of the expected topic: a name may be used again for another topic. And whether a source that knows
a topic knows all of its partitions. Pure.

Owns: the meaning of a deviating topic id. Where the partition's id is known, replicas with another id are not replicas
of it. Where it is unknown, replicas that differ contradict each other, and none is trusted silently.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from minibroker.audit.checks.expectation import ExpectedPartition
from minibroker.audit.checks.findings import FINDINGS_PER_KIND_MAX, Finding, Kind, finding
from minibroker.audit.reading.replica import AuditedReplica, ReplicaFacts
from minibroker.protocol.counted import some_of
from minibroker.protocol.files.checkpoints import parse_partition_directory_name


def of_one_topic(
    replicas: Sequence[AuditedReplica], expected: ExpectedPartition
) -> tuple[list[AuditedReplica], list[Finding]]:
    """The replicas to compare with each other, and findings about the others."""
    by_id: dict[str | None, list[AuditedReplica]] = {}
    for replica in replicas:
        by_id.setdefault(replica.facts.topic_id, []).append(replica)
    ids = {topic_id for topic_id in by_id if topic_id is not None}
    wanted = expected.topic_id
    if wanted is None:
        if len(ids) <= 1:
            return list(replicas), []
        wanted = max(ids, key=lambda topic_id: (len(by_id[topic_id]), _bytes(by_id[topic_id]), topic_id))
        known = f"others have {wanted}; no source shows which topic is the present one"
    else:
        known = f"{expected.source} has {wanted}"
    others = [_other(replica, known, expected) for topic_id in sorted(ids - {wanted}) for replica in by_id[topic_id]]
    return [replica for replica in replicas if replica.facts.topic_id in (None, wanted)], others


def is_as_listed(replica: AuditedReplica, expected: ExpectedPartition) -> bool:
    """No source shows which topic id is right, but the broker's own checkpoint lists the one of this replica."""
    listed = expected.listed.get(replica.broker)
    return expected.topic_id is None and listed is not None and listed == replica.facts.topic_id


def _other(replica: AuditedReplica, known: str, expected: ExpectedPartition) -> Finding:
    """A broker that was down while the topic was deleted and created again still has the former one: no error, unless
    it should hold the new one."""
    former = expected.topic_id is not None and replica.broker not in expected.holders
    why = ": a topic that was deleted and created again while the broker was down" if former else ""
    return finding(
        Kind.TOPIC_ID_DIFFERS,
        f"belongs to topic id {replica.facts.topic_id}, but {known}{why}; not compared",
        note=former,
        broker=replica.broker,
        topic=replica.facts.topic,
        partition=replica.facts.partition,
        file=replica.facts.directory,
    )


def _bytes(replicas: Iterable[AuditedReplica]) -> int:
    return sum(size for replica in replicas for _, size in replica.facts.segments)


def ids_within_topics(replicas: Iterable[ReplicaFacts], expected: dict[str, ExpectedPartition]) -> list[Finding]:
    """Partitions of one topic have one id. Where the id of a partition is known, the check of that partition reports
    more."""
    by_topic: dict[str, dict[str, list[str]]] = {}
    for facts in replicas:
        name = f"{facts.topic}-{facts.partition}"
        if facts.topic_id is not None and (name not in expected or expected[name].topic_id is None):
            by_topic.setdefault(facts.topic, {}).setdefault(facts.topic_id, []).append(name)
    found = []
    for topic, ids in sorted(by_topic.items()):
        if len(ids) > 1:
            ids_text = "; ".join(f"{topic_id} in {some_of(sorted(set(ids[topic_id])))}" for topic_id in sorted(ids))
            message = (
                f"the replicas of topic {topic} have {len(ids)} topic ids, no source shows which is right: {ids_text}"
            )
            found.append(finding(Kind.TOPIC_ID_DIFFERS, message, topic=topic))
    return found


def partitions_left_out(replicas: Iterable[ReplicaFacts], expected: dict[str, ExpectedPartition]) -> list[Finding]:
    """A topic has the partitions 0, 1, 2.. and never loses one: it is deleted as a whole. So a source that has others
    of this topic, but not this one, is not true, and what becomes of the partition contradicts nothing. The last ones
    are known from the brokers: from their directories, and from their checkpoints."""
    sources: dict[str, tuple[str, str | None]] = {}
    known: dict[str, set[int]] = {}
    for name, each in expected.items():
        partition = parse_partition_directory_name(name)
        if each.source is not None and partition is not None:
            sources[partition.topic] = each.source, each.topic_id
            known.setdefault(partition.topic, set()).add(partition.partition)
    highest = {topic: max(numbers) for topic, numbers in known.items()}
    named = [(facts.topic, facts.partition, facts.topic_id) for facts in replicas]
    for name, each in expected.items():
        partition = parse_partition_directory_name(name)
        if partition is not None:
            named += [(*partition, topic_id) for topic_id in each.listed.values()]
    for topic, number, own_id in named:
        if own_id is not None and own_id == sources.get(topic, ("", None))[1]:
            highest[topic] = max(highest[topic], number)
    found = []
    for topic, numbers in sorted(known.items()):
        left_out = (number for number in range(highest[topic] + 1) if number not in numbers)
        for number in islice(left_out, FINDINGS_PER_KIND_MAX):
            message = f"{sources[topic][0]} has other partitions of this topic, and not this one: it is not looked for"
            found.append(finding(Kind.CONTRADICTION, message, topic=topic, partition=number))
    return found
