#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""masks.py RAPT: a mask that all heads share is compared for one of them, and one that is constant over blocks costs little. Counts
instructions by valgrind, since these have no clock that another program could disturb; what the reading of a mask costs besides is
measured by rapt-bench (F-stream-4096)."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

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

    def instructions(self, isa, *options):
        """Those of the call, whose output goes nowhere."""
        out = self.folder / "out"
        inputs = [word for name in "qkv" for word in (f"--{name}", self.folder / f"{name}.npy")]
        subprocess.run(["valgrind", "-q", "--tool=callgrind", "--toggle-collect=rapt_run_parallel", f"--callgrind-out-file={out}",
                        self.program, "run", "--isa", isa, "--out", self.folder / "o.npy", *inputs, *options],
                       check=True, capture_output=True)
        return int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(encoding="utf-8"), re.MULTILINE).group(1))

    def with_mask(self, isa, rows, heads=None):
        """The same with a mask of these rows, for all heads or, a copy each, for every one."""
        shape = (self.queries, self.keys) if heads is None else (heads, self.queries, self.keys)
        mask = self.folder / "mask.npy"
        mask.write_bytes(frame(header(shape, "|b1")) + b"".join(rows) * (heads or 1))
        return self.instructions(isa, "--mask", mask)


def compared_once(program, folder):
    """With a mask that admits no key, little is left but reading it, and what each row of the output costs."""
    problem = Problem(program, folder, 128, 4096, 4)
    rows = [bytes(problem.keys)] * problem.queries
    for isa in ("avx2", "sse41", "scalar"):
        ratio = problem.with_mask(isa, rows) / problem.with_mask(isa, rows, HEADS)
        ok(ratio <= 0.35, f"{isa}: {HEADS} heads that share a mask take {ratio:.2f} times the instructions of as many with their own")


def beside_window(program, folder):
    """The first keys and a window by a mask, beside the window alone. On sse41, since valgrind is slow at fused multiply-adds."""
    window, first = 512, 4
    problem = Problem(program, folder, 2048, 2048, 64)
    rows = [bytes(j <= i and (i - j < window or j < first) for j in range(problem.keys)) for i in range(problem.queries)]
    ratio = problem.with_mask("sse41", rows) / problem.instructions("sse41", "--causal", "--window", f"{window - 1},-1")
    ok(ratio <= 1.05, f"sse41: the first keys and a window by a mask take {ratio:.3f} times the instructions of the window")


def main():
    with tempfile.TemporaryDirectory() as folder:
        compared_once(sys.argv[1], folder)
        beside_window(sys.argv[1], folder)
    done()


main()
