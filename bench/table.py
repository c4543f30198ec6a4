#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""table.py RESULT.json [DOCUMENT.md [NAME]]: a Markdown table, printed, or put between the document's result marks (those of
that name, if it has several), of a run of rapt-bench (--benchmark_format=json, any number of repetitions, whose medians count) or of peers.py (its peers.json)."""
import collections
import datetime
import json
import re
import statistics
import sys

WHAT = {
    "P1": "H 12, S 128, d 64", "P2": "H 12, S 512, d 64", "P3": "H 32/8, S 1024, d 128, causal", "P4": "H 8, S 4096, d 64, causal",
    "P5": "H 8, S 4096, d 128", "P6": "H 32/8, 256 queries on 4096 keys, d 128, causal", "D1": "decode, H 32/8, 4096 keys, d 128",
    "D1-step": "D1 with rope and the new key and value appended",
    "D2": "decode, H 32/8, 32768 keys, d 128", "D3": "decode, H 32, 4096 keys, d 128", "D4": "decode, H 8/1, 8192 keys, d 256",
    "D5": "8 queries, H 32/8, 4096 keys, d 128, causal", "D6": "decode of 32 sequences, H 32/8, 1024 keys each, d 128",
    "D7": "decode, H 128, 1024 keys, d 128",
    "F-plain": "P3, to compare with", "F-scores": "P3 with softcap, sinks, bias", "F-alibi": "P3 with ALiBi",
    "F-bytes": "P3, causal by a mask of bytes", "F-bits": "P3, causal by a mask of bits", "F-paged": "P3 in pages of 16",
    "F-causal": "H 4, S 16384, d 64, causal", "F-window": "the same, a window of 1024", "F-sparse": "the same, a block mask",
    "F-window-4096": "P4 with a window of 1024", "F-stream-4096": "the same and 4 first tokens, by a mask of bytes",
    "F-stream-bits-4096": "the same by a mask of bits",
    "F-batch": "32 × (H 8, S 128, d 128, causal)", "F-ragged": "the same, ragged", "F-uneven": "H 8, d 64: S 16384 and 31 × 128, ragged",
    "F-D1": "D1, to compare with", "F-D1-paged": "D1 in pages of 16", "F-D3": "D3, to compare with", "F-D3-paged": "D3 in pages of 16",
    "MHA-768": "multi-head attention: 512 tokens, 12 heads", "MHA-384": "multi-head attention: 128 tokens, 12 heads",
    "C-pages": "128 pages of 16 tokens copied, H 8, d 128", "C-shift": "2048 tokens moved by 16, H 8, d 128",
    "LN512-4096": "layer normalisation, 512 tokens of 4096 channels",
    "RMS512-4096": "RMS normalisation, 512 tokens of 4096 channels", "RMS512-4096-residual": "the same with a residual",
    "F-mla16": "MLA decode, H 16, 8192 keys, d 576/512", "F-mla128": "MLA decode, H 128, 8192 keys, d 576/512",
}


def what(case):
    linear = re.fullmatch(r"L(\d+)-(\d+)x(\d+)(-silu|-swiglu|-prepacked)?", case)
    suffix = {None: "", "-silu": ", then SiLU", "-swiglu": ", gated (SwiGLU)", "-prepacked": ", prepacked"}
    if not linear:
        return WHAT.get(case, "")
    return "{} token{}, {} to {} channels{}".format(linear[1], "s" * (linear[1] != "1"), linear[2], linear[3], suffix[linear[4]])


def in_order(case):
    """A key by which cases are sorted: numbers by their size."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", case)]


def cpu_name():
    with open("/proc/cpuinfo") as f:
        found = re.search(r"model name\s*:\s*(.*)", f.read())
    return found[1] if found else "unknown CPU"


def near_limit(runs):
    """The share of the nearer limit, and the rate that it limits."""
    if not runs:
        return ""
    middle = {key: statistics.median(run[key] for run in runs) for key in ("peak_share", "read_share", "GFLOPS", "GBs")}
    if middle["read_share"] > middle["peak_share"]:
        return f"{100 * middle['read_share']:.0f} % ({middle['GBs']:.3g} GB/s)"
    return f"{100 * middle['peak_share']:.0f} % ({middle['GFLOPS']:.3g} GFLOP/s)"


def by_kernel(runs):
    """rapt-bench: a row for each case, a column for each type, kernel and number of threads."""
    found = collections.defaultdict(list)
    for run in runs:
        if run.get("run_type") == "aggregate" or "bound" not in run:
            continue
        case, kind, isa, threads = run["name"].split("/")[:4]
        found[case, f"{kind} {isa} {threads}"].append(run)
    cases = sorted({case for case, _ in found}, key=lambda c: (c[0] != "P", in_order(c)))
    columns = list(dict.fromkeys(column for _, column in found))
    lines = [("Share of the nearer limit that the same machine reached in the same run (GFLOP/s: of the peak of the arithmetic, GB/s: of the read "
              f"bandwidth): {cpu_name()}, {datetime.date.today()}."), "", "| case | | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for case in cases:
        lines.append(f"| {case} | {what(case)} | " + " | ".join(near_limit(found.get((case, column))) for column in columns) + " |")
    return lines


# Ways of rapt's own that peers.json may have, each in a column by itself; what they are called there.
OWN = {"rapt": "", "rapt-prepacked": ", prepacked", "rapt-bf16": ", bf16 arithmetic",
       "rapt-bf16-prepacked": ", bf16 arithmetic, prepacked"}


def beside_peers(report):
    """peers.py and layers.py: a row for each case, a column for each type, number of threads and way of rapt's own, with the
    fastest of the others."""
    rates = collections.defaultdict(dict)
    for row in report["results"]:
        rates[row["case"], row["type"], row["threads"]][row["peer"]] = row
    cases = list(dict.fromkeys(case for case, _, _ in rates))
    columns = [(kind, threads, own) for kind, threads in dict.fromkeys(key[1:] for key in rates) for own in OWN
               if any(own in rates.get((case, kind, threads), {}) for case in cases)]
    names = [f"{kind}, {threads} thread{'s' * (threads > 1)}{OWN[own]}" for kind, threads, own in columns]
    lines = [f"{report['cpu']}, {report['date']}; " + ", ".join(f"{k} {v}" for k, v in report["versions"].items()) +
             ". Each cell: rapt, its share of the nearer limit (the f32 FMA peak, that of the matrix unit in bf16 arithmetic where there is one, "
             "or the read bandwidth where K, V or weights come from memory), and how many times as fast it is as the fastest of the others.", "",
             "| case | | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(columns)]
    for case in cases:
        cells = []
        for kind, threads, own in columns:
            rows = rates.get((case, kind, threads), {})
            row = rows.get(own)
            if not row:
                cells.append("")
                continue
            cell = f"{row['rate']:.3g} {row['unit']}" + (f", {100 * row['share']:.0f} %" if row["share"] else "")
            others = [other for other in rows.values() if not other["ours"]]
            if others:
                fastest = max(others, key=lambda other: other["rate"])
                cell += f"; {row['rate'] / fastest['rate']:.2f} × {fastest['peer']}"
            cells.append(cell)
        lines.append(f"| {case} | {what(case)} | " + " | ".join(cells) + " |")
    return lines


def main():
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        result = json.load(f)
    table = "\n".join(by_kernel(result["benchmarks"]) if "benchmarks" in result else beside_peers(result)) + "\n"
    if len(sys.argv) == 2:
        print(table, end="")
        return
    with open(sys.argv[2]) as f:
        text = f.read()
    name = f" {re.escape(sys.argv[3])}" if len(sys.argv) == 4 else ""
    new, count = re.subn(rf"(<!-- results{name}:[^\n]*-->\n).*?(<!-- /results -->)", lambda m: m[1] + table + m[2], text, flags=re.S)
    if count != 1:
        sys.exit(f"table.py: {sys.argv[2]}: no result marks")
    with open(sys.argv[2], "w") as f:
        f.write(new)


if __name__ == "__main__":
    main()
