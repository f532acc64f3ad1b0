"""The checkers of every run, in the order in which they are told what happens.

Owns: the list. `tests/simulation/checks/test_subscription.py` fails if a checker of `simulation/checks/` is missing
here. Leaves to others: the comparisons at the end of a run (`final_checks`).
"""

from collections.abc import Iterator

from minibroker.chaos.history.client_history import EventLog
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.control.counters import CounterChecker
from minibroker.simulation.checks.control.failover import FailoverChecker
from minibroker.simulation.checks.control.fencing import FencingChecker
from minibroker.simulation.checks.control.offline import OfflineLeaderChecker
from minibroker.simulation.checks.control.topic_settings import TopicSettingsChecker
from minibroker.simulation.checks.control.wanted_settings import WantedSettings
from minibroker.simulation.checks.disks.disk_rules import DiskRuleChecker
from minibroker.simulation.checks.disks.failed_syncs import FailedSyncChecker
from minibroker.simulation.checks.disks.sound_logs import SoundLogChecker
from minibroker.simulation.checks.disks.witnessed import WitnessChecker
from minibroker.simulation.checks.history.acknowledging import AcknowledgingChecker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.replication.leaders_starts import LeaderStartChecker
from minibroker.simulation.checks.replication.log_starts import LogStartChecker
from minibroker.simulation.checks.replication.recreated_topics import RecreatedTopicChecker
from minibroker.simulation.checks.replication.replicas import ReplicaChecker
from minibroker.simulation.checks.replication.retention import RetentionChecker
from minibroker.simulation.checks.replication.served import ServedChecker
from minibroker.simulation.checks.replication.waiting import WaitingChecker
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.options import RunOptions


def checkers(
    cluster: SimulatedCluster,
    reference: ReferenceState,
    options: RunOptions,
    events: EventLog,
    fencing: FencingChecker,
    stability: Stability,
) -> Iterator[Checker]:
    """Subscribe each with `checking` before the next is made. `events`: what the clients do. `fencing`, `stability`:
    made by the run, which reads the counts of the one and tells the other of the faults."""
    yield fencing
    yield stability
    settings = WantedSettings(cluster, stability, options.settings)
    yield settings
    yield TopicSettingsChecker(cluster, reference, settings)
    yield FailoverChecker(cluster, reference, stability, options.settings)
    yield AcknowledgingChecker(cluster, reference, stability, events, settings, options.settings)
    yield WitnessChecker(cluster, reference)
    yield ReplicaChecker(cluster, reference, options.flushes)
    yield ServedChecker(reference)
    yield RecreatedTopicChecker(reference)
    yield FailedSyncChecker(cluster, reference)
    yield LogStartChecker(cluster, reference, settings)
    yield RetentionChecker(cluster, reference, settings)
    yield LeaderStartChecker(cluster, reference)
    yield DiskRuleChecker(cluster, reference)
    yield WaitingChecker(reference)
    yield SoundLogChecker(cluster, reference)
    yield OfflineLeaderChecker(cluster, reference)
    yield CounterChecker(cluster, reference)
