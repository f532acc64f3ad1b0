"""What a run is asked to do."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from minibroker.chaos.plan.drawing import Plan
from minibroker.chaos.plan.fault_kinds import Backend
from minibroker.chaos.run.chaos_load import Acks

BROKERS = 3
LieIn = Literal["history", "disks"]
AuditEngine = Literal["local", "spark"]


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
    client: str | None = None
    """The command of a program that is the load, in place of the run's own clients."""
    idempotent: tuple[str, ...] = ()
    """Processes of that program which write each record once, and in order."""
    lie: str | None = None
    lie_in: LieIn = "history"
    audit_engine: AuditEngine = "local"
    command: str = ""
    """Repeats the run."""
