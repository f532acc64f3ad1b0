"""All scenarios by name, in reading order."""

from difflib import get_close_matches
from importlib import import_module

from minibroker.scenarios.staging.scenario import Scenario

NAMES = (
    "two-rounds",
    "loss",
    "divergence",
    "epochs",
    "fast-failover",
    "zombie-fetch",
    "empty-epoch",
    "slow-follower",
    "stuck-follower",
    "bootstrapping-follower",
    "burst-lag",
    "catching-up",
    "min-isr",
    "unclean-election",
    "stale-metadata",
    "read-your-writes",
    "monotonic-reads",
    "zombie-leader",
    "zombie-controller",
    "pending-isr",
    "last-replica-standing",
    "zookeeper-outage",
    "retention-vs-slow-follower",
)


class UnknownScenario(Exception):
    """The message names the closest existing scenario."""


def find_scenario(name: str) -> Scenario:
    """Raises UnknownScenario."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        meant = f"did you mean '{near[0]}'?" if near else "`minibroker scenario list` names all"
        raise UnknownScenario(f"there is no scenario '{name}'; {meant}")
    found = import_module(f"minibroker.scenarios.{name.replace('-', '_')}").SCENARIO
    assert isinstance(found, Scenario)
    return found


def all_scenarios() -> list[Scenario]:
    return [find_scenario(name) for name in NAMES]
