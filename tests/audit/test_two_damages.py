"""Damage of one replica hides no damage of another one: each is found as if it were alone."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from minibroker.audit.checks.findings import Kind
from tests.audit import damage
from tests.audit.damage import BROKER, ENCODED
from tests.audit.planted_cluster import PlantedCluster
from tests.audit.test_damage import LINES, audited_partition, errors, trim

EARLIER = 1
"""A broker whose replica is checked before that of BROKER."""

Found = set[tuple[Kind, int | None, int | None]]
Plant = Callable[[PlantedCluster, int], object]


def _by_name(plant: damage.Damage) -> tuple[str, Plant]:
    return plant.__name__, lambda cluster, broker: plant(cluster.replica(broker, LINES))


PLANTS: dict[str, Plant] = {**dict(map(_by_name, damage.ALL)), "trim": trim}
SECOND = ("trim", "cut_tail", "garble_index", "duplicate_batch", "remove_epoch_checkpoint")
"""One for each group of checks: starts, ends, indexes, batches, histories."""


def found(root: Path, plants: dict[int, str]) -> Found:
    """The errors of BROKER's replica, with these damages by broker."""
    cluster = PlantedCluster(root)
    cluster.write(LINES, ENCODED)
    for broker, name in plants.items():
        PLANTS[name](cluster, broker)
    named = [item for item in errors(audited_partition(cluster)) if item.broker == BROKER]
    return {(item.kind, item.offset, item.end_offset) for item in named}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    return cache(lambda name: found(tmp_path_factory.mktemp("alone"), {BROKER: name}))


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", PLANTS)
def test_damage_is_found_behind_damage_of_another_replica(
    tmp_path: Path, alone: Callable[[str], Found], first: str, second: str
) -> None:
    assert alone(second)
    assert alone(second) <= found(tmp_path, {EARLIER: first, BROKER: second})
