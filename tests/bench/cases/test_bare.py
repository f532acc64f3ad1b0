"""How the three measurements around the bare data path are combined."""

from minibroker.bench.case import Measurement, ProcessCost
from minibroker.bench.cases.bare import compared


def test_both_ways_of_sending_are_compared_with_the_bare_path() -> None:
    cost = ProcessCost("broker-1", 1.0, 50.0)
    found = {
        "bare": Measurement({"mb_s": 400.0}),
        "many": Measurement({"mb_s": 320.0, "cluster_cpu_s_per_gb": 3.0}, [cost]),
        "one": Measurement({"mb_s": 280.0, "cluster_cpu_s_per_gb": 4.0}),
    }
    measured = compared(found)
    assert measured.figures == {
        "mb_s": 320.0,
        "cluster_cpu_s_per_gb": 3.0,
        "bare_mb_s": 400.0,
        "one_a_call_mb_s": 280.0,
        "share": 0.8,
        "one_a_call_share": 0.7,
    }
    assert measured.costs == [cost]
