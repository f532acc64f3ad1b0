"""The digest of a range of a log, the JSON of a witness, and the saved cluster state."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minibroker.protocol.files.checkpoints import CorruptCheckpoint
from minibroker.protocol.files.cluster_state import (
    ClusterState,
    PartitionSnapshot,
    format_cluster_state,
    parse_cluster_state,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import MODULUS, batch_digest, digest_of, format_digest
from minibroker.protocol.record_batch import HEADER_BYTES, build_batch, read_header, stamp
from minibroker.protocol.witness import SHARDS, PartitionWitness, WitnessNode, newer, shard_of
from minibroker.protocol.znodes import CorruptZnode

WITNESSED = PartitionWitness(
    topic_id="t",
    leader_epoch=3,
    replicas=(1, 2),
    isr=(1,),
    log_start_offset=4,
    committed_offset=9,
    digest=format_digest(7),
    noted_at_ms=5,
)
SNAPSHOT = PartitionSnapshot(leader=1, leader_epoch=3, isr=(1,), isr_before=(1, 2), replicas=(1, 2), topic_id="t")
CELLS = st.tuples(
    st.integers(0, 2**40), st.integers(HEADER_BYTES, 2**24), st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1)
)


def test_a_batch_in_bytes_and_a_batch_in_numbers_have_one_digest() -> None:
    buffer = bytearray(build_batch([(None, b"one", 0, ()), (None, b"two", 1, ())]))
    stamp(buffer, 41, 7)
    header = read_header(buffer)
    cell = (header.base_offset, header.size_bytes, header.partition_leader_epoch, header.crc)
    assert batch_digest(b"xx" + bytes(buffer), 2) == digest_of([cell])
    assert (cell[0], cell[2]) == (41, 7)


@given(st.lists(CELLS, max_size=8), st.integers(0, 8))
def test_the_digest_of_a_removed_range_can_be_subtracted(cells: list[tuple[int, int, int, int]], cut: int) -> None:
    assert (digest_of(cells) - digest_of(cells[:cut])) % MODULUS == digest_of(cells[cut:])


@given(CELLS, CELLS)
def test_each_number_of_a_batch_counts(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> None:
    assert (digest_of([one]) == digest_of([other])) == (one == other)


def test_a_witness_survives_a_round_trip_and_refuses_invalid_values() -> None:
    node = WitnessNode(partitions={"t-0": WITNESSED})
    assert WitnessNode.decode(node.encode()) == node
    every_digit = WitnessNode(partitions={"t-0": replace(WITNESSED, digest="0123456789abcdef" * 2)})
    assert WitnessNode.decode(every_digit.encode()) == every_digit
    for wrong in ({"committed_offset": 3}, {"leader_epoch": -1}, {"digest": "x" * 32}, {"digest": "00"}):
        with pytest.raises(CorruptZnode, match="t-0"):
            WitnessNode.decode(WitnessNode(partitions={"t-0": replace(WITNESSED, **wrong)}).encode())


def test_of_two_notes_the_one_of_the_later_epoch_counts() -> None:
    later = replace(WITNESSED, leader_epoch=4, committed_offset=5)
    assert newer(WITNESSED, later) is later
    assert newer(later, WITNESSED) is later


def test_shards_are_spread() -> None:
    assert {shard_of(TopicPartition("t", number)) for number in range(200)} == set(range(SHARDS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partitions": {"t-0 ": SNAPSHOT}}, "'t-0 ' does not name a partition"),
        ({"witnesses": {"t-00": WITNESSED}}, "'t-00' does not name a partition"),
        ({"partitions": {"t-0": replace(SNAPSHOT, isr=(1, -5))}}, "t-0 has a number that no cluster has: "),
        ({"partitions": {"t-0": replace(SNAPSHOT, replicas=(1, 10**20))}}, "t-0 has a number that no cluster has: "),
        ({"partitions": {"t-0": replace(SNAPSHOT, leader_epoch=-1)}}, "t-0 has a number that no cluster has: "),
        ({"partitions": {"t-0": replace(SNAPSHOT, committed_before=2**63)}}, "t-0 has a number that no cluster has: "),
        ({"brokers": {"four": None}}, "broker 'four' is not a number"),
        ({"witnesses": {"t-0": replace(WITNESSED, digest="00")}}, "'t-0': digest '00'"),
    ],
)
def test_a_cluster_state_that_no_cluster_has_is_refused(change: dict[str, Any], message: str) -> None:
    """The audit looked for no partition of a name that names none, and printed no number beyond 64 bits."""
    state = replace(ClusterState(version=2, partitions={"t-0": SNAPSHOT}, brokers={"1": "d"}), **change)
    with pytest.raises(CorruptCheckpoint, match=re.escape(message)):
        parse_cluster_state(json.dumps(msgspec.to_builtins(state)).encode())


def test_the_cluster_state_survives_a_round_trip_and_version_1_is_read() -> None:
    state = ClusterState(version=2, partitions={"t-0": SNAPSHOT}, witnesses={"t-0": WITNESSED}, brokers={"1": "d"})
    assert parse_cluster_state(format_cluster_state(state)) == state
    old = parse_cluster_state(b'{"partitions": {"t-0": {"leader": 1, "leader_epoch": 3, "isr": [1, 2]}}}')
    assert old.version == 1
    assert old.partitions["t-0"].isr == (1, 2)
    with pytest.raises(CorruptCheckpoint, match="version 3"):
        parse_cluster_state(b'{"version": 3, "partitions": {}}')
