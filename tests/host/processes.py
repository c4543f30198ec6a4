# SPDX-License-Identifier: Apache-2.0
"""The bytes of what a host computes with rapt and by itself, compared over processes and over ways within each: for the tests of hosts.

A process has results {case: {way: [digest of the host's by itself, digest with rapt]}}, whose first way is what the others are compared
with. With rapt, all ways of a case have the same bytes in all processes. By itself the host breaks some of these promises, which shows
that the test could fail; those that it keeps on this CPU are printed as skips."""
import collections
import hashlib
import json
import os
import subprocess
import sys

import numpy as np
from tap import ok, skip


def normal(seed, *shape):
    """Random numbers that are the same whatever the host's instruction set."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def digest(*arrays):
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in arrays)).hexdigest()[:16]


def kernels():
    """Those of rapt that this CPU has and whose bits are the same, best first."""
    import rapt
    return [name for name, isa in rapt.info()["isas"].items() if isa["usable"] and isa["rounding"] == "fused"]


def capabilities():
    """Values of ATEN_CPU_CAPABILITY that this CPU has."""
    import torch
    known, best = ["default", "avx2", "avx512"], torch.backends.cpu.get_cpu_capability().lower()
    return known[:known.index(best) + 1] if best in known else ["default"]  # of another architecture, where no others are known


def environments(**values):
    """Returns {name: variables of an environment}: as few as give each variable each of its values."""
    pairs = [{name: some[i % len(some)] for name, some in values.items()} for i in range(max(map(len, values.values())))]
    return {" ".join(f"{name}={value}" for name, value in pair.items()): pair for pair in pairs}


def results(program, of, *arguments):
    """What the program prints, called with --digests in these environments; {} if a process fails."""
    found = {}
    for name, environment in of.items():
        done = subprocess.run([sys.executable, program, "--digests", *arguments], env=os.environ | environment, capture_output=True,
                              text=True, timeout=900)
        if done.returncode:
            ok(False, f"a process with {name}", done.stderr)
            return {}
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(host, found, varied=True):
    """Results of processes, {name: results}. varied: whether anything of the host's own differed in these. Returns the cases in which
    the host by itself breaks a promise."""
    broken = collections.defaultdict(set)
    for case in next(iter(found.values()), ()):
        of = {name: process[case] for name, process in found.items()}
        ours = {f"{name}, {way}": digest for name, ways in of.items() for way, (_, digest) in ways.items()}
        ok(len(set(ours.values())) == 1, f"{case}: the same bytes ({', '.join(next(iter(of.values())))}) with {', '.join(of)}", ours)
        firsts = [next(iter(ways.values()))[0] for ways in of.values()]
        broken["in other processes"] |= {case} if len(set(firsts)) > 1 else set()
        for first, ways in zip(firsts, of.values()):
            for way, (plain, _) in list(ways.items())[1:]:
                broken[way] |= {case} if plain != first else set()
    if varied: controls(host, broken)
    else: skip(f"{host} by itself: a control", "this CPU has one instruction set of its")
    return set().union(*broken.values())


def controls(host, broken):
    """{promise: cases in which the host by itself breaks it}."""
    for promise, cases in broken.items():
        if not cases:
            skip(f"{host} by itself, {promise}: a control", "its bytes are the same here, too")
    ok(any(broken.values()), f"{host} by itself has other bytes: " + "; ".join(
        f"{promise} ({', '.join(sorted(cases))})" for promise, cases in broken.items() if cases), broken)
