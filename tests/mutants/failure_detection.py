"""Elections and successions before a session ends: fencing first, and what confirms a failure (hardening rule 11)."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

ORIGIN = "hardening rule 11"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="H8",
        title="an election before the old leader is fenced",
        origin=ORIGIN,
        rule="the registration of a broker that seems dead is removed before any election",
        breaks=("I18", "I22"),
        edits=(
            Edit(
                "controller.detection.failure_detection",
                "    BrokerRefused,\n    ConfirmFailure,\n",
                "    BrokerRefused,\n    RegistrationsChanged,\n    ConfirmFailure,\n",
            ),
            Edit(
                "controller.detection.failure_detection",
                "    Report,\n    Unregister,\n",
                "    Report,\n    ContinueWith,\n    Unregister,\n",
            ),
            Edit(
                "controller.detection.failure_detection",
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
        rule="a timeout or an unreachable host does not confirm a failure",
        breaks=("I36",),
        edits=(
            Edit(
                "controller.detection.liveness_connection",
                "        except ConnectionRefused:\n",
                "        except NetworkError:\n",
            ),
            Edit(
                "broker.membership.failure_confirmer",
                "        except NetworkError:\n            return None\n",
                "        except NetworkError:\n            return True\n",
            ),
        ),
        schedule=Schedule("failure_detection:leader_is_unreachable"),
    ),
    Mutant(
        name="H8c",
        title="a broker is fenced without a confirmation",
        origin=ORIGIN,
        rule="a second live broker must be refused, too",
        breaks=("I36",),
        edits=(
            Edit(
                "controller.detection.failure_inquiry",
                "    return confirmer.broker_id if response.refused else None\n",
                "    return confirmer.broker_id\n",
            ),
        ),
        schedule=Schedule("failure_detection:leader_refuses_the_controller_only"),
    ),
    Mutant(
        name="H8d",
        title="a dead controller's znode is removed before its successor is elected, and its registration stays",
        origin=ORIGIN,
        rule="the successor of a dead controller removes its znodes in the multi that raises the controller epoch",
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
        title="a broker that was fenced serves on until it is registered again",
        origin=ORIGIN,
        rule="a broker without a registration stops serving before it registers again",
        breaks=("I29",),
        edits=(
            Edit(
                "broker.membership.registration",
                '                self._end_broker_epoch("its registration is gone")\n',
                "",
            ),
        ),
        schedule=Schedule("failure_detection:fenced_leader_has_a_slow_zookeeper"),
    ),
    Mutant(
        name="D12d",
        title="the controller does not report to its own broker that the broker's registration is gone",
        origin="found by seed 911627",
        rule="a broker knows that its registration is gone as soon as any part of its process has read it (hardening rule 11)",
        breaks=("hardening rule 11",),
        edits=(
            Edit(
                "controller.cluster_reader",
                "            self._on_broker_gone(name)\n",
                "            pass\n",
            ),
        ),
        schedule=Schedule("failure_detection:controller_reads_that_it_is_removed"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = (
    CannotApply(
        name="H8f",
        title="a controller that loses most of its connections at once does not doubt its own network",
        origin=ORIGIN,
        reason="the doubt is redundant where a refusal is told apart from silence: if a broker refuses only the controller,"
        " the others do not confirm its failure; if they confirm it, their own network works. The doubt saves requests,"
        " and sessions if a whole network misbehaves; `test_failure_detection` covers it",
    ),
)
