# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's server, which xllamacpp runs in this process, and its slots, asked over HTTP: test.py calls this with the device and,
as the control, without. Usage: slots.py MODEL.gguf [LIBRARY]

A line of JSON is [kind, passed, what]. "logits": the tokens of an answer are those of a slot alone whose cache was empty, and so are
the logarithms of the probabilities of the likeliest ones, each an f32 that depends on all logits. "text": the tokens are. "used": what
had to be used was, caches, several slots at once, and drafts."""
import ctypes
import json
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xllamacpp

ROOT = Path(__file__).resolve().parents[3]
SLOTS, ANSWER, LIKELIEST = 8, 16, 20
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine, whatever proxy others are reached by


def test(kind, good, what):
    print(json.dumps([kind, bool(good), what]), flush=True)


class Server:
    """With so many slots, each with a cache of its own."""

    def __init__(self, model, saved, threads=2, drafts=False, **sizes):
        params = xllamacpp.CommonParams()
        params.model.path, params.slot_save_path = model, f"{saved}/"
        params.n_parallel, params.n_ctx, params.kv_unified = SLOTS, SLOTS * 512, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.warmup, params.verbosity, params.endpoint_metrics, params.cache_ram_mib = False, 0, True, 0
        for name, size in sizes.items():
            setattr(params, name, size)
        if drafts:
            params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = 2, 8
        self.server = xllamacpp.Server(params)

    def ask(self, path, **question):
        body = json.dumps(question).encode() if question else None
        with HTTP.open(urllib.request.Request(self.server.listening_address + path, body), timeout=600) as answer:
            return answer.read()

    def answer(self, slot, prompt, cached=False, length=ANSWER, likeliest=LIKELIEST):
        """Tokens with logarithms, and what the server counted."""
        found = json.loads(self.ask("/completion", prompt=prompt, id_slot=slot, cache_prompt=cached, n_predict=length, temperature=0,
                                    ignore_eos=True, n_probs=likeliest, return_tokens=True))
        rows = [[(word["id"], word["logprob"]) for word in row["top_logprobs"]] for row in found.get("completion_probabilities", [])]
        assert (found["id_slot"], len(found["tokens"]), len(rows)) == (slot, length, length if likeliest else 0), found
        return (found["tokens"], rows), found["timings"]


def main(model, library=None):
    if library:
        ctypes.CDLL(xllamacpp.xllamacpp.__file__).ggml_backend_load(library.encode())
    text = (ROOT / "README.md").read_text()
    texts = [f"<|im_start|>user\nRepeat this text.\n\n{text[500 * i:500 * i + 400 - 20 * i]}<|im_end|>\n<|im_start|>assistant\n"
             for i in range(1, SLOTS + 1)]
    prompt = texts[0]
    with tempfile.TemporaryDirectory() as saved:
        server, cached = Server(model, saved), []
        wanted, _ = server.answer(0, prompt)

        server.answer(0, prompt[:300] + texts[1])
        found, counted = server.answer(0, prompt, cached=True)
        cached.append(counted["cache_n"])
        test("logits", found == wanted, "behind the part of a prompt that another one left in the slot")

        server.ask("/slots/0?action=save", filename="slot")
        server.ask("/slots/5?action=restore", filename="slot")
        found, counted = server.answer(5, prompt, cached=True)
        cached.append(counted["cache_n"])
        test("logits", found == wanted, "in a slot that was saved as a file and restored as another one")

        for odd in range(2):
            asked = [prompt if slot % 2 == odd else texts[slot] for slot in range(SLOTS)]
            with ThreadPoolExecutor(SLOTS) as pool:
                found = list(pool.map(server.answer, range(SLOTS), asked))
            places = range(odd, SLOTS, 2)
            test("logits", all(found[slot][0] == wanted for slot in places),
                 f"in the slots {list(places)} of {SLOTS} that are asked at once")
        busy = [float(line.split()[1]) for line in server.ask("/metrics").decode().splitlines()
                if line.startswith("llamacpp:n_busy_slots_per_decode ")]

        other = Server(model, saved, threads=1, n_batch=64, n_ubatch=16, cache_ram_mib=100)
        test("logits", other.answer(0, prompt)[0] == wanted, "with -t 1 -b 64 -ub 16")
        other.answer(0, texts[1])
        found, counted = other.answer(0, prompt, cached=True)
        cached.append(counted["cache_n"])
        test("logits", found == wanted, "behind a prompt that was moved to --cache-ram and back")

        repeated = text[500:620] * 3 + text[500:540]  # whose continuation has been there before
        (plain, _), _ = server.answer(0, repeated, length=40, likeliest=0)
        (tokens, _), counted = Server(model, saved, drafts=True).answer(0, repeated, length=40, likeliest=0)
        test("text", tokens == plain, "with the drafts of --spec-type ngram-simple")
        test("used", min(cached) > 50, f"{cached} tokens were in caches")
        test("used", busy[0] > 1, f"{busy[0]:.1f} slots were computed at once, on average")
        right, drafted = counted.get("draft_n_accepted", 0), counted.get("draft_n", 0)
        test("used", right > 0, f"{right} of {drafted} drafted tokens were right")


main(*sys.argv[1:])
