#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""widths.py RAPT-WIDTHS: no width of a head takes more work than the next multiple of 16, but those that are known. Counts the
instructions of rapt_run, since these have no clock that another program could disturb: by valgrind, and on kernels with AVX-512,
which it does not know, step by step (rapt-widths --count), 40,000 a second, so that there are problems of few rows alone.
bench/widths.c has the sweep over all kernels and widths by time."""
import subprocess
import sys

from callgrind import instructions
from tap import done, ok, skip

# Where the largest ratios are, of those that each way shows: kernel, type, rows, and the width beside its next multiple of 16.
BY_VALGRIND = [(isa, type_, rows, width)
               for isa in ("avx2", "sse41", "scalar")
               for type_, rows, width in (("f32", 1, 72), ("f32", 4, 100), ("f32", 8, 47), ("f16", 4, 104), ("bf16", 1, 120),
                                          ("bf16", 4, 61), ("int8", 40, 151), ("int8", 8, 47), ("int8-dot", 40, 63),
                                          ("bf16-dot", 40, 62))]
BY_VALGRIND += [("avx2", *case) for case in (("bf16", 1, 63), ("f8_e4m3", 4, 63), ("int8-dot", 1, 122), ("int8-dot", 8, 47),
                                             ("bf16-dot", 1, 63), ("bf16-dot", 4, 62))]
# avx512_vnni and avx512_bf16 inherit all but the integer arithmetic of the one and the bf16 arithmetic of the other.
BY_STEPS = [("avx512", "f32", 4, 63), ("avx512", "f16", 4, 63), ("avx512", "bf16", 4, 63), ("avx512", "f8_e4m3", 1, 63),
            ("avx512", "f8_e4m3", 4, 63), ("avx512", "f8_e5m2", 1, 63), ("avx512", "int8", 1, 63), ("avx512", "int8-dot", 1, 63),
            ("avx512", "bf16-dot", 1, 63), ("avx512_vnni", "int8-dot", 1, 127), ("avx512_bf16", "bf16-dot", 1, 127)]
LIMIT = 1.15
KNOWN = {("avx512", "f8_e4m3", 1, 63): 1.20}  # docs/experiments/features.md says why
CANNOT = 3  # the exit status of rapt-widths where the kernel cannot run, or no process can be traced


def by_valgrind(program, *case):
    """The instructions of rapt_run and what it calls, in all calls of --run; or why these cannot be had."""
    try:
        return instructions("rapt_run", program, "--run", *case)
    except subprocess.CalledProcessError as error:
        if error.returncode == CANNOT:
            return error.stderr.strip()
        raise


def by_steps(program, *case):
    """The same of one call with half as many heads."""
    ran = subprocess.run([program, "--count", *map(str, case)], check=False, capture_output=True, text=True)
    if ran.returncode == CANNOT:
        return ran.stderr.strip()
    ran.check_returncode()
    return int(ran.stdout)


def compare(count, program, isa, type_, rows, width):
    whole = width + 16 - width % 16
    counts = [count(program, isa, type_, rows, d) for d in (width, whole)]
    what = f"{isa}, {type_}, {rows} rows: {width} channels take "
    if isinstance(counts[0], str):
        skip(f"{what}no more instructions than {whole}", counts[0])
        return
    ratio = counts[0] / counts[1]
    known = KNOWN.get((isa, type_, rows, width))
    ok(LIMIT < ratio <= known if known else ratio <= LIMIT,
       f"{what}{ratio:.2f} times the instructions of {whole}{f', which is known: {LIMIT} to {known}' if known else ''}")


def main():
    program, same = sys.argv[1], ("avx2", "f32", 1, 72)
    for case in BY_VALGRIND:
        compare(by_valgrind, program, *case)
    calls, steps = 2 * 3, by_steps(program, *same)  # of --run: two heads, three times
    if isinstance(steps, str):
        skip("both ways to count agree", steps)
    else:
        ratio = calls * steps / by_valgrind(program, *same)
        # 1.013 on an AMD EPYC (Zen 4); valgrind's CPU may choose other functions of the C library.
        ok(abs(ratio - 1) < 0.1, f"both ways to count agree: step by step {ratio:.3f} times as many as by valgrind")
    for case in BY_STEPS:
        compare(by_steps, program, *case)
    done()


main()
