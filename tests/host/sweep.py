#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sweep.py RAPT-SWEEP: bench/sweep.c prints what it promises, draws the same problems from a seed, and refuses wrong arguments. No
time is looked at."""
import re
import subprocess
import sys

import tap
from tap import ok

PROBLEM = re.compile(r"^ *(\d+) +[\d.]+ +[\d.]+ +[\d.]+ +(?:peak|bytes|calls) +(.+)$", re.MULTILINE)
SUMMARY = r"time / model: median [\d.]+, 90 % [\d.]+, 99 % [\d.]+, largest [\d.]+\n index +ratio +GFLOP/s +us +limit +kernel, problem\n"
WRONG = {"--problems": "a number from 1 on, not nothing", "--problems 0": "a number from 1 on, not 0", "--seed -1": "from 0 on, not -1",
         "--worst 1x": "not 1x", "--only 9999999999": "not 9999999999", "--type f33": "the name of a type, not f33",
         "--all": "unknown option --all", "kernel": "no kernel kernel can run here"}


def run(*arguments):
    return subprocess.run([sys.argv[1], *arguments], check=False, text=True, capture_output=True)


def problems(*arguments):
    """The problems that are printed, by their numbers, with kernel and path."""
    return dict(PROBLEM.findall(run(*arguments).stdout))


def main():
    done = run("--problems", "1")
    kernels = re.findall(r"^(\w+): peak [\d.]+ GFLOP/s, ", done.stdout, re.MULTILINE)
    ok(done.returncode == 0 and kernels and all(f"\n{isa}, seed 1: 1 problems, 0 refused\n" in done.stdout for isa in kernels),
       f"each kernel that can run here has its limits and its summary: {', '.join(kernels)}", done.stdout + done.stderr)
    isa = kernels[0]
    done = run("--problems", "6", "--worst", "6", isa)
    six = dict(PROBLEM.findall(done.stdout))
    ok(re.search(SUMMARY, done.stdout) and sorted(six) == list("012345") and done.returncode == 0,
       "the ratios and the worst problems are listed", done.stdout)
    ok(re.search(r"^ +problems +with +without +of worst\n(  .{20} +\d+ +[\d.]+ +[\d.]+ +\d+\n)+\Z", done.stdout, re.MULTILINE),
       "traits are listed", done.stdout)
    again = problems("--problems", "6", "--worst", "6", isa)
    ok(again == six, "a seed gives the same problems again", again)
    few = problems("--problems", "3", "--worst", "2", isa)
    ok(len(few) == 2 and few.items() <= six.items(), "--worst 2 lists two; of fewer problems, the same ones", few)
    other = problems("--seed", "2", "--problems", "6", "--worst", "6", isa)
    ok(sorted(other) == sorted(six) and not set(other.values()) & set(six.values()), "another seed gives others", other)
    done = run("--only", "4", isa)
    ok(dict(PROBLEM.findall(done.stdout)) == {"4": six["4"]} and "\n  model " in done.stdout and "\n  plan: " in done.stdout,
       "--only runs one again, and prints its model and its plan", done.stdout)
    typed = problems("--problems", "40", "--type", "f16", "--worst", "40", isa)
    ok(typed and all(", f16, batch " in words for words in typed.values()), f"--type f16 runs {len(typed)} of 40", typed)
    for arguments, why in WRONG.items():
        done = run(*arguments.split())
        ok(done.returncode == 2 and why in done.stderr and not done.stdout, f"{arguments}: {why}", done.stdout + done.stderr)
    tap.done()


main()
