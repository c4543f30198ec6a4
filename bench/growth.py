#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time and workspace against the sequence length: runs the cases G512 to G32768 of rapt-bench, and writes growth.md and
growth.png. Needs matplotlib."""
import argparse
import collections
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys

BAND = 0.1  # how far the time per attended pair may be from the median, as a share of it
SCORE_BYTES = 4  # of the matrix that is never held


def fail(why):
    print(f"growth.py: {why}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def parse_options():
    bench = pathlib.Path(__file__).resolve().parent.parent / "build/bench/rapt-bench"
    parser = Parser(prog="growth.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--bench", default=str(bench), metavar="PATH", help="default: build/bench/rapt-bench")
    parser.add_argument("--isa", metavar="NAME", help="default: the best that this machine has")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs, whose medians count (default: 5)")
    options = parser.parse_args()
    if options.rounds < 1:
        fail("--rounds: at least 1")
    return options


def run(bench, *flags):
    try:
        done = subprocess.run([bench, *flags], text=True, capture_output=True)
    except OSError as e:
        fail(f"{bench}: {e.strerror}")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        fail(f"{bench}: {said[-1] if said else f'status {done.returncode}'}")
    return done.stdout


def best_isa(bench):
    """The first that is listed."""
    return run(bench, "--benchmark_list_tests", "--benchmark_filter=^G512/f32/[^/]*/t1$").split("/")[2]


def measure(bench, isa, rounds):
    """By length: the medians of ps_per_pair and peak_share, and the workspace. Round by round, so that what comes and goes on the
    machine does not meet one length only."""
    found = collections.defaultdict(list)
    for _ in range(rounds):
        out = run(bench, f"--benchmark_filter=^G[0-9]+/f32/{isa}/t1$", "--benchmark_format=json")
        for case in json.loads(out)["benchmarks"]:
            found[int(re.match("G([0-9]+)/", case["name"])[1])].append(case)
    return {length: {key: statistics.median(case[key] for case in cases) for key in ("ps_per_pair", "peak_share", "workspace")}
            for length, cases in sorted(found.items())}


def markdown(title, rows):
    middle = statistics.median(row["ps_per_pair"] for row in rows.values())
    lines = [title + ".", "",
             "| S | ns per attended pair | from the median | share of the FMA peak | workspace, kB | S × S scores, kB |",
             "|--:|--:|--:|--:|--:|--:|"]
    lines += [f"| {length} | {row['ps_per_pair'] / 1000:.3f} | {row['ps_per_pair'] / middle - 1:+.1%} | {row['peak_share']:.1%} | "
              f"{row['workspace'] / 1000:.0f} | {length * length * SCORE_BYTES / 1000:.0f} |" for length, row in rows.items()]
    return "\n".join(lines) + "\n"


def plot(pyplot, title, rows, path):
    lengths = list(rows)
    times = [row["ps_per_pair"] / 1000 for row in rows.values()]
    middle = statistics.median(times)
    figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(8, 6.5), layout="constrained")
    above.axhspan(middle * (1 - BAND), middle * (1 + BAND), color="C0", alpha=0.12, label=f"median ± {BAND:.0%}")
    above.plot(lengths, times, "o-", color="C0", label="rapt")
    above.set_ylim(0, 1.4 * max(times))
    above.set_ylabel("ns per attended pair")
    below.plot(lengths, [row["workspace"] for row in rows.values()], "o-", color="C0", label="rapt")
    below.plot(lengths, [length * length * SCORE_BYTES for length in lengths], "--", color="C1", label="a matrix of S × S scores")
    below.set_yscale("log")
    below.set_ylabel("workspace, bytes")
    below.set_xscale("log", base=2)
    below.set_xticks(lengths, [str(length) for length in lengths])
    below.set_xlabel("S, queries and keys")
    for ax in above, below:
        ax.grid(alpha=0.4)
        ax.legend()
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=110)


def cpu_name():
    try:
        found = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown CPU"


def main():
    options = parse_options()
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is not installed: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        fail(f"{options.out}: {e.strerror}")
    isa = options.isa or best_isa(options.bench)
    rows = measure(options.bench, isa, options.rounds)
    title = f"One head, d 64, f32, full attention, {isa}, one thread: {cpu_name()}, {datetime.date.today()}"
    table = markdown(title, rows)
    (options.out / "growth.md").write_text(table)
    plot(pyplot, title, rows, options.out / "growth.png")
    print(table, end="")


main()
