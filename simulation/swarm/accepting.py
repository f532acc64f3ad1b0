"""An operator who elects a leader where no election is possible without a loss.

Owns: the request of `minibroker partition elect --accept-loss`, repeated until it succeeds. Leaves to others: what may
be lost (the caller says which elections it accepts).
"""

import contextlib
from collections.abc import Callable
from functools import partial

from minibroker.protocol.wire.messages import (
    ElectionPreview,
    ElectLeadersRequest,
    ElectLeadersResponse,
    confirmation_of,
)
from minibroker.runtime.request_channel import RequestChannel, RequestFailed
from minibroker.runtime.rpc import connect
from minibroker.simulation.cluster import PORT
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector

ORDER_TIMEOUT_MS = 5_000
ORDERS_MAX = 20
"""An operator tries again while there is no controller yet."""
LOOK_SECONDS = 1.0


async def accept_loss(
    injector: FaultInjector,
    is_done: Callable[[], bool],
    accepts: Callable[[ElectionPreview], bool] = lambda preview: True,
) -> bool:
    """Whether `is_done` came true. Offered elections are confirmed if `accepts` returns True."""
    for _ in range(ORDERS_MAX):
        await _order(injector, accepts)
        if await injector.wait(is_done, LOOK_SECONDS):
            return True
    return False


async def _order(injector: FaultInjector, accepts: Callable[[ElectionPreview], bool]) -> None:
    controller = injector.cluster.controller()
    network = injector.cluster.client_runtime().network
    dial = partial(connect, network, f"broker-{controller}", PORT, client_id="operator", timeout_ms=ORDER_TIMEOUT_MS)
    with contextlib.suppress(RequestFailed), RequestChannel(dial) as channel:
        offered = await channel.ask(ElectLeadersRequest(), ElectLeadersResponse, ORDER_TIMEOUT_MS)
        confirmed = [confirmation_of(each) for each in offered.partitions if not each.error_code and accepts(each)]
        if confirmed:
            await channel.ask(ElectLeadersRequest(confirmed=confirmed), ElectLeadersResponse, ORDER_TIMEOUT_MS)
