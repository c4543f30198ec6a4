/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens a call has: of a batch whose entries have as many as each other, as lengths say, or one after the other (ragged).
 */
#ifndef RAPT_TOKENS_H
#define RAPT_TOKENS_H

#include "layout.h"
#include "memory.h"

typedef struct rapt_tokens {
    int64_t batch, tokens;
    const int32_t *starts, *lengths, *token_starts, *positions; /* as in rapt_kv_append_args; each may be null */
    int64_t shift;                                              /* added to starts */
    bool starts_are_ends;                                       /* starts say where the tokens end, rather */
    const int32_t *first_position; /* [batch], added to starts too, but only for positions; null: 0 */
} rapt_tokens;

/* A row: a token of an entry, and a head. */
typedef struct rapt_cursor {
    int64_t b, i, head;
} rapt_cursor;

static inline int64_t rapt_count_of(const rapt_tokens *t, int64_t b) {
    return t->token_starts ? (int64_t)t->token_starts[b + 1] - t->token_starts[b] : t->lengths ? t->lengths[b] : t->tokens;
}

static inline int64_t rapt_start_of(const rapt_tokens *t, int64_t b) {
    return (t->starts ? t->starts[b] : 0) + t->shift - (t->starts_are_ends ? rapt_count_of(t, b) : 0);
}

/* Where a row lies in a tensor of tokens. */
static inline int64_t rapt_offset_of(const rapt_tokens *t, const rapt_layout *layout, rapt_cursor at) {
    int64_t entry = t->token_starts ? 0 : at.b * layout->batch_stride,
            token = t->token_starts ? t->token_starts[at.b] + at.i : at.i;
    return entry + at.head * layout->head_stride + token * layout->token_stride;
}

static inline int64_t rapt_position_of(const rapt_tokens *t, int64_t b, int64_t i) {
    if (!t->positions) return rapt_start_of(t, b) + (t->first_position ? t->first_position[b] : 0) + i;
    return t->positions[(t->token_starts ? t->token_starts[b] : b * t->tokens) + i];
}

/* starts[first..end], of entries whose tokens or pages lie one after the other: none is negative or below the one before. starts
 * may be null. Errors: TABLE. */
rapt_status rapt_check_ascending(rapt_report *r, const char *name, const int32_t *starts, int64_t first, int64_t end);

/* starts[0..n] of a ragged batch, in a tensor of that many tokens; null: none. *most: tokens of the longest entry. Errors: TABLE,
 * ALIGNMENT. */
rapt_status rapt_check_starts(rapt_report *r, const char *name, const int32_t *starts, int64_t n, int64_t tokens, int64_t *most);

/* Adds the arrays, but for positions (rotate.h); then checks them. */
void rapt_add_tokens(rapt_memory *m, const rapt_tokens *t);
rapt_status rapt_check_tokens(rapt_report *r, const rapt_tokens *t);

/* Measures a tensor of such tokens, of RAPT_F32, RAPT_F16 or RAPT_BF16. */
rapt_status rapt_measure_heads(rapt_report *r, const char *name, const rapt_tokens *t, const rapt_layout *layout, int64_t heads,
                               int64_t channels, bool output, uint64_t *bytes);

/* The row after this one, of which there is one: a token's heads, then the next token, then the next entry that has any. */
static inline rapt_cursor rapt_next_row(const rapt_tokens *t, int64_t heads, rapt_cursor at) {
    if (++at.head == heads) at.head = 0, at.i++;
    while (at.b < t->batch && at.i == rapt_count_of(t, at.b)) at.b++, at.i = 0;
    return at;
}

/* How many rows thread ith has, from the one at *at. */
int64_t rapt_share_of_rows(const rapt_tokens *t, int64_t heads, int64_t ith, int64_t nth, rapt_cursor *at);

#endif
