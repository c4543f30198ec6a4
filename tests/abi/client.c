/* SPDX-License-Identifier: Apache-2.0 */
/* A client of version 0.1, compiled twice: against the headers of that version, and against those of today (client.h). All its
 * structs are garbage before they are initialised, and end where a page ends that nobody may touch. */
#include "client.h"

#include <stddef.h>
#include <string.h>

#include "rapt_layer.h"
#include "rapt_pool.h"

#include "fence.h"
#include "hash.h"
#include "random.h"
#include "serial.h"

static void tell(client_facts *facts, const char *of, const char *what, uint64_t value) {
    if (facts->count < (int)(sizeof facts->at / sizeof *facts->at)) facts->at[facts->count] = (client_fact){of, what, value};
    facts->count++;
}

/* ---- What the compiler made of the headers ------------------------------------------------------------------------------- */

typedef void (*any_function)(void);

/* clang-format off */
void CLIENT_layout(client_facts *facts) {
    static const any_function functions[] = {
#define F(name) (any_function)name,
        F(rapt_status_string) F(rapt_version) F(rapt_row_bytes) F(rapt_layout_bhsd) F(rapt_layout_bshd) F(rapt_desc_init_sized)
        F(rapt_plan_init) F(rapt_plan_query) F(rapt_workspace_size) F(rapt_args_init_sized) F(rapt_run) F(rapt_run_parallel)
        F(rapt_run_share) F(rapt_run_phase) F(rapt_run_task) F(rapt_rope_frequencies) F(rapt_kv_append_desc_init_sized)
        F(rapt_kv_append_args_init_sized) F(rapt_kv_append_run_share) F(rapt_rope_args_init_sized) F(rapt_rope_run_share) F(rapt_merge_states_run_share)
        F(rapt_merge) F(rapt_isa_name) F(rapt_isa_usable) F(rapt_isa_rounding) F(rapt_isa_force) F(rapt_isa_current)
        F(rapt_cpu_features) F(rapt_linear_desc_init_sized) F(rapt_linear_plan_init) F(rapt_linear_workspace_size)
        F(rapt_linear_args_init_sized) F(rapt_linear_run_share) F(rapt_linear_run_parallel) F(rapt_quantise_weights)
        F(rapt_norm_args_init_sized) F(rapt_layer_norm_run_share) F(rapt_layer_norm_run_parallel) F(rapt_sinusoidal) F(rapt_alibi_slopes)
        F(rapt_mha_desc_init_sized) F(rapt_mha_plan_init) F(rapt_mha_plan_query) F(rapt_mha_workspace_size)
        F(rapt_mha_args_init_sized) F(rapt_mha_run) F(rapt_mha_run_parallel) F(rapt_mha_run_share)
        F(rapt_mha_run_phase) F(rapt_pool_create) F(rapt_pool_destroy) F(rapt_pool_threads) F(rapt_pool_for)
#undef F
    };
    tell(facts, "all", "functions are there to be linked", sizeof functions / sizeof *functions);

#define C(name) tell(facts, "constant", #name, (uint64_t)(int64_t)(name));
    C(RAPT_OK) C(RAPT_ERR_NULL) C(RAPT_ERR_STRUCT) C(RAPT_ERR_SHAPE) C(RAPT_ERR_HEADS) C(RAPT_ERR_TYPE) C(RAPT_ERR_STRIDE)
    C(RAPT_ERR_SCALE) C(RAPT_ERR_MASK) C(RAPT_ERR_KV_LENGTH) C(RAPT_ERR_OVERLAP) C(RAPT_ERR_WORKSPACE) C(RAPT_ERR_ALIGNMENT)
    C(RAPT_ERR_ISA_UNKNOWN) C(RAPT_ERR_ISA_MISSING) C(RAPT_ERR_RANGE) C(RAPT_ERR_PLAN) C(RAPT_ERR_TABLE) C(RAPT_ERR_FEATURE)
    C(RAPT_ERR_ARITH) C(RAPT_F32) C(RAPT_F16) C(RAPT_BF16) C(RAPT_F8_E4M3) C(RAPT_F8_E5M2) C(RAPT_INT8) C(RAPT_INT4)
    C(RAPT_INT4_MIN) C(RAPT_Q8_0) C(RAPT_Q4_0) C(RAPT_Q4_1) C(RAPT_Q5_0) C(RAPT_Q5_1) C(RAPT_BOOL) C(RAPT_BIT) C(RAPT_I32)
    C(RAPT_CAUSAL_NONE) C(RAPT_CAUSAL_BOTTOM_RIGHT) C(RAPT_CAUSAL_TOP_LEFT) C(RAPT_ALIBI_NONE) C(RAPT_ALIBI_DISTANCE)
    C(RAPT_ALIBI_BIAS) C(RAPT_EXACT) C(RAPT_INT8_DOT) C(RAPT_ACTIVATION_NONE) C(RAPT_RELU) C(RAPT_GELU) C(RAPT_GELU_TANH)
    C(RAPT_MAX_HEAD_DIM) C(RAPT_MAX_LENGTH) C(RAPT_MAX_WIDTH) C(RAPT_CHUNK_KEYS) C(RAPT_WORKSPACE_ALIGNMENT)
    C(RAPT_STATE_FLOATS(17))
#undef C

#define BEGIN(type)              \
    {                            \
        typedef type of;         \
        const char *name = #type;
#define F(field) tell(facts, name, #field, offsetof(of, field) << 16 | sizeof((of *)0)->field);
#define END                                       \
    tell(facts, name, "sizeof", sizeof(of));      \
    }
    BEGIN(rapt_layout) F(type) F(batch_stride) F(head_stride) F(token_stride) END
    BEGIN(rapt_logits)
        F(logits) F(row_stride) F(key_stride) F(rows) F(keys) F(batch) F(first_key) F(heads) F(tokens)
    END
    BEGIN(rapt_scales) F(present) F(batch_stride) F(head_stride) F(token_stride) F(channel_stride) END
    BEGIN(rapt_rope) F(channels) F(interleaved) F(frequencies) F(amplitude) F(offset) END
    BEGIN(rapt_states) F(at) F(batch_stride) F(head_stride) F(token_stride) F(state_stride) F(chunks) END
    BEGIN(rapt_plan_info)
        F(size) F(isa) F(rounding) F(arith) F(path) F(phases) F(tasks) F(shared_bytes) F(thread_bytes)
    END
    BEGIN(rapt_mha_plan_info) F(size) F(isa) F(rounding) F(phases) END
    BEGIN(rapt_desc)
        F(size) F(batch) F(heads) F(kv_heads) F(q_len) F(kv_len) F(d_k) F(d_v) F(q) F(k) F(v) F(o) F(lse) F(scale) F(causal)
        F(window_left) F(window_right) F(prefix) F(local_chunk) F(mask) F(block_mask) F(block_mask_queries) F(block_mask_keys) F(bias) F(softcap)
        F(alibi) F(slopes) F(sinks) F(logits_body) F(k_scales) F(v_scales) F(arith) F(q_starts) F(k_starts) F(page_size) F(pages)
        F(table) F(trust_table) F(kv_first) F(kv_total) F(unmerged) F(states) F(state_stride) F(threads) F(isa)
    END
    BEGIN(rapt_args)
        F(size) F(q) F(k) F(v) F(o) F(lse) F(kv_lengths) F(mask) F(block_mask) F(bias) F(slopes) F(sinks) F(k_scales) F(v_scales)
        F(logits_arg) F(prefixes) F(table) F(table_starts) F(last_page) F(ring_starts) F(states) F(workspace) F(workspace_bytes)
    END
    BEGIN(rapt_kv_append_desc)
        F(size) F(batch) F(kv_heads) F(tokens) F(kv_len) F(d_k) F(d_v) F(new_k) F(new_v) F(k) F(v) F(k_scales) F(v_scales)
        F(page_size) F(pages) F(table) F(trust_table) F(rope)
    END
    BEGIN(rapt_kv_append_args)
        F(size) F(new_k) F(new_v) F(k) F(v) F(k_scales) F(v_scales) F(starts) F(lengths) F(token_starts) F(positions) F(table)
        F(table_starts) F(ring_starts)
    END
    BEGIN(rapt_rope_args)
        F(size) F(batch) F(heads) F(tokens) F(d) F(in) F(out) F(from) F(to) F(rope) F(starts) F(lengths) F(token_starts)
        F(positions)
    END
    BEGIN(rapt_linear_desc)
        F(size) F(batch) F(tokens) F(in) F(out) F(x) F(y) F(residual) F(weight) F(activation) F(isa)
    END
    BEGIN(rapt_linear_args) F(size) F(x) F(weight) F(bias) F(scales) F(residual) F(y) F(workspace) F(workspace_bytes) END
    BEGIN(rapt_norm_args)
        F(size) F(batch) F(tokens) F(channels) F(x) F(y) F(from) F(to) F(weight) F(bias) F(epsilon) F(isa)
    END
    BEGIN(rapt_mha_desc)
        F(size) F(attention) F(x_width) F(y_width) F(z_width) F(out_width) F(keys) F(x) F(y) F(z) F(out) F(residual) F(wq) F(wk)
        F(wv) F(wo) F(packed) F(rope) F(position_table) F(weights)
    END
    BEGIN(rapt_mha_args)
        F(size) F(x) F(y) F(z) F(residual) F(out) F(wq) F(wk) F(wv) F(wo) F(bq) F(bk) F(bv) F(bo) F(wq_scales) F(wk_scales)
        F(wv_scales) F(wo_scales) F(position_table) F(table_positions) F(k_cache) F(v_cache) F(k_scales) F(v_scales) F(starts)
        F(weights) F(attention) F(workspace) F(workspace_bytes)
    END
#undef BEGIN
#undef F
#undef END
}
/* clang-format on */

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

static fence fences[32];
static int fence_count;

#define NEW(type) ((type *)at_end(sizeof(type)))
static void *at_end(size_t bytes) {
    fence *f = &fences[fence_count++];
    *f = fence_create(bytes, -1, 0);
    return f->data;
}

/* True if nothing was written before any of them. */
static bool release_all(void) {
    bool intact = true;
    while (fence_count) {
        fence *f = &fences[--fence_count];
        intact &= fence_slack_intact(f);
        fence_destroy(f);
    }
    return intact;
}

enum { NUMBERS = 1 << 16 };
static float numbers[NUMBERS], out[NUMBERS];
static uint16_t f16[NUMBERS], bf16[NUMBERS];
static int8_t int8[NUMBERS];
static float cache[2][NUMBERS]; /* of any type */
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 20];

static void fill(void) {
    random_state = 1;
    for (int i = 0; i < NUMBERS; i++) {
        uint32_t bits;
        const uint32_t drawn = random_bits();
        numbers[i] = (float)((int32_t)(drawn >> 8) - (1 << 23)) * 0x1p-22f; /* -2 to 2 */
        memcpy(&bits, &numbers[i], sizeof bits);
        bf16[i] = (uint16_t)(bits >> 16);
        f16[i] = (uint16_t)(0x3000 + (drawn >> 16 & 0x8bff)); /* magnitudes from 1/8 to 1 */
        int8[i] = (int8_t)(drawn >> 24);
    }
    memset(out, 0, sizeof out);
    memset(cache, 0, sizeof cache);
}

/* All that a case has written, and that it was not nothing. */
static void finish(client_facts *facts, const char *of, rapt_status status) {
    static const float untouched[NUMBERS];
    tell(facts, of, "status", (uint64_t)(int64_t)status);
    tell(facts, of, "is computed", memcmp(out, untouched, sizeof out) != 0 || memcmp(cache, untouched, sizeof *cache) != 0);
    tell(facts, of, "hash of what is written", hash_bytes(hash_start, out, sizeof out));
    tell(facts, of, "hash of the caches", hash_bytes(hash_start, cache, sizeof cache));
    tell(facts, of, "touches only its structs", release_all());
}

/* ---- Attention ----------------------------------------------------------------------------------------------------------- */

static rapt_desc *new_desc(const char *isa, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t d_k,
                           int64_t d_v) {
    rapt_desc *d = NEW(rapt_desc);
    rapt_desc_init(d);
    d->batch = 1, d->heads = heads, d->kv_heads = kv_heads, d->q_len = q_len, d->kv_len = kv_len, d->d_k = d_k, d->d_v = d_v;
    d->q = rapt_layout_bhsd(RAPT_F32, heads, q_len, d_k), d->o = rapt_layout_bshd(RAPT_F32, heads, q_len, d_v);
    d->k = rapt_layout_bhsd(RAPT_F16, kv_heads, kv_len, d_k), d->v = rapt_layout_bshd(RAPT_BF16, kv_heads, kv_len, d_v);
    d->isa = isa;
    return d;
}

static rapt_args *new_args(void) {
    rapt_args *a = NEW(rapt_args);
    rapt_args_init(a);
    a->q = numbers, a->k = f16, a->v = bf16, a->o = out, a->workspace = workspace, a->workspace_bytes = sizeof workspace;
    return a;
}

/* Runs a plan by rapt_run_parallel, then by phases, then by tasks. */
static rapt_status run(client_facts *facts, const char *of, const rapt_desc *d, const rapt_args *a) {
    rapt_plan *plan = NEW(rapt_plan);
    rapt_plan_info *info = NEW(rapt_plan_info);
    size_t *bytes = NEW(size_t);
    info->size = sizeof *info;
    rapt_status status = rapt_plan_init(plan, d);
    if (status == RAPT_OK) status = rapt_plan_query(plan, info);
    if (status == RAPT_OK) status = rapt_workspace_size(plan, 3, bytes);
    if (status != RAPT_OK) return status;
    tell(facts, of, "tasks, phases", (uint64_t)(info->tasks[0] + info->tasks[1]) << 8 | (uint64_t)info->phases);
    tell(facts, of, "workspace", *bytes);
    tell(facts, of, "names", hash_bytes(hash_bytes(hash_start, info->isa, strlen(info->isa)), info->path, strlen(info->path)));
    if ((status = rapt_run_parallel(plan, a, 3, serial, NULL)) != RAPT_OK) return status;
    tell(facts, of, "hash of what is written by threads", hash_bytes(hash_start, out, sizeof out));
    memset(out, 0, sizeof out);
    for (int phase = 0; phase < info->phases && status == RAPT_OK; phase++)
        for (int64_t i = 0; i < 2 && status == RAPT_OK; i++) status = rapt_run_phase(plan, a, phase, i, 2);
    tell(facts, of, "hash of what is written by phases", hash_bytes(hash_start, out, sizeof out));
    memset(out, 0, sizeof out);
    for (int phase = 0; phase < info->phases && status == RAPT_OK; phase++)
        for (int64_t t = 0; t < info->tasks[phase] && status == RAPT_OK; t++) status = rapt_run_task(plan, a, phase, t, 0);
    return status;
}

static rapt_status prefill(const char *isa, client_facts *facts, const char *of) {
    rapt_desc *d = new_desc(isa, 4, 2, 33, 70, 24, 16);
    rapt_args *a = new_args();
    d->batch = 2;
    d->causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    d->window_left = 40;
    d->lse = rapt_layout_bhsd(RAPT_F32, 4, 33, 1);
    d->alibi = RAPT_ALIBI_DISTANCE;
    d->slopes = d->sinks = (rapt_layout){.type = RAPT_F32, .head_stride = sizeof(float)};
    a->lse = out + NUMBERS / 2, a->slopes = numbers + 10, a->sinks = numbers + 20;
    return run(facts, of, d, a);
}

/* Pages, lengths, and keys that are split. */
static rapt_status decode(const char *isa, client_facts *facts, const char *of) {
    enum { PAGE = 16, PAGES = 80 };
    static const int32_t lengths[2] = {530, 77};
    int32_t table[PAGES];
    rapt_desc *d = new_desc(isa, 4, 1, 1, PAGE * PAGES / 2, 20, 12);
    rapt_args *a = new_args();
    for (int i = 0; i < PAGES; i++) table[i] = i * 33 % PAGES;
    d->batch = 2;
    d->k = rapt_layout_bhsd(RAPT_F16, 1, PAGE, 20), d->v = rapt_layout_bhsd(RAPT_BF16, 1, PAGE, 12);
    d->page_size = PAGE, d->pages = PAGES;
    d->table = (rapt_layout){.type = RAPT_I32, .batch_stride = PAGES / 2 * sizeof *table};
    d->threads = 4;
    a->table = table, a->kv_lengths = lengths;
    return run(facts, of, d, a);
}

static rapt_status integers(const char *isa, client_facts *facts, const char *of) {
    rapt_desc *d = new_desc(isa, 3, 1, 2, 150, 40, 24);
    rapt_args *a = new_args();
    d->k = rapt_layout_bhsd(RAPT_INT8, 1, 150, 40), d->v = rapt_layout_bhsd(RAPT_INT8, 1, 150, 24);
    d->k_scales = d->v_scales = (rapt_scales){.present = 1, .token_stride = sizeof(float)};
    d->arith = RAPT_INT8_DOT;
    a->k = int8, a->v = int8 + 1000, a->k_scales = numbers + 5, a->v_scales = numbers + 6;
    return run(facts, of, d, a);
}

static rapt_status ragged(const char *isa, client_facts *facts, const char *of) {
    static const int32_t q_starts[5] = {0, 5, 5, 12, 52}, k_starts[5] = {1, 20, 20, 50, 120};
    rapt_desc *d = new_desc(isa, 2, 1, 52, 120, 8, 8);
    d->batch = 4;
    d->q_starts = q_starts, d->k_starts = k_starts;
    d->causal = RAPT_CAUSAL_TOP_LEFT;
    return run(facts, of, d, new_args());
}

static void add_row_and_key(void *arg, const rapt_logits *l) {
    for (int r = 0; r < l->rows; r++)
        for (int n = 0; n < l->keys; n++)
            l->logits[r * l->row_stride + n * l->key_stride] += *(const float *)arg * (float)(l->tokens[r] + l->first_key + n);
}

static rapt_status features(const char *isa, client_facts *facts, const char *of) {
    static const unsigned char blocks[9] = {1, 1, 0, 0, 1, 1, 1, 0, 1};
    static float factor = 0x1p-8f;
    rapt_desc *d = new_desc(isa, 2, 2, 40, 130, 12, 20);
    rapt_args *a = new_args();
    d->scale = 0.75f;
    d->mask = (rapt_layout){.type = RAPT_BIT, .head_stride = 1, .token_stride = 17};
    d->bias = (rapt_layout){.type = RAPT_F16, .head_stride = 8, .token_stride = 260};
    d->block_mask = (rapt_layout){.type = RAPT_BOOL, .token_stride = 3};
    d->block_mask_queries = 16, d->block_mask_keys = 64;
    d->softcap = 3.0f;
    d->causal = RAPT_CAUSAL_BOTTOM_RIGHT, d->prefix = 10, d->window_right = 70;
    d->k_scales = (rapt_scales){.present = 1, .channel_stride = sizeof(float)};
    d->logits_body = add_row_and_key;
    a->mask = int8, a->bias = f16 + 100, a->block_mask = blocks, a->k_scales = numbers + 30, a->logits_arg = &factor;
    return run(facts, of, d, a);
}

/* Keys of two places, merged. */
static rapt_status merge(const char *isa, client_facts *facts, const char *of) {
    enum { ROWS = 3, D = 16, STATE = RAPT_STATE_FLOATS(D) };
    static float states[2][ROWS * STATE];
    const float *const o[2] = {numbers, numbers + ROWS * D}, *const lse[2] = {numbers + 1000, numbers + 2000};
    rapt_states sources[2];
    rapt_plan *plan = NULL;
    rapt_status status = RAPT_OK;
    for (int part = 0; part < 2 && status == RAPT_OK; part++) {
        rapt_desc *d = new_desc(isa, 1, 1, ROWS, part ? 100 : RAPT_CHUNK_KEYS, D, D);
        rapt_args *a = new_args();
        d->lse = rapt_layout_bhsd(RAPT_F32, 1, ROWS, 1);
        d->kv_first = part * RAPT_CHUNK_KEYS, d->kv_total = RAPT_CHUNK_KEYS + 100;
        d->unmerged = 1;
        d->states = (rapt_layout){.type = RAPT_F32, .token_stride = STATE * sizeof(float)},
        d->state_stride = STATE * sizeof(float);
        a->k = f16 + d->kv_first * D, a->v = bf16 + d->kv_first * D, a->states = states[part];
        sources[part] = (rapt_states){
            .at = states[part], .token_stride = d->states.token_stride, .state_stride = d->state_stride, .chunks = 1};
        plan = NEW(rapt_plan);
        status = rapt_plan_init(plan, d);
        if (status == RAPT_OK) status = rapt_run(plan, a);
    }
    rapt_args *a = new_args();
    a->lse = out + 500;
    if (status == RAPT_OK) status = rapt_merge_states_run_share(plan, a, sources, 2, 0, 1);
    tell(facts, of, "hash of states", hash_bytes(hash_start, states, sizeof states));
    return status == RAPT_OK ? rapt_merge(2, ROWS, D, o, lse, out + 1000, out + 2000) : status;
}

/* ---- Caches, and multi-head attention ------------------------------------------------------------------------------------ */

static rapt_status append(const char *isa, client_facts *facts, const char *of) {
    enum { D = 32, TOKENS = 3 };
    static const int32_t starts[2] = {4, 0}, lengths[2] = {3, 2};
    static double frequencies[D / 2];
    rapt_kv_append_desc *d = NEW(rapt_kv_append_desc);
    rapt_kv_append_args *a = NEW(rapt_kv_append_args);
    rapt_rope_args *r = NEW(rapt_rope_args);
    (void)isa, (void)facts, (void)of;
    rapt_kv_append_desc_init(d), rapt_kv_append_args_init(a), rapt_rope_args_init(r);
    rapt_status status = rapt_rope_frequencies(10000.0, D, frequencies);
    d->batch = 2, d->kv_heads = 2, d->tokens = TOKENS, d->kv_len = 10, d->d_k = d->d_v = D;
    d->new_k = d->new_v = rapt_layout_bshd(RAPT_F32, 2, TOKENS, D);
    d->k = rapt_layout_bhsd(RAPT_Q8_0, 2, 10, D), d->v = rapt_layout_bhsd(RAPT_INT8, 2, 10, D);
    d->v_scales = (rapt_scales){1, 20 * sizeof(float), 10 * sizeof(float), sizeof(float), 0};
    d->rope.channels = D, d->rope.frequencies = frequencies;
    a->new_k = numbers, a->new_v = numbers + 1000, a->k = cache[0], a->v = cache[1], a->v_scales = cache[1] + 1000;
    a->starts = starts, a->lengths = lengths;
    r->batch = 1, r->heads = 2, r->tokens = TOKENS, r->d = D, r->in = r->out = rapt_layout_bshd(RAPT_BF16, 2, TOKENS, D);
    r->from = bf16, r->to = out;
    r->rope.channels = D - 4, r->rope.interleaved = 1, r->rope.frequencies = frequencies, r->rope.offset = 7;
    if (status == RAPT_OK) status = rapt_kv_append_run_share(d, a, 0, 1);
    return status == RAPT_OK ? rapt_rope_run_share(r, 0, 1) : status;
}

static rapt_status linear(const char *isa, client_facts *facts, const char *of) {
    enum { IN = 70, OUT = 40, TOKENS = 9 };
    static int8_t weight[OUT * IN];
    static float scales[OUT];
    rapt_linear_desc *d = NEW(rapt_linear_desc);
    rapt_linear_args *a = NEW(rapt_linear_args);
    rapt_linear_plan *plan = NEW(rapt_linear_plan);
    size_t *bytes = NEW(size_t);
    rapt_linear_desc_init(d), rapt_linear_args_init(a);
    rapt_status status = rapt_quantise_weights(OUT, IN, RAPT_F32, IN * sizeof(float), numbers, weight, scales);
    d->batch = 1, d->tokens = TOKENS, d->in = IN, d->out = OUT;
    d->x = rapt_layout_bshd(RAPT_F16, 1, TOKENS, IN), d->weight = rapt_layout_bshd(RAPT_INT8, 1, OUT, IN);
    d->y = d->residual = rapt_layout_bshd(RAPT_F32, 1, TOKENS, OUT);
    d->activation = RAPT_GELU_TANH;
    d->isa = isa;
    a->x = f16, a->weight = weight, a->scales = scales, a->bias = numbers, a->residual = numbers + 100, a->y = out;
    a->workspace = workspace;
    if (status == RAPT_OK) status = rapt_linear_plan_init(plan, d);
    if (status == RAPT_OK) status = rapt_linear_workspace_size(plan, 2, bytes);
    if (status == RAPT_OK) tell(facts, of, "workspace", a->workspace_bytes = *bytes);
    return status == RAPT_OK ? rapt_linear_run_parallel(plan, a, 2, serial, NULL) : status;
}

static rapt_status norm(const char *isa, client_facts *facts, const char *of) {
    rapt_norm_args *a = NEW(rapt_norm_args);
    (void)facts, (void)of;
    rapt_norm_args_init(a);
    a->batch = 2, a->tokens = 3, a->channels = 50, a->x = rapt_layout_bshd(RAPT_BF16, 1, 3, 50);
    a->y = rapt_layout_bshd(RAPT_F32, 1, 3, 50);
    a->from = bf16, a->to = out, a->weight = numbers, a->bias = numbers + 50, a->isa = isa;
    return rapt_layer_norm_run_share(a, 0, 1);
}

/* Self-attention of new tokens after those of a cache, with everything that multi-head attention has. */
static rapt_status layer(const char *isa, client_facts *facts, const char *of) {
    enum { WIDTH = 24, HEADS = 4, D = 8, TOKENS = 3, KEYS = 9 };
    static const int32_t starts[2] = {5, 0}, lengths[2] = {5 + TOKENS, TOKENS};
    static double frequencies[D / 2];
    static float positions[KEYS * WIDTH];
    rapt_desc *attention = NEW(rapt_desc);
    rapt_mha_desc *d = NEW(rapt_mha_desc);
    rapt_args *args = NEW(rapt_args);
    rapt_mha_args *a = NEW(rapt_mha_args);
    rapt_mha_plan *plan = NEW(rapt_mha_plan);
    rapt_mha_plan_info *info = NEW(rapt_mha_plan_info);
    size_t *bytes = NEW(size_t);
    info->size = sizeof *info;
    rapt_desc_init(attention), rapt_mha_desc_init(d), rapt_args_init(args), rapt_mha_args_init(a);
    attention->batch = 2, attention->heads = HEADS, attention->kv_heads = 2, attention->q_len = TOKENS, attention->kv_len = KEYS;
    attention->d_k = attention->d_v = D, attention->causal = RAPT_CAUSAL_BOTTOM_RIGHT, attention->isa = isa;
    attention->k = rapt_layout_bhsd(RAPT_F16, 2, KEYS, D), attention->v = rapt_layout_bhsd(RAPT_F32, 2, KEYS, D);
    attention->lse = rapt_layout_bhsd(RAPT_F32, HEADS, TOKENS, 1);
    d->attention = attention, d->x_width = WIDTH;
    d->x = d->out = d->residual = rapt_layout_bshd(RAPT_F32, 1, TOKENS, WIDTH);
    d->wq = d->wo = rapt_layout_bshd(RAPT_F32, 1, HEADS * D, WIDTH), d->wo.token_stride = HEADS * D * sizeof(float);
    d->packed = 1;
    d->rope.channels = D, d->rope.frequencies = frequencies;
    d->position_table = 1;
    d->weights = rapt_layout_bhsd(RAPT_F32, HEADS, TOKENS, KEYS);
    args->lse = out + 3000, args->kv_lengths = lengths;
    a->x = numbers, a->residual = numbers + 500, a->out = out, a->wq = numbers + 1000, a->wo = numbers + 5000;
    a->bq = numbers + 8000, a->bo = numbers + 9000;
    a->position_table = positions, a->table_positions = KEYS;
    a->k_cache = cache[0], a->v_cache = cache[1], a->starts = starts, a->weights = out + 4000, a->attention = args;
    a->workspace = workspace;
    rapt_status status = rapt_rope_frequencies(10000.0, D, frequencies);
    if (status == RAPT_OK) status = rapt_sinusoidal(0, KEYS, WIDTH, positions);
    if (status == RAPT_OK) status = rapt_mha_plan_init(plan, d);
    if (status == RAPT_OK) status = rapt_mha_plan_query(plan, info);
    if (status == RAPT_OK) status = rapt_mha_workspace_size(plan, 2, bytes);
    if (status != RAPT_OK) return status;
    tell(facts, of, "phases", (uint64_t)info->phases);
    tell(facts, of, "workspace", a->workspace_bytes = *bytes);
    return rapt_mha_run_parallel(plan, a, 2, serial, NULL);
}

static const struct {
    const char *what;
    rapt_status (*run)(const char *isa, client_facts *facts, const char *of);
} cases[] = {
    {"prefill", prefill}, {"decode", decode}, {"integers", integers},   {"ragged", ragged}, {"features", features},
    {"merge", merge},     {"append", append}, {"linear layer", linear}, {"norm", norm},     {"layer", layer},
};

void CLIENT_results(const char *isa, client_facts *facts) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill();
        finish(facts, cases[i].what, cases[i].run(isa, facts, cases[i].what));
    }
}
