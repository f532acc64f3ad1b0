"""What two processes, or a process and a file, must agree on. Pure: no I/O, no clock."""
