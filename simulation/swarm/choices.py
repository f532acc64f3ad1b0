"""What a run is besides its seed: what the caller of `run_seed` decides, and what the seed does.

Owns: the choices, and the command that repeats a run. Leaves to others: the draws (`options`).
"""

import random

import msgspec


class RunChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run, or of many. None: the seed decides, by a random stream of its own, so that no other draw changes."""

    brokers: int = 3
    """With loads the seed draws another number."""
    beyond: bool = False
    """Acknowledged records are lost on purpose, and nothing else is chosen."""
    disk_faults: bool | None = None
    """Whether one disk may be faulty, and whole clusters end."""
    loads: bool | None = None
    """Whether there are loads besides the steady one."""
    older_zookeeper: bool | None = None
    """Whether an older copy of ZooKeeper's data is put in."""
    disk_threads: bool | None = None
    """Whether background work on the disks is done call by call, beside the event loop."""

    def replay(self, seed: int) -> str:
        """The command that repeats this run."""
        command = f"minibroker simulate --seed {seed}" + " --beyond" * self.beyond
        for name in WORDS.values():
            chosen = getattr(self, name)
            if chosen is not None:
                command += f" --{'' if chosen else 'no-'}{name.replace('_', '-')}"
        return command + (f" --brokers {self.brokers}" if self.brokers != 3 else "")


ALL_DRAWN = RunChoices()
NOTHING_DRAWN = RunChoices(disk_faults=False, loads=False, older_zookeeper=False, disk_threads=False)
"""As recorded seeds run: they keep their meaning when there is something new to draw."""
WORDS = {"disks": "disk_faults", "loads": "loads", "older": "older_zookeeper", "threads": "disk_threads"}
"""How a recorded seed names each choice."""


def choices_of(mode: str) -> RunChoices:
    """Of a recorded seed: `plain`, or words joined by `+`. What the mode does not name is off."""
    words = () if mode == "plain" else mode.split("+")
    return msgspec.structs.replace(NOTHING_DRAWN, **{WORDS[word]: True for word in words})


def is_drawn(rng: random.Random, share: float, wanted: bool | None) -> bool:
    """Whether this run has something that this share of the runs has. `wanted`: None leaves the choice to the seed."""
    return rng.random() < share if wanted is None else wanted
