/* SPDX-License-Identifier: Apache-2.0 */
/* rapt-sweep [--seed N] [--problems N] [--type TYPE] [--worst N] [--only I] [KERNEL...]: looks for problems of attention that
 * take longer than they should. For each kernel that can run here (or those named), random problems (1000, unless --problems says
 * otherwise; with --type, those of them that have it) are timed on one thread, and each time is compared with that of a model,
 *
 *     max(operations / peak, bytes / bandwidth) + overhead
 *
 *     operations   2 (d_k + d_v) for each pair that is attended, by the peak of the kernel's arithmetic, and those of the
 *                  softmax (problems.h) by its f32 peak. What masks exclude is not counted, even where a kernel cannot save
 *                  it: a mask that excludes every second key costs as much as none
 *     bytes        Q, O, and what is attended of K, V, scales, masks and biases, each once; a V that lies in K takes none
 *     bandwidth    that of reading a buffer of as many bytes again and again, rounded up to a power of two: calls follow each
 *                  other on the same tensors, so these stay in the caches that hold them
 *     overhead     that of a call, and of each key/value head of each entry, by problems of one query and one key
 *
 * Peaks and bandwidths are measured before (limits.h). The model knows of no conversions: narrow types have larger ratios of
 * time / model. The time is the least of some turns; problems with the largest ratios are timed again, since another program may
 * have interfered.
 *
 * Prints, for each kernel: the limits; problems that were refused; the median, 90 and 99 % of the ratios; the problems with the
 * largest ones, 1 % unless --worst gives their number; and what they have in common: for each type and trait the median ratio of
 * the problems that have it, and of those that do not, and how many of the worst have it. The exit status is 0, or 2 if the
 * arguments are wrong.
 *
 * Problem I of a seed is the same for any kernel and machine, until a type is added, and however many problems there are. --only
 * runs it alone, prints what the model is made of, and goes on for a second, for a profiler.
 *
 * Left out: linear layers, several threads, states of parts, callbacks, K and V of different types. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "problems.h"
#include "timing.h"

enum { TURNS = 5, AGAIN = 3, MANY_HEADS = 64, CLASSES = 16, LEAST_CLASS = 4096 };

/* A turn's least seconds, and those for which --only goes on. */
static const double turn_seconds = 60e-6, only_seconds = 1.0;

/* ---- Options ------------------------------------------------------------------------------------------------------------- */

typedef struct options {
    int64_t seed, problems, worst, only; /* worst: 0, 1 %; only: -1, all */
    const bench_type *type;              /* null: all */
} options;

/* ---- The model ----------------------------------------------------------------------------------------------------------- */

typedef struct limits {
    const char *isa;
    double peaks[BENCH_ARITHS]; /* operations per second */
    double bandwidths[CLASSES]; /* of buffers of LEAST_CLASS << class bytes, in bytes per second; 0: not measured yet */
    double of_call, of_head;    /* seconds */
} limits;

/* The model's seconds, and their parts. */
typedef struct estimate {
    double products, weights, bytes, overhead, sum;
} estimate;

static double bandwidth_of(limits *l, double bytes) {
    int class_of = 0;
    while (class_of < CLASSES - 1 && (double)((size_t)LEAST_CLASS << class_of) < bytes) class_of++;
    if (l->bandwidths[class_of] == 0.0) l->bandwidths[class_of] = bench_bandwidth((size_t)LEAST_CLASS << class_of, NULL);
    return l->bandwidths[class_of];
}

static double operations_of(const bench_problem *p) { return (double)p->pairs * (double)(2 * (p->desc.d_k + p->desc.d_v)); }

static estimate estimate_of(const bench_problem *p, limits *l) {
    estimate e = {.products = operations_of(p) / l->peaks[p->type->arith],
                  .weights = (double)p->pairs * BENCH_WEIGHT_OPERATIONS / l->peaks[RAPT_EXACT],
                  .bytes = p->bytes / bandwidth_of(l, p->bytes),
                  .overhead = l->of_call + l->of_head * (double)(p->desc.batch * p->desc.kv_heads)};
    e.sum = fmax(e.products + e.weights, e.bytes) + e.overhead;
    return e;
}

/* Returns which part of the model is the largest. */
static const char *limit_of(const estimate *e) {
    if (e->overhead > fmax(e->products + e->weights, e->bytes)) return "calls";
    return e->bytes > e->products + e->weights ? "bytes" : "peak";
}

/* ---- Times --------------------------------------------------------------------------------------------------------------- */

/* Returns the seconds of a call, of several in a row. */
static double turn(const bench_call *c, int64_t calls) {
    const double start = bench_now();
    for (int64_t i = 0; i < calls; i++) rapt_run(&c->plan, &c->args);
    return (bench_now() - start) / (double)calls;
}

static double time_of(const bench_call *c) {
    const int64_t calls = 1 + (int64_t)(turn_seconds / turn(c, 1));
    double least = INFINITY;
    for (int i = 0; i < TURNS; i++) least = fmin(least, turn(c, calls));
    return least;
}

/* Returns the seconds of the smallest problem with that many key/value heads. */
static double time_smallest(const char *isa, int64_t kv_heads) {
    static bench_problem p;
    static bench_call c;
    char why[1];
    bench_problem_smallest(&p, kv_heads);
    double least = INFINITY; /* no kernel refuses it */
    if (bench_call_open(&c, &p, isa, why, sizeof why))
        for (int i = 0; i < AGAIN; i++) least = fmin(least, time_of(&c));
    bench_call_close(&c);
    return least;
}

/* Measures what does not depend on a problem's bytes, and prints it. */
static void measure(limits *l, const char *isa) {
    *l = (limits){.isa = isa};
    for (int i = 0; i < BENCH_ARITHS; i++) l->peaks[i] = bench_peak(isa, (rapt_arith)i, NULL);
    const double one = time_smallest(isa, 1);
    l->of_head = fmax(0.0, (time_smallest(isa, MANY_HEADS) - one) / (MANY_HEADS - 1));
    l->of_call = fmax(0.0, one - l->of_head);
    printf("%s: peak %.1f GFLOP/s, of integers %.1f, of bf16 %.1f; overhead %.0f ns a call, %.0f ns a key/value head\n", isa,
           1e-9 * l->peaks[RAPT_EXACT], 1e-9 * l->peaks[RAPT_INT8_DOT], 1e-9 * l->peaks[RAPT_BF16_DOT], 1e9 * l->of_call,
           1e9 * l->of_head);
}

/* ---- Traits -------------------------------------------------------------------------------------------------------------- */

/* What problems may have in common: a name, and whether problem p, with the description d, so many rows to a key/value head, and
 * the plan that info tells of, has it. */
#define TRAITS(X)                                                                                                                \
    X("integer arithmetic", d->arith == RAPT_INT8_DOT)                                                                           \
    X("bf16 arithmetic", d->arith == RAPT_BF16_DOT)                                                                              \
    X("queries in lanes", strcmp(info->path, "queries-in-lanes") == 0)                                                           \
    X("keys in lanes", strcmp(info->path, "keys-in-lanes") == 0)                                                                 \
    X("mixed", strcmp(info->path, "mixed") == 0)                                                                                 \
    X("1 row", rows == 1)                                                                                                        \
    X("2 to 4 rows", rows >= 2 && rows <= 4)                                                                                     \
    X("5 to 8 rows", rows >= 5 && rows <= 8)                                                                                     \
    X("9 to 32 rows", rows >= 9 && rows <= 32)                                                                                   \
    X("33 to 128 rows", rows >= 33 && rows <= 128)                                                                               \
    X("more rows", rows > 128)                                                                                                   \
    X("up to 16 keys", p->kv_len <= 16)                                                                                          \
    X("17 to 64 keys", p->kv_len >= 17 && p->kv_len <= 64)                                                                       \
    X("65 to 512 keys", p->kv_len >= 65 && p->kv_len <= 512)                                                                     \
    X("more keys", p->kv_len > 512)                                                                                              \
    X("d below 32", d->d_k < 32 || d->d_v < 32)                                                                                  \
    X("d above 256", d->d_k > 256 || d->d_v > 256)                                                                               \
    X("d no multiple of 16", d->d_k % 16 != 0 || d->d_v % 16 != 0)                                                               \
    X("d_v other than d_k", d->d_v != d->d_k)                                                                                    \
    X("batch", d->batch > 1)                                                                                                     \
    X("one key/value head", d->kv_heads == 1)                                                                                    \
    X("heads in groups", d->heads > d->kv_heads)                                                                                 \
    X("tokens first", p->arrangement == BENCH_TOKENS_FIRST)                                                                      \
    X("gaps", p->arrangement == BENCH_GAPS)                                                                                      \
    X("far heads", p->arrangement == BENCH_FAR_HEADS)                                                                            \
    X("far tokens", p->arrangement == BENCH_FAR_TOKENS)                                                                          \
    X("offset", p->offset != 0)                                                                                                  \
    X("V in K", p->aliased)                                                                                                      \
    X("ring", p->storage == BENCH_RING)                                                                                          \
    X("pages", d->page_size > 1)                                                                                                 \
    X("pages of one key", d->page_size == 1)                                                                                     \
    X("ragged", d->q_starts != NULL)                                                                                             \
    X("lengths", p->lengths)                                                                                                     \
    X("causal", d->causal == RAPT_CAUSAL_BOTTOM_RIGHT)                                                                           \
    X("top-left", d->causal == RAPT_CAUSAL_TOP_LEFT)                                                                             \
    X("window", d->window_left >= 0 || d->window_right >= 0)                                                                     \
    X("local chunk", d->local_chunk > 0)                                                                                         \
    X("prefix", d->prefix > 0)                                                                                                   \
    X("mask of bytes", d->mask.type == RAPT_BOOL)                                                                                \
    X("mask of bits", d->mask.type == RAPT_BIT)                                                                                  \
    X("block mask", d->block_mask.type != RAPT_NONE)                                                                             \
    X("softcap", d->softcap > 0.0f)                                                                                              \
    X("bias", d->bias.type != RAPT_NONE)                                                                                         \
    X("alibi", d->alibi != RAPT_ALIBI_NONE)                                                                                      \
    X("sinks", d->sinks.type != RAPT_NONE)                                                                                       \
    X("lse", d->lse.type != RAPT_NONE)

#define NAME(name, has) name,
#define HAS(name, has)  has,
static const char *const trait_names[] = {TRAITS(NAME)};
enum { TRAIT_COUNT = sizeof trait_names / sizeof *trait_names };
_Static_assert(TRAIT_COUNT <= 64, "traits are bits of a uint64_t");

/* Returns a bit for each trait. */
static uint64_t traits_of(const bench_problem *p, const rapt_plan_info *info) {
    const rapt_desc *d = &p->desc;
    const int64_t rows = bench_problem_rows(p);
    const bool has[TRAIT_COUNT] = {TRAITS(HAS)};
    uint64_t bits = 0;
    for (int i = 0; i < TRAIT_COUNT; i++) bits |= (uint64_t)has[i] << i;
    return bits;
}

/* ---- Results ------------------------------------------------------------------------------------------------------------- */

typedef struct result {
    int64_t index;
    const bench_type *type;
    const char *path; /* of rapt_plan_info */
    uint64_t traits;
    double seconds, model;
} result;

static double ratio(const result *r) { return r->seconds / r->model; }

static int by_ratio(const void *a, const void *b) {
    const double of_a = ratio(a), of_b = ratio(b);
    return (of_a < of_b) - (of_a > of_b);
}

static void print_head(void) { printf(" index   ratio  GFLOP/s          us  limit  kernel, problem\n"); }

static void print_result(const result *r, const bench_problem *p, const limits *l, const estimate *e) {
    printf("%6lld  %6.2f  %7.1f  %10.2f  %-5s  %s, %s, ", (long long)r->index, ratio(r), 1e-9 * operations_of(p) / r->seconds,
           1e6 * r->seconds, limit_of(e), l->isa, r->path);
    bench_problem_print(p);
    printf("\n");
    fflush(stdout);
}

/* Times a problem that has been drawn. Returns false, and prints why, if it is refused. */
static bool run(result *r, bench_problem *p, int64_t index, limits *l) {
    static bench_call c;
    char why[512];
    const bool runs = bench_call_open(&c, p, l->isa, why, sizeof why);
    if (runs) *r = (result){index, p->type, c.info.path, traits_of(p, &c.info), time_of(&c), estimate_of(p, l).sum};
    bench_call_close(&c);
    if (runs) return true;
    printf("%6lld  refused: %s: %s, ", (long long)index, why, l->isa);
    bench_problem_print(p);
    printf("\n");
    return false;
}

/* Times the first n results again, and sorts all by their ratios. */
static void run_again(result *results, int64_t n, int64_t count, uint64_t seed, limits *l) {
    static bench_problem p;
    for (int64_t i = 0; i < n; i++) {
        result again;
        bench_problem_draw(&p, seed, results[i].index);
        if (run(&again, &p, results[i].index, l)) results[i].seconds = fmin(results[i].seconds, again.seconds);
    }
    qsort(results, (size_t)count, sizeof *results, by_ratio);
}

/* True if a result has the type (null: any) and the trait (0: any). */
static bool has(const result *r, const bench_type *type, uint64_t trait) {
    return (!type || r->type == type) && (r->traits & trait) == trait;
}

/* Prints the line of a type or trait that some problems have, and others have not. */
static void print_trait(const char *name, const result *results, int64_t count, int64_t worst, const bench_type *type,
                        uint64_t trait, double *ratios) {
    double medians[2];
    int n[2] = {0, 0}, of_worst = 0;
    for (int with = 0; with < 2; with++) {
        for (int64_t i = 0; i < count; i++)
            if (has(&results[i], type, trait) == with) ratios[n[with]++] = ratio(&results[i]);
        if (n[with] == 0) return;
        medians[with] = bench_median(ratios, n[with]);
    }
    for (int64_t i = 0; i < worst; i++) of_worst += has(&results[i], type, trait);
    printf("  %-20s %8d %8.2f %8.2f %8d\n", name, n[1], medians[1], medians[0], of_worst);
}

static void print_traits(const result *results, int64_t count, int64_t worst, double *ratios) {
    int types;
    const bench_type *type = bench_types(&types);
    printf("  %-20s %8s %8s %8s %8s\n", "", "problems", "with", "without", "of worst");
    for (int i = 0; i < types; i++) print_trait(type[i].name, results, count, worst, &type[i], 0, ratios);
    for (int i = 0; i < TRAIT_COUNT; i++) print_trait(trait_names[i], results, count, worst, NULL, UINT64_C(1) << i, ratios);
}

/* ---- The sweep ----------------------------------------------------------------------------------------------------------- */

/* Prints what was found of results that are sorted. */
static void report(const result *results, int64_t count, int64_t worst, uint64_t seed, limits *l, double *ratios) {
    static bench_problem p;
    if (count == 0) return;
    printf("time / model: median %.2f, 90 %% %.2f, 99 %% %.2f, largest %.2f\n", ratio(&results[count / 2]),
           ratio(&results[count / 10]), ratio(&results[count / 100]), ratio(&results[0]));
    print_head();
    for (int64_t i = 0; i < worst; i++) {
        bench_problem_draw(&p, seed, results[i].index);
        const estimate e = estimate_of(&p, l);
        print_result(&results[i], &p, l, &e);
    }
    print_traits(results, count, worst, ratios);
}

/* Runs all problems on a kernel. Returns false if there is no memory. */
static bool sweep(const char *isa, const options *o) {
    static bench_problem p;
    limits l;
    int64_t count = 0, refused = 0;
    const uint64_t seed = (uint64_t)o->seed;
    result *results = calloc((size_t)o->problems, sizeof *results);
    double *ratios = calloc((size_t)o->problems, sizeof *ratios);
    const bool there = results && ratios;
    if (there) measure(&l, isa);
    for (int64_t i = 0; there && i < o->problems; i++) {
        bench_problem_draw(&p, seed, i);
        if (o->type && p.type != o->type) continue;
        if (run(&results[count], &p, i, &l)) count++;
        else refused++;
    }
    if (there) {
        const int64_t wanted = o->worst ? o->worst : (count + 99) / 100, worst = wanted < count ? wanted : count;
        qsort(results, (size_t)count, sizeof *results, by_ratio);
        for (int i = 0; i < AGAIN; i++) run_again(results, 2 * worst < count ? 2 * worst : count, count, seed, &l);
        printf("%s, seed %lld: %lld problems, %lld refused\n", isa, (long long)seed, (long long)count, (long long)refused);
        report(results, count, worst, seed, &l, ratios);
    }
    free(results), free(ratios);
    return there;
}

/* Runs one problem on a kernel. */
static void run_only(const char *isa, const options *o) {
    static bench_problem p;
    static bench_call c;
    limits l;
    result r;
    char why[1];
    measure(&l, isa);
    bench_problem_draw(&p, (uint64_t)o->seed, o->only);
    if (!run(&r, &p, o->only, &l)) return;
    const estimate e = estimate_of(&p, &l);
    print_head();
    print_result(&r, &p, &l, &e);
    printf("  model %.2f us: products %.2f, weights %.2f, or bytes %.2f (%.0f at %.1f GB/s); overhead %.2f\n", 1e6 * e.sum,
           1e6 * e.products, 1e6 * e.weights, 1e6 * e.bytes, p.bytes, 1e-9 * bandwidth_of(&l, p.bytes), 1e6 * e.overhead);
    if (bench_call_open(&c, &p, isa, why, sizeof why)) {
        printf("  plan: %lld + %lld tasks, %zu bytes of workspace\n", (long long)c.info.tasks[0], (long long)c.info.tasks[1],
               c.args.workspace_bytes);
        for (const double end = bench_now() + only_seconds; bench_now() < end;) turn(&c, 1);
    }
    bench_call_close(&c);
}

/* Reads a number; returns false, and says so, if it is none from least on. */
static bool read_number(const char *option, const char *text, int64_t least, int64_t *to) {
    char *end = NULL;
    errno = 0;
    *to = text ? strtoll(text, &end, 10) : 0;
    if (text && end != text && !*end && !errno && *to >= least && *to <= INT32_MAX) return true;
    fprintf(stderr, "rapt-sweep: %s wants a number from %lld on, not %s\n", option, (long long)least, text ? text : "nothing");
    return false;
}

/* Finds a type by its name; returns null, and says so, if there is none. */
static const bench_type *find_type(const char *name) {
    int count;
    const bench_type *types = bench_types(&count);
    for (int i = 0; name && i < count; i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    fprintf(stderr, "rapt-sweep: --type wants the name of a type, not %s\n", name ? name : "nothing");
    return NULL;
}

/* Reads an option and its value; returns false, and says so, if they are wrong. */
static bool read_option(const char *option, const char *value, options *o) {
    if (strcmp(option, "--seed") == 0) return read_number(option, value, 0, &o->seed);
    if (strcmp(option, "--problems") == 0) return read_number(option, value, 1, &o->problems);
    if (strcmp(option, "--worst") == 0) return read_number(option, value, 1, &o->worst);
    if (strcmp(option, "--only") == 0) return read_number(option, value, 0, &o->only);
    if (strcmp(option, "--type") == 0) return (o->type = find_type(value));
    fprintf(stderr,
            "rapt-sweep: unknown option %s\nusage: rapt-sweep [--seed N] [--problems N] [--type TYPE] [--worst N] [--only I] "
            "[KERNEL...]\n",
            option);
    return false;
}

int main(int argc, char **argv) {
    options o = {.seed = 1, .problems = 1000, .only = -1};
    int first = 1;
    for (; first < argc && argv[first][0] == '-'; first += 2)
        if (!read_option(argv[first], argv[first + 1], &o)) return 2;
    for (int i = first; i < argc; i++)
        if (rapt_isa_usable(argv[i], NULL, 0) != RAPT_OK) {
            fprintf(stderr, "rapt-sweep: no kernel %s can run here\n", argv[i]);
            return 2;
        }
    const char *isa;
    for (int i = 0; (isa = first < argc ? argv[first + i] : rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(isa, NULL, 0) != RAPT_OK) continue;
        if (o.only >= 0) run_only(isa, &o);
        else if (!sweep(isa, &o)) {
            fprintf(stderr, "rapt-sweep: out of memory\n");
            return 2;
        }
    }
    return 0;
}
