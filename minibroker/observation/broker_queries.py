"""Queries to brokers, one connection per address, for what the client does not offer the command line and the launcher.

Owns: connecting, asking within a time limit, and naming the broker that did not answer. Leaves to others: retries and
finding a leader, which the client does. All queries only read (Metadata, DescribeCluster, DescribeReplicaState), except
the elections that an operator orders (ElectLeaders).
"""

import asyncio
from types import TracebackType
from typing import TypeVar, cast

from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    ElectionOutlook,
    ElectLeadersRequest,
    ElectLeadersResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    Request,
    Response,
)
from minibroker.runtime.network import RealNetwork
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.rpc import RpcConnection, RpcError, connect

ASK_TIMEOUT_S = 3.0
"""A healthy broker answers these queries in milliseconds."""

R = TypeVar("R", bound=Response)


class NoAnswer(Exception):
    """A broker did not answer, or none of several; the message names them and the cause."""


class BrokerQueries:
    """Connections to brokers; close it, or use it with `async with`."""

    def __init__(self, client_id: str = "minibroker") -> None:
        self._client_id = client_id
        self._network = RealNetwork()
        self._connections: dict[str, RpcConnection] = {}

    async def ask(self, server: str, request: Request, kind: type[R], timeout_s: float = ASK_TIMEOUT_S) -> R:
        """Return the answer of HOST:PORT. Raises NoAnswer."""
        timeout_ms = max(1, round(timeout_s * 1000))
        try:
            connection = self._connections.get(server)
            if connection is None or connection.closed:
                host, _, port = server.rpartition(":")
                connection = await connect(
                    self._network, host.strip("[]"), int(port), client_id=self._client_id, timeout_ms=timeout_ms
                )
                self._connections[server] = connection
            response = await connection.request(request, timeout_ms)
        except (NetworkError, RpcError) as error:
            raise NoAnswer(str(error)) from None
        if response.error_code != ErrorCode.NONE:
            why = f": {response.error_message}" if response.error_message else ""
            raise NoAnswer(f"{server} answered {error_code(response.error_code).name}{why}")
        return cast(R, response)

    async def ask_any(self, servers: str, request: Request, kind: type[R], timeout_s: float = ASK_TIMEOUT_S) -> R:
        """Ask each of 'HOST:PORT,..' in order; return the first answer. Raises NoAnswer naming all that failed."""
        problems = []
        for server in servers.split(","):
            try:
                return await self.ask(server, request, kind, timeout_s)
            except NoAnswer as error:
                problems.append(str(error))
        raise NoAnswer(
            f"no broker answers ({'; '.join(problems)}): start one with `minibroker cluster up`,"
            " or give the right servers with -b"
        )

    async def describe_cluster(self, servers: str, timeout_s: float = ASK_TIMEOUT_S) -> DescribeClusterResponse:
        return await self.ask_any(servers, DescribeClusterRequest(), DescribeClusterResponse, timeout_s)

    async def metadata(
        self, servers: str, topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> MetadataResponse:
        asked = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
        return await self.ask_any(servers, MetadataRequest(topics=asked), MetadataResponse, timeout_s)

    async def replica_states(
        self, servers: list[str], topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
    ) -> list[DescribeReplicaStateResponse | NoAnswer]:
        """Ask all servers at the same time for their own replicas; the answers are in the given order."""

        async def one(server: str) -> DescribeReplicaStateResponse | NoAnswer:
            request = DescribeReplicaStateRequest(topics=topics)
            try:
                return await self.ask(server, request, DescribeReplicaStateResponse, timeout_s)
            except NoAnswer as error:
                return error

        return await asyncio.gather(*(one(server) for server in servers))

    async def elections(
        self, servers: str, request: ElectLeadersRequest, timeout_s: float = ASK_TIMEOUT_S
    ) -> list[ElectionOutlook]:
        """Ask the controller about partitions without a leader, or order their elections."""
        described = await self.describe_cluster(servers, timeout_s)
        address = next(
            (f"{b.host}:{b.port}" for b in described.brokers if b.broker_id == described.controller_id), None
        )
        if address is None:
            raise NoAnswer("no controller is elected")
        return (await self.ask(address, request, ElectLeadersResponse, timeout_s)).partitions

    async def close(self) -> None:
        for connection in tuple(self._connections.values()):
            await connection.close()
        self._connections.clear()

    async def __aenter__(self) -> "BrokerQueries":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
