#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scaling.py RAPT-TASKS: how attention would scale to more threads than this machine has. rapt-tasks times each task of a call;
here the tasks are handed to threads as rapt_run_parallel does (a free thread takes the next one) and as rapt_run_share does (thread i
takes tasks i, i + n, ...), with a barrier after each phase, and no faster than the socket's memory can read. Prints a table of
efficiencies: the time of one thread, divided by the threads and by their time. Where this machine has the threads, the time that it
really takes stands beside. With --plot FILE draws them (needs matplotlib)."""
import argparse
import heapq
import subprocess
import sys

SOCKETS = {"server": 12 * 38.4e9, "desktop": 80e9}  # bytes a second: 12 channels of DDR5-4800; 2 channels
BARRIER = 1.0e-6  # seconds for each doubling of the threads; two threads that meet in rapt_pool_for: 0.8 to 1.2 us (Granite Rapids)
CALL = 0.15e-6  # what a call checks before the first task, which nothing shares (docs/experiments/calls.md)


def by_list(tasks, threads):
    """The time until all tasks are done, if a free thread takes the next one."""
    free = [0.0] * threads
    for seconds in tasks:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def by_share(tasks, threads):
    """The same, if thread i takes tasks i, i + threads, ..."""
    return max(sum(tasks[i::threads]) for i in range(min(threads, len(tasks))))


def total(phases, threads, schedule, moved, bandwidth):
    barrier = BARRIER * (threads - 1).bit_length()
    seconds = CALL + sum(schedule(tasks, threads) + (barrier if threads > 1 else 0) for tasks in phases)
    return max(seconds, moved / bandwidth)


def measure(program, case, batch, kind, threads):
    """For each number of threads: bytes, the real seconds or 0, and the seconds of the tasks of each phase."""
    out = subprocess.run([program, case, str(batch), kind, *map(str, threads)], check=True, capture_output=True, text=True).stdout
    result = {}
    for line in out.splitlines():
        n, moved, real, tasks = line.split(" ")
        result[int(n)] = (float(moved), float(real), [[float(x) for x in phase.split(",")] for phase in tasks.split("|")])
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="RAPT-TASKS", help="ninja -C build bench/rapt-tasks")
    parser.add_argument("--cases", default="P1,P2,P3,P4,P5,P6,D1,D2,D3,D4,D5")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--type", default="f32")
    parser.add_argument("--threads", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--socket", choices=SOCKETS, default="server", help="whose memory is the ceiling")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    threads = [int(n) for n in args.threads.split(",")]
    if threads[0] != 1:
        sys.exit("scaling.py: --threads begins with 1, the time that all others are compared with")
    bandwidth = SOCKETS[args.socket]
    print(f"| case, batch | {' | '.join(str(n) for n in threads[1:])} | really |")
    print(f"|---|{'---|' * len(threads)}")
    curves = {}
    for case in args.cases.split(","):
        for batch in args.batch.split(","):
            measured = measure(args.program, case, batch, args.type, threads)
            moved, real_one, phases = measured[1]
            one = total(phases, 1, by_list, 0, bandwidth)
            cells, really, curve = [], [f"1: {real_one / one:.2f}"], []
            for n in threads[1:]:
                moved, real, phases = measured[n]
                free, fixed = (total(phases, n, schedule, moved, bandwidth) for schedule in (by_list, by_share))
                limit = "m" if free <= moved / bandwidth * 1.001 else "t" if min(map(len, phases[:1])) < n else ""
                cells.append(f"{100 * one / n / free:.0f}{limit}, {100 * one / n / fixed:.0f}")
                curve.append(one / free)
                if real:
                    really.append(f"{n}: {100 * real_one / n / real:.0f}")
            curves[f"{case} x {batch}"] = curve
            print(f"| {case}, {batch} | {' | '.join(cells)} | {', '.join(really)} |", flush=True)
    print("\nPer cent of the ideal, by rapt_run_parallel and by rapt_run_share. m: memory is the limit; t: there are fewer tasks than"
          " threads. Really: 1: the time of a call beside the sum of its tasks; n: what n threads of this machine reached.")
    if args.plot:
        from matplotlib import pyplot
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for name, curve in curves.items():
            axes.plot(threads[1:], curve, marker="o", label=name)
        axes.plot(threads, threads, color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="threads", ylabel="times as fast as one", title=f"{args.type}, memory of a {args.socket}")
        axes.legend(fontsize=6, ncol=3)
        figure.savefig(args.plot, dpi=120)


main()
