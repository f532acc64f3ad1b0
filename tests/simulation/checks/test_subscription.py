"""Checkers are subscribed in one way, and a run has all of them."""

import importlib
import inspect
import pkgutil

from minibroker.broker.replicas.observations import OrderAdmitted
from minibroker.chaos.history.client_history import EventLog
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Handlers
from minibroker.simulation import checks
from minibroker.simulation.checks.checker import Checker, checking
from minibroker.simulation.checks.control.fencing import FencingChecker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.checkers import checkers
from minibroker.simulation.swarm.options import draw_options
from minibroker.simulation.world.observations import ProcessPaused


def checker_classes() -> set[type[Checker]]:
    """All in `simulation/checks/`: also one that a new module there defines."""
    found: set[type[Checker]] = set()
    for module in pkgutil.walk_packages(checks.__path__, checks.__name__ + "."):
        for _, item in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(item, Checker) and item is not Checker:
                found.add(item)
    return found


def test_a_run_has_every_checker() -> None:
    cluster = SimulatedCluster(1)
    reference = ReferenceState(cluster, {})
    fencing = FencingChecker(cluster, reference)
    options, stability = draw_options(cluster.world.random("options")), Stability(cluster, reference)
    made = [type(each) for each in checkers(cluster, reference, options, EventLog(), fencing, stability)]
    assert len(made) == len(set(made))
    assert set(made) == checker_classes(), "name a new checker in simulation/swarm/checkers.py"


class Heard(Checker):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def ordered(self, controller_epoch: int) -> None:
        self.calls.append(f"order {controller_epoch}")

    def state_written(self, partition: TopicPartition) -> None:
        self.calls.append(f"state of {partition}")

    def sample(self) -> None:
        self.calls.append("sample")

    def world_events(self) -> Handlers:
        return {ProcessPaused: lambda event: self.calls.append(f"pause of {event.host}")}


def test_a_checker_is_told_everything_until_the_block_ends() -> None:
    cluster = SimulatedCluster(1)
    reference = ReferenceState(cluster, {})
    heard = Heard()
    with checking(cluster, reference, heard):
        tell(cluster, reference)
        cluster.world.world_observers.notify(ProcessPaused("broker-1"))
    assert heard.calls == ["order 3", "state of a-0", "sample", "pause of broker-1"]
    heard.calls.clear()
    tell(cluster, reference)
    assert heard.calls == []


def tell(cluster: SimulatedCluster, reference: ReferenceState) -> None:
    cluster.world.observers.notify(OrderAdmitted(3))
    for listener in reference.listeners:
        listener(TopicPartition("a", 0))
    reference.sample()


def test_checker_that_follows_no_replica_is_not_called_for_their_events() -> None:
    class Sampler(Checker):
        def sample(self) -> None:
            """It follows what no event reports."""

    assert list(Heard().replica_events()) == [OrderAdmitted]
    assert not Sampler().replica_events()
