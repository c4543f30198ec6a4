/* SPDX-License-Identifier: Apache-2.0 */
/* Layer and RMS normalisation of a token, in the order of docs/order.md: a sum over channels is RAPT_PARTIAL_SUMS sums, one for
 * each channel number modulo RAPT_PARTIAL_SUMS. Included by attend.h. */

/* A token plus its residual as f32, computed step by step and held for the next pass over the channels. A token that is f32 and
 * has no residual is read in place instead. Arrays are aligned so that no vector crosses a cache line. */
typedef struct norm_row {
    const rapt_norm_args *args;
    const rapt_norm_task *task;
    int channels;
    int first, held; /* z holds `held` channels from `first` on, a multiple of RAPT_NORM_HELD */
    _Alignas(64) float z[RAPT_NORM_HELD + RAPT_PARTIAL_SUMS];
    _Alignas(64) float step[RAPT_NORM_STEP + RAPT_PARTIAL_SUMS]; /* of the residual, or of an output before it is rounded */
} norm_row;

/* Returns the address of the n channels from `first` on, which are one step, as f32. */
static const char *norm_step(norm_row *row, int first, int n) {
    const rapt_norm_args *a = row->args;
    const rapt_norm_task *t = row->task;
    if (a->x.type == RAPT_F32 && !t->residual) return t->x + (size_t)first * sizeof(float);
    if (row->first != first - first % RAPT_NORM_HELD) row->first = first - first % RAPT_NORM_HELD, row->held = 0;
    float *z = row->z + (first - row->first);
    if (row->held > first - row->first) return (const char *)z;
    stage_element_rows(a->x.type, z, 0, &t->x, 1, first, n);
    if (t->residual) {
        stage_element_rows(a->residual.type, row->step, 0, &t->residual, 1, first, n);
        for (int i = 0; i < n; i += RAPT_VL) v_store(z + i, v_add(v_load(z + i), v_load(row->step + i)));
    }
    row->held += n;
    return (const char *)z;
}

/* Means over the channels of a token: of x and of x^2. */
typedef struct row_means {
    float x, squares;
} row_means;

/* Computes the mean of x = z - from if plain, and that of x^2 if squared; channels lie in lanes. A mean that is not computed has
 * a number that must not be used. */
static RAPT_INLINE row_means find_means(norm_row *row, float from, const bool plain, const bool squared) {
    float sums[RAPT_PARTIAL_SUMS] = {0}, squares[RAPT_PARTIAL_SUMS] = {0};
    vf acc[SUM_VECTORS], square_acc[SUM_VECTORS], center = v_set1(from);
    for (int v = 0; v < SUM_VECTORS; v++) acc[v] = square_acc[v] = v_set1(0.0f);
    for (int first = 0; first < row->channels; first += RAPT_NORM_STEP) {
        int n = rapt_min(RAPT_NORM_STEP, row->channels - first), i = 0;
        const char *z = norm_step(row, first, n);
        for (; i + RAPT_PARTIAL_SUMS <= n; i += RAPT_PARTIAL_SUMS)
            UNROLLED(v, SUM_VECTORS) {
                vf x = v_sub(load_f32(z, i + v * RAPT_VL), center);
                if (plain) acc[v] = v_add(acc[v], x);
                if (squared) square_acc[v] = v_fma(x, x, square_acc[v]);
            }
        if (first + n < row->channels) continue;
        for (int v = 0; v < SUM_VECTORS; v++) {
            v_store(sums + v * RAPT_VL, acc[v]);
            v_store(squares + v * RAPT_VL, square_acc[v]);
        }
        for (int r = 0; i < n; i++, r++) {
            float x = float_at(z + (size_t)i * sizeof x) - from;
            sums[r] += x;
            squares[r] = s_fma(x, x, squares[r]);
        }
    }
    row_means total = {0.0f, 0.0f};
    for (int r = 0; r < RAPT_PARTIAL_SUMS; r++) total.x += sums[r], total.squares += squares[r];
    return (row_means){total.x / (float)row->channels, total.squares / (float)row->channels};
}

/* Loads the n floats at `from`, at most a vector of them, and 0 for the rest of the vector. */
static RAPT_INLINE vf load_up_to(const void *from, int n) {
    return n >= RAPT_VL ? v_load(from) : load_part(load_f32, sizeof(float), from, n);
}

/* What the channels of a token are normalised by: y = (z - mean - mean_error) * inverse. */
typedef struct norm_end {
    vf mean, mean_error, inverse;
} norm_end;

/* Writes the results of a step. Whole vectors of f32 are stored directly; what is rounded to another type, and the last part of a
 * vector, goes through row->step. */
static RAPT_INLINE void end_norm(norm_row *row, const norm_end *end, int first, int n) {
    const char *z = norm_step(row, first, n);
    const rapt_norm_args *a = row->args;
    const float *weight = a->weight ? a->weight + first : NULL, *bias = a->bias ? a->bias + first : NULL;
    const size_t y_bytes = (size_t)rapt_element_bytes(a->y.type), sum_bytes = (size_t)rapt_element_bytes(a->sum.type);
    const vf one = v_set1(1.0f), zero = v_set1(0.0f);
    if (row->task->sum) {
        for (int i = 0; i < n; i += RAPT_VL) v_store(row->step + i, load_up_to(z + (size_t)i * sizeof(float), n - i));
        store_row(a->sum.type, row->task->sum + (size_t)first * sum_bytes, row->step, n);
    }
    char *y = row->task->y + (size_t)first * y_bytes;
    int i = 0, direct = a->y.type == RAPT_F32 ? n - n % RAPT_VL : 0;
    float *to = direct ? (float *)(void *)y : row->step;
    for (; i + RAPT_VL <= n; i += RAPT_VL) {
        vf d = v_sub(v_sub(load_f32(z, i), end->mean), end->mean_error);
        v_store(to + i, v_fma(v_mul(d, end->inverse), weight ? v_load(weight + i) : one, bias ? v_load(bias + i) : zero));
    }
    if (i < n) {
        vf d = v_sub(v_sub(load_up_to(z + (size_t)i * sizeof(float), n - i), end->mean), end->mean_error);
        v_store(row->step + i, v_fma(v_mul(d, end->inverse), weight ? load_up_to(weight + i, n - i) : one,
                                     bias ? load_up_to(bias + i, n - i) : zero));
    }
    store_row(a->y.type, y + (size_t)direct * y_bytes, row->step + direct, n - direct);
}

/* Normalises a token (rapt_base.normalise). */
static void normalise(const rapt_norm_args *a, const rapt_norm_task *t) {
    norm_row row;
    row.args = a, row.task = t, row.channels = (int)a->channels, row.first = row.held = 0;
    float mean = 0.0f, mean_error = 0.0f, variance;
    if (t->rms) variance = find_means(&row, 0.0f, false, true).squares;
    else {
        /* The mean has two parts: if it is large beside the deviations, the error of one f32 exceeds their own rounding. What
         * that error adds to the mean of squares is subtracted again, which saves a third pass. */
        mean = find_means(&row, 0.0f, true, false).x;
        row_means about = find_means(&row, mean, true, true);
        mean_error = about.x;
        variance = s_fma(-mean_error, mean_error, about.squares);
        if (variance < 0.0f) variance = 0.0f;
    }
    float inverse = 1.0f / __builtin_sqrtf(variance + a->epsilon);
    if (t->mean) *t->mean = mean + mean_error;
    if (t->inverse_deviation) *t->inverse_deviation = inverse;
    norm_end end = {v_set1(mean), v_set1(mean_error), v_set1(inverse)};
    for (int first = 0; first < row.channels; first += RAPT_NORM_STEP)
        end_norm(&row, &end, first, rapt_min(RAPT_NORM_STEP, row.channels - first));
}
