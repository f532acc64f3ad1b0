"""What a run is asked to do."""

from pathlib import Path

from msgspec import Struct

from minibroker.chaos.plan.drawing import Plan
from minibroker.chaos.plan.fault_kinds import Backend
from minibroker.chaos.run.chaos_load import Acks

BROKERS = 3


class ChaosOptions(Struct, frozen=True, kw_only=True):
    """Of one run."""

    backend: Backend
    plan: Plan
    out: Path
    settings: dict[str, str] = {}
    """Of every broker, by their dotted names."""
    acks: Acks = "all"
    rate: float = 200.0
    """Records a second, of all producers together."""
    lie: str | None = None
    audit_engine: str = "local"
    command: str = ""
    """Repeats the run."""
