"""What one run reached: events, wire APIs and settings, by the names of the catalogue."""

from minibroker.broker.configuration.config import load_config
from minibroker.protocol.wire.messages import FetchPartitionResponse, MetadataResponse
from minibroker.protocol.znodes import ConfigNode, broker_config_path, topic_config_path
from minibroker.runtime.ports import CreateOp, DeleteOp, SetOp
from minibroker.runtime.server.incoming_request import AnswerSent
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.reached import Reached, catalogue
from minibroker.simulation.swarm.run import run_seed
from minibroker.simulation.world.observations import NodesWritten


class Scene:
    """A run whose ZooKeeper is written by the test."""

    def __init__(self) -> None:
        cluster = SimulatedCluster()
        self.reached = Reached()
        self.reached.watch(cluster)
        self._observers = cluster.world.world_observers

    def write(self, path: str, is_new: bool = False, **config: str) -> None:
        data = ConfigNode(config={name.replace("_", "."): value for name, value in config.items()}).encode()
        operation = CreateOp(path=path, data=data) if is_new else SetOp(path=path, data=data)
        self._observers.notify(NodesWritten((operation,), 1, {}))

    def delete(self, path: str) -> None:
        self._observers.notify(NodesWritten((DeleteOp(path=path),), 1, {}))

    @property
    def found(self) -> set[str]:
        return {name for name, count in self.reached.counts.items() if count}


def test_every_name_that_a_run_counts_is_in_the_catalogue() -> None:
    names = catalogue()
    assert len(names) == len({*names})
    counts = run_seed(11).reached.counts
    assert {*counts} <= {*names}
    for name in ("API FETCH", "API ALTER_PARTITION", "event replica_truncated", "setting request.timeout.ms"):
        assert counts[name] > 0


def test_events_and_answers_are_counted_by_name() -> None:
    reached = Reached()
    reached.observe(AnswerSent(MetadataResponse(brokers=[], cluster_id="", controller_id=1, topics=[])))
    reached.observe(AnswerSent(FetchPartitionResponse(partition_index=0)))
    assert reached.counts == {"API METADATA": 1, "API FETCH": 1}


def test_setting_of_a_broker_counts_if_it_is_not_the_default() -> None:
    reached, needed = Reached(), ("broker.id=1", "log.dirs=/d", "zookeeper.connect=z:1")
    reached.add_settings(load_config(None, [*needed, "log.roll.ms=604800000", "num.partitions=3"], {}))
    assert reached.counts["setting num.partitions"] == 1
    assert reached.counts["setting log.roll.ms"] == 0


def test_setting_of_a_topic_counts_if_it_is_not_the_default_and_again_if_it_changes() -> None:
    scene, path = Scene(), topic_config_path("a")
    scene.write(path, is_new=True, segment_ms="604800000", retention_ms="500")
    assert scene.found == {"topic setting retention.ms"}
    scene.write(path, segment_ms="604800000", retention_ms="600", flush_messages="1")
    assert scene.found == {
        "topic setting retention.ms",
        "topic setting flush.messages",
        "changed topic setting retention.ms",
        "changed topic setting flush.messages",
    }


def test_next_topic_of_a_name_changes_no_setting() -> None:
    scene, path = Scene(), topic_config_path("a")
    scene.write(path, is_new=True, retention_ms="500")
    scene.delete(path)
    scene.write(path, is_new=True, retention_ms="600")
    assert scene.found == {"topic setting retention.ms"}


def test_setting_of_a_running_broker_counts_as_changed() -> None:
    scene = Scene()
    scene.write(broker_config_path(2), is_new=True, log_roll_ms="500")
    assert scene.found == {"changed setting log.roll.ms"}
