#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""field.py [PICTURE.svg]: draws the README's picture, by default docs/field.svg: how many times as fast attention is with rapt inside
engines as with their own.

Its numbers are those of the documents' tables, which the benches wrote: nothing is measured here, and a table that changes changes
the picture. tests/host/docs.py compares the file with what this makes. Needs nothing but Python."""
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "attention"))
import draw

PROMPT, STEP = "prefill, 1024 tokens", "decode, one token after 4096"
COLOURS = {PROMPT: "q", STEP: "k"}
CAPTION = ("Xeon with AMX, two threads, 2026-11-22 to 2026-11-28; 32 query heads, 8 of K and V, head dimension 128.",
           "llama.cpp's prefill: 128 new tokens after 4096. * both in bf16 on the matrix unit; there vLLM ran on one thread, and its prefill",
           "is compared with the faster of vLLM and PyTorch. Sources of the numbers: docs/results.md.")


def text_of(document):
    return " ".join((ROOT / document).read_text(encoding="utf-8").split())


def cell(document, section, row, column):
    """A cell of the first table after a heading or phrase, by the beginning of its row."""
    text = (ROOT / document).read_text(encoding="utf-8")
    lines = text[text.index(section):].splitlines()
    found = next(line for line in lines if line.startswith(f"| {row} |"))
    return found.split("|")[1 + column].strip()


def second(pair):
    """Of a cell of one and two threads, the second number."""
    return float(pair.split(", ")[1])


def times(of):
    """Of a cell with a ratio in it, the ratio."""
    return float(re.search(r"([\d.]+) ×", of)[1])


def said(document, pattern):
    """Numbers in a sentence, in order."""
    return [float(number) for number in re.search(pattern, text_of(document)).groups()]


def bars():
    """(peer, {case: ratio})."""
    prompt, step = "causal, 32 heads on 8, 1024 tokens of 128 channels", "decode, 32 heads on 8, 4096 keys of 128 channels"
    engines, ort, vllm, ggml = "docs/engines.md", *(f"integrations/{name}/README.md" for name in ("onnxruntime", "vllm", "ggml"))
    vllm_prompt = said("docs/experiments/aims.md", r"P1 to P6 [\d.]+, [\d.]+, ([\d.]+), [\d.]+, [\d.]+, [\d.]+; two threads")
    ours, theirs = said("docs/experiments/bf16.md", r"D1 to D4 get ([\d.]+), .* vLLM, whose caches are packed beforehand, ([\d.]+),")
    found = [("PyTorch, f32", second(cell(engines, "### PyTorch", prompt, 1)), second(cell(engines, "### PyTorch", step, 1))),
             ("PyTorch, bf16*", second(cell(engines, "### PyTorch", prompt, 4)), second(cell(engines, "### PyTorch", step, 4))),
             ("ONNX Runtime, f32", times(cell(ort, "## Speed", "GroupQueryAttention, H 32/8, prompt of 1024, d 128, rotary", 2)),
              times(cell(ort, "## Speed", "the same, a token behind 4095", 2))),
             ("JAX, f32", second(cell(engines, "### JAX", prompt, 1)), second(cell(engines, "### JAX", step, 1))),
             ("vLLM, f32", times(cell(vllm, "## Speed", "prompt of 1024 tokens", 2)),
              times(cell(vllm, "## Speed", "decode, a sequence of 4096 tokens", 2))),
             ("vLLM, bf16*", *vllm_prompt, ours / theirs)]
    for kind in ("f16", "q8_0"):
        found.append((f"llama.cpp, {kind}", times(cell(ggml, "## Speed", f"{kind}, depth 4096", 2)),
                      times(cell(ggml, "## Speed", f"{kind}, depth 4096", 4))))
    return [(peer, {PROMPT: of_prompt, STEP: of_step}) for peer, of_prompt, of_step in found]


def picture():
    rows, left, right, top, height = bars(), 150, 700, 74, 40
    bottom = top + height * len(rows)
    title = "Speedup of rapt over each engine's own attention"
    p = draw.Picture(bottom + 88, title)
    p.text(20, 30, title, "t b")

    def at(ratio):
        return left + (right - left) * (math.log2(ratio) + 1) / 6  # from 1/2 to 32

    for n, case in enumerate((PROMPT, STEP)):
        p.rect(20 + 210 * n, 44, 12, 12, COLOURS[case])
        p.text(38 + 210 * n, 54, case)
    for power in range(-1, 6):
        x = at(2.0 ** power)
        p.line([(x, top), (x, bottom)], "li n h" if power == 0 else "lg n")
        p.text(x, bottom + 18, f"{draw.number(2.0 ** power)} ×", "c m s")
    for n, (peer, ratios) in enumerate(rows):
        y = top + height * n + 4
        p.text(left - 14, y + 20, peer, "e")
        for m, case in enumerate((PROMPT, STEP)):
            x = at(ratios[case])
            p.rect(min(x, at(1)), y + 16 * m, abs(x - at(1)), 14, COLOURS[case])
            p.text(max(x, at(1)) + 6, y + 16 * m + 11, f"{ratios[case]:.{1 if ratios[case] >= 10 else 2}f} ×", "s")
    for n, line in enumerate(CAPTION):
        p.text(20, bottom + 42 + 15 * n, line, "s m")
    return p.svg().replace("made by draw.py", "made by bench/field.py")


def main():
    if len(sys.argv) > 2 or any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else ROOT / "docs" / "field.svg"
    path.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
