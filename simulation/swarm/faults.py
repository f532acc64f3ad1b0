"""Single faults, one method each, named as `options` names them: each draws its victim and its intensity.

Owns: what one fault is. Refuses to judge whether it may come now (`hand`), or in which order (`plots`, `injector`).
"""

from minibroker.simulation.swarm.hand import Hand, name_of

BENIGN = frozenset(
    {
        *("reset", "half_open", "slow_link", "narrow_link", "slow_broker", "client_cut"),
        *("zk_lost_reply", "zk_reset", "clock"),
    }
)
"""Faults that keep every broker in office; only these may come while the promise hangs on a single copy."""
AT_ONCE_SHARE = 0.4
"""How many of the dead are started again within their session."""
DISK_CALLS = ("append", "read", "truncate", "sync", "open", "replace_file", "rename", "remove")


class Faults:
    """Each method is one fault."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand

    # ------------------------------------------------------------------------------------------------------- deaths
    def restart(self) -> None:
        hand = self.hand
        dead = [b for b in hand.cluster.broker_ids if not hand.is_alive(b)]
        if dead:
            hand.start(hand.random.choice(dead))

    def _maybe_at_once(self, broker_id: int) -> None:
        if self.hand.random.random() < AT_ONCE_SHARE:
            self.hand.start(broker_id)

    def _kill(self, broker_id: int) -> None:
        if self.hand.kill(broker_id):
            self._maybe_at_once(broker_id)

    def kill(self) -> None:
        self._kill(self.hand.broker())

    def kill_leader(self) -> None:
        leader = self.hand.leader(self.hand.partition())
        if leader is not None:
            self._kill(leader)

    def kill_controller(self) -> None:
        controller = self.hand.cluster.controller()
        if controller is not None:
            self._kill(controller)

    def term(self) -> None:
        hand, victim = self.hand, self.hand.broker()
        if hand.is_alive(victim) and hand.may_fall(victim):
            hand.note("term", victim)
            hand.stopping.append(hand.world.process(name_of(victim)))
            hand.cluster.stop(victim)
            hand.impair(victim, lambda: None, 12.5)  # it stands for no election meanwhile

    def power(self) -> None:
        victim = self.hand.broker()
        if self.hand.cut_power({victim}):
            self._maybe_at_once(victim)

    def power_many(self) -> None:
        hand = self.hand
        victims = set(hand.random.sample(hand.cluster.broker_ids, min(len(hand.cluster.broker_ids), 2)))
        if hand.random.random() < 0.5:
            victims = set(hand.cluster.broker_ids)
        if hand.cut_power(victims):
            for victim in sorted(victims):
                self._maybe_at_once(victim)

    def blank_disk(self) -> None:
        victim = self.hand.broker()
        if self.hand.cut_power({victim}, blank=True):
            self._maybe_at_once(victim)

    def pause(self) -> None:
        victim, seconds = self.hand.broker(), self.hand.seconds(2 * self.hand.options.fault_seconds_max)
        self.hand.pause(victim, seconds)

    def slow_disk(self) -> None:
        hand, victim = self.hand, self.hand.broker()
        cost = hand.storage(victim).cost
        cost.append = hand.random.choice((0.01, 0.1, 0.4))
        hand.note("slow disk", victim, cost.append)
        hand.impair(victim, lambda: setattr(cost, "append", 0.0))

    # -------------------------------------------------------------------------------------------------------- links
    def isolate(self) -> None:
        """From everybody else, clients too."""
        hand, victim = self.hand, self.hand.broker()
        seconds, one, client = hand.seconds(), name_of(victim), "client"
        hand.cut_off(victim, hand.others(victim), seconds)
        hand.network.partition(one, client)
        hand.later(lambda: hand.heal([(one, client), (client, one)]), seconds)

    def cut_pair(self) -> None:
        one, other = self.hand.random.sample(self.hand.cluster.broker_ids, 2)
        self.hand.cut_off(one, [other], self.hand.seconds())

    def cut_one_way(self) -> None:
        one, other = self.hand.random.sample(self.hand.cluster.broker_ids, 2)
        self.hand.cut_off(one, [other], self.hand.seconds(), both_ways=False)

    def reject_pair(self) -> None:
        """One broker cannot connect to another one; a third can."""
        one, other = self.hand.random.sample(self.hand.cluster.broker_ids, 2)
        self.hand.reject(one, [other], self.hand.seconds())

    def reject_broker(self) -> None:
        """No other broker can connect to it; clients and ZooKeeper can."""
        victim = self.hand.broker()
        self.hand.reject(victim, self.hand.others(victim), self.hand.seconds())

    def reject_all(self) -> None:
        """Nobody can connect to it."""
        self.hand.reject(self.hand.broker(), None, self.hand.seconds())

    def client_cut(self) -> None:
        hand, victim = self.hand, self.hand.broker()
        hand.note("cut from clients", victim)
        hand.network.partition(name_of(victim), "client")
        hand.later(lambda: hand.heal([(name_of(victim), "client"), ("client", name_of(victim))]))

    def _two_hosts(self) -> tuple[str, str]:
        one, other = self.hand.random.sample([*map(name_of, self.hand.cluster.broker_ids), "client"], 2)
        return one, other

    def reset(self) -> None:
        one, other = self._two_hosts()
        self.hand.note("reset", one, other)
        self.hand.network.reset_connections(one, other)

    def slow_link(self) -> None:
        one, other = self._two_hosts()
        self.hand.slow(one, other, self.hand.random.choice((0.01, 0.05, 0.2, 0.5)), self.hand.seconds())

    def slow_broker(self) -> None:
        """All that one broker sends is late."""
        hand, victim = self.hand, self.hand.broker()
        delay, seconds = hand.random.choice((0.02, 0.1, 0.3)), hand.seconds()
        for other in hand.others(victim):
            hand.slow(name_of(victim), name_of(other), delay, seconds)

    def narrow_link(self) -> None:
        """Few bytes per second pass."""
        hand, links = self.hand, self.hand.network.bandwidth
        one, other = self._two_hosts()
        links[one, other] = hand.random.choice((2_000.0, 20_000.0))
        hand.note("narrow link", one, other, links[one, other])
        hand.later(lambda: links.pop((one, other), None))

    def half_open(self) -> None:
        """One end has lost its connections, the other does not know."""
        one, other = self._two_hosts()
        self.hand.note("half open", one, other)
        self.hand.network.half_open(one, other)

    # ---------------------------------------------------------------------------------------------------- ZooKeeper
    def zk_cut(self) -> None:
        hand, victim = self.hand, self.hand.broker()
        hand.note("zookeeper cut from", victim)
        hand.zookeeper.cut(name_of(victim))
        hand.impair(
            victim, lambda: hand.zookeeper.heal(name_of(victim)), hand.seconds(hand.options.session_seconds * 2)
        )

    def zk_down(self) -> None:
        hand, seconds = self.hand, self.hand.seconds()
        hand.note("zookeeper cut from all")
        hand.zookeeper.cut()
        for broker_id in hand.cluster.broker_ids:
            hand.impair(broker_id, hand.zookeeper.heal, seconds)

    def zk_restart(self) -> None:
        hand, seconds = self.hand, self.hand.seconds()
        if hand.zookeeper.is_running:
            hand.note("zookeeper stops")
            hand.zookeeper.stop()
            for broker_id in hand.cluster.broker_ids:
                hand.impair(broker_id, hand.zookeeper.start, seconds)

    def zk_slow(self) -> None:
        hand, options, seconds = self.hand, self.hand.zookeeper.options, self.hand.seconds()
        options.extra_delay = hand.random.choice((0.05, 0.2, 0.5))
        hand.note("zookeeper slow", options.extra_delay)
        for broker_id in hand.cluster.broker_ids:
            hand.impair(broker_id, lambda: setattr(options, "extra_delay", 0.0), seconds)

    def zk_lost_reply(self) -> None:
        victim = self.hand.broker()
        self.hand.note("zookeeper loses the next reply to", victim)
        self.hand.zookeeper.lose_next_reply(name_of(victim))

    def zk_reset(self) -> None:
        victim = self.hand.broker()
        self.hand.note("zookeeper connection reset", victim)
        self.hand.zookeeper.drop_connection(name_of(victim))

    def zk_expire(self) -> None:
        hand, victim = self.hand, self.hand.broker()
        hand.note("zookeeper session expired", victim)
        for session in hand.zookeeper.sessions_of(name_of(victim)):
            hand.zookeeper.expire_session(session)
        hand.impair(victim, lambda: None, hand.options.session_seconds)

    # --------------------------------------------------------------------------------------------------------- disk
    def disk_full(self) -> None:
        hand, victim = self.hand, self.hand.broker()
        storage = hand.storage(victim)
        if not storage.faults:
            hand.note("disk full", victim)
            storage.fail("append", is_full=True)
            hand.impair(victim, storage.heal)

    def disk_fill(self) -> None:
        """Room for a few more records."""
        hand, victim = self.hand, self.hand.broker()
        storage = hand.storage(victim)
        if not storage.faults:
            hand.note("disk fills", victim)
            storage.fill(hand.random.choice((0, 500, 5_000)))
            hand.impair(victim, storage.heal)

    def disk_hang(self) -> None:
        hand, victim, seconds = self.hand, self.hand.broker(), self.hand.seconds()
        hand.note("disk hangs", victim, f"{seconds:.2f}")
        hand.storage(victim).hang(seconds)
        hand.impair(victim, lambda: None, seconds)

    def disk_error(self) -> None:
        hand, victim = self.hand, self.hand.broker()
        storage = hand.storage(victim)
        call, times = hand.random.choice(DISK_CALLS), hand.random.choice((1, 3, 1000))
        if not storage.faults:
            hand.note("disk error", victim, call, times)
            hand.broken_disks.add(victim)
            storage.fail(call, times=times)
            hand.impair(victim, storage.heal)

    def clock(self) -> None:
        machine = self.hand.world.machine(name_of(self.hand.broker()))
        machine.clock_skew_ms = self.hand.random.choice((-3_600_000, -5_000, 0, 5_000, 3_600_000))
        self.hand.note("clock", machine.name, machine.clock_skew_ms)
