/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bits --------------------------------------------------------------------------------------------------------------- */

/* The first element that differs, or n. */
static int64_t first_difference(rapt_type type, const unsigned char *a, const unsigned char *b, int64_t n) {
    const int64_t bytes = reference_type_bytes(type);
    if (memcmp(a, b, (size_t)(n * bytes)) == 0) return n;
    for (int64_t e = 0; e < n; e++, a += bytes, b += bytes) {
        if (memcmp(a, b, (size_t)bytes) == 0) continue;
        if (!isnan(reference_load(type, a)) || !isnan(reference_load(type, b))) return e;
    }
    return n;
}

static bool same(check *c, kernel *k, const char *against, const subject *s, const char *output, rapt_type type,
                 const unsigned char *got, const unsigned char *want, int64_t n, int64_t b, int64_t h, int64_t i) {
    const int64_t channel = first_difference(type, got, want, n), at = channel * reference_type_bytes(type);
    if (channel == n) return true;
    char text[SUBJECT_TEXT];
    subject_text(s, text, sizeof text);
    check_fail(c, k, "differs from %s: %s[%d,%d,%d,%d] = %a, not %a; %s", against, output, (int)b, (int)h, (int)i, (int)channel,
               (double)reference_load(type, got + at), (double)reference_load(type, want + at), text);
    return false;
}

bool same_rows(check *c, kernel *k, const char *against, const subject *s, const unsigned char *got, const subject *t,
               const unsigned char *want, int64_t b0, int64_t h0, int64_t i0) {
    const rapt_desc *d = &s->desc, *e = &t->desc;
    const int64_t bytes = d->d_v * reference_type_bytes(d->o.type);
    const unsigned char *lse = got + reference_rows(d) * bytes, *lse_want = want + reference_rows(e) * bytes;
    const bool both = d->lse.type && e->lse.type, scores = d->scores_stage && e->scores_stage;
    const int64_t columns = scores ? reference_columns(d) : 0;
    const unsigned char *score = lse + (d->lse.type ? reference_rows(d) * 4 : 0);
    const unsigned char *score_want = lse_want + (e->lse.type ? reference_rows(e) * 4 : 0);
    k->compared += reference_rows(d) * (d->d_v + both + columns);
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t h = 0; h < d->heads; h++) {
            for (int64_t i = 0; i < reference_queries(d, b); i++) {
                const int64_t row = reference_row(d, b, h, i), from = reference_row(e, b0 + b, h0 + h, i0 + i);
                if (!same(c, k, against, s, "o", d->o.type, got + row * bytes, want + from * bytes, d->d_v, b, h, i))
                    return false;
                if (both && !same(c, k, against, s, "lse", RAPT_F32, lse + row * 4, lse_want + from * 4, 1, b, h, i))
                    return false;
                if (!same(c, k, against, s, "scores", RAPT_F32, score + row * columns * 4, score_want + from * columns * 4,
                          columns, b, h, i))
                    return false;
            }
        }
    }
    return true;
}

/* ---- Accuracy ----------------------------------------------------------------------------------------------------------- */

/* What of the error is not the output type's rounding, in units of the bound; above 1 is too much. A bound below 0: NaN is right,
 * too. */
static double ratio_of(double got, double want, double bound, double half_ulp, double overflow) {
    if (bound < 0 && isnan(got)) return 0;
    bound = fabs(bound);
    if (isnan(want) || isnan(bound)) return isnan(got) || got == want ? 0 : INFINITY;
    const double beyond = fabs(got - want) - half_ulp;
    if (isinf(got) && signbit(got) == signbit(want) && fabs(want) + bound >= overflow) return 0;
    if (got == want || beyond <= 0) return 0;
    if (!isfinite(bound)) return isfinite(got) ? 0 : INFINITY;
    return beyond / bound;
}

static double overflow_of(rapt_type type) { return type == RAPT_F16 ? 65520 : 0x1.fffffep127; }

/* Integer arithmetic is no further from exact arithmetic than its steps are wide. */
static void judge_steps(check *c, kernel *k, const subject *s, const unsigned char *dense, const reference *r) {
    const rapt_desc *d = &s->desc;
    const int64_t rows = reference_rows(d), n = rows * d->d_v, bytes = reference_type_bytes(d->o.type);
    for (int64_t e = 0; e < n + (d->lse.type ? rows : 0); e++) {
        const bool lse = e >= n;
        const double want = lse ? r->exact_lse[e - n] : r->exact[e], bound = lse ? r->exact_lse_bound[e - n] : r->exact_bound[e];
        const double got =
            lse ? reference_load(RAPT_F32, dense + n * bytes + (e - n) * 4) : reference_load(d->o.type, dense + e * bytes);
        const double half_ulp = lse ? 0 : reference_half_ulp(d->o.type, fabs(want) + fabs(bound));
        if (ratio_of(got, want, bound, half_ulp, overflow_of(lse ? RAPT_F32 : d->o.type)) <= 1) continue;
        char text[SUBJECT_TEXT];
        subject_text(s, text, sizeof text);
        check_fail(c, k, "too far from exact arithmetic: %s[%d] = %a, exact %a, bound %g; %s", lse ? "lse" : "o",
                   (int)(lse ? e - n : e), got, want, bound + half_ulp, text);
        return;
    }
}

/* bf16 arithmetic is, bit for bit, what docs/order.md says. */
static void judge_order(check *c, kernel *k, int rounding, const subject *s, const unsigned char *dense, const reference *r) {
    const rapt_desc *d = &s->desc;
    const int64_t rows = reference_rows(d), n = rows * d->d_v, bytes = reference_type_bytes(d->o.type);
    for (int64_t e = 0; e < n + (d->lse.type ? rows : 0); e++) {
        const bool lse = e >= n;
        const rapt_type type = lse ? RAPT_F32 : d->o.type;
        const unsigned char *got = lse ? dense + n * bytes + (e - n) * 4 : dense + e * bytes;
        unsigned char want[4];
        reference_store(type, want, lse ? r->ordered_lse[rounding][e - n] : r->ordered[rounding][e]);
        if (memcmp(got, want, (size_t)reference_type_bytes(type)) == 0) continue;
        if (isnan(reference_load(type, got)) && isnan(reference_load(type, want))) continue;
        char text[SUBJECT_TEXT];
        subject_text(s, text, sizeof text);
        check_fail(c, k, "not in the order of docs/order.md: %s[%d] = %a, not %a; %s", lse ? "lse" : "o", (int)(lse ? e - n : e),
                   (double)reference_load(type, got), (double)reference_load(type, want), text);
        return;
    }
}

/* Scores, whose rows follow those of o and lse. */
static void judge_scores(check *c, kernel *k, const subject *s, const unsigned char *scores, const reference *r) {
    const rapt_desc *d = &s->desc;
    const int64_t columns = reference_columns(d);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t first, end;
        reference_scored(d, b, &first, &end);
        for (int64_t n = 0; n < d->heads * reference_queries(d, b); n++) {
            const int64_t row = reference_row(d, b, 0, 0) + n;
            for (int64_t j = first; j < end; j++) {
                const int64_t e = row * columns + j;
                const double got = reference_load(RAPT_F32, scores + e * 4), want = r->scores[e];
                if (ratio_of(got, want, r->scores_bound[e], 0, overflow_of(RAPT_F32)) <= 1) continue;
                char text[SUBJECT_TEXT];
                subject_text(s, text, sizeof text);
                check_fail(c, k, "error above the bound: scores[row %d, %d] = %a, reference %a, bound %g; %s", (int)row, (int)j,
                           got, want, r->scores_bound[e], text);
                return;
            }
        }
    }
}

/* Adds the squares of a row to those of the case. */
static void add_row(accuracy *a, const squares *row) {
    a->all.ours += row->ours;
    a->all.naive += row->naive;
    a->all.ulps += row->ulps;
    if (row->ours > a->worst_row.ours) a->worst_row = *row;
}

static void judge(check *c, kernel *k, int rounding, const subject *s, const unsigned char *dense, const reference *r) {
    const rapt_desc *d = &s->desc;
    accuracy *a = &c->accuracy[rounding];
    const int64_t rows = reference_rows(d), n = rows * d->d_v, bytes = reference_type_bytes(d->o.type);
    squares row_squares = {0, 0, 0};
    for (int64_t e = 0; e < n; e++) {
        if (e % d->d_v == 0) {
            add_row(a, &row_squares);
            row_squares = (squares){0, 0, 0};
        }
        const double want = r->o[e], bound = r->o_bound[e], got = reference_load(d->o.type, dense + e * bytes);
        const double half_ulp = reference_half_ulp(d->o.type, fabs(want) + fabs(bound));
        const double ratio = ratio_of(got, want, bound, half_ulp, overflow_of(d->o.type));
        a->worst = fmax(a->worst, ratio);
        if (!(ratio <= 1)) {
            char text[SUBJECT_TEXT];
            subject_text(s, text, sizeof text);
            check_fail(c, k, "error above the bound: o[row %d, %d] = %a, reference %a, bound %g; %s", (int)(e / d->d_v),
                       (int)(e % d->d_v), got, want, bound + half_ulp, text);
            break;
        }
        if (d->arith != RAPT_EXACT) continue; /* naive code has no such arithmetic */
        unsigned char stored[4];
        reference_store(d->o.type, stored, r->naive[e]);
        const double naive = fabs(reference_load(d->o.type, stored) - want) / (bound + half_ulp);
        const double ulp = 0x1p-23 * r->o_size[e] / (bound + half_ulp);
        if (!isfinite(naive) || !isfinite(ulp) || !isfinite(bound)) continue;
        const double error = fabs(got - want) / (bound + half_ulp);
        row_squares.ours += error * error;
        row_squares.naive += naive * naive;
        row_squares.ulps += ulp * ulp;
    }
    add_row(a, &row_squares);
    if (!d->lse.type) return;
    for (int64_t row = 0; row < rows; row++) {
        const double got = reference_load(RAPT_F32, dense + n * bytes + row * 4);
        const double ratio = ratio_of(got, r->lse[row], r->lse_bound[row], 0, overflow_of(RAPT_F32));
        a->worst = fmax(a->worst, ratio);
        if (!(ratio <= 1)) {
            char text[SUBJECT_TEXT];
            subject_text(s, text, sizeof text);
            check_fail(c, k, "error above the bound: lse[row %d] = %a, reference %a, bound %g; %s", (int)row, got, r->lse[row],
                       r->lse_bound[row], text);
            break;
        }
    }
}

static int64_t scores_at(const subject *s) {
    const int64_t rows = reference_rows(&s->desc);
    return subject_output_bytes(s) - rows * reference_columns(&s->desc) * 4;
}

/* ---- Both --------------------------------------------------------------------------------------------------------------- */

void examine_subject(check *c, subject *s, uint64_t seed) {
    reference r = reference_of(s);
    for (int rounding = 0; rounding < CLASSES; rounding++) {
        kernel *twin = check_twin(c, rounding);
        if (!twin) continue;
        const how plainly = {WAY_RUN, 1, 1, seed, 0};
        unsigned char *want = subject_run(c, s, twin, &plainly);
        if (!want) continue;
        twin->compared += subject_output_bytes(s) / reference_type_bytes(s->desc.o.type);
        judge(c, twin, rounding, s, want, &r);
        if (s->desc.arith == RAPT_INT8_DOT) judge_steps(c, twin, s, want, &r);
        if (s->desc.arith == RAPT_BF16_DOT) judge_order(c, twin, rounding, s, want, &r);
        if (s->desc.scores_stage) judge_scores(c, twin, s, want + scores_at(s), &r);
        FOR_EACH_KERNEL(c, k) {
            if (k == twin || strcmp(k->rounding, twin->rounding) != 0) continue;
            uint64_t random = hash_text(seed, k->name);
            const how drawn = how_drawn(&random);
            unsigned char *got = subject_run(c, s, k, &drawn);
            if (got) same_rows(c, k, twin->name, s, got, s, want, 0, 0, 0);
            free(got);
        }
        free(want);
    }
    reference_free(&r);
}

void examine(check *c, const problem *p) {
    if (!problem_wanted(c, p)) return;
    subject s = subject_create(c, p);
    examine_subject(c, &s, p->data_seed);
    subject_destroy(&s);
}
