/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a vocabulary and a text. The vocabulary must be refused with a line, or the text becomes numbers of pieces: [CLS]
 * first, [SEP] last, no more than wanted, and where that is less, those of the beginning; of a text that is cut in two by the end
 * of a line, those of both parts; and of what is ASCII of it
 * those that plain loops find. */
#include "readers.h"

#include "../../examples/minilm/wordpiece.c" /* NOLINT(bugprone-suspicious-include): with the calls of readers.h */

enum { MOST_IDS = 2048 }; /* a byte of text becomes no more than two */

typedef struct encoded {
    int32_t ids[MOST_IDS], count;
} encoded;

/* The text in memory of exactly its size, and so are the numbers. */
static encoded encode(const wordpiece *w, const char *bytes, size_t size, int32_t most) {
    char *text = malloc(size + !size);
    int32_t *ids = malloc((size_t)most * sizeof *ids);
    if (!text || !ids) abort();
    if (size) memcpy(text, bytes, size);
    encoded e = {.count = wordpiece_encode(w, text, size, ids, most)};
    require(e.count >= 2 && e.count <= most, "too many numbers, or too few");
    memcpy(e.ids, ids, (size_t)e.count * sizeof *ids);
    free(text), free(ids);
    for (int32_t i = 0; i < e.count; i++) require(e.ids[i] >= 0 && e.ids[i] < w->count, "the number of no piece");
    require(e.ids[0] == w->special[WORDPIECE_CLS] && e.ids[e.count - 1] == w->special[WORDPIECE_SEP], "no [CLS] or no [SEP]");
    return e;
}

/* ---- Plain loops --------------------------------------------------------------------------------------------------------- */

static int32_t longest_piece(const wordpiece *w, const char *at, size_t size, bool continues, size_t *bytes) {
    int32_t found = -1;
    *bytes = 0;
    for (int32_t i = 0; i < w->count; i++) {
        const wordpiece_piece *p = &w->pieces[i];
        if (p->continues != continues || p->bytes > size || p->bytes <= *bytes || memcmp(p->text, at, p->bytes) != 0) continue;
        found = i, *bytes = p->bytes;
    }
    return found;
}

static void plain_word(const wordpiece *w, const char *letters, size_t size, encoded *e) {
    const int32_t before = e->count;
    bool known = size <= WORD_CHARACTERS;
    for (size_t at = 0, bytes; known && at < size; at += bytes) {
        const int32_t id = longest_piece(w, letters + at, size - at, at > 0, &bytes);
        known = id >= 0;
        if (known) e->ids[e->count++] = id;
    }
    if (known) return;
    e->count = before;
    e->ids[e->count++] = w->special[WORDPIECE_UNK];
}

static bool is_punctuation(char c) { return strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c) && c; }

static encoded plain_encoded(const wordpiece *w, const char *text, size_t size) {
    char letters[1 << 12];
    size_t length = 0, step;
    encoded e = {.ids = {w->special[WORDPIECE_CLS]}, .count = 1};
    for (size_t at = 0; at < size; at += step) {
        int special = -1;
        for (int i = 0; i < WORDPIECE_SPECIAL; i++) {
            const size_t n = strlen(special_text[i]);
            if (w->special[i] >= 0 && n <= size - at && !memcmp(text + at, special_text[i], n)) special = i;
        }
        const char c = text[at];
        const bool ends = special >= 0 || strchr(" \t\r\n", c) == NULL ? special >= 0 || is_punctuation(c) : c != 0;
        step = special >= 0 ? strlen(special_text[special]) : 1;
        if (ends && length) plain_word(w, letters, length, &e);
        if (ends) length = 0;
        if (special >= 0) e.ids[e.count++] = w->special[special];
        else if (is_punctuation(c)) plain_word(w, &c, 1, &e);
        else if (!ends && c >= ' ' && c != 127) letters[length++] = c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
    }
    if (length) plain_word(w, letters, length, &e);
    e.ids[e.count++] = w->special[WORDPIECE_SEP];
    return e;
}

/* ---- What must hold ------------------------------------------------------------------------------------------------------ */

static void require_same(const encoded *a, const encoded *b, const char *what) {
    require(a->count == b->count && !memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids), what);
}

static void look_at(const wordpiece *w, const char *text, size_t size, int32_t most, size_t cut) {
    const encoded all = encode(w, text, size, MOST_IDS);
    encoded some = encode(w, text, size, most), joined = all;
    const int32_t kept = most < all.count ? most : all.count;
    joined.count = kept, joined.ids[kept - 1] = w->special[WORDPIECE_SEP];
    require_same(&some, &joined, "not the beginning of all");

    if (cut > size) cut = size;
    char two[1 << 12];
    if (cut) memcpy(two, text, cut);
    two[cut] = '\n';
    if (size > cut) memcpy(two + cut + 1, text + cut, size - cut);
    const encoded first = encode(w, text, cut, MOST_IDS), rest = encode(w, text + cut, size - cut, MOST_IDS);
    joined = first;
    memcpy(joined.ids + first.count - 1, rest.ids + 1, (size_t)(rest.count - 1) * sizeof *rest.ids);
    joined.count += rest.count - 2;
    some = encode(w, two, size + 1, MOST_IDS);
    require_same(&some, &joined, "two lines are not both");

    size_t n = 0; /* what is ASCII of it */
    for (size_t i = 0; i < size; i++)
        if (!((unsigned char)text[i] & 0x80)) two[n++] = text[i];
    some = encode(w, two, n, MOST_IDS), joined = plain_encoded(w, two, n);
    require_same(&some, &joined, "not what plain loops find");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static char file[1 << 11];
    static const char specials[] = "[UNK]\n[CLS]\n[SEP]\n";
    input in = {bytes, size};
    const uint8_t how = take_byte(&in); /* bits: whole file; a last line without an end */
    const int32_t most = 2 + (int32_t)choose(&in, 40);
    const size_t cut = (size_t)choose(&in, 256), pieces = (size_t)choose(&in, 1024);
    size_t used = how & 1 ? 0 : sizeof specials - 1, n = pieces < in.size ? pieces : in.size;
    memcpy(file, specials, used);
    if (n) memcpy(file + used, in.bytes, n);
    used += n, in.bytes += n, in.size -= n;
    if (how & 2) file[used++] = '\n';
    if (in.size > 1000) in.size = 1000;
    wordpiece w;
    char fault[WORDPIECE_FAULT_BYTES] = "";
    if (wordpiece_open(&w, file_of(file, used), fault)) {
        look_at(&w, (const char *)in.bytes, in.size, most, cut);
        wordpiece_close(&w);
    } else {
        require(fault[0] && memchr(fault, 0, sizeof fault) && !w.file, "a refusal without a line");
    }
    return 0;
}
