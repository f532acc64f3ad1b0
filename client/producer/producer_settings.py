"""The producer's parameters: their checks, and the settings of its parts."""

from collections.abc import Sequence

import msgspec

from minibroker.client.cluster import ClusterSettings
from minibroker.client.errors import InvalidCall
from minibroker.client.limits import BATCH_SIZE_MAX, check_at_least, check_whole, parse_servers
from minibroker.protocol.ids import PRODUCER_NAME_MAX_LENGTH, is_producer_name
from minibroker.protocol.wire.message_types import PRODUCES_IN_FLIGHT_MAX


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As the user gave them to `Producer`, with the same names."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    producer_name: str | None
    acks: str | int
    linger_ms: float
    batch_size: int
    enable_idempotence: bool | None
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    max_block_ms: int
    buffer_memory: int
    max_request_size: int
    metadata_max_age_ms: int
    bootstrap_timeout_ms: int

    @property
    def acks_number(self) -> int:
        """As on the wire."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        """On by default if acks allow it."""
        return self.acks_number == -1 if self.enable_idempotence is None else self.enable_idempotence

    def check(self) -> None:
        """Raise InvalidCall for values that are invalid alone or together."""
        if self.acks not in ("all", -1, 0, 1) or isinstance(self.acks, bool):
            raise InvalidCall(f"acks is {self.acks!r}; it must be 'all', 1 or 0")
        check_at_least(0, linger_ms=self.linger_ms, max_block_ms=self.max_block_ms)
        check_at_least(
            1,
            delivery_timeout_ms=self.delivery_timeout_ms,
            request_timeout_ms=self.request_timeout_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            retry_backoff_max_ms=self.retry_backoff_max_ms,
            metadata_max_age_ms=self.metadata_max_age_ms,
            bootstrap_timeout_ms=self.bootstrap_timeout_ms,
        )
        check_whole(1, max_in_flight_requests_per_connection=self.max_in_flight_requests_per_connection)
        check_whole(
            1_024,
            batch_size=self.batch_size,
            max_request_size=self.max_request_size,
            buffer_memory=self.buffer_memory,
        )
        name = self.producer_name
        if name is not None and (not isinstance(name, str) or not is_producer_name(name)):
            raise InvalidCall(
                f"producer_name is {name!r:.200}; it must be 1 to {PRODUCER_NAME_MAX_LENGTH} of a-z A-Z 0-9 . _ -"
            )
        if name is not None and not self.idempotent:
            raise InvalidCall("producer_name needs acks='all' and enable_idempotence: other batches are not fenced")
        if self.idempotent and self.acks_number != -1:
            raise InvalidCall("enable_idempotence needs acks='all': with less an acknowledged record may be lost")
        in_flight = self.max_in_flight_requests_per_connection
        if self.idempotent and in_flight > PRODUCES_IN_FLIGHT_MAX:
            raise InvalidCall(
                f"enable_idempotence allows at most {PRODUCES_IN_FLIGHT_MAX} requests in flight, not {in_flight}: "
                "a broker remembers that many batches of a producer"
            )
        if self.batch_size > BATCH_SIZE_MAX or self.max_request_size > BATCH_SIZE_MAX:
            raise InvalidCall(f"batch_size and max_request_size are at most {BATCH_SIZE_MAX} bytes")
        if self.delivery_timeout_ms < self.linger_ms:
            raise InvalidCall("delivery_timeout_ms must not be below linger_ms")

    def for_cluster(self) -> ClusterSettings:
        return ClusterSettings(
            bootstrap=parse_servers(self.bootstrap_servers),
            client_id=self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            retry_backoff_max_ms=self.retry_backoff_max_ms,
            metadata_max_age_ms=self.metadata_max_age_ms,
            bootstrap_timeout_ms=self.bootstrap_timeout_ms,
        )
