"""Failure detection: when a broker or a controller counts as failed before its ZooKeeper session ends."""
