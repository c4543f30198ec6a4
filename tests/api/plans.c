/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan, once made, spares, and in which order its tasks stand. Tasks of ragged batches give the bits of rapt_run, in any
 * order, and find their entry without going through the batch: shown by taking away the memory that they must not need, not by a
 * clock, which depends on what else the machine does. Kernels are chosen by name without asking the CPU again, and by themselves
 * without its slow features. */
#define _DEFAULT_SOURCE /* signals, for page_faults.h */

/* The library's detection of features, counted: this definition comes before that of the archive. */
#define rapt_cpu_features_detect detect
#define rapt_cpu_slow_detect     detect_slow
#include RAPT_CPU_FILE /* NOLINT(bugprone-suspicious-include): for it is given another name here */
#undef rapt_cpu_features_detect
#undef rapt_cpu_slow_detect

#include "fence.h"
#include "each_kernel.h"
#include "page_faults.h"
#include "serial.h"
#include "tensors.h"

uint32_t rapt_cpu_features_detect(void);
static int asked;
uint32_t rapt_cpu_features_detect(void) {
    asked++;
    return detect();
}

uint32_t rapt_cpu_slow_detect(void);
static uint32_t also_slow;
uint32_t rapt_cpu_slow_detect(void) { return detect_slow() | also_slow; }

enum { HEADS = 2, D = 5 };

/* Ragged queries and keys in one array of starts. */
static void describe(rapt_desc *d, const char *isa, int64_t batch, const int32_t *starts, int64_t threads) {
    const int64_t tokens = starts[batch] + 3; /* the last ones belong to no entry */
    rapt_desc_init(d);
    d->batch = batch, d->heads = HEADS, d->kv_heads = 1, d->q_len = d->kv_len = tokens, d->d_k = d->d_v = D, d->isa = isa;
    d->q = d->o = rapt_layout_bshd(RAPT_F32, HEADS, tokens, D), d->k = d->v = rapt_layout_bshd(RAPT_F32, 1, tokens, D);
    d->q_starts = d->k_starts = starts, d->threads = threads;
}

/* ---- Bits ---------------------------------------------------------------------------------------------------------------- */

static bool tasks_agree(const char *isa, int64_t batch, size_t plan_bytes, int64_t threads) {
    enum { LONGEST = 600, SLOTS = 2 };
    static int32_t starts[200];
    rapt_desc desc;
    rapt_args args;
    rapt_plan_info info = {.size = sizeof info};
    rapt_plan *plan = malloc(plan_bytes);
    size_t bytes = 0;
    starts[0] = (int32_t)below(3);
    for (int64_t b = 0; b < batch; b++)
        starts[b + 1] = starts[b] + (one_in(4) ? 0 : one_in(20) ? LONGEST : 1 + (int32_t)below(7));
    describe(&desc, isa, batch, starts, threads);
    if (!plan || rapt_plan_init_sized(plan, plan_bytes, &desc) || rapt_plan_query(plan, &info) ||
        rapt_workspace_size(plan, SLOTS, &bytes))
        abort();
    tensor q = random_rows(RAPT_F32, 1, desc.q_len, HEADS * D, 0, 1.0f), k = random_rows(RAPT_F32, 1, desc.kv_len, D, 0, 1.0f);
    tensor v = random_rows(RAPT_F32, 1, desc.kv_len, D, 0, 1.0f), want = new_rows(RAPT_F32, 1, desc.q_len, HEADS * D, 0),
           o = copy_of(&want);
    rapt_args_init(&args);
    args.q = q.at, args.k = k.at, args.v = v.at, args.o = want.at, args.workspace = new_workspace(bytes),
    args.workspace_bytes = bytes;
    bool ok = rapt_run(plan, &args) == RAPT_OK;
    args.o = o.at;
    for (int phase = 0; phase < info.phases; phase++) {
        const int64_t tasks = info.tasks[phase];
        int32_t *order = malloc((size_t)(tasks + !tasks) * sizeof *order);
        if (!order) abort();
        for (int64_t n = 0; n < tasks; n++) order[n] = (int32_t)n;
        shuffle(order, tasks);
        for (int64_t n = 0; n < tasks; n++) ok = ok && rapt_run_task(plan, &args, phase, order[n], n % SLOTS) == RAPT_OK;
        free(order);
    }
    ok = ok && same_tensor(&o, &want);
    aligned_destroy(args.workspace), free(plan);
    free_tensor(&q), free_tensor(&k), free_tensor(&v), free_tensor(&want), free_tensor(&o);
    return ok;
}

/* An entry without queries has no task in phase 0, and in phase 1, where another entry's keys are shared by tasks, as many as
 * that: here one for each row, of two heads. */
static void entries_without_queries(void) {
    static const int32_t q_starts[] = {0, 0, 1}, k_starts[] = {0, 0, 4096};
    rapt_desc desc;
    rapt_plan plan;
    rapt_args args;
    rapt_plan_info info = {.size = sizeof info};
    size_t bytes = 0;
    describe(&desc, NULL, 2, k_starts, 8);
    desc.q_starts = q_starts, desc.q_len = 1, desc.q = desc.o = rapt_layout_bshd(RAPT_F32, HEADS, 1, D);
    if (rapt_plan_init(&plan, &desc) || rapt_plan_query(&plan, &info) || rapt_workspace_size(&plan, 1, &bytes)) abort();
    tensor q = random_rows(RAPT_F32, 1, 1, HEADS * D, 0, 1.0f), k = random_rows(RAPT_F32, 1, desc.kv_len, D, 0, 1.0f);
    tensor want = new_rows(RAPT_F32, 1, 1, HEADS * D, 0), o = copy_of(&want);
    rapt_args_init(&args);
    args.q = q.at, args.k = args.v = k.at, args.o = want.at, args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    bool ok = rapt_run(&plan, &args) == RAPT_OK;
    args.o = o.at;
    for (int phase = 0; phase < info.phases; phase++)
        for (int64_t n = 0; n < info.tasks[phase]; n++) ok = ok && rapt_run_task(&plan, &args, phase, n, 0) == RAPT_OK;
    tap_ok(ok && info.phases == 2 && info.tasks[1] == 4 && same_tensor(&o, &want),
           "an entry without queries: its tasks of phase 1 can be run alone, %d phases", info.phases);
    aligned_destroy(args.workspace);
    free_tensor(&q), free_tensor(&k), free_tensor(&want), free_tensor(&o);
}

/* ---- The order of tasks -------------------------------------------------------------------------------------------------- */

enum { TURN_ENTRIES = 3, TURN_KV_HEADS = 2, TURN_GROUP = 2, TURN_QUERIES = 200 };

/* What the tasks of a call have computed so far, by the logits that they show. */
typedef struct turns {
    int task;                                                           /* the one that runs, counted from 1 */
    int of_row[TURN_ENTRIES][TURN_KV_HEADS * TURN_GROUP][TURN_QUERIES]; /* which task has computed it; 0: none */
    int head, last_token;                                               /* of the task; heads of all entries */
    int wrong;
} turns;

static void note_rows(void *arg, const rapt_logits *l) {
    turns *t = arg;
    for (int r = 0; r < l->rows; r++) {
        int *task = &t->of_row[l->batch][l->heads[r]][l->tokens[r]];
        t->wrong += *task != 0 && *task != t->task;
        *task = t->task;
        t->head = (int)l->batch * TURN_KV_HEADS + l->heads[r] / TURN_GROUP;
        if (l->tokens[r] > t->last_token) t->last_token = l->tokens[r];
    }
}

typedef enum turn_mask { NO_MASK, SHARED_MASK, OWN_MASKS } turn_mask; /* of all keys */

/* Returns how much is wrong: each row belongs to one task, and heads take turns, the last rows of each first: those of an entry
 * that share a mask, if they are more than the threads; else, where the mask is causal, as many as there are threads, of all
 * entries. */
static int turns_wrong(const char *isa, rapt_causal causal, turn_mask mask, int threads) {
    static turns t;
    static unsigned char ones[TURN_KV_HEADS * TURN_GROUP * TURN_QUERIES * TURN_QUERIES];
    memset(ones, 1, sizeof ones);
    rapt_desc d;
    rapt_plan plan;
    rapt_args args;
    rapt_plan_info info = {.size = sizeof info};
    size_t bytes = 0;
    rapt_desc_init(&d);
    d.batch = TURN_ENTRIES, d.heads = TURN_KV_HEADS * TURN_GROUP, d.kv_heads = TURN_KV_HEADS, d.q_len = d.kv_len = TURN_QUERIES;
    d.d_k = d.d_v = D, d.isa = isa, d.threads = threads, d.causal = causal, d.logits_body = note_rows;
    d.q = d.o = rapt_layout_bshd(RAPT_F32, d.heads, d.q_len, D), d.k = d.v = rapt_layout_bshd(RAPT_F32, d.kv_heads, d.kv_len, D);
    if (mask) d.mask = (rapt_layout){RAPT_BOOL, 0, mask == OWN_MASKS ? TURN_QUERIES * TURN_QUERIES : 0, TURN_QUERIES};
    if (rapt_plan_init(&plan, &d) || rapt_plan_query(&plan, &info) || rapt_workspace_size(&plan, 1, &bytes)) abort();
    tensor q = random_rows(RAPT_F32, d.batch, d.q_len, d.heads * D, 0, 1.0f), o = copy_of(&q);
    rapt_args_init(&args);
    args.mask = mask ? ones : NULL;
    args.q = args.k = args.v = q.at, args.o = o.at, args.logits_arg = &t;
    args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    t = (turns){.wrong = info.phases != 1};
    const int together = mask == SHARED_MASK && threads < TURN_KV_HEADS ? TURN_KV_HEADS : causal ? threads : 1;
    for (int block = 0, last = TURN_QUERIES; t.task < info.tasks[0];) {
        t.task++, t.last_token = 0;
        t.wrong += rapt_run_task(&plan, &args, 0, t.task - 1, 0) != RAPT_OK;
        if (t.head / together > block) block = t.head / together, last = TURN_QUERIES;
        t.wrong += t.head / together < block || t.last_token > last;
        last = t.last_token;
    }
    for (int b = 0; b < TURN_ENTRIES; b++)
        for (int h = 0; h < TURN_KV_HEADS * TURN_GROUP; h++)
            for (int i = 0; i < TURN_QUERIES; i++) t.wrong += t.of_row[b][h][i] == 0;
    aligned_destroy(args.workspace), free_tensor(&q), free_tensor(&o);
    return t.wrong;
}

static void take_turns(const char *isa) {
    static const int threads[] = {1, 2, 4, 5, 6, 64};
    int wrong = 0;
    for (size_t n = 0; n < sizeof threads / sizeof *threads; n++)
        for (turn_mask mask = NO_MASK; mask <= OWN_MASKS; mask++)
            wrong += turns_wrong(isa, RAPT_CAUSAL_BOTTOM_RIGHT, mask, threads[n]) +
                     turns_wrong(isa, RAPT_CAUSAL_NONE, mask, threads[n]);
    tap_ok(wrong == 0, "%s: each row has its task, and heads of all entries, or those that share a mask, take turns: %d wrong",
           isa, wrong);
}

/* The tasks of 12 heads, which are equally long, are a multiple of the threads, so that these end together, and those of few rows
 * and many keys share both. */
static void fill_threads(const char *isa) {
    static const int64_t threads[] = {8, 16, 32};
    rapt_desc d;
    rapt_plan plan;
    rapt_tuning tuning;
    rapt_plan_info info = {.size = sizeof info};
    int wrong = 0;
    rapt_tuning_init(&tuning), rapt_desc_init(&d);
    if (rapt_tuning_parse("any pass_l2=256", &tuning)) abort(); /* else a small cache would have a say */
    d.isa = isa, d.tuning = &tuning, d.heads = d.kv_heads = 12, d.q_len = d.kv_len = 512, d.d_k = d.d_v = 64;
    d.q = d.k = d.v = d.o = rapt_layout_bshd(RAPT_F32, d.heads, d.q_len, d.d_k);
    for (size_t n = 0; n < sizeof threads / sizeof *threads; n++) {
        d.threads = threads[n];
        if (rapt_plan_init(&plan, &d) || rapt_plan_query(&plan, &info)) abort();
        wrong += info.phases != 1 || info.tasks[0] % threads[n] != 0;
    }
    d.heads = d.kv_heads = 1, d.kv_len = 8192, d.threads = 64;
    if (rapt_plan_init(&plan, &d) || rapt_plan_query(&plan, &info)) abort();
    wrong += info.phases != 2 || info.tasks[0] < 64 || info.tasks[1] < 64;
    tap_ok(wrong == 0, "%s: equal tasks fill 8, 16 and 32 threads, rows and keys are cut for 64: %d wrong", isa, wrong);
}

/* ---- Starts that change after planning ----------------------------------------------------------------------------------- */

enum { KEPT = 40 };

/* Changes one to three of the starts: by a little, to any number, or to what another one is. Returns false if they stay the same.
 */
static bool change_starts(int32_t *starts, const int32_t *kept) {
    for (int64_t n = 1 + below(3); n > 0; n--) {
        const int64_t b = below(KEPT + 1);
        starts[b] = one_in(3) ? kept[b] + 1 - 2 * (int32_t)below(2) : one_in(2) ? (int32_t)random_bits() : kept[below(KEPT)];
    }
    return memcmp(starts, kept, (KEPT + 1) * sizeof *starts) != 0;
}

static void no_wait(void *barrier) { (void)barrier; }

static bool refused_in_all_ways(const rapt_plan *plan, const rapt_args *args) {
    return rapt_run(plan, args) == RAPT_ERR_TABLE && rapt_run_share(plan, args, 0, 1, no_wait, NULL) == RAPT_ERR_TABLE &&
           rapt_run_parallel(plan, args, 1, serial, NULL) == RAPT_ERR_TABLE &&
           rapt_run_phase(plan, args, 0, 0, 1) == RAPT_ERR_TABLE && rapt_args_explain(plan, args, 1, NULL, 0) == RAPT_ERR_TABLE;
}

/* A run refuses starts that are not the plan's, in all its ways. One task may meet such that it cannot tell from the plan's; then
 * it stays within the memory that the plan has measured, as sanitizers and valgrind see. With trust_starts, only tasks look. */
static void changed_starts(void) {
    enum { TRIES = 3000 };
    int wrong = 0, refused = 0, tasks = 0;
    random_state = 20;
    for (int n = 0; n < TRIES; n++) {
        int32_t kept[KEPT + 1], q_starts[KEPT + 1], k_starts[KEPT + 1];
        kept[0] = (int32_t)below(3);
        for (int b = 0; b < KEPT; b++) kept[b + 1] = kept[b] + (one_in(4) ? 0 : one_in(20) ? 600 : 1 + (int32_t)below(7));
        memcpy(q_starts, kept, sizeof kept), memcpy(k_starts, kept, sizeof kept);
        rapt_desc desc;
        rapt_args args;
        rapt_plan_info info = {.size = sizeof info};
        const size_t plan_bytes = n % 2 ? RAPT_PLAN_BYTES(KEPT) : RAPT_PLAN_BYTES(7);
        rapt_plan *plan = malloc(plan_bytes);
        size_t bytes = 0;
        describe(&desc, NULL, KEPT, q_starts, n % 3 ? 8 : 1);
        desc.k_starts = k_starts, desc.trust_starts = n % 4 == 0;
        if (!plan || rapt_plan_init_sized(plan, plan_bytes, &desc) || rapt_plan_query(plan, &info) ||
            rapt_workspace_size(plan, 1, &bytes))
            abort();
        tensor q = new_rows(RAPT_F32, 1, desc.q_len, HEADS * D, 0), k = new_rows(RAPT_F32, 1, desc.kv_len, D, 0), o = copy_of(&q);
        rapt_args_init(&args);
        args.q = q.at, args.k = args.v = k.at, args.o = o.at, args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
        wrong += rapt_args_explain(plan, &args, 1, NULL, 0) != RAPT_OK;
        if (change_starts(below(2) ? q_starts : k_starts, kept)) {
            wrong += !desc.trust_starts && !refused_in_all_ways(plan, &args);
            for (int i = 0; i < 5; i++, tasks++) {
                const int phase = (int)below(info.phases);
                const rapt_status status = rapt_run_task(plan, &args, phase, below(info.tasks[phase]), 0);
                wrong += status != RAPT_OK && status != RAPT_ERR_TABLE;
                refused += status != RAPT_OK;
            }
        }
        aligned_destroy(args.workspace), free(plan), free_tensor(&q), free_tensor(&k), free_tensor(&o);
    }
    tap_ok(wrong == 0 && refused > tasks / 20 && refused < tasks,
           "starts that change after planning are refused: %d of %d wrong (%d of %d tasks)", wrong, TRIES, refused, tasks);
}

/* ---- What a task reads --------------------------------------------------------------------------------------------------- */

enum { ENTRIES = 40000 }; /* of one token */

/* Takes away the pages of starts but for the first, and those of entries first .. last. */
static void keep_starts(void *starts, int64_t first, int64_t last) {
    const int64_t page = (int64_t)page_bytes(), each = page / (int64_t)sizeof(int32_t);
    for (int64_t n = 1; n * each <= ENTRIES; n++)
        if ((n + 1) * each <= first || n * each > last) pages_protect((char *)starts + n * page, (size_t)page, PAGES_CLOSED);
}

/* The tasks of an entry, which are all alike. */
typedef struct entry {
    const rapt_plan *plan;
    const rapt_args *args;
    int64_t first, tasks;
    int refused;
} entry;

static void run_entry(void *arg) {
    entry *e = arg;
    for (int64_t i = 0; i < e->tasks; i++) e->refused += rapt_run_task(e->plan, e->args, 0, e->first + i, 0) != RAPT_OK;
}

static void far_starts(void) {
    const size_t plans[] = {RAPT_PLAN_BYTES(ENTRIES), sizeof(rapt_plan)};
    static const int64_t tasks[] = {0, 1, 3001, ENTRIES / 2, ENTRIES - 2, ENTRIES - 1};
    enum { TASKS = sizeof tasks / sizeof *tasks };
    const size_t starts_bytes = ((ENTRIES + 1) * sizeof(int32_t) / page_bytes() + 1) * page_bytes();
    int32_t *starts = pages_create(starts_bytes);
    pages_open(starts, starts_bytes);
    for (int32_t b = 0; b <= ENTRIES; b++) starts[b] = b;
    rapt_desc desc;
    describe(&desc, NULL, ENTRIES, starts, 1);
    const size_t bytes = (size_t)(desc.q_len * HEADS * D) * sizeof(float);
    tensor q = random_rows(RAPT_F32, 1, desc.q_len, HEADS * D, 0, 1.0f);
    float *want = new_floats(desc.q_len * HEADS * D), *o = new_floats(desc.q_len * HEADS * D);
    for (int p = 0; p < 2; p++) {
        /* As many entries as there is room for are known; the others follow the last of these. */
        const int64_t known = (int64_t)(plans[p] - RAPT_PLAN_BYTES(-1)) / 16, step = (ENTRIES + known - 1) / known;
        int wrong = 0;
        rapt_args args;
        rapt_plan *plan = malloc(plans[p]);
        rapt_plan_info info = {.size = sizeof info};
        size_t workspace = 0;
        if (!plan || rapt_plan_init_sized(plan, plans[p], &desc) || rapt_plan_query(plan, &info) ||
            rapt_workspace_size(plan, 1, &workspace))
            abort();
        rapt_args_init(&args);
        args.q = args.k = args.v = q.at, args.o = want;
        args.workspace = new_workspace(workspace), args.workspace_bytes = workspace;
        wrong += rapt_run(plan, &args) != RAPT_OK;
        args.o = o;
        memset(o, 0, bytes);
        const int64_t each = info.tasks[0] / ENTRIES;
        for (int n = 0; n < TASKS; n++) {
            entry e = {.plan = plan, .args = &args, .first = tasks[n] * each, .tasks = each};
            keep_starts(starts, tasks[n] - step, tasks[n] + 1);
            const bool near_by = meets_no_fault(run_entry, &e);
            pages_protect(starts, starts_bytes, PAGES_WRITTEN);
            const int64_t row = tasks[n] * HEADS * D;
            const bool ok = near_by && !e.refused && info.phases == 1 && info.tasks[0] == each * ENTRIES &&
                            !memcmp(o + row, want + row, HEADS * D * sizeof *o);
            if (!ok) printf("# entry %d: %s\n", (int)tasks[n], near_by ? "wrong" : "starts far away were read");
            wrong += !ok;
        }
        tap_ok(wrong == 0, "rapt_run_task, a plan of %s: an entry of %d is found without reading far away: %d of %d wrong",
               p ? "the usual size" : "RAPT_PLAN_BYTES", ENTRIES, wrong, TASKS);
        aligned_destroy(args.workspace), free(plan);
    }
    pages_destroy(starts, starts_bytes), free(o), free(want), free_tensor(&q);
}

/* ---- The choice of a kernel ---------------------------------------------------------------------------------------------- */

static void features(void) {
    static const int32_t starts[] = {0, 4};
    static char names[256];
    rapt_desc desc;
    rapt_plan plan;
    int failed = 0;
    for (int n = 0; n < 100; n++)
        for (int i = 0; rapt_isa_name(i); i++) {
            rapt_status usable = rapt_isa_usable(rapt_isa_name(i), NULL, 0);
            describe(&desc, rapt_isa_name(i), 1, starts, 1);
            failed += rapt_plan_init(&plan, &desc) != usable || rapt_cpu_features(names, sizeof names) != RAPT_OK;
        }
    tap_ok(failed == 0 && asked == 1, "hundreds of plans with a kernel's name ask the CPU for its features once (%d)", asked);
}

static void test_kernel(const char *isa, bool whole) {
    int wrong = 0;
    random_state = 10;
    (void)whole;
    for (int n = 0; n < 6; n++)
        wrong += !tasks_agree(isa, n % 3 ? 150 : 1 + below(5), n % 2 ? RAPT_PLAN_BYTES(150) : sizeof(rapt_plan), n < 3 ? 1 : 8);
    tap_ok(wrong == 0, "%s: all tasks of ragged batches, shuffled, give the bits of rapt_run: %d of 6 wrong", isa, wrong);
    take_turns(isa);
    fill_threads(isa);
}

/* A kernel that needs a slow feature is not chosen, and runs if it is forced. */
static void slow_features(void) {
    const char *best = "none", *chosen = "none";
    rapt_isa_force(NULL);
    rapt_isa_current(&best);
    also_slow = UINT32_MAX;
    rapt_isa_force(NULL);
    rapt_isa_current(&chosen);
    tap_ok(strncmp(chosen, "scalar", 6) == 0, "with every feature slow, %s is chosen", chosen);
    tap_ok(rapt_isa_force(best) == RAPT_OK && rapt_isa_current(&chosen) == RAPT_OK && strcmp(chosen, best) == 0,
           "the best kernel without them, %s, can be forced even so", best);
    also_slow = 0;
    rapt_isa_force(NULL);
}

int main(int argc, char **argv) {
    features();
    if (!getenv("RAPT_ISA")) slow_features();
    each_kernel(argc, argv, test_kernel);
    entries_without_queries();
    changed_starts();
    far_starts();
    return tap_done();
}
