"""What can happen next in a small world: the steps that a state allows, by name, and what each of them does.

Owns: the vocabulary of steps, `(verb, broker, ...)`, which is also the language of the printed counterexamples; the
cost of each in the budget; and the promise within which bytes may be lost. Leaves to others: decisions of replicas and
controllers, checks, and the search.

A fetch, a question and their answers are one step unless they are held up: delivered at once, a message leads to the
same states as delivered a step later (each replica handles one thing at a time).
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from minibroker.broker.replication.state import AskingEpochEnd, AskingLeaderEnds, Fetching
from minibroker.simulation.model import controller
from minibroker.simulation.model.controller import ModelController
from minibroker.simulation.model.replica import ModelReplica, Stimulus
from minibroker.simulation.model.world import ModelState, ModelWorld, put

Move: TypeAlias = tuple[str | int, ...]
"""(verb, broker, words and numbers...)"""


def enabled(world: ModelWorld, state: ModelState) -> Iterator[Move]:
    """The possible steps; none after the last epoch of the bounds."""
    if world.at_bound(state):
        return
    for broker_id in world.brokers:
        replica = world.replica(state, broker_id)
        if replica.is_running:
            yield from _of_replica(world, state, replica)
        else:
            yield ("start", broker_id)
            yield from _of_disk(world, state, replica)
    if world.left(state, "stops") and not _hangs_by_a_thread(world, state):
        yield from _of_the_end(world, state)
    yield from _of_control(world, state)
    yield from _of_held(state)


def perform(world: ModelWorld, state: ModelState, move: Move) -> ModelState:
    """The state after a step. Raises InvariantBroken."""
    return world.settle(_VERBS[str(move[0])](world, state, *move[1:]))


# ------------------------------------------------------------------------------------------------------- possible steps
def _of_replica(world: ModelWorld, state: ModelState, replica: ModelReplica) -> Iterator[Move]:
    broker_id, core = replica.broker_id, replica.state
    has = {kind for kind, left in zip(world.kinds, state.budget, strict=True) if left}
    if core.is_leader and not core.fenced:
        if "records" in has:
            yield ("produce", broker_id)
        if "lags" in has:
            yield ("lag", broker_id)
    is_following = core.phase is not None and replica.broker_epoch and core.leader_id is not None
    if is_following and world.replica(state, core.leader_id or 0).is_running:
        yield from _of_follower(replica, has)
    if state.pending[broker_id - 1] and world.active_of(state).epoch_of(broker_id) == replica.broker_epoch:
        yield ("send", broker_id)
        if "twice" in has:
            yield ("send", broker_id, "twice")
        if "late" in has:
            yield ("send", broker_id, "late")
    if not replica.broker_epoch:
        yield ("register", broker_id)
    elif not state.registered[broker_id - 1][0]:
        yield ("notice", broker_id)
    elif not _hangs_by_a_thread(world, state):
        if "kills" in has:
            yield ("kill", broker_id)
        if "expiries" in has:
            yield ("expire", broker_id)
        if "losses" in has and _may_lose(world, state, replica):
            for keep in range(core.synced_end_offset, len(replica.log) + 1):
                yield ("lose", broker_id, keep)


def _of_follower(replica: ModelReplica, has: set[str]) -> Iterator[Move]:
    phase, broker_id = replica.state.phase, replica.broker_id
    if isinstance(phase, Fetching):
        yield ("fetch", broker_id)
        if "late" in has:
            yield ("fetch", broker_id, "late")
            yield ("fetch", broker_id, "reply-late")
        if "lost" in has:
            yield ("fetch", broker_id, "reply-lost")
    elif isinstance(phase, AskingEpochEnd):
        yield ("ask", broker_id)
        if "late" in has:
            yield ("ask", broker_id, "reply-late")
    elif isinstance(phase, AskingLeaderEnds):
        yield ("ask", broker_id)


def _of_the_end(world: ModelWorld, state: ModelState) -> Iterator[Move]:
    """A stop of all brokers, while all are registered."""
    if all(world.replica(state, each).broker_epoch for each in world.brokers):
        yield ("stop-all", "kill")
        yield ("stop-all", "power")
        for last in world.brokers:
            yield ("stop-all", "term", last)


def _of_disk(world: ModelWorld, state: ModelState, replica: ModelReplica) -> Iterator[Move]:
    """Damage to a disk while its broker is down."""
    if not world.left(state, "disks"):
        return
    yield ("replace", replica.broker_id)  # if no other replica was in sync, none leads
    if len(replica.whole_since) == 1 and _is_held_elsewhere(world, state, replica.broker_id):  # no clean stop
        for keep in range(len(replica.log)):
            yield ("forget", replica.broker_id, keep)


def _of_control(world: ModelWorld, state: ModelState) -> Iterator[Move]:
    if _registrations(world, state) != world.active_of(state).brokers:
        yield ("look",)
    if world.left(state, "moves"):
        yield ("rebalance",)
    if world.left(state, "takeovers"):
        yield ("takeover",)
    for broker_id, epoch, _, _ in _registrations(world, state):
        if world.left(state, "fences") and world.active_of(state).epoch_of(broker_id) == epoch:
            yield ("suspect", broker_id)
        if world.left(state, "successions"):
            yield ("succeed", broker_id)
    for index in range(len(state.proposals)):
        yield ("alter", index)
        if state.deposed:
            yield ("alter", index, "old-controller")
        if world.left(state, "lost"):
            yield ("alter", index, "lost")
            yield ("alter", index, "reply-lost")
        if world.left(state, "late"):
            yield ("alter", index, "late")
            yield ("alter", index, "reply-late")
        if world.left(state, "twice"):
            yield ("alter", index, "twice")


def _of_held(state: ModelState) -> Iterator[Move]:
    for index in range(len(state.delayed_requests)):
        yield ("arrive", index)
    for index in range(len(state.late)):
        yield ("deliver", index)


# ---------------------------------------------------------------------------------------------------------- the promise
def _hangs_by_a_thread(world: ModelWorld, state: ModelState) -> bool:
    """A replica lost bytes for which it still counts: no other may fail until the controller has seen it."""
    for broker_id in world.brokers:
        replica = world.replica(state, broker_id)
        if replica.has_lost and world.active_of(state).starts_of(broker_id) not in (None, replica.starts):
            return True
    return False


def _is_held_elsewhere(world: ModelWorld, state: ModelState, broker_id: int) -> bool:
    """Whether another ISR member, on the disk that it had then, has all that was committed."""
    reference = world.reference(state)
    for member in reference.in_sync_replicas:
        other = world.replica(state, member)
        is_its_disk = reference.directory_of(member) == str(other.directory)
        if member != broker_id and is_its_disk and other.log[: len(state.committed)] == state.committed:
            return True
    return False


def _may_lose(world: ModelWorld, state: ModelState, replica: ModelReplica) -> bool:
    """Whether another in-sync replica keeps its bytes, in any set that may yet be written; or this one is alone below
    the minimum, where it has synced all that counts (hardening rule 4)."""
    reference, broker_id = world.reference(state), replica.broker_id
    if broker_id not in reference.in_sync_replicas:
        return True
    others = set()
    for member in reference.in_sync_replicas:
        other = world.replica(state, member)
        runs_as_recorded = reference.incarnation_of(member) == controller.incarnation(other.starts)
        if member != broker_id and other.is_running and other.broker_epoch and runs_as_recorded:
            others.add(member)
    if replica.state.config.min_insync_replicas == 1:  # a shrink in flight may leave it alone, with nothing synced
        for asker, _, proposal in state.proposals:
            if asker == broker_id:
                others &= {member for member, _ in proposal[3]}
        return bool(others)
    core = replica.state
    is_true_leader = core.is_leader and core.leader_epoch == reference.leader_epoch
    return bool(others) or (reference.in_sync_replicas == (broker_id,) and is_true_leader)


# --------------------------------------------------------------------------------------------------- clients, followers
def _produce(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    value = chr(ord("a") + world.bounds.budget["records"] - world.left(state, "records"))
    return world.apply_to_replica(world.spend(state, "records"), broker_id, ("produce", value))[0]


def _fetch(world: ModelWorld, state: ModelState, broker_id: int, fate: str = "") -> ModelState:
    replica = world.replica(state, broker_id)
    core = replica.state
    assert core.leader_id is not None
    end, last_epoch = core.log_end_offset, core.last_fetched_epoch
    request = ("fetched", broker_id, replica.broker_epoch, core.leader_epoch, end, last_epoch)
    if fate == "late":
        return _hold(world, world.spend(state, "late"), core.leader_id, request)
    state, reply = world.apply_to_replica(state, core.leader_id, request)
    return _answer(world, state, broker_id, reply, fate)


def _ask(world: ModelWorld, state: ModelState, broker_id: int, fate: str = "") -> ModelState:
    core = world.replica(state, broker_id).state
    assert core.leader_id is not None
    question: Stimulus = ("ends?", core.leader_epoch)
    if isinstance(core.phase, AskingEpochEnd):
        question = ("epoch_end?", core.leader_epoch, core.phase.epoch)
    _, reply = world.apply_to_replica(state, core.leader_id, question)
    return _answer(world, state, broker_id, reply, fate)


def _answer(world: ModelWorld, state: ModelState, broker_id: int, reply: Stimulus | None, fate: str) -> ModelState:
    assert reply is not None
    if fate == "reply-late":
        return _hold(world, world.spend(state, "late"), broker_id, reply)
    if fate == "reply-lost":
        return world.spend(state, "lost")
    return world.apply_to_replica(state, broker_id, reply)[0]


def _hold(world: ModelWorld, state: ModelState, receiver: int, stimulus: Stimulus) -> ModelState:
    held = {*state.late, (receiver, world.replica(state, receiver).starts, stimulus)}
    return state._replace(late=tuple(sorted(held, key=repr)))


def _deliver(world: ModelWorld, state: ModelState, index: int) -> ModelState:
    """A held message arrives. The answer to a late fetch finds no waiting fetch."""
    receiver, _, stimulus = state.late[index]
    state = state._replace(late=(*state.late[:index], *state.late[index + 1 :]))
    return world.apply_to_replica(state, receiver, stimulus)[0]


def _lag(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    return world.apply_to_replica(world.spend(state, "lags"), broker_id, ("lag",))[0]


# ---------------------------------------------------------------------------------------------------------- controllers
def _send(world: ModelWorld, state: ModelState, broker_id: int, fate: str = "") -> ModelState:
    message = state.pending[broker_id - 1]
    state = state._replace(pending=put(state.pending, broker_id, 0))
    if fate:
        state = world.stray(world.spend(state, fate), broker_id, message)
    if fate == "late":
        return state
    return world.apply_to_replica(state, broker_id, ("control", *world.messages.values[message]))[0]


def _arrive(world: ModelWorld, state: ModelState, index: int) -> ModelState:
    broker_id, broker_epoch, message = state.delayed_requests[index]
    state = state._replace(delayed_requests=(*state.delayed_requests[:index], *state.delayed_requests[index + 1 :]))
    if world.replica(state, broker_id).broker_epoch != broker_epoch:
        return state
    return world.apply_to_replica(state, broker_id, ("control", *world.messages.values[message]))[0]


def _look(world: ModelWorld, state: ModelState) -> ModelState:
    registrations = _registrations(world, state)
    return world.apply_to_controller(state, ("look", registrations), controller.look(registrations))[0]


def _rebalance(world: ModelWorld, state: ModelState) -> ModelState:
    return world.apply_to_controller(world.spend(state, "moves"), "rebalance", controller.rebalance())[0]


def _suspect(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    """The controller has confirmed that the broker failed."""
    epoch = world.active_of(state).epoch_of(broker_id)
    events = controller.failure_confirmed(broker_id, epoch)
    return world.apply_to_controller(world.spend(state, "fences"), ("failure_confirmed", broker_id, epoch), events)[0]


def _succeed(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    """The controller runs on this broker, and the others confirm that it failed."""
    return _next_controller(world, world.unregister(world.spend(state, "successions"), broker_id))


def _takeover(world: ModelWorld, state: ModelState) -> ModelState:
    return _next_controller(world, world.spend(state, "takeovers"))


def _next_controller(world: ModelWorld, state: ModelState) -> ModelState:
    """It reads ZooKeeper; what the old one had queued is in flight, or never arrives."""
    before = world.active_of(state)
    for broker_id in world.brokers:
        if state.pending[broker_id - 1]:
            state = world.stray(state, broker_id, state.pending[broker_id - 1])
    after = ModelController(
        before.controller_epoch + 1, _registrations(world, state), before.leadership, before.assignment
    )
    state = state._replace(
        deposed=state.active, active=world.controllers.add(after), pending=tuple(0 for _ in world.brokers)
    )
    return world.apply_to_controller(state, "took over", controller.took_over())[0]


def _alter(world: ModelWorld, state: ModelState, index: int, fate: str = "") -> ModelState:
    """An AlterPartition request and its answer. After a timeout it is sent again, though the first may still arrive."""
    asker, broker_epoch, proposal = state.proposals[index]
    rest = (*state.proposals[:index], *state.proposals[index + 1 :])
    replica = world.replica(state, asker)
    is_waiting = replica.is_running and replica.broker_epoch == broker_epoch
    unanswered = ("unanswered", proposal[0])
    if fate in ("late", "lost"):
        state = world.spend(state, fate)
        if fate == "lost":
            state = state._replace(proposals=rest)
        return world.apply_to_replica(state, asker, unanswered)[0] if is_waiting else state
    state = world.spend(state, "twice") if fate == "twice" else state._replace(proposals=rest)
    event = controller.alter_partition_requested(asker, broker_epoch, proposal)
    name = ("alter_partition_requested", asker, broker_epoch, proposal)
    state, decision = world.apply_to_controller(state, name, event, by_old=fate == "old-controller")
    answer = unanswered if decision.answer is None else ("altered", proposal[0], *decision.answer)
    if not is_waiting:
        return state
    if fate == "reply-late":
        return _hold(world, world.spend(state, "late"), asker, answer)
    if fate == "reply-lost":
        state, answer = world.spend(state, "lost"), unanswered
    return world.apply_to_replica(state, asker, answer)[0]


# ------------------------------------------------------------------------------------------------------------ processes
def _kill(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    return _end(world, world.spend(state, "kills"), broker_id, None)


def _lose(world: ModelWorld, state: ModelState, broker_id: int, keep: int) -> ModelState:
    return _end(world, world.spend(state, "losses"), broker_id, keep)


def _stop_all(world: ModelWorld, state: ModelState, how: str, last: int = 0) -> ModelState:
    """All brokers are killed; or lose power, and each disk has all that it reported synced; or are asked to stop, one
    after the other, and hand their leaderships over where they can."""
    state = world.spend(state, "stops")
    for broker_id in sorted(world.brokers, key=lambda each: (each == last, each)):
        replica = world.replica(state, broker_id)
        if how == "term":
            name = ("shut down", broker_id, replica.broker_epoch)
            state = world.apply_to_controller(state, name, controller.shut_down(broker_id, replica.broker_epoch))[0]
        state = _end(world, state, broker_id, len(replica.log) if how == "power" else None, how == "term")
    return state


def _damage_disk(verb: str) -> Callable[..., ModelState]:
    def perform_it(world: ModelWorld, state: ModelState, broker_id: int, *keep: int) -> ModelState:
        return _registered(
            world, world.apply_to_replica(world.spend(state, "disks"), broker_id, (verb, *keep))[0], broker_id
        )

    return perform_it


def _end(world: ModelWorld, state: ModelState, broker_id: int, keep: int | None, is_clean: bool = False) -> ModelState:
    return _registered(world, world.apply_to_replica(state, broker_id, ("end", keep, is_clean))[0], broker_id)


def _revive(verb: str) -> Callable[[ModelWorld, ModelState, int], ModelState]:
    def perform_it(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
        return _registered(world, world.apply_to_replica(state, broker_id, (verb,))[0], broker_id)

    return perform_it


def _expire(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    return _notice(world, world.spend(state, "expiries"), broker_id)


def _notice(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    """It learns that its registration is gone."""
    return _registered(world, world.apply_to_replica(state, broker_id, ("expire",))[0], broker_id)


def _registered(world: ModelWorld, state: ModelState, broker_id: int) -> ModelState:
    """Its registration becomes that of the process."""
    replica = world.replica(state, broker_id)
    registered = list(state.registered)
    registered[broker_id - 1] = (replica.broker_epoch, replica.starts, replica.directory)
    return state._replace(registered=tuple(registered))


def _registrations(world: ModelWorld, state: ModelState) -> tuple[controller.Registration, ...]:
    pairs = zip(world.brokers, state.registered, strict=True)
    return tuple((broker_id, *registered) for broker_id, registered in pairs if registered[0])


_VERBS: dict[str, Callable[..., ModelState]] = {
    "produce": _produce,
    "fetch": _fetch,
    "ask": _ask,
    "deliver": _deliver,
    "lag": _lag,
    "send": _send,
    "arrive": _arrive,
    "look": _look,
    "rebalance": _rebalance,
    "takeover": _takeover,
    "alter": _alter,
    "kill": _kill,
    "lose": _lose,
    "stop-all": _stop_all,
    "replace": _damage_disk("replace"),
    "forget": _damage_disk("forget"),
    "start": _revive("start"),
    "expire": _expire,
    "notice": _notice,
    "suspect": _suspect,
    "succeed": _succeed,
    "register": _revive("register"),
}
