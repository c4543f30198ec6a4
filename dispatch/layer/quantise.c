/* SPDX-License-Identifier: Apache-2.0 */
/* Quantises weights of linear layers: to int8 with a scale for each row, and to types whose groups have scales. */
#include "core/float_modes.h"
#include "core/layout.h"
#include "core/memory.h"
#include "cache/rows.h"

/* How many channels are converted at a time; a multiple of every type's group. */
enum { STEP = RAPT_MAX_HEAD_DIM };

/* Checks a call. allowed: the set of types that to_type may be. */
static rapt_status quantise_check(rapt_report *r, int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                  uint64_t allowed, rapt_type to_type, const void *to, const float *scales) {
    if (!rapt_within(out, 1, RAPT_MAX_WIDTH)) return rapt_refuse_number(r, RAPT_ERR_SHAPE, "out", out, "must be 1 to 1048576");
    if (!rapt_within(in, 1, RAPT_MAX_WIDTH)) return rapt_refuse_number(r, RAPT_ERR_SHAPE, "in", in, "must be 1 to 1048576");
    int64_t from_row = 0, to_row = 0;
    uint64_t bytes = 0;
    rapt_status status = rapt_check_row(r, "", "type", type, RAPT_FLOATS, in, &from_row);
    if (status == RAPT_OK) status = rapt_check_row(r, "", "to_type", to_type, allowed, in, &to_row);
    if (status != RAPT_OK) return status;
    rapt_dimension rows[] = {{out, row_stride, "row_stride"}};
    rapt_memory m;
    rapt_memory_begin(&m, r);
    m.status = rapt_measure_dimensions(r, "", rows, 1, from_row, false, &bytes);
    rapt_reads(&m, "from", from, bytes);
    rapt_writes(&m, "to", to, (uint64_t)(out * to_row));
    if (to_type == RAPT_INT8) rapt_writes_array(&m, "scales", scales, out, sizeof *scales, false);
    return rapt_check_memory(&m);
}

static rapt_status check_int8(rapt_report *r, int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                              const int8_t *to, const float *scales) {
    return quantise_check(r, out, in, type, row_stride, from, 1 << RAPT_INT8, RAPT_INT8, to, scales);
}

rapt_status rapt_quantise_weights_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                          int8_t *to, float *scales, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_quantise_weights", text, bytes);
    const rapt_status status = check_int8(&r, out, in, type, row_stride, from, to, scales);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

rapt_status rapt_quantise_weights(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from, int8_t *to,
                                  float *scales) {
    rapt_report r = rapt_report_of("rapt_quantise_weights");
    rapt_status status = check_int8(&r, out, in, type, row_stride, from, to, scales);
    if (status == RAPT_OK) status = rapt_check_floats(&r);
    int64_t bytes = rapt_row_bytes(type, 1);
    for (int64_t n = 0; n < out && status == RAPT_OK; n++) {
        const char *row = (const char *)from + n * row_stride;
        float step[STEP];
        rapt_extent e = {0};
        for (int64_t i = 0; i < in; i += STEP) {
            int64_t channels = in - i < STEP ? in - i : STEP;
            rapt_load_row(type, step, row + i * bytes, channels);
            rapt_extend(&e, step, channels);
        }
        scales[n] = rapt_scale_of(RAPT_INT8, &e);
        for (int64_t i = 0; i < in; i += STEP) {
            int64_t channels = in - i < STEP ? in - i : STEP;
            rapt_load_row(type, step, row + i * bytes, channels);
            rapt_divide_by(step, channels, &e, scales[n]);
            rapt_store_row(RAPT_INT8, (char *)to + n * in + i, step, channels);
        }
    }
    return status;
}

static rapt_status check_groups(rapt_report *r, int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                rapt_type to_type, const void *to) {
    return quantise_check(r, out, in, type, row_stride, from, RAPT_WEIGHTS & RAPT_KV & ~(RAPT_FLOATS | 1 << RAPT_INT8), to_type,
                          to, NULL);
}

rapt_status rapt_quantise_groups_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                         rapt_type to_type, void *to, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_quantise_groups", text, bytes);
    const rapt_status status = check_groups(&r, out, in, type, row_stride, from, to_type, to);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

rapt_status rapt_quantise_groups(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from, rapt_type to_type,
                                 void *to) {
    rapt_report r = rapt_report_of("rapt_quantise_groups");
    rapt_status status = check_groups(&r, out, in, type, row_stride, from, to_type, to);
    if (status == RAPT_OK) status = rapt_check_floats(&r);
    int64_t bytes = rapt_row_bytes(type, 1);
    for (int64_t n = 0; n < out && status == RAPT_OK; n++)
        for (int64_t i = 0; i < in; i += STEP) {
            int64_t channels = in - i < STEP ? in - i : STEP;
            float step[STEP];
            rapt_load_row(type, step, (const char *)from + n * row_stride + i * bytes, channels);
            rapt_store_row(to_type, (char *)to + n * rapt_row_bytes(to_type, in) + rapt_row_bytes(to_type, i), step, channels);
        }
    return status;
}
