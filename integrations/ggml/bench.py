#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times ggml's own attention and the device in turns; integrations/ggml/bench calls this, with the folder that prepare has
made."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "test"))

import numpy as np

import ggufs
from host import Host

TYPES = ("f16", "q8_0", "q4_0")
BF16_DOT = "bf16-dot"  # a cache of f16 with GGML_RAPT_ARITH=bf16; of operations alone
THREADS = (1, 2)
PROMPT, STEPS = 128, 6  # tokens of a prompt, and of an answer, that are timed at each depth

# A layer of the shape of Llama 3.2 1B's: what a decoder needs besides attention stands beside it as it does there.
MODEL = {"layers": 1, "heads": 32, "kv_heads": 8, "head_dim": 64, "inner": 8192}


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def result(kind: str, cache: str, depth: int, threads: int, pairs: list[dict[str, float]]) -> dict:
    """Medians of the milliseconds of both, and of the ratios of each pair, which a drifting machine disturbs least."""
    return {"kind": kind, "type": cache, "depth": depth, "threads": threads, "rounds": len(pairs),
            "ggml_ms": statistics.median(pair["ggml"] for pair in pairs),
            "rapt_ms": statistics.median(pair["rapt"] for pair in pairs),
            "ratio": statistics.median(pair["ggml"] / pair["rapt"] for pair in pairs)}


def operations(folder: Path, depths: tuple[int, ...]) -> list[dict]:
    results = []
    for kind, queries, rounds in (("prefill", PROMPT, 5), ("decode", 1, 25)):
        for cache in (*TYPES, BF16_DOT):
            given, arith = ("f16", "bf16") if cache == BF16_DOT else (cache, "exact")
            for depth in depths:
                for threads in THREADS:
                    keys = max(depth + queries, 256)  # llama.cpp's caches are multiples of 256
                    out = subprocess.run([folder / "host/bin/attention", "time", folder / "libggml-rapt.so", str(rounds), given,
                                          str(queries), str(keys), str(threads)], check=True, capture_output=True, text=True,
                                         env=os.environ | {"GGML_RAPT_ARITH": arith}).stdout
                    results.append(result(kind, cache, depth, threads, [json.loads(line) for line in out.splitlines()]))
                    show(results[-1])
    return results


def models(folder: Path, depths: tuple[int, ...]) -> list[dict]:
    """A prompt of PROMPT tokens and an answer of STEPS, behind depth others."""
    results = []
    with tempfile.TemporaryDirectory() as work:
        model = Path(work) / "model.gguf"
        room = max(depths) + 512
        ggufs.random_llama(model, **MODEL, context=room, weights=np.float16)
        host = Host(folder)
        stock = {cache: host.open(model, room, cache) for cache in TYPES}
        if not host.load_backend(folder / "libggml-rapt.so"):
            sys.exit(2)
        random = np.random.default_rng(2)
        for cache in TYPES:
            contexts = {"ggml": stock[cache], "rapt": host.open(model, room, cache)}
            filled = 0
            for depth in depths:
                # The faster of the two fills the cache for both.
                while filled < depth:
                    contexts["rapt"].feed(random.integers(ggufs.BYTE, ggufs.VOCABULARY, 512), THREADS[-1], results=False)
                    filled += 512
                if filled:
                    contexts["ggml"].copy_from(contexts["rapt"])
                prompt = random.integers(ggufs.BYTE, ggufs.VOCABULARY, PROMPT)
                for threads in THREADS:
                    pairs = {"prompt": [], "answer": []}
                    for round_ in range(3):
                        took = {"prompt": {}, "answer": {}}
                        for name in sorted(contexts, reverse=round_ % 2 == 1):
                            context = contexts[name]
                            start = time.perf_counter()
                            context.feed(prompt, threads, results=False)
                            middle = time.perf_counter()
                            for token in prompt[:STEPS]:
                                context.feed([token], threads, results=False)
                            took["answer"][name] = (time.perf_counter() - middle) * 1e3 / STEPS
                            took["prompt"][name] = (middle - start) * 1e3
                            context.forget_from(depth)
                        for kind, measured in pairs.items():
                            measured.append(took[kind])
                        if took["prompt"]["ggml"] > 1500 and round_ > 0:
                            break  # it is long enough to be told apart from noise
                    for kind, measured in pairs.items():
                        results.append(result(kind, cache, depth, threads, measured))
                        show(results[-1])
            for context in contexts.values():
                context.close()
    return results


def show(r: dict) -> None:
    print(f"{r['kind']:<8} {r['type']:<5} depth {r['depth']:>5}  {r['threads']} threads  ggml {r['ggml_ms']:>10.3f} ms  "
          f"rapt {r['rapt_ms']:>10.3f} ms  {r['ratio']:.2f} x", file=sys.stderr, flush=True)


def short(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def table(results: list[dict], kinds: tuple[str, ...], heading: str, cell) -> None:
    print(f"\n| {heading} | " + " | ".join(f"{kind}, {n} thread{'s' * (n > 1)}" for kind in kinds for n in THREADS) + " |")
    print("|---|" + "---|" * (len(kinds) * len(THREADS)))
    for cache in dict.fromkeys(r["type"] for r in results):
        for depth in sorted({r["depth"] for r in results}):
            row = [next(r for r in results if (r["kind"], r["type"], r["depth"], r["threads"]) == (kind, cache, depth, n))
                   for kind in kinds for n in THREADS]
            print(f"| {cache}, depth {depth} | " + " | ".join(map(cell, row)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    depths = (0, 4096) if options.quick else (0, 4096, 16384)
    out = options.json or options.folder / "bench.json"
    start = time.time()
    found = {"cpu": cpu_name(), "cores": os.cpu_count(), "load": os.getloadavg()[0], "prompt": PROMPT, "model": MODEL,
             "operations": operations(options.folder, depths), "models": models(options.folder, depths)}
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['cpu']}, {found['cores']} CPUs, load {found['load']:.1f} at the beginning, {time.time() - start:.0f} s")
    table(found["operations"], ("prefill", "decode"), "ms, ggml → rapt",
          lambda r: f"{short(r['ggml_ms'])} → {short(r['rapt_ms'])} ({r['ratio']:.2f} ×)")

    def rate(r):
        tokens = PROMPT if r["kind"] == "prompt" else 1
        return f"{short(tokens * 1e3 / r['ggml_ms'])} → {short(tokens * 1e3 / r['rapt_ms'])} ({r['ratio']:.2f} ×)"

    table(found["models"], ("prompt", "answer"), "tokens/s, ggml → rapt", rate)
    subprocess.run([sys.executable, HERE / "picture.py", out, out.with_suffix(".svg")], check=True)
    print(f"\n{out} and {out.with_suffix('.svg')}")


main()
