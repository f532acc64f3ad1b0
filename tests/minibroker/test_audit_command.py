"""What `minibroker audit` takes on its command line."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.audit import run, submit
from minibroker.audit.errors import AuditError
from minibroker.commands.audit import audit

TWO_LISTS = ["--acked", "first.tsv", "--acked", "second.tsv"]


@pytest.fixture(autouse=True)
def nothing_is_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_audit", lambda *_, **__: pytest.fail("audited with one of the two lists"))


def test_a_second_list_is_refused(tmp_path: Path) -> None:
    """It replaced the first one, and the audit called records consistent that it had not looked for."""
    ended = CliRunner().invoke(audit, [str(tmp_path), "--engine", "local", *TWO_LISTS])
    assert ended.exit_code == 2
    assert "--acked takes one list, and was given 2: audit once with each" in ended.output


def test_a_second_list_is_refused_under_spark_submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        submit.main([str(tmp_path), *TWO_LISTS])
    assert ended.value.code == 2
    assert "--acked takes one list, and was given 2: audit once with each" in capsys.readouterr().err


def test_a_directory_without_permission_is_left_to_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """click called it unreadable, a usage error without a cure; the audit names the right that is missing."""

    def refuse(*_: object, **__: object) -> None:
        raise AuditError(f"{tmp_path} cannot be read")

    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(run, "run_audit", refuse)
    ended = CliRunner().invoke(audit, [str(tmp_path), "--engine", "local"])
    assert (ended.exit_code, ended.output) == (1, f"error: {tmp_path} cannot be read\n")
