# SPDX-License-Identifier: Apache-2.0
"""The turns of a case, in a process of its own for each number of threads."""
import functools
import itertools
import math
import random
import statistics
import time

import numpy as np

from beside import Unsupported, machine
from beside.values import TOLERANCE, differences

TURN_SECONDS = 0.02   # a peer's turn, unless one call takes longer
PAUSE_SECONDS = 0.01  # before a turn, as often as it takes for the threads of the peer before to sleep


class Entrant:
    """A peer in a case, with its first output, which later ones are compared with."""

    def __init__(self, peer, problem):
        self.peer = peer
        self.run, self.as_numpy = peer.setup(problem)
        self.first = np.array(self.output())  # a copy, since many write all their outputs to one place
        self.error = problem.error(self.first)
        if not self.error <= TOLERANCE[problem.kind]:
            raise ValueError(f"wrong result, off by {self.error:.1g}")
        self.calls, self.turns = 1, []

    def output(self):
        return self.as_numpy(self.run([0]))

    def time(self, caches, calls):
        """Seconds of one call."""
        indices = list(itertools.islice(caches, calls))
        start = time.perf_counter()
        self.run(indices)
        return (time.perf_counter() - start) / calls


class Worker:
    """What a worker process keeps between cases."""

    def __init__(self, suite, options, threads):
        self.suite, self.options, self.threads = suite, options, threads

    @functools.cache  # noqa: B019 - a worker lives as long as its process
    def peer(self, name):
        _, peer, arguments = self.suite.peers[name]
        return peer(self.options, self.threads, **arguments)

    def limits(self):
        return machine.limits(self.options.bench, self.threads) if self.options.bench else None

    def measure(self, case, kind):
        problem = self.suite.problem(case, kind, self.threads)
        entrants, left_out = {}, {}
        before = self.limits()
        for name in self.options.peers:
            try:
                entrants[name] = Entrant(self.peer(name), problem)
            except Exception as e:  # whatever it is: the others go on, and the reason is written down
                left_out[name] = {"why": (str(e) or type(e).__name__).splitlines()[0], "failed": not isinstance(e, Unsupported)}
        self.take_turns(list(entrants.values()), itertools.cycle(range(len(problem.caches))))
        limits = before and before.best(self.limits())
        where = {"case": case.name, "type": kind, "threads": self.threads}
        return ([where | {"peer": name} | self.result(name, entrant, problem, limits) for name, entrant in entrants.items()],
                [where | {"peer": name} | why for name, why in left_out.items()])

    def result(self, name, entrant, problem, limits):
        case, kind, peer = problem.case, problem.kind, entrant.peer
        work = problem.bytes if case.memory else problem.operations
        seconds = statistics.median(entrant.turns)
        rate = 1e-9 * work / seconds
        last = entrant.output()
        allowed = limits and limits.allowed(problem, work)
        share = bound = None
        if limits:
            # The matrix unit is the limit of whoever may use it, and memory that of whoever has to wait for it.
            near = {"matrix" if limits.matrix_peak and peer.multiplies_bf16(kind) else "f32"} | ({"reading"} if problem.cold else set())
            bound = min(near, key=allowed.get)
            share = rate / allowed[bound]
        return {"ours": peer.ours, "isa": peer.isa(kind), "seconds": seconds, "unit": "GB/s" if case.memory else "GFLOP/s", "rate": rate,
                "limits": limits and limits._asdict(), "allowed": allowed, "cold": problem.cold, "bound": bound, "share": share,
                "max_error": max(entrant.error, problem.error(last)), "bytes": self.compared(f"{case.name}-{kind}-{name}", entrant, last),
                "calls_per_turn": entrant.calls, "turns": entrant.turns}

    def compared(self, name, entrant, last):
        """The first output beside the same call's after all turns, and beside that of the first number of threads, which is kept in
        a file."""
        file, one = self.options.outputs / f"{name}.npy", self.options.threads[0]
        found = {"again": differences(entrant.first, last)}
        if self.threads == one:
            np.save(file, entrant.first)
        elif file.exists():
            found[f"{one} thread{'s' * (one > 1)}"] = differences(entrant.first, np.load(file))
        return found

    def take_turns(self, entrants, caches):
        """The peers share one sequence of caches, so that a peer never meets the one that its predecessor has just read."""
        for entrant in entrants:
            entrant.calls = max(1, math.ceil(TURN_SECONDS / entrant.time(caches, 1)))
        end = time.perf_counter() + self.options.seconds
        shuffle = random.Random(0).shuffle
        while entrants and (len(entrants[0].turns) < self.options.rounds or time.perf_counter() < end):
            shuffle(entrants)
            for entrant in entrants:
                wait_for_quiet()
                if entrant.calls > 1:
                    entrant.time(caches, entrant.calls)  # its threads wake up and find CPUs of their own, which takes 10 ms or more
                entrant.turns.append(entrant.time(caches, entrant.calls))


def wait_for_quiet():
    """Until no thread of this process spins any more: ONNX Runtime's do for 50 ms and longer, on a CPU that the next peer needs."""
    end = time.perf_counter() + 1
    spun = math.inf
    while spun > 0.1 * PAUSE_SECONDS and time.perf_counter() < end:
        before = time.process_time()
        time.sleep(PAUSE_SECONDS)
        spun = time.process_time() - before


def start_worker(*arguments):
    global worker
    worker = Worker(*arguments)


def measure(case, kind):
    return worker.measure(case, kind)
