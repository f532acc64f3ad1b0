"""Scenes combined for one Spark job: each is a topic of its own, and must give the same result as it gives alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from minibroker.audit.checks.findings import PartitionResult
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import Inventory
from minibroker.audit.spark.spark_job import compare_on_spark
from tests.audit.losses.scene import WITH_LIST, KnownSources, Scene, acked_list, inventory_of


class BothEngines(NamedTuple):
    """Results of the same scenes from both engines."""

    locally: list[PartitionResult]
    on_spark: list[PartitionResult]


def audit_together(
    context: Any, scenes: Sequence[Scene], known: KnownSources, range_bytes: int, root: Path
) -> BothEngines:
    """With these sources for each scene, and segments split into ranges of this size."""
    whole = Inventory(log_directories=(), replicas=())
    for scene in scenes:
        try:
            inventory = inventory_of(scene, known)
        except AuditError:
            continue  # rejected before any engine
        whole = replace(
            whole, replicas=whole.replicas + inventory.replicas, expected=whole.expected | inventory.expected
        )
    acked = str(acked_list(scenes, root / f"{known}.list")) if known in WITH_LIST else None
    with_values = acked is not None
    return BothEngines(
        compare_locally(whole, acked, with_values=with_values),
        compare_on_spark(context, whole, acked, with_values=with_values, range_bytes=range_bytes),
    )
