# SPDX-License-Identifier: Apache-2.0
"""peers.json, peers.md and peers.png."""
import json

from beside.values import BITS


def by(rows, *keys):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    return groups


def threads_of(count):
    return f"{count} thread{'s' * (count > 1)}"


def place(suite, row):
    orders = (("case", [case.name for case in suite.cases]), ("type", list(BITS)), ("threads", range(1 << 20)),
              ("peer", list(suite.peers)))
    return [order.index(row[key]) for key, order in orders]


def write(suite, report, out):
    (out / "peers.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "peers.md").write_text(markdown(suite, report))


def markdown(suite, report):
    names = [name for name in suite.peers if any(row["peer"] == name for row in report["results"])]
    parts = [[f"{report['cpu']}, {report['date']}. " + ", ".join(f"{k} {v}" for k, v in report["versions"].items()) + "."],
             speed(suite, report, names), absences(suite, report), notes(suite, names), equality(suite, report, names),
             instruction_sets(suite, report, names)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


# ---- Speed -------------------------------------------------------------------------------------------------------------------


def speed(suite, report, names):
    ours = [name for name in names if any(row["ours"] for row in report["results"] if row["peer"] == name)]
    lines = [("Each cell: rate, its share of the nearer limit, largest absolute difference from float64. The fastest is in bold. At the end: "
              "rapt's rate over that of the fastest other."), "", *legend(report), "",
             "| case | type | threads | | f32 peak | matrix unit | reading | " + " | ".join(suite.peers[name][0] for name in names) +
             "".join(f" | {suite.peers[name][0]} / fastest other" for name in ours) + " |",
             "|---|---|---|---|---|---|---|" + "---|" * (len(names) + len(ours))]
    for (case, kind, threads), rows in by(report["results"], "case", "type", "threads").items():
        rows = {row["peer"]: row for row in rows}
        best, some = max(row["rate"] for row in rows.values()), next(iter(rows.values()))
        others = max((row["rate"] for row in rows.values() if not row["ours"]), default=None)
        cells = [case, kind, str(threads), some["unit"], *limits(some), *(cell(rows[n], best) if n in rows else "" for n in names)]
        cells += [f"{rows[name]['rate'] / others:.2f}" if name in rows and others else "" for name in ours]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def legend(report):
    """What the limits are, and which of them counts for whom."""
    measured = [row["limits"] for row in report["results"] if row["limits"]]
    if not measured:
        return ["The limits were not measured: that is what --bench is for."]
    lines = [("The limits are those of this machine in the same run, as the rates that each alone would allow: multiplications and additions of "
              "f32 in registers (the best instruction set's), those of bf16 in the matrix unit or, without one, by instructions of its own "
              "(AVX512_BF16), and reading memory. Reading is no limit, and in brackets, where caches hold what is read.")]
    if measured[0]["matrix_peak"]:
        lines.append("The peak of bf16 is the limit in place of f32 of all who may multiply bf16 so: rapt in exact arithmetic may not, and "
                     "passes the peak of f32 at most where its scores of bf16 are computed by AVX512_BF16.")
    else:
        lines.append("This machine has no matrix unit and no instructions of bf16 that rapt-bench could measure.")
    return lines


def limits(row):
    if not row["allowed"]:
        return "", "", ""
    f32, matrix, reading = (row["allowed"][name] for name in ("f32", "matrix", "reading"))
    return f"{f32:.4g}", f"{matrix:.4g}" if matrix else "none", f"{reading:.4g}" if row["cold"] else f"({reading:.3g})"


def cell(row, best):
    rate = f"{row['rate']:.3g}"
    return ", ".join([f"**{rate}**" if row["rate"] == best else rate] +
                     ([f"{100 * row['share']:.0f} %"] if row["share"] else []) + [f"{row['max_error']:.0e}"])


def absences(suite, report):
    lines = [f"- {suite.peers[name][0]} is left out: {why}" for name, why in report["missing"].items()]
    there = {(row["case"], row["type"]) for row in report["results"] + report["left_out"]}
    return lines + [f"- {suite.peers[name][0]}: {why} ({', '.join(where(rows, there))})"
                    for (name, why), rows in by(report["left_out"], "peer", "why").items()]


def where(rows, there):
    """Where these rows are, of all cases and types that are there: a type or a case alone stands for everything of it."""
    left = set(by(rows, "case", "type"))
    for at in 1, 0:
        for one in dict.fromkeys(row["type" if at else "case"] for row in rows):
            whole = {place for place in there if place[at] == one}
            if whole <= left:
                yield one
                left -= whole
    yield from (f"{case} {kind}" for case, kind in by(rows, "case", "type") if (case, kind) in left)


def notes(suite, names):
    return [f"{title}: {note}" for title, note in ((suite.peers[n][0], suite.peers[n][1].note) for n in names) if note]


# ---- Bytes -------------------------------------------------------------------------------------------------------------------


def equality(suite, report, names):
    if not report["results"]:
        return []
    lines = [("Bytes: each output beside that of the same problem with another number of threads, and beside that of the same call again in "
              "the same process, bit for bit."), "",
             "| case | type | " + " | ".join(suite.peers[name][0] for name in names) + " |", "|---|---|" + "---|" * len(names)]
    for (case, kind), rows in by(report["results"], "case", "type").items():
        own = [[row for row in rows if row["peer"] == name] for name in names]
        lines.append("| " + " | ".join([case, kind, *map(verdict, own)]) + " |")
    return lines


def comparisons(rows):
    """What was compared, and what was found."""
    return [(f"{threads_of(row['threads'])}{' ' if against == 'again' else ' beside '}{against}", found)
            for row in rows for against, found in row["bytes"].items()]


def differing(rows):
    return [f"{what}: {found['differ']} of {found['of']} differ, by up to {found['most']:.0e}" for what, found in comparisons(rows) if found["differ"]]


def verdict(rows):
    if not rows:
        return ""
    return "; ".join(differing(rows)) or ("equal" if any(len(row["bytes"]) > 1 for row in rows) else "equal again, one number of threads")


# ---- Instruction sets --------------------------------------------------------------------------------------------------------


def instruction_sets(suite, report, names):
    lines = []
    for name in names:
        said = by([row for row in report["results"] if row["peer"] == name and row["isa"]], "isa")
        for (isa,), rows in said.items():
            kinds = f" ({', '.join(dict.fromkeys(row['type'] for row in rows))})" if len(said) > 1 else ""
            lines.append(f"- {suite.peers[name][0]}: {isa}{kinds}")
    return ["Instruction sets, as each says itself:", "", *lines, *of_torch(report["torch"])] if lines or report["torch"] else []


def of_torch(told):
    if "failed" in told:
        return [f"- PyTorch's libraries do not say: {told['failed']}"]
    if not told:
        return []
    units = ", ".join(told["units"]) or "none"
    lines = [f"- PyTorch itself: {told['capability']} (get_cpu_capability); the units for bf16 that it sees: {units}"]
    if "oneDNN" in told:
        lines.append(f"- oneDNN {told['oneDNN']} in PyTorch: {told.get('oneDNN isa')} (ONEDNN_VERBOSE)")
    if "MKL" in told:
        lines.append(f"- MKL in PyTorch: {told['MKL']} (MKL_VERBOSE)")
    return lines + [f"- PyTorch's {what} of bf16 calls {', '.join(told[key]) or 'nothing that says so'}"
                    for what, key in (("linear layer", "linear"), ("attention", "attention"))]


# ---- The picture -------------------------------------------------------------------------------------------------------------


def plot(suite, report, path):
    """A panel for each type and number of threads: the cases side by side, a bar for each peer."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    panels = by(report["results"], "type", "threads")
    names = [name for name in suite.peers if any(row["peer"] == name for row in report["results"])]
    figure, axes = pyplot.subplots(len(panels), squeeze=False, figsize=(14, 0.8 + 3 * len(panels)), layout="constrained")
    for ax, ((kind, threads), rows) in zip(axes[:, 0], panels.items()):
        cases = list(dict.fromkeys(row["case"] for row in rows))
        best = {case: max(row["rate"] for row in rows if row["case"] == case) for case in cases}
        here = [name for name in names if any(row["peer"] == name for row in rows)]
        for n, name in enumerate(here):
            own = [row for row in rows if row["peer"] == name]
            at = [cases.index(row["case"]) + (n - (len(here) - 1) / 2) * 0.86 / len(here) for row in own]
            share = [100 * (row["share"] or row["rate"] / best[row["case"]]) for row in own]
            ax.bar(at, share, 0.86 / len(here), color=f"C{names.index(name)}", label=suite.peers[name][0])
        ax.set_xticks(range(len(cases)), cases)
        ax.set_ylabel("% of the nearer limit" if rows[0]["share"] else "% of the fastest")
        ax.set_title(f"{kind}, {threads_of(threads)}")
        ax.grid(axis="y", alpha=0.4)
        ax.set_axisbelow(True)
    handles = {label: handle for ax in axes[:, 0] for handle, label in zip(*ax.get_legend_handles_labels())}
    titles = [suite.peers[name][0] for name in names]
    figure.legend([handles[title] for title in titles], titles, loc="outside lower center", ncols=min(len(names), 5))
    figure.suptitle(f"{suite.title} on {report['cpu']}, {report['date']}")
    figure.savefig(path, dpi=110)
