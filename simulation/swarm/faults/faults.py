"""Single faults, one method each, named as `options` names them: each draws its victim and its intensity.

Owns: what one fault is. Leaves to others: whether it may come now (`fault_injector`), and the order (`fault_sequences`,
`fault_schedule`). docs/QUESTIONS.md lists the steps that add one.
"""

from minibroker.simulation.swarm.faults.fault_injector import FaultInjector, name_of

BENIGN = frozenset(
    {
        *("reset", "half_open", "slow_link", "narrow_link", "slow_broker", "client_cut"),
        *("zk_lost_reply", "zk_reset", "clock"),
    }
)
"""Faults that take no leadership from a broker; only these may come while the promise depends on a single copy."""
AT_ONCE_SHARE = 0.4
"""The share of dead brokers that are started again within their session."""
DISK_CALLS = ("append", "read", "truncate", "sync", "open", "replace_file", "rename", "remove")


class Faults:
    """Each method is one fault."""

    def __init__(self, injector: FaultInjector) -> None:
        self.injector = injector

    # ----------------------------------------------------------------------------------------------------- failures
    def restart(self) -> None:
        injector = self.injector
        dead = [b for b in injector.cluster.broker_ids if not injector.is_alive(b)]
        if dead:
            injector.start(injector.random.choice(dead))

    def _maybe_at_once(self, broker_id: int) -> None:
        if self.injector.random.random() < AT_ONCE_SHARE:
            self.injector.start(broker_id)

    def _kill(self, broker_id: int) -> None:
        if self.injector.kill(broker_id):
            self._maybe_at_once(broker_id)

    def kill(self) -> None:
        self._kill(self.injector.broker())

    def kill_leader(self) -> None:
        leader = self.injector.leader(self.injector.partition())
        if leader is not None:
            self._kill(leader)

    def kill_controller(self) -> None:
        controller = self.injector.cluster.controller()
        if controller is not None:
            self._kill(controller)

    def term(self) -> None:
        injector, victim = self.injector, self.injector.broker()
        if injector.is_alive(victim) and injector.may_fail(victim):
            injector.note("term", victim)
            injector.end_by_stop(victim)
            injector.impair(victim, lambda: None, 12.5)  # it cannot be elected meanwhile

    def power(self) -> None:
        victim = self.injector.broker()
        if self.injector.cut_power({victim}):
            self._maybe_at_once(victim)

    def power_many(self) -> None:
        injector = self.injector
        victims = set(injector.random.sample(injector.cluster.broker_ids, min(len(injector.cluster.broker_ids), 2)))
        if injector.random.random() < 0.5:
            victims = set(injector.cluster.broker_ids)
        if injector.cut_power(victims):
            for victim in sorted(victims):
                self._maybe_at_once(victim)

    def blank_disk(self) -> None:
        victim = self.injector.broker()
        if self.injector.cut_power({victim}, blank=True):
            self._maybe_at_once(victim)

    def pause(self) -> None:
        victim, seconds = self.injector.broker(), self.injector.seconds(2 * self.injector.options.fault_seconds_max)
        self.injector.pause(victim, seconds)

    def slow_disk(self) -> None:
        injector, victim = self.injector, self.injector.broker()
        cost = injector.storage(victim).cost
        cost.append = injector.random.choice((0.01, 0.1, 0.4))
        injector.note("slow disk", victim, cost.append)

        def heal() -> None:
            cost.append = 0.0

        injector.impair(victim, heal)

    # -------------------------------------------------------------------------------------------------------- links
    def isolate(self) -> None:
        """From all other machines, clients included."""
        injector, victim = self.injector, self.injector.broker()
        seconds, one, client = injector.seconds(), name_of(victim), "client"
        injector.cut_off(victim, injector.others(victim), seconds)
        injector.network.partition(one, client)
        injector.later(lambda: injector.heal([(one, client), (client, one)]), seconds)

    def cut_pair(self) -> None:
        one, other = self.injector.random.sample(self.injector.cluster.broker_ids, 2)
        self.injector.cut_off(one, [other], self.injector.seconds())

    def cut_one_way(self) -> None:
        one, other = self.injector.random.sample(self.injector.cluster.broker_ids, 2)
        self.injector.cut_off(one, [other], self.injector.seconds(), both_ways=False)

    def reject_pair(self) -> None:
        """One broker is refused by another; the third is not."""
        one, other = self.injector.random.sample(self.injector.cluster.broker_ids, 2)
        self.injector.reject(one, [other], self.injector.seconds())

    def reject_broker(self) -> None:
        """No other broker can connect to it; clients and ZooKeeper can."""
        victim = self.injector.broker()
        self.injector.reject(victim, self.injector.others(victim), self.injector.seconds())

    def reject_all(self) -> None:
        """No broker and no client can connect to it."""
        self.injector.reject(self.injector.broker(), None, self.injector.seconds())

    def client_cut(self) -> None:
        injector, victim = self.injector, self.injector.broker()
        injector.note("cut from clients", victim)
        injector.network.partition(name_of(victim), "client")
        injector.later(lambda: injector.heal([(name_of(victim), "client"), ("client", name_of(victim))]))

    def _two_hosts(self) -> tuple[str, str]:
        one, other = self.injector.random.sample([*map(name_of, self.injector.cluster.broker_ids), "client"], 2)
        return one, other

    def reset(self) -> None:
        one, other = self._two_hosts()
        self.injector.note("reset", one, other)
        self.injector.network.reset_connections(one, other)

    def slow_link(self) -> None:
        one, other = self._two_hosts()
        self.injector.slow(one, other, self.injector.random.choice((0.01, 0.05, 0.2, 0.5)), self.injector.seconds())

    def slow_broker(self) -> None:
        """All that one broker sends is late."""
        injector, victim = self.injector, self.injector.broker()
        delay, seconds = injector.random.choice((0.02, 0.1, 0.3)), injector.seconds()
        for other in injector.others(victim):
            injector.slow(name_of(victim), name_of(other), delay, seconds)

    def narrow_link(self) -> None:
        """Few bytes per second pass."""
        injector, links = self.injector, self.injector.network.bandwidth
        one, other = self._two_hosts()
        links[one, other] = injector.random.choice((2_000.0, 20_000.0))
        injector.note("narrow link", one, other, links[one, other])
        injector.later(lambda: links.pop((one, other), None))

    def half_open(self) -> None:
        """One end has lost its connections; the other end does not notice."""
        one, other = self._two_hosts()
        self.injector.note("half open", one, other)
        self.injector.network.half_open(one, other)

    # ---------------------------------------------------------------------------------------------------- ZooKeeper
    def zk_cut(self) -> None:
        injector, victim = self.injector, self.injector.broker()
        if not injector.may_fail(victim):
            return
        injector.note("zookeeper cut from", victim)
        injector.zookeeper.cut(name_of(victim))
        injector.impair(
            victim,
            lambda: injector.zookeeper.heal(name_of(victim)),
            injector.seconds(injector.options.session_seconds * 2),
        )

    def zk_down(self) -> None:
        injector, seconds = self.injector, self.injector.seconds()
        if not injector.may_lose_zookeeper():
            return
        injector.note("zookeeper cut from all")
        injector.zookeeper.cut()
        for broker_id in injector.cluster.broker_ids:
            injector.impair(broker_id, injector.zookeeper.heal, seconds)

    def zk_restart(self) -> None:
        injector, seconds = self.injector, self.injector.seconds()
        if injector.zookeeper.is_running and injector.may_lose_zookeeper():
            injector.note("zookeeper stops")
            injector.zookeeper.stop()
            for broker_id in injector.cluster.broker_ids:
                injector.impair(broker_id, injector.zookeeper.start, seconds)

    def zk_slow(self) -> None:
        injector, seconds = self.injector, self.injector.seconds()
        injector.slow_zookeeper(injector.random.choice((0.05, 0.2, 0.5)), seconds)

    def zk_lost_reply(self) -> None:
        victim = self.injector.broker()
        self.injector.note("zookeeper loses the next reply to", victim)
        self.injector.zookeeper.lose_next_reply(name_of(victim))

    def zk_reset(self) -> None:
        victim = self.injector.broker()
        self.injector.note("zookeeper connection reset", victim)
        self.injector.zookeeper.drop_connection(name_of(victim))

    def zk_expire(self) -> None:
        injector, victim = self.injector, self.injector.broker()
        if not injector.may_fail(victim):
            return
        injector.note("zookeeper session expired", victim)
        for session in injector.zookeeper.sessions_of(name_of(victim)):
            injector.zookeeper.expire_session(session)
        injector.impair(victim, lambda: None, injector.options.session_seconds)

    # --------------------------------------------------------------------------------------------------------- disk
    def disk_full(self) -> None:
        injector, victim = self.injector, self.injector.broker()
        storage = injector.storage(victim)
        if not storage.faults:
            injector.note("disk full", victim)
            injector.disks_with_faults.add(victim)
            storage.fail("append", is_full=True)
            injector.impair(victim, storage.heal)

    def disk_fill(self) -> None:
        """Room for a few more records."""
        injector, victim = self.injector, self.injector.broker()
        storage = injector.storage(victim)
        if not storage.faults:
            injector.note("disk fills", victim)
            injector.disks_with_faults.add(victim)
            storage.fill(injector.random.choice((0, 500, 5_000)))
            injector.impair(victim, storage.heal)

    def disk_hang(self) -> None:
        injector, victim, seconds = self.injector, self.injector.broker(), self.injector.seconds()
        injector.note("disk hangs", victim, f"{seconds:.2f}")
        injector.storage(victim).hang(seconds)
        injector.impair(victim, lambda: None, seconds)

    def disk_error(self) -> None:
        injector, victim = self.injector, self.injector.broker()
        storage = injector.storage(victim)
        call, times = injector.random.choice(DISK_CALLS), injector.random.choice((1, 3, 1000))
        if not storage.faults:
            injector.note("disk error", victim, call, times)
            injector.broken_disks.add(victim)
            injector.disks_with_faults.add(victim)
            storage.fail(call, times=times)
            injector.impair(victim, storage.heal)

    def clock(self) -> None:
        machine = self.injector.world.machine(name_of(self.injector.broker()))
        machine.clock_skew_ms = self.injector.random.choice((-3_600_000, -5_000, 0, 5_000, 3_600_000))
        self.injector.note("clock", machine.name, machine.clock_skew_ms)
