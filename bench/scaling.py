#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scaling.py RAPT-TASKS: how attention would scale to more threads than this machine has. rapt-tasks times each task of a call;
here the tasks are handed to threads as rapt_run_parallel does (a free thread takes the next one) and as rapt_run_share does (each
takes one of the next n, by its number or, every other time, from the end), with a barrier after each phase, and no faster than the
socket's memory can read. Prints a table of efficiencies: the time of one thread, divided by the threads and by their time; for one
number of threads how much of their time is idle, and which share of the call is serial; and where this machine has the threads, the
efficiency that they really had. With --work, pairs of a query and a key stand for seconds: how far the tasks of the first phase fill
the threads, the same at each time. With --write FILE the table goes between that document's two marks, too; with --plot FILE all of
it is drawn (needs matplotlib)."""
import argparse
import heapq
import itertools
import pathlib
import re
import subprocess
import sys
import typing

SOCKETS = {"server": 12 * 38.4e9, "desktop": 80e9}  # bytes a second: 12 channels of DDR5-4800; 2 channels
BARRIER = 1.0e-6  # seconds for each doubling of the threads; two threads that meet in rapt_pool_for: 0.8 to 1.2 us (Granite Rapids)
MARKS = re.compile(r"(<!-- scaling\.py:[^\n]*-->\n).*?(<!-- /scaling\.py -->)", re.S)
CALL = 0.15e-6  # what a call checks before the first task, which nothing shares (docs/experiments/calls.md)


def by_list(tasks, threads):
    """When each thread is done, if a free thread takes the next task."""
    free = [0.0] * threads
    for seconds in tasks:
        heapq.heapreplace(free, free[0] + seconds)
    return free


def by_share(tasks, threads):
    """The same, if each thread takes one of the next `threads` tasks, every other time counted from the last of them."""
    turns = [tasks[i:i + threads] + [0.0] * (i + threads - len(tasks)) for i in range(0, len(tasks), threads)]
    return list(map(sum, zip(*(turn[::-1] if n % 2 else turn for n, turn in enumerate(turns)))))


class Call(typing.NamedTuple):
    """What a call takes; with --work, what its tasks alone do."""
    seconds: float
    idle: float  # the share of the threads' time in which they run no task, but wait for the last ones, for each other or for memory
    serial: float  # the share of the call's time in which at most one thread runs a task, but for waiting for memory
    bound: bool  # memory is the limit


def model(phases, threads, schedule, moved, args):
    """The call whose tasks take these seconds and which moves so many bytes."""
    ends = [sorted(schedule(tasks, threads)) for tasks in phases]
    fixed = 0.0 if args.work else CALL + len(phases) * BARRIER * (threads - 1).bit_length()
    computed = fixed + sum(end[-1] for end in ends)
    read = 0.0 if args.work else moved / SOCKETS[args.socket]
    seconds = max(computed, read)
    alone = sum(end[-1] - end[-2] for end in ends) if threads > 1 else computed - fixed
    return Call(seconds, 1 - sum(map(sum, ends)) / (threads * seconds), (fixed + alone) / seconds, read > computed)


def measure(args, case, batch, threads):
    """For each number of threads: bytes, the real seconds or 0, and the seconds of the tasks of each phase."""
    command = [args.program, *(["--work"] if args.work else []), case, batch, args.type, *map(str, threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = {}
    for line in out.splitlines():
        n, moved, real, tasks = line.split(" ")
        result[int(n)] = (float(moved), float(real), [[float(x) for x in phase.split(",")] for phase in tasks.split("|")])
    return result


def plot(args, threads, curves):
    """Draws efficiencies, and idle time and serial share as rapt_run_parallel has them: columns for prefill and decode, a colour for each
    case, a line style for each batch."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scaling"})
    styles = dict(zip(args.batch, ("-", "--", ":", "-.")))
    columns = {"prefill": [case for case in args.cases if case[0] == "P"], "decode": [case for case in args.cases if case[0] == "D"]}
    columns = {name: cases for name, cases in columns.items() if cases}
    rows = {"% of the ideal, rapt_run_parallel": 0, "% of the ideal, rapt_run_share": 1, "% of the threads' time idle": 2,
            "% of the call serial": 3}
    figure, axes = pyplot.subplots(len(rows), len(columns), figsize=(5 * len(columns), 12), layout="constrained", sharey="row",
                                   squeeze=False)
    for (label, value), line in zip(rows.items(), axes):
        for ax, (name, cases) in zip(line, columns.items()):
            for n, case in enumerate(cases):
                for batch in args.batch:
                    ax.plot(threads[1:], [point[value] for point in curves[case, batch]], styles[batch], color=f"C{n}",
                            label=case if batch == args.batch[0] else None)
            for batch in args.batch:
                ax.plot([], [], styles[batch], color="grey", label=f"batch {batch}")
            ax.set_xscale("log", base=2)
            ax.set_xticks(threads[1:], threads[1:])
            ax.set(title=name if value == 0 else None, xlabel="threads" if value == len(rows) - 1 else None)
            ax.grid(alpha=0.4)
        line[0].set(ylabel=label, ylim=(0, None))  # of all that share it
    for ax in axes[0]:
        ax.legend(fontsize="small", ncol=2)
    figure.suptitle(f"{args.type}, " + ("pairs of a query and a key" if args.work else f"memory of a {args.socket}"), fontsize="medium")
    figure.savefig(args.plot, dpi=110, metadata={"Date": None} if args.plot.endswith(".svg") else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="RAPT-TASKS", help="ninja -C build bench/rapt-tasks")
    parser.add_argument("--cases", type=lambda text: text.split(","), default="P1,P2,P3,P4,P5,P6,D1,D2,D3,D4,D5,D6")
    parser.add_argument("--batch", type=lambda text: text.split(","), default="1,8,32", help="up to four")
    parser.add_argument("--type", default="f32")
    parser.add_argument("--threads", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--socket", choices=SOCKETS, default="server", help="whose memory is the ceiling")
    parser.add_argument("--at", type=int, default=64, help="the threads whose idle time and serial share the table has")
    parser.add_argument("--work", action="store_true", help="count pairs instead of seconds")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE", help="put the table between that document's marks")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    threads = [int(n) for n in args.threads.split(",")]
    if threads[0] != 1:
        sys.exit("scaling.py: --threads begins with 1, the time that all others are compared with")
    if args.at not in threads[1:]:
        sys.exit(f"scaling.py: --at {args.at}: not one of the --threads above 1")
    document = args.write and args.write.read_text(encoding="utf-8")
    if args.write and len(MARKS.findall(document)) != 1:
        sys.exit(f"scaling.py: {args.write}: no marks of scaling.py, or more than one pair")
    table = [f"| case, batch | {' | '.join(str(n) for n in threads[1:])} | {args.at}: idle, serial | really |",
             f"|---|{'---|' * (len(threads) + 1)}"]
    print(*table, sep="\n")
    curves = {}
    for case, batch in itertools.product(args.cases, args.batch):
        measured = measure(args, case, batch, threads)
        _, real_one, phases = measured[1]
        one = model(phases, 1, by_list, 0, args).seconds
        cells, really, curve, detail = [], [f"1: {real_one / one:.2f}"] if real_one else [], [], ""
        for n in threads[1:]:
            moved, real, phases = measured[n]
            free, fixed = (model(phases, n, schedule, moved, args) for schedule in (by_list, by_share))
            limit = "m" if free.bound else "t" if len(phases[0]) < n else ""
            ideal = 100 * one / n
            cells.append(f"{ideal / free.seconds:.0f}{limit}, {ideal / fixed.seconds:.0f}")
            curve.append((ideal / free.seconds, ideal / fixed.seconds, 100 * free.idle, 100 * free.serial))
            if n == args.at:
                detail = f"{100 * free.idle:.0f}, {100 * free.serial:.1f}"
            if real:
                really.append(f"{n}: {100 * real_one / n / real:.0f}")
        curves[case, batch] = curve
        table.append(f"| {case}, {batch} | {' | '.join(cells)} | {detail} | {', '.join(really)} |")
        print(table[-1], flush=True)
    said = ("\nPer cent of the ideal, by rapt_run_parallel and by rapt_run_share.\nm: memory is the limit; t: there are fewer tasks than"
            f" threads.\n{args.at}: per cent of the threads' time in which they run no task, and of the call's time in which at most one"
            " does, but for waiting for memory.\nReally: 1: the time of a call beside the sum of its tasks; n: what n threads of this"
            " machine reached.")
    print(said)
    if args.write:
        text = "\n".join([*table, said, ""])
        args.write.write_text(MARKS.sub(lambda found: found[1] + "\n" + text + "\n" + found[2], document), encoding="utf-8")
    if args.plot:
        plot(args, threads, curves)


main()
