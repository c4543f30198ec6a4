#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/turns.py BEFORE AFTER FILTER [--rounds N] [--min-time S]: two builds of rapt-bench in turns, case by case, so that a machine
whose speed drifts is no matter. For each case that both have it prints the ratio of the fastest times, before / after (above 1: faster
now), which other programs on the machine disturb least, and of the ratios of each round the median, the least and the largest; at the
end the geometric means."""
import argparse
import json
import statistics
import subprocess


def names(program, pattern):
    listed = subprocess.run([program, "--benchmark_list_tests", f"--benchmark_filter={pattern}"], capture_output=True, text=True,
                            check=True)
    return listed.stdout.split()


def seconds(program, case, min_time):
    run = subprocess.run([program, f"--benchmark_filter=^{case}$", f"--benchmark_min_time={min_time}",
                          "--benchmark_format=json"], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)["benchmarks"][0]["real_time"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("filter")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--min-time", type=float, default=0.2, help="seconds for each measurement")
    options = parser.parse_args()
    programs = options.before, options.after
    listed = [names(program, options.filter) for program in programs]
    fastest, medians = [], []
    print(f"{'case':<34} fastest  median  (least .. most), {options.rounds} rounds", flush=True)
    for case in listed[0]:
        if case not in listed[1]:
            continue
        times = [], []
        for n in range(options.rounds):
            for i in (0, 1) if n % 2 else (1, 0):
                times[i].append(seconds(programs[i], case, options.min_time))
        ratios = [before / after for before, after in zip(*times)]
        fastest.append(min(times[0]) / min(times[1]))
        medians.append(statistics.median(ratios))
        print(f"{case:<34} {fastest[-1]:.3f}    {medians[-1]:.3f}   ({min(ratios):.3f} .. {max(ratios):.3f})", flush=True)
    if medians:
        print(f"{'geometric means':<34} {statistics.geometric_mean(fastest):.3f}    {statistics.geometric_mean(medians):.3f}")


if __name__ == "__main__":
    main()
