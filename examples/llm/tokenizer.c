/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L /* stpcpy */
#include "llm.h"
#include "unicode.h"

#include <limits.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- Words ------------------------------------------------------------------------------------------------------------- */

/* How a text is cut into words, by what tokenizer.ggml.pre calls it. SmolLM has the regular expression of GPT-2, which sees a
 * text whose digits have been cut out,
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * and Llama 3 and, with \p{N}, Qwen 2 have
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * Llama 3 begins a text with a token of its own, and does not merge a word that is a piece from others.
 *
 * Llama 2 and Mistral have SentencePiece's pieces of characters, with a sign for a space. A word ends before a space that follows
 * something else, unless a piece has such a space within it: then the whole text is one word. */
enum { SMOLLM, LLAMA3, QWEN2, BYTE_LEVEL, SENTENCES = BYTE_LEVEL };
static const char *const names[BYTE_LEVEL] = {"smollm", "llama-bpe", "qwen2"};
static const char space_sign[] = "\xe2\x96\x81"; /* U+2581 */
enum { SIGN = sizeof space_sign - 1 };

/* Kinds of characters, of which unicode.h has the first three; OTHER is any other, NOTHING the end of a text. */
typedef enum kind { OTHER, LETTER = 'L', NUMBER = 'N', SPACE = 'S', NOTHING = 1 } kind;

static int by_place(const void *character, const void *range) {
    const uint32_t c = *(const uint32_t *)character;
    const unicode_range *r = range;
    return c < r->first ? -1 : c > r->last;
}

/* The kind of the character at `at`, and where it ends. What is not UTF-8 is OTHER, byte by byte. */
static kind look(const uint8_t *at, const uint8_t *end, const uint8_t **next) {
    *next = at < end ? at + 1 : at;
    if (at >= end) return NOTHING;
    const int more = *at < 0xc2 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : *at < 0xf5 ? 3 : 0;
    uint32_t c = more ? *at & (0x3fu >> more) : *at;
    if (*at >= 0x80 && !more) return OTHER;
    for (int i = 1; i <= more; i++) {
        if (at + i >= end || (at[i] & 0xc0) != 0x80) return OTHER;
        c = c << 6 | (at[i] & 0x3f);
    }
    *next = at + 1 + more;
    const unicode_range *range = bsearch(&c, unicode_ranges, COUNT(unicode_ranges), sizeof *range, by_place);
    return range ? (kind)range->kind : OTHER;
}

/* The end of the characters of a kind from `at` on, at most `most` of them; *last: where the last of them begins. */
static const uint8_t *skip(const uint8_t *at, const uint8_t *end, kind of, int most, const uint8_t **last) {
    for (const uint8_t *next; most-- && look(at, end, &next) == of; at = next) *last = at;
    return at;
}

static bool is_break(uint8_t c) { return c == '\r' || c == '\n'; }

/* The end of the word that begins at `at`. */
static const uint8_t *word_end(const tokenizer *t, const uint8_t *at, const uint8_t *end) {
    const int how = t->how;
    if (how == SENTENCES) {
        if (t->pieces_cross_words) return end;
        while (at < end && *at == ' ') at++;
        while (at < end && *at != ' ') at++;
        return at;
    }
    static const char *const contractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    const bool newer = how != SMOLLM;
    for (int i = 0; i < COUNT(contractions); i++) {
        size_t n = 0;
        while (at + n < end && contractions[i][n] && (n && newer ? at[n] | 0x20 : at[n]) == contractions[i][n]) n++;
        if (!contractions[i][n]) return at + n;
    }
    const uint8_t *second, *third, *last = at;
    const kind first = look(at, end, &second), then = look(second, end, &third);
    if (first == LETTER) return skip(at, end, LETTER, INT_MAX, &last);
    if (first == NUMBER) return skip(at, end, NUMBER, how == LLAMA3 ? 3 : 1, &last);
    if (then == LETTER && (newer ? !is_break(*at) : *at == ' ')) return skip(second, end, LETTER, INT_MAX, &last);
    if (first == OTHER || (then == OTHER && *at == ' ')) {
        at = skip(second, end, OTHER, INT_MAX, &last);
        while (newer && at < end && is_break(*at)) at++;
        return at;
    }
    const uint8_t *const spaces = skip(at, end, SPACE, INT_MAX, &last);
    for (const uint8_t *b = spaces; newer && b > at; b--)
        if (is_break(b[-1])) return b;
    /* The last space belongs to the word that follows. */
    return spaces == end || last == at || (!newer && look(spaces, end, &third) == NUMBER) ? spaces : last;
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------------ */

/* The slot of a text, or the empty one that it would have. The hash is FNV-1a. */
static int32_t *find_slot(const text_table *of, const char *text, size_t bytes) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    for (uint32_t i = hash & of->mask;; i = (i + 1) & of->mask) {
        const int32_t n = of->slots[i];
        if (n < 0 || (of->texts[n].bytes == bytes && !memcmp(of->texts[n].at, text, bytes))) return &of->slots[i];
    }
}

/* Of texts that are the same, the first counts. */
static void fill(text_table *of, const gguf *file, const char *key) {
    uint64_t count;
    of->texts = gguf_texts(file, key, &count);
    if (count > 8 * RAPT_MAX_WIDTH) FAIL("%s: its vocabulary is too large", file->path);
    for (of->mask = 1; of->mask < 2 * count;) of->mask = 2 * of->mask + 1;
    of->slots = present(calloc((size_t)of->mask + 1, sizeof *of->slots));
    memset(of->slots, -1, ((size_t)of->mask + 1) * sizeof *of->slots);
    of->count = (int32_t)count;
    for (int32_t i = of->count; i--;) *find_slot(of, of->texts[i].at, of->texts[i].bytes) = i;
}

int32_t tokenizer_find(const tokenizer *t, const char *piece) { return *find_slot(&t->pieces, piece, strlen(piece)); }

/* The rank of the merge of two pieces, and the piece that it makes; UINT32_MAX: there is none. */
static uint32_t find_merge(const tokenizer *t, int32_t left, int32_t right, int32_t *result) {
    const gguf_text a = t->pieces.texts[left], b = t->pieces.texts[right];
    char text[1024];
    if (a.bytes + b.bytes >= sizeof text) return UINT32_MAX;
    memcpy(text, a.at, a.bytes);
    memcpy(text + a.bytes, b.at, b.bytes);
    *result = *find_slot(&t->pieces, text, a.bytes + b.bytes);
    if (t->how == SENTENCES) return *result < 0 ? UINT32_MAX : t->ranks[*result];
    text[a.bytes] = ' ';
    memcpy(text + a.bytes + 1, b.at, b.bytes);
    return *result < 0 ? UINT32_MAX : (uint32_t)*find_slot(&t->merges, text, a.bytes + 1 + b.bytes);
}

/* The token under a key of the metadata; -1 where that has none. */
static int32_t token_of(const tokenizer *t, const gguf *file, const char *key) {
    const double number = gguf_number(file, key, -1);
    return number >= 0 && number < t->pieces.count ? (int32_t)number : -1;
}

/* Reads the scores of pieces. The one with the highest score is merged first: the order of a float's bits is its own, but for the
 * sign. */
static void rank_pieces(tokenizer *t, const gguf *file) {
    uint64_t count;
    t->ranks = gguf_floats(file, "tokenizer.ggml.scores", &count);
    if (count != (uint64_t)t->pieces.count) FAIL("%s: its vocabulary has no score for each piece", file->path);
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t score = t->ranks[i];
        t->ranks[i] = score >> 31 ? score : 0x7fffffff - score;
        const gguf_text piece = t->pieces.texts[i];
        bool inside = false; /* behind something else than spaces */
        for (size_t n = 0; n < piece.bytes; n++) {
            const bool space = piece.bytes - n >= SIGN && !memcmp(piece.at + n, space_sign, SIGN);
            if (space && inside) t->pieces_cross_words = true;
            inside = !space;
            if (space) n += SIGN - 1;
        }
    }
}

void tokenizer_open(tokenizer *t, const gguf *file) {
    const gguf_text kind_of = gguf_string(file, "tokenizer.ggml.model"), pre = gguf_string(file, "tokenizer.ggml.pre");
    *t = (tokenizer){0};
    while (t->how < BYTE_LEVEL && !gguf_is(pre, names[t->how])) t->how++;
    if (gguf_is(kind_of, "llama")) t->how = SENTENCES;
    else if (t->how == BYTE_LEVEL || !gguf_is(kind_of, "gpt2"))
        FAIL("%s: its tokenizer is '%.*s' '%.*s'; llama, and gpt2 with smollm, llama-bpe or qwen2 are known", file->path,
             GGUF_SHOWN(kind_of), GGUF_SHOWN(pre));
    fill(&t->pieces, file, "tokenizer.ggml.tokens");
    fill(&t->merges, file, "tokenizer.ggml.merges");
    if (!t->pieces.count) FAIL("%s: its vocabulary is empty", file->path);
    if (t->how == SENTENCES) rank_pieces(t, file);
    t->space_before = t->how == SENTENCES && gguf_number(file, "tokenizer.ggml.add_space_prefix", 1) != 0;
    for (int b = 0, others = 256; b < 256; b++) { /* printable characters of Latin-1 are their own letters */
        const int c = (b > 32 && b < 127) || (b > 160 && b != 173) ? b : others++;
        t->letters[b][0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        t->letters[b][1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3f));
    }
    const bool begins = gguf_number(file, "tokenizer.ggml.add_bos_token", t->how == LLAMA3 || t->how == SENTENCES) != 0;
    t->begin = begins ? token_of(t, file, "tokenizer.ggml.bos_token_id") : -1;
    t->end[0] = token_of(t, file, "tokenizer.ggml.eos_token_id");
    t->end[1] = token_of(t, file, "tokenizer.ggml.eot_token_id");
}

/* ---- Texts ------------------------------------------------------------------------------------------------------------- */

/* Merges the pieces of a word in place, and returns how many are left. merges[i] is that of pieces i and i + 1. */
static int64_t merge_word(const tokenizer *t, int32_t *pieces, uint32_t *merges, int64_t n) {
    int32_t result;
    for (int64_t i = 0; i + 1 < n; i++) merges[i] = find_merge(t, pieces[i], pieces[i + 1], &result);
    for (;; n--) {
        int64_t best = 0;
        for (int64_t i = 1; i + 1 < n; i++)
            if (merges[i] < merges[best]) best = i;
        if (n < 2 || merges[best] == UINT32_MAX) return n;
        find_merge(t, pieces[best], pieces[best + 1], &pieces[best]);
        memmove(pieces + best + 1, pieces + best + 2, (size_t)(n - best - 2) * sizeof *pieces);
        memmove(merges + best, merges + best + 1, (size_t)(n - best - 2) * sizeof *merges);
        if (best) merges[best - 1] = find_merge(t, pieces[best - 1], pieces[best], &result);
        if (best + 2 < n) merges[best] = find_merge(t, pieces[best], pieces[best + 1], &result);
    }
}

/* Writes the pieces of the characters of a word, or for a character that is none those of its bytes, and returns how many. */
static int64_t split_characters(const tokenizer *t, const uint8_t *at, const uint8_t *end, int32_t *pieces) {
    int64_t n = 0;
    for (const uint8_t *next; at < end; at = next) {
        look(at, end, &next);
        const bool space = *at == ' ';
        const char *const text = space ? space_sign : (const char *)at;
        const size_t bytes = space ? SIGN : (size_t)(next - at);
        const int32_t whole = *find_slot(&t->pieces, text, bytes);
        if (whole >= 0) pieces[n++] = whole;
        for (size_t i = 0; i < bytes && whole < 0; i++) {
            char name[8];
            snprintf(name, sizeof name, "<0x%02X>", (uint8_t)text[i]);
            const int32_t byte = tokenizer_find(t, name);
            if (byte >= 0) pieces[n++] = byte;
        }
    }
    return n;
}

/* Writes the pieces of the bytes of a word, and returns how many. */
static int64_t split_bytes(const tokenizer *t, const uint8_t *at, const uint8_t *end, int32_t *pieces) {
    char *const spelt = present(malloc(2 * (size_t)(end - at) + 1)), *letter = spelt;
    int64_t n = 0;
    *spelt = 0;
    for (; at < end; at++) {
        const int32_t piece = tokenizer_find(t, t->letters[*at]);
        if (piece >= 0) pieces[n++] = piece;
        letter = stpcpy(letter, t->letters[*at]);
    }
    const int32_t whole = t->how == LLAMA3 ? tokenizer_find(t, spelt) : -1;
    free(spelt);
    if (whole >= 0) *pieces = whole;
    return whole >= 0 ? 1 : n;
}

int64_t tokenizer_encode(const tokenizer *t, const char *text, int32_t *tokens) {
    const size_t bytes = strlen(text);
    const uint8_t *at = (const uint8_t *)text, *const end = at + bytes;
    uint32_t *const merges = present(calloc(TOKENS_OF(bytes), sizeof *merges));
    int64_t count = 0;
    while (at < end) {
        const uint8_t *const next = word_end(t, at, end);
        int64_t n = 0;
        if (t->space_before && at == (const uint8_t *)text)
            n = split_characters(t, (const uint8_t *)" ", (const uint8_t *)" " + 1, tokens);
        n += (t->how == SENTENCES ? split_characters : split_bytes)(t, at, next, tokens + count + n);
        count += merge_word(t, tokens + count, merges, n);
        at = next;
    }
    free(merges);
    return count;
}

/* Prints a piece of characters, or a byte's. */
static void print_characters(gguf_text piece, FILE *to) {
    if (piece.bytes == 6 && !memcmp(piece.at, "<0x", 3) && piece.at[5] == '>') {
        putc((int)strtoul(piece.at + 3, NULL, 16), to);
        return;
    }
    for (size_t i = 0; i < piece.bytes; i++) {
        const bool space = piece.bytes - i >= SIGN && !memcmp(piece.at + i, space_sign, SIGN);
        putc(space ? ' ' : piece.at[i], to);
        if (space) i += SIGN - 1;
    }
}

void tokenizer_print(const tokenizer *t, int32_t token, FILE *to) {
    const gguf_text piece = token < t->pieces.count ? t->pieces.texts[token] : (gguf_text){"", 0};
    if (t->how == SENTENCES) {
        print_characters(piece, to);
        return;
    }
    for (size_t i = 0, n; i < piece.bytes; i += n) {
        int byte = -1; /* that a letter stands for; else it is printed as it is: of a mark, or of what a user added */
        do n = ++byte < 256 ? strlen(t->letters[byte]) : 1;
        while (byte < 256 && (n > piece.bytes - i || memcmp(piece.at + i, t->letters[byte], n) != 0));
        putc(byte < 256 ? byte : piece.at[i], to);
    }
}
