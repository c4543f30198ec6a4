#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests of the device, in TAP. integrations/ggml/test/run prepares what they want and calls this. Usage: test.py
FOLDER SHARE

FOLDER is what prepare has made. Every SHARE-th case of ggml's own test-backend-ops is run, which is all of them with 1."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from tap import done, ok

import ggufs

FOLDER, SHARE = Path(sys.argv[1]), int(sys.argv[2])
LIBRARY = FOLDER / "libggml-rapt.so"
ALONE_GGML_S = {"iq4_nl", "q1_0", "q2_0"}  # types of caches that rapt has not, and test-backend-ops tries


def run(*command, **environment):
    """Exit status, standard output, standard error."""
    environment = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    p = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       env=environment, timeout=7200)
    return p.returncode, p.stdout, p.stderr


def lines_of_rapt(text):
    return [line for line in text.splitlines() if line.startswith("rapt:")]


def plain(text):
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# ---- Operations --------------------------------------------------------------------------------------------------------------


def ggml_s_own_tests():
    ops = FOLDER / "host/bin/test-backend-ops"
    _, out, _ = run(ops, "support", "-b", "RAPT", "-o", "FLASH_ATTN_EXT", GGML_BACKEND_PATH=LIBRARY)
    cases = re.findall(r"(FLASH_ATTN_EXT\(.*\)): (\S.*)", plain(out))
    taken = [case for case, answer in cases if answer == "SUPPORTED"]
    others = {}
    for case, answer in cases:
        if answer != "SUPPORTED":
            types = re.search(r"type_K=(\w+),type_V=(\w+)", case)
            others.setdefault(types.groups(), []).append(case)
    strange = [case for types, list_of in others.items() if not ALONE_GGML_S & set(types) for case in list_of]
    counts = ", ".join(f"{len(list_of)} of {' and '.join(sorted(set(types)))}" for types, list_of in sorted(others.items()))
    ok(len(cases) > 5000 and not strange, f"{len(taken)} of {len(cases)} cases of FLASH_ATTN_EXT are taken; not: {counts}",
       "\n".join(strange) or out[-2000:])

    # Some are in their list twice, and run twice when they are named.
    chosen = list(dict.fromkeys(taken))[::SHARE]
    passed, wanted, failed = 0, 0, []
    for first in range(0, len(chosen), 300):  # a command line has room for so many
        part = chosen[first:first + 300]
        runs = sum(taken.count(case) for case in part)
        wanted += runs
        code, out, err = run(ops, "-b", "RAPT", "-o", ",".join(part), "-p", "hsk=", "-j", os.cpu_count(),
                             GGML_BACKEND_PATH=LIBRARY, GGML_RAPT_STATS="1")
        passed += len(re.findall(r"FLASH_ATTN_EXT\(.*\): OK$", plain(out), re.M))
        failed += re.findall(r".*FAIL.*", plain(out))
        counted = re.search(r"rapt: (\d+) attentions", err)
        if code or not counted or int(counted[1]) != runs:
            failed.append(f"exit status {code}, {runs} cases, and the device says: {lines_of_rapt(err)}")
    ok(passed == wanted and not failed,
       f"test-backend-ops, {wanted} of the {len(taken)} cases (1 in {SHARE}), beside the CPU backend: {passed} passed",
       "\n".join(failed))

    part = chosen[::20]
    code, out, err = run(ops, "-b", "RAPT", "-o", ",".join(part), "-p", "hsk=", "-j", os.cpu_count(), GGML_BACKEND_PATH=LIBRARY,
                         GGML_RAPT_ARITH="bf16")
    bad = re.findall(r".*FAIL.*", plain(out))
    ok(code == 0 and not bad and plain(out).count("): OK") >= len(part), f"{len(part)} of them with GGML_RAPT_ARITH=bf16", "\n".join(bad) + err)

    part = [case for case in chosen if re.search("q[458]_0", case)][::10]
    code, out, err = run(ops, "-b", "RAPT", "-o", ",".join(part), "-p", "hsk=", "-j", os.cpu_count(), GGML_BACKEND_PATH=LIBRARY,
                         GGML_RAPT_ARITH="int8")
    bad = re.findall(r".*FAIL.*", plain(out))
    ok(code == 0 and part and not bad and plain(out).count("): OK") >= len(part),
       f"{len(part)} of blocks of integers with GGML_RAPT_ARITH=int8", "\n".join(bad) + err)


def what_they_leave_out():
    code, out, err = run(FOLDER / "host/bin/attention", "check", LIBRARY)
    results = re.findall(r"^(not )?ok \d+ - (.*)", out, re.M)
    for bad, what in results:
        ok(not bad, what)
    ok(code == 0 and out.endswith(f"1..{len(results)}\n") and results, "all of these ran", err)


# ---- Models ------------------------------------------------------------------------------------------------------------------


def models():
    """In a process of its own: its statistics are printed when it ends."""
    with tempfile.TemporaryDirectory() as work:
        llama, minilm = Path(work) / "llama.gguf", Path(work) / "minilm.gguf"
        ggufs.random_llama(llama, layers=2, heads=8, kv_heads=2, head_dim=64, inner=1024, context=2048)
        code, fetched, why = run(ROOT / "examples/minilm/fetch")
        ok(code == 0, "MiniLM's weights", why)
        ggufs.minilm(minilm, Path(fetched.strip()))
        code, out, err = run(sys.executable, HERE / "models.py", FOLDER, llama, minilm, GGML_RAPT_STATS="1",
                             GGML_BACKEND_PATH=None)
        results = [json.loads(line) for line in out.splitlines() if line.startswith("[")]
        for good, what in results:
            ok(good, what)
        ok(code == 0 and results, "the models ran", err[-2000:])
        counted = re.search(r"rapt: (\d+) attentions", err)
        expected = re.search(r"^expected (\d+)$", out, re.M)
        ok(counted and expected and counted[1] == expected[1],
           f"the device took each of the {expected and expected[1]} attentions", lines_of_rapt(err))

        # The whole host, as its users call it.
        for off, what in (None, "xllamacpp.Server"), ("0", "GGML_RAPT=0 switches it off"):
            code, _, err = run(sys.executable, HERE / "server.py", LIBRARY, llama, minilm, GGML_RAPT=off, GGML_RAPT_STATS="1")
            counted = re.search(r"rapt: (\d+) attentions", err)
            ok(code == 0 and counted and (int(counted[1]) > 0) == (off is None),
               f"{what}: {counted and counted[1]} attentions", err[-2000:])


# ---- Loading -----------------------------------------------------------------------------------------------------------------


def refused(what, command, pattern, **environment):
    """A command that must say one line, which matches."""
    _, out, err = run(*command, **environment)
    said = lines_of_rapt(err)
    ok(len(said) == 1 and re.search(pattern, said[0]) and "refused" in out, f"{what}: {said[0] if said else 'nothing is said'}",
       out + err)


def loading():
    impostor = FOLDER / "impostor"
    for version, api in (("0.25.3", 2), ("0.26.0", 3)):
        _, out, err = run(impostor, LIBRARY, version, "FLASH_ATTN_EXT")
        ok(out == f"served, interface {api}\n" and not err, f"ggml {version} is served by its interface {api}", out + err)
    refused("another arithmetic", [impostor, LIBRARY, "0.26.0", "FLASH_ATTN_EXT"], r"GGML_RAPT_ARITH=fp4: exact, bf16 or int8",
            GGML_RAPT_ARITH="fp4")
    refused("ggml 0.27.0", [impostor, LIBRARY, "0.27.0", "FLASH_ATTN_EXT"], r"version 0\.27\.0.*built for 0\.25\.3, 0\.26\.0$")
    refused("a ggml whose numbers are others", [impostor, LIBRARY, "0.25.3", "ARGSORT"], "its structs are others")
    refused("RAPT_ISA", [impostor, LIBRARY, "0.25.3", "FLASH_ATTN_EXT"], "RAPT_ISA=nonsense", RAPT_ISA="nonsense")
    load = ("import ctypes, sys; g = ctypes.CDLL(sys.argv[1]); g.ggml_backend_load.restype = ctypes.c_void_p; "
            "print('served' if g.ggml_backend_load(sys.argv[2].encode()) else 'refused')")
    import libggml
    old = Path(libggml.__file__).parent / "lib64/libggml.so"
    refused("libggml-python", [sys.executable, "-c", load, old, LIBRARY], r"version 0\.20\.2.*built for")
    call = ("import ctypes, sys; r = ctypes.CDLL(sys.argv[1]); r.ggml_backend_init.restype = ctypes.c_void_p; "
            "print('served' if r.ggml_backend_init() else 'refused')")
    refused("a host that exports nothing", [sys.executable, "-c", call, LIBRARY], "exports no ggml_version")
    new = FOLDER / "host/bin/libggml.so"
    _, out, err = run(sys.executable, "-c", load, new, FOLDER / "nowhere.so")
    ok(out == "refused\n" and err.count("\n") == 1 and "nowhere.so" in err, f"a library that is not there: {err.strip()}", err)

    for package in "llama-cpp-python", "xllamacpp":
        code, tree, _ = run(HERE.parent / "fetch", package)
        code, out, err = run("patch", "--dry-run", "-p1", "-d", tree.strip(), "-i", HERE.parent / "fa-auto.patch")
        ok(code == 0, f"fa-auto.patch applies to the llama.cpp of {package}", out + err)

    build = HERE.parent / "build"
    for what, command, pattern, environment in (
            ("an unknown option", [build, "--hurry"], "'--hurry' is not one of the options", {}),
            ("no value", [build, "--ggml"], "--ggml wants a folder", {}),
            ("no tree of ggml", [build, "--ggml", HERE], "no source tree of ggml", {}),
            ("no built rapt", [build, "--rapt", HERE, "--to", FOLDER / "empty"], "no folder in which rapt was built", {}),
            ("an unknown package", [HERE.parent / "fetch", "llama"], "the packages are", {}),
            ("no index of packages", [HERE.parent / "fetch"], "pip did not bring",
             {"XDG_CACHE_HOME": str(FOLDER / "empty-cache"), "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0",
              "PIP_CONFIG_FILE": "/dev/null", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_INDEX": "", "PIP_FIND_LINKS": ""})):
        code, out, err = run(*command, **environment)
        ok(code == 2 and err.count("\n") == 1 and re.search(pattern, err), f"{what}: {err.strip()}", out + err)


ggml_s_own_tests()
what_they_leave_out()
models()
loading()
done()
