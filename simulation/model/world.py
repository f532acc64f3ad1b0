"""A whole small cluster as one value: replicas, controllers, messages in flight, committed records,
remaining budget.

Owns: the form of a state, the catalogues that turn replicas, controllers and messages into small numbers, and what a
step changes. Leaves to others: the choice of steps (`moves`) and the checks (`invariants`).

Replicas and controllers are values in a catalogue, and the effect of one stimulus on one of them is computed once and
then looked up. So a step of the whole cluster costs a few tuples, and the real core runs only for new combinations.
"""

from typing import Any, NamedTuple, TypeAlias

from minibroker.broker.replication.state import ReplicationConfig
from minibroker.controller.core.controller_state import Leadership
from minibroker.controller.core.events import ControllerEvent
from minibroker.simulation.model import controller, invariants
from minibroker.simulation.model.bounds import KINDS, ModelBounds
from minibroker.simulation.model.controller import ControllerDecision, Message, ModelController
from minibroker.simulation.model.replica import (
    LAG_MS,
    ModelReplica,
    Proposal,
    Record,
    Stimulus,
    StimulusOutcome,
    freeze,
    fresh,
    react,
)

KnownOutcome: TypeAlias = tuple[int, Stimulus | None, tuple[Proposal, ...], tuple[Record, ...], str | None]
"""(replica afterwards, its reply, its proposals, what it showed, the violation)"""


class InvariantBroken(Exception):
    """A step broke an invariant; the text begins with its number."""


class ModelState(NamedTuple):
    """One state. Numbers name values of the catalogues."""

    replicas: tuple[int, ...]
    registered: tuple[tuple[int, int, int], ...]
    """(broker epoch, incarnation, log directory) of each broker in ZooKeeper; epoch 0 where there is none."""
    active: int
    """The active controller. What it knows of the partition is what ZooKeeper holds."""
    deposed: int
    """A deposed controller that has not noticed yet; 0 for none."""
    pending: tuple[int, ...]
    """The control request that waits for each broker; 0 for none. Later decisions are merged into it."""
    delayed_requests: tuple[tuple[int, int, int], ...]
    """Control requests that are held up: (broker, its epoch, message)."""
    proposals: tuple[tuple[int, int, Any], ...]
    """AlterPartition requests in flight: (proposer, its epoch, proposal)."""
    late: tuple[tuple[int, int, Stimulus], ...]
    """Fetches and answers that are held up: (receiver, its process, stimulus)."""
    committed: tuple[Record, ...]
    """All that was ever below the high watermark of a leader."""
    leaders: tuple[int | None, ...]
    """The leader that ZooKeeper named in each epoch."""
    budget: tuple[int, ...]


class Catalogue:
    """Values by number; equal values have one number. 0 is kept for 'none'."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self.values: list[Any] = [None]

    def add(self, value: Any, key: Any = None) -> int:
        key = value if key is None else key
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number


class ModelWorld:
    """One search space and everything computed about it."""

    def __init__(self, bounds: ModelBounds) -> None:
        self.bounds = bounds
        self.kinds = KINDS
        self.brokers = tuple(range(1, bounds.brokers + 1))
        self.replicas = Catalogue()
        self.controllers = Catalogue()
        self.messages = Catalogue()
        self._outcomes: dict[tuple[int, Stimulus], KnownOutcome] = {}
        self._decisions: dict[tuple[int, Any, bool], tuple[int, ControllerDecision]] = {}
        self._checked: dict[tuple[Any, ...], str | None] = {}

    # -------------------------------------------------------------------------------------------------------- the start
    def start(self) -> ModelState:
        """Epoch 0 is in ZooKeeper; a controller becomes active, and every broker has its first order."""
        bounds = self.bounds
        config = ReplicationConfig(broker_id=0, min_insync_replicas=bounds.min_insync, replica_lag_time_max_ms=LAG_MS)
        members = bounds.in_sync or self.brokers
        leadership = Leadership(
            leader=bounds.leader,
            leader_epoch=0,
            in_sync_replicas=members,
            incarnations=tuple((each, controller.incarnation(1)) for each in members),
            directories=tuple((each, "1") for each in members),
            controller_epoch=1,
            partition_epoch=0,
        )
        registrations = tuple((each, 1, 1, 1) for each in self.brokers)
        first = ModelController(1, registrations, leadership, self.brokers)
        state = ModelState(
            replicas=tuple(self._number(fresh(config, each)) for each in self.brokers),
            registered=tuple((1, 1, 1) for _ in self.brokers),
            active=self.controllers.add(first),
            deposed=0,
            pending=tuple(0 for _ in self.brokers),
            delayed_requests=(),
            proposals=(),
            late=(),
            committed=(),
            leaders=(bounds.leader,),
            budget=tuple(bounds.budget.get(kind, 0) for kind in KINDS),
        )
        state, _ = self.apply_to_controller(state, "took over", controller.took_over())
        for each in self.brokers:
            message = state.pending[each - 1]
            state = state._replace(pending=put(state.pending, each, 0))
            state, _ = self.apply_to_replica(state, each, ("control", *self.messages.values[message]))
        return state

    def replica(self, state: ModelState, broker_id: int) -> ModelReplica:
        found: ModelReplica = self.replicas.values[state.replicas[broker_id - 1]]
        return found

    def active_of(self, state: ModelState) -> ModelController:
        found: ModelController = self.controllers.values[state.active]
        return found

    def reference(self, state: ModelState) -> Leadership:
        """What ZooKeeper holds: only the active controller writes it."""
        return self.active_of(state).leadership

    def _number(self, replica: ModelReplica) -> int:
        return self.replicas.add(replica, freeze(replica))

    # ------------------------------------------------------------------------------------------------------ two effects
    def apply_to_replica(
        self, state: ModelState, broker_id: int, stimulus: Stimulus
    ) -> tuple[ModelState, Stimulus | None]:
        """Apply a stimulus to one replica; returns its reply, too."""
        number = state.replicas[broker_id - 1]
        known = self._outcomes.get((number, stimulus))
        if known is None:
            known = self._outcomes[number, stimulus] = self._react(number, stimulus)
        after, reply, proposals, shown, violation = known
        if violation is not None:
            raise InvariantBroken(violation)
        if len(shown) > len(state.committed):
            state = state._replace(committed=state.committed + shown[len(state.committed) :])
        if after == number and not proposals:
            return state, reply
        state = state._replace(replicas=put(state.replicas, broker_id, after))
        if proposals:
            broker_epoch = self.replica(state, broker_id).broker_epoch
            sent = tuple((broker_id, broker_epoch, each) for each in proposals)
            state = state._replace(proposals=tuple(sorted({*state.proposals, *sent}, key=repr)))
        return state, reply

    def _react(self, number: int, stimulus: Stimulus) -> KnownOutcome:
        before: ModelReplica = self.replicas.values[number]
        try:
            outcome: StimulusOutcome = react(before, stimulus)
        except AssertionError as error:
            return number, None, (), (), f"assertion of replica {before.broker_id}: {error}"
        violation = invariants.check_step(before, stimulus, outcome)
        return self._number(outcome.replica), outcome.reply, outcome.proposals, outcome.shown, violation

    def apply_to_controller(
        self, state: ModelState, name: Any, events: tuple[ControllerEvent, ...], by_old: bool = False
    ) -> tuple[ModelState, ControllerDecision]:
        """Apply events to a controller. `name` stands for the events in the cache."""
        number = state.deposed if by_old else state.active
        known = self._decisions.get((number, name, by_old))
        if known is None:
            try:
                is_due = name == "answers due"
                decision = controller.decide(self.controllers.values[number], events, not by_old, is_due)
            except AssertionError as error:
                raise InvariantBroken(f"assertion of the controller: {error}") from error
            known = self._decisions[number, name, by_old] = (self.controllers.add(decision.controller), decision)
        after, decision = known
        if by_old:
            for broker_id, message in decision.sent:
                if message is not None:
                    state = self.stray(state, broker_id, self.messages.add(message))
            return state._replace(deposed=0 if decision.is_deposed else after), decision
        state = state._replace(active=after)
        if decision.change is not None:
            found = invariants.check_write(decision.change, tuple(self.replica(state, each) for each in self.brokers))
            if not (isinstance(name, tuple) and name[0] == "shut down"):  # that leader asked to be replaced
                found = found or invariants.check_replacement(decision.change, state.registered)
            if found is not None:
                raise InvariantBroken(found)
            if decision.change.starts_epoch:
                state = state._replace(leaders=(*state.leaders, decision.change.after.leader))
        for broker_id in decision.unregistered:
            state = self.unregister(state, broker_id)
        pending = state.pending
        for broker_id, message in decision.sent:
            pending = put(pending, broker_id, self._merged(pending[broker_id - 1], message))
        state = state._replace(pending=pending)
        if decision.is_gathering:
            state, _ = self.apply_to_controller(state, "answers due", controller.answers_due())
        elif decision.waits_for_answers:
            state, _ = self.apply_to_controller(state, "answered", controller.answered(decision.controller))
        if decision.asks_logs and not (isinstance(name, tuple) and name[0] == "logs"):
            logs = self._logs(state, decision.controller)
            state, _ = self.apply_to_controller(state, ("logs", logs), controller.logs_reported(logs))
        return state, decision

    def _logs(self, state: ModelState, asking: ModelController) -> tuple[controller.Log, ...]:
        """The logs of the running brokers with registrations that this controller knows."""
        found = []
        for broker_id, epoch, _, _ in asking.brokers:
            replica = self.replica(state, broker_id)
            if replica.is_running and replica.broker_epoch == epoch:
                last_epoch = replica.log[-1][0] if replica.log else -1
                since = replica.whole_since, replica.undisturbed_since
                high_watermark = replica.state.high_watermark
                found.append((broker_id, epoch, last_epoch, len(replica.log), high_watermark, *since))
        return tuple(found)

    def unregister(self, state: ModelState, broker_id: int) -> ModelState:
        """Another broker removes its node; it does not know yet."""
        registered = list(state.registered)
        registered[broker_id - 1] = (0, *registered[broker_id - 1][1:])
        return state._replace(registered=tuple(registered))

    def stray(self, state: ModelState, broker_id: int, message: int) -> ModelState:
        """A control request leaves its queue and is held up in the network."""
        known = self.active_of(state).epoch_of(broker_id)
        delayed_requests = {*state.delayed_requests, (broker_id, known, message)}
        return state._replace(delayed_requests=tuple(sorted(delayed_requests, key=self._order_of)))

    def _order_of(self, stray: tuple[int, int, int]) -> str:
        return repr((*stray[:2], self.messages.values[stray[2]]))

    def _merged(self, waiting: int, message: Message | None) -> int:
        """The last order for the partition counts, and the last list of brokers."""
        if message is None:
            return 0
        controller_epoch, live, order = message
        if order is None and waiting:
            order = self.messages.values[waiting][2]
        return self.messages.add((controller_epoch, live, order))

    # ---------------------------------------------------------------------------------------------------------- a state
    def settle(self, state: ModelState) -> ModelState:
        """Drop messages that can have no effect, whatever the code under test does: the receiver is gone, or refuses
        them before the core is asked. Raises InvariantBroken where the state breaks an invariant."""
        if state.delayed_requests:
            state = state._replace(
                delayed_requests=tuple(each for each in state.delayed_requests if self._may_arrive(state, each))
            )
        if state.late:
            kept = {each for each in state.late if self.replica(state, each[0]).starts == each[1]}
            if len(kept) < len(state.late):
                state = state._replace(late=tuple(sorted(kept, key=repr)))
        for broker_id in self.brokers:
            waiting = state.pending[broker_id - 1]
            if waiting and self._is_known(state, broker_id, self.messages.values[waiting]):
                state = state._replace(pending=put(state.pending, broker_id, 0))
        state = self._renumbered(state)
        key = (state.replicas, self.reference(state), state.committed, state.leaders)
        if key not in self._checked:
            replicas = tuple(self.replica(state, each) for each in self.brokers)
            self._checked[key] = invariants.check_state(replicas, self.reference(state), state.committed, state.leaders)
        found = self._checked[key]
        if found is not None:
            raise InvariantBroken(found)
        return state

    def _renumbered(self, state: ModelState) -> ModelState:
        """Numbers of forgotten proposals do not distinguish states; otherwise the state space would be infinite."""
        for broker_id in self.brokers:
            core = self.replica(state, broker_id).state
            if not core.last_proposal_id or core.pending_isr is not None or core.proposal_in_flight is not None:
                continue
            is_named = any(each[0] == broker_id for each in state.proposals)
            if not is_named and not any(each[0] == broker_id and each[2][0] == "altered" for each in state.late):
                state, _ = self.apply_to_replica(state, broker_id, ("renumber",))
        return state

    def _may_arrive(self, state: ModelState, stray: tuple[int, int, int]) -> bool:
        broker_id, broker_epoch, message = stray
        replica = self.replica(state, broker_id)
        if replica.registrations > broker_epoch or not replica.is_running:
            return False
        controller_epoch: int = self.messages.values[message][0]
        return controller_epoch >= replica.controller_epoch

    def _is_known(self, state: ModelState, broker_id: int, message: Message) -> bool:
        """Whether the message is only a list of brokers that this one already has."""
        replica = self.replica(state, broker_id)
        controller_epoch, live, order = message
        return order is None and (controller_epoch, live) == (replica.controller_epoch, replica.image)

    # ----------------------------------------------------------------------------------------------------------- budget
    def left(self, state: ModelState, kind: str) -> int:
        return state.budget[KINDS.index(kind)]

    def spend(self, state: ModelState, kind: str) -> ModelState:
        at = KINDS.index(kind)
        budget = state.budget
        return state._replace(budget=(*budget[:at], budget[at] - 1, *budget[at + 1 :]))

    def at_bound(self, state: ModelState) -> bool:
        return len(state.leaders) > self.bounds.epochs


def put(values: tuple[int, ...], broker_id: int, value: int) -> tuple[int, ...]:
    return (*values[: broker_id - 1], value, *values[broker_id:])
