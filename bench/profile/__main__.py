"""`python -m minibroker.bench.profile`, which is `minibroker bench profile`."""

from minibroker.bench.profile.command import profile
from minibroker.command_line import run_command_line

if __name__ == "__main__":
    run_command_line(profile)
