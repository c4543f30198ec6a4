#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""jax_attention.py [--cases P1,D1] [--types float32,bfloat16,bf16-dot] [--threads 1,2] [--rounds N] [--json FILE]: rapt.jax beside jax.nn's
dot_product_attention, both compiled by jax.jit, in turns. bf16-dot is bfloat16 with arith="bf16". Prints a Markdown table of medians and
of the median of each round's ratio; --json keeps all times. Needs jax, and rapt installed or in PYTHONPATH. Each number of threads is a process of its own, bound to as
many CPUs, for XLA decides at its start how many it uses."""
import argparse
import datetime
import functools
import json
import os
import statistics
import subprocess
import sys
import time

from table import WHAT, cpu_name

# Batch, queries, keys, heads, kv heads, channels, causal. JAX's causal mask lets query i see keys 0 to i: D5 has it as a mask.
CASES = {
    "P1": (1, 128, 128, 12, 12, 64, False), "P2": (1, 512, 512, 12, 12, 64, False), "P3": (1, 1024, 1024, 32, 8, 128, True),
    "P4": (1, 4096, 4096, 8, 8, 64, True), "D1": (1, 1, 4096, 32, 8, 128, False), "D3": (1, 1, 4096, 32, 32, 128, False),
    "D4": (1, 1, 8192, 8, 1, 256, False), "D5": (1, 8, 4096, 32, 8, 128, "bottom-right"),
}
LEAST = 0.02  # seconds that a measurement takes at least


def measured(case, dtype, rounds):
    """Seconds of each round, of both."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import rapt.jax
    batch, queries, keys, heads, kv_heads, channels, causal = CASES[case]
    random = np.random.default_rng(1)
    given, arith = ("bfloat16", {"arith": "bf16"}) if dtype == "bf16-dot" else (dtype, {})
    arrays = [jnp.asarray(random.standard_normal(shape, np.float32), given) for shape in (
        (batch, queries, heads, channels), (batch, keys, kv_heads, channels), (batch, keys, kv_heads, channels))]
    mask = jnp.asarray(np.tril(np.ones((queries, keys), bool), keys - queries)) if causal == "bottom-right" else None
    calls = {name: jax.jit(lambda q, k, v, f=f: f(q, k, v, mask=mask, is_causal=causal is True))
             for name, f in (("rapt", functools.partial(rapt.jax.dot_product_attention, **arith)), ("jax.nn", jax.nn.dot_product_attention))}
    repetitions, times, results = {}, {name: [] for name in calls}, {}
    for name, call in calls.items():
        results[name] = np.asarray(call(*arrays), np.float32)
        start = time.perf_counter()
        call(*arrays).block_until_ready()
        repetitions[name] = max(1, int(LEAST / (time.perf_counter() - start)))
    off = float(np.abs(results["rapt"] - results["jax.nn"]).max())
    assert off < (1e-4 if dtype == "float32" else 0.1), f"{case} {dtype}: the results differ by {off}"
    for n in range(rounds):
        for name in (list(calls) if n % 2 else list(calls)[::-1]):
            start = time.perf_counter()
            for _ in range(repetitions[name]):
                calls[name](*arrays).block_until_ready()
            times[name].append((time.perf_counter() - start) / repetitions[name])
    return times


def one_process(options):
    """Prints a line of JSON for each case and type."""
    threads = int(options.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for dtype in options.types.split(","):
        for case in options.cases.split(","):
            print(json.dumps({"case": case, "type": dtype, "threads": threads, "seconds": measured(case, dtype, options.rounds)}),
                  flush=True)


def shown(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--types", default="float32,bfloat16,bf16-dot")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--one-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_process:
        return one_process(options)
    import importlib.metadata
    rows = []
    for threads in options.threads.split(","):
        command = [sys.executable, __file__, "--one-process", "--cases", options.cases, "--types", options.types, "--threads", threads,
                   "--rounds", str(options.rounds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": threads}) as p:
            for line in p.stdout:
                rows.append(json.loads(line))
                print(rows[-1]["case"], rows[-1]["type"], threads, file=sys.stderr)
        if p.returncode:
            sys.exit(p.returncode)
    print(f"{cpu_name()}, {datetime.date.today()}; jax {importlib.metadata.version('jax')}, {options.rounds} rounds in turns. Medians, and "
          "how many times as fast rapt is, the median of the rounds' ratios (least .. most).\n")
    print("| case | | type | threads | rapt | jax.nn | ratio |\n|---|---|---|---|---|---|---|")
    for row in rows:
        rapt, jax = row["seconds"]["rapt"], row["seconds"]["jax.nn"]
        ratios = [theirs / ours for ours, theirs in zip(rapt, jax)]
        print(f"| {row['case']} | {WHAT[row['case']]} | {row['type']} | {row['threads']} | {shown(statistics.median(rapt))} | "
              f"{shown(statistics.median(jax))} | {statistics.median(ratios):.2f} × ({min(ratios):.2f} .. {max(ratios):.2f}) |")
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"cpu": cpu_name(), "date": str(datetime.date.today()), "results": rows}, f, indent=1)


if __name__ == "__main__":
    main()
