#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench.py [--cases A,B] [--types f32,f16,bf16-dot] [--threads 1,2] [--rounds N] [--seconds S] [--json FILE] [--write DOCUMENT.md]

Nodes of attention on rapt's execution provider and on the CPU provider, in turns in one run: each round times both, one after
the other, and the table gives the medians and the median of the rounds' ratios. Results are compared first. Inputs and outputs
are bound to memory that is there before, and a decoder's cache is past and present at once, where the operator can have that.
bf16-dot is f32 with rapt.onnxruntime.enable(arith="bf16"). --write puts the table between the marks of a document. Needs
onnxruntime, onnx, numpy, ml_dtypes and rapt's package."""
import argparse
import json
import pathlib
import re
import statistics
import sys
import time

import numpy as np
import onnxruntime

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "test")]
import models
import rapt.onnxruntime as rapt_onnxruntime
from models import CONTRIB

MHA, GQA = CONTRIB + ".MultiHeadAttention", CONTRIB + ".GroupQueryAttention"
TYPES = {"f32": np.float32, "f16": np.float16, "bf16-dot": np.float32}
TOLERANCES = {"f32": 1e-4, "f16": 5e-3, "bf16-dot": 4e-2}
MARKS = "<!-- bench -->\n", "<!-- /bench -->"

# ---- Cases: for a type, the operator, its inputs, attributes and outputs, and which outputs are which inputs' memory --------


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def encoder(batch, tokens, heads, d, padded):
    q, k, v = (numbers(i, batch, tokens, heads * d) for i in range(3))
    inputs = {"q": q, "k": k, "v": v, "bias": numbers(3, 3 * heads * d)}
    if padded:
        lengths = np.linspace(tokens // 4, tokens, batch).astype(int)
        inputs["padding"] = (np.arange(tokens) < lengths[:, None]).astype(np.int32)
    return MHA, inputs, {"num_heads": heads}, ("y", ), {}


def decoder(new, past, heads, kv_heads, d, coded=False):
    q, k, v = (numbers(i, 1, new, h * d) for i, h in enumerate((heads, kv_heads, kv_heads)))
    total, pairs = past + new, d // 2
    angles = np.arange(total)[:, None] * 10000.0**(-np.arange(pairs) / pairs)
    inputs = {
        "q": q, "k": k, "v": v, "last": np.array([total - 1], np.int32), "total": np.array(total, np.int32), "cos":
        np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)
    }
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1}
    if not past:
        return GQA, inputs, attributes, ("y", "present_k", "present_v"), {}
    for i, n in enumerate("kv"):
        cache = numbers(3 + i, 1, kv_heads, total, d)
        inputs[f"past_{n}"] = np.clip(np.round(cache / 0.04), -127, 127).astype(np.int8) if coded else cache
    if coded:
        attributes |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
        inputs |= {f"{n}_scale": np.array([0.04], np.float32) for n in "kv"}
    return GQA, inputs, attributes, ("y", "present_k", "present_v"), {"present_k": "past_k", "present_v": "past_v"}


def standard(new, past, heads, kv_heads, d, causal):
    inputs = {n: numbers(i, 1, h, new, d) for i, (n, h) in enumerate((("q", heads), ("k", kv_heads), ("v", kv_heads)))}
    outputs = ("y", )
    if past:
        inputs |= {f"past_{n}": numbers(3 + i, 1, kv_heads, past, d) for i, n in enumerate("kv")}
        outputs = "y", "present_k", "present_v"
    return "Attention", inputs, {"is_causal": int(causal)}, outputs, {}


CASES = {
    "mha-512": ("MultiHeadAttention, H 12, 512 tokens, d 64, with a bias", lambda: encoder(1, 512, 12, 64, False)),
    "mha-padded": ("the same, 8 × 128 tokens, padded", lambda: encoder(8, 128, 12, 64, True)),
    "gqa-prompt": ("GroupQueryAttention, H 32/8, prompt of 1024, d 128, rotary", lambda: decoder(1024, 0, 32, 8, 128)),
    "gqa-chunk": ("the same, 64 tokens behind 4032", lambda: decoder(64, 4032, 32, 8, 128)),
    "gqa-step": ("the same, a token behind 4095", lambda: decoder(1, 4095, 32, 8, 128)),
    "gqa-step-int8": ("the same, the cache int8", lambda: decoder(1, 4095, 32, 8, 128, coded=True)),
    "attention-prompt": ("Attention-23, H 32/8, causal, 1024 tokens, d 128", lambda: standard(1024, 0, 32, 8, 128, True)),
    "attention-step": ("the same, a token behind 4095, present a copy", lambda: standard(1, 4095, 32, 8, 128, True)),
}

# ---- Measuring ---------------------------------------------------------------------------------------------------------------


class Runner:
    """A session with everything bound."""
    def __init__(self, proto, rapt, threads, inputs, outputs, aliases, shapes, arith):
        self.session = models.session(proto, rapt, threads, arith=arith)
        if rapt and not rapt_onnxruntime.taken(self.session):
            raise RuntimeError("rapt did not take the node")
        self.binding = self.session.io_binding()
        self.values = {name: models.value(x.copy()) for name, x in inputs.items()}
        for name, x in self.values.items():
            self.binding.bind_ortvalue_input(name, x)
        for name in outputs:
            if name in aliases:
                self.values[name] = self.values[aliases[name]]
            else:
                self.values[name] = models.value(np.zeros(*shapes[name]))
            self.binding.bind_ortvalue_output(name, self.values[name])

    def run(self, times=1):
        """Seconds for each of so many calls."""
        start = time.perf_counter()
        for _ in range(times):
            self.session.run_with_iobinding(self.binding)
        return (time.perf_counter() - start) / times


def measure(case, kind, threads, options):
    op, inputs, attributes, outputs, aliases = CASES[case][1]()
    coded = "k_scale" in inputs
    if coded and kind != "f32":
        return None  # the CPU provider has int8 caches for f32 only
    inputs = {n: x.astype(TYPES[kind]) if x.dtype == np.float32 and not n.endswith("_scale") else x for n, x in inputs.items()}
    proto = models.model(op, inputs, outputs, attributes, opset=23)
    expected = models.run(models.session(proto, False, threads), inputs)
    shapes = {name: (x.shape, x.dtype) for name, x in zip(outputs, expected)}
    cpu, rapt = (Runner(proto, which, threads, inputs, outputs, aliases, shapes, "bf16" if kind == "bf16-dot" else "exact") for which in (False, True))
    error = 0.0
    for runner in cpu, rapt:
        runner.run()
        error = max(error, float(np.abs(runner.values["y"].numpy().astype(np.float64) - expected[0]).max()))
    if error > TOLERANCES[kind]:
        raise RuntimeError(f"{case} {kind}: the results differ by {error}")
    turns = {cpu: [], rapt: []}
    times = {runner: max(1, round(options.seconds / runner.run(2))) for runner in turns}
    for n in range(options.rounds):
        for runner in (cpu, rapt) if n % 2 else (rapt, cpu):
            time.sleep(0.02)  # in which the other's threads stop waiting for work
            runner.run()
            turns[runner].append(runner.run(times[runner]))
    ratios = [a / b for a, b in zip(turns[cpu], turns[rapt])]
    return {
        "case": case, "what": CASES[case][0], "type": kind, "threads": threads, "cpu_ms": 1e3 * statistics.median(turns[cpu]),
        "rapt_ms": 1e3 * statistics.median(turns[rapt]), "ratio": statistics.median(ratios), "least": min(ratios), "largest":
        max(ratios), "error": error
    }


# ---- The table ---------------------------------------------------------------------------------------------------------------


def cpu_name():
    with open("/proc/cpuinfo") as file:
        found = re.search(r"model name\s*:\s*(.*)", file.read())
    return found[1] if found else "unknown CPU"


def table(results, columns):
    """Markdown: a row for each case, in a cell rapt's milliseconds and how many times faster it is."""
    lines = [
        "| case |" + "".join(f" {kind}, {threads} thread{'s' * (threads > 1)} |" for kind, threads in columns),
        "|---|" + "---|" * len(columns)
    ]
    cells = {(r["case"], r["type"], r["threads"]): f" {r['rapt_ms']:.3g} ms, {r['ratio']:.2f} × |" for r in results}
    for case in dict.fromkeys(r["case"] for r in results):
        lines.append(f"| {CASES[case][0]} |" + "".join(cells.get((case, *column), " |") for column in columns))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each turn, at least a call")
    parser.add_argument("--json")
    parser.add_argument("--write", metavar="DOCUMENT.md")
    options = parser.parse_args()
    cases, kinds, threads = options.cases.split(","), options.types.split(","), [int(n) for n in options.threads.split(",")]
    if unknown := [x for x in cases if x not in CASES] + [x for x in kinds if x not in TYPES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join([*CASES, *TYPES])}")
    results = []
    for case in cases:
        for kind in kinds:
            for n in threads:
                if result := measure(case, kind, n, options):
                    results.append(result)
                    print(
                        f"{case} {kind} t{n}: rapt {result['rapt_ms']:.3f} ms, CPU provider {result['cpu_ms']:.3f} ms, "
                        f"{result['ratio']:.2f} ({result['least']:.2f} .. {result['largest']:.2f})", file=sys.stderr,
                        flush=True)
    where = f"{cpu_name()}, {time.strftime('%Y-%m-%d')}, onnxruntime {onnxruntime.__version__}."
    text = (f"{where} Each cell: rapt, and how many times faster than the CPU provider it is, in turns in one run.\n\n" +
            table(results, [(kind, n) for kind in kinds for n in threads]))
    print(text)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"where": where, "results": results}, indent=1) + "\n")
    if options.write:
        document = pathlib.Path(options.write)
        before, found, rest = document.read_text().partition(MARKS[0])
        _, end, after = rest.partition(MARKS[1])
        if not (found and end):
            sys.exit(f"bench.py: {document} has no marks {MARKS[0].strip()} and {MARKS[1]}")
        document.write_text(before + MARKS[0] + text + MARKS[1] + after)


if __name__ == "__main__":
    main()
