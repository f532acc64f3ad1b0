"""The loads of the swarm: their checks convict what they must."""
