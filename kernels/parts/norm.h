/* SPDX-License-Identifier: Apache-2.0 */
/* Layer and RMS normalisation of a token, in the order of docs/order.md: sums over channels are RAPT_PARTIAL_SUMS sums, by
 * channel modulo it. Included by attend.h. */

/* A token with its residual, as f32: in place where it lies so and has none. */
typedef struct norm_row {
    const rapt_norm_args *args;
    const rapt_norm_task *task;
    int channels, first, held; /* z holds that many channels from first on, a multiple of RAPT_NORM_HELD */
    _Alignas(64) float z[RAPT_NORM_HELD + RAPT_PARTIAL_SUMS];    /* aligned: no vector crosses a cache line */
    _Alignas(64) float step[RAPT_NORM_STEP + RAPT_PARTIAL_SUMS]; /* of the residual, or of what is rounded to another type */
} norm_row;

/* The n channels from first on, a step. */
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

/* The means over a token of x = z - from and of x^2, each if it is wanted; channels in lanes. */
typedef struct row_means {
    float x, squares;
} row_means;

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

/* RAPT_VL of n floats at from, the others 0. */
static RAPT_INLINE vf load_up_to(const void *from, int n) {
    return n >= RAPT_VL ? v_load(from) : load_part(load_f32, sizeof(float), from, n);
}

typedef struct norm_end {
    vf mean, mean_error, inverse;
} norm_end;

/* The results of a step: whole vectors of f32 go where they belong, others by way of memory of ours. */
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

static void normalise(const rapt_norm_args *a, const rapt_norm_task *t) {
    norm_row row;
    row.args = a, row.task = t, row.channels = (int)a->channels, row.first = row.held = 0;
    float mean = 0.0f, mean_error = 0.0f, variance;
    if (t->rms) variance = find_means(&row, 0.0f, false, true).squares;
    else {
        /* The mean is in two parts: where it is large beside the deviations, an f32 alone is off by more than their own rounding.
         * What its error adds to the squares is taken out of them, which costs no third pass. */
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
