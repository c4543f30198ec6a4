#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""engines.py [FOLDER...]: draws docs/engines.png, how many times as fast attention is with rapt inside engines as with their own, for
each CPU a row, from docs/engines.json. First it puts there what these have measured in turns on a CPU and written to its FOLDER, in
place of that CPU's earlier figures:

    bench/torch_sdpa.py --out FOLDER
    bench/jax_attention.py --json FOLDER/jax.json
    integrations/ggml/bench --json FOLDER/ggml.json
    integrations/onnxruntime/bench/bench.py --json FOLDER/onnxruntime.json
    integrations/vllm/bench.py --json FOLDER/vllm.json

Every bar is of 32 heads on 8, of 128 channels, with two threads; bf16 arithmetic has a lighter one. Needs matplotlib."""
import json
import pathlib
import statistics
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
THREADS = 2
BF16_DOT = "bf16 arithmetic"
COLOURS = {"f32": "C0", "f16": "C1", "bf16": "C2", BF16_DOT: "#95d095", "int8": "C4", "q8_0": "C4", "q4_0": "C3"}
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "bf16-dot": BF16_DOT}
# For each engine its file, the part of it, and what is drawn of that: a prompt's case and a step's.
PROMPT, STEP = "a prompt of 1024 tokens", "a token behind 4096"
ENGINES = {
    "PyTorch": ("torch_sdpa.json", "rows", {PROMPT: ("P3",), STEP: ("D1",)}),
    "JAX": ("jax.json", "results", {PROMPT: ("P3",), STEP: ("D1",)}),
    "ONNX Runtime": ("onnxruntime.json", "results", {PROMPT: ("gqa-prompt",), STEP: ("gqa-step", "gqa-step-int8")}),
    "vLLM": ("vllm.json", "results", {PROMPT: ("prompt",), STEP: ("decode",)}),
    "llama.cpp": ("ggml.json", "operations", {PROMPT: ("prefill",), STEP: ("decode",)}),
}
DEPTH = 4096  # of llama.cpp's: its prompt is 128 tokens after that many


def ratio(row):
    if "ratio" in row:
        return row["ratio"]
    return statistics.median(theirs / ours for ours, theirs in zip(row["seconds"]["rapt"], row["seconds"]["jax.nn"]))


def bars(folder, panel):
    """Of all that a panel shows, {engine: {type: ratio}}."""
    found = {}
    for engine, (name, part, cases) in ENGINES.items():
        for row in json.loads((folder / name).read_text())[part]:
            case = row.get("case") or row["kind"]
            if case not in cases[panel] or row["threads"] != THREADS or row.get("depth", DEPTH) != DEPTH:
                continue
            kind = "int8" if case.endswith("-int8") else SHORT.get(row["type"], row["type"])
            found.setdefault(engine, {})[kind] = round(ratio(row), 2)
    return found


def draw(ax, some, most, least):
    """The bars of a panel, from `least` to `most` times."""
    at, ticks, y = [], {}, 0.0
    for n, (engine, _, _) in enumerate(some):
        y += 1.7 if n and engine != some[n - 1][0] else 1.0
        at.append(y)
        ticks.setdefault(engine, []).append(y)
    for y, (_, kind, r) in zip(at, some):
        ax.barh(y, r - 1, left=1, height=0.85, color=COLOURS[kind])
        ax.annotate(f"{kind}  {r:.2g} ×" if r < 10 else f"{kind}  {r:.0f} ×", (max(r, 1), y), (4, 0), textcoords="offset points",
                    va="center", fontsize="small")
    ax.set_yticks([statistics.mean(places) for places in ticks.values()], ticks)
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    ax.set_xscale("log", base=2)
    ax.set_xlim(least * 0.9, most * 2.4)
    powers = [2 ** n for n in range(-1, 7) if 2 ** n <= most * 1.5]
    ax.set_xticks(powers, [f"{power:g} ×" for power in powers])
    ax.axvline(1, color="black", linewidth=1)
    ax.grid(axis="x", alpha=0.4)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)


def add(figures, folder):
    """Puts the figures of a folder in place of those of its CPU."""
    cpu = json.loads((folder / "torch_sdpa.json").read_text())["cpu"]
    figures[cpu] = {panel: bars(folder, panel) for panel in (PROMPT, STEP)}


def plot(figures, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figures = {cpu: {panel: [(engine, kind, r) for engine, kinds in some.items() for kind, r in kinds.items()]
                     for panel, some in panels.items()} for cpu, panels in figures.items()}
    ratios = [r for panels in figures.values() for some in panels.values() for _, _, r in some]
    figure, axes = pyplot.subplots(len(figures), 2, figsize=(11, 1 + 4.6 * len(figures)), layout="constrained", sharex=True,
                                   squeeze=False)
    for row, (cpu, panels) in zip(axes, figures.items()):
        row[0].set_ylabel(cpu, fontsize="small")
        for ax, (panel, some) in zip(row, panels.items()):
            draw(ax, some, max(ratios), min(0.5, *ratios))
            ax.set_title(panel, fontsize="medium")
    figure.suptitle("Attention inside engines: rapt's speed over the engine's own", fontsize="large")
    figure.supxlabel(f"32 heads on 8, 128 channels, {THREADS} threads; llama.cpp's prompt: 128 tokens behind {DEPTH}", fontsize="small")
    figure.savefig(path, dpi=110)


def main():
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit("engines.py: matplotlib is not installed: pip install matplotlib")
    try:
        figures = json.loads((DOCS / "engines.json").read_text())
        for folder in sys.argv[1:]:
            add(figures, pathlib.Path(folder))
        (DOCS / "engines.json").write_text(json.dumps(figures, indent=1) + "\n")
        plot(figures, DOCS / "engines.png")
    except OSError as e:
        sys.exit(f"engines.py: {e.filename}: {e.strerror}")


if __name__ == "__main__":
    main()
