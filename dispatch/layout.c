/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#include "types.h"

bool rapt_ranges_meet(rapt_range a, rapt_range b) {
    return a.bytes && b.bytes && (a.first < b.first ? b.first - a.first < a.bytes : a.first - b.first < b.bytes);
}

int64_t rapt_product(int64_t a, int64_t b) {
    int64_t ab;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &ab) ? -1 : ab;
}

/* The channels and the bytes of a type's group; 0 for a type that no tensor of numbers has. */
static int64_t group_of(rapt_type type, int64_t *bytes) {
    switch (type) {
#define RAPT_TYPE(name, suffix, element)                                                                                         \
    case name:                                                                                                                   \
        *bytes = element;                                                                                                        \
        return 1;
        RAPT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, group_bytes)                                                                              \
    case name:                                                                                                                   \
        *bytes = group_bytes;                                                                                                    \
        return group;
        RAPT_KV_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        return 0;
    }
}

int64_t rapt_row_bytes(rapt_type type, int64_t channels) {
    int64_t bytes, group = group_of(type, &bytes);
    return group == 0 || channels % group ? -1 : rapt_product(channels / group, bytes);
}

int64_t rapt_bytes_of(rapt_type type, int64_t elements) {
    switch (type) {
    case RAPT_BOOL:
        return elements;
    case RAPT_BIT:
        return elements / 8 + (elements % 8 != 0);
    case RAPT_I32:
        return elements * (int64_t)sizeof(int32_t);
    default:
        return rapt_row_bytes(type, elements);
    }
}

rapt_layout rapt_layout_bhsd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels) {
    int64_t token = rapt_row_bytes(type, channels), head = rapt_product(token, tokens);
    return (rapt_layout){type, rapt_product(head, heads), head, token};
}

rapt_layout rapt_layout_bshd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels) {
    int64_t head = rapt_row_bytes(type, channels), token = rapt_product(head, heads);
    return (rapt_layout){type, rapt_product(token, tokens), head, token};
}

rapt_status rapt_measure_dimensions(rapt_dimension *d, int n, int64_t row, bool output, uint64_t *bytes) {
    if (row < 0) return RAPT_ERR_TYPE;
    *bytes = 0;
    for (int i = 0; i < n; i++)
        if (d[i].stride < 0) return RAPT_ERR_STRIDE;
    for (int i = 0; i < n; i++)
        if (d[i].length == 0) return RAPT_OK;
    for (int i = 1; i < n; i++) /* by stride, ascending */
        for (int j = i; j > 0 && d[j - 1].stride > d[j].stride; j--) {
            rapt_dimension swapped = d[j];
            d[j] = d[j - 1];
            d[j - 1] = swapped;
        }
    int64_t span = row;
    for (int i = 0; i < n; i++) {
        if (d[i].length == 1) continue;
        if (output && d[i].stride < span) return RAPT_ERR_STRIDE;
        int64_t extent = rapt_product(d[i].length - 1, d[i].stride);
        if (extent < 0 || __builtin_add_overflow(span, extent, &span)) return RAPT_ERR_STRIDE;
    }
    if ((uint64_t)span > PTRDIFF_MAX) return RAPT_ERR_STRIDE;
    *bytes = (uint64_t)span;
    return RAPT_OK;
}

rapt_status rapt_measure_rows(const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens, int64_t row, bool output,
                              uint64_t *bytes) {
    rapt_dimension d[] = {{batch, l->batch_stride}, {heads, l->head_stride}, {tokens, l->token_stride}};
    return rapt_measure_dimensions(d, 3, row, output, bytes);
}

rapt_status rapt_measure(const rapt_layout *layout, int64_t batch, int64_t heads, int64_t tokens, int64_t channels, bool output,
                         uint64_t *bytes) {
    return rapt_measure_rows(layout, batch, heads, tokens, rapt_row_bytes(layout->type, channels), output, bytes);
}
