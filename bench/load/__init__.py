"""Load generators: processes of their own, so that their CPU is counted apart from the cluster's."""
