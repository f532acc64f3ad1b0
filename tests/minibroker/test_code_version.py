"""The commit and the digest of the code, and the seeds that belong to them."""

import subprocess
from pathlib import Path

import pytest

from minibroker.code_version import code_digest, commit_of, fresh_seed


def committed(folder: Path) -> str:
    """A repository with one commit; returns it."""
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    for arguments in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    found = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def test_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    commit = committed(tmp_path)
    assert commit_of(tmp_path) == commit


def test_checkout_without_a_commit_has_none(tmp_path: Path) -> None:
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    assert commit_of(tmp_path) is None


def test_project_inside_of_another_ones_checkout_has_none(tmp_path: Path) -> None:
    committed(tmp_path)
    (tmp_path / "site-packages").mkdir()
    assert commit_of(tmp_path / "site-packages") is None


def test_machine_without_git_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) is None


def test_digest_is_the_same_again() -> None:
    assert code_digest() == code_digest()
    assert len(code_digest()) == 64


def test_seeds_belong_to_a_commit() -> None:
    mine, other = fresh_seed("9422695cdba3"), fresh_seed("fc01a07e55aa")
    assert mine == fresh_seed("9422695cdba3") == 1_000_000_000 + 0x942269 * 10_000
    assert abs(mine - other) >= 10_000
