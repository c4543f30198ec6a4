#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the command does where the system fails it, in TAP. Usage: faults.py path/to/rapt path/to/failing.so

Each allocation, thread, and call for a file fails in turn, one a run (tests/host/failing.c); then come memory and disks of any size,
standard streams that are full or closed, and signals at any moment. After each the manual holds: exit status 2 and one line on
standard error, or all is as without the fault; and a file is as it was, or complete."""
import errno
import math
import os
import random
import re
import resource
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time

import tap
from npy import frame, header
from tap import ok

RAPT, FAILING = (os.path.abspath(a) for a in sys.argv[1:3])
REPORT = "report"
OUTPUTS = "O.npy", "L.npy"
OLD = b"old"


def run(*args, env=None, **kw):
    kw = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "timeout": 300, **kw}
    p = subprocess.run([RAPT, *args], env={**os.environ, **(env or {})}, **kw)
    return p.returncode, p.stdout or b"", (p.stderr or b"").decode(errors="replace")


def save(path, shape, descr="<f4"):
    """Numbers from -1 to 1."""
    count, order, letter = math.prod(shape), descr[0].replace("|", "<"), {"f4": "f", "f2": "e", "b1": "?"}[descr[1:]]
    values = (random.choice((True, False)) if letter == "?" else random.uniform(-1, 1) for _ in range(count))
    with open(path, "wb") as f:
        f.write(frame(header(shape, descr)) + struct.pack(f"{order}{count}{letter}", *values))


def contents(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def files():
    return {name: contents(name) for name in OUTPUTS}


def put(old):
    """The outputs are as they were before: OLD, or not there."""
    for name in OUTPUTS:
        if old is not None:
            with open(name, "wb") as f:
                f.write(old)
        elif os.path.exists(name):
            os.unlink(name)


def untouched(old):
    return files() == dict.fromkeys(OUTPUTS, old) and not temporaries()


def temporaries():
    return [n for n in os.listdir(".") if ".tmp" in n]


def told(err):
    """True if it is one line, after what tune tells of its progress."""
    lines = err.splitlines()
    return bool(lines) and err.endswith("\n") and re.match("(rapt|check)[a-z ]*: ", lines[-1]) and (
        len(lines) == 1 or re.match(r"\w+, \d threads, \d cases, ", lines[0]))


QKV = "--q", "Q.npy", "--k", "K.npy", "--v", "V.npy"
RUN = "run", *QKV, "--out", "O.npy"
BIG = "run", "--q", "W.npy", "--k", "W.npy", "--v", "W.npy", "--out", "O.npy"
MANY = (*RUN, "--lse", "L.npy", "--mask", "M.npy", "--bias", "B.npy", "--alibi", "A.npy", "--sinks", "A.npy", "--kv-lens", "5,9",
        "--page-size", "4", "--kv-type", "int8", "--q-type", "bf16")
RAGGED = ("run", "--q", "R.npy", "--k", "R.npy", "--v", "R.npy", "--cu-q", "0,2,7", "--cu-k", "0,3,7", *RUN[-2:])
CHECK = "check", "--quick", "--isa", "scalar", "--seed", "1", "--tap"


# ---- Every call, one by one ------------------------------------------------------------------------------------------------


def fault(kind, n, *args):
    """What rapt then does, the name of the call that failed, if there was one, and how many blocks it holds at its end."""
    env = {"LD_PRELOAD": FAILING, "RAPT_FAIL": f"{kind}:{n}", "RAPT_FAIL_REPORT": os.path.abspath(REPORT)}
    code, out, err = run(*args, env=env)
    lines = (contents(REPORT) or b"").decode().splitlines()
    names = [line for line in lines if not line.endswith(" blocks")]
    blocks = [int(line.split()[0]) for line in lines if line.endswith(" blocks")]
    return (code, out, err), names[0] if names else None, blocks[0] if blocks else None


def each_call(what, args, kinds, same=lambda out: out, leaks=False, most=None):
    """kinds: how many calls must have failed, at least. same: what of standard output is so whenever all is well. leaks: whether
    memory may be held at the end, but for standard output's. most: only this many calls of a kind, where all would take too long."""
    put(None)
    code, out, err = run(*args)
    want, want_files = same(out), files()
    ok(code == 0, f"{what}: without a fault", (code, out, err))
    for kind, least in kinds.items():
        wrong, failed, harmless = [], {}, 0
        for old in (None, OLD) if "--out" in args else (None, ):
            for n in range(most or 1 << 40):
                put(old)
                (code, out, err), name, blocks = fault(kind, n, *args)
                leaked = not leaks and (blocks is None or blocks > bool(out))
                if not name:
                    wrong += [("no fault", blocks)] if leaked else []
                    break
                failed[name] = failed.get(name, 0) + 1
                if code == 0:
                    harmless += 1
                    good = same(out) == want and files() == {f: old if c is None else c for f, c in want_files.items()}
                else:
                    # Of two outputs the second may not get its name when the first already has it.
                    second = name == "rename" and contents("L.npy") == old and contents("O.npy") == want_files["O.npy"]
                    good = code == 2 and told(err) and (files() == dict.fromkeys(OUTPUTS, old) or second)
                if not good or temporaries() or leaked:
                    wrong.append((n, name, code, err, blocks, temporaries()))
                for temporary in temporaries():
                    os.unlink(temporary)
        names = ", ".join(f"{k} {v}" for k, v in sorted(failed.items()))
        ok(not wrong and sum(failed.values()) >= least, f"{what}: {kind}, one by one ({names}; without harm: {harmless})",
           "\n".join(map(str, wrong or [f"{least} were to fail"])))


def test_each_call():
    each_call("run", RUN, {"memory": 9, "threads": 3, "files": 12})
    each_call("run, everything, three threads", (*MANY, "--threads", "3"), {"memory": 22, "threads": 8, "files": 30}, leaks=True)
    each_call("run, everything", MANY, {"memory": 22})
    each_call("run, ragged", RAGGED, {"memory": 8, "files": 12})
    each_call("run, to standard output", (*RUN[:-1], "/dev/stdout"), {"memory": 5, "files": 10})
    for args in ("info", ), ("info", "--json"), ("--version", ), ("run", "--help"), ("check", "--self"), ("check", "--list"):
        each_call(shlex.join(args), args, {"memory": 2, "threads": 3})
    each_call("tune", ("tune", "--isa", "scalar", "--seconds", "1", "--threads", "2", "--cases", "few-8,linear-1-short"),
              {"memory": 8, "threads": 4}, same=lambda out: out.split()[:1], leaks=True, most=16)


def test_checks_calls():
    """Cases that take memory and threads in every way that checks do."""
    for case in "merge-parts", "gathered", "nan-masked", "errors-features", "layout-packed":
        each_call(f"check --case {case}", (*CHECK, "--case", case), {"memory": 30}, leaks=True)
    for case, kinds, most in ("conversions", {"memory": 15}, 40), ("same-threads", {"memory": 40, "threads": 30}, 60):
        each_call(f"check --case {case}", (*CHECK, "--case", case), kinds, leaks=True, most=most) # which repeats itself


# ---- Limits ----------------------------------------------------------------------------------------------------------------


def limited(*limits, ignored=None):
    def set_limits():
        for what, most in limits:
            resource.setrlimit(what, (most, most))
        if ignored:
            signal.signal(ignored, signal.SIG_IGN)

    return {"preexec_fn": set_limits, "restore_signals": False}


def test_limits():
    put(None)
    code, _, err = run(*MANY)
    want = files()
    ok(code == 0, "the outputs", err)

    def each(what, args, values, limit, least, **kw):
        """As long as it fails it leaves the outputs alone, and at last it does not."""
        wrong, failures = [], 0
        for i, value in enumerate(values):
            old = (None, OLD)[i % 2]
            put(old)
            code, _, err = run(*args, **limited((limit, value), **kw))
            if code == 0 and files() == want and not temporaries():
                break
            failures += 1
            if not (code == 2 and told(err) and untouched(old)):
                wrong.append((value, code, err, temporaries()))
        ok(not wrong and code == 0 and failures >= least, f"{what}: {failures} failed before one was enough",
           "\n".join(map(str, wrong)))

    size = max(len(c) for c in want.values())
    each("files of limited size", MANY, range(0, size + 129, 128), resource.RLIMIT_FSIZE, 5, ignored=signal.SIGXFSZ)
    # The first is enough for the program to start.
    each("limited memory for 64 threads", (*MANY, "--threads", "64"), range(16 << 20, 2 << 30, 20 << 20), resource.RLIMIT_AS, 10)


def test_full_disk():
    """A file system that is full, where one can be mounted."""
    script = ('mkdir small && mount -t tmpfs -o size=8k,nr_inodes=8 tmpfs small && echo old >small/O.npy && '
              '{ "$@"; echo "exit $?"; ls -A small; cat small/O.npy; }')
    wrapper = ["unshare", "-rm", "sh", "-c", script, "sh"]
    p = subprocess.run([*wrapper, RAPT, *BIG[:-1], "small/O.npy"], capture_output=True)
    err = p.stderr.decode()
    if b"exit" not in p.stdout:
        tap.skip("a full file system", err.strip().replace("\n", "; "))
        return
    ok(p.stdout == b"exit 2\nO.npy\nold\n" and "No space left" in err and err.count("\n") == 1, "a full file system",
       (p.stdout, err))


# ---- Standard streams ------------------------------------------------------------------------------------------------------

PRINTING = (("--help", ), ("--version", ), ("info", ), ("info", "--json"), ("check", "--list"), ("check", "--self"),
            (*CHECK, "--case", "empty"), ("run", *QKV, "--time"), (*RUN, "--lse", "L.npy", "--time"),
            ("tune", "--isa", "scalar", "--seconds", "1", "--cases", "linear-1-short"))


def closed(*descriptors):
    def close():
        for d in descriptors:
            os.close(d)

    return {"preexec_fn": close, "stdout": None, "stderr": None if 2 in descriptors else subprocess.PIPE}


def test_streams():
    for args in PRINTING:
        def refused(what, result, number, signalled=False):
            code, _, err = result
            said = err.splitlines()[-1:] == [f"rapt: standard output: {os.strerror(number)}"]
            ok((code == -signal.SIGPIPE if signalled else code == 2 and said) and untouched(OLD), f"{what}: {shlex.join(args)}",
               (code, err, files()))

        put(OLD)
        with open("/dev/full", "wb") as full:
            refused("standard output is full", run(*args, stdout=full), errno.ENOSPC)
        put(OLD)
        refused("standard output is closed", run(*args, **closed(1)), errno.EBADF)
        for ignored in False, True:
            there, end = os.pipe()
            os.close(there)
            put(OLD)

            def how():
                signal.signal(signal.SIGPIPE, signal.SIG_IGN if ignored else signal.SIG_DFL)

            refused(f"nobody reads standard output, SIGPIPE {'ignored' if ignored else 'deadly'}",
                    run(*args, stdout=end, preexec_fn=how, restore_signals=False), errno.EPIPE, not ignored)
            os.close(end)
    put(None)
    run(*MANY)
    want = files()
    for descriptors in (0, ), (1, ), (2, ), (0, 1, 2):
        put(OLD)
        code, _, _ = run(*MANY, env={"RAPT_VERBOSE": "1"}, **closed(*descriptors))
        ok(code == 0 and files() == want and not temporaries(), f"descriptors that are closed: {descriptors}", code)
    there, end = os.pipe()
    os.close(there)
    put(OLD)
    for s, expected in (signal.SIG_DFL, -signal.SIGPIPE), (signal.SIG_IGN, 2):
        code, _, err = run(*BIG[:-1], "/dev/stdout", "--lse", "L.npy", stdout=end, restore_signals=False,
                           preexec_fn=lambda: signal.signal(signal.SIGPIPE, s))
        ok(code == expected and untouched(OLD), f"nobody reads the output: {expected}", (code, err, files()))
    os.close(end)


# ---- Signals ---------------------------------------------------------------------------------------------------------------


def heeding():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for s in signal.SIGINT, signal.SIGTERM:
        signal.signal(s, signal.SIG_DFL)


def interrupted(s, delay, *args):
    null = subprocess.DEVNULL
    p = subprocess.Popen([RAPT, *args], stdin=null, stdout=null, stderr=null,
                         preexec_fn=heeding)  # noqa: PLW1509 - there are no threads
    try:
        return p.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        p.send_signal(s)
        return p.wait(timeout=60)


def test_signals():
    for s in signal.SIGINT, signal.SIGTERM:
        for args in (*BIG, "--lse", "L.npy", "--time"), ("check", ), ("tune", ):
            put(OLD)
            code = interrupted(s, 0.2, *args)
            expected = 128 + s if args[0] == "tune" else -s # which prints the best line so far
            ok(code == expected and untouched(OLD), f"{s.name} in the midst of {args[0]}", (code, files()))
    put(None)
    start = time.monotonic()
    code, _, err = run(*BIG)
    took = time.monotonic() - start
    want = files()
    ok(code == 0, "a larger output", err)
    wrong, ended = [], 0
    for i in range(60):
        put(OLD)
        code = interrupted(signal.SIGTERM, took * 1.5 * i / 60, *BIG)
        ended += code != 0
        complete = contents("O.npy") == want["O.npy"]
        if code not in (0, -signal.SIGTERM) or temporaries() or not (complete or (code and contents("O.npy") == OLD)):
            wrong.append((i, code, temporaries()))
    ok(not wrong and ended, f"SIGTERM at 60 moments ended it {ended} times: the output is complete or as before", wrong)
    os.mkfifo("fifo")
    put(OLD)
    p = subprocess.Popen([RAPT, *BIG, "--lse", "fifo"], stdin=subprocess.DEVNULL)
    for _ in range(20):
        p.send_signal(signal.SIGSTOP)
        time.sleep(0.002)
        p.send_signal(signal.SIGCONT)
        time.sleep(0.002)
    contents("fifo")
    ok(p.wait(timeout=60) == 0 and contents("O.npy") == want["O.npy"], "stopped and continued, many times", p.returncode)
    os.unlink("fifo")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        save("Q.npy", (2, 4, 6, 32))
        save("K.npy", (2, 2, 9, 32), ">f2")
        save("V.npy", (2, 2, 9, 32), "<f2")
        save("M.npy", (2, 1, 6, 9), "|b1")
        save("B.npy", (4, 6, 9), ">f4")
        save("A.npy", (4, ), "<f2")
        save("R.npy", (7, 2, 8))
        save("W.npy", (300, 500))
        for test in test_each_call, test_checks_calls, test_limits, test_full_disk, test_streams, test_signals:
            start = time.monotonic()
            test()
            print(f"# {test.__name__}: {time.monotonic() - start:.1f} s", flush=True)
        os.chdir("/")
    tap.done()


main()
