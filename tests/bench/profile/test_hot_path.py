"""What one request costs, from windows, samples and counted calls."""

import pytest

from minibroker.bench.profile.cpu import CpuWindow
from minibroker.bench.profile.hot_path import MeasuredWindow, hot_path
from minibroker.bench.profile.run import parse_counters
from minibroker.bench.profile.stacks import parse_folded
from minibroker.bench.profile.system_calls import SystemCall

STACKS = parse_folded(
    "append (minibroker/broker/replicas/partition.py:1) 75\nstep (minibroker/broker/replication/replica.py:1) 25"
)
PLAIN = MeasuredWindow(seconds=2.0, requests=1000.0, megabytes=100.0, cpu=CpuWindow(0.4, 0.1))
DISTURBED = MeasuredWindow(seconds=2.0, requests=500.0, megabytes=50.0, cpu=CpuWindow(0.3, 0.1))


def test_times_come_from_the_undisturbed_window_and_shares_from_samples() -> None:
    path = hot_path("leader", "produce", PLAIN, DISTURBED, STACKS, None, [])
    assert path.us_per_request == pytest.approx(400.0)
    assert path.kernel_us_per_request == pytest.approx(100.0)
    assert {cost.where: round(cost.us) for cost in path.layers} == {"broker/replicas": 300, "broker/replication": 100}
    assert [path.requests_per_s, path.busy, path.cpu_s_per_gb] == pytest.approx([500.0, 0.2, 4.0])


def test_costs_of_sampling_and_counting_are_reported() -> None:
    path = hot_path("leader", "produce", PLAIN, DISTURBED, STACKS, DISTURBED, [])
    assert path.sampler_cost == pytest.approx(1.5)
    assert path.tracer_cost == pytest.approx(1.5)


def test_calls_are_per_request_of_the_window_in_which_they_were_counted() -> None:
    path = hot_path("leader", "produce", PLAIN, DISTURBED, STACKS, DISTURBED, [SystemCall("write", 1000, 0.01)])
    (call,) = path.system_calls
    assert [call.calls, call.us_each, call.us] == pytest.approx([2.0, 10.0, 20.0])


def test_counters_are_read_from_the_metrics_page() -> None:
    page = """
# TYPE minibroker_network_requests_total counter
minibroker_network_requests_total{api="produce"} 250.0
minibroker_network_requests_total{api="fetch"} 510.0
minibroker_broker_topic_bytes_in_total 3.2e+07
minibroker_broker_topic_bytes_out_total 0.0
minibroker_broker_topic_replication_bytes_out_total 6.4e+07
"""
    counters = parse_counters(page)
    assert (counters.produces, counters.fetches, counters.bytes_in, counters.replicated) == (250, 510, 3.2e7, 6.4e7)
