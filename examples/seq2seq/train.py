#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train.py: makes model.safetensors and held-out.tsv, from nothing but the rules below.

Trains the Transformer of "Attention Is All You Need" (Vaswani et al. 2017), small and post-norm as there, with PyTorch's own
nn.TransformerEncoder and nn.TransformerDecoder, to write English numbers, ordinals, years, dates, times, fractions and money in
digits, and digits in English. Needs PyTorch; one thread; the seed is fixed. With PyTorch 2.13 on one core of an AMD EPYC it took
23.8 minutes, and of 1000 held-out texts all were right, greedily and with a beam of 4.

    examples/seq2seq/train.py --out examples/seq2seq
"""

import argparse
import calendar
import json
import math
import random
import re
import struct
import time
import zlib

import torch
from torch import nn

WIDTH, HEADS, LAYERS, FEED_FORWARD = 96, 4, 2, 288
ALPHA, BEAM, BEYOND = 0.6, 4, 50  # section 6.1: length penalty, beam, longest output beyond the input

# ---- What is translated --------------------------------------------------------------------------------------------------

UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
         "eighteen nineteen").split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
MONTHS = "January February March April May June July August September October November December".split()
ODD_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
                "twelve": "twelfth"}
YEARS = range(1300, 2100)  # four digits without a comma are a year; from 1300 on, for "eleven thirty" is a time


def below_hundred(n):
    if n < 20: return UNITS[n]
    return TENS[n // 10] + ("-" + UNITS[n % 10] if n % 10 else "")


def cardinal(n, british=False):
    """In words; with british, "one hundred and five"."""
    if n == 0: return "zero"
    words, higher = [], False
    for value, name in ((10**6, "million"), (1000, "thousand"), (1, "")):
        group, n = divmod(n, value)
        if not group: continue
        hundreds, rest = divmod(group, 100)
        if hundreds: words += [UNITS[hundreds], "hundred"]
        if rest:
            if british and (hundreds or (higher and value == 1)): words.append("and")
            words.append(below_hundred(rest))
        if name: words.append(name)
        higher = True
    return " ".join(words)


def as_ordinal(words):
    head, last = re.fullmatch(r"(.*?)([a-z]+)", words).groups()
    if last in ODD_ORDINALS: return head + ODD_ORDINALS[last]
    return head + (last[:-1] + "ieth" if last.endswith("y") else last + "th")


def article(words):
    return [re.sub("^one ", "a ", words)] if re.match("one (hundred|thousand|million)", words) else []


def spellings(n):
    """All ways that count as n, the one to write first."""
    plain, british = cardinal(n), cardinal(n, british=True)
    return [plain, british] + article(plain) + article(british)


def grouped(n):
    """All ways to write n in digits; a year's are left to years."""
    return [f"{n:,}"] + ([str(n)] if n >= 1000 and n not in YEARS else [])


def suffix(n):
    return "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")


def year_words(y):
    if 2000 <= y < 2010:
        rest = " " + UNITS[y % 10] if y % 10 else ""
        return ["two thousand" + rest, "two thousand" + (" and" + rest if rest else "")]
    century, rest = below_hundred(y // 100), y % 100
    if rest == 0: return [century + " hundred"]
    return [century + (" oh " + UNITS[rest] if rest < 10 else " " + below_hundred(rest))]


def more_year_words(y):
    """What would be a cardinal by itself."""
    return [f"two thousand {below_hundred(y % 100)}", f"two thousand and {below_hundred(y % 100)}"] if y >= 2010 else []


def any_number(rng, digits):
    """Of any length up to digits; often with zeros, or round."""
    text = str(rng.randint(1, 9))
    for _ in range(rng.randrange(digits)): text += rng.choice("0123456789" if rng.random() < 0.7 else "0")
    if rng.random() < 0.15:
        keep = rng.randint(1, len(text))
        text = text[:keep] + "0" * (len(text) - keep)
    return int(text)


# Each kind gives (ways in words, ways in digits), the one to write first in both.

def a_cardinal(rng):
    n = any_number(rng, 9) if rng.random() < 0.97 else 0
    words, digits = spellings(n), grouped(n)
    if rng.random() < 0.1 and n:
        words = ["minus " + w for w in words] + ["negative " + words[0]]
        digits = ["-" + d for d in digits]
    return words, digits


def an_ordinal(rng):
    n = any_number(rng, 4 if rng.random() < 0.8 else 6)
    return [as_ordinal(w) for w in spellings(n)], [d + suffix(n) for d in grouped(n)[:1] + ([str(n)] if n >= 1000 else [])]


def a_decimal(rng):
    n = any_number(rng, 4) if rng.random() < 0.8 else 0
    places = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 4)))
    spoken = " point " + " ".join(UNITS[int(c)] for c in places)
    return [w + spoken for w in spellings(n)] + ([spoken.strip()] if n == 0 else []), [d + "." + places for d in grouped(n)[:1]]


def a_percentage(rng):
    words, digits = [cardinal(n := rng.randrange(101))], [str(n)]
    if rng.random() < 0.4:
        places = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 2)))
        words, digits = [words[0] + " point " + " ".join(UNITS[int(c)] for c in places)], [digits[0] + "." + places]
    return [words[0] + " percent", words[0] + " per cent"], [digits[0] + "%"]


def a_fraction(rng):
    below = rng.choice((2, 3, 4, 5, 6, 8, 10, 100)) if rng.random() < 0.3 else rng.randint(2, 100)
    above = 1 if rng.random() < 0.1 else rng.randint(1, 99)
    whole = any_number(rng, 3) if rng.random() < 0.4 else 0
    if whole: above = rng.randint(1, below - 1)
    if not whole and (above, below) == (1, 100): above = 3  # "one hundredth" is an ordinal
    part = {2: "half", 4: "quarter", 100: "hundredth"}.get(below) or as_ordinal(below_hundred(below))
    if above > 1: part = "halves" if part == "half" else part + "s"
    words = [f"{below_hundred(above)} {part}"]
    if above == 1: words.append(("an " if part.startswith("e") else "a ") + part)
    if whole: words = [f"{cardinal(whole)} and {w}" for w in words]
    return words, [(f"{whole} " if whole else "") + f"{above}/{below}"]


def a_year(rng):
    y = rng.choice(YEARS)
    words = year_words(y)
    if 2000 <= y < 2010: return ["the year " + w for w in words], [str(y)]
    return words + ["the year " + w for w in words + more_year_words(y)], [str(y)]


def a_decade(rng):
    y = rng.choice([y for y in YEARS if y % 10 == 0 and y % 100 >= 20])
    decade = TENS[y % 100 // 10][:-1] + "ies"
    return [f"the {below_hundred(y // 100)} {decade}", f"the {below_hundred(y // 100)}-{decade}"], [f"{y}s"]


def a_date(rng):
    y, m = rng.choice(YEARS), rng.randint(1, 12)
    d = rng.randint(1, calendar.monthrange(y, m)[1])
    month, day, number = MONTHS[m - 1], as_ordinal(below_hundred(d)), f"{d}{suffix(d)}"
    words = []
    for spoken in year_words(y) + more_year_words(y) + [str(y)]:
        words += [f"the {day} of {month} {spoken}", f"{day} of {month} {spoken}", f"{month} {day}, {spoken}",
                  f"{month} the {day}, {spoken}"]
    words += [f"the {number} of {month} {y}", f"{number} of {month} {y}", f"{month} {number}, {y}", f"{month} {d}, {y}",
              f"{d} {month} {y}"]
    return words, [f"{y}-{m:02}-{d:02}", f"{d:02}.{m:02}.{y}", f"{d}.{m}.{y}", f"{d}/{m}/{y}"]


def a_time(rng):
    hour, minute = rng.randint(1, 12), rng.choice((0, 15, 30, 45)) if rng.random() < 0.3 else rng.randrange(60)
    this, following = UNITS[hour], UNITS[hour % 12 + 1]
    read = this + (" oh " if minute < 10 else " ") + below_hundred(minute)
    if minute == 0: words, read = [f"{this} o'clock"], this
    elif minute == 15: words = [f"a quarter past {this}", f"quarter past {this}", f"fifteen minutes past {this}"]
    elif minute == 30: words = [f"half past {this}"]
    elif minute == 45: words = [f"a quarter to {following}", f"quarter to {following}", f"fifteen minutes to {following}"]
    else:
        count, of = (minute, f"past {this}") if minute < 30 else (60 - minute, f"to {following}")
        words = [f"{below_hundred(count)} {of}", f"{below_hundred(count)} minute{'s' * (count > 1)} {of}"]
    digits = f"{hour}:{minute:02}"
    half = rng.choice(("a.m.", "p.m.", None))
    if half is None: return words + [read] * (minute > 0), [digits]
    if hour == 12: part = "at night" if half == "a.m." else "in the afternoon"
    elif half == "a.m.": part = "in the morning"
    else: part = "in the afternoon" if hour < 6 else "in the evening" if hour < 9 else "at night"
    words = [f"{w} {part}" for w in words] + [f"{read} {half}"]
    if (hour, minute) == (12, 0): words.insert(0, "midnight" if half == "a.m." else "noon")
    return words, [f"{digits} {half}"]


def an_amount(rng):
    sign, name, small = rng.choice((("$", "dollar", "cent"), ("£", "pound", "penny"), ("€", "euro", "cent")))
    kind = rng.random()
    whole, part = any_number(rng, 5 if kind > 0.3 else 3), rng.randint(1, 99)
    if kind < 0.3: part = 0
    elif kind < 0.45: whole = 0
    big = name if whole == 1 else name + "s"
    little = small if part == 1 else "pence" if small == "penny" else "cents"
    if not whole and sign == "€": little = "euro " + little
    if not part: words = [f"{w} {big}" for w in spellings(whole)]
    elif not whole: words = [f"{below_hundred(part)} {little}"]
    else:
        words = [f"{w} {big} and {below_hundred(part)} {little}" for w in spellings(whole)]
        words.append(f"{cardinal(whole)} {big} {below_hundred(part)}")
    return words, [sign + d + (f".{part:02}" if part else "") for d in [f"{whole:,}"] + ([str(whole)] if whole >= 1000 else [])]


KINDS = {a_cardinal: 26, an_ordinal: 10, a_decimal: 8, a_percentage: 3, a_fraction: 12, a_year: 5, a_decade: 1, a_date: 16,
         a_time: 9, an_amount: 14}


def held_out(kind, digits):
    """The rule: of each kind one value in 40, in both directions and all spellings."""
    return zlib.crc32(f"{kind.__name__} {digits[0]}".encode()) % 40 == 0


def draw(rng, wanted_held_out):
    while True:
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        words, digits = kind(rng)
        if held_out(kind, digits) != wanted_held_out: continue
        if rng.random() < 0.5: return rng.choice(words) if rng.random() < 0.6 else words[0], digits[0]
        return rng.choice(digits), words[0]


# ---- Text to tokens ------------------------------------------------------------------------------------------------------

# As text.c does it: a space before the text, then at each place the longest piece that fits. A word's piece has its space or
# hyphen with it, so that the pieces in a row are the text again.
CONTROLS = ["<end>", "<start>", "<to digits>", "<to words>"]
ORDINALS = [as_ordinal(w) for w in UNITS[1:] + TENS[2:]]
FRACTIONS = ["halves", "half", "quarter", "quarters", "hundredths"] + [w + "s" for w in ORDINALS[1:]] + ["firsts"]
WORDS = sorted(set(UNITS + TENS + ORDINALS + FRACTIONS + MONTHS + [t[:-1] + "ies" for t in TENS[2:]] + """hundred thousand million
    hundredth thousandth millionth and point percent per cent cents a an the of year oh o'clock past to minute minutes minus
    negative in at morning afternoon evening night noon midnight a.m. p.m. dollar dollars pound pounds penny pence euro
    euros""".split()))
AFTER_HYPHEN = sorted(set(UNITS[1:10] + [as_ordinal(w) for w in UNITS[1:10]] + [as_ordinal(w) + "s" for w in UNITS[1:10]]
                          + [t[:-1] + "ies" for t in TENS[2:]]))
PIECES = (CONTROLS + [" "] + list("0123456789") + list("-,.:/%$£€") + ["st", "nd", "rd", "th", "s"] + [" " + w for w in WORDS]
          + ["-" + w for w in AFTER_HYPHEN])
IDS = {piece: i for i, piece in enumerate(PIECES)}
BY_LENGTH = re.compile("|".join(re.escape(p) for p in sorted(PIECES[len(CONTROLS):], key=len, reverse=True)))
END, START, TO_DIGITS, TO_WORDS = range(4)


def tokens(text):
    text, ids, at = " " + text, [], 0
    while at < len(text):
        match = BY_LENGTH.match(text, at)
        ids.append(IDS[match.group()])
        at = match.end()
    return ids


def source(text):
    """A run of three letters can only be English."""
    return [TO_DIGITS if re.search("[A-Za-z]{3}", text) else TO_WORDS] + tokens(text) + [END]


def text_of(ids):
    return "".join(PIECES[i] for i in ids if i >= len(CONTROLS)).removeprefix(" ")


# ---- The model -----------------------------------------------------------------------------------------------------------

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(PIECES), WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        options = dict(dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, FEED_FORWARD, **options), LAYERS,
                                             enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, FEED_FORWARD, **options), LAYERS)
        for parameter in [*self.encoder.parameters(), *self.decoder.parameters()]:
            if parameter.dim() > 1: nn.init.xavier_uniform_(parameter)
        angles = torch.arange(512)[:, None].double() / 10000 ** (torch.arange(0, WIDTH, 2).double() / WIDTH)
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), 2).flatten(1).float(), persistent=False)

    def embed(self, ids):
        return self.embedding(ids) * math.sqrt(WIDTH) + self.positions[: ids.shape[1]]

    def encode(self, ids, padding):
        return self.encoder(self.embed(ids), src_key_padding_mask=padding)

    def decode(self, ids, memory, padding):
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        x = self.decoder(self.embed(ids), memory, tgt_mask=mask, memory_key_padding_mask=padding, tgt_is_causal=True)
        return x @ self.embedding.weight.T


def padded(rows):
    longest = max(map(len, rows))
    ids = torch.tensor([row + [END] * (longest - len(row)) for row in rows])
    return ids, torch.arange(longest)[None] >= torch.tensor([len(row) for row in rows])[:, None]


@torch.no_grad()
def greedy(model, texts):
    """The outputs, and the smallest gap between the best two logits of any step."""
    results, least = [], math.inf
    for first in range(0, len(texts), 100):
        rows = [source(text) for text in texts[first:first + 100]]
        ids, padding = padded(rows)
        memory = model.encode(ids, padding)
        out = torch.full((len(rows), 1), START)
        ended = torch.zeros(len(rows), dtype=torch.bool)
        limits = torch.tensor([len(row) + BEYOND for row in rows])
        while not ended.all():
            best = model.decode(out, memory, padding)[:, -1].topk(2)
            least = min(least, (best.values[:, 0] - best.values[:, 1])[~ended].min().item())
            out = torch.cat((out, torch.where(ended, END, best.indices[:, 0])[:, None]), 1)
            ended |= (out[:, -1] == END) | (out.shape[1] > limits)
        results += [text_of(row[: row.index(END)] if END in row else row) for row in out[:, 1:].tolist()]
    return results, least


def length_penalty(length):
    """Wu et al. 2016, formula 14."""
    return ((5 + length) / 6) ** ALPHA


@torch.no_grad()
def beam_search(model, text):
    """Until no live hypothesis can overtake the best that has ended."""
    row = source(text)
    ids, padding = padded([row])
    memory = model.encode(ids, padding)
    limit = len(row) + BEYOND
    live, best, best_score = [([START], 0.0)], [], -math.inf
    for length in range(1, limit + 1):
        n = len(live)
        logits = model.decode(torch.tensor([h for h, _ in live]), memory.expand(n, -1, -1), padding.expand(n, -1))[:, -1]
        scores = logits.double().log_softmax(1) + torch.tensor([s for _, s in live], dtype=torch.double)[:, None]
        found = scores.flatten().topk(2 * BEAM)
        parents, live = live, []
        for rank, (score, at) in enumerate(zip(found.values.tolist(), found.indices.tolist())):
            parent, token = divmod(at, len(PIECES))
            if token != END:
                if len(live) < BEAM: live.append((parents[parent][0] + [token], score))
            elif rank < BEAM:
                score /= length_penalty(length)
                if score > best_score: best, best_score = parents[parent][0], score
        if best_score >= live[0][1] / length_penalty(limit): break
    return text_of(best or live[0][0])


def train(steps, batch, rate):
    torch.manual_seed(1)
    rng = random.Random(1)
    model = Transformer()
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), eps=1e-9)
    shown = math.log(len(PIECES))
    for step in range(steps):
        factor = min(1.0, step / 400) * 0.5 * (1 + math.cos(math.pi * step / steps))  # linear warm-up, then a cosine
        for group in optimiser.param_groups: group["lr"] = rate * factor
        pairs = [draw(rng, False) for _ in range(batch)]
        ids, padding = padded([source(a) for a, _ in pairs])
        targets = [tokens(b) for _, b in pairs]
        into, _ = padded([[START] + t for t in targets])
        out, unused = padded([t + [END] for t in targets])
        logits = model.decode(into, model.encode(ids, padding), padding)
        loss = nn.functional.cross_entropy(logits[~unused], out[~unused], label_smoothing=0.1)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        shown = 0.99 * shown + 0.01 * loss.item()
        if step % 100 == 99: print(f"step {step + 1}  loss {shown:.4f}", flush=True)
    return model


# ---- What is written -----------------------------------------------------------------------------------------------------

def save(model, path):
    """safetensors: matrices f16, all else f32; the pieces and the heads are in its metadata."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        half = tensor.dim() == 2 and name != "embedding.weight"
        tensors[name] = tensor.half() if half else tensor
        if half: tensor.copy_(tensors[name].float())  # what is tested is what is written
    header, offset = {"__metadata__": {"pieces": "\n".join(PIECES), "heads": str(HEADS)}}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "F16" if tensor.dtype == torch.half else "F32", "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values(): file.write(tensor.contiguous().numpy().tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=9500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--out", required=True, help="the folder for model.safetensors and held-out.tsv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.monotonic()
    model = train(options.steps, options.batch, options.rate)
    minutes = (time.monotonic() - begin) / 60
    model.eval()
    save(model, options.out + "/model.safetensors")

    rng, pairs = random.Random(2), {}
    while len(pairs) < 1000: pairs.update([draw(rng, True)])
    texts, wanted = list(pairs), list(pairs.values())
    one, gap = greedy(model, texts)
    four = [beam_search(model, text) for text in texts]
    with open(options.out + "/held-out.tsv", "w", encoding="utf-8") as file:
        file.writelines("\t".join(row) + "\n" for row in zip(texts, wanted, one, four))
    right = [sum(a == b for a, b in zip(got, wanted)) for got in (one, four)]
    print(f"{options.steps} steps of {options.batch} pairs in {minutes:.1f} minutes, "
          f"{sum(p.numel() for p in model.parameters())} parameters; right of 1000 held-out texts: {right[0]} greedy, "
          f"{right[1]} with a beam of {BEAM}; the closest two logits of any greedy step are {gap:.4f} apart")


if __name__ == "__main__": main()
