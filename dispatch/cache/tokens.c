/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a call: validation, and how threads share their rows. */
#include "cache/tokens.h"

#include "core/work.h"

rapt_status rapt_check_ascending(rapt_report *r, const char *name, const int32_t *starts, int64_t first, int64_t end) {
    if (!starts) return RAPT_OK;
    if (starts[first] < 0) return rapt_refuse_element(r, RAPT_ERR_TABLE, name, first, starts[first], "must be 0 or more");
    for (int64_t b = first; b < end; b++)
        if (starts[b + 1] < starts[b])
            return rapt_refuse_element(r, RAPT_ERR_TABLE, name, b + 1, starts[b + 1], "below the one before");
    return RAPT_OK;
}

rapt_status rapt_check_starts(rapt_report *r, const char *name, const int32_t *starts, int64_t n, int64_t tokens, int64_t *most) {
    if (!starts) return RAPT_OK;
    if ((uintptr_t)starts % sizeof *starts)
        return rapt_refuse(r, RAPT_ERR_ALIGNMENT, "%s = %p: not aligned to its elements of 4 bytes", name, (const void *)starts);
    rapt_status status = rapt_check_ascending(r, name, starts, 0, n);
    if (status == RAPT_OK && starts[n] > tokens)
        status =
            rapt_refuse(r, RAPT_ERR_TABLE, "%s[%" PRId64 "] = %d: there are %" PRId64 " tokens", name, n, (int)starts[n], tokens);
    *most = 0;
    for (int64_t b = 0; b < n && status == RAPT_OK; b++)
        if (starts[b + 1] - starts[b] > *most) *most = starts[b + 1] - starts[b];
    return status;
}

void rapt_register_tokens(rapt_memory *m, const rapt_tokens *t) {
    rapt_reads_array(m, "starts", t->starts, t->batch, sizeof(int32_t), true);
    rapt_reads_array(m, "lengths", t->lengths, t->batch, sizeof(int32_t), true);
    rapt_reads_array(m, "token_starts", t->token_starts, t->batch + 1, sizeof(int32_t), true);
}

rapt_status rapt_check_tokens(rapt_report *r, const rapt_tokens *t) {
    if (t->token_starts && t->lengths)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "lengths = %p: token_starts say them already", (const void *)t->lengths);
    int64_t most;
    rapt_status status = rapt_check_starts(r, "token_starts", t->token_starts, t->batch, t->tokens, &most);
    if (status != RAPT_OK || (!t->lengths && !t->starts)) return status; /* saves the loop over up to 2^31 entries */
    for (int64_t b = 0; b < t->batch; b++) {
        if (t->lengths && !rapt_within(t->lengths[b], 0, t->tokens))
            return rapt_refuse(r, RAPT_ERR_TABLE, "lengths[%" PRId64 "] = %d: there are %" PRId64 " tokens", b,
                               (int)t->lengths[b], t->tokens);
        if (t->starts && t->starts[b] < 0)
            return rapt_refuse_element(r, RAPT_ERR_TABLE, "starts", b, t->starts[b], "must be 0 or more");
    }
    return RAPT_OK;
}

rapt_status rapt_measure_heads(rapt_report *r, const char *name, const rapt_tokens *t, const rapt_layout *layout, int64_t heads,
                               int64_t channels, bool output, uint64_t *bytes) {
    return rapt_measure(r, name, layout, RAPT_FLOATS, t->token_starts ? t->batch > 0 : t->batch, heads, t->tokens, channels,
                        output, bytes);
}

int64_t rapt_share_of_rows(const rapt_tokens *t, int64_t heads, int64_t ith, int64_t nth, rapt_cursor *at) {
    const bool alike = !t->token_starts && !t->lengths;
    int64_t total = alike ? t->batch * t->tokens * heads : 0, first, rows;
    for (int64_t b = 0; b < t->batch && !alike; b++) total += rapt_count_of(t, b) * heads;
    rapt_cut_range(total, 1, ith, nth, &first, &rows);
    *at = (rapt_cursor){0, 0, 0};
    if (rows == 0) return 0;
    for (; first >= rapt_count_of(t, at->b) * heads; at->b++) first -= rapt_count_of(t, at->b) * heads;
    at->i = first / heads;
    at->head = first % heads;
    return rows;
}
