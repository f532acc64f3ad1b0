"""The ports on this machine's operating system, and what else of a process touches it: its allocator, its log file."""
