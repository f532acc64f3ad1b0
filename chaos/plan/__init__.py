"""Which faults there are, and the plan that a seed draws from them: pure."""
