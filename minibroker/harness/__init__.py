"""One harness for clusters that are broken on purpose: the same verbs for simulated brokers, processes and containers.

`cluster.py` is the interface. The back ends are `simulated.py` (virtual time, a seed), `processes.py` (this machine)
and `compose.py` (docker-compose.yml). Scenarios, `minibroker.testing`, the bench and the system tests use it. See
docs/HARNESS.md.
"""
