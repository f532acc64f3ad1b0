"""The consumer's parameters: their checks, and the settings of its parts."""

from collections.abc import Sequence

import msgspec

from minibroker.client.cluster import ClusterSettings
from minibroker.client.consumer.cursor import OffsetReset
from minibroker.client.consumer.fetcher import FetchSettings
from minibroker.client.errors import InvalidCall
from minibroker.client.limits import check_at_least, check_whole, parse_servers


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As the user gave them to `Consumer`, with the same names."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    auto_offset_reset: str
    on_truncation: str
    on_undecodable: str
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    check_crcs: bool
    isolation_level: str
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    bootstrap_timeout_ms: int

    @property
    def reset(self) -> OffsetReset:
        return OffsetReset(self.auto_offset_reset)

    def check(self) -> None:
        """Raise InvalidCall for invalid values."""
        check_whole(
            1,
            fetch_min_bytes=self.fetch_min_bytes,
            fetch_max_bytes=self.fetch_max_bytes,
            max_partition_fetch_bytes=self.max_partition_fetch_bytes,
            max_poll_records=self.max_poll_records,
        )
        check_at_least(
            1,
            request_timeout_ms=self.request_timeout_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            retry_backoff_max_ms=self.retry_backoff_max_ms,
            metadata_max_age_ms=self.metadata_max_age_ms,
            bootstrap_timeout_ms=self.bootstrap_timeout_ms,
        )
        check_whole(0, fetch_max_wait_ms=self.fetch_max_wait_ms)
        for name, value, allowed in (
            ("auto_offset_reset", self.auto_offset_reset, ("earliest", "latest", "none")),
            ("on_truncation", self.on_truncation, ("raise", "reset")),
            ("on_undecodable", self.on_undecodable, ("raise", "skip")),
            ("isolation_level", self.isolation_level, ("read_uncommitted", "read_committed")),
        ):
            if value not in allowed:
                raise InvalidCall(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")

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

    def for_fetcher(self) -> FetchSettings:
        return FetchSettings(
            max_wait_ms=self.fetch_max_wait_ms,
            min_bytes=self.fetch_min_bytes,
            max_bytes=self.fetch_max_bytes,
            request_timeout_ms=self.request_timeout_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            retry_backoff_max_ms=self.retry_backoff_max_ms,
            isolation_level=int(self.isolation_level == "read_committed"),
            reset=self.reset,
            halt_on_truncation=self.on_truncation == "raise",
        )
