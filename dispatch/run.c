/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan: validation of the pointers, and the ways to hand out its tasks. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "parts.h"
#include "layout.h"
#include "plan.h"
#include "select.h"

void rapt_args_init_sized(rapt_args *args, size_t size) {
    if (!args || size < sizeof *args) return;
    memset(args, 0, size);
    args->size = size;
}

/* The ranges of memory that a call uses, as far as the plan has them. */
typedef struct ranges {
    rapt_range at[16];
    int n;
} ranges;

static rapt_status add_range(ranges *r, const void *from, uint64_t bytes) {
    if (bytes == 0) return RAPT_OK;
    if (!from) return RAPT_ERR_NULL;
    if (bytes > UINTPTR_MAX - (uintptr_t)from) return RAPT_ERR_STRIDE;
    r->at[r->n++] = (rapt_range){(uintptr_t)from, bytes};
    return RAPT_OK;
}

/* Bytes of an array of one int32 for each batch entry and so many more, if it is given. */
static uint64_t int32s(const full_plan *p, const int32_t *array, int64_t more) {
    return array ? (uint64_t)(p->problem.batch + more) * sizeof *array : 0;
}

static int64_t table_pages(const full_plan *p) {
    return p->problem.page_size ? (p->problem.kv_len + p->problem.page_size - 1) / p->problem.page_size : 0;
}

/* Bytes of the page table, which has numbers for entries [0, batch). */
static uint64_t table_bytes(const full_plan *p, const rapt_args *args) {
    const rapt_problem *problem = &p->problem;
    const rapt_layout *table = &problem->table;
    const int64_t number = sizeof *args->table;
    if (!problem->page_size || problem->batch == 0 || problem->q_len == 0) return 0;
    int64_t queries = 1; /* of the longest entry, where each has a row */
    for (int64_t b = 0; b < (ragged(p) ? problem->batch : 1) && table->token_stride; b++)
        if (entry_queries(p, b) > queries) queries = entry_queries(p, b);
    int64_t last = args->table_starts ? args->table_starts[problem->batch] * number
                                      : (problem->batch - 1) * table->batch_stride + table_pages(p) * number;
    return (uint64_t)(last + (problem->kv_heads - 1) * table->head_stride + (queries - 1) * table->token_stride);
}

/* Where the pages of each entry begin. */
static rapt_status check_table_starts(const full_plan *p, const rapt_args *args) {
    const int32_t *starts = args->table_starts;
    if (!starts) return RAPT_OK;
    if (starts[0] < 0) return RAPT_ERR_TABLE;
    for (int64_t b = 0; b < p->problem.batch; b++)
        if (starts[b] > starts[b + 1] || (int64_t)starts[b + 1] - starts[b] > table_pages(p)) return RAPT_ERR_TABLE;
    return RAPT_OK;
}

static bool within(rapt_range a, rapt_range b) {
    return a.first >= b.first && a.bytes <= b.bytes && a.first - b.first <= b.bytes - a.bytes;
}

/* Checks everything but what belongs to single batch entries. own: in which q, k, v and o may lie, and nothing else. */
static rapt_status check_args(const full_plan *p, const rapt_args *args, int64_t nth, rapt_range own) {
    const rapt_problem *problem = &p->problem;
    const tensor_bytes *b = &p->bytes;
    bool merged = !problem->unmerged, paged = problem->page_size > 0;
    ranges in, out;
    in.n = out.n = 0;
    rapt_status status = add_range(&in, args->q, b->q);
    if (status == RAPT_OK) status = add_range(&in, args->k, b->k);
    if (status == RAPT_OK) status = add_range(&in, args->v, b->v);
    int tensors = in.n;
    if (status == RAPT_OK) status = add_range(&in, args->mask, b->mask);
    if (status == RAPT_OK) status = add_range(&in, args->map, b->map);
    if (status == RAPT_OK) status = add_range(&in, args->bias, b->bias);
    if (status == RAPT_OK && problem->alibi) status = add_range(&in, args->slopes, b->slopes);
    if (status == RAPT_OK && merged) status = add_range(&in, args->sinks, b->sinks);
    if (status == RAPT_OK) status = add_range(&in, args->k_scales, b->k_scales);
    if (status == RAPT_OK) status = add_range(&in, args->v_scales, b->v_scales);
    if (status == RAPT_OK) status = add_range(&in, args->kv_lengths, int32s(p, args->kv_lengths, 0));
    if (status == RAPT_OK) status = add_range(&in, args->prefixes, int32s(p, args->prefixes, 0));
    if (status == RAPT_OK) status = add_range(&in, args->ring_starts, int32s(p, args->ring_starts, 0));
    if (status == RAPT_OK && paged) status = add_range(&in, args->table_starts, int32s(p, args->table_starts, 1));
    if (status == RAPT_OK && paged && args->table_starts) status = add_range(&in, args->last_page, int32s(p, args->last_page, 0));
    if (status == RAPT_OK && paged) status = check_table_starts(p, args);
    if (status == RAPT_OK && paged) status = add_range(&in, args->table, table_bytes(p, args));
    if (status == RAPT_OK && merged) status = add_range(&out, args->o, b->o);
    if (status == RAPT_OK && merged) status = add_range(&out, args->lse, b->lse);
    if (status == RAPT_OK && !merged) status = add_range(&out, args->states, b->states);
    if (status != RAPT_OK) return status;
    uint64_t workspace = p->shared_bytes + (uint64_t)nth * p->thread_bytes;
    if (workspace) {
        if (!args->workspace || args->workspace_bytes < workspace) return RAPT_ERR_WORKSPACE;
        if ((uintptr_t)args->workspace % RAPT_WORKSPACE_ALIGNMENT) return RAPT_ERR_ALIGNMENT;
        out.at[out.n++] = (rapt_range){(uintptr_t)args->workspace, workspace};
    }
    for (int j = 0; j < in.n; j++)
        if (rapt_ranges_meet(own, in.at[j]) && !(j < tensors && within(in.at[j], own))) return RAPT_ERR_OVERLAP;
    for (int i = 0; i < out.n; i++) {
        if (rapt_ranges_meet(own, out.at[i]) && !within(out.at[i], own)) return RAPT_ERR_OVERLAP;
        for (int j = 0; j < in.n; j++)
            if (rapt_ranges_meet(out.at[i], in.at[j])) return RAPT_ERR_OVERLAP;
        for (int j = 0; j < i; j++)
            if (rapt_ranges_meet(out.at[i], out.at[j])) return RAPT_ERR_OVERLAP;
    }
    return RAPT_OK;
}

/* ---- Batch entries ------------------------------------------------------------------------------------------------------- */

/* Keys of an entry, from position 0 on. */
static int64_t key_length(const full_plan *p, const rapt_args *args, int64_t entry) {
    if (args->kv_lengths) return args->kv_lengths[entry];
    if (p->problem.page_size && args->table_starts && args->last_page) {
        int64_t pages = (int64_t)args->table_starts[entry + 1] - args->table_starts[entry];
        return p->problem.kv_first + (pages ? (pages - 1) * p->problem.page_size + args->last_page[entry] : 0);
    }
    return p->k_starts ? entry_keys(p, entry) : p->kv_total;
}

/* The page table of an entry's first head and token. */
static const char *table_of(const full_plan *p, const rapt_args *args, int64_t entry) {
    return (const char *)args->table +
           (args->table_starts ? (int64_t)sizeof(int32_t) * args->table_starts[entry] : entry * p->problem.table.batch_stride);
}

static rapt_status check_table(const full_plan *p, const rapt_args *args, int64_t entry, int64_t keys, int64_t ring_start) {
    const rapt_problem *problem = &p->problem;
    int64_t end =
        ring_start + keys < problem->kv_len ? ring_start + keys : problem->kv_len; /* slots that are used: to its end, */
    int64_t wrapped = ring_start + keys - end;                                     /* and from 0 on */
    int64_t pages = (end + problem->page_size - 1) / problem->page_size;
    if (keys == 0 || entry_queries(p, entry) == 0) return RAPT_OK;
    if (args->table_starts && pages > (int64_t)args->table_starts[entry + 1] - args->table_starts[entry]) return RAPT_ERR_TABLE;
    if (p->trust_table) return RAPT_OK;
    int64_t heads = problem->table.head_stride ? problem->kv_heads : 1;
    int64_t tokens = problem->table.token_stride ? entry_queries(p, entry) : 1;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < tokens; i++) {
            const char *table = table_of(p, args, entry) + h * problem->table.head_stride + i * problem->table.token_stride;
            for (int64_t n = 0; n < pages; n++) {
                int32_t page;
                memcpy(&page, table + n * (int64_t)sizeof page, sizeof page);
                bool used = (n + 1) * problem->page_size > ring_start || n * problem->page_size < wrapped;
                if (used && (page < 0 || page >= p->pages)) return RAPT_ERR_TABLE;
            }
        }
    return RAPT_OK;
}

static rapt_status check_entry(const full_plan *p, const rapt_args *args, int64_t entry) {
    const rapt_problem *problem = &p->problem;
    int64_t stored = entry_keys(p, entry), most = p->k_starts ? stored : p->kv_total;
    if (problem->page_size && args->table_starts && args->last_page && !args->kv_lengths &&
        args->table_starts[entry + 1] > args->table_starts[entry] &&
        (args->last_page[entry] < 1 || args->last_page[entry] > problem->page_size))
        return RAPT_ERR_TABLE;
    int64_t length = key_length(p, args, entry);
    if (length < 0 || length > most) return args->kv_lengths ? RAPT_ERR_KV_LENGTH : RAPT_ERR_TABLE;
    int64_t ring_start = args->ring_starts ? args->ring_starts[entry] : 0;
    if (ring_start < 0 || (ring_start > 0 && ring_start >= stored)) return RAPT_ERR_TABLE;
    int64_t keys = length - problem->kv_first < stored ? length - problem->kv_first : stored;
    return problem->page_size ? check_table(p, args, entry, keys > 0 ? keys : 0, ring_start) : RAPT_OK;
}

/* Is there anything in args that belongs to single entries? */
static bool has_entries(const full_plan *p, const rapt_args *args) {
    return args->kv_lengths || args->ring_starts || p->problem.page_size;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

/* A call in progress: everything checked. */
typedef struct call {
    const full_plan *plan;
    rapt_args args;
} call;

static rapt_status read_call(call *c, const rapt_plan *opaque, const rapt_args *args, int64_t nth, rapt_range own) {
    if (!opaque) return RAPT_ERR_NULL;
    c->plan = plan_of(opaque);
    if (!c->plan) return RAPT_ERR_PLAN;
    rapt_status status = rapt_read_struct(&c->args, sizeof c->args, args);
    if (status != RAPT_OK) return status;
    size_t bytes;
    status = rapt_workspace_size(opaque, nth, &bytes); /* the range of nth, and overflow */
    return status == RAPT_OK ? check_args(c->plan, &c->args, nth, own) : status;
}

/* The same for calls that run all tasks. */
static rapt_status start_call_within(call *c, const rapt_plan *opaque, const rapt_args *args, int64_t nth, rapt_range own) {
    rapt_status status = read_call(c, opaque, args, nth, own);
    if (status != RAPT_OK || !has_entries(c->plan, &c->args)) return status;
    for (int64_t b = 0; status == RAPT_OK && b < c->plan->problem.batch; b++) status = check_entry(c->plan, &c->args, b);
    return status;
}

static rapt_status start_call(call *c, const rapt_plan *opaque, const rapt_args *args, int64_t nth) {
    return start_call_within(c, opaque, args, nth, (rapt_range){0});
}

rapt_status rapt_check_run(const rapt_plan *plan, const rapt_args *args, int64_t nth, rapt_range own) {
    call c;
    return start_call_within(&c, plan, args, nth, own);
}

static float *scratch_of(const call *c, int64_t slot) {
    return (float *)(void *)((char *)c->args.workspace + c->plan->shared_bytes + (size_t)slot * c->plan->thread_bytes);
}

/* An entry, and what comes before it: tasks, and bytes of states in the shared workspace. */
typedef struct place {
    int64_t entry, first_task;
    size_t first_state;
    entry_cut cut;
} place;

static place first_place(const full_plan *p) {
    place at = {.cut = p->cut};
    if (ragged(p) && p->problem.batch > 0) at.cut = rapt_cut_entry(p, entry_queries(p, 0), entry_keys(p, 0));
    return at;
}

static void next_place(const full_plan *p, place *at) {
    at->first_task += at->cut.tasks;
    at->first_state += at->cut.state_bytes;
    at->entry++;
    if (at->entry < p->problem.batch) at->cut = rapt_cut_entry(p, entry_queries(p, at->entry), entry_keys(p, at->entry));
}

/* Moves on to the entry of a task, or to an entry; a ragged batch is gone through in order, so tasks best are, too. */
static void find_place(const full_plan *p, place *at, int phase, int64_t task) {
    int64_t entry = phase == 0 ? 0 : task / p->problem.kv_heads;
    if (!ragged(p)) {
        at->entry = phase == 0 ? task / at->cut.tasks : entry;
        at->first_task = at->entry * at->cut.tasks;
        at->first_state = (size_t)at->entry * at->cut.state_bytes;
        return;
    }
    if (phase == 0 ? task < at->first_task : entry < at->entry) *at = first_place(p);
    while (phase == 0 ? task >= at->first_task + at->cut.tasks : at->entry < entry) next_place(p, at);
}

/* Of a tensor of queries, the entry's first token; of one of keys, its first page or token. */
static int64_t query_offset(const full_plan *p, const rapt_layout *layout, int64_t entry) {
    return p->q_starts ? p->q_starts[entry] * layout->token_stride : entry * layout->batch_stride;
}
static int64_t key_offset(const full_plan *p, int64_t batch_stride, int64_t token_stride, int64_t entry) {
    if (p->problem.page_size) return 0;
    return p->k_starts ? p->k_starts[entry] * token_stride : entry * batch_stride;
}

static const char *offset_by(const void *from, int64_t bytes) { return from ? (const char *)from + bytes : NULL; }

/* Factors of K or V of an entry and head: those of tokens lie as the tokens do. */
static const char *scales_of(const full_plan *p, const float *scales, const rapt_scales *s, int64_t entry, int64_t kv_head) {
    if (!s->present) return NULL;
    int64_t at = s->token_stride ? key_offset(p, s->batch_stride, s->token_stride, entry) : entry * s->batch_stride;
    return (const char *)scales + at + kv_head * s->head_stride;
}

/* The channel of K at which V begins, if V is a part of K's memory; -1 if not. */
static int v_in_k(const full_plan *p, const char *k, const char *v) {
    const rapt_layout *kl = &p->problem.k, *vl = &p->problem.v;
    if (kl->type != vl->type || kl->token_stride != vl->token_stride || kl->head_stride != vl->head_stride ||
        kl->batch_stride != vl->batch_stride || (uintptr_t)v < (uintptr_t)k)
        return -1;
    uintptr_t from = (uintptr_t)v - (uintptr_t)k;
    int channels = p->problem.d_k - p->problem.d_v;
    for (int c = 0; c <= channels; c++)
        if (rapt_row_bytes(kl->type, c) == (int64_t)from) return c;
    return -1;
}

static void attend_task(const call *c, place *at, int64_t task, int64_t slot) {
    const full_plan *p = c->plan;
    const rapt_args *args = &c->args;
    const rapt_problem *problem = &p->problem;
    find_place(p, at, 0, task);
    const entry_cut *cut = &at->cut;
    int64_t entry = at->entry, own = task - at->first_task;
    int64_t part = own % cut->parts, pass = cut->passes - 1 - own / cut->parts % cut->passes; /* causal: the longest pass first */
    int64_t kv_head = own / cut->parts / cut->passes * cut->joined_heads, head = kv_head * problem->group;
    int64_t row0 = pass * cut->pass_rows, token0 = row0 / problem->group, chunk0 = part * cut->part_chunks;
    const char *k = (const char *)args->k + key_offset(p, problem->k.batch_stride, problem->k.token_stride, entry);
    const char *v = (const char *)args->v + key_offset(p, problem->v.batch_stride, problem->v.token_stride, entry);
    rapt_task t = {
        .problem = problem,
        .q = (const char *)args->q + query_offset(p, &problem->q, entry) + head * problem->q.head_stride,
        .k = k + kv_head * problem->k.head_stride,
        .v = v + kv_head * problem->v.head_stride,
        .mask = offset_by(args->mask, entry * problem->mask.batch_stride + head * problem->mask.head_stride),
        .map = offset_by(args->map, entry * problem->map.batch_stride + head * problem->map.head_stride),
        .bias = offset_by(args->bias, entry * problem->bias.batch_stride + head * problem->bias.head_stride),
        .slopes = offset_by(args->slopes, entry * problem->slopes.batch_stride + head * problem->slopes.head_stride),
        .k_scales = scales_of(p, args->k_scales, &problem->k_scales, entry, kv_head),
        .v_scales = scales_of(p, args->v_scales, &problem->v_scales, entry, kv_head),
        .logits_arg = args->logits_arg,
        .batch = entry,
        .head0 = head,
        .kv_heads = (int)cut->joined_heads,
        .keys_in_lanes = cut->keys_in_lanes,
        .v_in_k = v_in_k(p, (const char *)args->k, (const char *)args->v),
        .q_len = cut->q_len,
        .kv_length = key_length(p, args, entry),
        .prefix = args->prefixes ? args->prefixes[entry] : p->prefix,
        .ring_start = args->ring_starts ? args->ring_starts[entry] : 0,
        .ring_size = entry_keys(p, entry),
        .row0 = row0,
        .rows = cut->rows - row0 < cut->pass_rows ? cut->rows - row0 : cut->pass_rows,
        .period = cut->period,
        .chunk0 = problem->kv_first / RAPT_CHUNK + chunk0,
        .chunks = cut->chunks - chunk0 < cut->part_chunks ? cut->chunks - chunk0 : cut->part_chunks,
        .scratch = scratch_of(c, slot),
    };
    if (problem->page_size)
        t.table = table_of(p, args, entry) + kv_head * problem->table.head_stride + token0 * problem->table.token_stride;
    if (problem->unmerged) {
        t.states = (char *)args->states + query_offset(p, &problem->states, entry) + head * problem->states.head_stride +
                   chunk0 * problem->state_stride;
        t.state_token = (size_t)problem->states.token_stride;
        t.state_head = (size_t)problem->states.head_stride;
        t.state_chunk = (size_t)problem->state_stride;
    } else {
        t.o = (char *)args->o + query_offset(p, &problem->o, entry) + head * problem->o.head_stride;
        if (p->bytes.lse) t.lse = (char *)args->lse + query_offset(p, &problem->lse, entry) + head * problem->lse.head_stride;
        if (problem->sinks.type)
            t.sinks = (const char *)args->sinks + entry * problem->sinks.batch_stride + head * problem->sinks.head_stride;
    }
    if (cut->state_bytes) { /* [chunk, token, head] */
        t.state_head = RAPT_STATE_FLOATS(problem->d_v) * sizeof(float);
        t.state_token = t.state_head * (size_t)problem->heads;
        t.state_chunk = t.state_token * (size_t)cut->q_len;
        t.states = (char *)args->workspace + at->first_state + (size_t)chunk0 * t.state_chunk + (size_t)head * t.state_head;
    }
    p->kernel->attend(&t);
}

/* Where a merged row goes, and what joins it. */
static rapt_row_end row_end(const full_plan *p, const rapt_args *args, int64_t entry, int64_t head, int64_t token) {
    const rapt_problem *problem = &p->problem;
    const rapt_layout *o = &problem->o, *lse = &problem->lse, *sinks = &problem->sinks;
    rapt_row_end end = {.o = (char *)args->o + query_offset(p, o, entry) + head * o->head_stride + token * o->token_stride};
    if (p->bytes.lse)
        end.lse = (char *)args->lse + query_offset(p, lse, entry) + head * lse->head_stride + token * lse->token_stride;
    if (sinks->type) end.sink = (const char *)args->sinks + entry * sinks->batch_stride + head * sinks->head_stride;
    if (problem->v_scales.present && !problem->v_scales.token_stride)
        end.v_scales = scales_of(p, args->v_scales, &problem->v_scales, entry, head / problem->group);
    return end;
}

/* The state that changes nothing. */
static void start_state(float *state, int32_t d_v) {
    memset(state, 0, RAPT_STATE_FLOATS(d_v) * sizeof *state);
    state[RAPT_STATE_M] = -INFINITY;
}

/* Folds the states of one row after so many chunks, stride bytes apart. */
static void fold_states(const full_plan *p, float *state, const char *next, size_t stride, int64_t chunks) {
    size_t bytes = RAPT_STATE_FLOATS(p->problem.d_v) * sizeof(float);
    for (; chunks > 0; chunks--, next += stride) {
        float copy[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)];
        memcpy(copy, next, bytes);
        p->kernel->fold(&p->problem, state, copy);
    }
}

static void merge_task(const call *c, place *at, int64_t task) {
    const full_plan *p = c->plan;
    const rapt_problem *problem = &p->problem;
    find_place(p, at, 1, task);
    if (at->cut.parts == 1) return;
    size_t one = RAPT_STATE_FLOATS(problem->d_v) * sizeof(float), stride = one * (size_t)(problem->heads * at->cut.q_len);
    for (int64_t row = 0; row < at->cut.rows; row++) {
        int64_t token = row / problem->group, head = task % problem->kv_heads * problem->group + row % problem->group;
        float state[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)];
        rapt_row_end end = row_end(p, &c->args, at->entry, head, token);
        start_state(state, problem->d_v);
        fold_states(p, state, (const char *)c->args.workspace + at->first_state + (size_t)(token * problem->heads + head) * one,
                    stride, at->cut.chunks);
        p->kernel->finish(problem, &end, state);
    }
}

static void run_task(const call *c, place *at, int phase, int64_t task, int64_t slot) {
    if (phase == 0) attend_task(c, at, task, slot);
    else merge_task(c, at, task);
}

/* Interleaved, since neighbouring tasks are of similar length. */
static void run_phase(const call *c, int phase, int64_t ith, int64_t nth) {
    place at = first_place(c->plan);
    for (int64_t task = ith; task < c->plan->tasks[phase]; task += nth) run_task(c, &at, phase, task, ith);
}

static int phases(const call *c) { return c->plan->phases; }

rapt_status rapt_run(const rapt_plan *plan, const rapt_args *args) {
    call c;
    rapt_status status = start_call(&c, plan, args, 1);
    if (status != RAPT_OK) return status;
    for (int phase = 0; phase < phases(&c); phase++) run_phase(&c, phase, 0, 1);
    return RAPT_OK;
}

typedef struct parallel_call {
    const call *call;
    int phase;
    atomic_llong next;
} parallel_call;

static void run_slot(void *arg, int64_t slot) {
    parallel_call *p = arg;
    place at = first_place(p->call->plan);
    int64_t task;
    while ((task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->call->plan->tasks[p->phase])
        run_task(p->call, &at, p->phase, task, slot);
}

rapt_status rapt_run_parallel(const rapt_plan *plan, const rapt_args *args, int64_t nth, rapt_parallel_for parallel_for,
                              void *pool) {
    call c;
    rapt_status status = parallel_for ? start_call(&c, plan, args, nth) : RAPT_ERR_NULL;
    if (status != RAPT_OK) return status;
    for (int phase = 0; phase < phases(&c); phase++) {
        parallel_call p = {.call = &c, .phase = phase};
        atomic_init(&p.next, 0);
        parallel_for(pool, nth, run_slot, &p);
    }
    return RAPT_OK;
}

rapt_status rapt_run_share(const rapt_plan *plan, const rapt_args *args, int64_t ith, int64_t nth, rapt_barrier barrier,
                           void *barrier_arg) {
    call c;
    rapt_status status = start_call(&c, plan, args, nth);
    if (status != RAPT_OK) return status;
    if (ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    if (phases(&c) > 1 && !barrier) return RAPT_ERR_NULL;
    for (int phase = 0; phase < phases(&c); phase++) {
        if (phase > 0) barrier(barrier_arg);
        run_phase(&c, phase, ith, nth);
    }
    return RAPT_OK;
}

rapt_status rapt_run_phase(const rapt_plan *plan, const rapt_args *args, int phase, int64_t ith, int64_t nth) {
    call c;
    rapt_status status = start_call(&c, plan, args, nth);
    if (status != RAPT_OK) return status;
    if (phase < 0 || phase >= phases(&c) || ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    run_phase(&c, phase, ith, nth);
    return RAPT_OK;
}

rapt_status rapt_run_task(const rapt_plan *plan, const rapt_args *args, int phase, int64_t task, int64_t slot) {
    call c;
    if (slot < 0 || slot == INT64_MAX) return RAPT_ERR_RANGE;
    rapt_status status = read_call(&c, plan, args, slot + 1, (rapt_range){0});
    if (status != RAPT_OK) return status;
    if (phase < 0 || phase >= phases(&c) || task < 0 || task >= c.plan->tasks[phase]) return RAPT_ERR_RANGE;
    place at = first_place(c.plan);
    find_place(c.plan, &at, phase, task);
    if (has_entries(c.plan, &c.args)) status = check_entry(c.plan, &c.args, at.entry);
    if (status == RAPT_OK) run_task(&c, &at, phase, task, slot);
    return status;
}

/* ---- Merging ------------------------------------------------------------------------------------------------------------- */

rapt_status rapt_merge_states(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n, int64_t ith,
                              int64_t nth) {
    const full_plan *p = plan_of(plan);
    rapt_args a;
    if (!plan) return RAPT_ERR_NULL;
    if (!p) return RAPT_ERR_PLAN;
    rapt_status status = rapt_read_struct(&a, sizeof a, args);
    if (status != RAPT_OK) return status;
    if (n < 0 || nth < 1 || ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    if (n > 0 && !sources) return RAPT_ERR_NULL;
    const rapt_problem *problem = &p->problem;
    const tensor_bytes *b = &p->bytes;
    bool by_channel = problem->v_scales.present && !problem->v_scales.token_stride;
    ranges in, out;
    in.n = out.n = 0;
    status = add_range(&out, a.o, b->o);
    if (status == RAPT_OK) status = add_range(&out, a.lse, b->lse);
    if (status == RAPT_OK) status = add_range(&in, a.sinks, b->sinks);
    if (status == RAPT_OK && by_channel) status = add_range(&in, a.v_scales, b->v_scales);
    if (status == RAPT_OK && out.n == 2 && rapt_ranges_meet(out.at[0], out.at[1])) status = RAPT_ERR_OVERLAP;
    for (int64_t i = -1; status == RAPT_OK && i < n; i++) {
        if (i >= 0) {
            in.n = 0;
            uint64_t bytes;
            status = rapt_measure_states(p, &sources[i], &bytes);
            if (status == RAPT_OK) status = add_range(&in, sources[i].at, bytes);
        }
        for (int j = 0; j < in.n * out.n && status == RAPT_OK; j++)
            if (rapt_ranges_meet(in.at[j / out.n], out.at[j % out.n])) status = RAPT_ERR_OVERLAP;
    }
    if (status != RAPT_OK) return status;

    int64_t row = 0;
    for (int64_t entry = 0; entry < problem->batch; entry++)
        for (int64_t token = 0; token < entry_queries(p, entry); token++)
            for (int64_t head = 0; head < problem->heads; head++, row++) {
                if (row % nth != ith) continue;
                float state[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)];
                rapt_row_end end = row_end(p, &a, entry, head, token);
                start_state(state, problem->d_v);
                for (int64_t i = 0; i < n; i++) {
                    const rapt_states *s = &sources[i];
                    int64_t from = p->q_starts ? (p->q_starts[entry] + token) * s->token_stride
                                               : entry * s->batch_stride + token * s->token_stride;
                    fold_states(p, state, (const char *)s->at + from + head * s->head_stride, (size_t)s->state_stride, s->chunks);
                }
                p->kernel->finish(problem, &end, state);
            }
    return RAPT_OK;
}

rapt_status rapt_merge(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse, float *o_out,
                       float *lse_out) {
    const rapt_kernel *kernel;
    if (n < 0 || rows < 0 || d_v < 1 || d_v > RAPT_MAX_HEAD_DIM || rows > PTRDIFF_MAX / (int64_t)sizeof(float) / d_v)
        return RAPT_ERR_SHAPE;
    if (n > 0 && (!o || !lse)) return RAPT_ERR_NULL;
    rapt_range out[] = {{(uintptr_t)o_out, (uint64_t)(rows * d_v) * sizeof(float)},
                        {(uintptr_t)lse_out, (uint64_t)rows * sizeof(float)}};
    if (!o_out) out[0].bytes = 0;
    if (!lse_out) out[1].bytes = 0;
    if (rapt_ranges_meet(out[0], out[1])) return RAPT_ERR_OVERLAP;
    for (int64_t i = 0; i < n && rows > 0; i++) {
        if (!o[i] || !lse[i]) return RAPT_ERR_NULL;
        const rapt_range in[] = {{(uintptr_t)o[i], (uint64_t)(rows * d_v) * sizeof(float)},
                                 {(uintptr_t)lse[i], (uint64_t)rows * sizeof(float)}};
        for (int j = 0; j < 4; j++) /* in place row by row, but not across */
            if (rapt_ranges_meet(in[j / 2], out[j % 2]) && (j / 2 != j % 2 || in[j / 2].first != out[j % 2].first))
                return RAPT_ERR_OVERLAP;
    }
    rapt_status status = rapt_select(NULL, &kernel);
    if (status != RAPT_OK) return status;
    const float log2_e = 1.4426950408889634f;
    rapt_problem problem = {
        .d_v = (int32_t)d_v, .o = {.type = RAPT_F32}, .exponent = log2_e, .natural = 1.0f, .least = -127.0f / log2_e};
    for (int64_t row = 0; row < rows; row++) {
        float state[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)], next[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)], o_row[RAPT_MAX_HEAD_DIM];
        start_state(state, problem.d_v);
        for (int64_t i = 0; i < n; i++) {
            if (lse[i][row] == -INFINITY) continue;
            start_state(next, problem.d_v);
            next[RAPT_STATE_M] = lse[i][row];
            next[RAPT_STATE_L] = 1.0f;
            memcpy(next + RAPT_STATE_O, o[i] + row * d_v, (size_t)d_v * sizeof *next);
            kernel->fold(&problem, state, next);
        }
        rapt_row_end end = {.o = (char *)(o_out ? o_out + row * d_v : o_row), .lse = (char *)(lse_out ? lse_out + row : NULL)};
        kernel->finish(&problem, &end, state);
    }
    return RAPT_OK;
}
