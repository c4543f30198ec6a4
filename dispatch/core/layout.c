/* SPDX-License-Identifier: Apache-2.0 */
#include "core/layout.h"

rapt_layout rapt_layout_bhsd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels) {
    int64_t token = rapt_row_bytes(type, channels), head = rapt_product(token, tokens);
    return (rapt_layout){type, rapt_product(head, heads), head, token};
}

rapt_layout rapt_layout_bshd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels) {
    int64_t head = rapt_row_bytes(type, channels), token = rapt_product(head, heads);
    return (rapt_layout){type, rapt_product(token, tokens), head, token};
}

rapt_status rapt_check_row(rapt_report *r, const char *tensor, const char *member, rapt_type type, uint64_t allowed,
                           int64_t elements, int64_t *row) {
    if (rapt_type_class_of(type) == RAPT_CLASS_NONE || !(allowed >> type & 1))
        return rapt_refuse_other_type(r, tensor, member, type, allowed);
    *row = rapt_bytes_of(type, elements);
    char name[RAPT_NAME_BYTES];
    if (*row < 0)
        return rapt_refuse(r, RAPT_ERR_TYPE, "%s%s%s = %s: its groups of %" PRId64 " channels do not divide %" PRId64, tensor,
                           *tensor ? "." : "", member, rapt_name_type(name, type), rapt_group_of(type), elements);
    return RAPT_OK;
}

rapt_status rapt_measure_dimensions(rapt_report *r, const char *tensor, rapt_dimension *d, int n, int64_t row, bool output,
                                    uint64_t *bytes) {
    *bytes = 0;
    if (row == 0) return RAPT_OK;
    for (int i = 0; i < n; i++)
        if (d[i].length == 0) return RAPT_OK;
    for (int i = 0; i < n; i++)
        if (d[i].length > 1 && d[i].stride < 0)
            return rapt_refuse_member(r, RAPT_ERR_STRIDE, tensor, d[i].name, d[i].stride, "strides are not negative");
    for (int i = 1; i < n; i++) /* by stride, ascending */
        for (int j = i; j > 0 && d[j - 1].stride > d[j].stride; j--) {
            rapt_dimension swapped = d[j];
            d[j] = d[j - 1];
            d[j - 1] = swapped;
        }
    int64_t span = row;
    for (int i = 0; i < n; i++) {
        if (d[i].length == 1) continue;
        if (output && d[i].stride < span)
            return rapt_refuse(r, RAPT_ERR_STRIDE,
                               "%s%s%s = %" PRId64 ": below the %" PRId64 " bytes within it, so elements of an output meet",
                               tensor, *tensor ? "." : "", d[i].name, d[i].stride, span);
        int64_t extent = rapt_product(d[i].length - 1, d[i].stride);
        if (extent < 0 || __builtin_add_overflow(span, extent, &span) || (uint64_t)span > PTRDIFF_MAX)
            return rapt_refuse(r, RAPT_ERR_STRIDE, "%s%s%s = %" PRId64 ": times %" PRId64 " it exceeds the address space", tensor,
                               *tensor ? "." : "", d[i].name, d[i].stride, d[i].length);
    }
    *bytes = (uint64_t)span;
    return RAPT_OK;
}

rapt_status rapt_measure(rapt_report *r, const char *tensor, const rapt_layout *l, uint64_t allowed, int64_t batch, int64_t heads,
                         int64_t tokens, int64_t elements, bool output, uint64_t *bytes) {
    int64_t row = 0;
    rapt_status status = rapt_check_row(r, tensor, "type", l->type, allowed, elements, &row);
    if (status != RAPT_OK) return status;
    rapt_dimension d[] = {{batch, l->batch_stride, "batch_stride"},
                          {heads, l->head_stride, "head_stride"},
                          {tokens, l->token_stride, "token_stride"}};
    return rapt_measure_dimensions(r, tensor, d, 3, row, output, bytes);
}

rapt_layout rapt_layout_of_scales(const rapt_scales *s) {
    const rapt_layout none = {.type = RAPT_NONE};
    return rapt_scales_of_tokens(s) ? (rapt_layout){RAPT_F32, s->batch_stride, s->head_stride, s->token_stride} : none;
}

rapt_status rapt_measure_scales(rapt_report *r, const char *name, const rapt_scales *s, int64_t batch, int64_t entries,
                                int64_t heads, int64_t tokens, int64_t channels, bool output, uint64_t *bytes) {
    *bytes = 0;
    if (!s->present) return RAPT_OK;
    if (s->token_stride && s->channel_stride)
        return rapt_refuse_member(r, RAPT_ERR_STRIDE, name, "channel_stride", s->channel_stride,
                                  "there is a token_stride, and scales are of tokens or of channels");
    bool of_tokens = rapt_scales_of_tokens(s);
    rapt_dimension d[] = {{of_tokens ? batch : entries, s->batch_stride, "batch_stride"},
                          {heads, s->head_stride, "head_stride"},
                          {of_tokens ? tokens : channels, of_tokens ? s->token_stride : s->channel_stride,
                           of_tokens ? "token_stride" : "channel_stride"}};
    return rapt_measure_dimensions(r, name, d, 3, sizeof(float), output, bytes);
}
