#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""F.scaled_dot_product_attention with rapt under it (rapt.torch.enabled) beside PyTorch's own, in turns: what a user gains by
one line.

    bench/torch_sdpa.py [--out DIR] [--seconds S] [--types float32,float16,bfloat16,bf16-dot] [--threads 1,2] [--cases REGEX]

bf16-dot is bfloat16 with enable(arith="bf16").

Before anything is measured, the two results are compared. Writes torch_sdpa.json and torch_sdpa.md to DIR, and prints the
table. The last rows are calls between two of PyTorch's own matrix products, with rapt on PyTorch's threads, as it is, and on a pool of
its own: what a second pool would cost."""
import argparse
import json
import pathlib
import platform
import re
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F

    import rapt
    import rapt.torch
except ImportError as error:
    sys.exit(f"torch_sdpa.py: {error}")

# Name: what it is, batch, query heads, key heads, queries, keys, channels, causal.
CASES = {
    "P1": ("prefill", 1, 12, 12, 128, 128, 64, False),
    "P2": ("prefill", 1, 12, 12, 512, 512, 64, False),
    "P2-batch": ("prefill, 16 sequences", 16, 12, 12, 128, 128, 64, False),
    "P3": ("causal prefill", 1, 32, 8, 1024, 1024, 128, True),
    "P4": ("causal prefill", 1, 8, 8, 4096, 4096, 64, True),
    "P5": ("causal prefill", 1, 8, 8, 4096, 4096, 128, True),
    "P6": ("causal prefill behind a cache", 1, 32, 8, 256, 4096, 128, True),
    "D1": ("decode", 1, 32, 8, 1, 4096, 128, False),
    "D3": ("decode", 1, 32, 32, 1, 4096, 128, False),
    "D-batch": ("decode, 8 sequences", 8, 32, 8, 1, 1024, 128, False),
    "small": ("what a call costs", 1, 4, 4, 8, 8, 16, False),
}
POOLS = "P1", "P2", "D1"
ERRORS = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2, "bf16-dot": 4e-2}


def tensors(case, kind):
    """As a model's projections leave them: tokens before heads."""
    _, batch, heads, kv_heads, queries, keys, channels, _ = CASES[case]
    generator = torch.Generator().manual_seed(1)
    dtype = torch.bfloat16 if kind == "bf16-dot" else getattr(torch, kind)

    def one(h, s):
        return torch.randn(batch, s, h, channels, generator=generator).to(dtype).transpose(1, 2)
    return one(heads, queries), one(kv_heads, keys), one(kv_heads, keys)


def in_turns(ways, seconds):
    """Each way's times of a call, of rounds in which each has its turn, for about `seconds` seconds. A way is a function and what
    is to be done before and after its turn."""
    calls, times, begun = {}, {name: [] for name in ways}, time.perf_counter()
    while not calls or len(next(iter(times.values()))) < 5 or time.perf_counter() - begun < seconds:
        for name, (run, before, after) in ways.items():
            before()
            if name not in calls:
                run()
                start = time.perf_counter()
                run()
                calls[name] = max(1, int(0.005 / (time.perf_counter() - start)))
            start = time.perf_counter()
            for _ in range(calls[name]):
                run()
            times[name].append((time.perf_counter() - start) / calls[name])
            after()
    return times


def nothing():
    pass


def measure(case, kind, threads, seconds):
    torch.set_num_threads(threads)
    q, k, v = tensors(case, kind)
    causal, gqa, queries, keys = CASES[case][7], q.shape[1] != k.shape[1], q.shape[2], k.shape[2]
    # is_causal counts from the first key; behind a cache the last query sees all keys, which only a mask can say.
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal and queries != keys else None
    options = {"everything": True, "arith": "bf16" if kind == "bf16-dot" else "exact"}

    def run():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=gqa)
    own = run()
    rapt.torch.stats(reset=True)
    with rapt.torch.enabled(**options):
        ours = run()
    if rapt.torch.stats()["taken"] != 1:
        sys.exit(f"torch_sdpa.py: {case} {kind}: rapt has not taken the call: {rapt.torch.stats()}")
    error = (ours.float() - own.float()).abs().max().item()
    if not error <= ERRORS[kind]:
        sys.exit(f"torch_sdpa.py: {case} {kind}: the results differ by {error}")
    times = in_turns({"torch": (run, nothing, nothing),
                      "rapt": (run, lambda: rapt.torch.enable(**options), rapt.torch.disable)}, seconds)
    return row(case, kind, threads, "torch", "rapt", times)


def measure_pools(case, threads, seconds):
    """A layer's worth of calls, on one pool and on two."""
    torch.set_num_threads(threads)
    q, k, v = tensors(case, "float32")
    x = torch.randn(q.shape[2] * q.shape[0], q.shape[1] * q.shape[3])
    w = torch.randn(x.shape[1], x.shape[1])
    causal, host = "bottom-right" if CASES[case][7] else None, rapt._threads.host

    def run():
        F.linear(x, w)
        torch.ops.rapt.attention(q, k, v, causal=causal)
        F.linear(x, w)

    def set_host(to):
        rapt._threads.host = to
    times = in_turns({"two pools": (run, lambda: set_host(None), lambda: set_host(host)), "one pool": (run, nothing, nothing)},
                     seconds)
    return row(case, "float32", threads, "two pools", "one pool", times)


def row(case, kind, threads, before, after, times):
    ratios = [a / b for a, b in zip(times[before], times[after])]
    return {"case": case, "type": kind, "threads": threads, "before": before, "after": after,
            "seconds": {name: statistics.median(some) for name, some in times.items()}, "rounds": len(ratios),
            "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def shape(case):
    what, batch, heads, kv_heads, queries, keys, channels, _ = CASES[case]
    tokens = f"S {queries}" if queries == keys else f"{queries} on {keys}"
    return f"{what}: {f'B {batch}, ' * (batch > 1)}H {heads}{f'/{kv_heads}' * (heads != kv_heads)}, {tokens}, d {channels}"


def milliseconds(seconds):
    return f"{seconds * 1e3:.3g} ms"


def markdown(report):
    columns = sorted({(r["type"], r["threads"]) for r in report["rows"]}, key=lambda c: (list(ERRORS).index(c[0]), c[1]))
    lines = [(f"{report['cpu']}, {report['date']}; {report['versions']}. Each cell: PyTorch's own time, rapt's, and the "
              f"median of the ratios of {report['least rounds']} rounds or more (least .. most). By default rapt takes "
              f"{', '.join(report['default types'])} on this CPU."), "",
             "| case | | " + " | ".join(f"{kind}, {n} thread{'s' * (n > 1)}" for kind, n in columns) + " |",
             "|---|---|" + "---|" * len(columns)]

    def cell(rows, kind, threads):
        for r in rows:
            if (r["type"], r["threads"]) == (kind, threads):
                before, after = (milliseconds(r["seconds"][r[side]]) for side in ("before", "after"))
                return f"{before}, {after}; **{r['ratio']:.2f} ×** ({r['least']:.2f} .. {r['most']:.2f})"
        return ""
    for case in CASES:
        rows = [r for r in report["rows"] if r["case"] == case]
        if rows:
            lines.append(f"| {case} | {shape(case)} | " + " | ".join(cell(rows, *column) for column in columns) + " |")
    if report["pools"]:
        lines += ["", ("A layer: a linear layer, rapt's attention, a linear layer, in float32, with a pool of rapt's own beside "
                   "PyTorch's threads, and on PyTorch's threads."), "", "| case | threads | two pools | one pool | ratio |",
                  "|---|---|---|---|---|"]
        for r in report["pools"]:
            two, one = (milliseconds(r["seconds"][side]) for side in ("two pools", "one pool"))
            lines.append(f"| {r['case']} | {r['threads']} | {two} | {one} | **{r['ratio']:.2f} ×** ({r['least']:.2f} .. "
                         f"{r['most']:.2f}) |")
    return "\n".join(lines) + "\n"


def cpu():
    try:
        found = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    units = [unit for unit, there in torch.cpu.get_capabilities().items() if there is True and unit.startswith("amx")]
    return (found.group(1) if found else platform.processor() or platform.machine()) + f" ({', '.join(units)})" * bool(units)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case, type and number of threads (default: 3)")
    parser.add_argument("--types", default=",".join(ERRORS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--cases", default="", metavar="REGEX")
    options = parser.parse_args()
    kinds, counts = options.types.split(","), [int(n) for n in options.threads.split(",")]
    unknown = set(kinds) - set(ERRORS)
    if unknown:
        parser.error(f"no such type: {', '.join(unknown)}")
    cases = [case for case in CASES if re.search(options.cases, case)]
    if not cases:
        parser.error("no case has such a name")
    rows, pools = [], []
    with torch.inference_mode():
        for case in cases:
            for kind in kinds:
                for threads in counts:
                    rows.append(measure(case, kind, threads, options.seconds))
                    r = rows[-1]
                    print(f"{case} {kind} {threads}: {r['ratio']:.2f}", file=sys.stderr, flush=True)
        if rapt._threads.host:
            for case in set(POOLS) & set(cases):
                for threads in (n for n in counts if n > 1):
                    pools.append(measure_pools(case, threads, options.seconds))
    names = [str(t).removeprefix("torch.") for t in rapt.torch.default_types()]
    report = {"cpu": cpu(), "date": time.strftime("%Y-%m-%d"), "rows": rows, "pools": sorted(pools, key=lambda r: r["case"]),
              "versions": f"Python {platform.python_version()}, torch {torch.__version__}, rapt {rapt.info()['version']} "
                          f"({rapt.isa()})",
              "least rounds": min(r["rounds"] for r in rows), "default types": sorted(names, key=list(ERRORS).index)}
    table = markdown(report)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "torch_sdpa.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "torch_sdpa.md").write_text(table)
    print(table, end="")


if __name__ == "__main__":
    main()
