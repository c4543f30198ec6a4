/* SPDX-License-Identifier: Apache-2.0 */
#include "rotary.h"

#include "doubles.h"
#include "rows.h"

/* ---- Validation ---------------------------------------------------------------------------------------------------------- */

rapt_status rapt_check_rotary(rapt_report *r, const rapt_rotary *rotary, int64_t channels) {
    if (rotary->channels < 0 || rotary->channels > channels || rotary->channels % 2)
        return rapt_refuse(r, RAPT_ERR_FEATURE,
                           "rotary.channels = %" PRId64 ": must be even, 0 to the %" PRId64 " channels that there are",
                           rotary->channels, channels);
    if (rotary->channels == 0) return RAPT_OK;
    if (!is_finite(rotary->amplitude))
        return rapt_refuse(r, RAPT_ERR_FEATURE, "rotary.amplitude = %g: must be finite", rotary->amplitude);
    if (!rapt_within(rotary->offset, -(int64_t)RAPT_MAX_LENGTH, RAPT_MAX_LENGTH))
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, "rotary", "offset", rotary->offset, "must be -2147483647 to 2147483647");
    if ((uintptr_t)rotary->frequencies % sizeof(double))
        return rapt_refuse(r, RAPT_ERR_ALIGNMENT, "rotary.frequencies = %p: not aligned to its elements of 8 bytes",
                           (const void *)rotary->frequencies);
    for (int64_t i = 0; i < rotary->channels / 2 && rotary->frequencies; i++)
        if (!(rotary->frequencies[i] >= -16.0 && rotary->frequencies[i] <= 16.0))
            return rapt_refuse(r, RAPT_ERR_FEATURE, "rotary.frequencies[%" PRId64 "] = %g: must be -16 to 16", i,
                               rotary->frequencies[i]);
    return RAPT_OK;
}

/* Bytes from one position's row of a table to the next. */
static int64_t row_stride(const rapt_rotary *rotary, const rapt_rotary_table *t) {
    return t->row_stride ? t->row_stride : rapt_row_bytes(t->type, rotary->channels / 2);
}

static void add_table(rapt_memory *m, const rapt_rotary *rotary, const rapt_rotary_table *t) {
    rapt_report *r = m->report;
    uint64_t bytes = 0;
    int64_t row;
    if (m->status != RAPT_OK) return;
    if (t->type == 0) {
        m->status = rapt_refuse_null(r, "rotary.frequencies", "and there is no rotary_table");
        return;
    }
    if (!rapt_within(t->positions, 0, RAPT_MAX_LENGTH)) {
        m->status = rapt_refuse_member(r, RAPT_ERR_SHAPE, "rotary_table", "positions", t->positions, "must be 0 to 2147483647");
        return;
    }
    m->status = rapt_check_row(r, "rotary_table", "type", t->type, RAPT_FLOATS, rotary->channels / 2, &row);
    rapt_dimension d[] = {{t->positions, m->status == RAPT_OK ? row_stride(rotary, t) : 0, "row_stride"}};
    if (m->status == RAPT_OK) m->status = rapt_measure_dimensions(r, "rotary_table", d, 1, row, false, &bytes);
    rapt_reads(m, "rotary_table.c", t->c, bytes);
    rapt_reads(m, "rotary_table.s", t->s, bytes);
}

void rapt_add_rotary(rapt_memory *m, const rapt_rotary *rotary, const rapt_rotary_table *t) {
    bool by_table = rotary->channels && !rotary->frequencies;
    rapt_reads_array(m, "rotary.frequencies", rotary->frequencies, rotary->channels / 2, sizeof(double), true);
    if (by_table) {
        add_table(m, rotary, t);
    } else if (t->type && m->status == RAPT_OK) {
        m->status = rapt_refuse_member(m->report, RAPT_ERR_UNUSED, "rotary_table", "type", (int)t->type,
                                       rotary->channels ? "there are rotary.frequencies" : "nothing is rotated");
    }
}

rapt_status rapt_check_positions(rapt_report *r, const rapt_rotary *rotary, const rapt_rotary_table *t,
                                 const rapt_tokens *tokens) {
    if (!rotary->channels || rotary->frequencies) return RAPT_OK;
    for (int64_t b = 0; b < tokens->batch; b++) {
        int64_t count = rapt_count_of(tokens, b);
        for (int64_t i = 0; i < count;
             i += tokens->positions || count == 1 ? 1 : count - 1) { /* else the first and the last will do */
            int64_t at = rapt_position_of(tokens, b, i) + rotary->offset;
            if (at < 0 || at >= t->positions)
                return rapt_refuse(r, RAPT_ERR_TABLE,
                                   "rotary_table.positions = %" PRId64 ": token %" PRId64 " of entry %" PRId64
                                   " is at position %" PRId64,
                                   t->positions, i, b, at);
        }
    }
    return RAPT_OK;
}

/* ---- Angles -------------------------------------------------------------------------------------------------------------- */

/* The frequency comes in two parts, the first of 20 bits, so that its product is exact; the quarter turns, fewer than 2^37, are
 * multiplied by pi/2 in three parts, two of them of 16 bits, so that these products are exact. */
void rapt_find_angle(double position, double frequency, double *cosine, double *sine) {
    const double quarter_1 = 0x1.921ep+0, quarter_2 = 0x1.b544p-16, quarter_3 = 0x1.0b4611a626331p-34;
    double coarse = double_of(bits_of(frequency) & ~((UINT64_C(1) << 33) - 1));
    double angle = position * coarse, rest = position * (frequency - coarse);
    double rounded = (angle + rest) * 0x1.45f306dc9c883p-1 + ROUND_MAGIC, turns = rounded - ROUND_MAGIC;
    double r = (((angle - turns * quarter_1) + rest) - turns * quarter_2) - turns * quarter_3;

    /* Taylor's series: |r| is at most a little above pi/4, where the first term left out is below 1e-16. */
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

void rapt_find_angles(const rapt_rotary *rotary, const rapt_rotary_table *t, int64_t position, rapt_angles *angles) {
    int64_t pairs = rotary->channels / 2, at = position + rotary->offset;
    if (!rotary->frequencies) {
        rapt_load_row(t->type, angles->c, (const char *)t->c + at * row_stride(rotary, t), pairs);
        rapt_load_row(t->type, angles->s, (const char *)t->s + at * row_stride(rotary, t), pairs);
        return;
    }
    for (int64_t i = 0; i < pairs; i++) {
        double c, s;
        rapt_find_angle((double)at, rotary->frequencies[i], &c, &s);
        angles->c[i] = (float)(c * rotary->amplitude);
        angles->s[i] = (float)(s * rotary->amplitude);
    }
}

void rapt_rotate(const rapt_rotary *rotary, const rapt_angles *angles, float *row) {
    int64_t pairs = rotary->channels / 2, step = rotary->interleaved ? 2 : 1, other = rotary->interleaved ? 1 : pairs;
    for (int64_t i = 0; i < pairs; i++) {
        float *at = row + i * step, x = at[0], y = at[other], c = angles->c[i], s = angles->s[i];
        at[0] = x * c - y * s;
        at[other] = y * c + x * s;
    }
}
