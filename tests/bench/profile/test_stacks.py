"""Sampled stacks as shares of a process's time."""

import pytest

from minibroker.bench.profile.stacks import layer_of, parse_folded, shares_by_function, shares_by_layer, without_waiting

LOOP = "run_broker (minibroker/broker/__main__.py:12);run (uvloop/__init__.py:92);uv_run (core.c:464)"
APPEND = (
    f"{LOOP};Partition.append (minibroker/broker/replicas/partition.py:9)"
    ";RealFile._write_all (minibroker/runtime/adapters/disk.py:7)"
)
ANSWER = (
    f"{LOOP};ServerConnection.answer (minibroker/runtime/server/server_connection.py:5);UVStream__try_write (loop.c:2)"
)


def layer(line: str) -> str:
    (stack,) = parse_folded(f"{line} 1")
    return layer_of(stack)


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (f"{APPEND};pwritev64v2 (libc.so.6)", "write: in runtime/adapters"),
        (f"{ANSWER};write (libc.so.6)", "write: socket"),
        (f"{APPEND};fdatasync (libc.so.6)", "sync: in runtime/adapters"),
        (f"{ANSWER}", "uvloop"),
        (f"{LOOP};step (minibroker/broker/replication/replica.py:53)", "broker/replication"),
        (f"{LOOP};check_batch (minibroker/protocol/record_batch.py:1);crc32c_hw (_crc32c.c:87)", "crc32c"),
        (f"{LOOP};encode (minibroker/protocol/wire/codec.py:1);mpack_encode (msgspec/_core.so)", "msgspec"),
        (f"{LOOP};encode (minibroker/protocol/wire/codec.py:1);__memmove_avx (libc.so.6)", "copies: protocol/wire"),
        (f"{LOOP};Fetch._look (minibroker/broker/requests/fetch.py:1);munmap (libc.so.6)", "memory: broker/requests"),
        (f"{LOOP};helper (minibroker/broker/requests/fetch.py:1);helper (contextlib.py:301)", "contextlib"),
        (LOOP, "uvloop"),
    ],
)
def test_a_sample_counts_for_the_layer_of_its_innermost_frame(stack: str, expected: str) -> None:
    assert layer(stack) == expected


def test_a_thread_that_waits_uses_no_core() -> None:
    polls = f"{LOOP};uv__io_poll (linux.c:1452);epoll_pwait (libc.so.6) 500"
    waits = (
        "worker (concurrent/futures/thread.py:81);PyThread_acquire_lock_timed (libpython3.11.so);0x7f (libc.so.6) 300"
    )
    works = f"{ANSWER};write (libc.so.6) 7"
    kept = without_waiting(parse_folded("\n".join([polls, waits, works])))
    assert [stack.samples for stack in kept] == [7]


def test_a_lock_further_up_the_stack_does_not_count_as_waiting() -> None:
    line = f"x (libpython3.11.so);sem_wait (libc.so.6);{APPEND};pwritev64v2 (libc.so.6) 3"
    assert len(without_waiting(parse_folded(line))) == 1


def test_own_time_includes_libraries_and_system_calls_and_total_time_callees() -> None:
    shares = {
        share.name: share
        for share in shares_by_function(
            parse_folded(f"{APPEND};pwritev64v2 (libc.so.6) 30\n{ANSWER};write (libc.so.6) 10")
        )
    }
    write, append = (
        shares["RealFile._write_all (runtime/adapters/disk.py)"],
        shares["Partition.append (broker/replicas/partition.py)"],
    )
    assert (write.itself, write.total) == (0.75, 0.75)
    assert (append.itself, append.total) == (0.0, 0.75)


def test_callers_of_the_event_loop_are_not_counted() -> None:
    (share,) = shares_by_function(parse_folded(f"{LOOP} 5"))
    assert (share.name, share.itself) == ("(event loop)", 1.0)


def test_shares_of_layers_add_up_to_one() -> None:
    text = f"{APPEND};pwritev64v2 (libc.so.6) 30\n{ANSWER};write (libc.so.6) 10\n{LOOP} 2"
    shares = shares_by_layer(parse_folded(text))
    assert [share.name for share in shares] == ["write: in runtime/adapters", "write: socket", "uvloop"]
    assert sum(share.itself for share in shares) == pytest.approx(1.0)


def test_no_samples_give_no_shares() -> None:
    assert shares_by_layer([]) == shares_by_function([]) == []


def test_a_malformed_folded_stack_is_rejected() -> None:
    with pytest.raises(ValueError, match="not a folded stack"):
        parse_folded("py-spy: permission denied")
