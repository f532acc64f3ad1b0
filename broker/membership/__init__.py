"""A broker as a member of the cluster: its registration, its link to the controller, what it knows of the others."""
