"""One file per command group. Each is imported only when its command runs, and imports only what that command needs."""
