/* SPDX-License-Identifier: Apache-2.0 */
/* From a description to a plan: validation, and how the work is cut. */
#include "plan.h"

#include <float.h>
#include <string.h>

#include "layout.h"
#include "select.h"

const char *rapt_version(void) { return RAPT_VERSION; }

const char *rapt_status_string(rapt_status status) {
    switch (status) {
    case RAPT_OK:
        return "success";
    case RAPT_ERR_NULL:
        return "a required pointer is null";
    case RAPT_ERR_STRUCT:
        return "a struct's size is too small, or it is newer than the library and uses a field unknown to it";
    case RAPT_ERR_SHAPE:
        return "a size is negative, zero where it may not be, or too large";
    case RAPT_ERR_HEADS:
        return "the number of query heads is not a multiple of that of key/value heads";
    case RAPT_ERR_TYPE:
        return "a tensor's type is unknown, or not allowed for that tensor";
    case RAPT_ERR_STRIDE:
        return "a stride is negative, a tensor exceeds the address space, or output elements overlap";
    case RAPT_ERR_SCALE:
        return "the scale is not finite";
    case RAPT_ERR_MASK:
        return "the causal mask is unknown, or a side of the window is below -1";
    case RAPT_ERR_KV_LENGTH:
        return "a key length is negative or above kv_len";
    case RAPT_ERR_OVERLAP:
        return "an output or the workspace overlaps another buffer";
    case RAPT_ERR_WORKSPACE:
        return "the workspace is null or too small";
    case RAPT_ERR_ALIGNMENT:
        return "the workspace is not aligned to 64 bytes";
    case RAPT_ERR_ISA_UNKNOWN:
        return "no kernel of that name was built for this architecture";
    case RAPT_ERR_ISA_MISSING:
        return "this CPU, or its operating system, cannot run that kernel";
    case RAPT_ERR_RANGE:
        return "a phase, task, thread number or thread count is out of range";
    case RAPT_ERR_PLAN:
        return "the plan was not made by rapt_plan_init";
    case RAPT_ERR_TABLE:
        return "a page, a start or a length of a ragged, paged or ring batch is out of range";
    case RAPT_ERR_FEATURE:
        return "a feature's number is out of range, or something that it needs is not given";
    case RAPT_ERR_ARITH:
        return "the storage types or scales of K and V do not allow that arithmetic";
    }
    return "unknown status";
}

rapt_status rapt_read_struct(void *to, size_t bytes, const void *from) {
    size_t size;
    if (!from) return RAPT_ERR_NULL;
    memcpy(&size, from, sizeof size);
    if (size < bytes) return RAPT_ERR_STRUCT;
    for (size_t i = bytes; i < size; i++)
        if (((const unsigned char *)from)[i]) return RAPT_ERR_STRUCT;
    memcpy(to, from, bytes);
    return RAPT_OK;
}

void rapt_desc_init_sized(rapt_desc *desc, size_t size) {
    if (!desc || size < sizeof *desc) return;
    memset(desc, 0, size);
    desc->size = size;
    desc->window_left = desc->window_right = -1;
    desc->threads = 1;
}

static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The row of a tensor that may be left out, as measure wants it: only these types are allowed. */
static int64_t row_of(rapt_type type, uint32_t allowed, int64_t elements) {
    return (int)type >= 1 && (int)type <= RAPT_I32 && allowed >> type & 1 ? rapt_bytes_of(type, elements) : -1;
}

enum {
    FLOATS = 1 << RAPT_F32 | 1 << RAPT_F16 | 1 << RAPT_BF16,
    MASKS = 1 << RAPT_BOOL | 1 << RAPT_BIT,
    KV_TYPES = (1 << RAPT_BOOL) - (1 << RAPT_F32), /* all before */
};

static bool in_range(int64_t x, int64_t least, int64_t most) { return x >= least && x <= most; }

static rapt_status check_shape(const rapt_desc *d) {
    if (!in_range(d->batch, 0, RAPT_MAX_LENGTH) || !in_range(d->heads, 1, RAPT_MAX_LENGTH) ||
        !in_range(d->kv_heads, 1, RAPT_MAX_LENGTH) || !in_range(d->q_len, 0, RAPT_MAX_LENGTH) ||
        !in_range(d->kv_len, 0, RAPT_MAX_LENGTH) || !in_range(d->d_k, 1, RAPT_MAX_HEAD_DIM) ||
        !in_range(d->d_v, 1, RAPT_MAX_HEAD_DIM))
        return RAPT_ERR_SHAPE;
    if (d->heads % d->kv_heads != 0) return RAPT_ERR_HEADS;
    if (!in_range((int64_t)d->causal, RAPT_CAUSAL_NONE, RAPT_CAUSAL_TOP_LEFT) || d->window_left < -1 || d->window_right < -1)
        return RAPT_ERR_MASK;
    return in_range(d->threads, 1, RAPT_MAX_LENGTH) ? RAPT_OK : RAPT_ERR_RANGE;
}

/* What the features want of each other. */
static rapt_status check_features(const rapt_desc *d) {
    if (d->prefix < 0 || d->local_chunk < 0 || !(d->softcap >= 0.0f && d->softcap <= FLT_MAX)) return RAPT_ERR_FEATURE;
    if (d->map.type && (d->map_queries < 1 || d->map_keys < 1 || d->map_keys % RAPT_BLOCK)) return RAPT_ERR_FEATURE;
    if (!in_range((int64_t)d->alibi, RAPT_ALIBI_NONE, RAPT_ALIBI_BIAS) || (d->alibi && !d->slopes.type) ||
        (d->alibi == RAPT_ALIBI_BIAS && !d->bias.type))
        return RAPT_ERR_FEATURE;
    if (!in_range(d->page_size, 0, RAPT_MAX_LENGTH) || !in_range(d->pages, 0, RAPT_MAX_LENGTH) ||
        (d->page_size > 0) != (d->table.type != 0) || (d->page_size > 0 && d->k_starts))
        return RAPT_ERR_FEATURE;
    if (d->kv_first < 0 || d->kv_first % RAPT_CHUNK || (d->kv_first && d->k_starts)) return RAPT_ERR_FEATURE;
    if (d->kv_first > RAPT_MAX_LENGTH - d->kv_len || !in_range(d->kv_total, 0, RAPT_MAX_LENGTH)) return RAPT_ERR_SHAPE;
    if (d->arith == RAPT_INT8_DOT && (d->k.type != RAPT_INT8 || d->v.type != RAPT_INT8)) return RAPT_ERR_ARITH;
    return in_range((int64_t)d->arith, RAPT_EXACT, RAPT_INT8_DOT) ? RAPT_OK : RAPT_ERR_ARITH;
}

/* starts[0..n] of a ragged batch, in a tensor of so many tokens. *most: of the longest entry. */
static rapt_status check_starts(const int32_t *starts, int64_t n, int64_t tokens, int64_t *most) {
    if (!starts) return RAPT_OK;
    *most = 0;
    if (starts[0] < 0 || starts[n] > tokens) return RAPT_ERR_TABLE;
    for (int64_t b = 0; b < n; b++) {
        if (starts[b] > starts[b + 1]) return RAPT_ERR_TABLE;
        *most = larger(*most, (int64_t)starts[b + 1] - starts[b]);
    }
    return RAPT_OK;
}

static rapt_status measure_scales(const rapt_scales *s, int64_t batch, int64_t heads, int64_t tokens, int64_t channels,
                                  uint64_t *bytes) {
    if (!s->present) return RAPT_OK;
    if (s->token_stride && s->channel_stride) return RAPT_ERR_STRIDE;
    bool by_channel = s->channel_stride != 0;
    rapt_dimension d[] = {{batch, s->batch_stride},
                          {heads, s->head_stride},
                          {by_channel ? channels : tokens, by_channel ? s->channel_stride : s->token_stride}};
    return rapt_measure_dimensions(d, 3, sizeof(float), false, bytes);
}

static rapt_status check_tensors(const rapt_desc *d, full_plan *p) {
    int64_t queries = d->q_len, keys = p->kv_total; /* of the longest entry */
    rapt_status status = check_starts(d->q_starts, d->batch, d->q_len, &queries);
    if (status == RAPT_OK) status = check_starts(d->k_starts, d->batch, d->kv_len, &keys);
    int64_t q_batch = d->q_starts ? d->batch > 0 : d->batch, k_batch = d->k_starts ? d->batch > 0 : d->batch, k_len = d->kv_len;
    if (d->page_size) k_batch = d->pages, k_len = d->page_size;

    tensor_bytes *b = &p->bytes;
#define RAPT_MEASURE(tensor, batch, heads, tokens, row, output)                                                                  \
    if (status == RAPT_OK) status = rapt_measure_rows(&d->tensor, batch, heads, tokens, row, output, &b->tensor)
    RAPT_MEASURE(q, q_batch, d->heads, d->q_len, row_of(d->q.type, FLOATS, d->d_k), false);
    RAPT_MEASURE(k, k_batch, d->kv_heads, k_len, row_of(d->k.type, KV_TYPES, d->d_k), false);
    RAPT_MEASURE(v, k_batch, d->kv_heads, k_len, row_of(d->v.type, KV_TYPES, d->d_v), false);
    RAPT_MEASURE(o, q_batch, d->heads, d->q_len, row_of(d->o.type, FLOATS, d->d_v), true);
    if (d->lse.type) RAPT_MEASURE(lse, q_batch, d->heads, d->q_len, row_of(d->lse.type, 1 << RAPT_F32, 1), true);
    if (d->mask.type) RAPT_MEASURE(mask, d->batch, d->heads, queries, row_of(d->mask.type, MASKS, keys), false);
    if (d->bias.type) RAPT_MEASURE(bias, d->batch, d->heads, queries, row_of(d->bias.type, FLOATS, keys), false);
    if (d->map.type)
        RAPT_MEASURE(map, d->batch, d->heads, divide_up(queries, d->map_queries),
                     row_of(d->map.type, 1 << RAPT_BOOL, divide_up(keys, d->map_keys)), false);
    if (d->slopes.type) RAPT_MEASURE(slopes, d->batch, d->heads, 1, row_of(d->slopes.type, 1 << RAPT_F32, 1), false);
    if (d->sinks.type) RAPT_MEASURE(sinks, d->batch, d->heads, 1, row_of(d->sinks.type, 1 << RAPT_F32, 1), false);
#undef RAPT_MEASURE
    if (d->unmerged && status == RAPT_OK) {
        int64_t state = d->states.type == RAPT_F32 ? (int64_t)(RAPT_STATE_FLOATS(d->d_v) * sizeof(float)) : -1;
        rapt_dimension s[] = {{q_batch, d->states.batch_stride},
                              {d->heads, d->states.head_stride},
                              {d->q_len, d->states.token_stride},
                              {divide_up(d->kv_len, RAPT_CHUNK), d->state_stride}};
        status = rapt_measure_dimensions(s, 4, state, true, &b->states);
    }
    if (status == RAPT_OK && d->table.type) {
        uint64_t bytes; /* is measured when it is known whether it is a matrix */
        status = rapt_measure_rows(&d->table, d->batch, d->kv_heads, queries,
                                   row_of(d->table.type, 1 << RAPT_I32, divide_up(d->kv_len, d->page_size)), false, &bytes);
    }
    if (status == RAPT_OK)
        status =
            measure_scales(&d->k_scales, d->k_scales.token_stride ? k_batch : d->batch, d->kv_heads, k_len, d->d_k, &b->k_scales);
    if (status == RAPT_OK)
        status =
            measure_scales(&d->v_scales, d->v_scales.token_stride ? k_batch : d->batch, d->kv_heads, k_len, d->d_v, &b->v_scales);
    return status;
}

rapt_status rapt_measure_states(const full_plan *p, const rapt_states *s, uint64_t *bytes) {
    const rapt_problem *problem = &p->problem;
    if (s->chunks < 0) return RAPT_ERR_RANGE;
    rapt_dimension d[] = {{p->q_starts ? problem->batch > 0 : problem->batch, s->batch_stride},
                          {problem->heads, s->head_stride},
                          {problem->q_len, s->token_stride},
                          {s->chunks, s->state_stride}};
    return rapt_measure_dimensions(d, 4, (int64_t)(RAPT_STATE_FLOATS(problem->d_v) * sizeof(float)), false, bytes);
}

/* The scale is applied as an exponent of 2 after the scores' maximum is subtracted; q takes only its sign, which is exact. Where
 * the scale is so small or so large that 127 / exponent or its product with a score could leave the range of f32, q takes it
 * whole. */
static rapt_status set_scale(const rapt_desc *d, rapt_problem *p) {
    double scale = d->scale;
    if (!(scale >= -FLT_MAX && scale <= FLT_MAX)) return RAPT_ERR_SCALE;
    if (scale == 0.0) scale = (double)(float)(1.0 / __builtin_sqrt((double)d->d_k));
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

/* Query tiles that a pass over K and V can take: its scratch, which grows by the same for each, has a bound. */
static int64_t tiles_per_pass(const rapt_kernel *kernel, const rapt_problem *problem) {
    size_t one = kernel->scratch_bytes(problem, kernel->lanes, false, false);
    size_t each = kernel->scratch_bytes(problem, 2 * kernel->lanes, false, false) - one;
    if (one >= kernel->pass_bytes) return 1;
    int64_t tiles = 1 + (int64_t)((kernel->pass_bytes - one) / each);
    return tiles < kernel->pass_tiles ? tiles : kernel->pass_tiles;
}

/* Where the heads of a token lie side by side, one head's rows are small pieces far apart, which memory reads at less than half
 * of its speed (docs/performance.md): so many heads are taken together that the pieces are whole pages. */
static int64_t heads_together(const rapt_problem *problem, int64_t rows) {
    enum { PAGE = 4096 };
    const rapt_layout *k = &problem->k, *v = &problem->v;
    if (k->head_stride >= k->token_stride || v->head_stride >= v->token_stride || problem->table.head_stride) return 1;
    int64_t joined = 1;
    for (int64_t heads = 1; heads <= problem->kv_heads && heads <= RAPT_JOINED_ROWS / rows; heads++) {
        if (problem->kv_heads % heads) continue;
        joined = heads;
        if (heads * k->head_stride >= PAGE) break;
    }
    return joined;
}

/* Pairs of query and key of one head of an entry: exact where the number of keys changes evenly with the query, else nearly. */
static int64_t attended_pairs(const full_plan *p, int64_t q_len, int64_t keys) {
    int64_t first, end, pairs = 0;
    if (q_len == 0) return 0;
    for (int i = 0; i <= 4; i++) { /* the trapezoidal rule */
        int64_t length = p->kv_total && !p->k_starts ? p->kv_total : keys;
        rapt_row_range(&p->problem, q_len, length, p->prefix, (q_len - 1) * i / 4, &first, &end);
        pairs += (end - first < keys ? end - first : keys) * (i % 4 ? 2 : 1);
    }
    /* A row without keys is work, too. Up to 2^34 pairs of up to 2^31 queries. */
    return q_len < INT64_C(1) << 28 ? pairs * q_len / 8 + q_len : (pairs / 8 + 1) * q_len;
}

entry_cut rapt_cut_entry(const full_plan *p, int64_t q_len, int64_t keys) {
    const rapt_problem *problem = &p->problem;
    const rapt_kernel *kernel = p->kernel;
    entry_cut c = {.q_len = q_len, .rows = q_len * problem->group, .joined_heads = 1};
    bool own_keys = problem->table.token_stride != 0; /* each token has a table of its own, so a pass */
    int64_t together = own_keys ? problem->group : c.rows;
    int64_t pairs = p->task_pairs < INT64_MAX ? attended_pairs(p, q_len, keys) * problem->group : 0;
    c.keys_in_lanes = together <= (problem->integer ? kernel->few_integer_rows : kernel->few_rows);
    c.chunks = divide_up(keys, RAPT_CHUNK);
    c.part_chunks = larger(c.chunks, 1);
    c.parts = 1;
    if (c.rows == 0) return c;
    c.pass_rows = c.tile_rows = together;
    if (c.keys_in_lanes) {
        c.joined_heads = heads_together(problem, together);
    } else if (own_keys) { /* equal parts of a token's heads, as many as a pass has room for */
        c.pass_rows = smaller(together, p->pass_tiles * kernel->lanes);
        while (together % c.pass_rows) c.pass_rows--;
        c.tile_rows = c.pass_rows;
    } else {
        /* A pass has tiles of rows, or, where there is a map, of whole periods of it. */
        int64_t period = problem->map.type ? rapt_product(problem->map_queries, problem->group) : 0,
                per_period = divide_up(period, kernel->lanes);
        c.period = period > 0 && per_period <= p->pass_tiles ? period : 0;
        int64_t unit = c.period ? c.period : kernel->lanes, unit_tiles = c.period ? per_period : 1;
        int64_t units = divide_up(c.rows, unit);
        int64_t passes = larger(divide_up(units, p->pass_tiles / unit_tiles), divide_up(pairs, p->task_pairs));
        units = passes < units ? divide_up(units, passes) : 1;
        c.pass_rows = c.rows < units * unit ? c.rows : units * unit;
        c.tile_rows = units * unit_tiles * kernel->lanes;
    }
    c.passes = divide_up(c.rows, c.pass_rows);
    c.tasks = problem->kv_heads / c.joined_heads * c.passes;

    /* Too few tasks: split the keys as well, unless the states that this leaves would be more than an eighth of K and V. */
    size_t state_bytes = RAPT_STATE_FLOATS(problem->d_v) * sizeof(float);
    int64_t chunk_bytes = RAPT_CHUNK * (int64_t)(problem->k_row + problem->v_row);
    int64_t parts = divide_up(divide_up(pairs * c.joined_heads, c.passes), p->task_pairs);
    int64_t states =
        problem->unmerged ? 0 : rapt_product(rapt_product(c.chunks, q_len), rapt_product(problem->heads, (int64_t)state_bytes));
    if (parts > 1 && c.chunks > 1 && states >= 0 &&
        (problem->unmerged || c.pass_rows <= chunk_bytes / 8 / (int64_t)state_bytes)) {
        c.part_chunks = divide_up(c.chunks, parts < c.chunks ? parts : c.chunks);
        c.parts = divide_up(c.chunks, c.part_chunks);
        c.tasks *= c.parts;
        if (c.parts > 1) c.state_bytes = (size_t)states;
    }
    return c;
}

enum { MOST_THREADS = 4096 }; /* for which work is cut: keeps the sizes below far from overflow */

/* Adds an entry, or as many equal ones. False when numbers overflow. */
static bool add_entries(full_plan *p, const entry_cut *c, int64_t n) {
    int64_t tasks = rapt_product(n, c->tasks), states = rapt_product(n, (int64_t)c->state_bytes);
    if (tasks < 0 || states < 0 || __builtin_add_overflow(p->tasks[0], tasks, &p->tasks[0]) ||
        __builtin_add_overflow(p->shared_bytes, (size_t)states, &p->shared_bytes))
        return false;
    if (c->state_bytes && n > 0) p->phases = 2;
    const char *path = c->keys_in_lanes ? "keys-in-lanes" : "queries-in-lanes";
    if (!p->path) p->path = path;
    else if (strcmp(p->path, path) != 0) p->path = "mixed";
    if (c->tasks == 0 || n == 0) return true;
    bool folds = c->parts == 1 && c->chunks > 1 && !p->problem.unmerged;
    size_t scratch = p->kernel->scratch_bytes(&p->problem, c->joined_heads * c->tile_rows, c->keys_in_lanes, folds);
    if (scratch > p->thread_bytes) p->thread_bytes = scratch;
    return true;
}

/* Cuts the work into tasks. threads decides how finely; nothing here changes bits. */
static rapt_status set_tasks(full_plan *p, int64_t threads) {
    const rapt_problem *problem = &p->problem;
    p->task_pairs = INT64_MAX;
    if (threads > 1) { /* several tasks for each thread, since they are not equally long; more where entries differ */
        int64_t wanted = (ragged(p) ? 8 : 4) * (threads < MOST_THREADS ? threads : MOST_THREADS), pairs = 0;
        for (int64_t b = 0; b < (ragged(p) ? problem->batch : 1) && pairs >= 0; b++)
            if (__builtin_add_overflow(pairs, attended_pairs(p, entry_queries(p, b), entry_keys(p, b)), &pairs)) pairs = -1;
        pairs = rapt_product(rapt_product(pairs, problem->heads), ragged(p) ? 1 : problem->batch);
        p->task_pairs = pairs < 0 ? INT64_MAX : larger(divide_up(pairs, wanted), 1);
    }
    if (ragged(p) || problem->integer || problem->q_len * problem->group > p->kernel->few_rows)
        p->pass_tiles = tiles_per_pass(p->kernel, problem);
    p->phases = 1;
    if (!ragged(p)) {
        p->cut = rapt_cut_entry(p, problem->q_len, problem->kv_len);
        if (!add_entries(p, &p->cut, problem->batch)) return RAPT_ERR_SHAPE;
    } else {
        for (int64_t b = 0; b < problem->batch; b++) {
            entry_cut c = rapt_cut_entry(p, entry_queries(p, b), entry_keys(p, b));
            if (!add_entries(p, &c, 1)) return RAPT_ERR_SHAPE;
        }
    }
    if (!p->path) p->path = "keys-in-lanes"; /* no entries */
    if (p->phases == 2 && (p->tasks[1] = rapt_product(problem->batch, problem->kv_heads)) < 0) return RAPT_ERR_SHAPE;
    return RAPT_OK;
}

/* A window side at which it can no longer exclude a key, so that positions and windows add without overflow. */
static int64_t bounded_window(int64_t side) { return side < INT64_C(1) << 33 ? side : INT64_C(1) << 33; }

rapt_status rapt_plan_init(rapt_plan *opaque, const rapt_desc *desc) {
    rapt_desc d;
    full_plan p = {.made = PLAN_MADE};
    if (!opaque) return RAPT_ERR_NULL;
    rapt_status status = rapt_read_struct(&d, sizeof d, desc);
    if (status == RAPT_OK) status = check_shape(&d);
    if (status == RAPT_OK) status = check_features(&d);
    if (status == RAPT_OK) p.kv_total = d.kv_total ? d.kv_total : d.kv_first + d.kv_len;
    if (status == RAPT_OK) status = check_tensors(&d, &p);
    if (status == RAPT_OK) status = set_scale(&d, &p.problem);
    if (status == RAPT_OK) status = rapt_select(d.isa, &p.kernel);
    if (status != RAPT_OK) return status;

    rapt_problem *problem = &p.problem;
    problem->batch = d.batch;
    problem->heads = d.heads;
    problem->kv_heads = d.kv_heads;
    problem->q_len = d.q_len;
    problem->kv_len = d.kv_len;
    problem->group = d.heads / d.kv_heads;
    problem->d_k = (int32_t)d.d_k;
    problem->d_v = (int32_t)d.d_v;
    problem->q = d.q;
    problem->k = d.k;
    problem->v = d.v;
    problem->o = d.o;
    problem->lse = d.lse;
    problem->q_row = (size_t)rapt_row_bytes(d.q.type, d.d_k);
    problem->k_row = (size_t)rapt_row_bytes(d.k.type, d.d_k);
    problem->v_row = (size_t)rapt_row_bytes(d.v.type, d.d_v);
    problem->o_row = (size_t)rapt_row_bytes(d.o.type, d.d_v);
    problem->causal = d.causal;
    problem->window_left = bounded_window(d.window_left);
    problem->window_right = bounded_window(d.window_right);
    problem->local_chunk = bounded_window(d.local_chunk);
    problem->mask = d.mask;
    problem->map = d.map;
    problem->bias = d.bias;
    problem->slopes = d.slopes;
    problem->sinks = d.sinks;
    problem->map_queries = d.map_queries;
    problem->map_keys = d.map_keys;
    problem->k_scales = d.k_scales;
    problem->v_scales = d.v_scales;
    problem->page_size = d.page_size;
    problem->page_shift = d.page_size > 0 && (d.page_size & (d.page_size - 1)) == 0 ? __builtin_ctzll((uint64_t)d.page_size) : -1;
    problem->kv_first = d.kv_first;
    problem->table = d.table;
    problem->states = d.states;
    problem->state_stride = d.state_stride;
    problem->unmerged = d.unmerged != 0;
    problem->alibi = d.alibi;
    problem->logits_body = d.logits_body;
    problem->integer = d.arith == RAPT_INT8_DOT;
    p.arith = d.arith;
    p.q_starts = d.q_starts;
    p.k_starts = d.k_starts;
    p.prefix = d.prefix;
    p.pages = d.pages;
    p.trust_table = d.trust_table != 0;
    status = set_tasks(&p, d.threads);
    if (status != RAPT_OK) return status;
    memcpy(opaque, &p, sizeof p);
    return RAPT_OK;
}

rapt_status rapt_plan_query(const rapt_plan *opaque, rapt_plan_info *info) {
    const full_plan *p = plan_of(opaque);
    rapt_plan_info known;
    if (!opaque || !info) return RAPT_ERR_NULL;
    if (!p) return RAPT_ERR_PLAN;
    if (info->size < sizeof known) return RAPT_ERR_STRUCT;
    known = (rapt_plan_info){
        .size = info->size,
        .isa = p->kernel->name,
        .rounding = p->kernel->fused ? "fused" : "unfused",
        .arith = p->arith == RAPT_EXACT ? "exact" : "int8",
        .path = p->path,
        .phases = p->phases,
        .tasks = {p->tasks[0], p->tasks[1]},
        .shared_bytes = p->shared_bytes,
        .thread_bytes = p->thread_bytes,
    };
    memcpy(info, &known, sizeof known);
    return RAPT_OK;
}

rapt_status rapt_workspace_size(const rapt_plan *opaque, int64_t nth, size_t *bytes) {
    const full_plan *p = plan_of(opaque);
    size_t total;
    if (!opaque || !bytes) return RAPT_ERR_NULL;
    if (!p) return RAPT_ERR_PLAN;
    if (nth < 1) return RAPT_ERR_RANGE;
    if ((uint64_t)nth > SIZE_MAX || __builtin_mul_overflow((size_t)nth, p->thread_bytes, &total) ||
        __builtin_add_overflow(total, p->shared_bytes, &total))
        return RAPT_ERR_SHAPE;
    *bytes = total;
    return RAPT_OK;
}
