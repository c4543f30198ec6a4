/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in memory: their types, and what they span. */
#ifndef RAPT_LAYOUT_H
#define RAPT_LAYOUT_H

#include "report.h"
#include "types.h"

/* a * b, or -1 when that overflows or a factor is negative. */
int64_t rapt_product(int64_t a, int64_t b);

/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): where there are no rows, for which alone b could be 0, nothing is cut */
static inline int64_t rapt_divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Bytes of a row of any type, those of masks and tables too; -1 if there is no such row. */
int64_t rapt_bytes_of(rapt_type type, int64_t elements);

/* Sets of types, as 64 bits: those that any tensor of numbers, K and V, weights, and masks may have. */
#define RAPT_BIT_OF(type, ...) | UINT64_C(1) << type
#define RAPT_FLOATS            (UINT64_C(0) RAPT_ELEMENT_TYPES(RAPT_BIT_OF))
#define RAPT_KV                (UINT64_C(0) RAPT_KV_TYPES(RAPT_BIT_OF))
#define RAPT_WEIGHTS           (UINT64_C(0) RAPT_WEIGHT_TYPES(RAPT_BIT_OF))
#define RAPT_MASKS             (UINT64_C(1) << RAPT_BOOL | UINT64_C(1) << RAPT_BIT)

/* The bytes of a row of that many elements of a tensor, whose type must be one of the set. member: what the type is called, in
 * the tensor, or by itself where that is "". Errors: TYPE. */
rapt_status rapt_check_row(rapt_report *r, const char *tensor, const char *member, rapt_type type, uint64_t allowed,
                           int64_t elements, int64_t *row);

/* A dimension of a tensor, and what its stride is called. */
typedef struct rapt_dimension {
    int64_t length, stride;
    const char *name;
} rapt_dimension;

/* Checks the strides of a tensor of rows of that many bytes, and measures it from its first to its last byte; of an output no two
 * rows may meet. d is sorted. Errors: STRIDE. */
rapt_status rapt_measure_dimensions(rapt_report *r, const char *tensor, rapt_dimension *d, int n, int64_t row, bool output,
                                    uint64_t *bytes);

/* Both at once, of a layout. Errors: TYPE, STRIDE. */
rapt_status rapt_measure(rapt_report *r, const char *tensor, const rapt_layout *layout, uint64_t allowed, int64_t batch,
                         int64_t heads, int64_t tokens, int64_t elements, bool output, uint64_t *bytes);

/* Rows of which a tensor has as many as tokens in a batch: without heads. */
static inline rapt_status rapt_measure_tokens(rapt_report *r, const char *tensor, const rapt_layout *layout, uint64_t allowed,
                                              int64_t batch, int64_t tokens, int64_t channels, bool output, uint64_t *bytes) {
    return rapt_measure(r, tensor, layout, allowed, batch, 1, tokens, channels, output, bytes);
}

static inline bool rapt_same_layout(const rapt_layout *a, const rapt_layout *b) {
    return a->type == b->type && a->batch_stride == b->batch_stride && a->head_stride == b->head_stride &&
           a->token_stride == b->token_stride;
}

/* The same without heads. */
static inline bool rapt_same_rows(const rapt_layout *a, const rapt_layout *b) {
    return a->type == b->type && a->batch_stride == b->batch_stride && a->token_stride == b->token_stride;
}

/* Scales of K or V (docs/order.md): of tokens, or of channels, heads and tensors. */
static inline bool rapt_scales_of_tokens(const rapt_scales *s) { return s->present && s->token_stride != 0; }

/* The layout of scales of tokens, which have one channel; of others RAPT_NONE. */
rapt_layout rapt_layout_of_scales(const rapt_scales *s);

/* Measures scales: batch and tokens are those of K or V where these are scales of tokens, entries is the batch. Errors: STRIDE.
 */
rapt_status rapt_measure_scales(rapt_report *r, const char *name, const rapt_scales *s, int64_t batch, int64_t entries,
                                int64_t heads, int64_t tokens, int64_t channels, bool output, uint64_t *bytes);

#endif
