"""Scenes brought together for one Spark job: each is a topic of its own, and must be judged as it is alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from minibroker.audit.discovery import Inventory
from minibroker.audit.errors import AuditError
from minibroker.audit.findings import PartitionResult
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.spark_job import compare_on_spark
from tests.audit.losses.scene import WITH_LIST, Known, Scene, acked_list, look


class Judged(NamedTuple):
    """The same scenes, by both engines."""

    locally: list[PartitionResult]
    on_spark: list[PartitionResult]


def judge_together(context: Any, scenes: Sequence[Scene], known: Known, range_bytes: int, root: Path) -> Judged:
    """With this knowledge of each, segments cut into ranges of so many bytes."""
    whole = Inventory(log_directories=(), replicas=())
    for scene in scenes:
        try:
            inventory = look(scene, known)
        except AuditError:
            continue  # refused before any engine
        whole = replace(
            whole, replicas=whole.replicas + inventory.replicas, expected=whole.expected | inventory.expected
        )
    acked = str(acked_list(scenes, root / f"{known}.list")) if known in WITH_LIST else None
    with_values = acked is not None
    return Judged(
        compare_locally(whole, acked, with_values=with_values),
        compare_on_spark(context, whole, acked, with_values=with_values, range_bytes=range_bytes),
    )
