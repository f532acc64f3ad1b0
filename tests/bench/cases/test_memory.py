"""Memory and CPU of processes over a long load."""

import pytest

from minibroker.bench.cases.memory import Spending, figures, growth, settled


def test_the_first_fifth_is_left_out_of_settled_values() -> None:
    assert list(settled([1.0, 2.0, 3.0, 4.0, 5.0])) == [2.0, 3.0, 4.0, 5.0]


def test_growth_compares_the_last_third_with_the_first() -> None:
    assert growth([50.0, 50.0, 90.0, 50.0, 50.0, 50.0]) == 0.0
    assert growth([50.0, 51.0, 52.0, 53.0, 54.0, 55.0]) == 4.0
    assert growth([50.0]) == 0.0


def test_the_largest_broker_is_reported_and_zookeeper_separately() -> None:
    found = figures({"broker-1": [50.0] * 10, "broker-2": [60.0] * 5 + [70.0] + [60.0] * 4, "zookeeper": [300.0] * 10})
    assert found == {
        "broker_rss_mb": 60.0,
        "broker_peak_rss_mb": 70.0,
        "broker_growth_mb": 0.0,
        "zookeeper_rss_mb": 300.0,
        "samples": 10.0,
    }


def test_cpu_is_reported_by_role_for_the_topic() -> None:
    spent = Spending()
    for leader in (1, 2):
        for broker_id in (1, 2, 3):
            spent.add(f"broker-{broker_id}", leader, 2.0 if broker_id == leader else 1.0)
        spent.add_load({"cpu_s": 3.0, "bytes": 500_000_000})
    assert spent.figures() == pytest.approx(
        {
            "client_cpu_s_per_gb": 6.0,
            "followers_cpu_s_per_gb": 4.0,
            "leader_cpu_s_per_gb": 4.0,
            "cluster_cpu_s_per_gb": 8.0,
            "gb": 1.0,
        }
    )
