"""A cluster of real processes on this machine: brokers, ZooKeeper, proxies between them."""
