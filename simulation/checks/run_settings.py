"""The settings of a run's brokers, as the bounds of checkers need them.

Owns: the durations among them, and their defaults. Leaves to others: which settings a run has (`simulation/swarm`).
"""

DEFAULTS_MS = {
    "zookeeper.session.timeout.ms": 3_000,
    "request.timeout.ms": 30_000,
    "replica.lag.time.max.ms": 30_000,
}
"""The session's is that of `SimulatedCluster`."""


def seconds_of(settings: dict[str, str], name: str) -> float:
    """A duration whose setting is in milliseconds."""
    return int(settings.get(name, DEFAULTS_MS[name])) / 1000
