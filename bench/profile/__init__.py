"""Where the microseconds of a produce and of a fetch go, in broker and client (`make profile`)."""
