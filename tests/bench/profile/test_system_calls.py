"""The tables of perf trace and strace."""

import pytest

from minibroker.bench.profile.system_calls import SystemCall, parse_perf_trace, parse_strace

PERF = """
 Summary of events:

 minibroker (77), 2000 events, 50.0%

   syscall            calls  errors  total       min       avg       max       stddev
                                     (msec)    (msec)    (msec)    (msec)        (%)
   --------------- --------  ------ -------- --------- --------- ---------     ------
   epoll_pwait          100      0   900.000     0.016     9.000    90.000      0.28%
   write                100      0    12.000     0.021     0.120     0.401      0.27%
   getpid               200      0     3.000     0.010     0.015     0.030      0.26%


 kazoo (78), 20 events, 1.0%

   syscall            calls  errors  total       min       avg       max       stddev
   write                 50      0     8.000     0.021     0.029     0.401      0.27%


 other (99), 20 events, 1.0%

   write                 50      0     8.000     0.021     0.029     0.401      0.27%
"""

STRACE = """
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 44.44    0.198459          27      7225           write
 28.87    0.128897          17      7225        12 read
 26.69    0.010000          17       100           epoll_pwait
------ ----------- ----------- --------- --------- ----------------
100.00    0.337356          23     14550        12 total
"""


def test_threads_of_a_process_are_summed_and_other_threads_ignored() -> None:
    found = parse_perf_trace(PERF, {77: 77, 78: 77})
    assert {call.name: call.calls for call in found[77]} == {"write": 150, "getpid": 200, "epoll_pwait": 100}
    assert list(found) == [77]


def test_perfs_own_cost_per_call_is_subtracted() -> None:
    found = {call.name: call.seconds for call in parse_perf_trace(PERF, {77: 77, 78: 77})[77]}
    assert found["write"] == pytest.approx(0.020 - 150 * 10e-6)
    assert found["getpid"] == pytest.approx(0.003 - 200 * 10e-6)


def test_calls_that_wait_come_last_and_are_marked() -> None:
    last = parse_perf_trace(PERF, {77: 77, 78: 77})[77][-1]
    assert (last.name, last.waits) == ("epoll_pwait", True)


def test_strace_rows_with_and_without_errors_are_read_and_the_total_is_skipped() -> None:
    assert parse_strace(STRACE) == [
        SystemCall("write", 7225, 0.198459),
        SystemCall("read", 7225, 0.128897),
        SystemCall("epoll_pwait", 100, 0.01),
    ]
