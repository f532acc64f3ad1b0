"""An event of a broker, as the report of a run tells it. Pure."""

from typing import Any

from msgspec import Struct


class ClusterNote(Struct, frozen=True):
    """An event of a broker, in seconds since the start of the run."""

    at_s: float
    broker: int
    event: str
    text: str
    partition: str | None = None
    fields: dict[str, Any] = {}
