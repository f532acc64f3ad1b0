"""The fresh seeds belong to the commit, and need no git."""

import pytest

from minibroker.code_version import code_digest, fresh_seed
from tests.simulation import fresh_seeds as subject


def test_same_commit_has_the_same_seeds_and_another_one_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "commit_of", lambda: "9422695cdba337b4")
    seeds, said = subject.fresh_seeds()
    assert (seeds, said) == subject.fresh_seeds()
    assert len(seeds) == 100
    first, last = seeds[0], seeds[-1]
    again = f"minibroker simulate --seeds {first}-{last}"
    assert said == f"fresh seeds: {first} to {last}, from commit 9422695cdba3; again: {again}"
    monkeypatch.setattr(subject, "commit_of", lambda: "fc01a07000000000")
    assert not {*subject.fresh_seeds()[0]} & {*seeds}


def test_without_git_they_follow_from_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "commit_of", lambda: None)
    seeds, said = subject.fresh_seeds()
    assert seeds[0] == fresh_seed(code_digest())
    assert "git knows no commit here" in said
