"""Loads are drawn from a stream of their own, every one of them, and one seed is one run."""

import random

import pytest

from minibroker.simulation.swarm.choices import RunChoices
from minibroker.simulation.swarm.loads import load_options
from minibroker.simulation.swarm.loads.all_loads import CLASSES
from minibroker.simulation.swarm.loads.load_options import LOADS, TOPIC, draw_load_options
from minibroker.simulation.swarm.options import draw_options
from minibroker.simulation.swarm.run import run_seed


def test_seed_with_loads_is_one_run_and_another_than_without() -> None:
    first, again = (run_seed(3, choices=RunChoices(loads=True)) for _ in range(2))
    without = run_seed(3, choices=RunChoices(loads=False))
    assert first.trace_hash == again.trace_hash != without.trace_hash
    assert first.findings == []


def test_every_load_is_drawn_and_has_a_class() -> None:
    drawn = [draw_load_options(random.Random(seed), True) for seed in range(100)]
    assert {name for each in drawn if each is not None for name in each.clients} == set(LOADS) == set(CLASSES)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_share_of_the_seeds_has_loads_and_an_option_decides_for_all(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(load_options, "LOADS_SHARE", share)
    for wanted, least, most in ((None, 160 * share, 240 * share), (True, 200, 200), (False, 0, 0)):
        drawn = [draw_load_options(random.Random(seed), wanted) for seed in range(200)]
        assert least <= sum(each is not None for each in drawn) <= most


def test_the_option_changes_nothing_else_in_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_options, "LOADS_SHARE", 0.5)
    drawn = next(each for seed in range(9) if (each := draw_load_options(random.Random(seed), None)) is not None)
    assert drawn in [draw_load_options(random.Random(seed), True) for seed in range(9)]


def test_topic_may_have_any_value_that_its_own_or_the_brokers_setting_can_become() -> None:
    loads = draw_load_options(random.Random(1), True)
    assert loads is not None
    loads.changes = {"max.message.bytes": ("1024", None)}
    loads.broker_changes = {"message.max.bytes": ("8192", None)}
    loads.topic_settings, loads.settings = {TOPIC: {"max.message.bytes": "2048"}}, {"message.max.bytes": "4096"}
    options = draw_options(random.Random(1)).with_loads(loads)
    name, of_brokers = "max.message.bytes", "message.max.bytes"
    assert options.possible_settings(TOPIC, name, of_brokers) == {"1024", "2048", "4096", "8192"}
    assert options.possible_settings("a", name, of_brokers) == {"4096", "8192"}
    loads.changes = {}
    assert options.possible_settings(TOPIC, name, of_brokers) == {"2048"}


def test_nothing_is_deleted_by_age_where_topics_are_made_again_or_a_disk_is_faulty() -> None:
    for seed in range(300):
        for has_disk_faults in (False, True):
            drawn = draw_load_options(random.Random(seed), True, has_disk_faults=has_disk_faults)
            assert drawn is not None
            is_free = "topic_maker" not in drawn.clients and not has_disk_faults
            assert is_free or "log.retention.ms" not in {*drawn.settings, *drawn.broker_changes}
