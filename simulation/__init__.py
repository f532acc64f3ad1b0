"""A whole cluster in one process, from one seed.

`world/`: the ports of `runtime/ports.py`, virtual. `cluster.py`: brokers on them. `swarm/`: runs under faults drawn
from a seed. `checks/`: the checkers of a run. `model/`: every order of events of a small cluster.
"""
