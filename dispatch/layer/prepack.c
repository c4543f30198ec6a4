/* SPDX-License-Identifier: Apache-2.0 */
/* Prepacked weights: a head that says for which plan they were packed, then the rows as the plan's kernel lays them out. */
#include "layer/prepack.h"

#include <string.h>

#include "core/float_modes.h"
#include "attention/path.h"
#include "core/structs.h"
#include "types/types.h"
#include "core/work.h"

/* The head. Only plans that would write the same head can use the weights. */
typedef struct prepacked_head {
    uint64_t made; /* PACKED_MADE, or these are not prepacked weights */
    char kernel[24];
    int32_t in, out, type, arith;
} prepacked_head;

#define PACKED_MADE UINT64_C(0x346b6361700000) /* changes with the layout of the head or of the weights */

enum { HEAD_BYTES = RAPT_WORKSPACE_ALIGNMENT }; /* the weights begin here, so they are aligned */
_Static_assert(sizeof(prepacked_head) <= HEAD_BYTES, "the head fits in front of the weights");

static const rapt_linear_prepack_args default_prepack_args = {0};

void rapt_linear_prepack_args_init_sized(rapt_linear_prepack_args *args, size_t size) {
    rapt_init_struct(args, size, &default_prepack_args, sizeof default_prepack_args);
}

/* Returns what follows the type of packed weights in messages. */
static const char *of_arith(int32_t arith) {
    return arith == RAPT_BF16_DOT ? " in bf16 arithmetic" : arith == RAPT_INT8_DOT ? " in integer arithmetic" : "";
}

/* Returns the head of weights of this type that are packed for the plan. */
static prepacked_head head_of(const full_linear *p, rapt_type type) {
    prepacked_head h = {.made = PACKED_MADE,
                        .in = (int32_t)p->problem.in,
                        .out = (int32_t)p->problem.out,
                        .type = (int32_t)type,
                        .arith = (int32_t)p->problem.arith};
    rapt_format(h.kernel, sizeof h.kernel, "%s", p->kernel->name);
    return h;
}

const float *rapt_prepacked_weights(const void *packed) {
    return packed ? (const float *)(const void *)((const char *)packed + HEAD_BYTES) : NULL;
}

/* Returns the bytes that the prepacked weights of a problem take on the plan's kernel, as rapt_prepacked_bytes does. */
static size_t packed_bytes(const full_linear *p, const rapt_linear_problem *problem) {
    const uint64_t all = HEAD_BYTES + rapt_arithmetic_of(p->kernel, problem->arith)->packed_floats(problem) * sizeof(float);
    return all < SIZE_MAX ? (size_t)all : SIZE_MAX;
}

size_t rapt_prepacked_bytes(const full_linear *p) { return packed_bytes(p, &p->problem); }

rapt_status rapt_linear_prepacked_size(const rapt_linear_plan *opaque, size_t *bytes) {
    rapt_report r = rapt_report_of("rapt_linear_prepacked_size");
    rapt_status status;
    const full_linear *p = rapt_read_linear_plan(&r, opaque, &status);
    if (status == RAPT_OK && !bytes) return rapt_refuse_null(&r, "bytes", "there is nowhere to write it");
    if (status == RAPT_OK) *bytes = rapt_prepacked_bytes(p);
    return status;
}

void rapt_reads_prepacked(rapt_memory *m, const full_linear *p, const char *name, const void *packed, rapt_type type) {
    if (!packed) return;
    /* A plan without a gate may have packed them, in fewer bytes than a gate of another type takes. */
    rapt_linear_problem alone = p->problem;
    alone.weight.type = type, alone.gate.type = RAPT_NONE;
    rapt_reads(m, name, packed, packed_bytes(p, &alone));
    rapt_check_alignment(m, name, packed);
}

rapt_status rapt_check_prepacked(rapt_report *r, const full_linear *p, const char *name, const void *packed, rapt_type type) {
    if (!packed) return RAPT_OK;
    const prepacked_head wanted = head_of(p, type);
    prepacked_head head;
    memcpy(&head, packed, sizeof head);
    if (head.made != PACKED_MADE || head.kernel[sizeof head.kernel - 1])
        return rapt_refuse(r, RAPT_ERR_PREPACKED, "%s = %p: no prepacked weights are there", name, packed);
    if (strcmp(head.kernel, wanted.kernel) != 0)
        return rapt_refuse(r, RAPT_ERR_PREPACKED, "%s: packed for the kernel %s, and the plan has %s", name, head.kernel,
                           wanted.kernel);
    if (head.in != wanted.in || head.out != wanted.out)
        return rapt_refuse(r, RAPT_ERR_PREPACKED, "%s: packed of %d to %d channels, and the plan has %d to %d", name, head.in,
                           head.out, wanted.in, wanted.out);
    if (head.type != wanted.type || head.arith != wanted.arith)
        return rapt_refuse(r, RAPT_ERR_PREPACKED, "%s: packed of %s%s, and the plan has %s%s", name,
                           rapt_type_name((rapt_type)head.type), of_arith(head.arith), rapt_type_name(type),
                           of_arith(wanted.arith));
    return RAPT_OK;
}

/* ---- Packing ------------------------------------------------------------------------------------------------------------- */

typedef struct prepack_call {
    const full_linear *plan;
    rapt_linear_prepack_args args;
} prepack_call;

/* Registers the memory to which the call writes packed weights. Errors: PREPACKED, those of rapt_writes, ALIGNMENT. */
static void writes_packed(rapt_memory *m, const char *name, const void *at, size_t given, size_t needed) {
    if (m->status == RAPT_OK && given < needed)
        m->status = rapt_refuse(m->report, RAPT_ERR_PREPACKED, "prepacked_bytes = %zu: %zu are needed", given, needed);
    rapt_writes(m, name, at, needed);
    rapt_check_alignment(m, name, at);
}

/* Reads the caller's struct into c, and checks all of the call. */
static rapt_status prepack_read_call(rapt_report *r, prepack_call *c, const rapt_linear_plan *opaque,
                                     const rapt_linear_prepack_args *args, int64_t nth) {
    rapt_linear_prepack_args *a = &c->args;
    rapt_status status;
    const full_linear *p = c->plan = rapt_read_linear_plan(r, opaque, &status);
    if (status == RAPT_OK) status = rapt_read_struct(r, "args", a, &default_prepack_args, sizeof *a, sizeof *a, args);
    if (status == RAPT_OK && nth < 1) status = rapt_refuse_number(r, RAPT_ERR_RANGE, "nth", nth, "there is no thread");
    if (status != RAPT_OK) return status;
    const size_t bytes = rapt_prepacked_bytes(p);
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_reads(&m, "plan", p, sizeof *p);
    rapt_reads(&m, "weight", a->weight, p->weight_bytes);
    writes_packed(&m, "prepacked", a->prepacked, a->prepacked_bytes, bytes);
    if (p->problem.gate.type) {
        rapt_reads(&m, "gate", a->gate, p->gate_bytes);
        writes_packed(&m, "gate_prepacked", a->gate_prepacked, a->prepacked_bytes, bytes);
    } else {
        rapt_unused(&m, "gate", a->gate, "the plan has no layout for it");
        rapt_unused(&m, "gate_prepacked", a->gate_prepacked, "the plan has no gate");
    }
    return rapt_check_memory(&m);
}

rapt_status rapt_linear_prepack_args_explain(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args, int64_t nth,
                                             char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_linear_prepack_run", text, bytes);
    prepack_call c;
    const rapt_status status = prepack_read_call(&r, &c, plan, args, nth);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

/* Packs the rows of a task, those of the gate or of the weights. first: whether to write the head, too. */
static void pack(const full_linear *p, bool gate, const rapt_linear_task *t, void *packed, bool first) {
    if (first) {
        const prepacked_head head = head_of(p, gate ? p->problem.gate.type : p->problem.weight.type);
        memset(packed, 0, HEAD_BYTES);
        memcpy(packed, &head, sizeof head);
    }
    if (t->outs > 0)
        rapt_arithmetic_of(p->kernel, p->problem.arith)->pack_weights(t, gate, (float *)(void *)((char *)packed + HEAD_BYTES));
}

static void prepack_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    (void)phase, (void)next;
    const prepack_call *c = call;
    const full_linear *p = c->plan;
    rapt_linear_task t = {.problem = &p->problem, .weight.rows = c->args.weight, .gate.rows = c->args.gate};
    rapt_cut_range(p->problem.out, RAPT_PARTIAL_SUMS, ith, nth, &t.out0, &t.outs);
    pack(p, false, &t, c->args.prepacked, ith == 0);
    if (p->problem.gate.type) pack(p, true, &t, c->args.gate_prepacked, ith == 0);
}

static rapt_status prepack_run(const char *name, const rapt_linear_plan *plan, const rapt_linear_prepack_args *args,
                               rapt_way way) {
    rapt_report r = rapt_report_of(name);
    prepack_call c;
    rapt_status status = prepack_read_call(&r, &c, plan, args, way.nth);
    const rapt_work w = {.call = &c, .phases = 1, .share = prepack_share};
    return status == RAPT_OK ? rapt_work_run(&r, &w, &way) : status;
}

rapt_status rapt_linear_prepack_run(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args) {
    return prepack_run("rapt_linear_prepack_run", plan, args, rapt_alone());
}
rapt_status rapt_linear_prepack_run_parallel(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args, int64_t nth,
                                             rapt_parallel_for parallel_for, void *pool) {
    return prepack_run("rapt_linear_prepack_run_parallel", plan, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_linear_prepack_run_share(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args, int64_t ith,
                                          int64_t nth) {
    return prepack_run("rapt_linear_prepack_run_share", plan, args, rapt_share(ith, nth, NULL, NULL));
}
