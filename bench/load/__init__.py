"""Load generators: separate processes, so that their CPU is counted apart from the cluster's."""
