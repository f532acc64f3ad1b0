"""One log directory and the logs in it: append, read, truncate, flush, recover."""
