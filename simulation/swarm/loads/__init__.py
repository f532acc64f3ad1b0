"""What users do besides the steady workload: one class for each, with its own checks of what its client saw."""
