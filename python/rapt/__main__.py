# SPDX-License-Identifier: Apache-2.0
"""python -m rapt info|check

info: the version, the kernels that can run here, the CPU's features and the types of K and V.
check: whether this installation keeps its promise: each kernel that can run here is held against the bits that it must give,
and attention against a reference in NumPy, on one thread and on several. The exit code is 1 if anything is wrong.
"""
import ctypes
import sys
from typing import Any, Callable

import numpy as np

from . import _native as native
from . import attention, info, isa

TOLERANCE = 1e-5


def show() -> int:
    facts = info()
    print(f"rapt {facts['version']}, {facts['library']}")
    for name, kernel in facts["isas"].items():
        state = "lacks " + ", ".join(kernel["missing"])
        if kernel["usable"]:
            state = "usable, and chosen" if name == facts["isa"] else "usable"
        print(f"kernel {name}: {kernel['rounding']}, {state}")
    print(f"CPU features: {' '.join(facts['cpu']) or 'none'}")
    print(f"types of K and V: {' '.join(facts['types'])}")
    print(f"threads of a large call: {facts['threads']}")
    return 0


def reference(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """In float64."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k.astype(np.float64), group, axis=1), np.repeat(v.astype(np.float64), group, axis=1)
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    if causal:
        queries, keys = scores.shape[2:]
        scores[..., ~np.tri(queries, keys, keys - queries, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    return weights / weights.sum(axis=3, keepdims=True) @ v


def attention_is_right(name: str) -> str:
    """Of a kernel: what is wrong, or ""."""
    rng = np.random.default_rng(7)
    for heads, kv_heads, queries, keys, d in ((4, 4, 33, 33, 64), (8, 2, 1, 700, 64), (6, 3, 17, 130, 40)):
        q, k, v = (rng.standard_normal((2, h, n, d)).astype(np.float32)
                   for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys)))
        for causal in (False, True):
            results = [attention(q, k, v, causal="bottom-right" if causal else None, threads=threads, isa=name)
                       for threads in (1, 2, 5)]
            case = f"{heads} heads, {queries} queries, {keys} keys{', causal' if causal else ''}"
            if any(result.tobytes() != results[0].tobytes() for result in results):
                return f"{case}: other bits with other numbers of threads"
            error = float(np.abs(results[0] - reference(q, k, v, causal)).max())
            if not error < TOLERANCE:
                return f"{case}: {error:.1e} from the reference"
    return ""


def keeps_its_bits(name: str) -> str:
    """Of a kernel: what is wrong, or ""."""
    library, text = native.library(), ctypes.create_string_buffer(1024)
    status = library.quiet("rapt_self_check")(name.encode(), text, len(text))
    return text.value.decode() or (library.c.rapt_status_string(status).decode() if status else "")


def check() -> int:
    print(f"rapt {info()['version']}, {native.library().path}, kernel {isa()}")
    failures = 0
    for name in native.library().kernels():
        for what, test in (("its bits", keeps_its_bits), ("attention against NumPy", attention_is_right)):
            wrong = test(name)
            failures += bool(wrong)
            print(f"{name}, {what}: {wrong or 'ok'}")
    print("all is well" if not failures else f"{failures} checks failed")
    return int(failures > 0)


def main() -> int:
    commands: dict[str, Callable[[], int]] = {"info": show, "check": check}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        print(__doc__.strip() if sys.argv[1:] in (["-h"], ["--help"]) else "usage: python -m rapt info|check",
              file=sys.stdout if sys.argv[1:] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    try:
        return commands[sys.argv[1]]()
    except (ValueError, ImportError) as error:
        print(f"rapt: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
