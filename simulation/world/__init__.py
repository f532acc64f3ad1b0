"""A simulated world: loop, network, disks and ZooKeeper, which brokers use through the ports."""
