/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan: validation of the pointers, and the ways to hand out its tasks. */
#include <stdatomic.h>
#include <string.h>

#include "plan.h"

void rapt_args_init_sized(rapt_args *args, size_t size) {
    if (!args || size < sizeof *args) return;
    memset(args, 0, size);
    args->size = size;
}

typedef struct range {
    uintptr_t first;
    uint64_t bytes;
} range;

static bool overlap(range a, range b) {
    return a.bytes && b.bytes && (a.first < b.first ? b.first - a.first < a.bytes : a.first - b.first < b.bytes);
}

/* Checks everything but the key lengths. */
static rapt_status check_args(const full_plan *p, const rapt_args *args, int64_t nth) {
    range in[] = {{(uintptr_t)args->q, p->q_bytes},
                  {(uintptr_t)args->k, p->k_bytes},
                  {(uintptr_t)args->v, p->v_bytes},
                  {(uintptr_t)args->kv_lengths, args->kv_lengths ? (uint64_t)p->problem.batch * sizeof *args->kv_lengths : 0}};
    range out[] = {{(uintptr_t)args->o, p->o_bytes},
                   {(uintptr_t)args->lse, p->lse_bytes},
                   {(uintptr_t)args->workspace, p->shared_bytes + (uint64_t)nth * p->thread_bytes}};
    enum { INS = sizeof in / sizeof *in, OUTS = sizeof out / sizeof *out, TENSORS_OUT = OUTS - 1 };
    for (int i = 0; i < INS; i++) {
        if (in[i].bytes && !in[i].first) return RAPT_ERR_NULL;
        if (in[i].bytes > UINTPTR_MAX - in[i].first) return RAPT_ERR_STRIDE;
    }
    for (int i = 0; i < TENSORS_OUT; i++) {
        if (out[i].bytes && !out[i].first) return RAPT_ERR_NULL;
        if (out[i].bytes > UINTPTR_MAX - out[i].first) return RAPT_ERR_STRIDE;
    }
    if (out[TENSORS_OUT].bytes) {
        if (!args->workspace || args->workspace_bytes < out[TENSORS_OUT].bytes) return RAPT_ERR_WORKSPACE;
        if ((uintptr_t)args->workspace % RAPT_WORKSPACE_ALIGNMENT) return RAPT_ERR_ALIGNMENT;
    }
    for (int i = 0; i < OUTS; i++) {
        for (int j = 0; j < INS; j++)
            if (overlap(out[i], in[j])) return RAPT_ERR_OVERLAP;
        for (int j = 0; j < i; j++)
            if (overlap(out[i], out[j])) return RAPT_ERR_OVERLAP;
    }
    return RAPT_OK;
}

static int64_t kv_length(const full_plan *p, const rapt_args *args, int64_t batch) {
    return args->kv_lengths ? args->kv_lengths[batch] : p->problem.kv_len;
}

static rapt_status check_kv_length(const full_plan *p, const rapt_args *args, int64_t batch) {
    int64_t length = kv_length(p, args, batch);
    return length >= 0 && length <= p->problem.kv_len ? RAPT_OK : RAPT_ERR_KV_LENGTH;
}

/* A call in progress: everything checked. */
typedef struct call {
    const full_plan *plan;
    rapt_args args;
} call;

static rapt_status read_call(call *c, const rapt_plan *opaque, const rapt_args *args, int64_t nth) {
    if (!opaque) return RAPT_ERR_NULL;
    c->plan = plan_of(opaque);
    if (!c->plan) return RAPT_ERR_PLAN;
    rapt_status status = rapt_read_struct(&c->args, sizeof c->args, args);
    if (status != RAPT_OK) return status;
    size_t bytes;
    status = rapt_workspace_size(opaque, nth, &bytes); /* the range of nth, and overflow */
    return status == RAPT_OK ? check_args(c->plan, &c->args, nth) : status;
}

/* The same for calls that run all tasks. */
static rapt_status start_call(call *c, const rapt_plan *opaque, const rapt_args *args, int64_t nth) {
    rapt_status status = read_call(c, opaque, args, nth);
    for (int64_t b = 0; status == RAPT_OK && c->args.kv_lengths && b < c->plan->problem.batch; b++)
        status = check_kv_length(c->plan, &c->args, b);
    return status;
}

static float *scratch_of(const call *c, int64_t slot) {
    return (float *)(void *)((char *)c->args.workspace + c->plan->shared_bytes + (size_t)slot * c->plan->thread_bytes);
}

static char *lse_at(const call *c, int64_t offset) { return c->plan->lse_bytes ? (char *)c->args.lse + offset : NULL; }

static void attend_task(const call *c, int64_t task, int64_t slot) {
    const full_plan *p = c->plan;
    const rapt_problem *problem = &p->problem;
    int64_t rows = problem->q_len * problem->group;
    int64_t part = task % p->parts, pass = p->passes - 1 - task / p->parts % p->passes; /* causal: the longest pass first */
    int64_t unit = task / p->parts / p->passes * p->joined_heads;                       /* a batch entry and key/value head */
    int64_t batch = unit / problem->kv_heads, kv_head = unit % problem->kv_heads;
    int64_t head = kv_head * problem->group, row0 = pass * p->pass_rows, chunk0 = part * p->part_chunks;
    size_t state_floats = rapt_state_floats(problem->d_v);
    rapt_task t = {
        .problem = problem,
        .q = (const char *)c->args.q + batch * problem->q.batch_stride + head * problem->q.head_stride,
        .k = (const char *)c->args.k + batch * problem->k.batch_stride + kv_head * problem->k.head_stride,
        .v = (const char *)c->args.v + batch * problem->v.batch_stride + kv_head * problem->v.head_stride,
        .o = (char *)c->args.o + batch * problem->o.batch_stride + head * problem->o.head_stride,
        .lse = lse_at(c, batch * problem->lse.batch_stride + head * problem->lse.head_stride),
        .kv_heads = (int)p->joined_heads,
        .kv_length = kv_length(p, &c->args, batch),
        .row0 = row0,
        .rows = rows - row0 < p->pass_rows ? rows - row0 : p->pass_rows,
        .chunk0 = chunk0,
        .chunks = p->chunks - chunk0 < p->part_chunks ? p->chunks - chunk0 : p->part_chunks,
        .chunk_floats = (size_t)rows * state_floats,
        .head_floats = (size_t)(p->chunks * rows) * state_floats,
        .scratch = scratch_of(c, slot),
    };
    if (p->parts > 1) t.states = (float *)c->args.workspace + (size_t)((unit * p->chunks + chunk0) * rows + row0) * state_floats;
    p->kernel->attend(&t);
}

static void merge_task(const call *c, int64_t unit, int64_t slot) {
    const full_plan *p = c->plan;
    const rapt_problem *problem = &p->problem;
    int64_t rows = problem->q_len * problem->group, batch = unit / problem->kv_heads;
    size_t state_floats = rapt_state_floats(problem->d_v);
    for (int64_t row = 0; row < rows; row++) {
        int64_t token = row / problem->group, head = unit % problem->kv_heads * problem->group + row % problem->group, first, end;
        rapt_row_range(problem, token, kv_length(p, &c->args, batch), &first, &end);
        int64_t chunk0 = first / RAPT_CHUNK, chunk_end = (end + RAPT_CHUNK - 1) / RAPT_CHUNK;
        rapt_merge_task t = {
            .problem = problem,
            .states = (const float *)c->args.workspace + (size_t)((unit * p->chunks + chunk0) * rows + row) * state_floats,
            .chunk_floats = (size_t)rows * state_floats,
            .chunks = chunk_end - chunk0,
            .o = (char *)c->args.o + batch * problem->o.batch_stride + head * problem->o.head_stride +
                 token * problem->o.token_stride,
            .lse = lse_at(c, batch * problem->lse.batch_stride + head * problem->lse.head_stride +
                                 token * problem->lse.token_stride),
            .scratch = scratch_of(c, slot),
        };
        p->kernel->merge(&t);
    }
}

static void run_task(const call *c, int phase, int64_t task, int64_t slot) {
    if (phase == 0) attend_task(c, task, slot);
    else merge_task(c, task, slot);
}

/* Interleaved, since neighbouring tasks are of similar length. */
static void run_phase(const call *c, int phase, int64_t ith, int64_t nth) {
    for (int64_t task = ith; task < c->plan->tasks[phase]; task += nth) run_task(c, phase, task, ith);
}

static int phases(const call *c) { return c->plan->parts > 1 ? 2 : 1; }

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
    int64_t task;
    while ((task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->call->plan->tasks[p->phase])
        run_task(p->call, p->phase, task, slot);
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
    rapt_status status = read_call(&c, plan, args, slot + 1);
    if (status != RAPT_OK) return status;
    if (phase < 0 || phase >= phases(&c) || task < 0 || task >= c.plan->tasks[phase]) return RAPT_ERR_RANGE;
    const full_plan *p = c.plan;
    int64_t unit = phase == 0 ? task / p->parts / p->passes * p->joined_heads : task;
    status = check_kv_length(p, &c.args, unit / p->problem.kv_heads);
    if (status == RAPT_OK) run_task(&c, phase, task, slot);
    return status;
}
