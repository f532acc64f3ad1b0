"""Asks other brokers whether a suspected broker refuses them, too.

Owns: the requests, within a deadline. Leaves to others: which brokers are asked and what follows (`failure_detection`).
A confirmation proves two things at once: the address refuses a second machine, and that second machine is alive,
because it has just answered.
"""

import asyncio
from functools import partial

import msgspec

from minibroker.protocol.ids import BrokerEpoch, BrokerId
from minibroker.protocol.wire.messages import ConfirmFailureRequest, ConfirmFailureResponse
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.request_channel import RequestChannel, RequestFailed

CONNECT_TIMEOUT_MS = 300
ANSWER_TIMEOUT_MS = 500
"""More than a confirmer needs for its own attempt; a slower answer is no better than the end of the session."""


class ConfirmerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that may be asked."""

    broker_id: BrokerId
    address: tuple[str, int]


async def first_to_confirm(
    dialer: BrokerDialer,
    client_id: str,
    confirmers: list[ConfirmerAddress],
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
) -> BrokerId | None:
    """Ask all of them at once; return the first that confirms, or None."""
    request = ConfirmFailureRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    tasks = [asyncio.create_task(_ask(dialer, client_id, each, request)) for each in confirmers]
    try:
        for answer in asyncio.as_completed(tasks):
            confirmer = await answer
            if confirmer is not None:
                return confirmer
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(
    dialer: BrokerDialer, client_id: str, confirmer: ConfirmerAddress, request: ConfirmFailureRequest
) -> BrokerId | None:
    dial = partial(
        dialer.connect,
        confirmer.broker_id,
        confirmer.address,
        client_id=client_id,
        timeout_ms=CONNECT_TIMEOUT_MS,
        authentication_timeout_ms=ANSWER_TIMEOUT_MS,
    )
    try:
        with RequestChannel(dial) as channel:
            response = await channel.ask(request, ConfirmFailureResponse, ANSWER_TIMEOUT_MS)
    except RequestFailed:
        return None
    return confirmer.broker_id if response.refused else None
