"""The ports of `runtime/ports.py`, simulated: loop, network, disk, ZooKeeper."""
