/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of older versions, and structs of other sizes. A client compiled against the recorded headers of version 0.1 runs on
 * the shared library of today, and has the bits of one that is compiled against today's. Then every struct that begins with its
 * size, in every size, each right before a page that nobody may touch. */
#include <stdio.h>
#include <string.h>

#include "rapt_layer.h"

#include "fence.h"
#include "tap.h"
#include "client.h"

/* ---- Clients ------------------------------------------------------------------------------------------------------------- */

static client_facts recorded, current; /* the layouts */

static int same_facts(const client_facts *a, const client_facts *b) {
    const int most = sizeof a->at / sizeof *a->at;
    int different = a->count != b->count || a->count > most;
    for (int i = 0; i < a->count && i < b->count && i < most; i++) {
        const client_fact *x = &a->at[i], *y = &b->at[i];
        if (strcmp(x->of, y->of) == 0 && strcmp(x->what, y->what) == 0 && x->value == y->value) continue;
        printf("# %s, %s: %#llx; %s, %s: %#llx\n", x->of, x->what, (unsigned long long)x->value, y->of, y->what,
               (unsigned long long)y->value);
        different++;
    }
    return !different;
}

/* What a list says of that, or 0. */
static uint64_t fact(const client_facts *facts, const char *of, const char *what) {
    for (int i = 0; i < facts->count; i++)
        if (strcmp(facts->at[i].of, of) == 0 && strcmp(facts->at[i].what, what) == 0) return facts->at[i].value;
    return 0;
}

/* Structs only grow, so their sizes are not compared. */
static void forget_sizes(client_facts *facts) {
    for (int i = 0; i < facts->count; i++)
        if (strcmp(facts->at[i].what, "sizeof") == 0) facts->at[i].value = 0;
}

static void test_clients(void) {
    static client_facts old, new;
    const char *isa;
    recorded_layout(&recorded), current_layout(&current);
    old = recorded, new = current;
    forget_sizes(&old), forget_sizes(&new);
    tap_ok(old.count > 300 && same_facts(&old, &new), "%d constants and fields are where version 0.1 had them", old.count);
    for (int i = 0; (isa = rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(isa, NULL, 0) != RAPT_OK) continue;
        old.count = new.count = 0;
        recorded_results(isa, &old), current_results(isa, &new);
        int failed = 0, computed = 0, intact = 0;
        for (int n = 0; n < old.count; n++) {
            failed += strcmp(old.at[n].what, "status") == 0 && old.at[n].value != RAPT_OK;
            computed += strcmp(old.at[n].what, "is computed") == 0 && old.at[n].value;
            intact += strcmp(old.at[n].what, "touches only its structs") == 0 && old.at[n].value;
        }
        tap_ok(failed == 0 && computed == 10 && intact == 10,
               "%s: a client of version 0.1 computes %d of 10 cases, and touches only its structs in %d", isa, computed, intact);
        tap_ok(same_facts(&old, &new), "%s: with the bits of one of today, %d facts", isa, old.count);
    }
}

/* ---- Structs ------------------------------------------------------------------------------------------------------------- */

static char text[300]; /* the explanation of what was called last */
/* Prepacked weights are the largest: those of a single channel are 16 times 256, each of them four times in sse41. */
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 17];
static rapt_plan plan;
static rapt_linear_plan linear_plan;
static rapt_mha_plan layer_plan;
static rapt_decode_plan decode_plan;

/* The smallest problems, which have no tokens. */
static const rapt_layout row = {.type = RAPT_F32};

static void fill_desc(void *at) {
    rapt_desc *d = at;
    d->heads = d->kv_heads = d->d_k = d->d_v = 1;
    d->q = d->k = d->v = d->o = row;
}
static void fill_args(void *at) {
    rapt_args *a = at;
    a->workspace = workspace, a->workspace_bytes = sizeof workspace;
}
static void fill_append_desc(void *at) {
    rapt_kv_append_desc *d = at;
    d->kv_heads = d->d_k = d->d_v = 1;
    d->new_k = d->new_v = d->k = d->v = row;
}
static void fill_copy_desc(void *at) {
    rapt_kv_copy_desc *d = at;
    d->kv_heads = d->d_k = d->d_v = 1;
    d->k = d->v = row;
}
static void fill_rope_args(void *at) {
    rapt_rope_args *a = at;
    a->heads = a->d = 1;
    a->in = a->out = row;
}
static void fill_linear_desc(void *at) {
    rapt_linear_desc *d = at;
    d->in = d->out = 1;
    d->x = d->y = d->weight = row;
}
static void fill_linear_args(void *at) {
    rapt_linear_args *a = at;
    a->weight = &linear_plan;
    a->workspace = workspace, a->workspace_bytes = sizeof workspace;
}
static void fill_prepack_args(void *at) {
    rapt_linear_prepack_args *a = at;
    a->weight = &linear_plan;
    a->prepacked = workspace, a->prepacked_bytes = sizeof workspace;
}
static void fill_norm_args(void *at) {
    rapt_norm_args *a = at;
    a->channels = 1;
    a->x = a->y = row;
}
static rapt_desc attention;
static void fill_layer_desc(void *at) {
    rapt_mha_desc *d = at;
    d->attention = &attention;
    d->x_width = d->out_width = 1;
    d->x = d->out = d->wq = d->wk = d->wv = row;
}
static void fill_layer_args(void *at) {
    rapt_mha_args *a = at;
    a->wq = a->wk = a->wv = &layer_plan;
    a->workspace = workspace, a->workspace_bytes = sizeof workspace;
}
static void fill_decode_desc(void *at) {
    rapt_decode_desc *d = at;
    d->attention = &attention;
    d->new_k = d->new_v = row;
}
static rapt_args attention_args;
static void fill_decode_args(void *at) {
    rapt_decode_args *a = at;
    a->attention = &attention_args;
    a->workspace = workspace, a->workspace_bytes = sizeof workspace;
}
static void fill_nothing(void *at) { (void)at; }

/* What a call returns, which must be what its explanation returns. */
static rapt_status both(rapt_status explained, rapt_status called) {
    return explained == called ? called : (rapt_status)INT32_MIN;
}

static rapt_status use_desc(const void *at) {
    static rapt_plan made;
    return both(rapt_plan_explain(at, text, sizeof text), rapt_plan_init(&made, at));
}
static rapt_status use_args(const void *at) {
    return both(rapt_args_explain(&plan, at, 1, text, sizeof text), rapt_run(&plan, at));
}
static rapt_status use_append(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args) {
    return both(rapt_kv_append_explain(desc, args, text, sizeof text), rapt_kv_append_run(desc, args));
}
static rapt_status use_append_desc(const void *at) {
    rapt_kv_append_args args;
    rapt_kv_append_args_init(&args);
    return use_append(at, &args);
}
static rapt_status use_append_args(const void *at) {
    rapt_kv_append_desc desc;
    rapt_kv_append_desc_init(&desc);
    fill_append_desc(&desc);
    return use_append(&desc, at);
}
static rapt_status use_copy(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args) {
    return both(rapt_kv_copy_explain(desc, args, text, sizeof text), rapt_kv_copy_run(desc, args));
}
static rapt_status use_copy_desc(const void *at) {
    rapt_kv_copy_args args;
    rapt_kv_copy_args_init(&args);
    return use_copy(at, &args);
}
static rapt_status use_copy_args(const void *at) {
    rapt_kv_copy_desc desc;
    rapt_kv_copy_desc_init(&desc);
    fill_copy_desc(&desc);
    return use_copy(&desc, at);
}
static rapt_status use_rope_args(const void *at) { return both(rapt_rope_explain(at, text, sizeof text), rapt_rope_run(at)); }
static rapt_status use_linear_desc(const void *at) {
    static rapt_linear_plan made;
    return both(rapt_linear_explain(at, text, sizeof text), rapt_linear_plan_init(&made, at));
}
static rapt_status use_linear_args(const void *at) {
    return both(rapt_linear_args_explain(&linear_plan, at, 1, text, sizeof text), rapt_linear_run(&linear_plan, at));
}
static rapt_status use_prepack_args(const void *at) {
    return both(rapt_linear_prepack_args_explain(&linear_plan, at, 1, text, sizeof text),
                rapt_linear_prepack_run(&linear_plan, at));
}
static rapt_status use_layer_norm(const void *at) {
    return both(rapt_layer_norm_explain(at, text, sizeof text), rapt_layer_norm_run(at));
}
static rapt_status use_rms_norm(const void *at) {
    return both(rapt_rms_norm_explain(at, text, sizeof text), rapt_rms_norm_run(at));
}
static rapt_status use_layer_desc(const void *at) {
    static rapt_mha_plan made;
    return both(rapt_mha_explain(at, text, sizeof text), rapt_mha_plan_init(&made, at));
}
static rapt_status use_desc_of_layer(const void *at) {
    rapt_mha_desc desc;
    rapt_mha_desc_init(&desc);
    fill_layer_desc(&desc);
    desc.attention = at;
    return use_layer_desc(&desc);
}
static rapt_status use_layer_args(const void *at) {
    return both(rapt_mha_args_explain(&layer_plan, at, 1, text, sizeof text), rapt_mha_run(&layer_plan, at));
}
static rapt_status use_args_of_layer(const void *at) {
    rapt_mha_args args;
    rapt_mha_args_init(&args);
    fill_layer_args(&args);
    args.attention = at;
    return use_layer_args(&args);
}
static rapt_status use_decode_desc(const void *at) {
    static rapt_decode_plan made;
    return both(rapt_decode_explain(at, text, sizeof text), rapt_decode_plan_init(&made, at));
}
static rapt_status use_desc_of_decode(const void *at) {
    rapt_decode_desc desc;
    rapt_decode_desc_init(&desc);
    fill_decode_desc(&desc);
    desc.attention = at;
    return use_decode_desc(&desc);
}
static rapt_status use_decode_args(const void *at) {
    return both(rapt_decode_args_explain(&decode_plan, at, 1, text, sizeof text), rapt_decode_run(&decode_plan, at));
}
static rapt_status use_args_of_decode(const void *at) {
    rapt_decode_args args;
    rapt_decode_args_init(&args);
    fill_decode_args(&args);
    args.attention = at;
    return use_decode_args(&args);
}
static rapt_status use_tuning(const void *at) {
    rapt_desc desc;
    rapt_desc_init(&desc);
    fill_desc(&desc);
    desc.tuning = at;
    return use_desc(&desc);
}
static rapt_status use_tuning_of_linear(const void *at) {
    rapt_linear_desc desc;
    rapt_linear_desc_init(&desc);
    fill_linear_desc(&desc);
    desc.tuning = at;
    return use_linear_desc(&desc);
}

/* init_rapt_desc, init_rapt_args and so on: rapt_desc_init_sized, rapt_args_init_sized, of any struct. */
#define INIT(type)                                                                                                               \
    static void init_##type(void *at, size_t size) { type##_init_sized(at, size); }
INIT(rapt_desc)
INIT(rapt_args)
INIT(rapt_kv_append_desc)
INIT(rapt_kv_append_args)
INIT(rapt_kv_copy_desc)
INIT(rapt_kv_copy_args)
INIT(rapt_rope_args)
INIT(rapt_linear_desc)
INIT(rapt_linear_args)
INIT(rapt_linear_prepack_args)
INIT(rapt_norm_args)
INIT(rapt_mha_desc)
INIT(rapt_mha_args)
INIT(rapt_decode_desc)
INIT(rapt_decode_args)
INIT(rapt_tuning)

/* Every struct with an init function, and every way in which the library comes to read it. */
typedef struct sized {
    const char *name;
    size_t bytes;
    void (*init)(void *at, size_t size);
    void (*fill)(void *at); /* with what a call needs, all of it in the part that the first version had */
    rapt_status (*use)(const void *at);
    const char *reader;
} sized;
#define SIZED(type, fill, use, reader) {#type, sizeof(type), init_##type, fill, use, reader}
static const sized structs[] = {
    SIZED(rapt_desc, fill_desc, use_desc, "rapt_plan_init"),
    SIZED(rapt_desc, fill_desc, use_desc_of_layer, "rapt_mha_plan_init"),
    SIZED(rapt_desc, fill_desc, use_desc_of_decode, "rapt_decode_plan_init"),
    SIZED(rapt_args, fill_args, use_args, "rapt_run"),
    SIZED(rapt_args, fill_nothing, use_args_of_layer, "rapt_mha_run"),
    SIZED(rapt_args, fill_nothing, use_args_of_decode, "rapt_decode_run"),
    SIZED(rapt_kv_append_desc, fill_append_desc, use_append_desc, "rapt_kv_append_run_share"),
    SIZED(rapt_kv_append_args, fill_nothing, use_append_args, "rapt_kv_append_run_share"),
    SIZED(rapt_kv_copy_desc, fill_copy_desc, use_copy_desc, "rapt_kv_copy_run_share"),
    SIZED(rapt_kv_copy_args, fill_nothing, use_copy_args, "rapt_kv_copy_run_share"),
    SIZED(rapt_rope_args, fill_rope_args, use_rope_args, "rapt_rope_run_share"),
    SIZED(rapt_linear_desc, fill_linear_desc, use_linear_desc, "rapt_linear_plan_init"),
    SIZED(rapt_linear_args, fill_linear_args, use_linear_args, "rapt_linear_run_share"),
    SIZED(rapt_linear_prepack_args, fill_prepack_args, use_prepack_args, "rapt_linear_prepack_run_share"),
    SIZED(rapt_norm_args, fill_norm_args, use_layer_norm, "rapt_layer_norm_run_share"),
    SIZED(rapt_norm_args, fill_norm_args, use_rms_norm, "rapt_rms_norm_run_share"),
    SIZED(rapt_mha_desc, fill_layer_desc, use_layer_desc, "rapt_mha_plan_init"),
    SIZED(rapt_mha_args, fill_layer_args, use_layer_args, "rapt_mha_run"),
    SIZED(rapt_decode_desc, fill_decode_desc, use_decode_desc, "rapt_decode_plan_init"),
    SIZED(rapt_decode_args, fill_decode_args, use_decode_args, "rapt_decode_run"),
    SIZED(rapt_tuning, fill_nothing, use_tuning, "rapt_plan_init"),
    SIZED(rapt_tuning, fill_nothing, use_tuning_of_linear, "rapt_linear_plan_init"),
};

/* The bytes that it had in the version which first had it. */
static size_t first_bytes(const sized *s) {
    const size_t bytes = (size_t)fact(&recorded, s->name, "sizeof");
    return bytes ? bytes : s->bytes;
}

static void make_plans(void) {
    rapt_linear_desc linear;
    rapt_mha_desc layer;
    rapt_decode_desc decode;
    rapt_desc_init(&attention), rapt_args_init(&attention_args), rapt_linear_desc_init(&linear);
    rapt_mha_desc_init(&layer), rapt_decode_desc_init(&decode);
    fill_desc(&attention), fill_linear_desc(&linear), fill_layer_desc(&layer), fill_decode_desc(&decode);
    rapt_status status = rapt_plan_init(&plan, &attention);
    if (status == RAPT_OK) status = rapt_linear_plan_init(&linear_plan, &linear);
    if (status == RAPT_OK) status = rapt_mha_plan_init(&layer_plan, &layer);
    if (status == RAPT_OK) status = rapt_decode_plan_init(&decode_plan, &decode);
    tap_ok(status == RAPT_OK, "plans of the smallest problems: %s", rapt_status_string(status));
}

/* Returns the status for a struct that says it has `size` bytes, while there are `room` bytes. poke: a byte that is set, or 0. */
static rapt_status status_of(const sized *s, size_t room, size_t size, size_t poke) {
    fence f = fence_create(room, -1, 0);
    s->init(f.data, size);
    if (room >= first_bytes(s)) s->fill(f.data);
    if (poke) f.data[poke] = 1;
    rapt_status status = s->use(f.data);
    fence_destroy(&f);
    return status;
}

static rapt_status status_of_uninitialised(const sized *s, int byte, size_t size) {
    fence f = fence_create(s->bytes, -1, 0);
    fence_fill(&f, byte);
    if (size) memcpy(f.data, &size, sizeof size);
    s->fill(f.data);
    rapt_status status = s->use(f.data);
    fence_destroy(&f);
    return status;
}

/* True if the init function sets as many bytes of the defaults as fit, and zeros after them, and leaves a struct without room for
 * its size as it is. */
static int init_fits(const sized *s, size_t size) {
    unsigned char whole[1024];
    fence f = fence_create(size, -1, 0);
    s->init(whole, s->bytes);
    s->init(f.data, size);
    int good = fence_slack_intact(&f);
    for (size_t i = size < sizeof size ? 0 : sizeof size; i < size; i++)
        good &= f.data[i] == (size < sizeof size ? FENCE_CANARY : i < s->bytes ? whole[i] : 0);
    fence_destroy(&f);
    return good;
}

static void test_struct(const sized *s) {
    enum { BEYOND = 64, STEP = sizeof(uint64_t) };
    const size_t first = first_bytes(s);
    int fits = 1, accepted = 1, refused = 1, absurd = 1, larger = 1;
    for (size_t size = 0; size <= s->bytes + BEYOND; size++) fits &= init_fits(s, size);
    tap_ok(fits, "%s: init fills what fits", s->name);
    for (size_t size = STEP; size <= s->bytes; size += STEP)
        *(size < first ? &refused : &accepted) &= status_of(s, size, size, 0) == (size < first ? RAPT_ERR_STRUCT : RAPT_OK);
    tap_ok(accepted, "%s, by %s: accepted from %zu to %zu bytes: %s", s->name, s->reader, first, s->bytes, text);
    tap_ok(refused, "%s, by %s: below them refused", s->name, s->reader);
    static const size_t sizes[] = {0, 1, 0xffff, 0x10000, (size_t)1 << 32, SIZE_MAX / 2, SIZE_MAX - 7, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        absurd &= status_of_uninitialised(s, 0, sizes[i]) == RAPT_ERR_STRUCT;
        absurd &= (sizes[i] >= STEP && sizes[i] <= 0xffff) || status_of(s, s->bytes, sizes[i], 0) == RAPT_ERR_STRUCT;
    }
    tap_ok(absurd, "%s, by %s: absurd sizes are refused, and nothing beyond the struct is read", s->name, s->reader);
    for (size_t more = STEP; more <= BEYOND; more += STEP) {
        const size_t size = s->bytes + more;
        larger &= status_of(s, size, size, 0) == RAPT_OK;
        for (size_t i = s->bytes; i < size; i++) larger &= status_of(s, size, size, i) == RAPT_ERR_STRUCT;
    }
    tap_ok(larger, "%s, by %s: a larger one is accepted if what is unknown is 0", s->name, s->reader);
    int unmarked = status_of_uninitialised(s, 0, 0) == RAPT_ERR_STRUCT && status_of_uninitialised(s, 0xff, 0) == RAPT_ERR_STRUCT;
    tap_ok(unmarked && status_of_uninitialised(s, 0, s->bytes) == RAPT_ERR_STRUCT && strstr(text, "size"),
           "%s, by %s: one that was not initialised is refused: %s", s->name, s->reader, text);
}

/* ---- Structs for results, whose size the caller sets --------------------------------------------------------------------- */

static rapt_status query_plan(void *info) { return rapt_plan_query(&plan, info); }
static rapt_status query_layer(void *info) { return rapt_mha_plan_query(&layer_plan, info); }
static rapt_status query_decode(void *info) { return rapt_decode_plan_query(&decode_plan, info); }

static const struct {
    const char *name;
    size_t bytes;
    rapt_status (*query)(void *info);
} infos[] = {
    {"rapt_plan_info", sizeof(rapt_plan_info), query_plan},
    {"rapt_mha_plan_info", sizeof(rapt_mha_plan_info), query_layer},
    {"rapt_plan_info", sizeof(rapt_plan_info), query_decode},
};

static void test_info(const char *name, size_t bytes, rapt_status (*query)(void *info)) {
    const size_t first = (size_t)fact(&recorded, name, "sizeof");
    int good = 1;
    for (size_t size = sizeof size; size <= bytes + 64; size += sizeof size) {
        fence f = fence_create(size, -1, 0);
        memcpy(f.data, &size, sizeof size);
        good &= query(f.data) == (size < first ? RAPT_ERR_STRUCT : RAPT_OK) && memcmp(f.data, &size, sizeof size) == 0;
        for (size_t i = sizeof size; i < size; i++) /* pointers, numbers: none of them canaries all over */
            good &= size < first ? f.data[i] == FENCE_CANARY : i < bytes || f.data[i] == 0;
        good &= fence_slack_intact(&f);
        fence_destroy(&f);
    }
    tap_ok(good, "%s: as much is written as there is room for, from %zu bytes on", name, first);
    static const size_t sizes[] = {0, 1, 0x10000, SIZE_MAX / 2, SIZE_MAX};
    good = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fence f = fence_create(bytes, -1, 0);
        memcpy(f.data, &sizes[i], sizeof *sizes);
        good &= query(f.data) == RAPT_ERR_STRUCT;
        fence_destroy(&f);
    }
    tap_ok(good, "%s: absurd sizes are refused", name);
}

/* ---- Plans --------------------------------------------------------------------------------------------------------------- */

static rapt_status init_plan(void *to, size_t bytes) { return rapt_plan_init_sized(to, bytes, &attention); }
static rapt_status init_ragged_plan(void *to, size_t bytes) {
    enum { ENTRIES = 100 };
    int32_t starts[ENTRIES + 1] = {0};
    rapt_desc d;
    rapt_desc_init(&d);
    fill_desc(&d);
    d.batch = ENTRIES, d.q_starts = starts;
    return rapt_plan_init_sized(to, bytes, &d);
}
static rapt_status init_linear_plan(void *to, size_t bytes) {
    rapt_linear_desc d;
    rapt_linear_desc_init(&d);
    fill_linear_desc(&d);
    return rapt_linear_plan_init_sized(to, bytes, &d);
}
static rapt_status init_layer_plan(void *to, size_t bytes) {
    rapt_mha_desc d;
    rapt_mha_desc_init(&d);
    fill_layer_desc(&d);
    return rapt_mha_plan_init_sized(to, bytes, &d);
}
static rapt_status init_decode_plan(void *to, size_t bytes) {
    rapt_decode_desc d;
    rapt_decode_desc_init(&d);
    fill_decode_desc(&d);
    return rapt_decode_plan_init_sized(to, bytes, &d);
}

static const struct {
    const char *name;
    size_t promised, bytes; /* words that the header names as enough, and those to try, as bytes */
    rapt_status (*init)(void *to, size_t bytes);
} plans[] = {
    {"rapt_plan", 192 * sizeof(uint64_t), sizeof(rapt_plan), init_plan},
    {"rapt_plan of a ragged batch", 192 * sizeof(uint64_t), RAPT_PLAN_BYTES(110), init_ragged_plan},
    {"rapt_linear_plan", 64 * sizeof(uint64_t), sizeof(rapt_linear_plan), init_linear_plan},
    {"rapt_mha_plan", 1280 * sizeof(uint64_t), sizeof(rapt_mha_plan), init_layer_plan},
    {"rapt_decode_plan", sizeof(rapt_decode_plan), sizeof(rapt_decode_plan), init_decode_plan},
};

static void test_plan(const char *name, size_t promised, size_t bytes, rapt_status (*init)(void *to, size_t bytes)) {
    size_t least = 0;
    int good = 1;
    for (size_t n = 0; n <= bytes; n += sizeof(uint64_t)) {
        fence f = fence_create(n, -1, 0);
        rapt_status status = init(f.data, n);
        if (status == RAPT_OK && !least) least = n;
        good &= status == (least ? RAPT_OK : RAPT_ERR_STRUCT) && fence_slack_intact(&f) && (least || fence_intact(&f));
        fence_destroy(&f);
    }
    tap_ok(good && least > 0 && least <= promised, "%s: in memory of %zu bytes and more, all else left alone", name, least);
    fence f = fence_create(bytes + 4, -1, 0); /* ends where a page ends, so begins 4 bytes off */
    tap_ok(init(f.data, bytes) == RAPT_ERR_ALIGNMENT && fence_intact(&f), "%s: not at an odd address", name);
    fence_destroy(&f);
}

/* ---- Is any missing? ----------------------------------------------------------------------------------------------------- */

static int is_tested(const char *name) {
    int found = 0;
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++) found |= strcmp(structs[i].name, name) == 0;
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++) found |= strcmp(infos[i].name, name) == 0;
    return found;
}

static void test_header(const char *path) {
    char line[300], name[64] = "";
    int found = 0, missing = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        int begins = sscanf(line, "typedef struct %63s {", name) == 1;
        if (!begins && *name && strncmp(line, "    size_t size;", 16) == 0) {
            found++, missing += !is_tested(name);
            if (!is_tested(name)) printf("# %s\n", name);
        }
        if (!begins) *name = '\0';
    }
    tap_ok(file && found > 0 && missing == 0, "%s: of %d structs that begin with their size, %d are missing here", path, found,
           missing);
    if (file) fclose(file);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) test_header(argv[i]);
    test_clients();
    make_plans();
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++) test_struct(&structs[i]);
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++) test_info(infos[i].name, infos[i].bytes, infos[i].query);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        test_plan(plans[i].name, plans[i].promised, plans[i].bytes, plans[i].init);
    return tap_done();
}
