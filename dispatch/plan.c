/* SPDX-License-Identifier: Apache-2.0 */
/* From a description to a plan: validation, and how the work is cut. */
#include "plan.h"

#include <float.h>
#include <string.h>

#include "select.h"
#include "types.h"

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

static int64_t type_bytes(rapt_type type) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        return bytes;
        RAPT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    }
    return 0;
}

/* a * b, or -1 when that overflows or a factor is negative. */
static int64_t product(int64_t a, int64_t b) {
    int64_t ab;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &ab) ? -1 : ab;
}

rapt_layout rapt_layout_bhsd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels) {
    int64_t token = rapt_row_bytes(type, channels), head = product(token, tokens);
    return (rapt_layout){type, product(head, heads), head, token};
}

rapt_layout rapt_layout_bshd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels) {
    int64_t head = rapt_row_bytes(type, channels), token = product(head, heads);
    return (rapt_layout){type, product(token, tokens), head, token};
}

typedef struct dimension {
    int64_t length, stride;
} dimension;

/* Checks a tensor's type and strides, and measures it from its first to its last byte. */
static rapt_status measure(const rapt_layout *layout, int64_t batch, int64_t heads, int64_t tokens, int64_t channels, bool output,
                           uint64_t *bytes) {
    int64_t element = type_bytes(layout->type);
    if (element == 0) return RAPT_ERR_TYPE;
    dimension d[3] = {{batch, layout->batch_stride}, {heads, layout->head_stride}, {tokens, layout->token_stride}};
    for (int i = 0; i < 3; i++)
        if (d[i].stride < 0) return RAPT_ERR_STRIDE;
    *bytes = 0;
    if (batch == 0 || heads == 0 || tokens == 0) return RAPT_OK;
    for (int i = 0; i < 2; i++) /* by stride, ascending */
        for (int j = 0; j < 2 - i; j++)
            if (d[j].stride > d[j + 1].stride) {
                dimension swapped = d[j];
                d[j] = d[j + 1];
                d[j + 1] = swapped;
            }
    int64_t span = element * channels;
    for (int i = 0; i < 3; i++) {
        if (d[i].length == 1) continue;
        if (output && d[i].stride < span) return RAPT_ERR_STRIDE;
        int64_t extent = product(d[i].length - 1, d[i].stride);
        if (extent < 0 || __builtin_add_overflow(span, extent, &span)) return RAPT_ERR_STRIDE;
    }
    if ((uint64_t)span > PTRDIFF_MAX) return RAPT_ERR_STRIDE;
    *bytes = (uint64_t)span;
    return RAPT_OK;
}

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

static rapt_status check_tensors(const rapt_desc *d, full_plan *p) {
    rapt_status status = RAPT_OK;
    if (status == RAPT_OK) status = measure(&d->q, d->batch, d->heads, d->q_len, d->d_k, false, &p->q_bytes);
    if (status == RAPT_OK) status = measure(&d->k, d->batch, d->kv_heads, d->kv_len, d->d_k, false, &p->k_bytes);
    if (status == RAPT_OK) status = measure(&d->v, d->batch, d->kv_heads, d->kv_len, d->d_v, false, &p->v_bytes);
    if (status == RAPT_OK) status = measure(&d->o, d->batch, d->heads, d->q_len, d->d_v, true, &p->o_bytes);
    if (status == RAPT_OK && d->lse.type != 0)
        status = d->lse.type != RAPT_F32 ? RAPT_ERR_TYPE : measure(&d->lse, d->batch, d->heads, d->q_len, 1, true, &p->lse_bytes);
    return status;
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
    p->natural = ordinary ? (float)magnitude : 1.0f;
    p->exponent = (float)((ordinary ? magnitude : 1.0) * log2_e);
    p->least = -127.0f / p->exponent;
    return RAPT_OK;
}

static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Query tiles that a pass over K and V can take: its scratch, which grows by the same for each, has a bound. */
static int64_t tiles_per_pass(const rapt_kernel *kernel, const rapt_problem *problem) {
    size_t one = kernel->scratch_bytes(problem, kernel->lanes, false);
    size_t each = kernel->scratch_bytes(problem, 2 * kernel->lanes, false) - one;
    if (one >= kernel->pass_bytes) return 1;
    int64_t tiles = 1 + (int64_t)((kernel->pass_bytes - one) / each);
    return tiles < kernel->pass_tiles ? tiles : kernel->pass_tiles;
}

/* Where the heads of a token lie side by side, one head's rows are small pieces far apart, which memory reads at less than half
 * of its speed (docs/performance.md): so many heads are taken together that the pieces are whole pages. */
static int64_t heads_together(const rapt_problem *problem, int64_t rows) {
    enum { PAGE = 4096 };
    const rapt_layout *k = &problem->k, *v = &problem->v;
    if (!problem->keys_in_lanes || k->head_stride >= k->token_stride || v->head_stride >= v->token_stride) return 1;
    int64_t joined = 1;
    for (int64_t heads = 1; heads <= problem->kv_heads && heads <= RAPT_JOINED_ROWS / rows; heads++) {
        if (problem->kv_heads % heads) continue;
        joined = heads;
        if (heads * k->head_stride >= PAGE) break;
    }
    return joined;
}

enum { MOST_THREADS = 4096 }; /* for which work is cut: keeps the sizes below far from overflow */

/* Cuts the work into tasks. threads decides how finely; nothing here changes bits. */
static rapt_status set_tasks(full_plan *p, int64_t threads) {
    const rapt_problem *problem = &p->problem;
    const rapt_kernel *kernel = p->kernel;
    int64_t rows = problem->q_len * problem->group;
    p->joined_heads = rows ? heads_together(problem, rows) : 1;
    int64_t units = product(problem->batch, problem->kv_heads / p->joined_heads);
    /* Several for each thread, since they are not equally long. */
    int64_t wanted = threads == 1 ? 1 : 4 * (threads < MOST_THREADS ? threads : MOST_THREADS);
    p->chunks = divide_up(problem->kv_len, RAPT_CHUNK);
    p->pass_rows = rows;
    if (!problem->keys_in_lanes) {
        int64_t tiles = divide_up(rows, kernel->lanes), most = tiles_per_pass(kernel, problem);
        int64_t passes = larger(divide_up(tiles, most), divide_up(wanted, larger(units, 1)));
        tiles = passes < tiles ? divide_up(tiles, passes) : 1;
        p->pass_rows = rows < tiles * kernel->lanes ? rows : tiles * kernel->lanes;
    }
    p->passes = rows ? divide_up(rows, p->pass_rows) : 0;
    p->part_chunks = p->chunks ? p->chunks : 1;
    p->parts = 1;
    p->tasks[0] = product(units, p->passes);
    if (p->tasks[0] < 0) return RAPT_ERR_SHAPE;

    /* Too few tasks: split the keys as well, unless the states that this leaves would be more than an eighth of K and V. */
    size_t state_bytes = rapt_state_floats(problem->d_v) * sizeof(float);
    int64_t chunk_bytes = RAPT_CHUNK * (int64_t)(problem->k_row + problem->v_row);
    if (p->tasks[0] > 0 && p->tasks[0] < wanted && p->chunks > 1 && rows <= chunk_bytes / 8 / (int64_t)state_bytes) {
        p->parts = divide_up(wanted, p->tasks[0]);
        p->part_chunks = divide_up(p->chunks, p->parts < p->chunks ? p->parts : p->chunks);
        p->parts = divide_up(p->chunks, p->part_chunks);
        p->tasks[0] *= p->parts;
        p->tasks[1] = units * p->joined_heads;
        p->shared_bytes = (size_t)(p->tasks[1] * p->chunks * rows) * state_bytes; /* tasks * rows < 2^23, chunks < 2^23 */
    }
    p->thread_bytes =
        p->tasks[0] ? kernel->scratch_bytes(problem, p->joined_heads * p->pass_rows, p->parts == 1 && p->chunks > 1) : 0;
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
    problem->keys_in_lanes = d.q_len * problem->group <= p.kernel->few_rows;
    problem->d_k = (int32_t)d.d_k;
    problem->d_v = (int32_t)d.d_v;
    problem->q = d.q;
    problem->k = d.k;
    problem->v = d.v;
    problem->o = d.o;
    problem->lse = d.lse;
    problem->q_row = (size_t)(type_bytes(d.q.type) * d.d_k);
    problem->k_row = (size_t)(type_bytes(d.k.type) * d.d_k);
    problem->v_row = (size_t)(type_bytes(d.v.type) * d.d_v);
    problem->o_row = (size_t)(type_bytes(d.o.type) * d.d_v);
    problem->causal = d.causal;
    problem->window_left = bounded_window(d.window_left);
    problem->window_right = bounded_window(d.window_right);
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
        .path = p->problem.keys_in_lanes ? "keys-in-lanes" : "queries-in-lanes",
        .phases = p->parts > 1 ? 2 : 1,
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
