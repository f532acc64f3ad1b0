"""The tree of errors: its drawing is right, names can be imported, and messages say what is known."""

import inspect
import subprocess
import sys

import pytest

import minibroker
from minibroker.client import errors
from minibroker.client.errors import (
    BrokerError,
    BrokerUnreachable,
    CallTimedOut,
    ClusterUnreachable,
    DeliveryTimedOut,
    LogTruncated,
    MinibrokerError,
    NotEnoughReplicas,
    Where,
    broker_error,
)
from minibroker.client.no_answer import no_broker_answered
from minibroker.protocol.errors import REFRESHES_METADATA, RETRIABLE, ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import ConnectionRefused, NetworkError


def tree() -> dict[str, type[MinibrokerError]]:
    found = inspect.getmembers(errors, lambda item: inspect.isclass(item) and issubclass(item, MinibrokerError))
    return dict(found)


def test_the_drawing_at_the_top_names_every_class_and_no_other() -> None:
    drawing = (errors.__doc__ or "").split("Owns:")[0]
    drawn = {word.strip(",") for word in drawing.split() if word.strip(",") in tree()}
    assert drawn == set(tree())


def test_every_code_becomes_an_error_that_knows_whether_to_retry() -> None:
    for code in ErrorCode:
        error = broker_error(code)
        assert isinstance(error, BrokerError)
        assert error.code is code
        assert error.retriable == (code in RETRIABLE)
        assert error.refreshes_metadata == (code in REFRESHES_METADATA)
        assert code.name in str(error)


def test_without_a_code_only_what_time_may_mend_is_retried() -> None:
    retried = {
        name for name, kind in tree().items() if kind.retriable and not issubclass(kind, BrokerError | CallTimedOut)
    }
    assert retried == {"ClusterUnreachable", "BrokerUnreachable", "CorruptRecords", "MisplacedRecords"}


def test_an_unknown_code_keeps_its_number() -> None:
    assert "error 9999" in str(broker_error(9999))


def test_a_refusal_names_partition_broker_epoch_isr_and_what_to_do() -> None:
    where = Where(topic_partition=TopicPartition("lines", 0), broker_id=2, leader_epoch=5, isr=(2,))
    error = broker_error(ErrorCode.NOT_ENOUGH_REPLICAS, where, "missing brokers: 1, 3")
    assert isinstance(error, NotEnoughReplicas)
    assert str(error).startswith(
        "NOT_ENOUGH_REPLICAS from broker 2 for lines-0 (epoch 5, ISR [2]): missing brokers: 1, 3 ["
    )
    assert "`minibroker cluster resume` lets one that is paused go on" in str(error)
    assert error.topic_partition == TopicPartition("lines", 0)
    assert error.broker_id == 2


def test_a_refusal_names_one_isr() -> None:
    """Once it named what the client knew, and beside it what the broker knew."""
    where = Where(topic_partition=TopicPartition("lines", 0), broker_id=2, leader_epoch=5, isr=(2, 3))
    text = str(broker_error(ErrorCode.NOT_ENOUGH_REPLICAS, where, "ISR=[2] (size 1) < min.insync.replicas=2"))
    assert "for lines-0 (epoch 5): ISR=[2]" in text
    assert "nothing was written" not in text, "an earlier attempt may have written it"


def test_a_timeout_carries_its_last_error_and_is_a_timeout_error() -> None:
    last = broker_error(ErrorCode.NOT_ENOUGH_REPLICAS)
    error = DeliveryTimedOut("too late", last)
    assert not error.maybe_written, "unless it is told so"
    assert isinstance(error, TimeoutError)
    assert error.last_error is last
    assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "last error: NOT_ENOUGH_REPLICAS" in str(error)


def test_a_timeout_within_a_timeout_names_only_what_was_waited_for() -> None:
    refusal = MinibrokerError("refused")
    inner = errors.CallTimedOut("no broker answered within 30000 ms", errors.CallTimedOut("no metadata", refusal))
    error = DeliveryTimedOut("timed out after 120 s", inner)
    assert str(error) == "timed out after 120 s; last error: refused"
    assert error.last_error is refusal


@pytest.mark.parametrize(
    ("divergent_offset", "lost", "seek"),
    [(70, "offset 70", "seek(70)"), (0, "offset 0", "seek(0)"), (None, "an unknown offset", "seek_to_beginning()")],
)
def test_a_truncation_names_what_may_be_gone_and_where_to_go_on(
    divergent_offset: int | None, lost: str, seek: str
) -> None:
    error = LogTruncated(Where(topic_partition=TopicPartition("lines", 0)), 95, divergent_offset)
    assert (error.position, error.divergent_offset) == (95, divergent_offset)
    assert f"read up to 95, but it differs from {lost} on" in str(error)
    assert str(error).endswith(f"Discard what was derived from them, then {seek}")


@pytest.mark.parametrize("name", minibroker.__all__)
def test_public_names_can_be_imported(name: str) -> None:
    assert getattr(minibroker, name).__name__ == name


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Prodcer'"):
        minibroker.Prodcer  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Each start of the command line would take longer."""
    program = "import sys, minibroker; print(*sorted(set(sys.modules) & {'asyncio', 'msgspec', 'uvloop', 'kazoo'}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_addresses_without_answer_have_their_reasons() -> None:
    failures = [("a:1", "cannot connect to a:1: Connection refused"), ("b:2", "b:2 accepts connections but is silent")]
    assert no_broker_answered(failures) == (
        "no broker answered at a:1 (connection refused), b:2 (accepts connections but is silent)"
    )


def test_a_cluster_is_refused_only_if_each_address_that_was_asked_has_refused() -> None:
    def failed(cause: Exception) -> tuple[object, Exception]:
        error = BrokerUnreachable("broker 1")
        error.__cause__ = cause
        return ("h", 1), error

    unreachable, refused, silent = ClusterUnreachable("x"), ConnectionRefused("no"), NetworkError("silent")
    found = []
    for causes in ([], [refused], [refused, silent], [silent]):
        unreachable.failures = tuple(map(failed, causes))
        found.append(unreachable.is_refused)
    assert found == [False, True, False, False]
