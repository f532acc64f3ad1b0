"""Some seeds of `python -m tests.audit.random_damage`: data of simulated clusters, one random damage each."""

from pathlib import Path

import pytest

from minibroker.audit.reports.report import AuditOutcome
from tests.audit.random_damage.one_seed import play

SEEDS = range(1, 11)


@pytest.mark.parametrize("seed", SEEDS)
def test_harm_is_not_called_consistent_and_clean_data_gives_no_error(seed: int, tmp_path: Path) -> None:
    result = play(seed, tmp_path)
    assert result.false_error is None
    assert not (result.is_harm and result.outcome is AuditOutcome.CONSISTENT), result
