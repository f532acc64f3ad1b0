"""Some seeds of `python -m tests.audit.random_damage`: data of simulated clusters, one random damage each."""

from pathlib import Path

import pytest

from minibroker.audit.report import AuditOutcome
from tests.audit.random_damage.one_seed import play

SEEDS = range(1, 11)


@pytest.mark.parametrize("seed", SEEDS)
def test_harm_is_not_called_consistent_and_clean_data_not_accused(seed: int, tmp_path: Path) -> None:
    told = play(seed, tmp_path)
    assert told.accused is None
    assert not (told.is_harm and told.outcome is AuditOutcome.CONSISTENT), told
