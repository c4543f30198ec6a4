# SPDX-License-Identifier: Apache-2.0
"""What peers.py and layers.py do when they are called."""
import argparse
import concurrent.futures
import datetime
import functools
import importlib.metadata
import itertools
import multiprocessing
import os
import pathlib
import platform
import sys
import tempfile

from beside import machine
from beside import report as reports
from beside.measure import measure, start_worker
from beside.values import BITS

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Read when NumPy and PyTorch load, so a worker process gets them from its parent.
THREAD_VARIABLES = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"


def note(why):
    print(f"{os.path.basename(sys.argv[0])}: {why}", file=sys.stderr, flush=True)


def fail(why):
    note(why)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def names_of(allowed, convert=str):
    def parse(text):
        names = [convert(name) for name in text.split(",")]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(map(str, allowed))}")
        return list(dict.fromkeys(names))
    return parse


def parse_options(suite, description):
    cpus = sorted(os.sched_getaffinity(0))
    cases = {case.name: case for case in suite.cases}
    parser = Parser(description=description, allow_abbrev=False)
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR",
                        help="folder for the results, and during the run for outputs (of attention up to 1 GB)")
    parser.add_argument("--cases", type=names_of(cases), default=list(cases), metavar="NAME,...", help=f"of {', '.join(cases)} (default: all)")
    parser.add_argument("--types", type=names_of(BITS), default=list(BITS), metavar="f32,...", help="default: f32,f16,bf16")
    parser.add_argument("--threads", type=names_of(range(1, len(cpus) + 1), int), default=[n for n in (1, 2) if n <= len(cpus)],
                        metavar="N,...", help="default: 1,2")
    parser.add_argument("--peers", type=names_of(suite.peers), default=list(suite.peers), metavar="NAME,...",
                        help=f"of {', '.join(suite.peers)} (default: all)")
    parser.add_argument("--seconds", type=float, default=3, help="at least this long for a case, all peers together (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="at least this many turns of each peer (default: 5)")
    parser.add_argument("--library", default=str(ROOT / "build/dispatch/librapt.so"), help="default: build/dispatch/librapt.so")
    parser.add_argument("--bench", metavar="PATH", help="rapt-bench, which measures the limits; without it no shares")
    options = parser.parse_args()
    options.cases = [cases[name] for name in options.cases]
    if options.rounds < 1:
        fail("--rounds: at least 1")
    return options, cpus


def absence(peer, versions):
    """Why this peer cannot take part, or None, and then the versions of what it is made of are known."""
    try:
        found = {package: importlib.metadata.version(package) for package in peer.packages}
    except importlib.metadata.PackageNotFoundError as e:
        return f"the Python package {e.name} is not installed"
    why = peer.unfit()
    if not why:
        versions |= found
    return why


def present(suite, options):
    """The versions of the peers that are here, and why the others are not, which are taken off the list."""
    versions, missing = {"Python": platform.python_version()}, {}
    for name in list(options.peers):
        title, peer, _ = suite.peers[name]
        why = absence(peer, versions)
        if why:
            note(f"{title} is left out: {why}")
            missing[name] = why
            options.peers.remove(name)
    ours = next((suite.peers[name] for name in options.peers if suite.peers[name][1].ours), None)
    if ours:
        try:
            rapt = ours[1](options, 1, **ours[2])
            versions["rapt"] = f"{rapt.version} ({rapt.isa(None)})"
        except Exception as e:  # it cannot be loaded, or not run here
            fail(f"--library: {e}")
    if not options.peers:
        fail("no peer is left")
    if options.bench and not os.access(options.bench, os.X_OK):
        fail(f"--bench: {options.bench} cannot be run")
    return versions, missing


def rows_of(suite, options, cpus):
    """Each case's results and those left out, of all numbers of threads."""
    for threads in options.threads:
        os.sched_setaffinity(0, cpus[:threads])
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, spawn, start_worker, (suite, options, threads)) as pool:
            for case, kind in itertools.product(options.cases, options.types):
                try:
                    results, left_out = pool.submit(measure, case, kind).result()
                except Exception as e:  # the worker died, or its limits could not be measured; what is done is written
                    fail(f"{case.name} {kind}, threads {threads}: {e}")
                yield results, left_out
                said = (f"{row['peer']} {row['rate']:.3g}" + ", other bytes" * bool(reports.differing([row])) for row in results)
                print(f"{case.name} {kind} t{threads}:", *said, results[0]["unit"] if results else "nobody", flush=True)


def broken(suite, report):
    """What rapt promises and has not kept, or could not do: lines."""
    ours = [name for name, (_, peer, _) in suite.peers.items() if peer.ours]
    lines = [f"{row['peer']} failed at {row['case']} {row['type']}, threads {row['threads']}: {row['why']}"
             for row in report["left_out"] if row["peer"] in ours and row["failed"]]
    return lines + [f"{row['peer']} has other bytes at {row['case']} {row['type']}: {line}"
                    for row in report["results"] if row["ours"] for line in reports.differing([row])]


def main(suite, description):
    options, cpus = parse_options(suite, description)
    versions, missing = present(suite, options)
    torch = any("torch" in suite.peers[name][1].packages for name in options.peers)
    report = {"cpu": machine.cpu_name(), "system": platform.platform(), "date": str(datetime.date.today()), "versions": versions,
              "missing": missing, "torch": machine.of_torch() if torch else {}, "results": [], "left_out": []}
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        reports.write(suite, report, options.out)
    except OSError as e:
        fail(f"--out: {e}")
    place = functools.partial(reports.place, suite)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        options.outputs = pathlib.Path(folder)
        for results, left_out in rows_of(suite, options, cpus):
            report["results"] = sorted(report["results"] + results, key=place)
            report["left_out"] = sorted(report["left_out"] + left_out, key=place)
            reports.write(suite, report, options.out)
    try:
        reports.plot(suite, report, options.out / "peers.png")
    except ImportError:
        note("peers.png is left out: the Python package matplotlib is not installed")
    lines = broken(suite, report)
    for line in lines:
        note(line)
    return 1 if lines else 0
