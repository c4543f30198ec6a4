/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int vocabulary_init(vocabulary *v, const char *lines) {
    const size_t bytes = strlen(lines) + 1;
    *v = (vocabulary){.text = malloc(bytes), .count = 1};
    if (!v->text) return -1;
    memcpy(v->text, lines, bytes);
    for (const char *at = lines; *at; at++) v->count += *at == '\n';
    v->pieces = malloc((size_t)v->count * sizeof *v->pieces);
    if (!v->pieces) return -1;
    int n = 0;
    v->pieces[n++] = v->text;
    for (char *at = v->text; *at; at++)
        if (*at == '\n') *at = 0, v->pieces[n++] = at + 1;
    return 0;
}

void vocabulary_free(vocabulary *v) {
    free(v->text);
    free(v->pieces);
}

/* ASCII's, whatever the locale. */
static int lower(int c) { return c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c; }
static int is_letter(int c) { return lower(c) >= 'a' && lower(c) <= 'z'; }
static int is_space(int c) { return c == ' ' || c == '\t' || c == '\r'; }

/* A space before the text, one for each run of them, none behind it. Null without memory. */
static char *normalised(const char *text) {
    char *result = malloc(strlen(text) + 2), *to = result;
    if (!result) return NULL;
    *to++ = ' ';
    for (; *text; text++)
        if (!is_space(*text)) *to++ = *text;
        else if (to[-1] != ' ') *to++ = ' ';
    if (to[-1] == ' ') to--;
    *to = 0;
    return result;
}

/* The bytes of piece if text begins with it, else 0. */
static size_t fits(const char *piece, const char *text) {
    const char *at = piece;
    for (; *at; at++, text++)
        if (lower(*at) != lower(*text)) return 0;
    return (size_t)(at - piece);
}

/* A run of three letters can only be English: "a.m." and "23rd" have none. */
static int32_t direction(const char *text) {
    for (int run = 0; *text; text++) {
        run = is_letter(*text) ? run + 1 : 0;
        if (run == 3) return TOKEN_TO_DIGITS;
    }
    return TOKEN_TO_WORDS;
}

static int tokenise(const vocabulary *v, const char *text, int32_t tokens[MAX_INPUT], char *error, size_t error_bytes) {
    int count = 0;
    tokens[count++] = direction(text);
    if (!*text) return snprintf(error, error_bytes, "there is no text"), -1;
    while (*text) {
        size_t longest = 0;
        for (int piece = CONTROL_TOKENS; piece < v->count; piece++) {
            const size_t bytes = fits(v->pieces[piece], text);
            if (bytes > longest) longest = bytes, tokens[count] = piece;
        }
        if (!longest) {
            char rest[24];
            size_t n = 0;
            for (text += *text == ' '; n < sizeof rest - 1 && text[n]; n++)
                rest[n] = (char)((unsigned char)text[n] < ' ' ? '?' : text[n]);
            while (n && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* not within a character of UTF-8 */
            rest[n] = 0;
            return snprintf(error, error_bytes, "no word or sign is known that begins \"%s%s\"", rest, text[n] ? "..." : ""), -1;
        }
        text += longest;
        if (++count == MAX_INPUT) return snprintf(error, error_bytes, "longer than %d words and signs", MAX_INPUT - 2), -1;
    }
    tokens[count++] = TOKEN_END;
    return count;
}

int text_to_tokens(const vocabulary *v, const char *text, int32_t tokens[MAX_INPUT], char *error, size_t error_bytes) {
    char *clean = normalised(text);
    if (!clean) return snprintf(error, error_bytes, "out of memory"), -1;
    const int count = tokenise(v, clean, tokens, error, error_bytes);
    free(clean);
    return count;
}

size_t tokens_to_text(const vocabulary *v, const int32_t *tokens, int count, char *text, size_t bytes) {
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        if (tokens[i] < CONTROL_TOKENS) continue;
        for (const char *at = v->pieces[tokens[i]] + (length == 0 && *v->pieces[tokens[i]] == ' '); *at; at++, length++)
            if (length + 1 < bytes) text[length] = *at;
    }
    if (bytes) text[length < bytes ? length : bytes - 1] = 0;
    return length;
}
