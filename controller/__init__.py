"""The controller: elects leaders and owns partition state, through ZooKeeper."""
