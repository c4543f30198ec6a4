/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a description: rapt_plan_init must refuse it or make a plan, and neither overflow on the way nor accept a tensor
 * that does not fit into memory. An input is a list of changes to a good description: a field, and what it is set to. */
#include <stddef.h>
#include <string.h>

#include "reference.h"
#include "tunings.h"
#include "bytes.h"

/* ---- Fields ------------------------------------------------------------------------------------------------------------- */

typedef struct field {
    size_t at, bytes;
} field;

#define FIELD(name)  {offsetof(rapt_desc, name), sizeof((rapt_desc *)0)->name}
#define LAYOUT(name) FIELD(name.type), FIELD(name.batch_stride), FIELD(name.head_stride), FIELD(name.token_stride)
#define SCALES(name)                                                                                                             \
    FIELD(name.present), FIELD(name.batch_stride), FIELD(name.head_stride), FIELD(name.token_stride), FIELD(name.channel_stride)

static const field fields[] = {FIELD(batch),
                               FIELD(heads),
                               FIELD(kv_heads),
                               FIELD(q_len),
                               FIELD(kv_len),
                               FIELD(d_k),
                               FIELD(d_v),
                               LAYOUT(q),
                               LAYOUT(k),
                               LAYOUT(v),
                               LAYOUT(o),
                               LAYOUT(lse),
                               FIELD(scale),
                               FIELD(causal),
                               FIELD(window_left),
                               FIELD(window_right),
                               FIELD(prefix),
                               FIELD(local_chunk),
                               LAYOUT(mask),
                               LAYOUT(block_mask),
                               FIELD(block_mask_queries),
                               FIELD(block_mask_keys),
                               LAYOUT(bias),
                               FIELD(softcap),
                               FIELD(alibi),
                               LAYOUT(slopes),
                               LAYOUT(sinks),
                               SCALES(k_scales),
                               SCALES(v_scales),
                               FIELD(arith),
                               FIELD(page_size),
                               FIELD(pages),
                               LAYOUT(table),
                               FIELD(trust_table),
                               FIELD(kv_first),
                               FIELD(kv_total),
                               FIELD(unmerged),
                               LAYOUT(states),
                               FIELD(state_stride),
                               FIELD(threads),
                               FIELD(size),
                               FIELD(mask_keys),
                               FIELD(bias_keys),
                               FIELD(bias_key_stride),
                               FIELD(bias_rest),
                               FIELD(mask_rest),
                               LAYOUT(scores),
                               FIELD(mask_key_stride),
                               FIELD(scores_stage)};
enum { FIELDS = sizeof fields / sizeof *fields, Q_STARTS = FIELDS, K_STARTS, ISA, CHOICES };

/* ---- What an input says ------------------------------------------------------------------------------------------------- */

enum { STARTS = 64 }; /* of a ragged batch, so batches are smaller */

static void change(rapt_desc *d, int32_t *starts, int which, input *in) {
    if (which < FIELDS) {
        const int64_t number = take_number(in);
        const float real = (float)number;
        const int32_t word = (int32_t)number;
        void *const at = (char *)d + fields[which].at;
        const size_t floats[] = {offsetof(rapt_desc, scale), offsetof(rapt_desc, softcap)};
        if (fields[which].bytes == sizeof number) memcpy(at, &number, sizeof number);
        else if ((fields[which].at == floats[0] || fields[which].at == floats[1]) && word % 3) memcpy(at, &real, sizeof real);
        else memcpy(at, &word, sizeof word);
        return;
    }
    if (which == ISA) {
        static const char *const names[] = {"scalar", "scalar_fma", "avx2", "neon", "none", ""};
        d->isa = names[choose(in, 6)];
        return;
    }
    for (int n = 0; n < STARTS; n++) starts[n] = n == 0 || in->size ? (int32_t)take_number(in) : starts[n - 1];
    if (which == Q_STARTS) d->q_starts = starts;
    else d->k_starts = starts;
}

static rapt_desc good_desc(uint8_t kind, rapt_tuning *tuning, input *in) {
    rapt_desc d;
    rapt_desc_init(&d);
    d.batch = 2;
    d.heads = 4;
    d.kv_heads = 2;
    d.q_len = 3;
    d.kv_len = 700;
    d.d_k = 32;
    d.d_v = 64;
    d.q = rapt_layout_bhsd(RAPT_F32, 4, 3, 32);
    d.k = rapt_layout_bshd(RAPT_BF16, 2, 700, 32);
    d.v = rapt_layout_bshd(kind & 1 ? RAPT_Q8_0 : RAPT_F16, 2, 700, 64);
    d.o = rapt_layout_bhsd(RAPT_F32, 4, 3, 64);
    d.lse = rapt_layout_bhsd(RAPT_F32, 4, 3, 1);
    d.isa = "scalar";
    if (kind & 2) d.mask = (rapt_layout){RAPT_BIT, 300, 0, 100};
    if (kind & 4) d.bias = (rapt_layout){RAPT_F16, 0, 4200, 1400};
    if (kind & 8) d.page_size = 16, d.pages = 100, d.table = (rapt_layout){RAPT_I32, 176, 0, 0};
    if (kind & 16) d.unmerged = 1, d.state_stride = 4 * 80, d.states = (rapt_layout){RAPT_F32, 7680, 1920, 640};
    if (kind & 32) d.k_scales = (rapt_scales){1, 2800, 1400, 2, 0};
    if (kind & 64) d.threads = 8;
    if (kind & 128) { /* one number that is any, and one that is not its own */
        rapt_tuning_init(tuning);
        int numbers[TUNING_NUMBERS];
        tuning_numbers(tuning, numbers);
        for (int i = 0; i < 2; i++) {
            const int64_t which = choose(in, TUNING_NUMBERS);
            numbers[which] = (int)(i ? choose(in, 18) : take_number(in));
        }
        set_tuning_numbers(tuning, numbers);
        d.tuning = tuning;
    }
    return d;
}

/* ---- What must hold ----------------------------------------------------------------------------------------------------- */

static void require_fits(const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens, int64_t row) {
    if (batch == 0 || heads == 0 || tokens == 0 || row == 0) return;
    const int64_t lengths[] = {batch, heads, tokens}, strides[] = {l->batch_stride, l->head_stride, l->token_stride};
    accepted_span(row, 3, lengths, strides);
}

static void require_sound(const rapt_plan *plan, const rapt_desc *d) {
    require(d->batch >= 0 && d->heads > 0 && d->kv_heads > 0 && d->heads % d->kv_heads == 0 && d->q_len >= 0 && d->kv_len >= 0 &&
                d->d_k > 0 && d->d_k <= RAPT_MAX_HEAD_DIM && d->d_v > 0 && d->d_v <= RAPT_MAX_HEAD_DIM,
            "a bad size was accepted");
    const int64_t q_batch = d->q_starts ? d->batch > 0 : d->batch;
    const int64_t k_batch = d->page_size ? d->pages : d->k_starts ? d->batch > 0 : d->batch;
    const int64_t k_tokens = d->page_size ? d->page_size : d->kv_len;
    require_fits(&d->q, q_batch, d->heads, d->q_len, reference_row_bytes(d->q.type, d->d_k));
    require_fits(&d->k, k_batch, d->kv_heads, k_tokens, reference_row_bytes(d->k.type, d->d_k));
    require_fits(&d->v, k_batch, d->kv_heads, k_tokens, reference_row_bytes(d->v.type, d->d_v));
    require_fits(&d->o, q_batch, d->heads, d->q_len, reference_row_bytes(d->o.type, d->d_v));
    if (d->lse.type) require_fits(&d->lse, q_batch, d->heads, d->q_len, 4);
    if (!d->q_starts && !d->k_starts) {
        const int64_t keys = d->kv_total ? d->kv_total : d->kv_first + d->kv_len;
        const int64_t mask = d->mask_key_stride == 0 ? 1 : d->mask_keys ? d->mask_keys : keys;
        const int64_t bias = d->bias_key_stride == 0 ? 1 : d->bias_keys ? d->bias_keys : keys;
        if (d->mask.type) require_fits(&d->mask, d->batch, d->heads, d->q_len, reference_row_bytes(d->mask.type, mask));
        if (d->bias.type) require_fits(&d->bias, d->batch, d->heads, d->q_len, reference_row_bytes(d->bias.type, bias));
        if (d->scores_stage) require_fits(&d->scores, d->batch, d->heads, d->q_len, reference_row_bytes(RAPT_F32, keys));
    }
    if (d->unmerged && d->kv_len)
        require_fits(&d->states, q_batch, d->heads, d->q_len, (int64_t)(RAPT_STATE_FLOATS(d->d_v) * sizeof(float)));

    rapt_plan_info info = {.size = sizeof info};
    require(rapt_plan_query(plan, &info) == RAPT_OK, "a plan cannot be queried");
    require(info.isa && info.rounding && info.arith && info.path, "a plan has no name for something");
    require((info.phases == 1 || info.phases == 2) && info.tasks[0] >= 0 && info.tasks[1] >= 0, "a plan has strange tasks");
    require(info.phases == 2 || info.tasks[1] == 0, "a plan has tasks in a phase that it has not");
    size_t one = 0, two = 0;
    const rapt_status status = rapt_workspace_size(plan, 1, &one);
    require(status == RAPT_OK || status == RAPT_ERR_SHAPE, "a workspace has no size");
    if (status != RAPT_OK || rapt_workspace_size(plan, 2, &two) != RAPT_OK) return;
    require(one == info.shared_bytes + info.thread_bytes && two == one + info.thread_bytes, "a workspace's size is not the sum");

    /* Without pointers a call is refused, unless there is nothing to do. (Each entry of a batch is looked at.) */
    if (d->batch > 10000) return;
    rapt_args args;
    rapt_args_init(&args);
    require(rapt_run(plan, &args) != RAPT_OK || info.tasks[0] == 0 || d->q_len == 0, "a call without pointers was accepted");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    int32_t q_starts[STARTS] = {0}, k_starts[STARTS] = {0};
    static struct {
        rapt_desc known;
        char unknown[1 << 16]; /* zeros, as a newer version's fields that are not used */
    } newest;
    rapt_desc *const d = &newest.known;
    rapt_tuning tuning;
    const uint8_t kind = take_byte(&in);
    *d = good_desc(kind, &tuning, &in);
    while (in.size) {
        const int which = (int)choose(&in, CHOICES);
        change(d, which == Q_STARTS ? q_starts : k_starts, which, &in);
    }
    if (d->batch >= STARTS) d->q_starts = d->k_starts = NULL;
    rapt_plan plan;
    char text[300];
    const rapt_status status = rapt_plan_init(&plan, d);
    require(rapt_status_string(status)[0] != 0, "a status without text");
    require(rapt_plan_explain(d, text, sizeof text) == status && (text[0] == 0) == (status == RAPT_OK),
            "a refusal and its explanation differ");
    if (status != RAPT_OK) return 0;
    rapt_desc seen; /* what lies beyond the struct's size has the defaults */
    const size_t told = d->size & 0xffff;
    rapt_desc_init(&seen);
    memcpy(&seen, d, told < sizeof seen ? told : sizeof seen);
    require_sound(&plan, &seen);
    return 0;
}
