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

typedef struct dimension {
    int64_t length, stride;
} dimension;

rapt_status rapt_measure(const rapt_layout *layout, int64_t batch, int64_t heads, int64_t tokens, int64_t channels, bool output,
                         uint64_t *bytes) {
    int64_t unused, span = rapt_row_bytes(layout->type, channels);
    if (span < 0) return group_of(layout->type, &unused) ? RAPT_ERR_SHAPE : RAPT_ERR_TYPE;
    dimension d[3] = {{batch, layout->batch_stride}, {heads, layout->head_stride}, {tokens, layout->token_stride}};
    for (int i = 0; i < 3; i++)
        if (d[i].stride < 0) return RAPT_ERR_STRIDE;
    *bytes = 0;
    if (batch == 0 || heads == 0 || tokens == 0) return RAPT_OK;
    for (int i = 0; i < 2; i++) /* by stride, ascending */
        for (int j = 0; j < 2 - i; j++)
            if (d[j].stride > d[j + 1].stride) {
                dimension swapped = d[j];
                d[j] = d[j + 1];
                d[j + 1] = swapped;
            }
    for (int i = 0; i < 3; i++) {
        if (d[i].length == 1) continue;
        if (output && d[i].stride < span) return RAPT_ERR_STRIDE;
        int64_t extent = rapt_product(d[i].length - 1, d[i].stride);
        if (extent < 0 || __builtin_add_overflow(span, extent, &span)) return RAPT_ERR_STRIDE;
    }
    if ((uint64_t)span > PTRDIFF_MAX) return RAPT_ERR_STRIDE;
    *bytes = (uint64_t)span;
    return RAPT_OK;
}
