/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention of one head, and whether rapt.c was compiled as it must be. */
#include <stdio.h>

#include "rapt.h"

int main(void) {
    enum { TOKENS = 4, D = 8, THREADS = 2 };
    static float q[TOKENS * D], k[TOKENS * D], v[TOKENS * D], o[TOKENS * D];
    static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 20];
    char why[200];
    if (rapt_self_check(NULL, why, sizeof why) != RAPT_OK) {
        fprintf(stderr, "rapt.c was not compiled as it must be: %s\n", why);
        return 1;
    }
    for (int i = 0; i < TOKENS * D; i++) q[i] = (float)(i % 5), k[i] = (float)(i % 7), v[i] = (float)(i / D);
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.heads = desc.kv_heads = 1, desc.q_len = desc.kv_len = TOKENS, desc.d_k = desc.d_v = D;
    desc.q = desc.k = desc.v = desc.o = rapt_layout_bshd(RAPT_F32, 1, TOKENS, D);
    desc.causal = RAPT_CAUSAL_TOP_LEFT;
    rapt_plan plan;
    rapt_args args;
    rapt_args_init(&args);
    args.q = q, args.k = k, args.v = v, args.o = o, args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    rapt_status status = rapt_plan_init(&plan, &desc);
    rapt_pool *pool = rapt_pool_create(THREADS);
    if (status == RAPT_OK) status = rapt_run_parallel(&plan, &args, THREADS, rapt_pool_for, pool);
    rapt_pool_destroy(pool);
    if (status != RAPT_OK) {
        fprintf(stderr, "%s\n", rapt_status_string(status));
        return 1;
    }
    for (int i = 0; i < TOKENS; i++) printf("token %d: %.6f\n", i, (double)o[i * D]);
    return 0;
}
