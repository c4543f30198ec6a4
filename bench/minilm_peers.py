#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sentence encoder of examples/minilm beside sentence-transformers (PyTorch) and ONNX Runtime: sentences per second, from
text to embeddings, tokenizer included and loading excluded, of the same weights on the same sentences.

    pip install torch sentence-transformers onnx onnxruntime
    ninja -C build examples/minilm/minilm
    bench/minilm_peers.py --out DIR

All take turns, and the median of a peer's turns counts. Each number of threads has a process of its own, kept to as many CPUs.
The others sort by length and pad each batch to its longest sentence, as sentence-transformers does; ONNX Runtime has the graph of
its own optimizer for BERT (fused attention, GELU and layer normalisation) and the same tokenizer. Embeddings are compared before
anything is measured. Writes minilm.json and minilm.md."""
import argparse
import concurrent.futures
import datetime
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from beside.command import THREAD_VARIABLES, names_of
from beside.machine import cpu_name
from beside.measure import wait_for_quiet

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/minilm"
MOST_TOKENS = 256  # the model's own limit
BATCHES = 1, 32
LEAST_COSINE, LEAST_COSINE_BF16 = 0.9999, 0.9995  # in bf16 arithmetic the latter


def make_texts(case):
    """Words of the reference's English texts; as many to a sentence as the case says."""
    count, least, most = CASES[case]
    words = [word for text in json.loads((EXAMPLE / "reference.json").read_text())["texts"][:48] for word in text["text"].split()]
    rng = random.Random(case)
    lengths = [round(least * (most / least) ** rng.random()) for _ in range(count)]
    return [" ".join(rng.choice(words) for _ in range(n)) for n in lengths]


# Number of sentences, words of the shortest and the longest; between them, each doubling is as likely as the others.
CASES = {"queries": (512, 3, 12), "sentences": (256, 8, 40), "paragraphs": (64, 60, 180), "mixed": (192, 3, 180)}


# ---- Peers -------------------------------------------------------------------------------------------------------------------
# prepare(texts, batch) does what is not measured. seconds(texts, batch) is one turn; embed(texts, batch) gives [texts, 384].


class Rapt:
    """The program: it encodes once before it measures."""
    packages, arith = (), "exact"

    def __init__(self, options, threads):
        self.command = [options.minilm, "--arith", self.arith, "--model", options.model, "--threads", str(threads), "--max-length", str(MOST_TOKENS)]
        self.folder = tempfile.TemporaryDirectory()
        self.lines = os.path.join(self.folder.name, "lines.txt")

    def run(self, batch, *rest):
        return subprocess.run([*self.command, "--batch", str(batch), "--file", self.lines, *rest], check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    def prepare(self, texts, batch):
        pathlib.Path(self.lines).write_text("\n".join(texts), encoding="utf-8")

    def seconds(self, texts, batch):
        return float(self.run(batch, "--time", "1"))

    def embed(self, texts, batch):
        out = os.path.join(self.folder.name, "E.npy")
        self.run(batch, "--out", out)
        return np.load(out)


class RaptInBf16(Rapt):
    arith = "bf16"


class Peer:
    def prepare(self, texts, batch):
        self.embed(texts, batch)

    def seconds(self, texts, batch):
        start = time.perf_counter()
        self.embed(texts, batch)
        return time.perf_counter() - start


class Torch(Peer):
    packages = "torch", "sentence-transformers", "transformers"

    def __init__(self, options, threads):
        import torch
        from sentence_transformers import SentenceTransformer
        torch.set_num_threads(threads)
        self.model = SentenceTransformer(options.model, device="cpu")
        self.model.max_seq_length = MOST_TOKENS

    def embed(self, texts, batch):
        return self.model.encode(texts, batch_size=batch, convert_to_numpy=True, show_progress_bar=False)


class OnnxRuntime(Peer):
    packages = "onnxruntime", "onnx", "tokenizers"

    def __init__(self, options, threads):
        import onnxruntime
        import tokenizers
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(options.onnx, settings, providers=["CPUExecutionProvider"])
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(options.model, "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_TOKENS)
        self.tokenizer.enable_padding()

    def embed(self, texts, batch):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = np.empty((len(texts), 384), np.float32)
        for first in range(0, len(texts), batch):
            which = order[first:first + batch]
            encoded = self.tokenizer.encode_batch([texts[i] for i in which])
            ids, mask = (np.array([getattr(e, name) for e in encoded], np.int64) for name in ("ids", "attention_mask"))
            hidden, = self.session.run(["hidden"], {"ids": ids, "mask": mask})
            mean = (hidden * mask[:, :, None]).sum(1, dtype=np.float32) / mask.sum(1, keepdims=True)
            out[which] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return out


PEERS = {"rapt": ("rapt", Rapt), "rapt-bf16": ("rapt, bf16 arithmetic", RaptInBf16),
         "torch": ("sentence-transformers", Torch), "ort": ("ONNX Runtime", OnnxRuntime)}


def export(model, folder):
    """The model as ONNX Runtime likes it best."""
    import onnxruntime.transformers.optimizer as optimizer
    import torch
    import transformers

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertModel.from_pretrained(model, attn_implementation="eager").eval()

        def forward(self, ids, mask):
            return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

    plain, best = (os.path.join(folder, name) for name in ("plain.onnx", "best.onnx"))
    example = torch.ones(2, 7, dtype=torch.long)
    axes = {name: {0: "batch", 1: "tokens"} for name in ("ids", "mask", "hidden")}
    torch.onnx.export(Hidden(), (example, example), plain, input_names=["ids", "mask"], output_names=["hidden"],
                      dynamic_axes=axes, opset_version=17, dynamo=False)
    optimized = optimizer.optimize_model(plain, model_type="bert", num_heads=12, hidden_size=384, opt_level=1)
    assert optimized.get_fused_operator_statistics()["Attention"] == 6
    optimized.save_model_to_file(best)
    return best


# ---- Measuring, in a process for each number of threads ------------------------------------------------------------------------


def start_worker(options, threads):
    global made
    made = {name: PEERS[name][1](options, threads) for name in options.peers}


def least_cosine(a, b):
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def measure(texts, rounds):
    """Seconds of each turn by (peer, batch), and the least cosine with the first peer."""
    turns, cosines, first = {}, {}, None
    for name, peer in made.items():
        for batch in BATCHES:
            peer.prepare(texts, batch)
            got = peer.embed(texts, batch).astype(float)
            first = got if first is None else first
            cosines[name, batch] = least_cosine(got, first)
            turns[name, batch] = []
    shuffle = random.Random(0).shuffle
    order = list(turns)
    for _ in range(rounds):
        shuffle(order)
        for name, batch in order:
            wait_for_quiet()
            turns[name, batch].append(made[name].seconds(texts, batch))
    return turns, cosines


# ---- Reports -----------------------------------------------------------------------------------------------------------------


def padding(lengths, batch):
    """Tokens that a padded batch computes for each that there is."""
    lengths = sorted(lengths, reverse=True)
    return sum(max(part) * len(part) for part in (lengths[i:i + batch] for i in range(0, len(lengths), batch))) / sum(lengths)


def markdown(report):
    versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
    lines = [f"{report['cpu']}, {report['date']}. {versions}.", "",
             ("Sentences per second, from text to embeddings; the fastest is in bold. Padding: tokens that the others' batches "
              "of 32 compute for each that there is, after sorting by length (rapt: 1, unsorted). The last column is rapt's best "
              "over the best of the others."), ""]
    columns = [(name, batch) for name in PEERS if name in report["peers"] for batch in BATCHES]
    lines += ["| case | threads | padding | " + " | ".join(f"{PEERS[name][0]}, batch {batch}" for name, batch in columns) +
              " | rapt / best other |", "|---|---|---|" + "---|" * (len(columns) + 1)]
    for row in report["results"]:
        rates = {(r["peer"], r["batch"]): r["rate"] for r in row["rates"]}
        best = max(rates.values())
        others = [rate for (name, _), rate in rates.items() if not name.startswith("rapt")]
        own = [rate for (name, _), rate in rates.items() if name == "rapt"]
        cells = [f"**{rates[c]:.4g}**" if rates[c] == best else f"{rates[c]:.4g}" for c in columns]
        lines.append(f"| {row['case']}: {row['sentences']}, {row['tokens']} tokens | {row['threads']} | {row['padding']:.2f} | " +
                     " | ".join(cells) + f" | {f'{max(own) / max(others):.2f}' if own and others else ''} |")
    return "\n".join(lines) + "\n"


# ---- The command -------------------------------------------------------------------------------------------------------------


def fail(why):
    print(f"minilm_peers.py: {why}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def parse_options():
    cpus = sorted(os.sched_getaffinity(0))
    parser = Parser(prog="minilm_peers.py", description=__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--cases", type=names_of(CASES), default=list(CASES), metavar="NAME,...",
                        help=f"of {', '.join(CASES)}")
    parser.add_argument("--threads", type=names_of(range(1, len(cpus) + 1), int), metavar="N,...", help="default: 1,2",
                        default=[n for n in (1, 2) if n <= len(cpus)])
    parser.add_argument("--peers", type=names_of(PEERS), default=list(PEERS), metavar="NAME,...",
                        help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each peer (default: 7)")
    parser.add_argument("--sentences", type=int, metavar="N", help="only the first N of each case, to try it out")
    parser.add_argument("--minilm", default=str(ROOT / "build/examples/minilm/minilm"), metavar="PATH",
                        help="default: build/examples/minilm/minilm")
    parser.add_argument("--model", metavar="DIR", help="default: what examples/minilm/fetch brings")
    options = parser.parse_args()
    if options.rounds < 1 or (options.sentences or 1) < 1:
        fail("--rounds and --sentences: at least 1")
    return options, cpus


def present(options):
    """The versions of the peers that are here; the others are taken off the list."""
    versions = {"Python": platform.python_version()}
    for name in list(options.peers):
        title, peer = PEERS[name]
        packages = peer.packages + (Torch.packages if peer is OnnxRuntime else ())  # which export the model
        try:
            versions.update((package, importlib.metadata.version(package)) for package in packages)
        except importlib.metadata.PackageNotFoundError as e:
            print(f"minilm_peers.py: {title} is left out: the Python package {e.name} is not installed", file=sys.stderr)
            options.peers.remove(name)
    if not options.peers:
        fail("no peer is left")
    return versions


def main():
    options, cpus = parse_options()
    report = {"cpu": cpu_name(), "system": platform.platform(), "date": str(datetime.date.today()),
              "versions": present(options), "peers": options.peers, "results": []}
    if not options.model:
        fetched = subprocess.run([sys.executable, EXAMPLE / "fetch"], stdout=subprocess.PIPE, text=True)
        if fetched.returncode:
            sys.exit(2)
        options.model = fetched.stdout.strip()
    os.environ.update({"TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"})
    with tempfile.TemporaryDirectory() as folder:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            options.onnx = export(options.model, folder) if "ort" in options.peers else None
        except OSError as e:
            fail(e)
        for threads in options.threads:
            os.sched_setaffinity(0, cpus[:threads])
            os.environ.update(dict.fromkeys((*THREAD_VARIABLES, "RAYON_NUM_THREADS"), str(threads)))
            spawn = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, spawn, start_worker, (options, threads)) as pool:
                for case in options.cases:
                    texts = make_texts(case)[:options.sentences]
                    lengths = [len(line.split()) for line in subprocess.run(
                        [options.minilm, "--model", options.model, "--tokens", "--", *texts], check=True, text=True,
                        stdout=subprocess.PIPE).stdout.splitlines()]
                    turns, cosines = pool.submit(measure, texts, options.rounds).result()
                    wrong = [(name, batch) for (name, batch), cosine in cosines.items()
                             if not cosine >= (LEAST_COSINE_BF16 if name == "rapt-bf16" else LEAST_COSINE)]
                    if wrong:
                        fail(f"{case}: {wrong} gives other embeddings: {cosines}")
                    rates = [{"peer": name, "batch": batch, "seconds": seconds, "cosine": cosines[name, batch],
                              "rate": len(texts) / statistics.median(seconds)} for (name, batch), seconds in turns.items()]
                    report["results"].append({"case": case, "threads": threads, "sentences": len(texts), "tokens": sum(lengths),
                                              "padding": padding(lengths, max(BATCHES)), "rates": rates})
                    (options.out / "minilm.json").write_text(json.dumps(report, indent=1) + "\n")
                    (options.out / "minilm.md").write_text(markdown(report))
                    print(f"{case} t{threads}:", *(f"{r['peer']}/{r['batch']} {r['rate']:.4g}" for r in rates), "sentences/s",
                          flush=True)


if __name__ == "__main__":
    main()
