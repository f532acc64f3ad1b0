"""`minibroker audit --timeout` ends an audit that hangs, with one sentence, wherever it waits."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.audit import run
from minibroker.audit.reports.report import AuditReport
from minibroker.commands.audit import audit


def test_an_audit_that_hangs_in_code_that_catches_errors_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_as_py4j_does(*_: object, **__: object) -> AuditReport:
        try:
            while True:
                pass
        except Exception as error:
            raise ConnectionError("Error while sending or receiving") from error

    monkeypatch.setattr(run, "run_audit", wait_as_py4j_does)
    ended = CliRunner().invoke(audit, [str(tmp_path), "--engine", "local", "--timeout", "1"])
    assert ended.output.strip().endswith(
        "the audit did not end within 1 s: give a longer --timeout, or fewer directories"
    )
    assert "interrupted" not in ended.output
    assert ended.exit_code == 1
