#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py and layers.py with rapt alone, in TAP. Usage: peers_smoke.py path/to/librapt.so

Small cases, each peer's least number of turns, on one thread and on two: what they take from the headers by name (structs, fields,
functions) must be there, the results right, and table.py must find its way in what they write. Needs NumPy."""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import tap
from tap import ok

try:
    import numpy  # which both need
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit()


def run(script, *arguments):
    """The exit status, and all that it said."""
    done = subprocess.run([sys.executable, HERE / script, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def rows(folder):
    """The cases that have a rate, and the results that were left out."""
    report = json.loads((folder / "peers.json").read_text())
    return {row["case"] for row in report["results"] if row["rate"] > 0}, report["left_out"]


for script, cases in ("peers.py", ["P1"]), ("layers.py", ["L128-384x384", "MHA-384"]):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        status, said = run(script, "--library", sys.argv[1], "--out", name, "--peers", "rapt", "--cases", ",".join(cases),
                           "--types", "f32", "--seconds", "0", "--rounds", "1")
        ok(status == 0 and rows(folder) == (set(cases), []), f"{script} --peers rapt --cases {','.join(cases)}", said)
        if status == 0:
            status, said = run("table.py", folder / "peers.json")
            ok(status == 0 and all(f"| {case} |" in said for case in cases), f"table.py of what {script} writes", said)
tap.done()
