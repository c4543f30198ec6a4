/* SPDX-License-Identifier: Apache-2.0 */
/* Not broken either: every function that an ISA may have of its own (kernels/attend.h) is replaced, each by the plainest code
 * that gives its bits, lane by lane. Outside begin_task and end_task, products are wrong, so that both are seen to be called. */
#define RAPT_KERNEL_NAME sound_replaced
#include "words.h"

#define begin_task       begin_task
#define end_task         end_task
#define tile             tile
#define tile_product     tile_product
#define dot_product      dot_product
#define store_transposed store_transposed
#define weigh_vectors    weigh_vectors
#define emit_tile        emit_tile
#define score_tile       score_tile
#define linear_tile      linear_tile
#define multiply_part    multiply_part
#define arrange_dwords   arrange_dwords
#define sum_products     sum_products
#include "attend.h"

static _Thread_local int tasks; /* that have begun and not ended */

static void begin_task(bool linear) {
    (void)linear;
    tasks++;
}
static void end_task(void) { tasks--; }

/* What every product multiplies its first factors by. */
static float in_task(void) { return tasks == 1 ? 1.0f : 2.0f; }

static float lane_of(const void *at, int lane) { return float_at((const char *)at + (size_t)lane * sizeof(float)); }
static void set_lane(void *at, int lane, float x) { memcpy((char *)at + (size_t)lane * sizeof x, &x, sizeof x); }

/* The element of B in a lane of nv vectors of a row, whose last load begins `back` bytes earlier. */
static float element_of_b(const b_format *b, int nv, const char *row, size_t back, int lane) {
    float lanes[RAPT_VL];
    const int v = lane / RAPT_VL, together = nv % b->deinterleaved ? 1 : b->deinterleaved;
    const char *from = v + together >= nv ? row - back : row;
    if (together > 1) v_store(lanes, b->part(v_as_int(v_load(from + (size_t)(v / together) * sizeof(vf))), v % together));
    else v_store(lanes, b->load(from, v * RAPT_VL));
    return lanes[lane % RAPT_VL];
}

/* An element of C of a product in scratch, or in memory. */
static void set_element(const b_format *b, int nv, const operands *o, int row, int lane) {
    char *c = o->c + (size_t)row * o->ldc;
    float sum = 0.0f;
    if (b->stream || o->mode == ACCUMULATE_ADD) sum = lane_of(c, lane);
    else if (o->mode == ACCUMULATE_SCALE_ADD) sum = lane_of(c, lane) * o->scale[lane];
    for (int k = 0; k < o->depth; k++) {
        const char *from = b->stream ? o->rows[k] + o->offset : o->b + (size_t)k * o->ldb;
        const float element = element_of_b(b, nv, from, b->stream ? o->back : 0, lane);
        sum = s_fma(float_at(o->a + (size_t)row * o->rs + (size_t)k * o->ks) * in_task(), element, sum);
    }
    if (!b->stream && o->sums_offset) sum = lane_of(c + o->sums_offset, lane) + sum;
    set_lane(c, lane, !b->stream && o->mode == ACCUMULATE_ADD_SEPARATE ? lane_of(c, lane) + sum : sum);
}

static void tile(const b_format format, const int nv, const int nr, operands o) {
    for (int r = 0; r < nr; r++)
        for (int lane = 0; lane < nv * RAPT_VL; lane++) set_element(&format, nv, &o, r, lane);
}

static void tile_product(operands o, int rows, int vectors) {
    for (int r = 0; r < rows; r++)
        for (int lane = 0; lane < vectors * RAPT_VL; lane++) set_element(&RAPT_SCRATCH_FORMAT, vectors, &o, r, lane);
}

static void dot_product(dots d, int rows, int vectors) {
    for (int r = 0; r < rows; r++)
        for (int lane = 0; lane < vectors * RAPT_VL; lane++) {
            int32_t sum = d.correction[r];
            for (int k = 0; k < d.depth; k++) {
                int16_t a[2], b[2]; /* RAPT_DOT is 2 */
                memcpy(a, d.a + (size_t)r * d.lda + (size_t)k * sizeof a, sizeof a);
                memcpy(b, d.b + (size_t)k * TILE_ROWS + lane, sizeof b);
                sum += a[0] * b[0] + a[1] * b[1];
            }
            float *c = d.c + (size_t)r * TILE_ROWS + lane;
            *c = s_fma((float)sum * in_task(), d.scale[lane], d.alpha ? *c * d.alpha[lane] : 0.0f);
        }
}

static void store_transposed(load_channels *load, const char *const *rows, int channel, float *to, size_t ld) {
    for (int r = 0; r < RAPT_VL; r++) {
        float row[RAPT_VL];
        v_store(row, load(rows[r], channel));
        for (int i = 0; i < RAPT_VL; i++) to[(size_t)i * ld + (size_t)r] = row[i];
    }
}

static float weight_of(const rapt_problem *p, float score, float max) {
    float weight[RAPT_VL];
    v_store(weight, v_exp2_of(p, v_set1(score - max)));
    return weight[0];
}

static void weigh_vectors(const int nv, const rapt_problem *p, const lane_state *state, const lane_scratch *s, int first,
                          int end) {
    for (int lane = 0; lane < nv * RAPT_VL; lane++) {
        float m = state->m[lane], sum = 0.0f;
        for (int n = first; n < end; n++) {
            float score = s->s[n * TILE_ROWS + lane];
            m = m > score ? m : score; /* as v_max */
        }
        float at = -FLT_MAX > m ? -FLT_MAX : m;
        s->alpha[lane] = weight_of(p, state->m[lane], at);
        for (int j = 0; j < RAPT_PARTIAL_SUMS; j++) {
            float partial = 0.0f;
            for (int n = first; n < end; n++) {
                if (n % RAPT_PARTIAL_SUMS != j) continue;
                float *score = &s->s[n * TILE_ROWS + lane];
                *score = weight_of(p, *score, at);
                partial += *score;
            }
            sum += partial;
        }
        state->l[lane] = s_fma(state->l[lane], s->alpha[lane], sum);
        state->m[lane] = m;
    }
}

static void emit_tile(const rapt_task *t, const lane_scratch *s, const query_tile *tile, const lane_state *state, int64_t chunk) {
    const rapt_problem *p = t->problem;
    const bool scaled = scaled_by_channel(&p->v_scales) && !t->states;
    float scales[RAPT_MAX_HEAD_DIM], *o = s->rows;
    if (scaled) load_channel_scales(scales, t->v_scales, &p->v_scales, p->d_v);
    row_cursor at = row_at(t, 0, tile->row0);
    for (int r = 0; r < tile->rows; r++, at = row_next(t, at)) {
        float alpha = 1.0f, factor[RAPT_VL];
        if (t->sinks && !t->states && r % RAPT_VL == 0)
            v_store(s->bias, absorb_sinks(t, tile, state, r)); /* and the next ones' */
        if (t->sinks && !t->states) alpha = s->bias[r % RAPT_VL];
        v_store(factor, reciprocal(v_set1(state->l[r])));
        for (int c = 0; c < p->d_v; c++) {
            o[c] = state->o[(size_t)c * TILE_ROWS + (size_t)r];
            if (!t->states) o[c] = s_fma(o[c] * alpha, scaled ? factor[0] * scales[c] : factor[0], 0.0f);
        }
        if (t->states) store_state(t, at, chunk, state->m[r], state->l[r], o);
        else
            write_row(p, t->o + row_offset(&p->o, at), t->lse ? t->lse + row_offset(&p->lse, at) : NULL, state->m[r], state->l[r],
                      o);
    }
}

static void score_tile(const key_format k, const int ng, const int nr, const char *const *keys, size_t offset, int channels,
                       const float *q, size_t ldq, float *s) {
    const int part = rapt_score_part(channels);
    for (int n = 0; n < ng * RAPT_VL; n++) {
        float key[RAPT_MAX_HEAD_DIM + RAPT_VL];
        const char *row = keys[n] + offset;
        stage_rows(k.type, key, 0, &row, 1, 0, channels);
        for (int r = 0; r < nr; r++)
            for (int first = 0; first < channels; first += part) {
                float sum = 0.0f, *to = s + (size_t)r * RAPT_CHUNK + n;
                for (int c = first; c < channels && c < first + part; c++)
                    sum = s_fma(q[(size_t)r * ldq + (size_t)c] * in_task(), key[c], sum);
                *to = first == 0 ? sum : *to + sum;
            }
    }
}

static void linear_tile(load_channels *load, const int group, const size_t bytes, const int nr, const int nt, const char *weights,
                        size_t stride, size_t ahead, const float *x, size_t ldx, int channels, float *sums, size_t ld) {
    (void)ahead;
    for (int r = 0; r < nr; r++) {
        float row[RAPT_LINEAR_PART + RAPT_VL];
        const char *from = weights + (size_t)r * stride;
        stage_rows_as(load, group, bytes, row, 0, &from, 1, 0, channels);
        for (int i = 0; i < nt * RAPT_PARTIAL_SUMS; i++) {
            float sum = 0.0f;
            for (int c = i % RAPT_PARTIAL_SUMS; c < channels; c += RAPT_PARTIAL_SUMS)
                sum = s_fma(row[c] * in_task(), x[(size_t)(c / RAPT_PARTIAL_SUMS) * ldx + (size_t)i], sum);
            sums[(size_t)r * ld + (size_t)i] = sum;
        }
    }
}

static void multiply_part(const rapt_linear_problem *p, const float *staged, int64_t part, const float *tokens, float *c,
                          int rows, int vectors, prefetch_queue *ahead) {
    const int channels = part_channels(p, part), runs = part_runs(channels);
    const size_t row = padded((size_t)runs);
    (void)ahead;
    for (int r = 0; r < rows; r++)
        for (int lane = 0; lane < vectors * RAPT_VL; lane++)
            for (int i = 0; i < rapt_min(RAPT_PARTIAL_SUMS, channels); i++) {
                const float *weights = staged + (size_t)r * ld_weights(p) + (size_t)i * row;
                float sum = 0.0f, *to = c + (size_t)r * TILE_ROWS + lane;
                for (int k = 0; k * RAPT_PARTIAL_SUMS + i < channels; k++)
                    sum = s_fma(weights[k] * in_task(), tokens[(size_t)(i * runs + k) * TILE_ROWS + (size_t)lane], sum);
                *to = part == 0 && i == 0 ? sum : *to + sum;
            }
}

/* Staged weights lie in lanes in the opposite order. */
static void arrange_dwords(vf square[RAPT_VL]) {
    for (int i = 0; i < RAPT_VL; i++) {
        float lanes[RAPT_VL], reversed[RAPT_VL];
        v_store(lanes, square[i]);
        for (int lane = 0; lane < RAPT_VL; lane++) reversed[lane] = lanes[RAPT_VL - 1 - lane];
        square[i] = v_load(reversed);
    }
}

static void sum_products(const int nt, const int nv, const integer_format f, const float *dwords, size_t apart,
                         const integer_tokens tokens, vi *acc) {
    for (int n = 0; n < nt * nv; n++) {
        const int j = n / nv, v = n % nv;
        int32_t sums[RAPT_VL];
        for (int lane = 0; lane < RAPT_VL; lane++) {
            sums[lane] = f.bias ? tokens.corrections[(size_t)j * subs_of(f, &tokens)] : 0;
            for (int i = 0; i < f.sub / 2; i++) { /* LINEAR_DOT is 2 */
                int16_t weights[2 * RAPT_VL], token[2];
                v_store(weights,
                        v_as_float(weights_lane(f, dwords + (size_t)(v / SUM_VECTORS) * apart + v % SUM_VECTORS * RAPT_VL, i)));
                memcpy(token, tokens.x + (size_t)j * lanes_of(f, &tokens) + i, sizeof token);
                const int16_t *const weight = weights + 2 * (RAPT_VL - 1 - lane);
                sums[lane] += (weight[0] * token[0] + weight[1] * token[1]) * (int)in_task();
            }
        }
        acc[n] = v_as_int(v_load(sums));
    }
}
