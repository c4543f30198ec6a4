#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times products of tokens with weights, MUL_MAT, by ggml's CPU backend and by the device in integer arithmetic, in turns;
integrations/ggml/bench --products calls this, with the folder that prepare has made.

Each side has its weights where llama.cpp would put them: ggml's in CPU_REPACK, if that has a layout for the type on this CPU. With
--bench RAPT-BENCH the table says which share of the nearer limit a product reaches: the machine's peak of integer products, or the
bandwidth of reading the weights as the file has them, where few tokens are multiplied with weights that come from memory."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))
from beside.machine import cpu_name, measured

TYPES = {"q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32, "q4_K": 144 / 256, "q6_K": 210 / 256}  # bytes of a weight
SHAPES = ((4096, 4096), (4096, 14336))  # channels in, channels out
TOKENS = (1, 2, 4, 8, 16, 128, 512)
FEW_TOKENS = 16  # as in matmul.c
THREADS = (1, 2)


def products(options, kind, shape, threads) -> list[dict]:
    """Medians of the milliseconds of both, and of the ratios of each round, which a drifting machine disturbs least."""
    command = [options.folder / "host/bin/matmul", "time", options.folder / "libggml-rapt.so", str(options.rounds), kind, *map(str, shape),
               str(threads), *map(str, TOKENS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True,
                          env=os.environ | {"GGML_RAPT_MATMUL": "1", "GGML_RAPT_ARITH": "int8"})
    if done.returncode:
        sys.exit(f"{done.stderr}bench_products.py: {' '.join(map(str, command))} failed")
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    found = []
    for tokens in TOKENS:
        of_tokens = [r for r in rounds if r["tokens"] == tokens]
        found.append({"type": kind, "shape": shape, "threads": threads, "tokens": tokens, "where": of_tokens[0]["where"],
                      "ggml_ms": statistics.median(r["ggml"] for r in of_tokens),
                      "rapt_ms": statistics.median(r["rapt"] for r in of_tokens),
                      "ratio": statistics.median(r["ggml"] / r["rapt"] for r in of_tokens)})
    return found


def limits(options) -> dict[int, dict]:
    return {threads: measured(options.bench, threads) for threads in THREADS} if options.bench else {}


def share(r, limit) -> float:
    """Of the nearer limit."""
    weights = r["shape"][0] * r["shape"][1]
    computing = 2e-6 * r["tokens"] * weights / r["rapt_ms"] / limit["integer_peak"]
    reading = 1e-6 * weights * TYPES[r["type"]] / r["rapt_ms"] / limit["GBs"] if r["tokens"] <= FEW_TOKENS else 0
    return max(computing, reading)


def table(results, limit) -> None:
    repacked = [kind for kind in TYPES if any(r["type"] == kind and r["where"] == "CPU_REPACK" for r in results)]
    print(f"ggml has repacked {', '.join(repacked) or 'none'}.")
    for threads, found in limit.items():
        print(f"{threads} thread{'s' * (threads > 1)}: integer peak {found['integer_peak']:.0f} GFLOP/s, reading {found['GBs']:.1f} GB/s.")
    columns = [(shape, threads) for shape in SHAPES for threads in THREADS]
    print("\n| ms, ggml → rapt | " + " | ".join(f"{a} × {b}, {n} thread{'s' * (n > 1)}" for (a, b), n in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for kind in dict.fromkeys(r["type"] for r in results):
        for tokens in TOKENS:
            cells = []
            for column in columns:
                r, = (r for r in results if (r["type"], r["tokens"], (tuple(r["shape"]), r["threads"])) == (kind, tokens, column))
                of = f", {100 * share(r, limit[r['threads']]):.0f} %" if limit else ""
                cells.append(f"{r['ggml_ms']:.3g} → {r['rapt_ms']:.3g} ({r['ratio']:.2f} ×{of})")
            print(f"| {kind}, {tokens} token{'s' * (tokens > 1)} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--bench", type=Path)
    parser.add_argument("--json", type=Path, help="where the results go, beside those of the other types that the file has already")
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"limits": {}, "results": []}
    measurements, start, results = [limits(options)], time.time(), [r for r in known["results"] if r["type"] not in options.types]
    for kind in options.types:
        for shape in SHAPES:
            for threads in THREADS:
                results += products(options, kind, shape, threads)
                print(f"{kind}, {shape[0]} x {shape[1]}, {threads} threads: "
                      + ", ".join(f"{r['ratio']:.2f}" for r in results[-len(TOKENS):]), file=sys.stderr, flush=True)
    measurements += [limits(options), {int(threads): found for threads, found in known["limits"].items()}]
    limit = {threads: {name: max(found[threads][name] for found in measurements if threads in found) for name in ("integer_peak", "GBs")}
             for threads in measurements[0]}
    print(f"{cpu_name()}, {os.cpu_count()} CPUs, {options.rounds} rounds, {time.time() - start:.0f} s")
    table(results, limit)
    if options.json:
        options.json.write_text(json.dumps({"cpu": cpu_name(), "limits": limit, "results": results}, indent=1) + "\n")


main()
