"""Small pure parts of the client: partitioner, back-off, parameters."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.client_log import ClientLog
from minibroker.client.errors import InvalidCall
from minibroker.client.limits import parse_servers
from minibroker.client.metadata_cache import Address
from minibroker.client.producer.partitioner import murmur2, murmur2_partitioner, positive_murmur2
from minibroker.client.producer.producer import Producer
from minibroker.client.retry import ProduceDecision, backoff_ms, decide_produce, poll_pause_ms
from minibroker.protocol.errors import RETRIABLE, ErrorCode
from minibroker.protocol.ids import TopicPartition


# --------------------------------------------------------------------------------------------------------- partitioner
@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, signed: int) -> None:
    """The vectors of Kafka's UtilsTest."""
    assert murmur2(key) == signed % 2**32
    assert positive_murmur2(key) == murmur2(key) & 0x7FFFFFFF


@given(key=st.binary(max_size=40), count=st.integers(1, 1_000))
def test_every_key_has_a_partition(key: bytes, count: int) -> None:
    assert 0 <= murmur2_partitioner(key, count) < count


# --------------------------------------------------------------------------------------------------------------- retry
@given(attempt=st.integers(1, 1_000), unit_random=st.floats(0, 1, exclude_max=True))
def test_back_off_grows_to_a_bound(attempt: int, unit_random: float) -> None:
    pause = backoff_ms(attempt, 100, 1_000, unit_random)
    expected = min(1_000.0, 100.0 * 2 ** min(attempt - 1, 20))
    assert expected * 0.8 <= pause <= expected * 1.2


@pytest.mark.parametrize("pause_ms", [partial(backoff_ms, 3, 100, 1_000), partial(poll_pause_ms, 1_600, 20, 1_000)])
def test_a_pause_is_spread_evenly_to_both_sides(pause_ms: Callable[[float], float]) -> None:
    """Clients that failed together do not return together, and a pause is as long as intended in the mean."""
    shortest, intended, longest = (pause_ms(unit_random) for unit_random in (0.0, 0.5, 1.0))
    assert intended == pytest.approx(400)
    assert intended - shortest == pytest.approx(longest - intended)
    assert longest - shortest > intended / 4


@given(found_at_ms=st.floats(0, 2_000), unit_random=st.floats(0, 1, exclude_max=True))
def test_a_search_ends_at_most_a_third_late_and_costs_few_requests(found_at_ms: float, unit_random: float) -> None:
    looked_at_ms, rounds = 0.0, 1
    while looked_at_ms < found_at_ms:
        looked_at_ms += poll_pause_ms(looked_at_ms, 20, 400, unit_random)
        rounds += 1
    assert looked_at_ms <= found_at_ms * 1.3 + 24
    assert rounds <= 32


@pytest.mark.parametrize("code", sorted(RETRIABLE))
def test_a_retriable_code_is_retried(code: ErrorCode) -> None:
    assert decide_produce(code, 1) is ProduceDecision.RETRY


def test_too_large_is_split_only_if_there_is_more_than_one_record() -> None:
    assert decide_produce(ErrorCode.MESSAGE_TOO_LARGE, 2) is ProduceDecision.SPLIT
    assert decide_produce(ErrorCode.MESSAGE_TOO_LARGE, 1) is ProduceDecision.FAIL


# ------------------------------------------------------------------------------------------------------------------ log
@pytest.mark.parametrize(
    ("count", "end"), [(1, "(epoch 7)"), (5, "(epoch 7)"), (6, "and 1 more partitions have new leaders")]
)
def test_new_leaders_are_named_up_to_a_limit(caplog: pytest.LogCaptureFixture, count: int, end: str) -> None:
    with caplog.at_level(logging.INFO, "minibroker.client"):
        ClientLog("me").new_leaders([(TopicPartition("t", number), 2, 7) for number in range(count)])
        ClientLog("me").new_leaders([])
    (line,) = (each.message for each in caplog.records)
    assert line.count("is led by broker 2 now") == min(count, 5)
    assert line.endswith(end)
    assert ("more" in line) == (count > 5)


# ---------------------------------------------------------------------------------------------------------- parameters
@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost", [("localhost", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("a:1,a:1", [("a", 1)]),
        ("[::1]:9093,[::1],::1", [("::1", 9093), ("::1", 9092)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
    ],
)
def test_servers_are_read(text: str | list[str], addresses: list[tuple[str, int]]) -> None:
    assert parse_servers(text) == addresses


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a:b", ":9092", ",", None, 9092])
def test_nonsense_servers_are_refused(text: Any) -> None:
    with pytest.raises(InvalidCall, match="HOST:PORT"):
        parse_servers(text)


@pytest.mark.parametrize("text", ["http://127.0.0.1:9092", "a:1,kafka://b"])
def test_a_url_is_named_as_one(text: str) -> None:
    """The client looked for a machine of that name."""
    with pytest.raises(InvalidCall, match="is a URL: give HOST:PORT alone"):
        parse_servers(text)


def test_an_address_prints_as_it_is_read() -> None:
    for address in (Address("host", 1), Address("::1", 2)):
        assert parse_servers(str(address)) == [address]


@pytest.mark.parametrize(("acks", "number"), [("all", -1), (-1, -1), (0, 0), (1, 1)])
def test_acks_are_taken_by_name_and_by_number(acks: Any, number: int) -> None:
    """Kafka's clients take -1 for 'all', too: then a producer is idempotent."""
    settings = Producer(acks=acks)._settings
    assert (settings.acks_number, settings.idempotent) == (number, number == -1)
    with_fewer_retries = Producer(acks=acks, enable_idempotence=False)._settings
    assert (with_fewer_retries.acks_number, with_fewer_retries.idempotent) == (number, False)


@pytest.mark.parametrize("acks", [-2, 2, True, False, None, "", "ALL", "1", "-1", b"all"], ids=repr)
def test_other_acks_are_refused_with_those_that_are_taken(acks: Any) -> None:
    with pytest.raises(InvalidCall, match=f"acks is {acks!r}; it must be 'all', 1 or 0"):
        Producer(acks=acks)
