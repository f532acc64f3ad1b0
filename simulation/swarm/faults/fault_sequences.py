"""All fault sequences by the names that `options` draws.

Owns: the table. The names, and their order in `options`, are part of a seed's meaning; methods may be renamed.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.simulation.swarm.faults.controller_sequences import ControllerSequences
from minibroker.simulation.swarm.faults.divergence_sequences import DivergenceSequences
from minibroker.simulation.swarm.faults.failure_detection_sequences import FailureDetectionSequences
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.faults.leader_sequences import LeaderSequences
from minibroker.simulation.swarm.faults.message_hold_sequences import MessageHoldSequences

FaultSequence = Callable[[], Coroutine[Any, Any, None]]


def fault_sequences(injector: FaultInjector) -> dict[str, FaultSequence]:
    """Each sequence of `options.SEQUENCES`, ready to be started."""
    leaders, controllers = LeaderSequences(injector), ControllerSequences(injector)
    holds, divergences = MessageHoldSequences(injector), DivergenceSequences(injector)
    failures = FailureDetectionSequences(injector)
    return {
        "tail": leaders.tail,
        "tails": leaders.tails,
        "chase": leaders.chase,
        "bounce_then_kill": leaders.bounce_then_kill,
        "late_control": controllers.late_control,
        "lost_control": controllers.lost_control,
        "late_replies": leaders.late_replies,
        "isr_answer_lost": controllers.isr_answer_lost,
        "zk_answer_lost": controllers.zk_answer_lost,
        "paused_controller": controllers.paused_controller,
        "controller_and_leader": controllers.controller_and_leader,
        "quiet_elections": leaders.quiet_elections,
        "slow_follower": leaders.slow_follower,
        "shrink_and_fall": leaders.shrink_and_fall,
        "shutdown_under_load": controllers.shutdown_under_load,
        "topic_again": controllers.topic_again,
        "replies_lost_in_flight": leaders.replies_lost_in_flight,
        "kill_in_turn": leaders.kill_in_turn,
        "power_twice": leaders.power_twice,
        "rejoin_without_tail": leaders.rejoin_without_tail,
        "paused_leader": leaders.paused_leader,
        "held_orders": holds.held_orders,
        "lost_orders": holds.lost_orders,
        "held_isr_answer": holds.held_isr_answer,
        "lost_isr_answer": holds.lost_isr_answer,
        "held_fetch_answer": holds.held_fetch_answer,
        "held_epoch_answer": holds.held_epoch_answer,
        "held_produce_answers": holds.held_produce_answers,
        "lost_produce_answers": holds.lost_produce_answers,
        "forked_tails": divergences.forked_tails,
        "there_and_back": divergences.missed_leader_epoch,
        "lagging_high_watermark": divergences.lagging_high_watermark,
        "suspected_leader": failures.suspected_leader,
        "suspected_controller": failures.suspected_controller,
        "controller_is_turned_away": failures.controller_is_refused,
        "suspicion_while_zookeeper_is_slow": failures.suspicion_while_zookeeper_is_slow,
        "controller_and_leader_die": failures.controller_that_leads_is_killed,
        "dead_and_back_at_once": failures.killed_and_restarted_at_once,
    }
