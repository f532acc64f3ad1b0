"""The scene of a load whose cluster never starts: for checks of what clients return, which a test plays."""

import random
from collections import Counter

from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.load_options import draw_load_options
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.options import draw_options
from minibroker.simulation.swarm.workload import Workload


def still_scene(history: History) -> LoadScene:
    """What is found stands in `history`."""
    cluster = SimulatedCluster(0)
    options = draw_options(random.Random(1)).with_loads(draw_load_options(random.Random(1), True))
    reference = ReferenceState(cluster, options.topics)
    workload = Workload(cluster, options, history, random.Random(1))
    return LoadScene(cluster, reference, workload, history, options, Counter())
