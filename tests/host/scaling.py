#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scaling.py RAPT-TASKS: bench/scaling.py counts, of tasks that a program of this test makes up, what was reckoned by hand; bench/tasks.c
prints what it promises; and both refuse wrong arguments. No time is looked at."""
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import done, ok, skip

SCALING = Path(__file__).resolve().parent.parent.parent / "bench/scaling.py"
# Case: for each number of threads what rapt-tasks says of it, bytes, the real seconds, and the tasks of each phase.
MADE_UP = {
    "P1": dict.fromkeys((1, 2), "0 0 5,1,3,1"),
    "P2": dict.fromkeys((1, 2), "0 0 3,1"),
    "P3": dict.fromkeys((1, 2, 4, 8), "0 0 0.00001,0.00001,0.00001,0.00001|0.000005,0.000005"),
    "D1": {1: "4.608e12 16.8 4,4,4,4", 2: "4.608e12 10 4,4,4,4", 4: "4.608e12 0 4,4,4,4"},
}
# Arguments, and what the row says: efficiencies, then what is idle and serial at --at, then what was real.
ROWS = [
    # A free thread takes the next: 5 beside 1 + 3 + 1. Shares: 5 + 1, the second round from its end, beside 1 + 3; 10 / 2 / 6.
    ("P1 --threads 1,2 --at 2", "100, 83 | 0, 0.0 |"),
    # 3 beside 1: of 6 seconds 2 are idle, and of 3 seconds 2 have one task; 4 / 2 / 3.
    ("P2 --threads 1,2 --at 2", "67, 67 | 33, 66.7 |"),
    # In us: 50 + 0.15 of one thread; barriers of 2 x 1, 2 x 2, 2 x 3 and a call's 0.15 beside 25, 15 and 15 of tasks.
    ("P3 --threads 1,2,4,8 --at 2", "92, 92 | 65, 65 | 30t, 30 | 8, 7.9 |"),
    ("P3 --threads 1,2,4,8 --at 4", "92, 92 | 65, 65 | 30t, 30 | 35, 21.7 |"),
    ("P3 --threads 1,2,4,8 --at 2 --work", "100, 100 | 83, 83 | 42t, 42 | 0, 0.0 |"),
    # Memory takes 10 s at 460.8 GB/s, 57.6 at 80; 16 s of tasks take 8 on two threads, 4 on four. A call of 16.8 s took 10 by two threads.
    ("D1 --threads 1,2,4 --at 2", "80m, 80 | 40m, 40 | 20, 0.0 | 1: 1.05, 2: 84"),
    ("D1 --threads 1,2,4 --at 2 --socket desktop", "14m, 14 | 7m, 7 | 86, 0.0 | 1: 1.05, 2: 84"),
    ("D1 --threads 1,2,4 --at 2 --work", "100, 100 | 100, 100 | 0, 0.0 | 1: 1.05, 2: 84"),
]
WRONG = {"P1 --threads 2,4": "--threads begins with 1", "P1 --threads 1,2 --at 4": "--at 4: not one of the --threads above 1",
         "P1 --threads 1,2 --at 2 --write /dev/null": "no marks of scaling.py", "P1 --socket phone": "invalid choice",
         "P1 --threads 1,2 --at 2 --batch 2": "returned non-zero exit status 3"}
WRONG_TASKS = ["", "P1 1 f32", "P7 1 f32 1", "P1 0 f32 1", "P1 1 f33 1", "P1 1 f32 0", "P1 1 f32 1 x", "--pools P1 1 f32 1 1 1 1 1 1 1 1 1",
               "--other P1 1 f32 1"]


def run(program, arguments):
    return subprocess.run([program, *arguments.split()], check=False, text=True, capture_output=True)


def fake(folder):
    """A program that answers as rapt-tasks does, batch 1 of f32 alone."""
    program = Path(folder) / "tasks"
    program.write_text(f"""#!{sys.executable}
import sys
words = [word for word in sys.argv[1:] if word != "--work"]
if words[1:3] != ["1", "f32"]:
    sys.exit(3)
for n in words[3:]:
    print(n, {MADE_UP!r}[words[0]][int(n)])
""", encoding="utf-8")
    program.chmod(0o755)
    return program


def scaling(program, arguments):
    case, *rest = arguments.split()
    return run(sys.executable, " ".join([str(SCALING), str(program), "--batch 1 --cases", case, *rest]))


def reckoned(folder):
    program = fake(folder)
    for arguments, wanted in ROWS:
        ran = scaling(program, arguments)
        row = f"| {arguments.split()[0]}, 1 | {wanted} |" if wanted[-1] != "|" else f"| {arguments.split()[0]}, 1 | {wanted}  |"
        ok(ran.returncode == 0 and f"\n{row}\n" in ran.stdout, f"{arguments}: {wanted}", ran.stdout + ran.stderr)
    for arguments, why in WRONG.items():
        ran = scaling(program, arguments)
        ok(ran.returncode != 0 and why in ran.stderr, f"{arguments}: {why}", ran.stdout + ran.stderr)
    document = Path(folder) / "document.md"
    document.write_text("before\n<!-- scaling.py: here -->\nold\n<!-- /scaling.py -->\nafter\n", encoding="utf-8")
    ran = scaling(program, f"P2 --threads 1,2 --at 2 --write {document}")
    ok(document.read_text(encoding="utf-8") == f"before\n<!-- scaling.py: here -->\n\n{ran.stdout}\n<!-- /scaling.py -->\nafter\n",
       "--write puts what is printed between the marks, and leaves the rest", document.read_text(encoding="utf-8") + ran.stderr)
    picture = Path(folder) / "plot.svg"
    ran = scaling(program, f"P3 --threads 1,2,4,8 --at 2 --plot {picture}")
    if "No module named 'matplotlib'" in ran.stderr:
        skip("--plot draws a picture", "matplotlib is not installed")
    else:
        drawn = picture.read_text(encoding="utf-8") if picture.exists() else ""
        ok(ran.returncode == 0 and all(text in drawn for text in ("rapt_run_share", "idle", "serial")), "--plot draws a picture",
           ran.stderr)


def printed(program):
    """What rapt-tasks prints of P1 (12 heads of 128 queries on 128 keys of 64 channels) and of D6 (32 heads on 8, 1024 keys of 128)."""
    for case, moved, pairs in (("P1", 4 * 12 * 128 * 64 * 4, 12 * 128 * 128), ("D6", 2 * (32 + 8 * 1024) * 128 * 4, 32 * 1024)):
        for option in ("", "--work "):
            ran = run(program, f"{option}{case} 1 f32 1 3 64")
            lines = re.findall(r"^(\d+) (\d+) ([\d.]+) ([\d.,|]+)$", ran.stdout, re.MULTILINE)
            tasks = [[[float(task) for task in phase.split(",")] for phase in line[3].split("|")] for line in lines]
            good = (ran.returncode == 0 and [line[:2] for line in lines] == [(n, str(moved)) for n in ("1", "3", "64")]
                    and (option or os.cpu_count() >= 64 or float(lines[2][2]) == 0))
            if option:
                good = good and all(math.fsum(phases[0]) == pairs and sum(map(sum, phases[1:])) == 0 for phases in tasks)
                good = good and all(float(line[2]) == 0 for line in lines) and len(tasks[2][0]) > len(tasks[0][0])
            else:
                good = good and float(lines[0][2]) > 0 and all(min(map(min, phases)) >= 0 < sum(map(sum, phases)) for phases in tasks)
            what = "all pairs, in more tasks for more threads" if option else "times of all tasks"
            ok(good, f"rapt-tasks {option}{case}: bytes, and {what}", ran.stdout[:2000] + ran.stderr)
    ran = run(program, "--pools P1 1 f32 1 2")
    ok(re.fullmatch(r"1 0\.\d+\n2 0\.\d+\n", ran.stdout), "rapt-tasks --pools: a time for each number of threads", ran.stdout + ran.stderr)
    for arguments in WRONG_TASKS:
        ran = run(program, arguments)
        ok(ran.returncode == 2 and "usage: " in ran.stderr and not ran.stdout, f"rapt-tasks {arguments or 'alone'}: is refused",
           ran.stdout + ran.stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        reckoned(folder)
    printed(sys.argv[1])
    done()


main()
