/* SPDX-License-Identifier: Apache-2.0 */
/* As Hugging Face's `tokenizers` does it for this model: characters are cleaned, decomposed (NFD), lose their accents and become
 * lower case, each for itself; words end at spaces, and punctuation and ideographs are words of their own; each word is cut,
 * greedily from its front, into the longest pieces of the vocabulary, or is [UNK] as a whole.
 *
 * NFD would also sort adjacent marks. None of those that it might move and that are not dropped stands in a piece (as
 * make_reference.py sees to), so that a word with one is [UNK] either way. */
#define _POSIX_C_SOURCE 200809L
#include "wordpiece.h"
#include "unicode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WORD_CHARACTERS = 100 }; /* a longer word is [UNK] */

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const special_text[WORDPIECE_SPECIAL] = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};

/* ---- The vocabulary ------------------------------------------------------------------------------------------------------ */

/* FNV-1a. */
static uint32_t hash_byte(uint32_t hash, char byte) { return (hash ^ (unsigned char)byte) * 16777619u; }
static uint32_t hash_start(bool continues) { return continues ? 2166136261u : 3735928559u; }

static int32_t *find_slot(const wordpiece *w, uint32_t hash, const char *text, uint32_t bytes, bool continues) {
    for (uint32_t i = hash & w->mask;; i = (i + 1) & w->mask) {
        const wordpiece_piece *piece = w->slots[i] < 0 ? NULL : &w->pieces[w->slots[i]];
        if (!piece || (piece->bytes == bytes && piece->continues == continues && !memcmp(piece->text, text, bytes)))
            return &w->slots[i];
    }
}

static bool read_file(wordpiece *w, const char *path, size_t *bytes, char fault[WORDPIECE_FAULT_BYTES]) {
    struct stat st;
    const size_t most = 64 << 20;
    if (stat(path, &st)) {
        snprintf(fault, WORDPIECE_FAULT_BYTES, "%s", strerror(errno));
        return false;
    }
    if (!S_ISREG(st.st_mode) || (uintmax_t)st.st_size > most) { /* a FIFO is not waited for */
        snprintf(fault, WORDPIECE_FAULT_BYTES, S_ISREG(st.st_mode) ? "too large for a vocabulary" : "not a regular file");
        return false;
    }
    FILE *file = fopen(path, "rb");
    w->file = file ? malloc((size_t)st.st_size + !st.st_size) : NULL;
    const bool good = w->file && (*bytes = fread(w->file, 1, (size_t)st.st_size, file)) == (size_t)st.st_size;
    if (!good) snprintf(fault, WORDPIECE_FAULT_BYTES, "%s", errno ? strerror(errno) : "it became shorter while it was read");
    if (file) fclose(file);
    return good;
}

static bool index_pieces(wordpiece *w, size_t bytes, char fault[WORDPIECE_FAULT_BYTES]) {
    const char *const end = w->file + bytes;
    size_t lines = bytes && end[-1] != '\n';
    for (const char *at = w->file; at < end; at++) lines += *at == '\n';
    for (w->mask = 1; w->mask < 2 * lines + 1; w->mask = 2 * w->mask + 1) {
    }
    w->pieces = malloc((lines + 1) * sizeof *w->pieces);
    w->slots = malloc(((size_t)w->mask + 1) * sizeof *w->slots);
    if (!w->pieces || !w->slots) {
        snprintf(fault, WORDPIECE_FAULT_BYTES, "%s", strerror(ENOMEM));
        return false;
    }
    for (uint32_t i = 0; i <= w->mask; i++) w->slots[i] = -1;

    const char *line = w->file, *next;
    for (size_t n = 0; n < lines; n++, line = next + 1) {
        next = memchr(line, '\n', (size_t)(end - line));
        if (!next) next = end;
        wordpiece_piece piece = {line, (uint32_t)(next - line), false};
        for (int i = 0; i < WORDPIECE_SPECIAL; i++)
            if (piece.bytes == strlen(special_text[i]) && !memcmp(line, special_text[i], piece.bytes)) w->special[i] = (int32_t)n;
        if (piece.bytes > 2 && !memcmp(line, "##", 2)) piece = (wordpiece_piece){line + 2, piece.bytes - 2, true};
        uint32_t hash = hash_start(piece.continues);
        for (uint32_t i = 0; i < piece.bytes; i++) hash = hash_byte(hash, piece.text[i]);
        int32_t *slot = find_slot(w, hash, piece.text, piece.bytes, piece.continues);
        if (!piece.bytes || *slot >= 0) {
            snprintf(fault, WORDPIECE_FAULT_BYTES, "line %zu: %s", n + 1,
                     piece.bytes ? "a piece that was there before" : "no piece");
            return false;
        }
        *slot = (int32_t)n;
        w->pieces[n] = piece;
        w->count = (int32_t)n + 1;
        if (piece.bytes > w->longest) w->longest = piece.bytes;
    }
    for (int i = 0; i <= WORDPIECE_SEP; i++) {
        if (w->special[i] >= 0) continue;
        snprintf(fault, WORDPIECE_FAULT_BYTES, "it has no %s", special_text[i]);
        return false;
    }
    return true;
}

bool wordpiece_open(wordpiece *w, const char *path, char fault[WORDPIECE_FAULT_BYTES]) {
    size_t bytes;
    *w = (wordpiece){.special = {-1, -1, -1, -1, -1}};
    errno = 0;
    if (read_file(w, path, &bytes, fault) && index_pieces(w, bytes, fault)) return true;
    wordpiece_close(w);
    return false;
}

void wordpiece_close(wordpiece *w) {
    free(w->file);
    free(w->pieces);
    free(w->slots);
    *w = (wordpiece){0};
}

/* ---- Characters ---------------------------------------------------------------------------------------------------------- */

/* The character at *at, which moves behind it; -1 for a longest start of one that is not UTF-8 (Unicode 14.0, table 3-7). */
static int32_t next_character(const unsigned char **at, const unsigned char *end) {
    const unsigned char first = *(*at)++;
    if (first < 0x80) return first;
    if (first < 0xc2 || first > 0xf4) return -1;
    const int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    int32_t c = first & (0x3f >> more);
    /* What may follow: neither longer than needed, nor a surrogate, nor beyond U+10FFFF. */
    unsigned char low = first == 0xe0   ? 0xa0
                        : first == 0xf0 ? 0x90
                                        : 0x80,
                  high = first == 0xed   ? 0x9f
                         : first == 0xf4 ? 0x8f
                                         : 0xbf;
    for (int i = 0; i < more; i++, low = 0x80, high = 0xbf) {
        if (*at == end || **at < low || **at > high) return -1;
        c = c << 6 | (*(*at)++ & 0x3f);
    }
    return c;
}

static bool is_in(const unicode_range *ranges, size_t count, uint32_t c) {
    while (count > 1) {
        const size_t half = count / 2;
        if (c >= ranges[half].first) ranges += half, count -= half;
        else count = half;
    }
    return c >= ranges->first && c <= ranges->last;
}
#define IS(class, c) is_in(unicode_##class, COUNT(unicode_##class), c)

/* What a character becomes: decomposed, without accents, in lower case. Returns the number of characters, at most 3. */
static int fold(uint32_t c, uint32_t to[3]) {
    if (IS(dropped, c)) return 0;
    to[0] = c;
    if (c < 0x80) { /* quickly, most of all text */
        if (c >= 'A' && c <= 'Z') to[0] = c + ('a' - 'A');
        return 1;
    }
    if (c >= 0xac00 && c < 0xac00 + 11172) { /* Hangul: 19 * 21 * 28 syllables (Unicode 14.0, section 3.12) */
        const uint32_t syllable = c - 0xac00, last = syllable % 28;
        to[0] = 0x1100 + syllable / 588, to[1] = 0x1161 + syllable % 588 / 28, to[2] = 0x11a7 + last;
        return last ? 3 : 2;
    }
    if (c >= 0xf900 && c - 0xf900 < COUNT(unicode_from_f900)) to[0] = unicode_from_f900[c - 0xf900];
    if (c >= 0x2f800 && c - 0x2f800 < COUNT(unicode_from_2f800)) to[0] = unicode_from_2f800[c - 0x2f800];
    size_t low = 0, high = COUNT(unicode_runs); /* the last run that begins at c or before */
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (c >= unicode_runs[middle].first) low = middle;
        else high = middle;
    }
    const unicode_run *run = &unicode_runs[low];
    if (c <= run->last && (c - run->first) % run->step == 0) to[0] = run->to + (c - run->first) / run->step * run->growth;
    for (size_t i = 0; i < COUNT(unicode_splits); i++) {
        if (c != unicode_splits[i].from) continue;
        memcpy(to, unicode_splits[i].to, sizeof unicode_splits[i].to);
        return to[2] ? 3 : 2;
    }
    return 1;
}

/* ---- Words --------------------------------------------------------------------------------------------------------------- */

typedef struct tokens {
    int32_t *ids, count, most;
} tokens;

static void emit(tokens *out, int32_t id) {
    if (out->count < out->most) out->ids[out->count++] = id;
}

typedef struct word {
    char text[WORD_CHARACTERS * 4];
    uint32_t bytes, characters;
} word;

static void add_character(word *current, uint32_t c) {
    if (++current->characters > WORD_CHARACTERS) return;
    char *at = current->text + current->bytes;
    const int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    at[0] = (char)(more ? 0xff00 >> (more + 1) | c >> 6 * more : c);
    for (int i = 1; i <= more; i++) at[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3f));
    current->bytes += (uint32_t)more + 1;
}

/* Ends the word: its pieces go out. */
static void end_word(const wordpiece *w, word *current, tokens *out) {
    const uint32_t bytes = current->bytes;
    bool known = current->characters <= WORD_CHARACTERS;
    int32_t ids[WORD_CHARACTERS], count = 0;
    for (uint32_t start = 0, end; known && start < bytes; start = end) {
        int32_t id = -1;
        uint32_t hash = hash_start(start > 0);
        end = start;
        /* A piece that ends within a character is none of the vocabulary, which is UTF-8. */
        for (uint32_t i = start; i < bytes && i - start < w->longest; i++) {
            hash = hash_byte(hash, current->text[i]);
            const int32_t found = *find_slot(w, hash, current->text + start, i + 1 - start, start > 0);
            if (found >= 0) id = found, end = i + 1;
        }
        known = id >= 0;
        if (known) ids[count++] = id;
    }
    if (!known) emit(out, w->special[WORDPIECE_UNK]);
    for (int32_t i = 0; known && i < count; i++) emit(out, ids[i]);
    current->bytes = current->characters = 0;
}

/* Which of special_text stands here, or -1. */
static int special_at(const wordpiece *w, const unsigned char *at, const unsigned char *end) {
    int i = *at == '[' ? WORDPIECE_SPECIAL : 0;
    while (i-- > 0) {
        const size_t length = strlen(special_text[i]);
        if (w->special[i] >= 0 && length <= (size_t)(end - at) && !memcmp(at, special_text[i], length)) break;
    }
    return i;
}

int32_t wordpiece_encode(const wordpiece *w, const char *text, size_t bytes, int32_t *ids, int32_t most) {
    tokens out = {ids, 0, most - 1};
    word current = {.bytes = 0};
    emit(&out, w->special[WORDPIECE_CLS]);
    const unsigned char *at = (const unsigned char *)text, *const end = at + bytes;
    while (at < end && out.count < out.most) {
        const int special = special_at(w, at, end);
        if (special >= 0) { /* [MASK] in a text is that token, and so are the others */
            end_word(w, &current, &out);
            emit(&out, w->special[special]);
            at += strlen(special_text[special]);
            continue;
        }
        const int32_t c = next_character(&at, end);
        if (c < 0) continue;
        if (IS(spaces, (uint32_t)c)) {
            end_word(w, &current, &out);
            continue;
        }
        uint32_t to[3];
        const bool ideograph = IS(han, (uint32_t)c);
        for (int i = 0, n = fold((uint32_t)c, to); i < n; i++) {
            const bool alone = ideograph || IS(punctuation, to[i]);
            if (alone) end_word(w, &current, &out);
            add_character(&current, to[i]);
            if (alone) end_word(w, &current, &out);
        }
    }
    end_word(w, &current, &out);
    out.most++;
    emit(&out, w->special[WORDPIECE_SEP]);
    return out.count;
}
