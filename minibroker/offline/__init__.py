"""The log directory of a stopped broker: examination, evidence, repair."""
