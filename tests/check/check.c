/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "check.h"
#include "clock.h"
#include "harness.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const class_names[CLASSES] = {"unfused", "fused"};

enum { LINES_PER_CASE = 6 };

/* What is needed from inside a signal handler and by the progress display. */
static struct {
    char died[512];
    double started, shown;
    int64_t cases_done, cases;
} now;

/* ---- Lines -------------------------------------------------------------------------------------------------------------- */

static void clear_progress(const check *c) {
    if (c->summary && now.shown > 0) fputs("\r\033[K", stderr);
}

static void say_how_to_reproduce(const check *c, const char *kernel_name, char *text, size_t bytes) {
    snprintf(text, bytes, "# reproduce: %s%s%s --case %s --seed %" PRIu64 "%s%s", c->program, kernel_name ? " --isa " : "",
             kernel_name ? kernel_name : "", c->case_name, c->seed, c->quick ? " --quick" : "", c->arith ? " --arith bf16" : "");
}

void check_fail(check *c, kernel *k, const char *format, ...) {
    c->failures++;
    if (k) k->failures++;
    if (k && !c->failed) c->failed = k->name;
    if (c->failures > LINES_PER_CASE) return;
    clear_progress(c);
    printf("# %s%s", k ? k->name : c->case_name, k ? " " : ": ");
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

void check_step(check *c, const kernel *k) {
    int n = snprintf(now.died, sizeof now.died, "not ok - %s: %s died of a signal\n", c->case_name, k->name);
    say_how_to_reproduce(c, k->name, now.died + n, sizeof now.died - (size_t)n - 1);
    strcat(now.died, "\n");
    if (!c->summary || !isatty(STDERR_FILENO)) return;
    const double t = clock_now();
    if (t - now.shown < 0.1) return;
    now.shown = t;
    fprintf(stderr, "\r\033[K%3d %%  %s  %s  %.1f s", (int)(100 * now.cases_done / now.cases), c->case_name, k->name,
            t - now.started);
}

/* A guard page was touched, or an instruction this CPU does not have was run. */
static void died(int number) {
    (void)number;
    const ssize_t written = write(STDOUT_FILENO, now.died, strlen(now.died));
    _exit(written < 0 ? 2 : 1);
}

static void catch_signals(void) {
    static const int numbers[] = {
#if defined(SIGBUS) /* which Windows has not */
        SIGBUS,
#endif
        SIGSEGV, SIGILL, SIGFPE, SIGABRT};
    for (int64_t n = 0; n < LENGTH_OF(numbers); n++) signal(numbers[n], died);
}

/* ---- Kernels ------------------------------------------------------------------------------------------------------------ */

static void find_kernels(check *c) {
    for (const char *name; c->kernel_count < MAX_KERNELS && (name = rapt_isa_name(c->kernel_count)); c->kernel_count++) {
        kernel *k = &c->kernels[c->kernel_count];
        k->name = name;
        k->rounding = rapt_isa_rounding(name);
        k->usable = rapt_isa_usable(name, k->missing, sizeof k->missing);
    }
}

static kernel *kernel_named(check *c, const char *name) {
    for (kernel *k = c->kernels; k < c->kernels + c->kernel_count; k++)
        if (strcmp(k->name, name) == 0) return k;
    return NULL;
}

/* The scalar twin; where that cannot run, the first of its class that can. */
static kernel *twin_of(check *c, const char *rounding) {
    kernel *k = kernel_named(c, strcmp(rounding, class_names[FUSED]) == 0 ? "scalar_fma" : "scalar");
    if (k && k->usable == RAPT_OK) return k;
    for (k = c->kernels; k < c->kernels + c->kernel_count; k++)
        if (k->usable == RAPT_OK && strcmp(k->rounding, rounding) == 0) return k;
    return NULL;
}

kernel *check_twin(check *c, int rounding) {
    kernel *k = twin_of(c, class_names[rounding]);
    return k && k->active ? k : NULL;
}

static void activate(check *c) {
    for (kernel *k = c->kernels; k < c->kernels + c->kernel_count; k++)
        if (k->chosen && k->usable == RAPT_OK) k->active = twin_of(c, k->rounding)->active = true;
}

static bool any_active(check *c) {
    FOR_EACH_KERNEL(c, k) return true;
    return false;
}

/* ---- Options ------------------------------------------------------------------------------------------------------------ */

typedef struct options {
    const char *isa, *pattern, *require;
    uint64_t seed;
    int64_t repeat;
    bool seeded, list, self;
} options;

static const char help[] =
    "usage: %s [options]\n"
    "Runs every kernel that this machine can run against its scalar twin, bit for bit, and the twin against a reference in "
    "double.\n"
    "  --isa NAME[,NAME...]      only these kernels (and their twins)\n"
    "  --case NAME               only the cases of that name, or that contain it, or match it as a pattern (*?[])\n"
    "  --arith exact|bf16        what problems compute with unless they say otherwise (default: exact)\n"
    "  --seed N                  what the random data are drawn from (default: the time)\n"
    "  --repeat N                N rounds with successive seeds (default: 1)\n"
    "  --require NAME[,NAME...]  fail if one of these kernels did not run\n"
    "  --quick                   a small part of each case, for emulators\n"
    "  --list                    name the cases\n"
    "  --self                    only the check that the library brings (rapt_self_check): a few milliseconds for each kernel\n"
    "  --tap, --summary          a line for each case in the Test Anything Protocol, or a table at the end (default on a "
    "terminal)\n"
    "  --print-golden            print the table of golden hashes\n"
    "Exit status: 0 all passed, 1 something failed, 2 wrong usage, or no memory or no threads.\n";

static int usage_error(const check *c, const char *what, const char *which) {
    fprintf(stderr, "%s: %s%s%s (see %s --help)\n", c->program, what, which ? " " : "", which ? which : "", c->program);
    return 2;
}

/* The value of "--name value" or "--name=value", or null if argv[*i] is another option. */
static const char *value_of(const char *name, char **argv, int argc, int *i, bool *missing) {
    const size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) != 0) return NULL;
    if (argv[*i][n] == '=') return argv[*i] + n + 1;
    if (argv[*i][n] != 0) return NULL;
    if (*i + 1 < argc) return argv[++*i];
    *missing = true;
    return NULL;
}

static bool number_of(const char *text, uint64_t *number) {
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0;
}

/* Calls apply for each kernel of a comma-separated list; returns the first name that is no kernel, or null. */
static const char *each_name(check *c, const char *names, void (*apply)(kernel *)) {
    static char unknown[64];
    unknown[0] = 0;
    while (*names) {
        char name[sizeof unknown];
        const size_t n = strcspn(names, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, names);
        kernel *k = kernel_named(c, name);
        if (k) apply(k);
        else if (!unknown[0]) memcpy(unknown, name, sizeof name);
        names += n + (names[n] == ',');
    }
    return unknown[0] ? unknown : NULL;
}

static void choose(kernel *k) { k->chosen = true; }
static void require(kernel *k) { k->required = true; }

/* Returns -1 to go on, or an exit code. */
static int parse(check *c, options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *text;
        bool missing = false;
        const char *const option = argv[i];
        uint64_t number = 0;
        if ((text = value_of("--isa", argv, argc, &i, &missing))) {
            o->isa = text;
        } else if ((text = value_of("--case", argv, argc, &i, &missing))) {
            o->pattern = text;
        } else if ((text = value_of("--arith", argv, argc, &i, &missing))) {
            if (strcmp(text, "exact") != 0 && strcmp(text, "bf16") != 0)
                return usage_error(c, "--arith takes exact or bf16, not", text);
            c->arith = strcmp(text, "bf16") == 0 ? RAPT_BF16_DOT : RAPT_EXACT;
        } else if ((text = value_of("--require", argv, argc, &i, &missing))) {
            o->require = text;
        } else if ((text = value_of("--seed", argv, argc, &i, &missing))) {
            if (!number_of(text, &o->seed)) return usage_error(c, "--seed takes a number, not", text);
            o->seeded = true;
        } else if ((text = value_of("--repeat", argv, argc, &i, &missing))) {
            if (!number_of(text, &number) || number < 1 || number > 1000000)
                return usage_error(c, "--repeat takes a number from 1 to 1000000, not", text);
            o->repeat = (int64_t)number;
        } else if (missing) {
            return usage_error(c, "a value is missing after", option);
        } else if (strcmp(option, "--quick") == 0) {
            c->quick = true;
        } else if (strcmp(option, "--list") == 0) {
            o->list = true;
        } else if (strcmp(option, "--self") == 0) {
            o->self = true;
        } else if (strcmp(option, "--tap") == 0) {
            c->summary = false;
        } else if (strcmp(option, "--summary") == 0) {
            c->summary = true;
        } else if (strcmp(option, "--print-golden") == 0) {
            c->print_golden = true;
        } else if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
            printf(help, c->program);
            return 0;
        } else {
            return usage_error(c, "unknown option", option);
        }
    }
    const char *unknown = o->isa ? each_name(c, o->isa, choose) : NULL;
    if (unknown) return usage_error(c, "no such kernel on this architecture:", unknown);
    for (kernel *k = c->kernels; k < c->kernels + c->kernel_count; k++)
        if (k->chosen && k->usable != RAPT_OK) {
            fprintf(stderr, "%s: --isa %s cannot run here: cpu lacks %s\n", c->program, k->name, k->missing);
            return 2;
        }
    for (kernel *k = c->kernels; k < c->kernels + c->kernel_count && !o->isa; k++) k->chosen = true;
    return -1;
}

/* What the library says of each kernel itself. */
static int check_selves(const check *c) {
    int failed = 0;
    for (const kernel *k = c->kernels; k < c->kernels + c->kernel_count; k++) {
        char text[512];
        if (!k->chosen || k->usable != RAPT_OK) continue;
        const bool wrong = rapt_self_check(k->name, text, sizeof text) != RAPT_OK;
        printf("%-12s self check: %s\n", k->name, wrong ? text : "ok");
        failed |= wrong;
    }
    return failed;
}

/* ---- Cases -------------------------------------------------------------------------------------------------------------- */

static const check_case *const case_lists[] = {contract_cases,  refusal_cases, agreement_cases, feature_cases, invariance_cases,
                                               placement_cases, part_cases,    complaint_cases, integer_cases};

typedef struct selection {
    const check_case *cases[256];
    int64_t n;
} selection;

/* True if it is one of the characters and ranges, or, after a !, none of them. */
static bool is_in(char c, const char *set, const char *end) {
    const bool without = *set == '!';
    for (set += without; set < end; set++) {
        const char *const last = set + 2 < end && set[1] == '-' ? set + 2 : set;
        if (*set <= c && c <= *last) return !without;
        set = last;
    }
    return without;
}

/* True if the name matches a pattern of *, ? and [characters]. */
/* NOLINTNEXTLINE(misc-no-recursion): as deep as the pattern has stars */
static bool matches(const char *pattern, const char *name) {
    for (; *pattern; pattern++, name++) {
        if (*pattern == '*') {
            do
                if (matches(pattern + 1, name)) return true;
            while (*name++);
            return false;
        }
        const char *end = *pattern == '[' ? strchr(pattern, ']') : NULL;
        if (!*name || (end ? !is_in(*name, pattern + 1, end) : *pattern != '?' && *pattern != *name)) return false;
        if (end) pattern = end;
    }
    return !*name;
}

static selection select_cases(const char *pattern) {
    selection exact = {.n = 0}, loose = {.n = 0};
    for (int64_t l = 0; l < LENGTH_OF(case_lists); l++) {
        for (const check_case *e = case_lists[l]; e->name; e++) {
            if (!pattern || strstr(e->name, pattern) || matches(pattern, e->name)) loose.cases[loose.n++] = e;
            if (pattern && strcmp(e->name, pattern) == 0) exact.cases[exact.n++] = e;
        }
    }
    return exact.n ? exact : loose;
}

/* The root of all squares but those of the worst row, whose channels share the error of its weights. */
static double root(double all, double worst_row) { return sqrt(fmax(all - worst_row, 0)); }

/* Over all outputs of the case, in units of their bounds: no worse in the mean square than twice plain f32 code plus one unit in
 * the last place. In the mean square, because the largest of few errors is a matter of luck, and without the worst row, because
 * so is the error of one row: plain code's has been an eighth of it, in one of 3744 cases. */
static void compare_with_naive(check *c, int rounding) {
    accuracy *a = &c->accuracy[rounding];
    const double ours = root(a->all.ours, a->worst_row.ours), naive = root(a->all.naive, a->worst_row.naive);
    const double ulps = root(a->all.ulps, a->worst_row.ulps);
    if (ours > 2 * naive + ulps)
        check_fail(c, check_twin(c, rounding),
                   "is less accurate than twice naive f32: root of squares %.4g, naive %.4g, ulp %.4g", ours, naive, ulps);
    c->worst[rounding] = fmax(c->worst[rounding], a->worst);
}

static double naive_ratio(const check *c) {
    double worst = 0;
    for (int rounding = 0; rounding < CLASSES; rounding++) {
        const accuracy *a = &c->accuracy[rounding];
        const double naive = root(a->all.naive, a->worst_row.naive);
        if (naive > 0) worst = fmax(worst, root(a->all.ours, a->worst_row.ours) / naive);
    }
    return worst;
}

static bool run_case(check *c, const check_case *e) {
    c->case_name = e->name;
    c->random = hash_text(c->seed, e->name);
    c->problems = c->wanted = c->failures = 0;
    c->failed = NULL;
    c->thin = e->thin;
    memset(c->accuracy, 0, sizeof c->accuracy);
    e->run(c);
    for (int rounding = 0; rounding < CLASSES; rounding++) compare_with_naive(c, rounding);
    now.cases_done++;
    return c->failures == 0;
}

/* ---- The run ------------------------------------------------------------------------------------------------------------ */

/* What the system does not offer, and so cannot be checked on it. */
static void say_what_is_unchecked(void) {
    if (!FENCE_GUARDED) puts("# not checked here, where no memory can be protected: reads beyond tensors, writes to inputs");
    const int here = WAYS_HERE, all = WAYS; /* of two enumerations */
    if (here != all) puts("# not checked here, where no thread can be started: what threads share");
}

static int64_t run_all(check *c, const selection *cases, const options *o) {
    const uint64_t first = c->seed;
    int64_t failed = 0, number = 0;
    for (int64_t round = 0; round < o->repeat; round++) {
        c->seed = first + (uint64_t)round;
        if (!c->summary) printf("# seed %" PRIu64 "\n", c->seed);
        for (int64_t e = 0; e < cases->n; e++) {
            const bool passed = run_case(c, cases->cases[e]);
            failed += !passed;
            number++;
            if (!c->summary) {
                printf("%sok %" PRId64 " - %s", passed ? "" : "not ", number, c->case_name);
                const double worst = fmax(c->accuracy[UNFUSED].worst, c->accuracy[FUSED].worst);
                if (!any_active(c)) printf(" # SKIP none of these kernels can run here");
                else if (c->problems && !c->wanted) printf(" # SKIP --quick leaves out all of its problems");
                else if (worst > 0) printf(" # error/bound %.3f, error/naive %.2f", worst, naive_ratio(c));
                printf("\n");
            }
            if (passed) continue;
            char text[256];
            clear_progress(c);
            if (c->failures > LINES_PER_CASE) printf("# ... and %" PRId64 " more\n", c->failures - LINES_PER_CASE);
            say_how_to_reproduce(c, c->failed, text, sizeof text);
            puts(text);
        }
    }
    return failed;
}

/* A line for each kernel asked for: that it ran, or why it could not. */
static int64_t report_kernels(check *c, const char *unknown, int64_t number) {
    int64_t failed = 0;
    for (kernel *k = c->kernels; k < c->kernels + c->kernel_count; k++) {
        if (!k->chosen && !k->required) continue;
        number++;
        if (k->required && !k->runs) {
            failed++;
            printf("not ok %" PRId64 " - %s was required but did not run%s%s\n", number, k->name,
                   k->usable == RAPT_OK ? "" : ": cpu lacks ", k->missing);
        } else if (c->summary) {
            continue;
        } else if (k->usable == RAPT_OK) {
            printf("ok %" PRId64 " - %s # runs %" PRId64 ", queries in lanes %" PRId64 ", keys in lanes %" PRId64 "\n", number,
                   k->name, k->runs, k->path_runs[0], k->path_runs[1]);
        } else {
            printf("ok %" PRId64 " - %s # SKIP cpu lacks %s\n", number, k->name, k->missing);
        }
    }
    if (unknown) {
        printf("not ok %" PRId64 " - %s was required, but no such kernel was built\n", ++number, unknown);
        failed++;
    }
    return failed;
}

static void print_table(const check *c, const options *o, int64_t cases, int64_t failed) {
    clear_progress(c);
    printf("%-12s %-8s %10s %14s %12s  %s\n", "kernel", "class", "runs", "comparisons", "error/bound", "result");
    for (const kernel *k = c->kernels; k < c->kernels + c->kernel_count; k++) {
        if (!k->active && !k->chosen) continue;
        printf("%-12s %-8s %10" PRId64 " %14" PRId64 " ", k->name, k->rounding, k->runs, k->compared);
        if (k->usable != RAPT_OK) printf("%12s  cannot run here: cpu lacks %s\n", "-", k->missing);
        else printf("%12.3f  %s\n", c->worst[strcmp(k->rounding, class_names[FUSED]) == 0], k->failures ? "FAILED" : "ok");
    }
    printf("%" PRId64 " cases, %" PRId64 " failed, seed %" PRIu64, cases, failed, c->seed - (uint64_t)(o->repeat - 1));
    if (o->repeat > 1) printf(" to %" PRIu64, c->seed);
    printf(", %.1f s\n", clock_now() - now.started);
}

int rapt_check_main(int argc, char **argv, const char *program) {
    static check c;
    c = (check){.program = program, .summary = isatty(STDOUT_FILENO)};
    options o = {.repeat = 1};
    find_kernels(&c);
    const int code = parse(&c, &o, argc, argv);
    if (code >= 0) return code;
    if (o.self) return check_selves(&c);
    const selection cases = select_cases(c.print_golden ? "golden" : o.pattern);
    if (cases.n == 0) return usage_error(&c, "no such case:", o.pattern);
    if (o.list) {
        for (int64_t e = 0; e < cases.n; e++) printf("%-22s %s\n", cases.cases[e]->name, cases.cases[e]->what);
        return 0;
    }

    uint64_t random = (uint64_t)time(NULL) ^ (uint64_t)(clock_now() * 1e9) << 20 ^ (uint64_t)getpid() << 40;
    c.seed = o.seeded ? o.seed : draw(&random) >> 40;
    now.started = clock_now();
    now.cases = cases.n * o.repeat;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    activate(&c);
    catch_signals();
    if (c.print_golden) {
        run_case(&c, cases.cases[0]);
        return c.failures != 0;
    }
    int64_t lines = now.cases;
    const char *unknown = o.require ? each_name(&c, o.require, require) : NULL;
    for (kernel *k = c.kernels; k < c.kernels + c.kernel_count; k++) lines += k->chosen || k->required;
    if (!c.summary) printf("1..%" PRId64 "\n", lines + (unknown != NULL));
    say_what_is_unchecked();
    int64_t failed = run_all(&c, &cases, &o);
    if (c.summary) print_table(&c, &o, now.cases, failed);
    failed += report_kernels(&c, unknown, now.cases);
    if (!c.summary) {
        printf("# ran:");
        for (kernel *k = c.kernels; k < c.kernels + c.kernel_count; k++)
            if (k->runs) printf(" %s", k->name);
        printf("\n");
    }
    return failed != 0;
}
