"""An operator who elects a leader where no election is possible without a loss.

Owns: the request of `minibroker partition elect --accept-loss`, repeated until it succeeds. Leaves to others: what may
be lost (the caller says which elections it accepts).
"""

import contextlib
from collections.abc import Callable

from minibroker.protocol.messages import (
    ElectionOutlook,
    ElectLeadersRequest,
    ElectLeadersResponse,
    confirmation_of,
)
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.rpc import RpcError, connect
from minibroker.simulation.cluster import PORT
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector

ORDER_TIMEOUT_MS = 5_000
ORDERS_MAX = 20
"""An operator tries again while there is no controller yet."""
LOOK_SECONDS = 1.0


async def accept_loss(
    injector: FaultInjector,
    is_done: Callable[[], bool],
    accepts: Callable[[ElectionOutlook], bool] = lambda outlook: True,
) -> bool:
    """Whether `is_done` came true. Offered elections are confirmed if `accepts` returns True."""
    for _ in range(ORDERS_MAX):
        await _order(injector, accepts)
        if await injector.wait(is_done, LOOK_SECONDS):
            return True
    return False


async def _order(injector: FaultInjector, accepts: Callable[[ElectionOutlook], bool]) -> None:
    controller = injector.cluster.controller()
    network = injector.cluster.client_runtime().network
    with contextlib.suppress(NetworkError, RpcError):
        connection = await connect(
            network, f"broker-{controller}", PORT, client_id="operator", timeout_ms=ORDER_TIMEOUT_MS
        )
        offered = await connection.request(ElectLeadersRequest(), ORDER_TIMEOUT_MS)
        assert isinstance(offered, ElectLeadersResponse)
        confirmed = [confirmation_of(each) for each in offered.partitions if not each.error_code and accepts(each)]
        if confirmed:
            await connection.request(ElectLeadersRequest(confirmed=confirmed), ORDER_TIMEOUT_MS)
        connection.abort()
