"""Stories on real processes: a stage of brokers and a ZooKeeper on this machine, with holds between them."""
