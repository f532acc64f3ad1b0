"""A connection on which nothing comes back is given up: TCP may take a quarter of an hour to find out."""

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.messages import ApiKey
from minibroker.simulation.gates import responses
from tests.broker.requests import TOPIC, Asked, in_cluster


async def _ask_again(asked: Asked) -> None:
    cluster = asked.cluster
    stuck = cluster.world.network.hold(None, "client", responses(ApiKey.DESCRIBE_CONFIGS), times=1)
    async with AdminClient(
        bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=500, runtime=cluster.client_runtime()
    ) as admin:
        try:
            await admin.describe_configs(topic=TOPIC, timeout_ms=600)
        except MinibrokerError:
            pass
        assert stuck.held == 0, "the connection is still in use, and its next answers wait behind the lost one"
        assert await admin.describe_configs(topic=TOPIC, timeout_ms=2_000)


def test_a_request_that_is_not_answered_costs_the_connection() -> None:
    in_cluster(_ask_again)
