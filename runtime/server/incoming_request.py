"""One request as its handler gets it: its content, the way to answer it, and its cost until then."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from minibroker.protocol.wire.codec import IncomingFrame, encode_response
from minibroker.protocol.wire.messages import FetchRequest, ProduceRequest, Request, Response
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Buffer
from minibroker.runtime.principal import Principal
from minibroker.runtime.server.server_limits import (
    DECODED_GROWTH,
    PARTITION_LOOP_COST,
    PARTITION_MEMORY_BYTES,
    RECORDS_PER_COST,
    REQUEST_MEMORY_BYTES,
)
from minibroker.runtime.server.waiting_requests import Charge


class RequestConnection(Protocol):
    """What a request needs of its connection, and its handler of the peer."""

    id: int
    listener_name: str
    peer: str
    """Address of the peer."""
    principal: Principal
    is_broker: bool
    observer: Observer

    @property
    def is_handling_read(self) -> bool: ...
    def mark_as_broker(self) -> None: ...
    def mute(self, seconds: float) -> None: ...
    def log_refused_request(self, api: str, problem: object) -> None: ...
    def may_wait(self, charge: Charge | None, cost: int) -> bool: ...
    def answer(self, pieces: Sequence[Buffer]) -> None: ...
    def send_answers(self) -> None: ...
    def settled(self, charge: Charge | None) -> None: ...
    def close_because(self, reason: str) -> None: ...


class AnswerSent(Struct, frozen=True):
    """A request was answered, or a part of it (a partition of a Fetch)."""

    body: Struct


class IncomingRequest:
    """One request and the way to answer it. It ends exactly once, at any later time, on the loop."""

    __slots__ = ("_charge", "_connection", "_ended", "api_key", "body", "client_id", "correlation_id", "received_at")

    def __init__(
        self,
        connection: RequestConnection,
        frame: IncomingFrame,
        body: Request,
        received_at: float,
        charge: Charge | None,
    ) -> None:
        """`charge` is None for brokers: the clients' limits do not apply to them."""
        self._connection = connection
        self._charge = charge
        self._ended = False
        self.api_key = frame.api_key
        self.correlation_id = frame.correlation_id
        self.client_id = frame.client_id or ""
        self.body = body
        self.received_at = received_at

    @property
    def connection(self) -> RequestConnection:
        """Identity of the peer's connection: its fetch sessions end with it."""
        return self._connection

    @property
    def is_handling_read(self) -> bool:
        """Whether the server is handling what one read of some connection brought; `after_requests` follows."""
        return self._connection.is_handling_read

    def delay(self, partitions: int) -> bool:
        """Ask to delay this request with this many partitions listed. False: too much waits already, answer it now."""
        return self._connection.may_wait(self._charge, partitions * PARTITION_MEMORY_BYTES)

    def respond(self, body: Response) -> None:
        """Answer. Sends nothing if the connection is closed. An answer that cannot be encoded is a bug of our own: it
        raises what the encoder raises, and ends the process unless the handler answers otherwise."""
        frame = encode_response(self.correlation_id, body)
        observer = self._connection.observer
        if observer.wants_details:
            observer.notify(AnswerSent(body))
        self.respond_frame(frame)

    def respond_frame(self, pieces: Sequence[Buffer]) -> None:
        """Answer with an encoded frame (Fetch with records)."""
        self._connection.answer(pieces)
        self.finish_without_reply()

    def send_answers(self) -> None:
        """Send the held answers of all connections now, not at the end of this step."""
        self._connection.send_answers()

    def finish_without_reply(self) -> None:
        """For Produce with acks=0, which has no answer, and for requests whose connection is closed."""
        assert not self._ended, "a request ends once"
        self._ended = True
        self._connection.settled(self._charge)

    def close_connection(self, reason: str) -> None:
        """The only way to tell an acks=0 producer that something went wrong."""
        self._connection.close_because(reason)


def costs_of(body: Request, size_bytes: int) -> tuple[int, int]:
    """(memory it takes while it waits for its answer, its share of a loop iteration). A Fetch that waits states its
    memory itself (`delay`)."""
    if isinstance(body, ProduceRequest):
        count = sum([len(topic.partition_data) for topic in body.topic_data])
        iteration_cost = PARTITION_LOOP_COST * count + size_bytes // RECORDS_PER_COST
        return REQUEST_MEMORY_BYTES + PARTITION_MEMORY_BYTES * count, iteration_cost
    if isinstance(body, FetchRequest):
        return REQUEST_MEMORY_BYTES, size_bytes
    return REQUEST_MEMORY_BYTES + DECODED_GROWTH * size_bytes, size_bytes
