#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/attention.md. Usage: draw.py [FOLDER], by default the folder that it lies in.

What the pictures show is computed here: the small example in exact numbers, the rest in double precision, real attention from
tests/data. The same bytes come out on every machine (coordinates are rounded to a hundredth), and tests/host/docs.py compares them.
Needs nothing but Python."""
import math
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent.parent / "tests" / "data"
WIDTH = 760

# Class, light, dark: q, k, v, p (scores and weights), o; i(nk), m(uted), g(rid), w (the card), f (faint areas).
COLOURS = (("q", "#0b6bcb", "#6cb6ff"), ("k", "#c2570c", "#f6a057"), ("v", "#1a7f4b", "#5fcf8e"), ("p", "#8250df", "#c8a4ff"),
           ("o", "#bf3989", "#ff8fc7"), ("i", "#1f2328", "#e6edf3"), ("m", "#59636e", "#9aa5b1"), ("g", "#d1d9e0", "#3d444d"),
           ("w", "#ffffff", "#161b22"), ("f", "#f1f4f7", "#21282f"))


def rules(dark):
    """Rules of elements before those of classes, which win."""
    ink = next(c[1 + dark] for c in COLOURS if c[0] == "i")
    return f"text{{fill:{ink}}}" + "".join(f".{c[0]}{{fill:{c[1 + dark]}}}.l{c[0]}{{stroke:{c[1 + dark]}}}" for c in COLOURS)


FONTS = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;font-size:13px}"
SHAPES = (".c{text-anchor:middle}.e{text-anchor:end}.s{font-size:11px}.t{font-size:15px}.b{font-weight:600}"
          ".n{fill:none}.d{stroke-dasharray:4 3}.h{stroke-width:2}")


def number(x, digits=2):
    text = f"{x:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def show(x, digits=3):
    """A number for readers: minus signs are real ones."""
    return "−∞" if x == -math.inf else number(x, digits).replace("-", "−")


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Picture:
    def __init__(self, height, title):
        self.height, self.title, self.parts = height, title, []
        self.rect(0.5, 0.5, WIDTH - 1, height - 1, "w lg", rx=8)

    def add(self, part):
        self.parts.append(part)

    def text(self, x, y, text, classes=""):
        self.add(f'<text x="{number(x)}" y="{number(y)}"' + (f' class="{classes}"' if classes else "") +
                 f">{escape(text)}</text>")

    def rect(self, x, y, w, h, classes, opacity=1, rx=0):
        self.add(f'<rect x="{number(x)}" y="{number(y)}" width="{number(w)}" height="{number(h)}"' +
                 (f' rx="{rx}"' if rx else "") + f' class="{classes}"' +
                 (f' fill-opacity="{number(opacity)}"' if opacity != 1 else "") + "/>")

    def path(self, d, classes, opacity=1):
        self.add(f'<path d="{d}" class="{classes}"' + (f' opacity="{number(opacity)}"' if opacity != 1 else "") + "/>")

    def line(self, points, classes="lm n"):
        self.path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), classes)

    def circle(self, x, y, r, classes, opacity=1):
        self.add(f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(r)}" class="{classes}"' +
                 (f' opacity="{number(opacity)}"' if opacity != 1 else "") + "/>")

    def arrow(self, points, colour="m", classes=""):
        """Along some points, with a head at the last."""
        (x0, y0), (x1, y1) = points[-2:]
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        bx, by = x1 - 8 * ux, y1 - 8 * uy
        self.line(list(points[:-1]) + [(bx, by)], f"l{colour} n {classes}".strip())
        self.path(f"M{number(x1)} {number(y1)}L{number(bx - 4 * uy)} {number(by + 4 * ux)}"
                  f"L{number(bx + 4 * uy)} {number(by - 4 * ux)}Z", colour)

    def box(self, x, y, w, h, text, colour="m", classes="c"):
        """A labelled box; lines of text are separated by line breaks."""
        self.rect(x, y, w, h, f"{colour} l{colour}", 0.13, rx=5)
        lines = text.split("\n")
        for i, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 4.5 + 16 * (i - (len(lines) - 1) / 2), line, classes)

    def cells(self, x, y, size, rows, colour, gap=1):
        """A grid of squares; rows hold opacities from 0 to 1, and equal ones become one path."""
        levels = {}
        for r, row in enumerate(rows):
            for c, level in enumerate(row):
                levels.setdefault(number(level), []).append(f"M{number(x + c * size)} {number(y + r * size)}"
                                                            f"h{size - gap}v{size - gap}h-{size - gap}z")
        for level in sorted(levels):
            self.path("".join(levels[level]), colour if level != "0" else "f", 1 if level == "0" else float(level))

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
                f'height="{self.height}" role="img">\n<!-- SPDX-License-Identifier: Apache-2.0; made by draw.py -->\n'
                f"<title>{escape(self.title)}</title>\n<style>{FONTS}{rules(0)}{SHAPES}\n"
                f"@media (prefers-color-scheme:dark){{{rules(1)}}}</style>\n" + "\n".join(self.parts) + "\n</svg>\n")


# ---- The small example of the whole page: one query, four keys in two blocks of two ------------------------------------------

Q, K, V = (2, 1), ((0, 1), (1, 1), (2, 0), (1, 0)), (8, 4, 2, 16)
SCORES = [sum(a * b for a, b in zip(Q, k)) for k in K]
SUB = "₀₁₂₃₄₅₆₇₈₉"


def softmax(scores):
    m = max(scores)
    e = [math.exp(s - m) for s in scores]
    return [x / sum(e) for x in e]


# ---- Real attention: tests/data ----------------------------------------------------------------------------------------------

HEADS, TOKENS, CHANNELS = 12, 65, 32
# The text of tools/capture_minilm.py. One of its words is three tokens; nothing here needs the names of the parts.
WORDS = """[CLS] the bakery on mill street opens before sunrise , when the first trams are still empty . its owner , a retired
violin teacher , knea- -d- -s every loaf by hand and lets the dough rest overnight near the oven . regular customers say that her
rye bread tastes better on the second day , if any of it is left . [SEP]""".split()


def read_npy(name):
    raw = (DATA / name).read_bytes()
    start = 10 + struct.unpack("<H", raw[8:10])[0]
    return struct.unpack(f"<{(len(raw) - start) // 4}f", raw[start:])


def real_scores(layer, head, query):
    q, k = (read_npy(f"minilm-layer{layer}-{name}.npy") for name in "qk")

    def row(x, token):
        start = (head * TOKENS + token) * CHANNELS
        return x[start:start + CHANNELS]
    return [sum(a * b for a, b in zip(row(q, query), row(k, j))) / math.sqrt(CHANNELS) for j in range(TOKENS)]


# ---- The pictures ------------------------------------------------------------------------------------------------------------

def draw_dot():
    p = Picture(266, "Four keys, and their projections on one query")
    ox, oy, unit = 62, 206, 104

    def at(v):
        return ox + unit * v[0], oy - unit * v[1]
    p.line([(ox, oy), (ox + 2.4 * unit, oy)], "lg n")
    p.line([(ox, oy), (ox, oy - 1.35 * unit)], "lg n")
    p.line([(ox, oy), at((2.4, 1.2))], "lq n d")
    for j, k in enumerate(K):
        t = SCORES[j] / sum(a * a for a in Q)
        foot = at((Q[0] * t, Q[1] * t))
        p.line([at(k), foot], "lk n d")
        p.circle(*foot, 3, "q")
    for j, k in enumerate(K):
        p.arrow([(ox, oy), at(k)], "k", "h")
        x, y = at(k)
        p.text(x + (0, 8, 4, -4)[j], y + (-9, -6, 20, 20)[j], f"k{SUB[j]}", "k b c")
    p.arrow([(ox, oy), at(Q)], "q", "h")
    p.text(at(Q)[0] + 2, at(Q)[1] - 10, "q", "q b c")
    p.text(370, 42, "How far does a key reach along q?", "b")
    for j, k in enumerate(K):
        y = 82 + 40 * j
        p.text(370, y, f"q·k{SUB[j]} = {Q[0]}·{k[0]} + {Q[1]}·{k[1]} = {SCORES[j]}")
        p.rect(540, y - 12, 40 * SCORES[j], 15, "p", 0.75, rx=2)
        p.text(548 + 40 * SCORES[j], y, str(SCORES[j]), "b")
    p.text(370, 240, f"q = ({Q[0]}, {Q[1]});  the dots are where keys meet q's line", "m s")
    return p


def draw_softmax():
    p = Picture(262, "The same four scores as weights, for three scales")
    for n, (scale, name) in enumerate(((0.25, "scale ¼: nearly equal"), (math.log(2), "scale ln 2: powers of two"),
                                       (3, "scale 3: nearly one key"))):
        weights, x = softmax([scale * s for s in SCORES]), 34 + 244 * n
        p.text(x, 32, name, "b")
        p.line([(x, 178), (x + 204, 178)], "lg n")
        for j, w in enumerate(weights):
            p.rect(x + 6 + 50 * j, 178 - 112 * w, 40, 112 * w, "p", 0.75)
            p.text(x + 26 + 50 * j, 172 - 112 * w, f"{100 * w:.1f} %", "s c")
            p.text(x + 26 + 50 * j, 196, f"k{SUB[j]}: {SCORES[j]}", "k s c")
            p.text(x + 26 + 50 * j, 214, f"v{SUB[j]}: {V[j]}", "v s c")
        p.text(x, 242, f"result: {show(sum(w * v for w, v in zip(weights, V)), 2)}", "o b")
    return p


def draw_scale():
    p = Picture(284, "Dot products of random vectors, before and after the division by the square root of d")
    depths = (4, 16, 64, 256)
    for side, (title, limit, top) in enumerate((("q·k", 40, 0.2), ("q·k / √d", 4, 0.42))):
        x, y, w, h = 30 + 372 * side, 222, 328, 160
        p.text(x, 34, title, "b")
        p.line([(x, y), (x + w, y)], "lm n")
        for tick in (-limit, -limit // 2, 0, limit // 2, limit):
            at = x + w / 2 + w / 2 * tick / limit
            p.line([(at, y), (at, y + 4)], "lm n")
            p.text(at, y + 18, show(tick), "m s c")
        for i, d in enumerate(depths):
            points = []
            unit = math.sqrt(d) if side else 1
            for ones in range(-1, d + 2):
                value, chance = (2 * ones - d) / unit, (math.comb(d, ones) if ones >= 0 else 0) / 2 ** d
                if abs(value) <= limit:
                    points.append((x + w / 2 * (1 + value / limit), y - h / top * chance * unit / 2))
            p.line(points, f"l{'qkvp'[i]} n h")
            if not side:
                px, py = ((178, 82), (190, 132), (206, 172), (236, 192))[i]
                p.text(x + px, py, f"d = {d}: spread {show(math.sqrt(d))}", f"{'qkvp'[i]} s")
        if side:
            p.text(x + w / 2 + 74, 90, "spread 1,", "m s")
            p.text(x + w / 2 + 74, 106, "whatever d is", "m s")
    p.text(30, 268, "Elements are +1 or −1 with equal chances: the counts are exact (binomial).", "m s")
    return p


def draw_attention():
    p = Picture(256, "Attention as products of matrices; one row of each result belongs to one query")
    size, queries, keys, d = 14, range(45, 51), range(43, 51), 4
    scores = [[real_scores(0, 4, i)[j] for j in keys] for i in queries]
    least, most = min(map(min, scores)), max(map(max, scores))
    weights = [softmax(row) for row in scores]
    shade = [[0.1 + 0.85 * round((s - least) / (most - least) * 12) / 12 for s in row] for row in scores]
    heavy = max(map(max, weights))
    dark = [[0.05 + 0.9 * round(w / heavy * 12) / 12 for w in row] for row in weights]
    top, marked = 62, 4

    def matrix(x, rows, columns, colour, name, shape, levels=None, row=None):
        p.cells(x, top, size, levels or [[0.35] * columns for _ in range(rows)], colour)
        if row is not None:
            p.rect(x - 1.5, top + row * size - 1.5, columns * size + 2, size + 2, f"n l{colour} h")
        p.text(x + columns * size / 2, top - 24, name, f"{colour} b c")
        p.text(x + columns * size / 2, top - 9, shape, "m s c")
        return x + columns * size
    n, m = len(queries), len(keys)
    x = matrix(36, n, d, "q", "Q", "n × dₖ", row=marked)
    p.text(x + 17, top + 46, "·", "t c")
    x = matrix(x + 36, d, m, "k", "Kᵀ", "dₖ × m")
    p.text(x + 14, top + 46, "=", "t c")
    x = matrix(x + 30, n, m, "p", "S", "n × m", shade, marked)
    p.arrow([(x + 8, top + 42), (x + 60, top + 42)])
    p.text(x + 34, top + 60, "softmax", "m s c")
    p.text(x + 34, top + 76, "row by row", "m s c")
    x = matrix(x + 72, n, m, "p", "P", "n × m", dark, marked)
    p.text(x + 14, top + 46, "·", "t c")
    x = matrix(x + 28, m, d, "v", "V", "m × dᵥ")
    p.text(x + 14, top + 46, "=", "t c")
    matrix(x + 30, n, d, "o", "O", "n × dᵥ", row=marked)
    p.text(36, 206, "The framed row is one query from end to end: its scores, its weights, its result. "
           "Other rows play no part in it.")
    p.text(36, 230, f"Real numbers: “{' '.join(WORDS[i] for i in queries)}” on “{' '.join(WORDS[j] for j in keys)}”.", "m s")
    return p


def draw_heads():
    p = Picture(356, "Three real heads, one query each: where the weight goes")
    shown_heads = ((0, 2, "bread", "the token before"), (0, 1, "bread", "what it is about"), (5, 8, "her", "whom it stands for"))
    for n, (layer, head, word, why) in enumerate(shown_heads):
        query, base = WORDS.index(word), 96 + 106 * n
        weights = softmax(real_scores(layer, head, query))
        most, x0, step = max(weights), 176, 8.6
        p.text(22, base - 42, f"“{word}”", "q b")
        p.text(22, base - 24, f"layer {layer}, head {head}:", "m s")
        p.text(22, base - 8, why, "m s")
        p.line([(x0 - 4, base), (x0 + step * TOKENS, base)], "lg n")
        p.path("".join(f"M{number(x0 + step * j)} {base}v-{number(56 * w / most)}h6v{number(56 * w / most)}z"
                       for j, w in enumerate(weights) if 56 * w / most >= 0.3), "p", 0.8)
        p.path(f"M{number(x0 + step * query + 3)} {base + 3}l4 7h-8z", "q")
        for j in (j for j, w in enumerate(weights) if w >= 0.07):
            right = j + 1 == query
            p.text(x0 + step * j + (1 if right else 3), base - 61 * weights[j] / most - 3,
                   f"{WORDS[j]} {100 * weights[j]:.0f} %", "s " + ("e" if right else "c"))
    p.text(22, 340, "The 65 tokens of one paragraph from left to right; the triangle is the query's own place. "
           "Each scaled to its largest weight.", "m s")
    return p


def draw_projection():
    p = Picture(300, "From tokens to heads and back: four matrices that were learned")
    p.rect(24, 74, 66, 120, "i li", 0.12)
    for i in range(1, 6):
        p.line([(24, 74 + 20 * i), (90, 74 + 20 * i)], "lg n")
    p.text(57, 62, "X", "b c")
    p.text(57, 212, "n tokens ×", "m s c")
    p.text(57, 226, "width", "m s c")
    for i, (name, colour) in enumerate((("Q", "q"), ("K", "k"), ("V", "v"))):
        y = 28 + 82 * i
        p.arrow([(92, 134), (128, y + 36)])
        p.box(130, y + 16, 52, 40, f"W{'qkv'[i]}", colour)
        p.arrow([(184, y + 36), (214, y + 36)])
        for h in range(4):
            p.rect(216 + 24 * h, y + 8, 22, 56, colour, 0.25 + 0.2 * h)
        p.text(312, y + 41, name, f"{colour} b")
    p.arrow([(330, 134), (372, 134)])
    for h in range(4):
        y = 46 + 45 * h
        p.box(374, y, 146, 38, f"attention of head {h}", "p", "c s")
    p.arrow([(522, 134), (554, 134)])
    for h in range(4):
        p.rect(556 + 22 * h, 106, 20, 56, "o", 0.25 + 0.2 * h)
    p.text(599, 94, "side by side", "m s c")
    p.arrow([(646, 134), (668, 134)])
    p.box(670, 114, 52, 40, "Wₒ", "o")
    p.arrow([(724, 134), (748, 134)])
    p.text(216, 282, "channels of head 0, 1, 2, 3", "m s")
    p.text(748, 180, "n tokens × width", "m s e")
    return p


def draw_groups():
    p = Picture(216, "Query heads and the key/value heads that they share")
    for n, (name, kv, what) in enumerate((("MHA", 8, "a cache of 8 heads"), ("GQA", 2, "a quarter of it"),
                                          ("MQA", 1, "an eighth of it"))):
        x = 32 + 244 * n
        p.text(x, 34, f"{name}: kv_heads = {kv}", "b")
        group = 8 // kv
        for h in range(8):
            cx, hk = x + 12 + 26 * h, h // group
            kx = x + 12 + 26 * (hk * group + (group - 1) / 2)
            p.line([(cx, 86), (kx, 136)], "lm n")
        for h in range(8):
            p.rect(x + 2 + 26 * h, 62, 20, 24, "q", 0.8, rx=3)
        for hk in range(kv):
            kx = x + 12 + 26 * (hk * group + (group - 1) / 2)
            p.rect(kx - 10, 136, 20, 12, "k", 0.85)
            p.rect(kx - 10, 149, 20, 12, "v", 0.85)
        p.text(x, 190, what, "m s")
    p.text(252, 79, "Q", "q b c")
    p.text(252, 147, "K", "k b s c")
    p.text(252, 160, "V", "v b s c")
    return p


def row_range(q_len, keys, token, causal=False, left=-1, right=-1, prefix=0, local=0):
    """rapt_row_range of kernels/kernel.h, bottom-right."""
    at, lo, hi = token + keys - q_len, 0, keys
    if causal:
        hi = min(hi, at + 1)
    if right >= 0:
        hi = min(hi, at + right + 1)
    if left >= 0:
        lo = max(lo, at - left)
    hi = max(hi, min(prefix, keys))
    if local:
        lo, hi = max(lo, at // local * local), min(hi, at // local * local + local)
    return lo, max(lo, hi)


def draw_masks():
    p = Picture(382, "Which keys each query sees")
    shown = (("none", 8, {}), ("causal", 8, {"causal": True}), ("causal, q_len = 3, kv_len = 8", 3, {"causal": True}),
             ("causal, window_left = 2", 8, {"causal": True, "left": 2}),
             ("causal, prefix = 3", 8, {"causal": True, "prefix": 3}),
             ("causal, local_chunk = 4", 8, {"causal": True, "local": 4}))
    size = 15
    for n, (name, queries, options) in enumerate(shown):
        x, y = 58 + 238 * (n % 3), 52 + 168 * (n // 3)
        p.text(x, y - 10, name, "b s")
        rows = []
        for i in range(queries):
            lo, hi = row_range(queries, 8, i, **options)
            rows.append([0.75 if lo <= j < hi else 0 for j in range(8)])
        p.cells(x, y, size, rows, "p")
        if n % 3 == 0:
            p.text(x - 8, y + 64, "queries", "q s e")
            p.text(x + 60, y + 136, "keys", "k s c")
    p.text(58, 372, "Coloured: attended. Everything else has weight 0, and whole blocks of it are never visited.", "m s")
    return p


def draw_cross():
    p = Picture(226, "Cross-attention: queries from one sequence, keys and values from another")
    x0 = 246
    words, into = WORDS[45:52], ("ihr", "Roggen-", "brot", "schmeckt")
    p.text(24, 40, "X: what is being written", "q b")
    p.text(x0, 40, "Y: what was read", "k b")
    for j, word in enumerate(words):
        p.text(x0 + 66 * j + 31, 66, word, "s c")
        p.rect(x0 + 66 * j, 74, 62, 12, "k", 0.75)
        p.rect(x0 + 66 * j, 88, 62, 12, "v", 0.75)
    p.text(x0 - 10, 84, "K", "k b s e")
    p.text(x0 - 10, 98, "V", "v b s e")
    for i, word in enumerate(into):
        y = 112 + 24 * i
        p.rect(112, y, 62, 20, "q", 0.75)
        p.text(102, y + 14, word, "s e")
        p.arrow([(178, y + 10), (x0 - 8, y + 10)])
        for j in range(len(words)):
            p.rect(x0 + 66 * j, y, 62, 20, "p", 0.22)
    p.text(143, 106, "Q", "q b s c")
    return p


def draw_sinusoidal():
    p = Picture(306, "The sinusoidal code of positions: waves, each slower than the last")
    width, positions, mark, x0, step = 16, 64, 20, 120, 7.6
    for i in range(5):
        frequency, y = 10000 ** (-2 * i / width), 58 + 48 * i
        p.text(22, y + 4, f"channels {2 * i}, {2 * i + 1}", "s")
        p.line([(x0, y), (x0 + step * positions, y)], "lg n")
        for name, wave in (("q", math.sin), ("k", math.cos)):
            fine = (4, 2, 1, 1, 1)[i]
            at = [n / fine for n in range(0, fine * positions + 1, 1 + (i > 1))]
            p.line([(x0 + step * n, y - 18 * wave(n * frequency)) for n in at], f"l{name} n")
            p.circle(x0 + step * mark, y - 18 * wave(mark * frequency), 3.5, name)
        p.text(x0 + step * positions + 12, y - 3, f"{math.sin(mark * frequency):.2f}".replace("-", "−"), "q s")
        p.text(x0 + step * positions + 12, y + 11, f"{math.cos(mark * frequency):.2f}".replace("-", "−"), "k s")
    p.line([(x0 + step * mark, 30), (x0 + step * mark, 272)], "lm n d")
    p.text(x0 + step * mark, 24, f"position {mark}", "b s c")
    p.text(x0 + step * positions + 12, 24, "its code", "b s")
    p.text(x0, 292, "sine (even channels)", "q s")
    p.text(x0 + 140, 292, "cosine (odd channels)", "k s")
    p.text(x0 + step * positions, 292, f"positions 0 to {positions}, width {width}", "m s e")
    return p


def draw_rotary():
    p = Picture(276, "Rotary embedding: positions turn pairs of channels, and only their distance remains")
    q, k, frequency = (1.0, 0.25), (0.55, 0.75), 0.35

    def turn(v, angle):
        return v[0] * math.cos(angle) - v[1] * math.sin(angle), v[1] * math.cos(angle) + v[0] * math.sin(angle)
    for n, (i, j) in enumerate(((1, 3), (5, 7))):
        ox, oy, r = 108 + 196 * n, 150, 74
        p.circle(ox, oy, r, "n lg")
        a, b = turn(q, i * frequency), turn(k, j * frequency)
        for v, name, at in ((a, "q", i), (b, "k", j)):
            p.arrow([(ox, oy), (ox + r * v[0], oy - r * v[1])], name, "h")
            out = (r + 15) / math.hypot(*v)
            p.text(ox + out * v[0], oy - out * v[1] + 4, f"{name}, {at}", f"{name} s c")
        p.text(ox, 42, f"query at {i}, key at {j}", "b s c")
        p.text(ox, 256, f"q·k = {show(a[0] * b[0] + a[1] * b[1], 4)}", "p b s c")
    for i in range(3):
        base, d = 10000, 8
        theta, ox, oy, r = base ** (-2 * i / d), 458 + 116 * i, 150, 44
        p.circle(ox, oy, r, "n lg")
        for pos in range(7):
            end = ox + r * math.cos(pos * theta), oy - r * math.sin(pos * theta)
            p.line([(ox, oy), end], "lo n" + (" h" if pos == 6 else ""))
        p.text(ox, 90, f"pair {i}", "b s c")
        p.text(ox, 216, f"{show(theta, 3)} rad", "m s c")
        p.text(ox, 230, "a position", "m s c")
    p.text(574, 42, "positions 0 to 6, d = 8, base 10000", "b s c")
    p.text(574, 256, "fast pairs tell neighbours apart, slow ones regions", "m s c")
    return p


def draw_alibi():
    p = Picture(262, "ALiBi: what a distance costs in each of eight heads")
    x, y, w, h, most = 62, 212, 560, 160, 64
    p.line([(x, y - h), (x, y), (x + w, y)], "lm n")
    for distance in range(0, most + 1, 16):
        p.text(x + w * distance / most, y + 18, str(distance), "m s c")
    for factor in (0, 0.5, 1):
        p.text(x - 8, y - h * factor + 4, show(factor), "m s e")
        p.line([(x, y - h * factor), (x + w, y - h * factor)], "lg n")
    for head in range(8):
        slope = 2 ** (-8 * (head + 1) / 8)
        p.line([(x + w * n / most, y - h * math.exp(-slope * n)) for n in range(most + 1)], "lp n")
        end = math.exp(-slope * most)
        if end > 0.1:
            p.text(x + w + 8, y - h * end + 4, f"head {head}: slope 1/{round(1 / slope)}", "s")
        elif head == 3:
            p.text(x + w * 27 / most, y - h * 0.21, f"head 3: 1/{round(1 / slope)}", "s")
    p.text(x, 30, "factor of an unnormalised weight: exp(−slope · distance)", "b")
    p.text(x, 250, "distance of query and key, in tokens; "
           "the three curves on the left are heads 0, 1, 2: slopes 1/2, 1/4, 1/8", "m s")
    return p


def size_of(bytes_):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if bytes_ < 1024:
            return f"{show(bytes_, 1)} {unit}"
        bytes_ /= 1024
    return f"{show(bytes_, 1)} TiB"


def draw_memory():
    p = Picture(318, "The matrix that is written and read three times, and the tile that takes its place")
    n, d, block, lanes = 4096, 64, 64, 48
    p.text(34, 34, "In three steps", "b")
    p.text(34, 52, f"S for n = {n}: {size_of(4 * n * n)} a head", "m s")
    p.rect(70, 74, 176, 176, "p lp", 0.2)
    p.text(158, 158, "S = QKᵀ, then P", "c")
    p.text(158, 178, "written, read,", "m s c")
    p.text(158, 192, "written, read", "m s c")
    p.rect(44, 74, 18, 176, "q lq", 0.3)
    p.rect(70, 258, 176, 12, "k lk", 0.3)
    p.rect(70, 274, 176, 12, "v lv", 0.3)
    p.rect(254, 74, 18, 176, "o lo", 0.3)
    for x, y, name, colour in ((53, 68, "Q", "q"), (263, 68, "O", "o"), (60, 268, "K", "k"), (60, 285, "V", "v")):
        p.text(x, y, name, f"{colour} b s c")
    x0 = 380
    p.text(x0, 34, "Fused", "b")
    p.text(x0, 52, f"a tile of {lanes} queries × {block} keys (avx512): {size_of(4 * lanes * block)}, in cache", "m s")
    p.rect(x0 + 36, 74, 176, 176, "lg f", 1)
    p.rect(x0 + 36, 118, 66, 26, "f lm d n", 1)
    p.rect(x0 + 102, 118, 26, 26, "p lp", 0.6)
    p.arrow([(x0 + 132, 131), (x0 + 206, 131)], "p", "h")
    p.rect(x0 + 10, 74, 18, 176, "q lq", 0.15)
    p.rect(x0 + 10, 118, 18, 26, "q lq", 0.7)
    for y, colour in ((258, "k"), (274, "v")):
        p.rect(x0 + 36, y, 176, 12, f"{colour} l{colour}", 0.15)
        p.rect(x0 + 102, y, 26, 12, colour, 0.8)
    p.rect(x0 + 226, 118, 18, 26, "o lo", 0.7)
    p.text(x0 + 19, 68, "Q", "q b s c")
    p.text(x0 + 25, 268, "K", "k b s c")
    p.text(x0 + 25, 285, "V", "v b s c")
    p.text(x0 + 235, 110, "m, l, o", "o b s c")
    p.text(x0 + 254, 126, "state of a row:", "m s")
    p.text(x0 + 254, 140, "2 + dᵥ floats", "m s")
    p.text(x0 + 254, 154, f"dᵥ = {d}: {size_of(4 * (2 + d))}", "m s")
    p.text(x0 + 36, 308, "keys come block by block; the next overwrites the scores", "m s")
    return p


def draw_online():
    p = Picture(436, "The online softmax on two blocks of two keys")
    state, before = (-math.inf, 0, 0), []
    bars_y, unit = 118, 62
    for n in range(2):
        x, keys = 26 + 262 * n, (2 * n, 2 * n + 1)
        m, l, o = state
        scores = [SCORES[j] for j in keys]
        top = max([m] + scores)
        alpha = 2.0 ** (m - top) if m > -math.inf else 0.0
        weights = [2.0 ** (s - top) for s in scores]
        new_l = l * alpha + sum(weights)
        new_o = o * alpha + sum(w * V[j] for w, j in zip(weights, keys))
        p.text(x, 32, f"Block {n}: keys {keys[0]} and {keys[1]}", "b")
        p.line([(x, bars_y), (x + 232, bars_y)], "lg n")
        before = [(j, w * alpha, True) for j, w, _ in before] + [(j, w, False) for j, w in zip(keys, weights)]
        for j, w, old in before:
            p.rect(x + 8 + 56 * j, bars_y - unit * w, 38, unit * w, "p", 0.3 if old else 0.8)
            p.text(x + 27 + 56 * j, bars_y - unit * w - 5, show(w), "s c")
            p.text(x + 27 + 56 * j, bars_y + 16, f"s{SUB[j]} = {SCORES[j]}", ("m" if old else "k") + " s c")
        rows = (("maximum", f"m = max({show(m)}, {scores[0]}, {scores[1]}) = {top}"),
                ("rescaling", f"α = 2^({show(m)} − {top}) = {show(alpha)}"),
                ("weights", f"p = 2^({scores[0]} − {top}), 2^({scores[1]} − {top}) = {show(weights[0])}, {show(weights[1])}"),
                ("sum", f"l = {show(l)}·{show(alpha)} + {show(sum(weights))} = {show(new_l)}"),
                ("values", (f"o = {show(o)}·{show(alpha)} + {show(weights[0])}·{V[keys[0]]} + "
                            f"{show(weights[1])}·{V[keys[1]]} = {show(new_o)}")))
        for i, (name, line) in enumerate(rows):
            p.text(x, 164 + 42 * i, name, "m s")
            p.text(x, 181 + 42 * i, line, "s")
        state = (top, new_l, new_o)
        before = [(j, w, True) for j, w, _ in before]
        p.rect(x, 362, 232, 30, "o lo", 0.12, rx=5)
        p.text(x + 116, 382, f"m = {state[0]},  l = {show(state[1])},  o = {show(state[2])}", "b s c")
        p.arrow([(x + 234, 377), (x + 260, 377)], "o")
    x = 26 + 262 * 2
    p.text(x, 32, "The end of the row", "b")
    p.rect(x, 362, 184, 30, "o lo", 0.3, rx=5)
    p.text(x + 92, 382, f"o / l = {show(state[2])} / {show(state[1])} = {show(state[2] / state[1])}", "b s c")
    direct = [2.0 ** (s - max(SCORES)) for s in SCORES]
    p.text(x, 262, "All at once, to compare:", "m s")
    p.text(x, 284, f"weights {', '.join(show(w) for w in direct)}", "s")
    p.text(x, 304, f"their sum {show(sum(direct))}", "s")
    p.text(x, 324, f"with values {show(sum(w * v for w, v in zip(direct, V)))}", "s")
    p.text(x, 344, f"quotient {show(sum(w * v for w, v in zip(direct, V)) / sum(direct))}", "s")
    p.text(26, 418, f"values v = {', '.join(map(str, V))}. Pale bars: earlier weights, as the new maximum sees them. "
           "Only l and o are kept of them.", "m s")
    return p


def draw_chunks():
    p = Picture(312, "Keys in blocks of 64 and chunks of 512, and the merging of the chunks' states")
    keys, block, chunk, x0, scale = 1300, 64, 512, 30, 0.53
    chunks = -(-keys // chunk)
    p.text(x0, 32, f"{keys} keys", "b")
    for c in range(chunks):
        first, end = c * chunk, min(keys, (c + 1) * chunk)
        xa, xb = x0 + scale * first, x0 + scale * end
        for at in range(first, end, block):
            w = min(block, end - at) * scale
            p.rect(x0 + scale * at + 0.5, 48, w - 1, 26, "k", 0.7 if at // block % 2 else 0.45)
        mid = (xa + xb) / 2
        p.text(mid, 93, f"chunk {c}: keys {first} to {end - 1}", "s c")
        p.text(mid, 108, f"blocks {first // block} to {(end - 1) // block}", "m s c")
        p.arrow([(mid, 114), (mid, 134)], "k")
        p.box(mid - 58, 136, 116, 30, f"state {c}: m, l, o", "o", "c s")
    mids = [x0 + scale * (c * chunk + min(keys, (c + 1) * chunk)) / 2 for c in range(chunks)]
    p.text(mids[0], 182, "thread A, now", "m s c")
    p.text(mids[1], 182, "thread B, earlier", "m s c")
    p.text(mids[2], 182, "another machine", "m s c")
    y = 226
    p.arrow([(mids[0], 188), (mids[0], y), (mids[1] - 17, y)], "o")
    for c in range(1, chunks):
        p.circle(mids[c], y, 16, "f lo")
        p.text(mids[c], y + 5, "⊕", "o t c")
        p.arrow([(mids[c], 188), (mids[c], y - 17)], "o")
        if c + 1 < chunks:
            p.arrow([(mids[c] + 17, y), (mids[c + 1] - 17, y)], "o")
    p.arrow([(mids[-1], y + 17), (mids[-1], 262)], "o")
    p.box(mids[-1] - 58, 264, 116, 30, "o / l", "o", "c")
    p.text(x0, 272, "always merged in the same order, from the left, whoever computed the states and when", "m s")
    p.text(x0, 290, "⊕: both states are rescaled to the larger of the two maxima, and added", "m s")
    return p


def draw_lanes():
    p = Picture(398, "A register of four lanes: four queries, or four keys")
    size, gap = 50, 4

    def register(x, y, names, colour, label, opacity=0.3):
        for i, name in enumerate(names):
            p.rect(x + (size + gap) * i, y, size, 24, f"{colour} l{colour}", opacity, rx=3)
            p.text(x + (size + gap) * i + size / 2, y + 16, name, "s c")
        if label:
            p.text(x - 8, y + 16, label, "m s e")
    for side in range(2):
        x = 122 + 384 * side
        p.text(x - 96, 34, ("Queries in lanes: many rows", "Keys in lanes: few rows, as in decode")[side], "b")
        lanes = range(4)
        if not side:
            register(x, 54, [f"q{SUB[r]}[i]" for r in lanes], "q", "load")
            register(x, 86, ["k₅[i]"] * 4, "k", "broadcast", 0.12)
        else:
            register(x, 54, [f"k{SUB[4 + r]}[i]" for r in lanes], "k", "transpose")
            register(x, 86, ["q[i]"] * 4, "q", "broadcast", 0.12)
        p.text(x + 2 * size + 6, 128, "multiply, add; i = 0, 1, 2 …", "m s c")
        if not side:
            for j in range(3):
                register(x, 138 + 28 * j, [f"s{SUB[r]}{SUB[4 + j]}" for r in lanes], "p", f"key {4 + j}", 0.5 if j == 1 else 0.2)
            p.text(x + 2 * size + 6, 240, "maximum, weights, sums: down the", "m s c")
            p.text(x + 2 * size + 6, 254, "registers, lane by lane", "m s c")
        else:
            register(x, 138, [f"s{SUB[4 + j]}" for j in lanes], "p", "scores", 0.5)
            p.text(x + 2 * size + 6, 186, "one query's scores lie side by side:", "m s c")
            p.text(x + 2 * size + 6, 200, "its maximum goes across the lanes,", "m s c")
            p.text(x + 2 * size + 6, 214, "where order does not matter", "m s c")
        if not side:
            register(x, 276, [f"p{SUB[r]}₅" for r in lanes], "p", "load")
            register(x, 308, ["v₅[c]"] * 4, "v", "broadcast", 0.12)
            register(x, 352, [f"o{SUB[r]}[c]" for r in lanes], "o", "values", 0.5)
        else:
            register(x, 276, [f"v₅[{c}]" for c in lanes], "v", "load")
            register(x, 308, ["p₅"] * 4, "p", "broadcast", 0.12)
            register(x, 352, [f"o[{c}]" for c in lanes], "o", "values", 0.5)
    p.line([(388, 24), (388, 378)], "lg n")
    return p


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def draw_order():
    p = Picture(372, "The same numbers in another order, and the order that every vector length can keep")
    numbers = (1e8, 1.0, -1e8, 1.0)
    chain = 0.0
    for x in numbers:
        chain = single(chain + x)
    lanes = [single(numbers[0] + numbers[2]), single(numbers[1] + numbers[3])]
    pairs = single(lanes[0] + lanes[1])
    names = ["10⁸", "1", "−10⁸", "1"]
    p.text(30, 34, "Four f32 numbers, two orders", "b")
    for i, name in enumerate(names):
        p.rect(30 + 58 * i, 48, 52, 24, "p lp", 0.3, rx=3)
        p.text(56 + 58 * i, 64, name, "s c")
    p.text(290, 56, f"one chain: ((10⁸ + 1) − 10⁸) + 1 = {show(chain)}")
    p.text(290, 76, f"two lanes: (10⁸ − 10⁸) + (1 + 1) = {show(pairs)}")
    p.text(30, 116, "So the weights of a block are added as sixteen sums, by key mod 16, and then in a chain:", "b")
    colours = "qkvp"
    for n, (width, name) in enumerate(((4, "4 lanes"), (8, "8 lanes"), (16, "16 lanes"))):
        y = 142 + 62 * n
        p.text(30, y + 28, name, "b s")
        registers = 16 // width
        unit = 34
        for r in range(registers):
            for lane in range(width):
                key = r * width + lane
                x = 116 + unit * key + 10 * r * (width < 16)
                p.rect(x, y + 12, unit - 4, 24, f"{colours[r]} l{colours[r]}", 0.3, rx=3)
                p.text(x + (unit - 4) / 2, y + 28, f"S{''.join(SUB[int(c)] for c in str(key))}", "s c")
        p.text(116, y + 3, f"{registers} register{'s' * (registers > 1)}", "m s")
    p.text(30, 340, "Each S is one chain, from the lowest key up, in a lane of its own: "
           "which lane, and of how many, no sum can tell.", "m s")
    p.text(30, 358, "With queries in lanes each S is a register, and its lanes are the same S of as many queries.", "m s")
    return p


def draw_cache():
    p = Picture(308, "Prefill and decode: the cache grows by a row, and each step reads all of it")
    size, prompt, total, x, y = 22, 5, 9, 96, 56
    p.text(x, 34, "keys and values in the cache", "b")
    for i in range(total):
        row = [0.75 if j < i else 0.75 if j == i else 0 for j in range(total)]
        gap = 0 if i < prompt else 6 + 6 * (i - prompt)
        for j, level in enumerate(row):
            new = j == i and i >= prompt
            if level:
                p.rect(x + size * j, y + size * i + gap, size - 2, size - 2, "v" if new else "p", 0.8 if new else 0.45)
    p.line([(x - 12, y), (x - 18, y), (x - 18, y + prompt * size - 2), (x - 12, y + prompt * size - 2)], "lm n")
    p.text(x - 26, y + 58, "prefill", "q b s e")
    for i in range(prompt, total):
        p.text(x - 26, y + size * i + 6 + 6 * (i - prompt) + 14, "decode", "q b s e")
    tx = 390
    group, d = 4, 128
    p.text(tx, 66, "Prefill: one call for the whole prompt", "b")
    p.text(tx, 86, "Each key read serves many queries: bound by arithmetic.", "m s")
    p.text(tx, 122, "Decode: one call for each new token", "b")
    p.text(tx, 142, "Its K and V join the cache, then its query reads", "m s")
    p.text(tx, 158, "all of it, once: bound by memory.", "m s")
    p.rect(tx, 176, 18, 18, "v", 0.8)
    p.text(tx + 28, 190, "appended (rapt_kv_append_run), attended too", "s")
    p.rect(tx, 202, 18, 18, "p", 0.45)
    p.text(tx + 28, 216, "attended (rapt_run)", "s")
    for i, (name, element) in enumerate((("f32", 4), ("f16", 2), ("int8", 1))):
        p.text(tx, 248 + 16 * i, f"{name}: {show(4 * d / (2 * d * element), 1)} operations a byte for each row;"
               f" × {group} in groups of {group}", "m s")
    return p


def draw_layer():
    p = Picture(408, "The layers around attention: encoder and decoder, as in the paper")
    w, tops = 180, []

    def column(x, title, parts, note):
        p.text(x + w / 2, 30, title, "b c")
        y = 340
        p.text(x + w / 2, y + 44, note, "m s c")
        p.arrow([(x + w / 2, y + 28), (x + w / 2, y + 2)])
        for name, colour, _step in parts:
            top = y - 40
            p.box(x, top, w, 36, name, colour)
            p.arrow([(x + w / 2, top), (x + w / 2, top - 15)])
            p.box(x + w / 2 - 62, top - 41, 124, 26, "add & norm", "m", "c s")
            p.arrow([(x + w / 2, y + 14), (x - 22, y + 14), (x - 22, top - 28), (x + w / 2 - 64, top - 28)], "m", "d")
            y = top - 41 - 18
            p.arrow([(x + w / 2, top - 41), (x + w / 2, y + 2)])
        tops.append((x + w / 2, y + 4))
    column(56, "Encoder layer", (("self-attention", "p", 0), ("feed-forward", "o", 0)), "X")
    column(312, "Decoder layer", (("causal self-attention", "p", 0), ("cross-attention", "k", 0), ("feed-forward", "o", 0)), "X")
    x, y = tops[0]
    p.arrow([(x, y), (x, y - 22), (264, y - 22), (264, 224), (310, 224)], "k", "h")
    p.text(x + 8, y - 42, "K and V of every", "k s")
    p.text(x + 8, y - 28, "decoder layer", "k s")
    tx = 540
    for i, (name, colour, call) in enumerate((("attention", "p", "rapt_mha: projections too"),
                                              ("feed-forward", "o", "rapt_linear, with a ReLU or GELU;"),
                                              ("", "", "then rapt_linear again"),
                                              ("add", "m", "the residual of either"), ("norm", "m", "rapt_layer_norm_run"))):
        y = (70, 120, 138, 188, 238)[i]
        if name:
            p.text(tx, y, name, f"{colour} b")
        p.text(tx, y + 18, call, "s")
    return p


PICTURES = {name[5:]: draw for name, draw in list(globals().items()) if name.startswith("draw_")}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
