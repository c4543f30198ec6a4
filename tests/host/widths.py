#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""widths.py RAPT-WIDTHS: no width of a head takes more work than the next multiple of 16. Counts the instructions of rapt_run by
valgrind, which has no clock that another program could disturb, and no AVX-512: hence avx2, sse41 and scalar. bench/widths.c has the
sweep over all kernels and widths by time."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Where the largest ratios are, of those that valgrind shows: kernel, type, rows, and the width beside its next multiple of 16.
CASES = [(isa, type_, rows, width)
         for isa in ("avx2", "sse41", "scalar")
         for type_, rows, width in (("f32", 1, 72), ("f32", 4, 100), ("f32", 8, 47), ("f16", 4, 104), ("bf16", 1, 120),
                                    ("bf16", 4, 61), ("int8", 40, 151), ("int8", 8, 47), ("int8-dot", 40, 63), ("bf16-dot", 40, 62))]
CASES += [("avx2", *case) for case in (("bf16", 1, 63), ("f8_e4m3", 4, 63), ("int8-dot", 1, 122), ("int8-dot", 8, 47),
                                       ("bf16-dot", 1, 63), ("bf16-dot", 4, 62))]
LIMIT = 1.15


def instructions(program, isa, type_, rows, width):
    """The instructions of rapt_run and what it calls."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        subprocess.run(["valgrind", "-q", "--tool=callgrind", "--toggle-collect=rapt_run", f"--callgrind-out-file={out}", program,
                        "--run", isa, type_, str(rows), str(width)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(encoding="utf-8"), re.MULTILINE).group(1))


def main():
    program, failed = sys.argv[1], 0
    for number, (isa, type_, rows, width) in enumerate(CASES, 1):
        whole = width + 16 - width % 16
        ratio = instructions(program, isa, type_, rows, width) / instructions(program, isa, type_, rows, whole)
        failed += ratio > LIMIT
        print(f"{'ok' if ratio <= LIMIT else 'not ok'} {number} - {isa}, {type_}, {rows} rows: {width} channels take {ratio:.2f} times"
              f" the instructions of {whole}", flush=True)
    print(f"1..{len(CASES)}")
    sys.exit(failed > 0)


main()
