"""Znodes: Kafka's paths and JSON, round trips, and malformed content refused with its path."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol import znodes
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.witness import PartitionWitness, WitnessNode
from minibroker.protocol.znodes import (
    NO_PRODUCER,
    BrokerRegistration,
    ClusterId,
    ClusterSecret,
    ConfigChange,
    ConfigNode,
    ControllerNode,
    CorruptZnode,
    NotedChangesNode,
    PartitionState,
    ProducerIdBlock,
    ProducerNameNode,
    TopicAssignment,
    Znode,
)

REGISTRATION = BrokerRegistration(
    host="h",
    port=9092,
    endpoints=["INTERNAL://h:9092", "EXTERNAL://[::1]:19092"],
    listener_security_protocol_map={"INTERNAL": "PLAINTEXT", "EXTERNAL": "PLAINTEXT"},
    timestamp="1700000000000",
    incarnation_id="i1",
    directory_id="d1",
)
ASSIGNMENT = TopicAssignment.of("tid", {0: (1, 2, 3), 10: (2, 3, 1), 2: (3, 1, 2)})
STATE = PartitionState(
    leader=1,
    leader_epoch=4,
    controller_epoch=2,
    isr=[1, 2],
    isr_incarnations={"1": "i1"},
    isr_directories={"1": "d1"},
)
EVERY: list[Znode] = [
    REGISTRATION,
    ASSIGNMENT,
    STATE,
    ControllerNode(brokerid=1, timestamp="5"),
    ClusterId(id="abc"),
    ConfigNode(config={"min.insync.replicas": "2"}),
    ConfigChange(entity_path="topics/lines"),
    ProducerIdBlock(broker=1, block_start="0", block_end="999"),
    ProducerNameNode(producer_id=7, producer_epoch=3, replaced_id=7, replaced_epoch=2, process_token="a", changed_ms=5),
    ClusterSecret(secret="0a" * 32),
    NotedChangesNode(changes=3),
    WitnessNode(
        partitions={
            "t-0": PartitionWitness(
                topic_id="i",
                leader_epoch=1,
                replicas=(1, 2),
                isr=(1,),
                log_start_offset=0,
                committed_offset=9,
                digest="",
                noted_at_ms=5,
            )
        }
    ),
]


NO_SECRETS = ("", "0a", "0a" * 31, "0a" * 31 + "0", "0a" * 33, "0A" * 32, "0g" * 32, " " + "0a" * 31 + "0")
"""Too short, too long, or other digits: a short one can be guessed."""


def test_every_kind_of_znode_is_tested() -> None:
    assert {type(znode) for znode in EVERY} == set(Znode.__subclasses__())


@pytest.mark.parametrize("znode", EVERY, ids=lambda znode: type(znode).__name__)
def test_every_znode_survives_a_round_trip(znode: Znode) -> None:
    assert type(znode).decode(znode.encode()) == znode


@pytest.mark.parametrize("znode", EVERY, ids=lambda znode: type(znode).__name__)
def test_unknown_fields_are_ignored(znode: Znode) -> None:
    content = {**json.loads(znode.encode()), "added_later": [1, {"x": None}]}
    assert type(znode).decode(json.dumps(content).encode()) == znode


def test_json_is_like_kafkas() -> None:
    assert json.loads(STATE.encode()) == {
        "version": 1,
        "leader": 1,
        "leader_epoch": 4,
        "controller_epoch": 2,
        "isr": [1, 2],
        "isr_incarnations": {"1": "i1"},
        "isr_directories": {"1": "d1"},
        "leader_recovery_state": 0,
        "topic_id": "",
    }
    assert json.loads(ProducerIdBlock(broker=1, block_start="0", block_end="999").encode()) == {
        "version": 1,
        "broker": 1,
        "block_start": "0",
        "block_end": "999",
    }
    assert json.loads(ClusterId(id="abc").encode()) == {"version": "1", "id": "abc"}
    assert json.loads(ConfigNode(config={}).encode()) == {"version": 1, "config": {}}


def test_a_state_that_kafka_wrote_is_read() -> None:
    content = b'{"controller_epoch":1,"leader":-1,"version":1,"leader_epoch":7,"isr":[3]}'
    assert PartitionState.decode(content) == PartitionState(leader=-1, leader_epoch=7, controller_epoch=1, isr=[3])


def test_a_producers_name_of_an_earlier_version_tells_no_process_and_no_replaced_identity() -> None:
    node = ProducerNameNode.decode(b'{"version":1,"producer_id":7,"producer_epoch":3,"changed_ms":5}')
    assert (node.identity, node.replaced, node.process_token) == ((7, 3), NO_PRODUCER, "")


def test_assignment_is_read_in_order_of_partition() -> None:
    assert list(ASSIGNMENT.replicas().items()) == [(0, (1, 2, 3)), (2, (3, 1, 2)), (10, (2, 3, 1))]


def test_listeners_are_found_by_name() -> None:
    assert REGISTRATION.listeners() == {"INTERNAL": ("h", 9092), "EXTERNAL": ("::1", 19092)}


@pytest.mark.parametrize(("host", "port"), [("h", 1), ("127.0.0.1", 65535), ("::1", 9092)])
def test_endpoints_survive_a_round_trip(host: str, port: int) -> None:
    assert znodes.parse_endpoint(znodes.format_endpoint("NAME", host, port)) == ("NAME", host, port)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "h:1", "NAME://h", "NAME://:1", "://h:1", "NAME://h:x", "N://h:65536", "N://::1:1"),
        *("N://[::1:1", "N://::1]:1", "N://[h:1", "N://h]:1"),
        *("N://a..b:1", "N://.a:1", f"N://{'x' * 64}:1", "N://a b:1", "N://a\0:1", "N://ä:1", f"N://{'x.' * 127}:1"),
    ],
)
def test_malformed_endpoints_are_none(endpoint: str) -> None:
    assert znodes.parse_endpoint(endpoint) is None


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (PartitionState, b""),
        (PartitionState, b"\xff"),
        (PartitionState, b"[" * 10_000),
        (PartitionState, b'{"leader":1}'),
        (PartitionState, b'{"leader":3,"leader_epoch":0,"controller_epoch":1,"isr":[1,2]}'),
        (PartitionState, b'{"leader":-1,"leader_epoch":0,"controller_epoch":1,"isr":[]}'),
        (PartitionState, b'{"leader":1,"leader_epoch":0,"controller_epoch":1,"isr":[1,1]}'),
        (PartitionState, b'{"leader":"1","leader_epoch":0,"controller_epoch":1,"isr":[1]}'),
        (TopicAssignment, b'{"topic_id":"t","partitions":{"x":[1]}}'),
        (TopicAssignment, b'{"topic_id":"t","partitions":{"00":[1]}}'),
        (TopicAssignment, b'{"topic_id":"t","partitions":{"2147483648":[1]}}'),
        (TopicAssignment, b'{"topic_id":"t","partitions":{"0":[2147483648]}}'),
        (TopicAssignment, b'{"topic_id":"a b","partitions":{"0":[1]}}'),
        (TopicAssignment, b'{"topic_id":"","partitions":{"0":[1]}}'),
        (PartitionState, b'{"leader":1,"leader_epoch":2147483647,"controller_epoch":1,"isr":[1]}'),
        (PartitionState, b'{"leader":1,"leader_epoch":0,"controller_epoch":2147483647,"isr":[1]}'),
        (ConfigNode, b'{"version":1,"config":{"a":"' + b"x" * 32_769 + b'"}}'),
        (TopicAssignment, b'{"topic_id":"t","partitions":{"0":[]}}'),
        (TopicAssignment, b'{"topic_id":"t","partitions":{"0":[1,1]}}'),
        (ProducerIdBlock, b'{"broker":1,"block_start":"5","block_end":"4"}'),
        (ProducerIdBlock, b'{"broker":1,"block_start":"x","block_end":"4"}'),
        (ConfigNode, b'{"version":1,"config":{"a":1}}'),
        *((ClusterSecret, json.dumps({"secret": secret}).encode()) for secret in NO_SECRETS),
    ],
)
def test_malformed_znodes_are_refused_with_their_path(kind: type[Znode], content: bytes) -> None:
    with pytest.raises(CorruptZnode, match=kind.PATH.split("<")[0]):
        kind.decode(content)


@given(st.sampled_from(EVERY), st.binary(max_size=40), st.data())
def test_mutated_znodes_raise_only_corrupt_znode(znode: Znode, patch: bytes, data: st.DataObject) -> None:
    content = bytearray(znode.encode())
    at = data.draw(st.integers(0, len(content)))
    content[at : at + data.draw(st.integers(0, 5))] = patch
    try:
        type(znode).decode(bytes(content))
    except CorruptZnode:
        pass


def test_numbers_are_plain_text() -> None:
    assert znodes.parse_number(znodes.format_number(17)) == 17
    for content in (b"", b"-1", b"x", b"1" * 20):
        with pytest.raises(CorruptZnode):
            znodes.parse_number(content)


def test_child_names_are_numbers() -> None:
    assert (znodes.parse_id("12"), znodes.parse_id("2147483647")) == (12, 2_147_483_647)
    for name in ("012", "2147483648", "-1", "+1", "1\n", ""):
        with pytest.raises(CorruptZnode):
            znodes.parse_id(name)
    with pytest.raises(CorruptZnode):
        znodes.parse_id("12a")


def test_paths_are_kafkas() -> None:
    assert znodes.partition_state_path(TopicPartition("a-b", 3)) == "/brokers/topics/a-b/partitions/3/state"
    assert znodes.broker_path(1) == "/brokers/ids/1"
    assert znodes.delete_topic_path("t") == "/admin/delete_topics/t"


def test_parents_are_created_before_their_children() -> None:
    for path in znodes.PERSISTENT_PATHS:
        parent = path.rpartition("/")[0]
        earlier = znodes.PERSISTENT_PATHS[: znodes.PERSISTENT_PATHS.index(path)]
        assert not parent or parent in earlier
