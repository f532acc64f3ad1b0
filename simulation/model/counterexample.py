"""Steps of a small world as text: printed for people, and read back as a test.

Owns: the form, which is that of `tests/broker/replication/testdata`: commands, a line `----`, and the expected table,
up to an empty line. The first command is `bounds NAME`; the rest are the steps of `moves`. Leaves to others: the
checks. Where a step breaks an invariant, the text says so and the counterexample ends.
"""

from minibroker.controller.core.controller_state import Leadership
from minibroker.simulation.model.bounds import ModelBounds, find_bounds
from minibroker.simulation.model.moves import Move, enabled, perform
from minibroker.simulation.model.replica import ModelReplica, Record
from minibroker.simulation.model.world import InvariantBroken, ModelState, ModelWorld

STEPS_PER_BLOCK = 4


def write_counterexample(bounds: ModelBounds, path: tuple[Move, ...], headline: str) -> str:
    """The counterexample, with the actual result of each block."""
    commands = [" ".join(str(word) for word in move) for move in path]
    blocks = [f"# {headline}\nbounds {bounds.name}"]
    blocks += ["; ".join(commands[at : at + STEPS_PER_BLOCK]) for at in range(0, len(commands), STEPS_PER_BLOCK)]
    played = play("\n\n".join(blocks) + "\n")
    return "\n\n".join(f"{commands}\n----\n{out}" for commands, out in played) + "\n"


def play(text: str) -> list[tuple[str, str]]:
    """Run a counterexample; (commands, actual result) for each block, up to the one that breaks an invariant."""
    results: list[tuple[str, str]] = []
    world: ModelWorld | None = None
    state: ModelState | None = None
    for block in text.strip().split("\n\n"):
        commands = block.partition("\n----")[0]
        lines: list[str] = []
        for command in _commands(commands):
            verb, *words = command.split()
            try:
                if verb == "bounds":
                    world = ModelWorld(find_bounds(words[0]))
                    state = world.settle(world.start())
                    continue
                assert world is not None and state is not None, "a counterexample begins with `bounds NAME`"
                move: Move = (verb, *(int(word) if word.isdigit() else word for word in words))
                if move in enabled(world, state):
                    state = perform(world, state, move)
                else:
                    lines.append(f"cannot happen: {command}")
            except InvariantBroken as error:
                lines.append(f"{command} breaks {error}")
                results.append((commands, "\n".join(lines)))
                return results
        assert world is not None and state is not None
        results.append((commands, "\n".join([*lines, *table(world, state)])))
    return results


def _commands(text: str) -> list[str]:
    parts = (part for line in text.splitlines() for part in line.split("#")[0].split(";"))
    return [part.strip() for part in parts if part.strip()]


# ------------------------------------------------------------------------------------------------------------ the table
def table(world: ModelWorld, state: ModelState) -> list[str]:
    """One line for each replica, what ZooKeeper holds, and what is in flight."""
    rows = [_replica_line(world.replica(state, each)) for each in world.brokers]
    return [*rows, _reference(world.reference(state)), *_in_flight(world, state)]


def _replica_line(replica: ModelReplica) -> str:
    core = replica.state
    members = ",".join(str(each) for each in core.in_sync_replicas)
    if core.pending_isr is not None:
        members += f" ({core.pending_isr.kind.value} {','.join(map(str, core.pending_isr.in_sync_replicas))})"
    ends = (
        f"{each}:{'?' if remote.log_end_offset is None else remote.log_end_offset}"
        for each, remote in sorted(core.remotes.items())
    )
    history = " ".join(f"{epoch}@{start}" for epoch, start in core.epoch_history.entries)
    role = core.role.value if replica.is_running else "down"
    fenced = " fenced" if core.fenced else ""
    epoch = "-" if core.leader_epoch is None else core.leader_epoch
    return (
        f"{replica.broker_id} {role:8}{fenced} epoch={epoch} leo={core.log_end_offset} hw={core.high_watermark} "
        f"isr={members or '-'} remotes={' '.join(ends) or '-'} history={history or '-'} log={_log(replica.log)}"
    )


def _log(log: tuple[Record, ...]) -> str:
    return " ".join(f"{value}@{epoch}" for epoch, value in log) or "-"


def _reference(reference: Leadership) -> str:
    members = ",".join(str(each) for each in reference.in_sync_replicas)
    leader = "none" if reference.leader is None else reference.leader
    return (
        f"zookeeper: leader={leader} epoch={reference.leader_epoch} version={reference.partition_epoch} isr={members}"
    )


def _in_flight(world: ModelWorld, state: ModelState) -> list[str]:
    lines = []
    for broker_id in world.brokers:
        if world.replica(state, broker_id).broker_epoch and not state.registered[broker_id - 1][0]:
            lines.append(f"notice {broker_id}: its registration is gone")
    for index, (asker, _, proposal) in enumerate(state.proposals):
        lines.append(f"alter {index}: {asker} proposes {','.join(str(each) for each, _ in proposal[3])}")
    for index, (broker_id, _, message) in enumerate(state.delayed_requests):
        order = world.messages.values[message][2]
        lines.append(f"arrive {index}: to {broker_id}, {'brokers' if order is None else f'epoch {order[2]}'}")
    for index, (receiver, _, stimulus) in enumerate(state.late):
        lines.append(f"deliver {index}: to {receiver}, {stimulus[0]}")
    return lines
