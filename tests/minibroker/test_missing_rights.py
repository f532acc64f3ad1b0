"""What a user without the right to a file is told: not to check a path that is right."""

import errno
import os
from pathlib import Path

import pytest

from minibroker.command_line import NO_RIGHT_CURE, CommandFailed, _failed_call
from minibroker.existing_path import ExistingPath
from minibroker.local_cluster import zookeeper_jars
from minibroker.local_cluster.cluster_file import ClusterMissing, read_cluster_file


def denied(path: str | Path) -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@pytest.mark.parametrize(("number", "cure"), [(errno.ENOENT, "check the path"), (errno.EACCES, NO_RIGHT_CURE)])
def test_an_error_of_a_path_has_its_own_cure(number: int, cure: str) -> None:
    """A path without permission was to be checked, though it was right."""
    error = OSError(number, os.strerror(number), "/some/path")
    assert _failed_call(error).format_message() == f"/some/path: {os.strerror(number)}: {cure}"


@pytest.mark.parametrize("where", ["lstat", "access"])
def test_a_path_without_permission_is_not_called_missing(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`log repair DIR` said "there is no DIR" to another user than the broker's, and `audit` named no cure."""

    def refuse(path: str | Path, *_: object) -> bool:
        if where == "lstat":
            raise denied(path)
        return False

    monkeypatch.setattr(os, where, refuse)
    with pytest.raises(CommandFailed) as raised:
        ExistingPath().convert(str(tmp_path), None, None)
    assert raised.value.format_message() == f"{tmp_path} cannot be read (Permission denied): {NO_RIGHT_CURE}"


def test_a_cache_without_permission_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` and `cluster up` ended with "Permission denied: check the path" where HOME is another user's."""

    def refuse(self: Path, **_: object) -> None:
        raise denied(self)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(zookeeper_jars, "installed_directory", lambda: Path("/cache"))
    assert all("pyspark" in jar for jar in zookeeper_jars.zookeeper_jars())


def test_a_cluster_file_without_permission_is_not_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's cluster was to be started again without its file."""

    def refuse(self: Path) -> bytes:
        raise denied(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ClusterMissing) as raised:
        read_cluster_file(tmp_path)
    assert str(raised.value) == f"{tmp_path}/cluster.json cannot be read (Permission denied): {NO_RIGHT_CURE}"
