/* SPDX-License-Identifier: Apache-2.0 */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALPHA 0.6

/* A sentence's hypotheses. Scores are logarithms of probabilities. */
typedef struct hypothesis {
    double score;
    int32_t tokens[MAX_OUTPUT];
} hypothesis;

typedef struct beams {
    int live, limit;   /* hypotheses that go on, and the most tokens of one, its end included */
    double best_score; /* of those that have ended, by length */
    hypothesis live_of[MAX_BEAM];
} beams;

typedef struct candidate {
    double score;
    int parent, token;
} candidate;

/* Wu et al. 2016, formula 14. */
static double length_penalty(int length) { return pow((5 + length) / 6.0, ALPHA); }

/* log(sum(exp(logits))) */
static double log_sum(const float *logits, int n) {
    double most = logits[0], sum = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > most) most = logits[i];
    for (int i = 0; i < n; i++) sum += exp(logits[i] - most);
    return most + log(sum);
}

/* The best candidates, best first; of equal ones the first. Their number, at most wanted. */
static int best_candidates(const beams *b, const float *logits, int pieces, int wanted, candidate *best) {
    int found = 0;
    for (int parent = 0; parent < b->live; parent++, logits += pieces) {
        const double sum = log_sum(logits, pieces);
        for (int token = 0; token < pieces; token++) {
            const double score = b->live_of[parent].score + (logits[token] - sum);
            /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): there are found, and wanted is not 0 */
            if (found == wanted && !(score > best[found - 1].score)) continue;
            int at = found < wanted ? found++ : found - 1;
            for (; at > 0 && score > best[at - 1].score; at--) best[at] = best[at - 1];
            best[at] = (candidate){score, parent, token};
        }
    }
    return found;
}

/* One step of a sentence, to hypotheses of length tokens. parents: where each of those that go on comes from. It ends when none
 * that goes on could overtake the best of those that have ended. */
static void step(beams *b, sentence *s, const float *logits, int pieces, int beam, int length, int32_t *parents) {
    candidate best[2 * MAX_BEAM];
    hypothesis next[MAX_BEAM];
    int live = 0;
    const int found = best_candidates(b, logits, pieces, 2 * beam, best);
    for (int rank = 0; rank < found; rank++) {
        const int32_t *tokens = b->live_of[best[rank].parent].tokens;
        const size_t bytes = (size_t)(length - 1) * sizeof *tokens;
        if (best[rank].token != TOKEN_END) {
            if (live == beam) continue;
            memcpy(next[live].tokens, tokens, bytes);
            next[live].tokens[length - 1] = best[rank].token;
            next[live].score = best[rank].score;
            parents[live++] = best[rank].parent;
        } else if (rank < beam) {
            const double score = best[rank].score / length_penalty(length);
            if (!s->ended || score > b->best_score) {
                s->ended = 1;
                b->best_score = score;
                memcpy(s->output, tokens, bytes);
                s->output_count = length - 1;
            }
        }
    }
    memcpy(b->live_of, next, (size_t)live * sizeof *next);
    b->live = live;
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): of the candidates half can have ended, so some live */
    if (length < b->limit && !(s->ended && b->best_score >= next[0].score / length_penalty(b->limit))) return;
    if (!s->ended) {
        memcpy(s->output, next[0].tokens, (size_t)length * sizeof *s->output);
        s->output_count = length;
    }
    b->live = 0;
}

static void keep_logits(sentence *s, const float *logits, int64_t rows, int pieces) {
    const size_t row_bytes = (size_t)pieces * sizeof *logits;
    s->logits = present(realloc(s->logits, (size_t)(s->logit_rows + rows) * row_bytes));
    memcpy(s->logits + s->logit_rows * pieces, logits, (size_t)rows * row_bytes);
    s->logit_rows += rows;
}

void search(runner *r, sentence *sentences, int64_t count, int beam, int want_logits) {
    const int pieces = r->model->vocabulary.count;
    int32_t *starts = present(calloc((size_t)count + 1, sizeof *starts));
    int32_t *row_starts = present(calloc((size_t)count + 1, sizeof *row_starts));
    beams *all = present(calloc((size_t)count, sizeof *all));
    int64_t longest = 0;
    for (int64_t b = 0; b < count; b++) {
        sentences[b].ended = 0;
        starts[b + 1] = starts[b] + sentences[b].source_count;
        row_starts[b + 1] = row_starts[b] + 1;
        all[b].live = 1, all[b].limit = sentences[b].source_count + BEYOND;
        if (longest < all[b].limit) longest = all[b].limit;
    }
    int32_t *sources = present(malloc((size_t)starts[count] * sizeof *sources));
    for (int64_t b = 0; b < count; b++)
        memcpy(sources + starts[b], sentences[b].source, (size_t)sentences[b].source_count * sizeof *sources);
    encoding memory = {.entries = count, .starts = starts};
    encode(r, sources, &memory);

    const size_t most_rows = (size_t)count * (size_t)beam;
    int32_t *tokens = present(malloc(most_rows * sizeof *tokens)), *parents = present(malloc(most_rows * sizeof *parents));
    float *logits = present(malloc(most_rows * (size_t)pieces * sizeof *logits));
    caches c = {0};
    caches_start(r, &c, count, longest);
    for (int64_t b = 0; b < count; b++) tokens[b] = TOKEN_START;
    for (int length = 1; c.rows; length++) {
        decode_step(r, &memory, &c, row_starts, tokens, logits);
        int32_t rows = 0;
        for (int64_t b = 0; b < count; b++) {
            const int32_t first = row_starts[b];
            const float *at = logits + (int64_t)first * pieces;
            row_starts[b] = rows;
            if (!all[b].live) continue;
            if (want_logits) keep_logits(&sentences[b], at, all[b].live, pieces);
            step(&all[b], &sentences[b], at, pieces, beam, length, parents + rows);
            for (int i = 0; i < all[b].live; i++, rows++) {
                parents[rows] += first;
                tokens[rows] = all[b].live_of[i].tokens[length - 1];
            }
        }
        row_starts[count] = rows;
        caches_choose(r, &c, parents, rows);
    }
    caches_free(r, &c);
    encoding_free(r, &memory);
    free(logits);
    free(parents);
    free(tokens);
    free(sources);
    free(all);
    free(row_starts);
    free(starts);
}
