/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in memory: whether their types and strides are allowed, and how many bytes they span. */
#ifndef RAPT_LAYOUT_H
#define RAPT_LAYOUT_H

#include "core/report.h"
#include "core/sizes.h"
#include "core/type_info.h"
#include "types/types.h"

/* Sets of types, as bits 1 << type: those of any tensor of numbers (Q, O, ...), of K and V, of weights of linear layers, and of
 * masks. */
#define RAPT_BIT_OF(type, ...) | UINT64_C(1) << type
#define RAPT_FLOATS            (UINT64_C(0) RAPT_ELEMENT_TYPES(RAPT_BIT_OF))
#define RAPT_KV                (UINT64_C(0) RAPT_KV_TYPES(RAPT_BIT_OF))
#define RAPT_WEIGHTS           (UINT64_C(0) RAPT_WEIGHT_TYPES(RAPT_BIT_OF))
#define RAPT_MASKS             (UINT64_C(1) << RAPT_BOOL | UINT64_C(1) << RAPT_BIT)

/* Sets *row to the bytes of a row of `elements` elements. The type must be in the set `allowed`, and its groups must divide the
 * row. A report names the type tensor.member, or member where tensor is "". Errors: TYPE. */
rapt_status rapt_check_row(rapt_report *r, const char *tensor, const char *member, rapt_type type, uint64_t allowed,
                           int64_t elements, int64_t *row);

/* A dimension of a tensor. */
typedef struct rapt_dimension {
    int64_t length, stride; /* stride: in bytes */
    const char *name;       /* of the stride, in reports */
} rapt_dimension;

/* Checks the strides of a tensor of n dimensions whose rows have `row` bytes, and sets *bytes to what it spans, from its first to
 * its last byte. The rows of an output must not overlap. Sorts d by stride. Errors: STRIDE. */
rapt_status rapt_measure_dimensions(rapt_report *r, const char *tensor, rapt_dimension *d, int n, int64_t row, bool output,
                                    uint64_t *bytes);

/* Checks a tensor [batch, heads, tokens] of rows of `elements` elements, and sets *bytes to what it spans, by rapt_check_row and
 * rapt_measure_dimensions. Errors: TYPE, STRIDE. */
rapt_status rapt_measure(rapt_report *r, const char *tensor, const rapt_layout *layout, uint64_t allowed, int64_t batch,
                         int64_t heads, int64_t tokens, int64_t elements, bool output, uint64_t *bytes);

/* Does what rapt_measure does, for a tensor without heads: [batch, tokens] rows of `channels` elements. */
static inline rapt_status rapt_measure_tokens(rapt_report *r, const char *tensor, const rapt_layout *layout, uint64_t allowed,
                                              int64_t batch, int64_t tokens, int64_t channels, bool output, uint64_t *bytes) {
    return rapt_measure(r, tensor, layout, allowed, batch, 1, tokens, channels, output, bytes);
}

/* True if two tensors with heads have the same type and strides. */
static inline bool rapt_same_layout(const rapt_layout *a, const rapt_layout *b) {
    return a->type == b->type && a->batch_stride == b->batch_stride && a->head_stride == b->head_stride &&
           a->token_stride == b->token_stride;
}

/* True if two tensors without heads have the same type and strides. */
static inline bool rapt_same_rows(const rapt_layout *a, const rapt_layout *b) {
    return a->type == b->type && a->batch_stride == b->batch_stride && a->token_stride == b->token_stride;
}

/* True if the scales of K or V are one for each token; else they are for channels, heads or the whole tensor (docs/order.md). */
static inline bool rapt_scales_of_tokens(const rapt_scales *s) { return s->present && s->token_stride != 0; }

/* Returns the layout of scales of tokens, as a tensor of one channel; one of type RAPT_NONE for other scales. */
rapt_layout rapt_layout_of_scales(const rapt_scales *s);

/* Checks scales, and sets *bytes to what they span. batch, tokens: the dimensions of K or V in memory, which scales of tokens
 * have too (of a paged cache its pages and their size); entries: the batch, for scales of channels. Errors: STRIDE. */
rapt_status rapt_measure_scales(rapt_report *r, const char *name, const rapt_scales *s, int64_t batch, int64_t entries,
                                int64_t heads, int64_t tokens, int64_t channels, bool output, uint64_t *bytes);

#endif
