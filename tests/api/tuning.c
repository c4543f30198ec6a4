/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings as text and in structs of other versions, and that plans go by them. That none of them changes a bit, check, linear and
 * mha show; what is refused, explain. */
#include <stdbool.h>

#include "random.h"
#include "rapt_layer.h"
#include "tap.h"
#include "tunings.h"

static bool same_numbers(const rapt_tuning *a, const rapt_tuning *b) {
    int of_a[TUNING_NUMBERS], of_b[TUNING_NUMBERS];
    tuning_numbers(a, of_a), tuning_numbers(b, of_b);
    return memcmp(of_a, of_b, sizeof of_a) == 0 && (a->isa && b->isa ? strcmp(a->isa, b->isa) == 0 : a->isa == b->isa);
}

static void round_trips(const char *isa) {
    enum { TIMES = 500 };
    int wrong = 0;
    size_t longest = 0;
    for (uint64_t seed = 1; seed <= TIMES; seed++) {
        const rapt_tuning t = tuning_of(isa, seed);
        rapt_tuning back;
        char line[RAPT_TUNING_BYTES], again[RAPT_TUNING_BYTES];
        rapt_tuning_init(&back);
        memset(again, '#', sizeof again);
        bool ok = rapt_tuning_print(&t, line, sizeof line) == RAPT_OK && rapt_tuning_parse(line, &back) == RAPT_OK &&
                  same_numbers(&t, &back) && rapt_tuning_print(&back, again, strlen(line) + 1) == RAPT_OK &&
                  !strcmp(line, again) && again[strlen(line) + 1] == '#' &&
                  rapt_tuning_print(&back, again, strlen(line)) == RAPT_ERR_TUNING && !strcmp(line, again);
        wrong += !ok;
        longest = strlen(line) > longest ? strlen(line) : longest;
    }
    tap_ok(!wrong, "%s: %d tunings become text and come back, the longest of %zu characters; %d wrong", isa, TIMES, longest,
           wrong);
}

/* Bytes that are nearly a line: each is refused and explained alike and changes nothing, or is the line that is printed. */
static void any_text(void) {
    static const char good[] = "scalar few_rows=3 joined_bytes=77 pass_l2=5 few_tokens=9", letters[] = " =0123456789abcs_\t\n";
    enum { TIMES = 20000 };
    int refused = 0, wrong = 0;
    random_state = 5;
    for (int n = 0; n < TIMES; n++) {
        char line[sizeof good], text[128], printed[RAPT_TUNING_BYTES];
        rapt_tuning t, before;
        rapt_tuning_init(&t);
        t.left_over = 12345;
        memcpy(&before, &t, sizeof t);
        memcpy(line, good, sizeof good);
        for (int64_t i = below(4); i >= 0; i--) line[below(sizeof good - 1)] = letters[below(sizeof letters)];
        const rapt_status status = rapt_tuning_parse(line, &t);
        rapt_tuning back;
        memcpy(&back, &before, sizeof back);
        bool ok = rapt_tuning_parse_explain(line, &back, text, sizeof text) == status && !*text == !status &&
                  memcmp(&back, &before, sizeof back) == 0;
        if (status) ok = ok && memcmp(&t, &before, sizeof t) == 0;
        else ok = ok && t.left_over == -1 && rapt_tuning_print(&t, printed, sizeof printed) == RAPT_OK;
        if (!status) ok = ok && rapt_tuning_parse(printed, &back) == RAPT_OK && same_numbers(&t, &back);
        refused += status != RAPT_OK;
        wrong += !ok;
    }
    tap_ok(!wrong && refused > TIMES / 10 && refused < TIMES, "of %d lines with other characters %d are refused; %d wrong", TIMES,
           refused, wrong);
}

/* A kernel's own numbers lie in its range, given to a plan they change nothing, and structs of other versions keep what they
 * know.
 */
static void own_numbers(const char *isa) {
    struct {
        rapt_tuning known;
        char unknown[16];
    } newer;
    rapt_tuning own, least, most;
    /* What rapt.h says that there is at most. */
    static const int documented[TUNING_NUMBERS] = {16,   16, 15, 64,  1 << 20, 32,      256,     64,     64,
                                                   1024, 32, 32, 256, 1 << 20, 1 << 24, 1 << 20, 1 << 20};
    int numbers[3][TUNING_NUMBERS];
    rapt_tuning_init(&own), rapt_tuning_init(&least), rapt_tuning_init(&most);
    bool ok = rapt_tuning_query(isa, &own, &least, &most) == RAPT_OK && !strcmp(own.isa, isa) && !strcmp(most.isa, isa);
    tuning_numbers(&least, numbers[0]), tuning_numbers(&own, numbers[1]), tuning_numbers(&most, numbers[2]);
    for (int i = 0; i < TUNING_NUMBERS; i++)
        ok = ok && numbers[0][i] >= 0 && numbers[0][i] <= numbers[1][i] && numbers[1][i] <= numbers[2][i] &&
             numbers[2][i] <= documented[i];
    tap_ok(ok, "%s: its numbers lie in their ranges", isa);

    memset(&newer, 0x5a, sizeof newer);
    rapt_tuning_init_sized(&newer.known, sizeof newer);
    const size_t size = newer.known.size;
    ok = rapt_tuning_query(isa, &newer.known, NULL, NULL) == RAPT_OK && same_numbers(&newer.known, &own) &&
         newer.known.size == size;
    for (size_t i = 0; i < sizeof newer.unknown; i++) ok = ok && newer.unknown[i] == 0;
    tap_ok(ok, "%s: a larger struct of a newer version gets what is known", isa);
}

/* ---- Plans --------------------------------------------------------------------------------------------------------------- */

/* A tuning as text; null: none. */
static const rapt_tuning *read_line(const char *line) {
    static rapt_tuning t;
    rapt_tuning_init(&t);
    if (line && rapt_tuning_parse(line, &t)) abort();
    return line ? &t : NULL;
}

/* Returns what a plan chooses for attention of `queries` queries to 2048 keys, of 2 heads side by side. WIDE: of as many channels
 * as a head may have, so that a sixteenth of a large L2 cache is not enough either. */
typedef enum kind { PLAIN, RAGGED, INTEGERS, WIDE } kind;
static rapt_plan_info planned(const char *isa, int64_t queries, int64_t threads, kind of, const rapt_tuning *tuning) {
    const int32_t starts[2] = {0, (int32_t)queries};
    const rapt_type type = of == INTEGERS ? RAPT_INT8 : RAPT_F32;
    const int64_t channels = of == WIDE ? RAPT_MAX_HEAD_DIM : 64;
    rapt_desc d;
    rapt_plan plan;
    rapt_plan_info info = {.size = sizeof info};
    rapt_desc_init(&d);
    d.heads = d.kv_heads = 2, d.q_len = queries, d.kv_len = 2048, d.d_k = d.d_v = channels, d.threads = threads;
    d.q = d.o = rapt_layout_bshd(RAPT_F32, 2, queries, channels), d.k = d.v = rapt_layout_bshd(type, 2, 2048, channels);
    if (of == INTEGERS) d.arith = RAPT_INT8_DOT;
    if (of == RAGGED) d.q_starts = starts;
    d.isa = isa, d.tuning = tuning;
    if (rapt_plan_init(&plan, &d) || rapt_plan_query(&plan, &info)) abort();
    return info;
}

/* The workspace of a linear layer, whose weights take 16 MiB. */
static size_t linear_bytes(const char *isa, int64_t tokens, rapt_arith arith, const rapt_tuning *tuning) {
    rapt_linear_desc d;
    rapt_linear_plan plan;
    size_t bytes = 0;
    rapt_linear_desc_init(&d);
    d.tokens = tokens, d.in = d.out = 2048, d.isa = isa, d.tuning = tuning, d.arith = arith;
    d.x = d.y = rapt_layout_bshd(RAPT_F32, 1, tokens, 2048), d.weight = rapt_layout_bshd(RAPT_F32, 1, 2048, 2048);
    if (rapt_linear_plan_init(&plan, &d) || rapt_linear_workspace_size(&plan, 1, &bytes)) abort();
    return bytes;
}

/* Each number changes what it is for, however large the L2 cache is. Of staging_outputs, long_row, long_ahead and short_ahead
 * nothing shows but time. */
static void plans_go_by_them(const char *isa) {
    rapt_tuning own, most;
    rapt_tuning_init(&own), rapt_tuning_init(&most);
    if (rapt_tuning_query(isa, &own, NULL, &most)) abort();
    const rapt_plan_info plain = planned(isa, 3001, 2, PLAIN, NULL), same = planned(isa, 3001, 2, PLAIN, &own);
    tap_ok(same.thread_bytes == plain.thread_bytes && same.tasks[0] == plain.tasks[0] &&
               same.rows_keys_in_lanes == plain.rows_keys_in_lanes &&
               linear_bytes(isa, 100, RAPT_EXACT, &own) == linear_bytes(isa, 100, RAPT_EXACT, NULL),
           "%s: with its own numbers a plan is what it is without a tuning", isa);

#define PLANNED(line, queries, threads, kind) planned(isa, queries, threads, kind, read_line(line))
#define BYTES(line, tokens, arith)            linear_bytes(isa, tokens, arith, read_line(line))
    tap_ok(PLANNED("any few_rows=16", 16, 1, PLAIN).rows_keys_in_lanes == 32 &&
               PLANNED("any few_rows=15 left_over=0", 16, 1, PLAIN).rows_keys_in_lanes == 0 &&
               PLANNED("any few_rows=0", 1, 1, PLAIN).rows_keys_in_lanes == 0,
           "%s: few_rows", isa);
    tap_ok(PLANNED("any few_integer_rows=3", 3, 1, INTEGERS).rows_keys_in_lanes == 6 &&
               PLANNED("any few_integer_rows=2 left_over=0", 3, 1, INTEGERS).rows_keys_in_lanes == 0,
           "%s: few_integer_rows", isa);
    if (most.left_over > 0)
        tap_ok(PLANNED("any left_over=3 pass_l2=256", 35, 1, PLAIN).rows_keys_in_lanes == 6 &&
                   PLANNED("any left_over=2 pass_l2=256", 35, 1, PLAIN).rows_keys_in_lanes == 0,
               "%s: left_over", isa);
    tap_ok(PLANNED("any joined_rows=1", 1, 1, PLAIN).tasks[0] == 2 &&
               PLANNED("any joined_rows=2 joined_bytes=512", 1, 1, PLAIN).tasks[0] == 1 &&
               PLANNED("any joined_rows=2 joined_bytes=256", 1, 1, PLAIN).tasks[0] == 2,
           "%s: joined_rows and joined_bytes", isa);
    tap_ok(PLANNED("any pass_tiles=1", 3001, 1, PLAIN).tasks[0] >
                   PLANNED("any pass_tiles=32 pass_l2=256", 3001, 1, PLAIN).tasks[0] &&
               PLANNED("any pass_tiles=1", 3001, 1, PLAIN).thread_bytes <
                   PLANNED("any pass_tiles=32 pass_l2=256", 3001, 1, PLAIN).thread_bytes,
           "%s: pass_tiles", isa);
    tap_ok(PLANNED("any pass_l2=1", 3001, 1, WIDE).thread_bytes < PLANNED("any pass_l2=256", 3001, 1, WIDE).thread_bytes,
           "%s: pass_l2", isa);
    tap_ok(PLANNED("any thread_tasks=1 ragged_tasks=64 pass_l2=256", 3001, 2, PLAIN).tasks[0] <
               PLANNED("any thread_tasks=64 ragged_tasks=1 pass_l2=256", 3001, 2, PLAIN).tasks[0],
           "%s: thread_tasks", isa);
    tap_ok(PLANNED("any ragged_tasks=1 thread_tasks=64 pass_l2=256", 3001, 2, RAGGED).tasks[0] <
               PLANNED("any ragged_tasks=64 thread_tasks=1 pass_l2=256", 3001, 2, RAGGED).tasks[0],
           "%s: ragged_tasks", isa);
    tap_ok(PLANNED("any states_part=1 few_rows=1", 1, 8, PLAIN).phases == 2 &&
               PLANNED("any states_part=1024 few_rows=1", 1, 8, PLAIN).phases == 1,
           "%s: states_part", isa);
    tap_ok(BYTES("any few_tokens=6 bf16_few_tokens=7", 7, RAPT_EXACT) > BYTES("any few_tokens=7", 7, RAPT_EXACT),
           "%s: few_tokens", isa);
    tap_ok(BYTES("any few_tokens=7 bf16_few_tokens=6", 7, RAPT_BF16_DOT) > BYTES("any bf16_few_tokens=7", 7, RAPT_BF16_DOT),
           "%s: bf16_few_tokens", isa);
    tap_ok(BYTES("any weights_l2=1", 100, RAPT_EXACT) < BYTES("any weights_l2=256", 100, RAPT_EXACT), "%s: weights_l2", isa);
#undef PLANNED
#undef BYTES
}

int main(void) {
    const char *isa;
    for (int i = 0; (isa = rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(isa, NULL, 0) != RAPT_OK) continue;
        round_trips(isa);
        own_numbers(isa);
        plans_go_by_them(isa);
    }
    any_text();
    return tap_done();
}
