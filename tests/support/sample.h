/* SPDX-License-Identifier: Apache-2.0 */
/* A few problems of attention, computed by whichever copy of the library its functions belong to: for tests of builds, and of
 * copies beside each other in a process. */
#ifndef RAPT_TESTS_SAMPLE_H
#define RAPT_TESTS_SAMPLE_H

#include "rapt.h"

/* Functions of rapt.h, by the names there without the prefix. */
typedef struct sample_calls {
    void (*desc_init_sized)(rapt_desc *desc, size_t size);
    void (*args_init_sized)(rapt_args *args, size_t size);
    rapt_status (*plan_init_sized)(void *plan, size_t bytes, const rapt_desc *desc);
    rapt_status (*run)(const rapt_plan *plan, const rapt_args *args);
} sample_calls;

enum { SAMPLE_QUERIES = 40, SAMPLE_KEYS = 1100, SAMPLE_D = 72, SAMPLE_HEADS = 2 };

/* The outputs of few and of many rows in each arithmetic, and their log-sum-exps. */
typedef struct sample {
    float o[3][2][SAMPLE_HEADS * SAMPLE_QUERIES * SAMPLE_D], lse[3][2][SAMPLE_HEADS * SAMPLE_QUERIES];
} sample;

/* By the kernel of that name. What is not computed is left as it is. */
static inline rapt_status sample_run(const sample_calls *library, const char *isa, sample *out) {
    static const rapt_arith ariths[3] = {RAPT_EXACT, RAPT_INT8_DOT, RAPT_BF16_DOT};
    static float q[SAMPLE_HEADS * SAMPLE_QUERIES * SAMPLE_D], k[SAMPLE_KEYS * SAMPLE_D], v[SAMPLE_KEYS * SAMPLE_D];
    static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 24];
    uint32_t random = 1;
    float *const arrays[3] = {q, k, v};
    const size_t counts[3] = {sizeof q / sizeof *q, sizeof k / sizeof *k, sizeof v / sizeof *v};
    for (int a = 0; a < 3; a++)
        for (size_t i = 0; i < counts[a]; i++) {
            random = random * UINT32_C(1664525) + UINT32_C(1013904223);
            arrays[a][i] = (float)((int32_t)(random >> 8) - (1 << 23)) * 0x1p-22f;
        }
    for (int a = 0; a < 3; a++)
        for (int many = 0; many < 2; many++) {
            rapt_desc desc;
            rapt_plan plan;
            rapt_args args;
            library->desc_init_sized(&desc, sizeof desc);
            library->args_init_sized(&args, sizeof args);
            desc.heads = SAMPLE_HEADS, desc.kv_heads = 1, desc.d_k = desc.d_v = SAMPLE_D;
            desc.q_len = many ? SAMPLE_QUERIES : 1, desc.kv_len = SAMPLE_KEYS;
            const int64_t row = SAMPLE_D * (int64_t)sizeof(float), key = ariths[a] == RAPT_INT8_DOT ? SAMPLE_D : row;
            desc.q = desc.o = (rapt_layout){RAPT_F32, 0, desc.q_len * row, row};
            desc.k = desc.v = (rapt_layout){ariths[a] == RAPT_INT8_DOT ? RAPT_INT8 : RAPT_F32, 0, SAMPLE_KEYS * key, key};
            desc.lse = (rapt_layout){RAPT_F32, 0, desc.q_len * (int64_t)sizeof(float), sizeof(float)};
            desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT, desc.softcap = 20, desc.arith = ariths[a], desc.isa = isa;
            args.q = q, args.k = k, args.v = v, args.o = out->o[a][many], args.lse = out->lse[a][many];
            args.workspace = workspace, args.workspace_bytes = sizeof workspace;
            rapt_status status = library->plan_init_sized(&plan, sizeof plan, &desc);
            if (status == RAPT_OK) status = library->run(&plan, &args);
            if (status != RAPT_OK) return status;
        }
    return RAPT_OK;
}

#endif
