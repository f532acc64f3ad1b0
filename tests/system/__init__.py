"""Real processes, TCP, ZooKeeper, containers."""
