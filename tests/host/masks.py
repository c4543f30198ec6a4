#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""masks.py RAPT: a thread compares a mask once for the heads that share it, and one that is constant over blocks costs little. Counts
instructions; what the reading of a mask costs besides is measured by rapt-bench (F-stream-4096)."""
import sys
import tempfile
from pathlib import Path

from callgrind import instructions
from npy import frame, header
from tap import done, ok

HEADS = 8


class Problem:
    """Queries, keys and values of HEADS heads, all 0, since only the work matters."""

    def __init__(self, program, folder, queries, keys, channels):
        self.program, self.folder, self.queries, self.keys = program, Path(folder), queries, keys
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            data = bytes(HEADS * rows * channels * 4)
            (self.folder / f"{name}.npy").write_bytes(frame(header((HEADS, rows, channels))) + data)

    def count(self, isa, *options):
        """Instructions of a call on one thread."""
        inputs = [word for name in "qkv" for word in (f"--{name}", self.folder / f"{name}.npy")]
        return instructions("rapt_run_parallel", self.program, "run", "--isa", isa, "--threads", 1, "--out", self.folder / "o.npy",
                            *inputs, *options)

    def with_mask(self, isa, rows, heads=None):
        """The same with a mask of these rows, for all heads or, a copy each, for every one."""
        shape = (self.queries, self.keys) if heads is None else (heads, self.queries, self.keys)
        mask = self.folder / "mask.npy"
        mask.write_bytes(frame(header(shape, "|b1")) + b"".join(rows) * (heads or 1))
        return self.count(isa, "--mask", mask)


def compared_once(program, folder):
    """With a mask that admits no key, little is left but reading it, and what each row of the output costs."""
    problem = Problem(program, folder, 128, 4096, 4)
    rows = [bytes(problem.keys)] * problem.queries
    for isa in ("avx2", "sse41", "scalar"):
        ratio = problem.with_mask(isa, rows) / problem.with_mask(isa, rows, HEADS)
        # 0.32 (avx2), 0.24 and 0.24 with 1 of 8 comparisons, 1.00 with all
        ok(ratio <= 0.4, f"{isa}: {HEADS} heads that share a mask take {ratio:.2f} times the instructions of as many with their own")


def beside_window(program, folder):
    """The first keys and a window by a mask, beside the window alone. On sse41, since valgrind is slow at fused multiply-adds."""
    window, first = 512, 4
    problem = Problem(program, folder, 2048, 2048, 64)
    rows = [bytes(j <= i and (i - j < window or j < first) for j in range(problem.keys)) for i in range(problem.queries)]
    ratio = problem.with_mask("sse41", rows) / problem.count("sse41", "--causal", "--window", f"{window - 1},-1")
    # 1.022; 1.034 with a mask for each head
    ok(ratio <= 1.03, f"sse41: the first keys and a window by a mask take {ratio:.3f} times the instructions of the window")


def main():
    with tempfile.TemporaryDirectory() as folder:
        compared_once(sys.argv[1], folder)
        beside_window(sys.argv[1], folder)
    done()


main()
