# SPDX-License-Identifier: Apache-2.0
"""What the machine can do, as rapt-bench measures it, and which instruction sets PyTorch, its oneDNN and its MKL say that they use."""
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import typing

from beside import Unsupported

HERE = pathlib.Path(__file__).resolve().parent


def cpu_name():
    try:
        found = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


class Limits(typing.NamedTuple):
    """Of all threads together; matrix_peak is None on a machine without a matrix unit or instructions of bf16."""
    f32_peak: float  # GFLOP/s
    matrix_peak: float | None
    bandwidth: float  # GB/s

    def best(self, other):
        """What the machine did at one of two times, when less else ran on it."""
        return Limits(*(a and max(a, b) for a, b in zip(self, other)))

    def allowed(self, problem, work):
        """The rates that each limit alone would allow, where work is what a call's rate counts."""
        peaks = {"f32": self.f32_peak, "matrix": self.matrix_peak}
        allowed = {name: peak and work / problem.operations * peak for name, peak in peaks.items()}
        return allowed | {"reading": work / problem.bytes * self.bandwidth}


def measured(bench, threads):
    """The counters of the benchmark limits (machine.c) of rapt-bench, the program at this path, measured now."""
    command = [bench, f"--benchmark_filter=^limits/t{threads}$", "--benchmark_min_time=0", "--benchmark_format=json"]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode:
        raise Unsupported(f"{bench} does not measure the limits of {threads} threads")
    return json.loads(done.stdout)["benchmarks"][0]


def limits(bench, threads):
    counters = measured(bench, threads)
    return Limits(counters["f32_peak"], counters.get("matrix_peak"), counters["GBs"])


def of_libraries(said):
    """What the verbose modes of oneDNN and MKL say: versions and instruction sets, and the functions that have run."""
    patterns = {"oneDNN": r"^onednn_verbose.*,info,oneDNN (\S+)", "oneDNN isa": r"^onednn_verbose.*,info,cpu,isa:(.*)$",
                "MKL": r"^MKL_VERBOSE (oneMKL .*), Lnx"}
    found = {name: re.search(pattern, said, re.MULTILINE) for name, pattern in patterns.items()}
    ran = [f"oneDNN {what} {how}" for what, how in re.findall(r"^onednn_verbose.*,exec,cpu,(\w+),([^,]+)", said, re.MULTILINE)]
    ran += [f"MKL {function}" for function in re.findall(r"^MKL_VERBOSE (\w+)\(", said, re.MULTILINE)]
    return {name: match[1] for name, match in found.items() if match}, sorted(set(ran))


def of_torch():
    """What PyTorch says of itself, and its oneDNN and MKL while a linear layer and an attention of bf16 run, each in a process of its own
    since those libraries read their variables once, and speak only where they are called."""
    told = {}
    for what in "linear", "attention":
        done = subprocess.run([sys.executable, HERE / "torch_isa.py", what], check=False, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=os.environ | {"ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"})
        own = re.search(r"^PyTorch: (.*)$", done.stdout, re.MULTILINE)
        if done.returncode or not own:
            return {"failed": (done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]}
        libraries, ran = of_libraries(done.stdout)
        told |= json.loads(own[1]) | libraries | {what: ran}
    return told
