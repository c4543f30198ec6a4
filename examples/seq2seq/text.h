/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back. A piece is a word with its space or hyphen before it, a digit, or a sign; a token is its number. */
#ifndef SEQ2SEQ_TEXT_H
#define SEQ2SEQ_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { TOKEN_END, TOKEN_START, TOKEN_TO_DIGITS, TOKEN_TO_WORDS, CONTROL_TOKENS };

#define MAX_INPUT 512 /* tokens of an input */

typedef struct vocabulary {
    char *text; /* all pieces */
    const char **pieces;
    int count;
} vocabulary;

/* The pieces, one a line. 0, or -1 without memory. */
int vocabulary_init(vocabulary *v, const char *lines);
void vocabulary_free(vocabulary *v);

/* The direction, the tokens of the text (at each place the longest piece that fits, in any case), the end. Their number, or -1
 * with a line in error. */
int text_to_tokens(const vocabulary *v, const char *text, int32_t tokens[MAX_INPUT], char *error, size_t error_bytes);

/* Needs all of the length it returns and a terminator; writes no more than bytes. */
size_t tokens_to_text(const vocabulary *v, const int32_t *tokens, int count, char *text, size_t bytes);

#endif
