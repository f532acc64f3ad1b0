"""Elections and successions before a session ends: fencing first, and what counts as evidence (hardening rule 11)."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

ORIGIN = "hardening 11"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="H8",
        title="an election before the old leader is fenced",
        origin=ORIGIN,
        rule="the registration of a broker that seems dead is removed before anything is elected",
        breaks=("I18", "I22"),
        edits=(
            Edit(
                "controller.failure_detection",
                "    BrokerRefused,\n    ConfirmFailure,\n",
                "    BrokerRefused,\n    RegistrationsChanged,\n    ConfirmFailure,\n",
            ),
            Edit(
                "controller.failure_detection",
                "    Report,\n    Unregister,\n",
                "    Report,\n    ContinueWith,\n    Unregister,\n",
            ),
            Edit(
                "controller.failure_detection",
                "    return [report, Unregister(broker_id=event.broker_id, broker_epoch=event.broker_epoch)]\n",
                "    brokers = {each: broker for each, broker in state.brokers.items() if each != event.broker_id}\n"
                "    return [report, ContinueWith(event=RegistrationsChanged(brokers=brokers))]\n",
            ),
        ),
        schedule=Schedule("failure_detection:leader_refuses_the_others"),
    ),
    Mutant(
        name="H8b",
        title="silence is taken for a refusal",
        origin=ORIGIN,
        rule="a timeout or an unreachable host is no evidence of a death",
        breaks=("I36",),
        edits=(
            Edit(
                "controller.liveness_connection",
                "        except ConnectionRefused:\n",
                "        except NetworkError:\n",
            ),
            Edit(
                "broker.failure_confirmation",
                "        except NetworkError:\n            return None\n",
                "        except NetworkError:\n            return True\n",
            ),
        ),
        schedule=Schedule("failure_detection:leader_is_unreachable"),
    ),
    Mutant(
        name="H8c",
        title="a broker is fenced without a second opinion",
        origin=ORIGIN,
        rule="a second live broker must be refused, too",
        breaks=("I36",),
        edits=(
            Edit(
                "controller.failure_confirmation",
                "    return confirmer.broker_id if confirms else None\n",
                "    return confirmer.broker_id\n",
            ),
        ),
        schedule=Schedule("failure_detection:leader_refuses_the_controller_only"),
    ),
    Mutant(
        name="H8d",
        title="a dead controller's znodes are removed first and its successor elected then, and its registration stays",
        origin=ORIGIN,
        rule="whoever succeeds a dead controller removes its nodes in the multi that raises the controller epoch",
        breaks=("I30",),
        edits=(
            Edit(
                "controller.controller_election",
                "            return await _win(coordination, clock, candidate, before, removals)\n",
                "            with contextlib.suppress(NoNode, BadVersion):\n"
                "                await coordination.multi(removals[:1])\n"
                "            return await _win(coordination, clock, candidate, before, [])\n",
            ),
        ),
        schedule=Schedule("failure_detection:controller_refuses_the_others"),
    ),
    Mutant(
        name="H8e",
        title="a broker that was fenced serves on until it is registered anew",
        origin=ORIGIN,
        rule="a broker whose registration is gone stops serving before it does anything about it",
        breaks=("I29",),
        edits=(
            Edit(
                "broker.registration",
                '                self._lost("its registration is gone")\n',
                "",
            ),
        ),
        schedule=Schedule("failure_detection:fenced_leader_has_a_slow_zookeeper"),
    ),
    Mutant(
        name="D12d",
        title="what the controller reads of its own broker's registration stays with it",
        origin="found by seed 911627",
        rule="a broker knows that its registration is gone as soon as any reader of its process was told (hardening 11)",
        breaks=("hardening 11",),
        edits=(
            Edit(
                "controller.cluster_reader",
                "            self.on_broker_gone(name)\n",
                "            pass\n",
            ),
        ),
        schedule=Schedule("failure_detection:controller_reads_that_it_is_removed"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = (
    CannotApply(
        name="H8f",
        title="a controller that loses most of its lines at once does not doubt itself",
        origin=ORIGIN,
        reason="the doubt is redundant where evidence is told from silence: whoever turns the controller away and not the"
        " others is not confirmed by them, and who is confirmed is refused to somebody whose network is well. It spares"
        " questions, and sessions that a mistake of a whole network would cost; `test_failure_detection` holds it",
    ),
)
