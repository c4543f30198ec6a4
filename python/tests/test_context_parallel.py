#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Context parallelism over torch.distributed (gloo, on this machine), in TAP: 1, 2, 3 and 5 processes have the bits of one. Usage:
test_context_parallel.py, with rapt in PYTHONPATH or installed."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests/host"))
import tap
from tap import ok

try:
    import torch
    import torch.distributed as distributed
except ImportError as error:
    tap.absent("rapt.torch.context_parallel", error)

import rapt
from rapt._context_parallel import context_parallel

RANKS = 1, 2, 3, 5


def normal(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def shapes(queries, keys, batch=2, heads=6, kv_heads=2, d_k=40, d_v=24, dtype=torch.float32):
    return (normal(1, batch, heads, queries, d_k, dtype=dtype), normal(2, batch, kv_heads, keys, d_k, dtype=dtype),
            normal(3, batch, kv_heads, keys, d_v, dtype=dtype))


def cases():
    """Names, arrays and options."""
    bottom = {"causal": "bottom-right"}
    yield "causal decode", shapes(1, 2900), bottom
    yield "causal prompt", shapes(130, 1900), bottom | {"return_lse": True}
    yield "top-left", shapes(700, 1100), {"causal": "top-left"}
    yield "key lengths", shapes(7, 2600), bottom | {"kv_lengths": [2600, 513], "return_lse": True}
    yield "an entry without keys", shapes(3, 1500), {"kv_lengths": [0, 1500], "return_lse": True}
    yield "window, softcap, ALiBi, sinks", shapes(9, 2700), bottom | {
        "window": 700, "softcap": 20.0, "alibi": True, "sinks": normal(4, 6), "return_lse": True}
    yield "mask and bias", shapes(5, 1700), {"mask": normal(5, 2, 1, 5, 1700) > 0, "bias": normal(6, 6, 1, 1700)}
    yield "float16", shapes(12, 1600, dtype=torch.float16), bottom
    yield "bfloat16, tokens before heads", [x.transpose(1, 2) for x in shapes(4, 2048, dtype=torch.bfloat16)], bottom | {
        "layout": "bshd"}
    q, k, v = shapes(11, 2500, batch=1)
    yield "without a batch", (q[0], k[0], v[0]), bottom | {"scale": 0.2}
    yield "ragged queries", (normal(1, 6, 20, 40), *(x.expand(3, -1, -1, -1) for x in (k, v))), bottom | {
        "q_starts": [0, 1, 14, 20], "kv_lengths": [2500, 900, 1024], "return_lse": True}
    yield "one chunk", shapes(3, 100), bottom
    yield "no keys", shapes(3, 0), {"return_lse": True}


def first_keys(keys, ranks, uneven):
    """Where each rank's keys begin, and the end of the last: chunks are shared out evenly, or the first rank has none and the second
    most of them."""
    chunks = (keys + 511) // 512
    shares = [chunks * r // ranks for r in range(ranks + 1)]
    if uneven and ranks > 2:
        shares = [0, 0, *(max(chunks - ranks + r, 0) for r in range(2, ranks)), chunks]
    return [min(512 * share, keys) for share in shares]


def bits(result):
    return b"".join(x.contiguous().view(torch.uint8).numpy().tobytes() for x in (result if isinstance(result, tuple) else (result,)))


def message(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def process(rank, folder):
    """One of the processes: what it found of each case and number of ranks, as JSON."""
    found = {"line": message(lambda: context_parallel(*shapes(1, 5)))}
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=max(RANKS))
    groups = {n: distributed.new_group(list(range(n))) for n in RANKS}
    for ranks, group in groups.items():
        if rank >= ranks:
            continue
        for name, (q, k, v), options in cases():
            axis = -3 if options.get("layout") == "bshd" else -2
            expected = bits(rapt.attention(q, k, v, **options))
            for uneven in (False, True):
                starts = first_keys(k.shape[axis], ranks, uneven)
                mine = [x.narrow(axis, starts[rank], starts[rank + 1] - starts[rank]) for x in (k, v)]
                known = {"keys": [b - a for a, b in zip(starts, starts[1:])]} if uneven else {}
                got = context_parallel(q, *mine, group=group, threads=1 + rank % 2, **known, **options)
                found[f"{name}/{ranks}/{uneven}"] = bits(got) == expected
    two = groups[2]
    if rank < 2:
        q, k, v = shapes(1, 600)
        found["negative"] = bits(context_parallel(q, torch._neg_view(-k[:, :, 512 * rank:512 * (rank + 1)]),
                                                  v[:, :, 512 * rank:512 * (rank + 1)], group=two)) == bits(rapt.attention(q, k, v))
        found["sparse"] = message(lambda: context_parallel(q, k.to_sparse() if rank else k, v, group=two))
        found["parts"] = message(lambda: context_parallel(q, k, v, group=two))
        found["type"] = message(lambda: context_parallel(q, k.long() if rank else k, v, group=two))
        found["keys"] = message(lambda: context_parallel(q, k, v, group=two, keys=[1024, 512]))
        found["gradients"] = message(lambda: context_parallel(q.clone().requires_grad_(), k[:, :, :512], v[:, :, :512], group=two))
        found["lengths"] = message(lambda: context_parallel(q, k[:, :, :512 * rank], v[:, :, :512 * rank], group=two,
                                                            kv_lengths=[513, 1]))
    distributed.barrier()
    distributed.destroy_process_group()
    print(json.dumps(found))


def ragged_queries():
    """What the case of that name is held against."""
    _name, (q, k, v), options = next(case for case in cases() if case[0] == "ragged queries")
    starts, lengths = options["q_starts"], options["kv_lengths"]
    whole = rapt.attention(q, k, v, **options | {"return_lse": False})
    alone = [rapt.attention(q[:, a:b], k[n, :, :length], v[n, :, :length], causal="bottom-right")
             for n, (a, b, length) in enumerate(zip(starts, starts[1:], lengths))]
    ok(bits(whole) == bits(torch.cat(alone, 1)), "ragged queries, and keys of each entry by themselves")


def main():
    ragged_queries()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen([sys.executable, __file__, str(rank), folder], env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for rank in range(max(RANKS))]
        outputs = [p.communicate(timeout=500) for p in processes]
    ended = not any(p.returncode for p in processes)
    ok(ended, f"{max(RANKS)} processes end well", "\n".join(err for _, err in outputs))
    if not ended:
        tap.done()
    found = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    for ranks in RANKS:
        for name, _, _ in cases():
            keys = [f"{name}/{ranks}/{uneven}" for uneven in (False, True)]
            ok(all(found[rank].get(key) for rank in range(ranks) for key in keys), f"{name}: {ranks} processes have the bits of one",
               [(rank, key) for rank in range(ranks) for key in keys if not found[rank].get(key)])
    ok(all(found[rank]["negative"] for rank in (0, 1)), "keys with a negative bit are what they say")
    for name, words in (("sparse", ("rank 1 has refused", "k_part is sparse_coo")), ("line", ("init_process_group",) * 2), ("parts", ("rank 0 has 600 keys",) * 2),
                        ("type", ("rank 1 has refused", "k_part is")), ("keys", ("k_part of rank 0 of 2 has 600", "rank 1 of 2 has 600")),
                        ("gradients", ("no gradients",) * 2), ("lengths", ("kv_lengths",) * 2)):
        lines = [found[rank][name] for rank in (0, 1)]
        ok(all(word in line and "\n" not in line for word, line in zip(words, lines)), f"refused on every rank: {name}", lines)
    tap.done()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        process(int(sys.argv[1]), sys.argv[2])
    else:
        main()
