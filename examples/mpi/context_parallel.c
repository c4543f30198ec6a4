/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism: each rank holds some of the keys and values, and all compute attention over all of them. The result has
 * the bits of a single process, however many ranks there are. */
#include <mpi.h>
#include <rapt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, QUERIES = 5, KEYS = 1900, D = 64 };
enum { CHUNKS = (KEYS + RAPT_CHUNK_KEYS - 1) / RAPT_CHUNK_KEYS };

static void check(rapt_status status) {
    if (status == RAPT_OK) return;
    fprintf(stderr, "%s\n", rapt_status_string(status));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t bytes) {
    void *memory = aligned_alloc(RAPT_WORKSPACE_ALIGNMENT, bytes - bytes % RAPT_WORKSPACE_ALIGNMENT + RAPT_WORKSPACE_ALIGNMENT);
    if (!memory) MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

/* Element i of a tensor, about -4 to 4: the same on every rank, though each makes only those that it holds. */
static float element(uint32_t tensor, uint32_t i) {
    uint32_t x = i * 4 + tensor;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    return (float)((int)(x & 255) + (int)(x >> 8 & 255) - 255) / 64;
}

/* Tokens first to end - 1 of a tensor [token, head, channel]. */
static float *tokens(uint32_t tensor, int64_t heads, int64_t first, int64_t end) {
    float *data = allocate((size_t)((end - first) * heads * D) * sizeof *data);
    for (int64_t i = first * heads * D; i < end * heads * D; i++) data[i - first * heads * D] = element(tensor, (uint32_t)i);
    return data;
}

/* The problem over keys first to end - 1 of all of them; the last query sees the last key. */
static rapt_desc problem(int64_t first, int64_t end) {
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.batch = 1, desc.heads = HEADS, desc.kv_heads = KV_HEADS, desc.q_len = QUERIES, desc.d_k = desc.d_v = D;
    desc.kv_first = first, desc.kv_len = end - first, desc.kv_total = KEYS;
    desc.q = desc.o = rapt_layout_bshd(RAPT_F32, HEADS, QUERIES, D);
    desc.k = desc.v = rapt_layout_bshd(RAPT_F32, KV_HEADS, end - first, D);
    desc.lse = rapt_layout_bhsd(RAPT_F32, HEADS, QUERIES, 1);
    desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    return desc;
}

/* Runs it on this rank's keys and values, which are freed; args has the outputs. Returns the plan. */
static rapt_plan run(const rapt_desc *desc, rapt_args *args, float *k, float *v) {
    rapt_plan plan;
    float *q = tokens(0, HEADS, 0, QUERIES);
    check(rapt_plan_init(&plan, desc));
    check(rapt_workspace_size(&plan, 1, &args->workspace_bytes));
    args->workspace = allocate(args->workspace_bytes);
    args->q = q, args->k = k, args->v = v;
    check(rapt_run(&plan, args));
    free(args->workspace);
    free(q);
    free(k);
    free(v);
    return plan;
}

typedef struct result {
    float o[QUERIES * HEADS * D], lse[HEADS * QUERIES];
} result;

static void alone(result *out) {
    rapt_desc desc = problem(0, KEYS);
    rapt_args args;
    rapt_args_init(&args);
    args.o = out->o, args.lse = out->lse;
    run(&desc, &args, tokens(1, KV_HEADS, 0, KEYS), tokens(2, KV_HEADS, 0, KEYS));
}

/* Whole chunks are shared out: rank r's are first_chunk(r) to first_chunk(r + 1) - 1, which may be none. */
static int first_chunk(int rank, int ranks) { return (int)((int64_t)CHUNKS * rank / ranks); }

static void together(int rank, int ranks, result *out) {
    /* A state for each chunk, query and head, in this order: so the ranks' states, one after the other, are in the order of the
     * chunks. */
    const int64_t state = (int64_t)(RAPT_STATE_FLOATS(D) * sizeof(float)), chunk = state * HEADS * QUERIES;
    const int begin = first_chunk(rank, ranks), end = first_chunk(rank + 1, ranks);
    const int64_t first_key = (int64_t)begin * RAPT_CHUNK_KEYS, key_limit = (int64_t)end * RAPT_CHUNK_KEYS;
    const int64_t end_key = key_limit < KEYS ? key_limit : KEYS;
    float *mine = allocate((size_t)((end - begin) * chunk)), *all = allocate((size_t)(CHUNKS * chunk));

    /* Each rank attends to its own keys, */
    rapt_desc desc = problem(first_key, end_key);
    desc.unmerged = 1;
    desc.states = (rapt_layout){.type = RAPT_F32, .head_stride = state, .token_stride = state * HEADS};
    desc.state_stride = chunk;
    rapt_args args;
    rapt_args_init(&args);
    args.states = mine;
    const rapt_plan plan = run(&desc, &args, tokens(1, KV_HEADS, first_key, end_key), tokens(2, KV_HEADS, first_key, end_key));

    /* one collective brings the states of all of them, */
    int *counts = allocate((size_t)ranks * sizeof *counts), *offsets = allocate((size_t)ranks * sizeof *offsets);
    const int chunk_floats = (int)(chunk / (int64_t)sizeof(float));
    for (int r = 0; r < ranks; r++) {
        offsets[r] = first_chunk(r, ranks) * chunk_floats;
        counts[r] = first_chunk(r + 1, ranks) * chunk_floats - offsets[r];
    }
    MPI_Allgatherv(mine, counts[rank], MPI_FLOAT, all, counts, offsets, MPI_FLOAT, MPI_COMM_WORLD);

    /* and they are merged in the order of the chunks. */
    const rapt_states source = {.at = all,
                                .head_stride = desc.states.head_stride,
                                .token_stride = desc.states.token_stride,
                                .state_stride = desc.state_stride,
                                .chunks = CHUNKS};
    args.o = out->o, args.lse = out->lse;
    check(rapt_merge_states_run(&plan, &args, &source, 1));
    free(offsets);
    free(counts);
    free(all);
    free(mine);
}

int main(int argc, char **argv) {
    static result expected, got;
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    together(rank, ranks, &got);
    alone(&expected);
    /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the same bits are what is promised */
    int differs = memcmp(&expected, &got, sizeof got) != 0, differing = 0;
    MPI_Allreduce(&differs, &differing, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d keys in %d chunks on %d ranks: %s a single process, on %d of them\n", KEYS, CHUNKS, ranks,
               differing ? "NOT the bits of" : "the same bits as", differing ? differing : ranks);
    MPI_Finalize();
    return differing != 0;
}
