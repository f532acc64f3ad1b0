"""The only way to the outside: ports for network, disk, coordination, wall clock and randomness, and their adapters."""
