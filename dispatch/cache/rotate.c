/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding of one row. */
#include "cache/rotate.h"

#include "core/doubles.h"
#include "cache/rows.h"

/* ---- Validation ---------------------------------------------------------------------------------------------------------- */

rapt_status rapt_check_rope(rapt_report *r, const rapt_rope *rope, int64_t channels) {
    if (rope->channels < 0 || rope->channels > channels || rope->channels % 2)
        return rapt_refuse(r, RAPT_ERR_FEATURE,
                           "rope.channels = %" PRId64 ": must be even, 0 to the %" PRId64 " channels that there are",
                           rope->channels, channels);
    if (rope->channels == 0) return RAPT_OK;
    if (!is_finite(rope->amplitude))
        return rapt_refuse(r, RAPT_ERR_FEATURE, "rope.amplitude = %g: must be finite", rope->amplitude);
    if (!rapt_within(rope->offset, -(int64_t)RAPT_MAX_LENGTH, RAPT_MAX_LENGTH))
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, "rope", "offset", rope->offset, "must be -2147483647 to 2147483647");
    if ((uintptr_t)rope->frequencies % _Alignof(double))
        return rapt_refuse(r, RAPT_ERR_ALIGNMENT, "rope.frequencies = %p: not aligned to its elements of 8 bytes",
                           (const void *)rope->frequencies);
    for (int64_t i = 0; i < rope->channels / 2 && rope->frequencies; i++)
        if (!(rope->frequencies[i] >= -16.0 && rope->frequencies[i] <= 16.0))
            return rapt_refuse(r, RAPT_ERR_FEATURE, "rope.frequencies[%" PRId64 "] = %g: must be -16 to 16", i,
                               rope->frequencies[i]);
    return RAPT_OK;
}

/* Returns the bytes from one position's row of a table to the next. */
static int64_t row_stride(const rapt_rope *rope, const rapt_rope_table *t) {
    return t->row_stride ? t->row_stride : rapt_row_bytes(t->type, rope->channels / 2);
}

/* Checks a table of cosines and sines, and registers it. */
static void rope_register_table(rapt_memory *m, const rapt_rope *rope, const rapt_rope_table *t) {
    rapt_report *r = m->report;
    uint64_t bytes = 0;
    int64_t row;
    if (m->status != RAPT_OK) return;
    if (t->type == RAPT_NONE) {
        m->status = rapt_refuse_null(r, "rope.frequencies", "and there is no rope_table");
        return;
    }
    if (!rapt_within(t->positions, 0, RAPT_MAX_LENGTH)) {
        m->status = rapt_refuse_member(r, RAPT_ERR_SHAPE, "rope_table", "positions", t->positions, "must be 0 to 2147483647");
        return;
    }
    m->status = rapt_check_row(r, "rope_table", "type", t->type, RAPT_FLOATS, rope->channels / 2, &row);
    rapt_dimension d[] = {{t->positions, m->status == RAPT_OK ? row_stride(rope, t) : 0, "row_stride"}};
    if (m->status == RAPT_OK) m->status = rapt_measure_dimensions(r, "rope_table", d, 1, row, false, &bytes);
    rapt_reads(m, "rope_table.c", t->c, bytes);
    rapt_reads(m, "rope_table.s", t->s, bytes);
}

void rapt_register_rope(rapt_memory *m, const rapt_rope *rope, const rapt_rope_table *t) {
    bool by_table = rope->channels && !rope->frequencies;
    rapt_reads_array(m, "rope.frequencies", rope->frequencies, rope->channels / 2, sizeof(double), true);
    if (by_table) {
        rope_register_table(m, rope, t);
    } else if (t->type && m->status == RAPT_OK) {
        m->status = rapt_refuse_type(m->report, RAPT_ERR_UNUSED, "rope_table", "type", t->type,
                                     rope->channels ? "there are rope.frequencies" : "nothing is rotated");
    }
}

void rapt_register_positions(rapt_memory *m, const rapt_rope *rope, const rapt_tokens *tokens) {
    int64_t n = tokens->token_starts ? tokens->tokens : tokens->batch * tokens->tokens; /* below 2^62 */
    if (rope->channels) rapt_reads_array(m, "positions", tokens->positions, n, sizeof(int32_t), true);
    else rapt_unused(m, "positions", tokens->positions, "nothing is rotated");
}

rapt_status rapt_check_positions(rapt_report *r, const rapt_rope *rope, const rapt_rope_table *t, const rapt_tokens *tokens) {
    if (!rope->channels || rope->frequencies) return RAPT_OK;
    for (int64_t b = 0; b < tokens->batch; b++) {
        int64_t count = rapt_count_of(tokens, b);
        /* Without an array of positions, positions ascend, so checking the first and the last token is enough. */
        for (int64_t i = 0; i < count; i += tokens->positions || count == 1 ? 1 : count - 1) {
            int64_t at = rapt_position_of(tokens, b, i) + rope->offset;
            if (at < 0 || at >= t->positions)
                return rapt_refuse(r, RAPT_ERR_TABLE,
                                   "rope_table.positions = %" PRId64 ": token %" PRId64 " of entry %" PRId64
                                   " is at position %" PRId64,
                                   t->positions, i, b, at);
        }
    }
    return RAPT_OK;
}

/* ---- Angles -------------------------------------------------------------------------------------------------------------- */

/* Subtracts whole quarter turns from the angle (Cody and Waite's argument reduction), then uses Taylor series. The frequency is
 * split in two, the first part of 20 bits, so that its product with the position is exact. There are fewer than 2^37 quarter
 * turns; pi/2 is split in three, the first two parts of 16 bits, so that their products with the number of turns are exact. */
void rapt_find_angle(double position, double frequency, double *cosine, double *sine) {
    const double quarter_1 = 0x1.921ep+0, quarter_2 = 0x1.b544p-16, quarter_3 = 0x1.0b4611a626331p-34;
    double coarse = double_of(bits_of(frequency) & ~((UINT64_C(1) << 33) - 1));
    double angle = position * coarse, rest = position * (frequency - coarse);
    double rounded = (angle + rest) * 0x1.45f306dc9c883p-1 + ROUND_MAGIC, turns = rounded - ROUND_MAGIC;
    double r = (((angle - turns * quarter_1) + rest) - turns * quarter_2) - turns * quarter_3;

    /* Taylor series of sin and cos: |r| is at most slightly above pi/4, where the first term that is left out is below 1e-16. */
    double z = r * r;
    double s = -1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = r + r * (z * s);
    double c = 1.0 / 20922789888000.0;
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    c = 1.0 + z * c;

    uint64_t quadrant = bits_of(rounded) & 3;
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}

void rapt_find_angles(const rapt_rope *rope, const rapt_rope_table *t, int64_t position, rapt_angles *angles) {
    int64_t pairs = rope->channels / 2, at = position + rope->offset;
    if (!rope->frequencies) {
        rapt_load_row(t->type, angles->c, (const char *)t->c + at * row_stride(rope, t), pairs);
        rapt_load_row(t->type, angles->s, (const char *)t->s + at * row_stride(rope, t), pairs);
        return;
    }
    for (int64_t i = 0; i < pairs; i++) {
        double c, s;
        rapt_find_angle((double)at, rope->frequencies[i], &c, &s);
        angles->c[i] = (float)(c * rope->amplitude);
        angles->s[i] = (float)(s * rope->amplitude);
    }
}

void rapt_rotate(const rapt_rope *rope, const rapt_angles *angles, float *row) {
    int64_t pairs = rope->channels / 2, step = rope->interleaved ? 2 : 1, other = rope->interleaved ? 1 : pairs;
    for (int64_t i = 0; i < pairs; i++) {
        float *at = row + i * step, x = at[0], y = at[other], c = angles->c[i], s = angles->s[i];
        at[0] = x * c - y * s;
        at[other] = y * c + x * s;
    }
}
