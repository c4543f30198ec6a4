/* SPDX-License-Identifier: Apache-2.0 */
/* rapt tune on a machine about which everything is known: the clock goes on only in calls, by what a model says of the tuning and
 * the noise, so that it is known which numbers are faster, and by how much. And the statistic by which it judges, on given times.
 */
#define clock_now                   fake_clock
#define rapt_linear_plan_init_sized fake_plan_init
#define rapt_linear_workspace_size  fake_workspace_size
#define rapt_linear_run_parallel    fake_run
#include "../../cli/tune.c" /* NOLINT(bugprone-suspicious-include): whose search is run on the clock of a model */

#include "tap.h"

/* ---- The machine --------------------------------------------------------------------------------------------------------- */

/* Returns how many times as fast a layer of `tokens` tokens is with a tuning as with the kernel's own numbers. */
typedef double model(int64_t tokens, const rapt_tuning *tuning);

static struct machine {
    model *speed;
    double now, noise, outliers; /* of times: a deviation, and how many of them are outliers, of up to twenty times as long */
    uint64_t random;
    double signal_at; /* when number is raised; 0: never */
    int number;
} machine;

static double random_share(void) {
    machine.random = machine.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(machine.random >> 11) * 0x1p-53;
}

/* A call takes two milliseconds, so that there is one in each measurement. */
static double call_seconds(double speed) {
    const double noise = 1 + machine.noise * (random_share() + random_share() + random_share() + random_share() - 2);
    const double outlier = random_share() < machine.outliers ? 1 + 19 * random_share() : 1;
    return 0.002 / speed * noise * outlier;
}

double fake_clock(void) { return machine.now; }

typedef struct fake_plan {
    int64_t tokens, out;
    rapt_tuning tuning;
} fake_plan;

_Static_assert(sizeof(fake_plan) <= sizeof(rapt_linear_plan), "what is known of a plan fits into it");

rapt_status fake_plan_init(rapt_linear_plan *plan, size_t plan_bytes, const rapt_linear_desc *desc) {
    (void)plan_bytes;
    if (!plan) return RAPT_ERR_NULL;
    fake_plan p = {.tokens = desc->tokens, .out = desc->out};
    rapt_tuning_init(&p.tuning);
    if (desc->tuning) p.tuning = *desc->tuning;
    memcpy(plan, &p, sizeof p);
    return RAPT_OK;
}

rapt_status fake_workspace_size(const rapt_linear_plan *plan, int64_t nth, size_t *bytes) {
    (void)plan, (void)nth;
    *bytes = 64;
    return RAPT_OK;
}

rapt_status fake_run(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth, rapt_parallel_for parallel,
                     void *context) {
    fake_plan p;
    (void)nth, (void)parallel, (void)context;
    memcpy(&p, plan, sizeof p);
    memset(args->y, 1, (size_t)(p.tokens * p.out) * sizeof(float));
    machine.now += call_seconds(machine.speed ? machine.speed(p.tokens, &p.tuning) : 1);
    if (machine.signal_at > 0 && machine.now > machine.signal_at) {
        machine.signal_at = 0;
        raise(machine.number);
    }
    return RAPT_OK;
}

int cli_check_isa(const char *program, const char *name) { return (void)program, (void)name, 0; }

/* ---- Running the command ------------------------------------------------------------------------------------------------- */

static struct result {
    int status;
    double seconds;
    char out[512], err[16384];
} got;

static void read_back(FILE *file, char *text, size_t bytes) {
    if (fseek(file, 0, SEEK_SET) != 0) abort();
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

/* Runs it with options that words separate, on a machine that begins anew with this seed. */
static void run_tune(const char *options, uint64_t seed) {
    char words[256], *argv[16];
    int argc = 0;
    snprintf(words, sizeof words, "--isa scalar --cases linear-8,linear-16 %s", options);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    FILE *out = tmpfile(), *err = tmpfile();
    fflush(stdout);
    const int stdout_before = dup(STDOUT_FILENO), stderr_before = dup(STDERR_FILENO);
    dup2(fileno(out), STDOUT_FILENO), dup2(fileno(err), STDERR_FILENO);
    machine.random = seed;
    machine.now = 1000;
    if (machine.signal_at > 0) machine.signal_at += machine.now;
    got.status = cli_tune(argc, argv);
    got.seconds = machine.now - 1000;
    fflush(stdout);
    dup2(stdout_before, STDOUT_FILENO), dup2(stderr_before, STDERR_FILENO);
    close(stdout_before), close(stderr_before);
    read_back(out, got.out, sizeof got.out), read_back(err, got.err, sizeof got.err);
}

static void explain_failure(bool good) {
    if (!good) fprintf(stderr, "# exit %d after %.1f s: %s# %s\n", got.status, got.seconds, got.out, got.err);
}

/* ---- The statistic ------------------------------------------------------------------------------------------------------- */

/* A case whose rounds have one turn each, with these deviations of the first way from itself and of the second from the first. */
static measure_case case_of(const double same[MEASURE_ROUNDS], double faster) {
    measure_case c;
    for (int r = 0; r < MEASURE_ROUNDS; r++) {
        double seconds[1][MEASURE_WAYS];
        seconds[0][MEASURE_FIRST] = sqrt(same[r]);
        seconds[0][MEASURE_AGAIN] = 1 / sqrt(same[r]);
        seconds[0][MEASURE_SECOND] = 1 / faster;
        measure_round(&c, r, seconds, 1);
    }
    return c;
}

static bool is_near(double a, double b) { return fabs(a - b) < 1e-9; }

static void test_given_times(void) {
    static const bool counted[2] = {true, false};
    double steady[MEASURE_ROUNDS], noisy[MEASURE_ROUNDS], wild[MEASURE_ROUNDS];
    for (int r = 0; r < MEASURE_ROUNDS; r++) {
        steady[r] = 1;
        wild[r] = noisy[r] = r & 1 ? 1.03 : 1 / 1.03;
    }
    wild[1] = wild[5] = 20;
    wild[2] = wild[8] = 0.05;
    measure_case c = case_of(steady, 1);
    measure_verdict v = measure_judge(&c, counted, 1);
    tap_ok(v.mean.faster == 1 && v.mean.spread == 0 && !v.faster && !v.slower, "equal times: neither faster nor slower");
    static const struct {
        double faster;
        bool is_faster, is_slower;
    } all[] = {{1.06, true, false}, {1.031, true, false}, {1.029, false, false},
               {1, false, false},   {0.98, false, false}, {0.949, false, true}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int outliers = 0; outliers < 2; outliers++) {
            c = case_of(outliers ? wild : noisy, all[i].faster);
            v = measure_judge(&c, counted, 1);
            tap_ok(is_near(v.mean.faster, all[i].faster) && is_near(v.mean.spread, 0.03) && v.faster == all[i].is_faster &&
                       v.slower == all[i].is_slower && is_near(v.worst.faster, all[i].faster),
                   "%.3f times as fast, spread 0.03%s: %s", all[i].faster, outliers ? ", with four outliers" : "",
                   all[i].is_faster   ? "faster"
                   : all[i].is_slower ? "slower"
                                      : "neither");
        }
    const measure_case two[2] = {case_of(noisy, 1.3), case_of(noisy, 0.949)},
                       other[2] = {case_of(noisy, 1.3), case_of(noisy, 0.98)};
    v = measure_judge(two, counted, 2);
    tap_ok(v.faster && v.slower && v.worst_case == 1 && is_near(v.mean.faster, 1.3) && is_near(v.worst.faster, 0.949),
           "a case that is slower is found, whether it counts for the mean or not");
    v = measure_judge(other, counted, 2);
    tap_ok(v.faster && !v.slower, "a case that is slower by less than its spread is not");
    const measure_case steady_two[2] = {case_of(steady, 0.99), case_of(noisy, 0.98)};
    v = measure_judge(steady_two, counted, 2);
    tap_ok(v.slower && v.worst_case == 0, "the worst case is so beside its own spread");
    double turns[5][MEASURE_WAYS] = {{1, 7, 7}, {2, 2, 1}, {8, 4, 0.1}, {9, 9, 9}, {3, 8, 9}};
    measure_round(&c, 3, turns, 5);
    tap_ok(is_near(c.same[3], log(2. / 4)) && is_near(c.faster[3], log(8) / 2), "a round is the lower quartiles of its turns");
    for (int r = 0; r < MEASURE_ROUNDS; r++) c.faster[r] = r < 11 ? 0.001 : -1;
    v = measure_judge(&c, counted, 1);
    const bool promising = v.promising;
    c.faster[0] = -1;
    v = measure_judge(&c, counted, 1);
    tap_ok(promising && !v.promising, "what is faster in 11 of 15 rounds is promising");
    int orders = 0;
    for (int turn = 0; turn < 6; turn++) {
        int places = 0;
        for (int place = 0; place < 3; place++) places = places * 3 + measure_order(turn, place);
        orders |= 1 << places;
    }
    tap_ok(orders == (1 << 5 | 1 << 7 | 1 << 11 | 1 << 15 | 1 << 19 | 1 << 21), "six turns have all orders"); /* 012 to 210 */
}

/* How many of many comparisons, of rounds of some turns, say that the second way is faster or slower. */
static void compare_often(int times, double speed, int turns, int *faster, int *slower) {
    static const bool counted[1] = {true};
    *faster = *slower = 0;
    for (int i = 0; i < times; i++) {
        measure_case c;
        for (int r = 0; r < MEASURE_ROUNDS; r++) {
            double seconds[MEASURE_TURNS][MEASURE_WAYS];
            for (int n = 0; n < turns * MEASURE_WAYS; n++)
                seconds[n / MEASURE_WAYS][n % MEASURE_WAYS] = call_seconds(n % MEASURE_WAYS == MEASURE_SECOND ? speed : 1);
            measure_round(&c, r, seconds, turns);
        }
        const measure_verdict v = measure_judge(&c, counted, 1);
        *faster += v.faster, *slower += v.slower;
    }
}

static void test_chance(void) {
    int faster, slower;
    machine.random = 1;
    for (int outliers = 0; outliers < 2; outliers++) {
        machine.noise = 0.06, machine.outliers = outliers ? 0.2 : 0;
        compare_often(20000, 1, 1, &faster, &slower);
        tap_ok(faster < 60 && slower < 60, "20000 comparisons of equal ways%s: %d faster, %d slower, by chance",
               outliers ? ", with outliers" : "", faster, slower);
        compare_often(500, 1.04, 16, &faster, &slower);
        tap_ok(faster > 450 && slower == 0, "500 of a way that is 1.04 times as fast, in long rounds%s: %d are found",
               outliers ? ", with outliers" : "", faster);
    }
}

/* ---- The search ---------------------------------------------------------------------------------------------------------- */

static double sixteen(int64_t tokens, const rapt_tuning *t) { return tokens == 16 && t->few_tokens == 16 ? 1.2 : 1; }

static double one_for_another(int64_t tokens, const rapt_tuning *t) {
    return t->few_tokens == -1 ? 1 : tokens == 8 ? 1.5 : 0.949;
}

/* The same, by a number that is not for the case that becomes slower. */
static double one_for_a_stranger(int64_t tokens, const rapt_tuning *t) {
    return t->long_ahead == -1 ? 1 : tokens == 8 ? 1.5 : 0.949;
}

/* Each of two numbers is faster by itself, and together they are faster still. */
static double two_numbers(int64_t tokens, const rapt_tuning *t) {
    (void)tokens;
    return (t->few_tokens == 32 ? 1.15 : 1) * (t->long_ahead == 512 ? 1.1 : 1);
}

static void test_search(void) {
    int recommended = 0, told = 0, late = 0;
    machine = (struct machine){.noise = 0.05, .outliers = 0.1};
    for (uint64_t seed = 0; seed < 40; seed++) {
        run_tune("--seconds 60", seed);
        recommended += got.status != 0 || strcmp(got.out, "scalar\n") != 0;
        told += strstr(got.err, "nothing is faster beyond the spread: the kernel's own numbers are the best") != NULL ||
                strstr(got.err, ": the kernel's own numbers are the best that were found") != NULL;
        late += got.seconds < 50 || got.seconds > 63;
    }
    tap_ok(recommended == 0 && told == 40, "nothing makes a difference: recommended in %d of 40 searches", recommended);
    tap_ok(late == 0, "and each of them takes the time that it is given, and no more: all but %d", late);
    machine.speed = sixteen;
    int found = 0;
    for (uint64_t seed = 0; seed < 10; seed++) {
        run_tune("--seconds 60", seed);
        const bool good = got.status == 0 && !strcmp(got.out, "scalar few_tokens=16\n") && strstr(got.err, ": recommended\n") &&
                          strstr(got.err, "\n  linear-16 ") && got.seconds > 50 && got.seconds < 63;
        explain_failure(good);
        found += good;
    }
    tap_ok(found >= 9, "a number that is faster in one case: found in %d of 10 searches", found);
    machine.speed = two_numbers;
    run_tune("--seconds 120", 1);
    bool good = got.status == 0 && strstr(got.out, " few_tokens=32") && strstr(got.out, " long_ahead=512");
    explain_failure(good);
    tap_ok(good, "two numbers that are faster");
    for (int stranger = 0; stranger < 2; stranger++) {
        machine.speed = stranger ? one_for_a_stranger : one_for_another;
        recommended = 0;
        for (uint64_t seed = 0; seed < 10; seed++) {
            run_tune("--seconds 120", seed);
            recommended += got.status != 0 || strcmp(got.out, "scalar\n") != 0;
        }
        tap_ok(recommended == 0, "1.5 times as fast in one case, 0.949 in another%s: recommended in %d of 10 searches",
               stranger ? ", which the number is not for" : "", recommended);
    }
    machine = (struct machine){.speed = NULL};
    run_tune("--seconds 6", 1);
    tap_ok(got.status == 0 && !strcmp(got.out, "scalar\n") && got.seconds > 4.5 && got.seconds < 6.5,
           "without noise equal is not faster, and six seconds are %.2f", got.seconds);
}

static void test_progress(void) {
    machine = (struct machine){.noise = 0.05, .speed = sixteen};
    run_tune("--seconds 20", 1);
    int lines = 0;
    for (const char *c = got.err; *c; c++) lines += *c == '\n';
    tap_ok(lines > 10 && !strchr(got.err, '\r') && strstr(got.err, " s of 20: long_ahead: 6 values, the best ") &&
               strstr(got.err, "\nfew_rows: changes nothing in these cases\n") && strstr(got.err, "few_tokens=16: 1."),
           "each step is a line where standard error is no terminal: %d lines", lines);
    run_tune("--seconds 20 --quiet", 1);
    tap_ok(got.status == 0 && !strcmp(got.out, "scalar few_tokens=16\n") && !*got.err, "--quiet: the line alone");
    run_tune("--seconds 1", 1);
    tap_ok(got.status == 0 && strstr(got.err, "values were not tried: there was no time for them, see --seconds") &&
               got.seconds < 3,
           "values for which there is no time are told of");
}

static void test_signals(void) {
    static const int numbers_of[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        const int status = 128 + numbers_of[i];
        machine = (struct machine){.noise = 0.05, .speed = sixteen, .signal_at = 30, .number = numbers_of[i]};
        run_tune("--seconds 60", 1);
        bool good = got.status == status && !strcmp(got.out, "scalar few_tokens=16\n") && got.seconds < 30.05 &&
                    strstr(got.err, "stopped by a signal after 30 s; the best so far, not yet measured as a whole:\n") &&
                    strstr(got.err, "\n  few_tokens=16: 1.");
        explain_failure(good);
        tap_ok(good, "signal %d in the midst: the best line so far, with its figures, and exit %d", numbers_of[i], status);
        machine = (struct machine){.noise = 0.05, .signal_at = 0.005, .number = numbers_of[i]};
        run_tune("--seconds 60", 1);
        tap_ok(got.status == status && !strcmp(got.out, "scalar\n") && got.seconds < 0.2, "signal %d while cases are prepared",
               numbers_of[i]);
        machine = (struct machine){.noise = 0.05, .speed = sixteen, .signal_at = 59.5, .number = numbers_of[i]};
        run_tune("--seconds 60", 1);
        tap_ok(got.status == status && !strcmp(got.out, "scalar few_tokens=16\n"), "signal %d in the last measurement",
               numbers_of[i]);
        signal(numbers_of[i], SIG_IGN);
        machine = (struct machine){.signal_at = 1, .number = numbers_of[i]};
        run_tune("--seconds 3", 1);
        tap_ok(got.status == 0 && got.seconds > 2, "signal %d ignored, as by nohup, stays so", numbers_of[i]);
        signal(numbers_of[i], SIG_DFL);
    }
}

/* ---- Cases --------------------------------------------------------------------------------------------------------------- */

static void test_selection(void) {
    static const struct {
        const char *names, *chosen;
    } all[] = {{"linear-1", " linear-1"},
               {"few-8,linear-1-short", " few-8 linear-1-short"},
               {"linear-1-short,few-8,few-8", " few-8 linear-1-short"},
               {"linear-1*", " linear-1 linear-1-short linear-16"},
               {"linear-?", " linear-1 linear-8"},
               {"linear-bf16-*,ragged", " ragged linear-bf16-8 linear-bf16-16"},
               {"*-16", " few-16 linear-16 linear-bf16-16"},
               {"pre*ill", " prefill"},
               {"decode*", " decode decode-int8"},
               {"linear", NULL},
               {"linear-1,walk", NULL},
               {"", NULL},
               {",", NULL},
               {"few-8,", NULL},
               {"few-8 ", NULL},
               {"FEW-8", NULL},
               {"few-??", " few-12 few-16"}};
    FILE *const err = tmpfile();
    const int stderr_before = dup(STDERR_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char chosen[400] = "";
        unsigned mask = 0;
        const int status = select_cases(all[i].names, &mask);
        for (int n = 0; n < CASES; n++)
            if (mask >> n & 1) snprintf(chosen + strlen(chosen), sizeof chosen - strlen(chosen), " %s", cases[n].name);
        tap_ok(all[i].chosen ? status == 0 && !strcmp(chosen, all[i].chosen) : status == CLI_ERROR, "--cases '%s':%s",
               all[i].names, all[i].chosen ? all[i].chosen : " refused");
    }
    dup2(stderr_before, STDERR_FILENO);
    close(stderr_before);
    fclose(err);
}

int main(void) {
    test_given_times();
    test_chance();
    test_search();
    test_progress();
    test_signals();
    test_selection();
    return tap_done();
}
