# SPDX-License-Identifier: Apache-2.0
"""Models in llama.cpp, before the device is loaded and behind it, in one process: test.py calls this and reads its lines.
Usage: models.py FOLDER LLAMA.gguf MINILM.gguf

A line of JSON is a test, [passed, what]; "expected N" says how many attentions the device must have taken.

What a cache costs in accuracy is told by the perplexity, which its model's distributions give to what the model in f32 (f32
cache, no flash attention) would write: exp of the cross entropy, the mean over the positions of a text, and over all that could
be next. So it is not left to chance, as it is where the next byte of the text itself is counted, which cannot tell the caches
apart."""
import json
import sys
from pathlib import Path

import numpy as np

import ggufs
from host import Host

ROOT = Path(__file__).resolve().parents[3]
PREFILL, DECODE = 600, 8  # tokens: more than llama.cpp's micro-batch of 512, and steps of one
CACHES = ("f16", "q8_0", "q4_0")
THREADS = (1, 2, 5)


def test(good, what):
    print(json.dumps([bool(good), what]), flush=True)


def log_probabilities(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def perplexity(of, by):
    """Of what distributions would write, by other ones."""
    return np.exp(-(np.exp(of) * by).sum(1).mean())


def logits_of(context, tokens, threads):
    context.clear()
    rows = [context.feed(tokens[:PREFILL], threads)]
    rows += [context.feed([token], threads) for token in tokens[PREFILL:]]
    return np.concatenate(rows)


def main(folder, llama, minilm):
    text = (ROOT / "README.md").read_bytes()[:PREFILL + DECODE - 1]
    tokens = [1] + [ggufs.BYTE + byte for byte in text]
    texts = json.loads((ROOT / "examples/minilm/reference.json").read_text())["texts"][::10]
    reference = np.load(ROOT / "examples/minilm/reference.npy")[::10].astype(np.float32)
    host = Host(Path(folder))

    def decoders():
        return {cache: host.open(llama, 1024, cache) for cache in CACHES}

    def encoder():
        return host.open(minilm, 512, embeds=True)

    def embeddings(context, threads):
        rows = np.concatenate([context.feed(text["ids"], threads) for text in texts])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    exact = log_probabilities(logits_of(host.open(llama, 1024, "f32", flash=False), tokens, 1))
    stock = {cache: logits_of(context, tokens, 1) for cache, context in decoders().items()}
    stock_embeddings = embeddings(encoder(), 1)

    test(host.load_backend(Path(folder) / "libggml-rapt.so"), "xllamacpp, which is loaded locally, loads the library")
    ours = {cache: [logits_of(context, tokens, threads) for threads in THREADS] for cache, context in decoders().items()}
    for cache in CACHES:
        test(all((logits == ours[cache][0]).all() for logits in ours[cache]),
             f"{cache}: logits of {len(tokens)} tokens have the same bits on {THREADS} threads")
        test(not (stock[cache] == ours[cache][0]).all(), f"{cache}: and others than without the device")
        f32, of_stock, of_rapt = (perplexity(exact, by) for by in (exact, log_probabilities(stock[cache]),
                                                                    log_probabilities(ours[cache][0])))
        test(of_rapt - f32 <= 1.01 * (of_stock - f32),
             f"{cache}: perplexity {f32:.6f} in f32 grows by {of_rapt - f32:.2e}, without the device by {of_stock - f32:.2e}")

    context = encoder()
    rows = [embeddings(context, threads) for threads in THREADS]
    test(all((row == rows[0]).all() for row in rows),
         f"MiniLM: {len(texts)} embeddings have the same bits on {THREADS} threads")
    far = [float(np.sqrt(((row - reference)**2).mean())) for row in (rows[0], stock_embeddings)]
    test(far[0] <= 1.01 * far[1], f"MiniLM: {far[0]:.2e} from sentence-transformers, without the device {far[1]:.2e}")

    micro_batches = -(-PREFILL // 512)
    print("expected", len(THREADS) * (len(CACHES) * 2 * (micro_batches + DECODE) + 6 * len(texts)))


main(*sys.argv[1:])
