"""Asking for offsets of many partitions, of which some have no leader."""

from typing import cast

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.errors import CallTimedOut
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, ListOffsetsRequest
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster

MANY = [TopicPartition("many", number) for number in (9, 7, 8, 3, 4, 1, 2, 0, 5, 6)]


@pytest.mark.parametrize(
    ("lacking", "named"), [(2, "many-0, many-1"), (7, "many-0, many-1, many-2, many-3, many-4 and 2 more")]
)
def test_the_error_names_the_partitions_that_are_lacking(cluster: FakeCluster, lacking: int, named: str) -> None:
    """Those with leaders are asked about once."""
    cluster.add_topic("many", len(MANY))
    for number in range(lacking):
        cluster.partition("many", number).elect(None)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CallTimedOut) as raised:
                await admin.list_offsets(dict.fromkeys(MANY, EARLIEST_TIMESTAMP), timeout_ms=1_500)
        assert str(raised.value).startswith(f"offsets of {named} are not known after 1500 ms")

    cluster.run(main)
    asked = [
        (topic.name, each.partition_index)
        for _, request in cluster.requests[ListOffsetsRequest]
        for topic in cast(ListOffsetsRequest, request).topics
        for each in topic.partitions
    ]
    assert sorted(asked) == [("many", number) for number in range(lacking, len(MANY))]
