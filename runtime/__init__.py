"""The only doors to the outside: network, disk, coordination, wall clock, randomness."""
