"""One run: the cluster, the load, the faults, the history, the verdict."""
