"""docs/FORMATS.md agrees with the wire protocol's code."""

from minibroker.protocol.wire.messages import APIS
from tests.docs.wire_tables import PAGE, made, renewed


def test_messages_of_the_page_are_those_of_the_code() -> None:
    assert renewed(PAGE.read_text()) == PAGE.read_text(), "run: python -m tests.docs.wire_tables"


def test_notes_next_to_and_above_fields_are_found() -> None:
    text = made()
    assert "acks: i16 = -1  # -1 all in-sync replicas, 1 the leader, 0 no reply at all" in text
    assert "offline_partitions: list of up to 10,000 or nil = nil  # None: the broker stops." in text
    assert "brokers: list of up to 1,000 = []\n    node_id: i32" in text


def test_the_page_on_security_names_each_api_for_brokers_only() -> None:
    text = PAGE.with_name("SECURITY.md").read_text()
    names = [api.request.__name__.removesuffix("Request") for api in APIS.values() if api.is_cluster_action]
    assert [name for name in names if name not in text] == []
