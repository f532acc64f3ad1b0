"""Where the microseconds of a produce and of a fetch go, on each side (`make profile`)."""
