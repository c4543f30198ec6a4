# SPDX-License-Identifier: Apache-2.0
"""Whole models whose logits must have the same bits, whatever is computed at once and by how many threads: test.py calls this, in
a process for each arithmetic, and reads its lines. Usage:
reproduce.py FOLDER [--host NAME] [--hash] [--control] [--prompts N] MODEL.gguf[@CACHE]...

CACHE is the type of K and V in the cache, f16 unless it is named. A line of JSON is a test, [passed, what]; "hash MODEL[@CACHE]
HEX" is that of the logits of a fixed text. N prompts are answered with and without prompt lookup (Saxena 2023), with tokens that
end the answer ignored. --hash prints the hashes alone. --control does all of it without the device: of each model something must
differ, and each promise must be broken by one of them."""
import argparse
import hashlib
import json
import re
import time
from pathlib import Path

import numpy as np

from host import Host

ROOT = Path(__file__).resolve().parents[3]
TOKENS, CUT = 70, 37  # tokens of the text, and those that a prompt and its cache have in common
AT_ONCE = (*range(2, 17), 64)
THREADS = (1, 2, 5)
BATCHES = ((512, 512), (32, 8), (7, 3), (16, 16))  # tokens of a batch and of a micro-batch
PROMISES = ("tokens at once", "threads", "a cache", "sizes of batches", "other sequences", "prompt lookup")
ANSWER, DRAFT = 40, 8  # tokens of an answer, and of a draft


class Case:
    """A model and a type of cache, from a word of the command line."""

    def __init__(self, word):
        path, self.cache = re.fullmatch(r"(.*\.gguf)(?:@(\w+))?", word).groups("f16")
        self.path = Path(path)
        self.name = self.path.stem + word[len(path):]

    def open(self, host, tokens, **options):
        return host.open(self.path, tokens, self.cache, **options)


def test(good, what):
    print(json.dumps([bool(good), what]), flush=True)


def same(a, b):
    return a.tobytes() == b.tobytes()


def in_pieces(context, tokens, size, threads):
    context.clear()
    return np.concatenate([context.feed(tokens[i:i + size], threads) for i in range(0, len(tokens), size)])


def text_of(context):
    return context.tokens_of((ROOT / "README.md").read_text()[400:2000])[:TOKENS]


def differences(host, case):
    """What changes the logits of a text, as pairs of a promise and a case, and these logits."""
    context = case.open(host, 128)
    tokens = text_of(context)
    wanted = in_pieces(context, tokens, 1, 1)
    found = [("tokens at once", k) for k in AT_ONCE if not same(in_pieces(context, tokens, k, THREADS[k % 3]), wanted)]
    found += [("threads", n) for n in THREADS if not same(in_pieces(context, tokens, TOKENS, n), wanted)]

    # The rest of a text behind a cache that another text left, and behind one that came from another context.
    context.clear()
    context.feed(tokens[:CUT] + tokens[:5], 2)
    context.forget_from(CUT)
    if not same(context.feed(tokens[CUT:], 1), wanted[CUT:]):
        found.append(("a cache", "reused"))
    context.forget_from(CUT)
    other = case.open(host, 128)
    other.copy_from(context)
    if not same(other.feed(tokens[CUT:], 2), wanted[CUT:]):
        found.append(("a cache", "restored"))
    for opened in context, other:
        opened.close()

    for batch, micro_batch in BATCHES:
        context = case.open(host, 128, batch=batch, micro_batch=micro_batch)
        if not same(in_pieces(context, tokens, TOKENS, 2), wanted):
            found.append(("sizes of batches", (batch, micro_batch)))
        context.close()

    # The text in each of 8 places, in the even ones and then in the odd ones, among others of other lengths; tokens come by turns.
    context = case.open(host, 128, sequences=8)
    for odd in range(2):
        context.clear()
        texts = [tokens if at % 2 == odd else tokens[::-1][:TOKENS - 7 * at - 1] for at in range(8)]
        mixed = [(text[i], at) for i in range(TOKENS) for at, text in enumerate(texts) if i < len(text)]
        rows = context.feed([token for token, _ in mixed], 2, sequences=[at for _, at in mixed])
        for place in range(odd, 8, 2):
            if not same(rows[[i for i, (_, at) in enumerate(mixed) if at == place]], wanted):
                found.append(("other sequences", f"place {place}"))
    context.close()
    return found, wanted


def lookup(tokens):
    """What followed the last two tokens when they came before (Saxena 2023), newest first."""
    for i in range(len(tokens) - 3, -1, -1):
        if tokens[i:i + 2] == tokens[-2:]:
            return tokens[i + 2:i + 2 + DRAFT]
    return []


def answer(context, prompt, row, drafts):
    """The tokens and logits of greedy decoding behind a prompt in the cache, whose logits end with a row, and how many times the
    model was computed for them."""
    context.forget_from(len(prompt))
    rows = [row]
    tokens, passes = [int(rows[0].argmax())], 0
    while len(tokens) < ANSWER:
        draft = lookup(prompt + tokens) if drafts else []
        passes += 1
        for i, row in enumerate(context.feed([tokens[-1], *draft], 2)):
            rows.append(row)
            tokens.append(int(row.argmax()))
            if i < len(draft) and draft[i] != tokens[-1]:
                break
        context.forget_from(len(prompt) + len(tokens) - 1)
    return tokens[:ANSWER], np.stack(rows[:ANSWER]), passes


def paragraphs():
    for path in sorted(path for folder in ("docs", "integrations", "examples") for path in (ROOT / folder).rglob("*.md")):
        for text in path.read_text().split("\n\n"):
            if len(text) > 200 and not re.search(r"[|`<]|^#", text):
                yield text[:400]


def speculation(host, case, wanted):
    context, equal, passes, seconds = case.open(host, 512), 0, [0, 0], [0.0, 0.0]
    texts = [text for text, _ in zip(paragraphs(), range(wanted))]
    for text in texts:
        prompt = context.tokens_of(f"<|im_start|>user\nRepeat this text.\n\n{text}<|im_end|>\n<|im_start|>assistant\n")[:400]
        results, start = [], time.perf_counter()
        context.clear()
        context.feed(prompt[:-1], 2, results=False)
        row, of_prompt = context.feed(prompt[-1:], 2)[0], time.perf_counter() - start
        for drafts in False, True:
            start = time.perf_counter()
            results.append(answer(context, prompt, row, drafts))
            seconds[drafts] += of_prompt + time.perf_counter() - start
            passes[drafts] += results[-1][2]
        equal += results[0][0] == results[1][0] and same(results[0][1], results[1][1])
    context.close()
    return equal, len(texts), passes, seconds


def control(host, models, prompts):
    breaking = {promise: set() for promise in PROMISES}
    for case in models:
        found, _ = differences(host, case)
        test(found, f"without the device, {case.name} has other logits in {len(found)} cases")
        for promise, _ in found:
            breaking[promise].add(case.name)
        if prompts:
            equal, n, _, _ = speculation(host, case, prompts)
            if equal < n:
                breaking["prompt lookup"].add(case.name)
    for promise, names in breaking.items():
        test(names, f"without the device, logits depend on {promise}: {', '.join(sorted(names))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+", type=Case)
    parser.add_argument("--host", default="host.so")
    parser.add_argument("--hash", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--prompts", type=int, default=0)
    options = parser.parse_args()
    host = Host(options.folder, options.host)
    if not options.control:
        test(host.load_backend(options.folder / "libggml-rapt.so"), "the library is loaded")
    elif not options.hash:
        control(host, options.models, options.prompts)
        return
    for case in options.models:
        if options.hash:
            context = case.open(host, 128)
            logits = in_pieces(context, text_of(context), TOKENS, 2)
            context.close()
        else:
            found, logits = differences(host, case)
            test(not found, f"{case.name}: the same logits for 1 to 16 and 64 tokens at once, on {THREADS} threads, in "
                            f"{len(BATCHES)} sizes of batches, behind a reused and a restored cache, among 7 others"
                            + "".join(f"; not: {promise}, {where}" for promise, where in found))
        print("hash", case.name, hashlib.sha256(logits.tobytes()).hexdigest(), flush=True)
        if options.prompts and not options.hash:
            equal, n, passes, seconds = speculation(host, case, options.prompts)
            test(equal == n == options.prompts,
                 f"{case.name}: {equal} of {n} answers of {ANSWER} tokens have the text and the logits of plain decoding with "
                 f"prompt lookup, in {passes[1]} passes instead of {passes[0]}, {seconds[0] / seconds[1]:.2f} times as fast")


main()
