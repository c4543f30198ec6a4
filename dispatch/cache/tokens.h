/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a call, which cache functions and rotary embedding describe alike: the same number in every entry, or each
 * entry's length by an array, or entries one after the other in one tensor (ragged). */
#ifndef RAPT_TOKENS_H
#define RAPT_TOKENS_H

#include "core/layout.h"
#include "core/memory.h"

/* The tokens, and where they begin among the keys of their entries. */
typedef struct rapt_tokens {
    int64_t batch, tokens;
    const int32_t *starts, *lengths, *token_starts, *positions; /* as in rapt_kv_append_args; each may be null */
    const int32_t *ends;           /* [batch], in place of starts: where each entry's tokens end, as a key number; else null */
    int64_t shift;                 /* is added to every start */
    const int32_t *first_position; /* [batch], positions of the entries' keys 0; null: 0 */
} rapt_tokens;

/* A row: head `head` of token i of entry b. */
typedef struct rapt_cursor {
    int64_t b, i, head;
} rapt_cursor;

/* Returns the number of entry b's tokens. */
static inline int64_t rapt_count_of(const rapt_tokens *t, int64_t b) {
    return t->token_starts ? (int64_t)t->token_starts[b + 1] - t->token_starts[b] : t->lengths ? t->lengths[b] : t->tokens;
}

/* Returns the key number of entry b's first token. */
static inline int64_t rapt_start_of(const rapt_tokens *t, int64_t b) {
    return (t->ends ? t->ends[b] - rapt_count_of(t, b) : t->starts ? t->starts[b] : 0) + t->shift;
}

/* Returns the offset of a row in a tensor of tokens. */
static inline int64_t rapt_offset_of(const rapt_tokens *t, const rapt_layout *layout, rapt_cursor at) {
    int64_t entry = t->token_starts ? 0 : at.b * layout->batch_stride,
            token = t->token_starts ? t->token_starts[at.b] + at.i : at.i;
    return entry + at.head * layout->head_stride + token * layout->token_stride;
}

/* Returns the position of token i of entry b, by which it is rotated. */
static inline int64_t rapt_position_of(const rapt_tokens *t, int64_t b, int64_t i) {
    if (!t->positions) return rapt_start_of(t, b) + (t->first_position ? t->first_position[b] : 0) + i;
    return t->positions[(t->token_starts ? t->token_starts[b] : b * t->tokens) + i];
}

/* Checks starts[first] to starts[end], unless starts is null: none may be negative or below the one before. Errors: TABLE. */
rapt_status rapt_check_ascending(rapt_report *r, const char *name, const int32_t *starts, int64_t first, int64_t end);

/* Checks the starts of n ragged entries in a tensor of `tokens` tokens, and sets *most to the length of the longest entry. Does
 * nothing if starts is null. Errors: TABLE, ALIGNMENT. */
rapt_status rapt_check_starts(rapt_report *r, const char *name, const int32_t *starts, int64_t n, int64_t tokens, int64_t *most);

/* Registers starts, lengths and token_starts; rapt_register_positions (rotate.h) registers positions. */
void rapt_register_tokens(rapt_memory *m, const rapt_tokens *t);

/* Checks the elements of starts, lengths and token_starts, which have been registered. Errors: FEATURE, TABLE, ALIGNMENT. */
rapt_status rapt_check_tokens(rapt_report *r, const rapt_tokens *t);

/* Checks a tensor of these tokens with heads, of type RAPT_F32, RAPT_F16 or RAPT_BF16, and sets *bytes to what it spans. Errors:
 * TYPE, STRIDE. */
rapt_status rapt_measure_heads(rapt_report *r, const char *name, const rapt_tokens *t, const rapt_layout *layout, int64_t heads,
                               int64_t channels, bool output, uint64_t *bytes);

/* Returns the row after `at`, where there is one: the next head, else the next token, else the first token of the next entry that
 * has any. */
static inline rapt_cursor rapt_next_row(const rapt_tokens *t, int64_t heads, rapt_cursor at) {
    if (++at.head == heads) at.head = 0, at.i++;
    while (at.b < t->batch && at.i == rapt_count_of(t, at.b)) at.b++, at.i = 0;
    return at;
}

/* Returns how many rows thread ith of nth has in its share, and sets *at to the first of them. */
int64_t rapt_share_of_rows(const rapt_tokens *t, int64_t heads, int64_t ith, int64_t nth, rapt_cursor *at);

#endif
