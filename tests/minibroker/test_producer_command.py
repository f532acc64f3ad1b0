"""`minibroker producer`: what it reports of names, without a cluster."""

import pytest

from minibroker.client.errors import broker_error
from minibroker.command_line import CommandFailed
from minibroker.commands.producer import _moment, _report, _require
from minibroker.protocol.errors import ErrorCode

UNKNOWN = broker_error(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, message="no producer has the name 'b'")


def test_an_unknown_name_is_refused_with_a_similar_one() -> None:
    _require(["billing"], ["billing", "orders"])
    with pytest.raises(CommandFailed) as raised:
        _require(["billing", "oders"], ["billing", "orders"])
    assert str(raised.value) == (
        "no producer has the name 'oders'; did you mean 'orders'? `minibroker producer list` prints all names"
    )
    with pytest.raises(CommandFailed, match=r"no producer has the name 'oders'\. `minibroker producer list`"):
        _require(["oders"], [])
    with pytest.raises(
        CommandFailed, match=r"the name 'oders' \(did you mean 'orders'\?\), 'x'\. `minibroker producer"
    ):
        _require(["oders", "x"], ["orders"])


def test_a_deletion_says_what_it_means_for_a_process_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _report({"a": None, "c": None}, False, False)
    printed = capsys.readouterr()
    assert printed.out == "deleted a\ndeleted c\n"
    assert printed.err == (
        "a process that still runs under a deleted name writes on, and no later start fences it: end it now\n"
    )


def test_a_name_that_another_one_deleted_meanwhile_is_a_failure_unless_it_may_be_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CommandFailed, match="no producer has the name 'b'"):
        _report({"a": None, "b": UNKNOWN}, False, True)
    assert capsys.readouterr().out == '{"producer_name": "a", "deleted": true}\n'
    _report({"b": UNKNOWN}, True, False)
    assert capsys.readouterr() == ("there was no b\n", "")


def test_a_moment_that_no_calendar_has_is_shown_as_it_is() -> None:
    assert _moment(2**63 - 1) == f"{2**63 - 1} ms"
    assert _moment(None) is None
