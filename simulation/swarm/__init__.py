"""Runs drawn from a seed: options, workload, faults, convergence."""
