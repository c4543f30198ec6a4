#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench.py [--cases A,B] [--types float32,float16,bfloat16,bf16-dot] [--threads 1,2] [--seconds S] [--json FILE] [--write DOCUMENT.md]

A layer's attention in vLLM, rapt's beside vLLM's own for CPUs, in turns in one run: each round times both, one after the other, and
the table gives the medians and the median of the rounds' ratios. What is timed is what a layer does in a step: new tokens are
written to the paged cache, and attend to it; what vLLM does once for all layers is not. bf16-dot is bfloat16 with
RAPT_VLLM_ARITH=bf16. Results are compared first. --write puts the
table between the marks of a document. Needs vLLM for CPUs, rapt and this plugin."""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "test"), str(HERE.parents[1] / "bench")]
os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
try:
    import rapt
    import torch
    import vllm
except ImportError as error:
    sys.exit(f"bench.py: {error}")
from layer import Cache, layer_of, metadata, sequences
from table import cpu_name

# What it is; for each sequence the tokens in the cache before the step, and the new ones. All have 32 heads on 8, of 128 channels.
CASES = {
    "prompt": ("prompt of 1024 tokens", [(0, 1024)]),
    "chunk": ("128 tokens of a prompt behind 4096", [(4096, 128)]),
    "decode": ("decode, a sequence of 4096 tokens", [(4096, 1)]),
    "decode-batch": ("decode, 8 sequences of 512 to 4096 tokens", [(512 * n, 1) for n in range(1, 9)]),
    "mixed": ("a prompt of 512 tokens beside 8 decodes", [(0, 512)] + [(512 * n, 1) for n in range(1, 9)]),
}
HEADS, KV_HEADS, CHANNELS, BLOCK_SIZE = 32, 8, 128, 32
ERRORS = {"float32": 3e-5, "float16": 4e-3, "bfloat16": 4e-2, "bf16-dot": 4e-2}
MARKS = "<!-- bench -->\n", "<!-- /bench -->"


def prepared(own, case, kind):
    """A function that does the step, and its result."""
    _, tokens = CASES[case]
    lengths = [old + new for old, new in tokens]
    dtype = torch.bfloat16 if kind == "bf16-dot" else getattr(torch, kind)
    os.environ["RAPT_VLLM_ARITH"] = "bf16" if kind == "bf16-dot" else "exact"
    impl, layer = layer_of(own, dtype, HEADS, KV_HEADS, BLOCK_SIZE, head_size=CHANNELS)
    cache = Cache(impl, BLOCK_SIZE, lengths)
    data = sequences(impl.dtype, HEADS, KV_HEADS, CHANNELS, lengths)

    def slots(first, end):
        return torch.cat([cache.slots(b, first[b], end[b]) for b in range(len(tokens))])

    def rows(first, end):
        return [torch.cat([d[n][first[b]:end[b]] for b, d in enumerate(data)]) for n in range(3)]
    old = [n for n, _ in tokens]
    if any(old):
        _, k, v = rows([0] * len(old), old)
        impl.do_kv_cache_update(layer, k, v, cache.memory, slots([0] * len(old), old))
    q, k, v = rows(old, lengths)
    new = slots(old, lengths)
    batch = metadata(impl, cache, range(len(tokens)), old, lengths, new, True)
    out = torch.empty_like(q)

    def run():
        impl.do_kv_cache_update(layer, k, v, cache.memory, new)
        impl.forward(layer, q, k, v, cache.memory, batch, out)
    return run, out


def measure(case, kind, threads, seconds):
    torch.set_num_threads(threads)
    ways = {"vllm": prepared(True, case, kind), "rapt": prepared(False, case, kind)}
    calls, times = {}, {name: [] for name in ways}
    for name, (run, _) in ways.items():
        run()
        start = time.perf_counter()
        run()
        calls[name] = max(1, int(0.01 / (time.perf_counter() - start)))
    error = float((ways["vllm"][1].float() - ways["rapt"][1].float()).abs().max())
    if not error <= ERRORS[kind]:
        sys.exit(f"bench.py: {case} {kind}: the results differ by {error}")
    begun = time.perf_counter()
    while len(times["rapt"]) < 5 or time.perf_counter() - begun < seconds:
        for name, (run, _) in ways.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                run()
            times[name].append((time.perf_counter() - start) / calls[name])
    ratios = [a / b for a, b in zip(times["vllm"], times["rapt"])]
    return {"case": case, "type": kind, "threads": threads, "rounds": len(ratios), "ratio": statistics.median(ratios),
            "seconds": {name: statistics.median(some) for name, some in times.items()}}


def markdown(report):
    columns = list(dict.fromkeys((r["type"], r["threads"]) for r in report["results"]))
    lines = [(f"{report['cpu']}, {report['date']}, vLLM {report['vllm']}. Each cell: rapt, and how many times faster than vLLM's own it "
              "is, in turns in one run. 32 heads on 8 of 128 channels, blocks of 32 tokens."), "",
             "| step | " + " | ".join(f"{kind}, {n} thread{'s' * (n > 1)}" for kind, n in columns) + " |", "|---|" + "---|" * len(columns)]
    for case in dict.fromkeys(r["case"] for r in report["results"]):
        rows = {(r["type"], r["threads"]): r for r in report["results"] if r["case"] == case}
        lines.append(f"| {CASES[case][0]} | " + " | ".join(
            f"{rows[c]['seconds']['rapt'] * 1e3:.3g} ms, {rows[c]['ratio']:.2f} ×" for c in columns) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--types", default=",".join(ERRORS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case, type and number of threads (default: 2)")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path, metavar="DOCUMENT.md")
    options = parser.parse_args()
    results = []
    with torch.inference_mode():
        for case in options.cases.split(","):
            for kind in options.types.split(","):
                for threads in map(int, options.threads.split(",")):
                    results.append(measure(case, kind, threads, options.seconds))
                    print(f"{case} {kind} {threads}: {results[-1]['ratio']:.2f}", file=sys.stderr, flush=True)
    report = {"cpu": cpu_name(), "date": time.strftime("%Y-%m-%d"), "vllm": vllm.__version__, "rapt": rapt.info()["version"],
              "results": results}
    table = markdown(report)
    print(table, end="")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.write:
        before, _, after = options.write.read_text().partition(MARKS[0])
        options.write.write_text(before + MARKS[0] + table + MARKS[1] + after.partition(MARKS[1])[2])


if __name__ == "__main__":
    main()
