"""Confirms the suspected failure of another broker by one attempt to connect to it.

Owns: what counts as a confirmation: its kernel refuses the connection (docs/decisions/0011). Leaves to others: acting
on it. It connects only to the registered address of the suspected broker that the controller sent: a request must not
make a broker connect to ports of the sender's choice.

An attempt without any answer confirms nothing; then a recent refusal met by this broker itself counts (`refusals`).
A confirmer must be alive itself: it confirms nothing if its own session may have ended.
"""

from collections.abc import Callable

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.membership.refusals import Refusals
from minibroker.protocol.wire.messages import ConfirmFailureRequest, ConfirmFailureResponse
from minibroker.runtime.ports import ConnectionRefused, Network, NetworkError
from minibroker.runtime.rpc import connect

CONNECT_TIMEOUT_MS = 200
"""A kernel that refuses does so within one round trip; a slower failure confirms nothing."""
CONNECT_AGAIN_TIMEOUT_MS = 50
"""The same after a recent refusal: the only question is whether a process listens there again."""


class FailureConfirmer:
    """Answers ConfirmFailure."""

    def __init__(
        self,
        *,
        network: Network,
        image: MetadataImage,
        refusals: Refusals,
        listener_name: str,
        is_fenced: Callable[[], bool],
    ) -> None:
        self._network = network
        self._image = image
        self._refusals = refusals
        self._listener_name = listener_name
        self._is_fenced = is_fenced

    async def answer(self, body: ConfirmFailureRequest) -> ConfirmFailureResponse:
        """`refused`: the address of exactly that registration refuses, as far as this broker knows it."""
        image, broker_id = self._image, body.broker_id
        address = image.address(broker_id, self._listener_name)
        is_known = image.broker_epoch(broker_id) == body.broker_epoch
        if address is None or not is_known or broker_id == image.broker_id or self._is_fenced():
            return ConfirmFailureResponse(refused=False)
        has_met = self._refusals.has_met(broker_id, body.broker_epoch)
        is_refused = await self._is_refused(*address, CONNECT_AGAIN_TIMEOUT_MS if has_met else CONNECT_TIMEOUT_MS)
        if is_refused is None:
            is_refused = has_met or self._refusals.has_met(broker_id, body.broker_epoch)
        return ConfirmFailureResponse(refused=is_refused and not self._is_fenced())

    async def _is_refused(self, host: str, port: int, timeout_ms: int) -> bool | None:
        """None: there was no answer at all."""
        client_id = f"confirmer-{self._image.broker_id}"
        try:
            connection = await connect(self._network, host, port, client_id=client_id, timeout_ms=timeout_ms)
        except ConnectionRefused:
            return True
        except NetworkError:
            return None
        connection.abort()
        return False
