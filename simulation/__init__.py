"""The same doors, virtual: loop, network, disk, ZooKeeper."""
