/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a plan of a description: validates it, and cuts the work into tasks. */
#include "attention/plan.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/float_modes.h"
#include "core/layout.h"
#include "core/memory.h"
#include "attention/path.h"
#include "cpu/select.h"
#include "core/structs.h"
#include "cache/tokens.h"
#include "core/tuning.h"

const rapt_desc rapt_default_desc = {
    .batch = 1,
    .scale = __builtin_nanf(""), /* not NAN, which is not a constant in Microsoft's headers */
    .window_left = -1,
    .window_right = -1,
    .threads = 1,
    .mask_key_stride = 1,
    .bias_key_stride = 1,
};

void rapt_desc_init_sized(rapt_desc *desc, size_t size) {
    rapt_init_struct(desc, size, &rapt_default_desc, sizeof rapt_default_desc);
}

rapt_status rapt_read_desc(rapt_report *r, const char *what, rapt_desc *to, const rapt_desc *from) {
    return rapt_read_struct(r, what, to, &rapt_default_desc, sizeof *to, RAPT_BEFORE(rapt_desc, mask_keys), from);
}

const full_plan *rapt_read_plan(rapt_report *r, const rapt_plan *opaque, rapt_status *status) {
    *status = rapt_check_plan(r, opaque, PLAN_MADE, "rapt_plan_init");
    return plan_of(opaque);
}

/* ---- Validation ---------------------------------------------------------------------------------------------------------- */

/* Checks sizes, causal masks, windows and threads. */
static rapt_status plan_check_shape(rapt_report *r, const rapt_desc *d) {
    const struct {
        const char *name;
        int64_t value, least, most;
        const char *what;
    } sizes[] = {{"batch", d->batch, 0, RAPT_MAX_LENGTH, "must be 0 to 2147483647"},
                 {"heads", d->heads, 1, RAPT_MAX_LENGTH, "must be 1 to 2147483647"},
                 {"kv_heads", d->kv_heads, 1, RAPT_MAX_LENGTH, "must be 1 to 2147483647"},
                 {"q_len", d->q_len, 0, RAPT_MAX_LENGTH, "must be 0 to 2147483647"},
                 {"kv_len", d->kv_len, 0, RAPT_MAX_LENGTH, "must be 0 to 2147483647"},
                 {"d_k", d->d_k, 1, RAPT_MAX_HEAD_DIM, "must be 1 to 1024"},
                 {"d_v", d->d_v, 1, RAPT_MAX_HEAD_DIM, "must be 1 to 1024"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!rapt_within(sizes[i].value, sizes[i].least, sizes[i].most))
            return rapt_refuse_number(r, RAPT_ERR_SHAPE, sizes[i].name, sizes[i].value, sizes[i].what);
    if (d->heads % d->kv_heads != 0)
        return rapt_refuse(r, RAPT_ERR_HEADS, "heads = %" PRId64 ": not a multiple of kv_heads = %" PRId64, d->heads,
                           d->kv_heads);
    if (!rapt_within((int64_t)d->causal, RAPT_CAUSAL_NONE, RAPT_CAUSAL_TOP_LEFT))
        return rapt_refuse_number(r, RAPT_ERR_MASK, "causal", (int)d->causal, "not a rapt_causal");
    if (d->window_left < -1) return rapt_refuse_number(r, RAPT_ERR_MASK, "window_left", d->window_left, "must be -1 or more");
    if (d->window_right < -1) return rapt_refuse_number(r, RAPT_ERR_MASK, "window_right", d->window_right, "must be -1 or more");
    if (!rapt_within(d->threads, 1, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_RANGE, "threads", d->threads, "must be 1 to 2147483647");
    return RAPT_OK;
}

rapt_status rapt_check_pages(rapt_report *r, int64_t page_size, int64_t pages, rapt_type table) {
    char name[RAPT_NAME_BYTES];
    if (!rapt_within(page_size, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "page_size", page_size, "must be 0 to 2147483647");
    if (!rapt_within(pages, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "pages", pages, "must be 0 to 2147483647");
    if (page_size > 0 && table == RAPT_NONE)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "table.type = RAPT_NONE: page_size = %" PRId64 " wants a table", page_size);
    if (page_size == 0 && table != RAPT_NONE)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "page_size = 0: there is a table, of type %s", rapt_name_type(name, table));
    return RAPT_OK;
}

/* Checks kv_first and kv_total, by which the keys of a sequence are shared out over several plans. */
static rapt_status check_kv_range(rapt_report *r, const rapt_desc *d) {
    if (d->kv_first < 0 || d->kv_first % RAPT_CHUNK)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "kv_first", d->kv_first, "must be a multiple of 512");
    if (d->kv_first && d->k_starts)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "kv_first", d->kv_first, "must be 0 where keys are ragged");
    if (d->kv_first > RAPT_MAX_LENGTH - d->kv_len)
        return rapt_refuse(r, RAPT_ERR_SHAPE, "kv_first = %" PRId64 ": with kv_len = %" PRId64 " above 2147483647", d->kv_first,
                           d->kv_len);
    if (!rapt_within(d->kv_total, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "kv_total", d->kv_total, "must be 0 to 2147483647");
    return RAPT_OK;
}

/* Checks what is said of the columns of a mask or bias: how many there are, what holds beyond them, and their stride. */
static rapt_status plan_check_columns(rapt_report *r, const char *keys_name, int64_t keys, const char *rest_name, rapt_rest rest,
                                      const char *stride_name, int stride) {
    if (!rapt_within(keys, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, keys_name, keys, "must be 0 to 2147483647");
    if (!rapt_within((int64_t)rest, RAPT_REST_REFUSED, RAPT_REST_ATTENDED))
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, rest_name, (int)rest, "not a rapt_rest");
    if (!rapt_within(stride, 0, 1)) return rapt_refuse_number(r, RAPT_ERR_FEATURE, stride_name, stride, "must be 0 or 1");
    return RAPT_OK;
}

/* True if elements of the type are integers, with or without a scale for each group. */
static bool has_integers(rapt_type type) {
    switch (type) {
    case RAPT_INT8:
        RAPT_INTEGER_GROUPS(RAPT_TYPE_CASE)
        return true;
    default:
        return false;
    }
}

/* Checks that the number of each feature is in range, and that a feature which needs another has it. */
static rapt_status plan_check_features(rapt_report *r, const rapt_desc *d) {
    char name[RAPT_NAME_BYTES];
    if (d->prefix < 0) return rapt_refuse_number(r, RAPT_ERR_FEATURE, "prefix", d->prefix, "must be 0 or more");
    if (d->local_chunk < 0) return rapt_refuse_number(r, RAPT_ERR_FEATURE, "local_chunk", d->local_chunk, "must be 0 or more");
    if (!(d->softcap >= 0.0f && d->softcap <= FLT_MAX))
        return rapt_refuse(r, RAPT_ERR_FEATURE, "softcap = %g: must be finite, 0 or more", (double)d->softcap);
    if (d->block_mask.type && d->block_mask_queries < 1)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "block_mask_queries", d->block_mask_queries, "must be 1 or more");
    if (d->block_mask.type && (d->block_mask_keys < 1 || d->block_mask_keys % RAPT_BLOCK))
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "block_mask_keys", d->block_mask_keys,
                                  "must be a multiple of 64, and not 0");
    if (!rapt_within((int64_t)d->alibi, RAPT_ALIBI_NONE, RAPT_ALIBI_BIAS))
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "alibi", (int)d->alibi, "not a rapt_alibi");
    if (d->alibi && !d->slopes.type)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "slopes.type = RAPT_NONE: alibi = %d wants slopes", (int)d->alibi);
    if (d->alibi == RAPT_ALIBI_BIAS && !d->bias.type)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "bias.type = RAPT_NONE: alibi = RAPT_ALIBI_BIAS wants a bias");
    if (!rapt_within((int64_t)d->scores_stage, RAPT_SCORES_NONE, RAPT_SCORES_WEIGHTS))
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "scores_stage", (int)d->scores_stage, "not a rapt_scores_stage");
    if (d->scores_stage && !d->scores.type)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "scores.type = RAPT_NONE: scores_stage = %d wants scores", (int)d->scores_stage);
    if (!d->scores_stage && d->scores.type)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "scores_stage = 0: there are scores, of type %s",
                           rapt_name_type(name, d->scores.type));
    if (d->scores_stage == RAPT_SCORES_WEIGHTS && d->unmerged)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "unmerged", d->unmerged, "must be 0 where weights are wanted");
    if (!rapt_within((int64_t)d->arith, RAPT_EXACT, RAPT_BF16_DOT))
        return rapt_refuse_number(r, RAPT_ERR_ARITH, "arith", (int)d->arith, "not a rapt_arith");
    static const char of_integers[] = "must be RAPT_INT8, INT4, Q8_0, Q4_0 or Q5_0 for RAPT_INT8_DOT";
    if (d->arith == RAPT_INT8_DOT && !has_integers(d->k.type))
        return rapt_refuse_type(r, RAPT_ERR_ARITH, "k", "type", d->k.type, of_integers);
    if (d->arith == RAPT_INT8_DOT && !has_integers(d->v.type))
        return rapt_refuse_type(r, RAPT_ERR_ARITH, "v", "type", d->v.type, of_integers);
    rapt_status status =
        plan_check_columns(r, "mask_keys", d->mask_keys, "mask_rest", d->mask_rest, "mask_key_stride", d->mask_key_stride);
    if (status == RAPT_OK)
        status =
            plan_check_columns(r, "bias_keys", d->bias_keys, "bias_rest", d->bias_rest, "bias_key_stride", d->bias_key_stride);
    if (status == RAPT_OK) status = rapt_check_pages(r, d->page_size, d->pages, d->table.type);
    if (status == RAPT_OK && d->page_size > 0 && d->k_starts)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "k_starts = %p: pages have no ragged keys", (const void *)d->k_starts);
    return status == RAPT_OK ? check_kv_range(r, d) : status;
}

/* Checks a mask or bias, if there is one, and computes the bytes that it spans. With a key stride of 0, rows have one element. */
static rapt_status measure_columns(rapt_report *r, const char *name, const rapt_layout *layout, uint64_t allowed,
                                   const rapt_desc *d, int64_t queries, int64_t columns, int key_stride, uint64_t *bytes) {
    if (!layout->type) return RAPT_OK;
    return rapt_measure(r, name, layout, allowed, d->batch, d->heads, queries, key_stride ? columns : 1, false, bytes);
}

/* Checks all tensors, and sets what follows from their layouts: the bytes that each spans, the longest entries, the columns of
 * mask and bias. */
static rapt_status check_tensors(rapt_report *r, const rapt_desc *d, full_plan *p) {
    int64_t queries = d->q_len, keys = p->kv_total; /* of the longest entry */
    rapt_status status = rapt_check_starts(r, "q_starts", d->q_starts, d->batch, d->q_len, &queries);
    if (status == RAPT_OK) status = rapt_check_starts(r, "k_starts", d->k_starts, d->batch, d->kv_len, &keys);
    int64_t q_batch = d->q_starts ? d->batch > 0 : d->batch, k_batch = d->k_starts ? d->batch > 0 : d->batch, k_len = d->kv_len;
    if (d->page_size) k_batch = d->pages, k_len = d->page_size;
    p->most_queries = queries, p->most_keys = keys;
    p->problem.mask_keys = d->mask_keys ? d->mask_keys : keys;
    p->problem.bias_keys = d->bias_keys ? d->bias_keys : keys;

    tensor_bytes *b = &p->bytes;
#define RAPT_MEASURE(tensor, allowed, batch, heads, tokens, elements, output)                                                    \
    if (status == RAPT_OK)                                                                                                       \
    status = rapt_measure(r, #tensor, &d->tensor, allowed, batch, heads, tokens, elements, output, &b->tensor)
    RAPT_MEASURE(q, RAPT_FLOATS, q_batch, d->heads, d->q_len, d->d_k, false);
    RAPT_MEASURE(k, RAPT_KV, k_batch, d->kv_heads, k_len, d->d_k, false);
    RAPT_MEASURE(v, RAPT_KV, k_batch, d->kv_heads, k_len, d->d_v, false);
    RAPT_MEASURE(o, RAPT_FLOATS, q_batch, d->heads, d->q_len, d->d_v, true);
    if (d->lse.type) RAPT_MEASURE(lse, 1 << RAPT_F32, q_batch, d->heads, d->q_len, 1, true);
    if (status == RAPT_OK)
        status = measure_columns(r, "mask", &d->mask, RAPT_MASKS, d, queries, p->problem.mask_keys, d->mask_key_stride, &b->mask);
    if (status == RAPT_OK)
        status =
            measure_columns(r, "bias", &d->bias, RAPT_FLOATS, d, queries, p->problem.bias_keys, d->bias_key_stride, &b->bias);
    if (d->block_mask.type)
        RAPT_MEASURE(block_mask, 1 << RAPT_BOOL, d->batch, d->heads, rapt_divide_up(queries, d->block_mask_queries),
                     rapt_divide_up(keys, d->block_mask_keys), false);
    if (d->slopes.type) RAPT_MEASURE(slopes, RAPT_FLOATS, d->batch, d->heads, 1, 1, false);
    if (d->sinks.type) RAPT_MEASURE(sinks, RAPT_FLOATS, d->batch, d->heads, 1, 1, false);
    if (d->scores.type) RAPT_MEASURE(scores, 1 << RAPT_F32, q_batch, d->heads, d->q_len, keys, true);
#undef RAPT_MEASURE
    if (d->unmerged && status == RAPT_OK) {
        int64_t float_bytes;
        rapt_dimension s[] = {{q_batch, d->states.batch_stride, "batch_stride"},
                              {d->heads, d->states.head_stride, "head_stride"},
                              {d->q_len, d->states.token_stride, "token_stride"},
                              {rapt_divide_up(d->kv_len, RAPT_CHUNK), d->state_stride, "state_stride"}};
        status = rapt_check_row(r, "states", "type", d->states.type, 1 << RAPT_F32, 1, &float_bytes);
        if (status == RAPT_OK)
            status =
                rapt_measure_dimensions(r, "states", s, 4, (int64_t)RAPT_STATE_FLOATS(d->d_v) * float_bytes, true, &b->states);
    }
    if (status == RAPT_OK && d->table.type) /* of one entry: only rapt_args says whether all entries' tables are one matrix */
        status = rapt_measure(r, "table", &d->table, 1 << RAPT_I32, d->batch > 0, d->kv_heads, queries,
                              rapt_divide_up(d->kv_len, d->page_size), false, &b->table);
    if (status == RAPT_OK)
        status =
            rapt_measure_scales(r, "k_scales", &d->k_scales, k_batch, d->batch, d->kv_heads, k_len, d->d_k, false, &b->k_scales);
    if (status == RAPT_OK)
        status =
            rapt_measure_scales(r, "v_scales", &d->v_scales, k_batch, d->batch, d->kv_heads, k_len, d->d_v, false, &b->v_scales);
    return status;
}

/* Returns the function that computes exact scores from pairs of bf16, or null if the problem or the kernel has none: Q and K are
 * of bf16 and not multiplied by anything but the sign of the scale, and their rows fill at least one vector of pairs. */
static rapt_pair_product *find_pair_product(const rapt_kernel *kernel, const rapt_problem *p) {
    const bool multiplied = __builtin_fabsf(p->q_factor) != 1.0f || (p->k_scales.present && !p->k_scales.token_stride);
    if (p->arith != RAPT_EXACT || p->q.type != RAPT_BF16 || p->k.type != RAPT_BF16 || multiplied) return NULL;
    return p->d_k >= 2 * kernel->base->vector ? kernel->bf16->pair_product : NULL;
}

/* Sets how the scale is applied (rapt_problem has the formulas). Usually q is multiplied only by the scale's sign, which is
 * exact. The scale's magnitude becomes a factor of the exponent, after the maximum score has been subtracted; or, if the scores
 * are modified before the softmax, it multiplies the scores first, and the exponent is log2(e). Where the scale is so small or so
 * large that 127 / exponent, or its product with a score, could leave the range of f32, q is multiplied by all of it. */
static rapt_status set_scale(rapt_report *r, const rapt_desc *d, rapt_problem *p) {
    double scale = d->scale;
    if (scale != scale) scale = (double)(float)(1.0 / __builtin_sqrt((double)d->d_k));
    if (!(scale >= -FLT_MAX && scale <= FLT_MAX))
        return rapt_refuse(r, RAPT_ERR_SCALE, "scale = %g: must be finite, or NaN for 1/sqrt(d_k)", scale);
    double magnitude = scale < 0.0 ? -scale : scale;
    const double log2_e = 1.4426950408889634;
    bool ordinary = magnitude >= 0x1p-64 && magnitude <= 0x1p64;
    p->q_factor = ordinary ? (scale < 0.0 ? -1.0f : 1.0f) : (float)scale;
    p->score_natural = ordinary ? (float)magnitude : 1.0f;
    p->modified = d->softcap > 0.0f || d->alibi || d->bias.type || d->logits_body;
    p->natural = p->modified ? 1.0f : p->score_natural;
    p->exponent = (float)((ordinary && !p->modified ? magnitude : 1.0) * log2_e);
    p->least = -127.0f / p->exponent;
    p->softcap = d->softcap;
    p->inverse_softcap = d->softcap > 0.0f ? 1.0f / d->softcap : 0.0f;
    return RAPT_OK;
}

/* Returns how many query tiles share a pass over K and V: as many as keep the pass's scratch within pass_l2 / 16 of the L2 cache,
 * or a multiple of it (rapt_arithmetic.pass_l2_times), at most pass_tiles. The scratch grows by `each` for every tile from the
 * second on (in bf16 arithmetic from the third). In bf16 arithmetic it also holds a staged chunk of K and V, which may take as
 * much again, and is not counted here. */
static int64_t tiles_per_pass(const full_plan *p) {
    const rapt_problem *problem = &p->problem;
    const rapt_arithmetic *arithmetic = p->arithmetic;
    const bool bf16 = problem->arith == RAPT_BF16_DOT;
    const rapt_tuning *tuning = &p->tuning;
    size_t bound = rapt_l2_bytes() / 16 * (size_t)(tuning->pass_l2 * arithmetic->pass_l2_times);
    int64_t rows = arithmetic->tile_rows;
    const bool merges = bf16 && problem->kv_len > RAPT_CHUNK;
    size_t one = arithmetic->scratch_bytes(problem, rows, false, merges);
    size_t each =
        arithmetic->scratch_bytes(problem, 3 * rows, false, merges) - arithmetic->scratch_bytes(problem, 2 * rows, false, merges);
    if (each == 0) return tuning->pass_tiles; /* the left-over rows need more scratch than three tiles, so more tiles cost none */
    if (bf16) one = each;
    if (one >= bound) return 1;
    int64_t tiles = 1 + (int64_t)((bound - one) / each);
    return tiles < tuning->pass_tiles ? tiles : tuning->pass_tiles;
}

/* Returns how many adjacent key/value heads of `rows` rows each a task with keys in lanes takes together: a divisor of kv_heads
 * that gives at most joined_rows rows, the least that makes joined_bytes contiguous bytes of K, or if none does, the greatest. It
 * is 1 unless the cache is token-major, and if heads have page tables of their own. RAPT_JOINED_BYTES in kernels/check_words.h
 * says why. */
static int64_t heads_together(const rapt_tuning *tuning, const rapt_problem *problem, int64_t rows) {
    const rapt_layout *k = &problem->k, *v = &problem->v;
    if (k->head_stride >= k->token_stride || v->head_stride >= v->token_stride || problem->table.head_stride) return 1;
    int64_t joined = 1;
    for (int64_t heads = 1; heads <= problem->kv_heads && heads <= tuning->joined_rows / rows; heads++) {
        if (problem->kv_heads % heads) continue;
        joined = heads;
        if (heads * k->head_stride >= tuning->joined_bytes) break;
    }
    return joined;
}

/* Returns about how many (query, key) pairs one head of an entry attends to, by the trapezoidal rule over five queries, which is
 * exact, but for rounding, where the number of attended keys is a linear function of the query. */
static int64_t attended_pairs(const full_plan *p, int64_t q_len, int64_t keys) {
    int64_t first, end, pairs = 0, length = p->kv_total && !p->k_starts ? p->kv_total : keys;
    if (q_len == 0) return 0;
    for (int i = 0; i <= 4; i++) {
        rapt_row_range(&p->problem, (q_len - 1) * i / 4 + rapt_default_offset(&p->problem, q_len, length), 0, length, p->prefix,
                       &first, &end);
        pairs += (end - first < keys ? end - first : keys) * (i % 4 ? 2 : 1);
    }
    /* Each row counts as one pair more, since a row without keys takes time, too. pairs is at most 2^34 and q_len at most 2^31:
     * where pairs * q_len could overflow, pairs is divided first. */
    return q_len < INT64_C(1) << 28 ? pairs * q_len / 8 + q_len : (pairs / 8 + 1) * q_len;
}

enum { MOST_THREADS = 4096 }; /* more threads do not make the cut finer, which keeps the sizes below far from overflow */

/* Cuts the chunks of keys into at most `parts` parts. */
static void cut_keys(const full_plan *p, int64_t parts, entry_cut *c) {
    const rapt_problem *problem = &p->problem;
    const int64_t state_bytes = RAPT_STATE_FLOATS(problem->d_v) * sizeof(float);
    const int64_t all_state_bytes =
        problem->unmerged ? 0 : rapt_product(rapt_product(c->chunks, c->q_len), rapt_product(problem->heads, state_bytes));
    if (parts < 2 || c->chunks < 2 || all_state_bytes < 0) return;
    c->part_chunks = rapt_divide_up(c->chunks, rapt_min(parts, c->chunks));
    c->parts = rapt_divide_up(c->chunks, c->part_chunks);
    c->state_bytes = (size_t)all_state_bytes;
}

/* Cuts an entry whose rows are few, or have page tables of their own: passes have the rows of as many heads as are read together,
 * or of one token. Keys are cut if tasks would have more than task_pairs of the `pairs` pairs of a head, and if the states that
 * are left to be merged are small beside K and V (states_part). An unmerged plan leaves all states in any case, so there their
 * size does not matter. */
static void cut_few_rows(const full_plan *p, int64_t together, int64_t pairs, entry_cut *c) {
    const rapt_problem *problem = &p->problem;
    c->pass_rows = together;
    if (c->keys_in_lanes) c->joined_heads = heads_together(&p->tuning, problem, together);
    else { /* a token's heads in equal parts, the largest that a pass has room for */
        c->pass_rows = rapt_min(together, p->pass_tiles * p->arithmetic->tile_rows);
        while (together % c->pass_rows) c->pass_rows--;
    }
    c->scratch_rows = c->pass_rows;
    c->passes = rapt_divide_up(c->rows, c->pass_rows);
    const int64_t state_bytes = RAPT_STATE_FLOATS(problem->d_v) * sizeof(float);
    const int64_t chunk_bytes = RAPT_CHUNK * (int64_t)(problem->k_row + problem->v_row);
    if (problem->unmerged || c->pass_rows <= chunk_bytes / p->tuning.states_part / state_bytes)
        cut_keys(p, rapt_divide_up(rapt_divide_up(pairs * c->joined_heads, c->passes), p->task_pairs), c);
}

/* Cuts many rows into at least `passes` passes of whole vectors, or, with a block mask, of whole periods of it, unless these
 * exceed a pass. A pass has at most pass_tiles tiles, for which there is scratch. */
static void cut_rows(const full_plan *p, int64_t passes, entry_cut *c) {
    const rapt_problem *problem = &p->problem;
    const int tile_rows = p->arithmetic->tile_rows;
    const int64_t period = problem->block_mask.type ? rapt_product(problem->block_mask_queries, problem->group) : 0;
    const int64_t period_tiles = rapt_divide_up(period, tile_rows);
    c->period = period > 0 && period_tiles <= p->pass_tiles ? period : 0;
    const int64_t unit = c->period ? c->period : p->kernel->base->vector, units = rapt_divide_up(c->rows, unit);
    const int64_t most = c->period ? p->pass_tiles / period_tiles : p->pass_tiles * tile_rows / unit;
    const int64_t pass_units = rapt_divide_up(units, rapt_max(rapt_divide_up(units, most), rapt_min(passes, units)));
    c->pass_rows = rapt_min(c->rows, pass_units * unit);
    c->scratch_rows = c->period ? pass_units * period_tiles * tile_rows : rapt_divide_up(c->pass_rows, tile_rows) * tile_rows;
    c->passes = rapt_divide_up(c->rows, c->pass_rows);
}

/* Returns c, an entry of many rows, cut into about `wanted` tasks for each head: its rows, or, if `keys_first`, its chunks of
 * keys and then its rows. */
static entry_cut cut_head(const full_plan *p, entry_cut c, int64_t wanted, bool keys_first) {
    if (keys_first) cut_keys(p, wanted, &c);
    cut_rows(p, rapt_max(rapt_divide_up(wanted, c.parts), 1), &c);
    return c;
}

/* Makes *c the other cut if that takes less time: of the threads, where tasks are equally long; in a ragged batch, of all work.
 * Staging a key takes about as long as one to two vectors of rows do with it (avx512, f32), or, where products take less, as a
 * tile of rows (amx, bf16). Threads end about half a task apart. States that are stored and merged take a twentieth (avx512, f32)
 * to a fifth (amx, bf16) of the time of what they are computed from, and should bring more than that, since they take memory. */
static void take_faster(const full_plan *p, entry_cut *c, entry_cut other) {
    const entry_cut *const cuts[] = {c, &other};
    const int staged = p->problem.arith == RAPT_BF16_DOT ? p->arithmetic->tile_rows : p->kernel->base->vector * 3 / 2;
    const int64_t heads = p->problem.batch * p->problem.kv_heads;
    double times[2];
    for (int i = 0; i < 2; i++) {
        const int64_t tasks = cuts[i]->passes * cuts[i]->parts;
        const double turns = ragged(p) ? (double)tasks : (double)rapt_divide_up(heads * tasks, p->threads) + 0.5;
        times[i] = turns * (double)((cuts[i]->pass_rows + staged) * cuts[i]->part_chunks);
        if (cuts[i]->state_bytes) times[i] *= 1.25;
    }
    if (times[1] < times[0]) *c = other;
}

/* Cuts an entry of many rows into tasks of about task_pairs of the `pairs` pairs of a head. Where they are equally long, their
 * number should be a multiple of the threads, or a little less: there several numbers are tried, without and with cuts of the
 * keys. */
static void cut_many_rows(const full_plan *p, int64_t pairs, int64_t keys, entry_cut *c) {
    const entry_cut whole = *c;
    const int64_t wanted = rapt_divide_up(pairs, p->task_pairs), heads = p->problem.batch * p->problem.kv_heads;
    const int64_t threads = rapt_min(p->threads, MOST_THREADS), turns = p->tuning.thread_tasks;
    const bool even = pairs / c->rows >= keys / 4 * 3; /* not those of a causal mask where queries are as many as keys */
    *c = cut_head(p, whole, wanted, false);
    if (threads == 1 || heads == 0 || !even) return;
    if (ragged(p)) take_faster(p, c, cut_head(p, whole, wanted, true));
    else if (heads * c->passes < 2 * turns * threads)
        for (int64_t n = rapt_divide_up(turns, 4); n < 2 * turns; n++) {
            take_faster(p, c, cut_head(p, whole, n * threads / heads, false));
            take_faster(p, c, cut_head(p, whole, n * threads / heads, true));
        }
}

/* Heads for each thread that share a mask and take turns. With 8, an eighth of the reading of the mask is left, and K and V of no
 * more heads go through the caches for each pass (F-stream-4096, AMD EPYC, Zen 4); other numbers were not tried. */
enum { MASK_TURNS = 8 };

/* An entry with passes = 2, chunks = 5, part_chunks = 2 and parts = 3 has these tasks for its first joined_heads key/value heads:
 *
 *                            keys
 *                   part 0        part 1     part 2
 *                chunks 0, 1   chunks 2, 3   chunk 4
 *              +-------------+-------------+---------+
 *       pass 0 |   task 3    |   task 4    | task 5  |  pass_rows rows
 *  rows        +-------------+-------------+---------+
 *       pass 1 |   task 0    |   task 1    | task 2  |  the other rows
 *              +-------------+-------------+---------+
 *
 * The next joined_heads heads have tasks 6 to 11, unless groups of joined heads take turns: first comes the last pass of each,
 * then the one before it of each (find_place in run.c). They do so in two cases. With a causal mask, where the last rows have the
 * most keys, as many groups as there are threads, in a batch those of several entries: so tasks become shorter, and the last ones
 * leave the threads little to wait for. Where more heads than threads share a mask, MASK_TURNS for each thread: so a thread reads
 * the mask for the first of them only. A pass reads and converts K and V once for all its rows, and parts leave states, which the
 * second phase merges: cut_many_rows weighs the one against the other. Nothing here changes bits, since chunks are merged in one
 * order. */
entry_cut rapt_cut_entry(const full_plan *p, int64_t q_len, int64_t keys) {
    const rapt_problem *problem = &p->problem;
    entry_cut c = {.q_len = q_len,
                   .rows = q_len * problem->group,
                   .joined_heads = 1,
                   .chunks = rapt_divide_up(keys, RAPT_CHUNK),
                   .parts = 1,
                   .turn_groups = 1};
    c.part_chunks = rapt_max(c.chunks, 1);
    if (c.rows == 0) return c;
    const int64_t pairs = p->task_pairs < INT64_MAX ? attended_pairs(p, q_len, keys) * problem->group : 0;
    const bool own_keys = problem->table.token_stride != 0; /* each token has its own page table: a pass has rows of one token */
    const int64_t together = own_keys ? problem->group : c.rows;
    c.keys_in_lanes = rapt_keys_in_lanes(&p->tuning, problem, together);
    if (c.keys_in_lanes || own_keys) cut_few_rows(p, together, pairs, &c);
    else cut_many_rows(p, pairs, keys, &c);
    c.head_groups = problem->kv_heads / c.joined_heads;
    if (problem->causal)
        c.turn_groups = rapt_min(p->threads, ragged(p) ? c.head_groups : rapt_product(problem->batch, c.head_groups));
    if (rapt_mask_blocks_bytes(p, &c)) c.turn_groups = rapt_min(c.head_groups, MASK_TURNS * p->threads);
    c.tasks = c.head_groups * c.passes * c.parts;
    return c;
}

size_t rapt_mask_blocks_bytes(const full_plan *p, const entry_cut *c) {
    const rapt_problem *problem = &p->problem;
    const bool shared = rapt_compares_mask(problem) && !problem->mask.head_stride;
    if (!shared || c->keys_in_lanes || c->parts > 1 || c->head_groups <= p->threads) return 0;
    const int64_t tiles = rapt_divide_up(c->scratch_rows, p->arithmetic->tile_rows);
    const size_t bytes = (size_t)(tiles * c->part_chunks) * sizeof(rapt_mask_blocks);
    return (bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
}

size_t rapt_cut_scratch(const full_plan *p, const entry_cut *c) {
    const bool merges = c->parts == 1 && c->chunks > 1 && !p->problem.unmerged;
    const int64_t rows = c->joined_heads * c->scratch_rows;
    const size_t bytes = p->arithmetic->scratch_bytes(&p->problem, rows, c->keys_in_lanes, merges);
    const size_t of_few_rows = c->keys_in_lanes ? p->few_rows_arithmetic->scratch_bytes(&p->problem, rows, true, merges) : 0;
    return rapt_mask_blocks_bytes(p, c) + (bytes > of_few_rows ? bytes : of_few_rows);
}

/* Adds the tasks and rows of n entries, which are cut as c says, to those of the plan, and enlarges its workspace. Returns false
 * if a number overflows. */
static bool add_entries(full_plan *p, const entry_cut *c, int64_t n) {
    int64_t tasks = rapt_product(n, c->tasks), all_state_bytes = rapt_product(n, (int64_t)c->state_bytes);
    if (tasks < 0 || all_state_bytes < 0 || __builtin_add_overflow(p->tasks[0], tasks, &p->tasks[0]) ||
        __builtin_add_overflow(p->shared_bytes, (size_t)all_state_bytes, &p->shared_bytes))
        return false;
    if (c->tasks == 0 || n == 0) return true;
    if (c->state_bytes) p->phases = 2;
    const int64_t last = c->rows - (c->passes - 1) * c->pass_rows; /* the rows of the last pass */
    const int64_t few = c->keys_in_lanes ? c->rows
                                         : (c->passes - 1) * rapt_left_over(p->kernel, &p->problem, c->pass_rows) +
                                               rapt_left_over(p->kernel, &p->problem, last);
    /* These do not overflow: o has at least two bytes for each row, and fits into the address space. */
    p->rows += n * c->rows * p->problem.kv_heads;
    p->rows_keys_in_lanes += n * few * p->problem.kv_heads;
    const size_t scratch = rapt_cut_scratch(p, c);
    if (scratch > p->thread_bytes) p->thread_bytes = scratch;
    return true;
}

/* Cuts the work of all entries into tasks, several for each thread (RAPT_THREAD_TASKS in kernels/check_words.h). Nothing here
 * changes bits. Returns false if a number overflows. */
static bool set_tasks(full_plan *p, int64_t threads) {
    const rapt_problem *problem = &p->problem;
    const int64_t wanted =
        threads > 1 ? (ragged(p) ? p->tuning.ragged_tasks : p->tuning.thread_tasks) * rapt_min(threads, MOST_THREADS) : 1;
    p->threads = threads;
    p->task_pairs = INT64_MAX;
    if (threads > 1) {
        int64_t pairs = 0;
        for (int64_t b = 0; b < (ragged(p) ? problem->batch : 1) && pairs >= 0; b++)
            if (__builtin_add_overflow(pairs, attended_pairs(p, entry_queries(p, b), entry_keys(p, b)), &pairs)) pairs = -1;
        pairs = rapt_product(rapt_product(pairs, problem->heads), ragged(p) ? 1 : problem->batch);
        p->task_pairs = pairs < 0 ? INT64_MAX : rapt_max(rapt_divide_up(pairs, wanted), 1);
    }
    if (ragged(p) || problem->arith == RAPT_INT8_DOT || !rapt_keys_in_lanes(&p->tuning, problem, problem->q_len * problem->group))
        p->pass_tiles = tiles_per_pass(p);
    p->phases = p->scores_stage == RAPT_SCORES_WEIGHTS ? 2 : 1;
    if (!ragged(p)) {
        p->cut = rapt_cut_entry(p, problem->q_len, problem->kv_len);
        if (!add_entries(p, &p->cut, problem->batch)) return false;
    } else {
        for (int64_t b = 0; b < problem->batch; b++) {
            entry_cut c = rapt_cut_entry(p, entry_queries(p, b), entry_keys(p, b));
            if (!add_entries(p, &c, 1)) return false;
        }
    }
    const int64_t heads = problem->batch * problem->kv_heads;
    p->finishers = rapt_max(rapt_min(rapt_divide_up(wanted, rapt_max(heads, 1)), p->most_queries * problem->group), 1);
    return p->phases == 1 || (p->tasks[1] = rapt_product(heads, p->finishers)) >= 0;
}

/* Stores where the entries of a ragged batch begin: for every entry, or if there is no room for that, for every start_step-th. */
static void set_entry_starts(full_plan *p, size_t bytes) {
    int64_t batch = p->problem.batch, room = (int64_t)((bytes - sizeof *p) / sizeof(entry_start));
    entry_start at = {0, 0};
    if (!ragged(p) || batch == 0 || room == 0) return;
    p->start_step = rapt_divide_up(batch, room);
    for (int64_t b = 0; b < batch; b++) {
        if (b % p->start_step == 0) p->starts[p->start_count++] = at;
        entry_cut c = rapt_cut_entry(p, entry_queries(p, b), entry_keys(p, b));
        at.first_task += c.tasks;
        at.first_state += c.state_bytes;
    }
}

/* Bounds a side of a window, or local_chunk, at 2^33. Positions are below that in magnitude, so larger numbers mean the same, and
 * adding a bounded one to a position does not overflow. */
static int64_t bounded_window(int64_t side) { return side < INT64_C(1) << 33 ? side : INT64_C(1) << 33; }

/* Returns the layout with every stride that is not used set to 0. A caller may leave anything there, with which the computation
 * of offsets could overflow. */
static rapt_layout used_layout(rapt_layout l, uint64_t bytes, int64_t batch, int64_t heads, int64_t tokens) {
    if (l.type == RAPT_NONE || bytes == 0) return (rapt_layout){.type = l.type};
    return (rapt_layout){l.type, batch > 1 ? l.batch_stride : 0, heads > 1 ? l.head_stride : 0, tokens > 1 ? l.token_stride : 0};
}

/* Returns the scales; if they have no elements, with all strides set to 0, except that scales of tokens keep a token_stride, by
 * which they are recognised (rapt_scales_of_tokens). */
static rapt_scales used_scales(rapt_scales s, uint64_t bytes) {
    rapt_scales none = {.present = s.present};
    if (bytes == 0) none.token_stride = rapt_scales_of_tokens(&s) ? (int64_t)sizeof(float) : 0;
    return bytes == 0 ? none : s;
}

/* Returns a checksum of q_starts and k_starts, by which changed ones are recognised, since a plan has no room for a copy. Each
 * step is a bijection, since the multiplier (2^64 divided by the golden ratio) is odd: a single changed start always changes the
 * sum, and several changes cancel only by chance. */
static uint64_t sum_of_token_starts(const full_plan *p) {
    const int32_t *const both[] = {p->q_starts, p->k_starts};
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0; both[i] && b <= p->problem.batch; b++)
            sum = (sum ^ (uint32_t)both[i][b]) * UINT64_C(0x9e3779b97f4a7c15);
    return sum;
}

bool rapt_entry_fits(const full_plan *p, int64_t entry) {
    const rapt_problem *d = &p->problem;
    const int32_t *const q = p->q_starts ? p->q_starts + entry : NULL, *const k = p->k_starts ? p->k_starts + entry : NULL;
    return (!q || (q[0] >= 0 && q[1] <= d->q_len && rapt_within((int64_t)q[1] - q[0], 0, p->most_queries))) &&
           (!k || (k[0] >= 0 && k[1] <= d->kv_len && rapt_within((int64_t)k[1] - k[0], 0, p->most_keys)));
}

rapt_status rapt_refuse_starts(rapt_report *r, const full_plan *p, int64_t first, int64_t end) {
    rapt_status status = rapt_check_ascending(r, "q_starts", p->q_starts, first, end);
    if (status == RAPT_OK) status = rapt_check_ascending(r, "k_starts", p->k_starts, first, end);
    if (status != RAPT_OK) return status;
    return rapt_refuse(r, RAPT_ERR_TABLE, "q_starts = %p, k_starts = %p: not as they were when the plan was made",
                       (const void *)p->q_starts, (const void *)p->k_starts);
}

rapt_status rapt_check_kept_starts(rapt_report *r, const full_plan *p) {
    if (!ragged(p) || p->trust_starts || sum_of_token_starts(p) == p->starts_sum) return RAPT_OK;
    return rapt_refuse_starts(r, p, 0, p->problem.batch);
}

/* Fills the plan's problem, and the rest of what it takes from the description. */
static void set_problem(const rapt_desc *d, full_plan *p) {
    rapt_problem *problem = &p->problem;
    const tensor_bytes *b = &p->bytes;
    int64_t q_batch = d->q_starts ? 1 : d->batch, k_batch = d->page_size ? d->pages : d->k_starts ? 1 : d->batch;
    int64_t k_len = d->page_size ? d->page_size : d->kv_len;
    problem->batch = d->batch;
    problem->heads = d->heads;
    problem->kv_heads = d->kv_heads;
    problem->q_len = d->q_len;
    problem->kv_len = d->kv_len;
    problem->group = d->heads / d->kv_heads;
    problem->d_k = (int32_t)d->d_k;
    problem->d_v = (int32_t)d->d_v;
    problem->q = used_layout(d->q, b->q, q_batch, d->heads, d->q_len);
    problem->k = used_layout(d->k, b->k, k_batch, d->kv_heads, k_len);
    problem->v = used_layout(d->v, b->v, k_batch, d->kv_heads, k_len);
    problem->o = used_layout(d->o, b->o, q_batch, d->heads, d->q_len);
    problem->lse = used_layout(d->lse, b->lse, q_batch, d->heads, d->q_len);
    problem->q_row = (size_t)rapt_row_bytes(d->q.type, d->d_k);
    problem->k_row = (size_t)rapt_row_bytes(d->k.type, d->d_k);
    problem->v_row = (size_t)rapt_row_bytes(d->v.type, d->d_v);
    problem->o_row = (size_t)rapt_row_bytes(d->o.type, d->d_v);
    problem->causal = d->causal;
    problem->window_left = bounded_window(d->window_left);
    problem->window_right = bounded_window(d->window_right);
    problem->local_chunk = bounded_window(d->local_chunk);
    problem->mask = used_layout(d->mask, b->mask, d->batch, d->heads, d->q_len);
    problem->block_mask = used_layout(d->block_mask, b->block_mask, d->batch, d->heads, d->q_len);
    problem->bias = used_layout(d->bias, b->bias, d->batch, d->heads, d->q_len);
    problem->slopes = used_layout(d->slopes, b->slopes, d->batch, d->heads, 1);
    problem->sinks = used_layout(d->sinks, b->sinks, d->batch, d->heads, 1);
    problem->scores = used_layout(d->scores, b->scores, q_batch, d->heads, d->q_len);
    if (d->mask.type && d->mask_key_stride) problem->mask_rest = d->mask_rest;
    if (d->bias.type && d->bias_key_stride) problem->bias_rest = d->bias_rest;
    problem->mask_one_key = !d->mask_key_stride;
    problem->bias_one_key = !d->bias_key_stride;
    problem->block_mask_queries = d->block_mask_queries;
    problem->block_mask_keys = d->block_mask_keys;
    problem->k_scales = used_scales(d->k_scales, b->k_scales);
    problem->v_scales = used_scales(d->v_scales, b->v_scales);
    problem->page_size = d->page_size;
    problem->page_shift =
        d->page_size > 0 && (d->page_size & (d->page_size - 1)) == 0 ? __builtin_ctzll((uint64_t)d->page_size) : -1;
    problem->kv_first = d->kv_first;
    problem->table = used_layout(d->table, b->table, d->batch, d->kv_heads, d->q_len);
    problem->unmerged = d->unmerged != 0;
    problem->states = used_layout(d->states, b->states, q_batch, d->heads, d->q_len);
    problem->state_stride = b->states ? d->state_stride : 0;
    problem->alibi = d->alibi;
    problem->logits_body = d->logits_body;
    problem->arith = d->arith;
    problem->pair_product = find_pair_product(p->kernel, problem);
    problem->few_products = &p->kernel->base->few_products;
    p->arithmetic = rapt_arithmetic_of(p->kernel, d->arith);
    p->few_rows_arithmetic = d->arith == RAPT_BF16_DOT ? rapt_few_rows_bf16(p->kernel) : p->arithmetic;
    problem->left_over =
        (int)rapt_min(p->tuning.left_over, d->arith == RAPT_INT8_DOT ? p->tuning.few_integer_rows : p->tuning.few_rows);
    p->scores_stage = d->scores_stage;
    p->q_starts = d->q_starts;
    p->k_starts = d->k_starts;
    p->prefix = d->prefix;
    p->pages = d->pages;
    p->trust_table = d->trust_table != 0;
    p->trust_starts = d->trust_starts != 0;
    p->starts_sum = sum_of_token_starts(p);
}

static const char *arith_name(rapt_arith arith) {
    static const char *const names[] = {"exact", "int8", "bf16"};
    return names[arith];
}

static const char *path_of(const full_plan *p) {
    return p->rows_keys_in_lanes == p->rows ? "keys-in-lanes" : p->rows_keys_in_lanes == 0 ? "queries-in-lanes" : "mixed";
}

void rapt_trace_plan(const rapt_report *r, const full_plan *p) {
    static const char *const causal[] = {"", " causal bottom-right", " causal top-left"};
    const rapt_problem *d = &p->problem;
    if (!rapt_traced()) return;
    rapt_trace_line("%s: %s, %s, %s; batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", %" PRId64 " queries, %" PRId64
                    " keys, d %d/%d, types %s %s %s to %s%s%s%s%s%s%s; %" PRId64 " + %" PRId64
                    " tasks of attention, workspace %zu + %zu a thread",
                    r->call, p->kernel->name, arith_name(p->problem.arith), path_of(p), d->batch, d->heads, d->kv_heads, d->q_len,
                    d->kv_len, (int)d->d_k, (int)d->d_v, rapt_type_name(d->q.type), rapt_type_name(d->k.type),
                    rapt_type_name(d->v.type), rapt_type_name(d->o.type), causal[d->causal], d->mask.type ? " mask" : "",
                    d->bias.type ? " bias" : "", d->page_size ? " pages" : "", ragged(p) ? " ragged" : "",
                    d->unmerged ? " unmerged" : "", p->tasks[0], p->tasks[1], p->shared_bytes, p->thread_bytes);
}

rapt_status rapt_make_plan(rapt_report *r, void *memory, size_t bytes, const rapt_desc *desc) {
    rapt_desc d;
    full_plan p = {.made = 0};
    rapt_status status = rapt_check_plan_memory(r, memory, bytes, sizeof p);
    if (status == RAPT_OK) status = rapt_read_desc(r, "desc", &d, desc);
    if (status == RAPT_OK) status = rapt_check_floats(r); /* the default scale is computed */
    if (status == RAPT_OK) status = plan_check_shape(r, &d);
    if (status == RAPT_OK) status = plan_check_features(r, &d);
    if (status == RAPT_OK) p.kv_total = d.kv_total ? d.kv_total : d.kv_first + d.kv_len;
    if (status == RAPT_OK) status = check_tensors(r, &d, &p);
    const size_t most = RAPT_PLAN_BYTES(status == RAPT_OK ? d.batch : 0);
    if (status == RAPT_OK)
        status = rapt_check_kept(r, memory, bytes < most ? bytes : most, NULL, r->owner, d.batch, d.q_starts, d.k_starts);
    if (status == RAPT_OK) status = set_scale(r, &d, &p.problem);
    if (status == RAPT_OK) status = rapt_select(r, d.isa, &p.kernel);
    if (status == RAPT_OK) status = rapt_read_tuning(r, p.kernel, d.tuning, &p.tuning);
    if (status != RAPT_OK) return status;
    set_problem(&d, &p);
    if (!set_tasks(&p, d.threads))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "threads", d.threads, "tasks or workspace overflow");
    p.made = PLAN_MADE;
    memcpy(memory, &p, sizeof p);
    set_entry_starts(memory, bytes);
    return RAPT_OK;
}

rapt_status rapt_plan_init_sized(void *plan, size_t bytes, const rapt_desc *desc) {
    rapt_report r = rapt_report_of("rapt_plan_init");
    rapt_status status = rapt_make_plan(&r, plan, bytes, desc);
    if (status == RAPT_OK) rapt_trace_plan(&r, plan_of(plan));
    return status;
}

rapt_status(rapt_plan_init)(rapt_plan *plan, const rapt_desc *desc) {
    return rapt_plan_init_sized(plan, PLAN_WORDS * sizeof(uint64_t), desc);
}

rapt_status rapt_plan_explain(const rapt_desc *desc, char *text, size_t bytes) {
    uint64_t memory[PLAN_WORDS];
    rapt_report r = rapt_explanation_of("rapt_plan_init", text, bytes);
    return rapt_make_plan(&r, memory, sizeof memory, desc);
}

rapt_plan_info rapt_plan_info_of(const full_plan *p) {
    return (rapt_plan_info){
        .isa = p->kernel->name,
        .rounding = p->kernel->base->fused ? "fused" : "unfused",
        .arith = arith_name(p->problem.arith),
        .path = path_of(p),
        .phases = p->phases,
        .tasks = {p->tasks[0], p->tasks[1]},
        .shared_bytes = p->shared_bytes,
        .thread_bytes = p->thread_bytes,
        .rows_keys_in_lanes = p->rows_keys_in_lanes,
    };
}

rapt_status rapt_plan_query(const rapt_plan *opaque, rapt_plan_info *info) {
    rapt_report r = rapt_report_of("rapt_plan_query");
    rapt_status status;
    const full_plan *p = rapt_read_plan(&r, opaque, &status);
    if (status != RAPT_OK) return status;
    const rapt_plan_info known = rapt_plan_info_of(p);
    return rapt_write_struct(&r, "info", info, &known, sizeof known, RAPT_BEFORE(rapt_plan_info, rows_keys_in_lanes));
}

rapt_status rapt_plan_workspace(rapt_report *r, const full_plan *p, int64_t nth, size_t *bytes) {
    size_t total;
    if (nth < 1) return rapt_refuse_number(r, RAPT_ERR_RANGE, "nth", nth, "there is no thread");
    if ((uint64_t)nth > SIZE_MAX || __builtin_mul_overflow((size_t)nth, p->thread_bytes, &total) ||
        __builtin_add_overflow(total, p->shared_bytes, &total))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "nth", nth, "the workspace would exceed the address space");
    *bytes = total;
    return RAPT_OK;
}

rapt_status rapt_workspace_size(const rapt_plan *opaque, int64_t nth, size_t *bytes) {
    rapt_report r = rapt_report_of("rapt_workspace_size");
    rapt_status status;
    const full_plan *p = rapt_read_plan(&r, opaque, &status);
    if (status == RAPT_OK && !bytes) return rapt_refuse_null(&r, "bytes", "there is nowhere to write it");
    return status == RAPT_OK ? rapt_plan_workspace(&r, p, nth, bytes) : status;
}
