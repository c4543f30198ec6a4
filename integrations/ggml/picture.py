#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""picture.py FIGURES.json PICTURE.svg: draws how many times faster than ggml's own the attention is, from the figures of
integrations/ggml/bench, in the style of docs/attention.md."""
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/attention"))
from draw import WIDTH, Picture

COLOURS = {"f16": "q", "q8_0": "k", "q4_0": "v"}
LEFT, RIGHT, BAR, GAP = 190, WIDTH - 60, 13, 10


def main(figures: Path, target: Path) -> None:
    found = json.loads(figures.read_text())
    threads = max(r["threads"] for r in found["operations"])
    parts = [(kind, results, title) for results, kinds in (
        (found["operations"], (("prefill", f"attention, {found['prompt']} queries"), ("decode", "attention, one query"))),
        (found["models"], (("prompt", f"llama.cpp, prompt of {found['prompt']} tokens"), ("answer", "llama.cpp, answer"))))
        for kind, title in kinds]
    rows = []
    for kind, results, title in parts:
        for depth in sorted({r["depth"] for r in results}):
            rows.append((title, depth, [r for r in results if
                                         (r["kind"], r["depth"], r["threads"]) == (kind, depth, threads) and r["type"] in COLOURS]))
    height = 74 + sum(len(bars) * BAR + GAP for _, _, bars in rows) + 34 * len(parts) + 30
    most = max(r["ratio"] for _, _, bars in rows for r in bars)
    least = min(1, *(r["ratio"] for _, _, bars in rows for r in bars))
    low, high = math.log2(least), math.log2(max(most, 2))

    def x(ratio: float) -> float:
        return LEFT + (RIGHT - LEFT) * (math.log2(ratio) - low) / (high - low)

    picture = Picture(height, "How many times faster than ggml's own attention")
    picture.text(20, 28, "How many times faster than ggml's own attention", "t b")
    picture.text(20, 46, f"{found['cpu']}, {threads} threads, in turns in one run", "s m")
    for i, (name, colour) in enumerate(COLOURS.items()):
        picture.rect(WIDTH - 210 + 66 * i, 37, 10, 10, colour)
        picture.text(WIDTH - 196 + 66 * i, 46, name, "s")
    for power in range(math.ceil(low), math.floor(high) + 1):
        picture.line([(x(2.0**power), 60), (x(2.0**power), height - 26)], "lg n")
        picture.text(x(2.0**power), height - 12, f"{2.0**power:g} ×", "s c m")
    y, last = 60, None
    for title, depth, bars in rows:
        if title != last:
            y += 22
            picture.text(20, y, title, "b")
            y, last = y + 12, title
        picture.text(LEFT - 12, y + len(bars) * BAR / 2 + 4, f"depth {depth}", "e s")
        for r in bars:
            begin, end = sorted((x(1), x(r["ratio"])))
            picture.rect(begin, y, max(end - begin, 1), BAR - 2, COLOURS[r["type"]])
            picture.text(end + 5, y + BAR - 3.5, f"{r['ratio']:.3g}", "s")
            y += BAR
        y += GAP
    target.write_text(picture.svg(), encoding="utf-8")


main(*map(Path, sys.argv[1:]))
