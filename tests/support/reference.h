/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as the formula says it, in double and in plain f32, three loops each (logits, softmax, weighted sum), and for every
 * output the error that the library may make at most. It shares no code with the library: where keys lie and which of them are
 * attended is written down here a second time, from rapt.h.
 *
 * The bound. u = 2^-24, gamma_n = n u / (1 - n u). One row; j runs over its n attended keys of logit above -inf, which span B
 * blocks of 64 and C chunks of 512 (docs/order.md). x_j is the exact logit, M = max x_j, w_j = exp(x_j - M). q, k and v are the
 * elements times their scales (k_scales, v_scales), A_j = |scale| sum_c |q_c k_jc|.
 *
 * 1. Scores. One chain of d_k multiply-adds, fused or not, or with more than 128 channels P chains of at most 64, whose results
 *    are added: with t = d_k, or t = 64 + P - 1, |s'_j - s_j| <= gamma_t sum |q k|; where the scale is multiplied into q first,
 * that rounds once more, and so does a factor of k, by channel or by token. So the logit is off by D_j = gamma_{t + 1 + f} A_j +
 * tiny_j    f = 1 with k_scales, else 0 where tiny_j, some 2^-149, is for underflow: of products, of q times a tiny scale or
 * factor, of a score times a factor.
 * 2. Modified logits. Each step from x to y turns an error D into
 *        x natural        D + 2.01 u (|x| + D) + 2^-149     the product; the default scale 1/sqrt(d_k)
 *        softcap s        (D + 3 u |x|) / cosh^2(z) + 5 u |y| + 2^-149 (1 + s), z being the least |x / s| within that error:
 *                         1/s, the product with it, tanh within 2 ulp <= 4 u, the product with s
 *        ALiBi's term a   D + 1.01 u (|a| + |y| + D)        slope times distance (up to 2^24) or bias, added
 *        bias             D + 1.01 u (|y| + D)
 *        logits_body      D + u |x| + 2.01 u |y|            assumed of it: no steeper than 1, and rounds once
 * 3. Weights. A key's weight is exp2 of (s'_j - m_1) c, times exp2 of (m_1 - m_2) c for each later rise of the running
 *    maximum, where the m are themselves computed scores: the arguments add up to (s'_j - m) c, and the error of m divides
 *    out of the quotient. The last m is at most M + T with T = max_j (x_j + D_j) - M. Relative errors of an argument: the
 *    subtraction u, the product with c u (unfused; fused it is exact), c u, the default scale 1/sqrt(d_k) u. There are at
 *    most R = min(B, 8) - 1 + C - 1 rises, and each exp2 is within 2 ulp <= 4 u. So the computed weight is w_j exp(e_j) with
 *        |e_j| <= delta_j = D_j + 4 u (M - x_j + D_j + T) + 4 u (1 + R)
 *    or, where an argument lies below -126.5, zero instead of less than 2^-126.
 * 4. Sums. All terms of l are positive: four adds and sixteen within a block, one for each block and each chunk, one product
 *    for each rise; o: a product and at most 512 adds within a chunk, one for each further chunk, one product for each rise.
 *        n_l = 20 + min(B, 8) + C - 1 + R          n_o = min(n, 512) + 1 + C - 1 + R
 *    Then one reciprocal and one product: 2. Scales of v round once more, the weight or the reciprocal: n_o is one more.
 *    A sink is a key of logit x = sink, D = 3 u |sink| and value 0 in a chunk of its own: C is one more.
 * 5. The quotient. With sum_j w_j (v_j - o) = 0,
 *        |sum_j w_j exp(e_j) v_j / sum_j w_j exp(e_j) - o|  <=  sum_j w_j (exp(delta_j) - 1) |v_j - o| / sum_j w_j exp(-delta_j)
 *    exactly, not only to the first order. Altogether, for channel c, with F the largest of 1 and the channel's factor of v,
 *        E_c = [ sum_j w_j (exp(delta_j) - 1) |v_jc - o_c|  +  gamma_{n_l + n_o + 2} sum_j w_j exp(delta_j) |v_jc|
 *                +  2^-126 sum_j |v_jc|  +  2^-149 sum_j F |v_jc without factor of the token|, if it has one ]
 *              / sum_j w_j exp(-delta_j)   +   2^-149 F (n_o + 2)
 *    and for a 16-bit output half an ulp of its type besides (reference_half_ulp of |o_c| + E_c).
 * 6. lse = m natural + ln l: again the error of m divides out of l, and with a logarithm within 2 ulp
 *        E_lse = max(ln(sum w exp(delta) / sum w), ln(sum w / sum w exp(-delta))) + gamma_{n_l} + n 2^-126
 *                + 4 u ln(sum w) + 2 u (|M| + T) + u |lse|
 *
 * 7. A weight of rapt_args.scores, exp(x_j - lse), is off by delta_j with R = 0, by E_lse, and by the roundings of a sum and two
 *    products; a score by D_j and, as if it were modified, the product with the default scale.
 *
 * With RAPT_INT8_DOT the numbers are those of docs/order.md's definition ("Integer arithmetic"), but for roundings of f32:
 *
 * 8. The integers of a query are the library's, for each step to them is one operation of f32. Their products with keys are
 *    summed exactly, so D_j = gamma_{1 + f} |x_j| + tiny_j, f = 1 with scales of the token; and with g groups of channels, whose
 *    sums are added in f32, gamma_{g + 2} times the sum of all |products| more.
 * 9. Of a block b, W_b = max w_j (w_j with the factor of the token of v) is at least the largest w_j exp(-delta_j) and at most
 *    the largest w_j exp(delta_j): off by spread_b. So it is known between which numbers w_j 255 / W_b lies; n_j is what it is
 *    rounded to, and off_j how far that may be from what one of those numbers is rounded to: 0 unless a tie is between them. With
 *    y_b = sum_j n_j v_j, and n_o = 2 + 2 min(B, 8) + C - 1 + R (three roundings of a block, and two more for each later one, or
 *    three where scales have both signs)
 *        E_c = [ sum_b (spread_b |y_bc| + (W_b + spread_b) (sum_j off_j |v_jc| + gamma (|y_bc| + sum_j off_j |v_jc|))) / 255
 *                +  |o_c| sum_j w_j (exp(delta_j) - 1)  +  2^-125 F sum_j |v_jc| ] / sum_j w_j exp(-delta_j)  +  ...
 *    For V with groups, all of that for each group of channels, with w_j the weight times the scale of its group, signs included,
 *    and 127 in the place of 255.
 * 10. How far that is from exact arithmetic: elements of a query are off by half a step, which adds as much times the sum of
 *    |scale k_jc| to D_j of 1., and weights by half a step of their block, which adds sum_j W_b |v_jc| / 510, or of groups / 254,
 *    to the sums in 5.
 *
 * With RAPT_BF16_DOT, U = 2^-8 being what rounding to bf16 loses, and z = 2^-56 below what numbers count as 0:
 *
 * 11. Elements of q and k are rounded, which adds (2 U + U^2) A_j + z sum_c |scale| (|q_c| + (1 + U) |k_jc|) to D_j of 1.
 * 12. Weights are rounded, and their exponential is off by 0.05 U: 1.05 U more in delta_j. Those below z are 0 in sums from
 * below.
 * 13. Values are rounded: U w_j exp(delta_j) |v_jc| + z (w_j exp(delta_j) + |v_jc - o_c| + |v_jc|) more in the first sum of 5. */
#ifndef RAPT_REFERENCE_H
#define RAPT_REFERENCE_H

#include <stdbool.h>
#include "rapt_layer.h"

typedef struct reference {
    double *o, *o_bound, *o_size; /* by row (reference_row) and channel: the output, E, and sum_j P_j |v_j|. E is NaN for an
                                     infinite output that may also be NaN, since the weight of an infinite value may be 0. Below 0
                                     it is -E, and NaN is right, too: integers leave out a value that is not finite if its
                                     weight is 0 */
    double *lse, *lse_bound;      /* by row */
    double *exact, *exact_bound, *exact_lse, *exact_lse_bound; /* RAPT_INT8_DOT: these four of exact arithmetic */
    float *naive;                                              /* RAPT_EXACT: as o, the output in plain f32, with libm */
    float *ordered[2], *ordered_lse[2]; /* RAPT_BF16_DOT: by class, unfused and fused, the outputs to the bit, in f32 */
    double *scores, *scores_bound; /* with desc.scores_stage: by row and column. The bound is NaN where a NaN or 0 is right */
} reference;

/* All rows of the problem. Free with reference_free; false when memory is out. */
bool reference_attention(reference *result, const rapt_desc *desc, const rapt_args *args);
void reference_free(reference *result);

/* ---- Rows and keys ------------------------------------------------------------------------------------------------------ */

/* Queries of entry b; the batch index and the token of its query i in Q, O and LSE; rows of the problem, counted by entry, head
 * and query. */
int64_t reference_queries(const rapt_desc *desc, int64_t b);
int64_t reference_query_batch(const rapt_desc *desc, int64_t b);
int64_t reference_query_token(const rapt_desc *desc, int64_t b, int64_t i);
int64_t reference_row(const rapt_desc *desc, int64_t b, int64_t h, int64_t i);
int64_t reference_rows(const rapt_desc *desc);

/* The length of entry b, counted from position 0, and the positions first..end - 1 of the keys that are given and exist. */
int64_t reference_length(const rapt_desc *desc, const rapt_args *args, int64_t b);
void reference_keys(const rapt_desc *desc, const rapt_args *args, int64_t b, int64_t *first, int64_t *end);

/* Where the key of head h (of K and V) at position j lies for query i of entry b: its batch index, or page, and its token. */
typedef struct reference_place {
    int64_t batch, token;
} reference_place;
reference_place reference_key(const rapt_desc *desc, const rapt_args *args, int64_t b, int64_t h, int64_t i, int64_t j);

/* The address of the element of the page table that says so, any alignment. */
const void *reference_table(const rapt_desc *desc, const rapt_args *args, int64_t b, int64_t h, int64_t i, int64_t page);

/* Columns of a row of scores, and of a mask or a bias that does not say how many; those of scores that are written, first..end -
 * 1, and the column of a mask or bias for key j, -1 if that is beyond the last. */
int64_t reference_columns(const rapt_desc *desc);
void reference_scored(const rapt_desc *desc, int64_t b, int64_t *first, int64_t *end);
int64_t reference_mask_column(const rapt_desc *desc, const rapt_args *args, int64_t b, int64_t j);
int64_t reference_bias_column(const rapt_desc *desc, const rapt_args *args, int64_t b, int64_t j);

/* Whether query i of head h (of Q) attends the key at position j. */
bool reference_attends(const rapt_desc *desc, const rapt_args *args, int64_t b, int64_t h, int64_t i, int64_t j);

/* Addresses: of a token's channels of a tensor; of the f32 factor of an element of K or V, null without scales. */
void *reference_at(const void *base, const rapt_layout *layout, int64_t b, int64_t h, int64_t token);
const void *reference_scale(const rapt_scales *scales, const void *base, int64_t b, int64_t h, reference_place place,
                            int64_t channel);

/* ---- Storage types ------------------------------------------------------------------------------------------------------ */

/* Types of all tensors: bytes, load, store to nearest even, half the distance of neighbours at a magnitude (0 for f32). */
int64_t reference_type_bytes(rapt_type type);
float reference_load(rapt_type type, const void *at);
void reference_store(rapt_type type, void *at, float value);

/* A number of f16 that the channels of a group share, little-endian. */
void reference_store_shared(unsigned char *at, float value);
double reference_half_ulp(rapt_type type, double magnitude);

/* The channels of a group; 1 of types without groups. */
int reference_group(rapt_type type);

/* Bytes of a row of any type, those of masks and tables too; -1 where a type's groups do not divide the channels. */
int64_t reference_row_bytes(rapt_type type, int64_t channels);

/* Rows of those of K and V too: load an element, store a row as rapt_kv_append_run does without scales (false where there are no
 * such rows). */
float reference_element(rapt_type type, const void *row, int64_t channel);
bool reference_store_row(rapt_type type, void *row, const float *values, int64_t channels);

/* ---- Linear layers and normalisation -------------------------------------------------------------------------------------- */

/* docs/order.md in f32, fused or not: a sum over channels of a linear layer, in RAPT_INT8_DOT that of a row of weights of that
 * type; an activation; a normalised row z, with what
 * rapt_norm_args.mean and inverse_deviation receive (weight, bias, mean may be null). */
float reference_multiply_add(bool fused, float a, float b, float c);
float reference_linear(bool fused, rapt_arith arith, const float *x, const float *w, int64_t channels);
float reference_integer_linear(bool fused, const float *x, rapt_type type, const void *stored, int64_t channels);
float reference_activated(bool fused, rapt_activation activation, float x);
void reference_normalise(bool fused, bool rms, const float *z, int64_t channels, float epsilon, const float *weight,
                         const float *bias, float *y, float *mean, float *inverse_deviation);

/* The same in double, and how far f32 may be from it. With u = 2^-24 and gamma_n as above:
 *   a sum or product of f32   the errors of both, and u of the result
 *   a linear layer of n       gamma_k sum |x w| with k = min(n, 1024) / 16, rounded up, + 16 for each part, one more unfused
 *   the same in bf16          with U and z of 11.: gamma_k (1 + U)^2 sum |x w| with k = 17 + n / 32, rounded up, and
 *                             (2 U + U^2) sum |x w| + z (1 + U) sum (|x| + |w|) + n z^2
 *   the same in integers      for each group, with M its largest |x| and h = M / 254 + 4 u M + 2^-121: h sum |w|; and gamma_k
 *                             sum (|x| + h) |w| + k 2^-130 with k groups and 1, one more unfused; with minimums m, w = s n +
 *                             m, k has each group twice, and |s n| + |m| stands for |w| in the second sum; k is one more for
 *                             blocks of 256, whose sums are rounded when they become f32
 *   an activation             its own error (docs/numerics.md), and the argument's times its largest slope, 1.13
 *   normalisation             with k = n / 16, rounded up, + 18: the mean's first part is off by f = gamma_k of the mean of
 *                             |z|, both are by b = gamma_k (the mean of |z - mean| + f), so a deviation d by b + 2 u (|d| + f);
 *                             the variance v by (gamma_k + 4 u) (v + f^2) + 2 b (f + b), being a difference of the mean of
 *                             (z - first part)^2 and the square of the second; 1 / sqrt(v + epsilon) by the difference at these
 *                             ends and 3 u */
typedef struct reference_value {
    double value, bound;
} reference_value;
reference_value reference_sum(reference_value a, reference_value b);
reference_value reference_product(reference_value a, reference_value b);
reference_value reference_linearped(bool fused, rapt_arith arith, const float *x, const float *w, int64_t channels);
reference_value reference_integer_linearped(bool fused, const float *x, rapt_type type, const void *stored, int64_t channels);
reference_value reference_activation(rapt_activation activation, reference_value x);
void reference_normalised(bool rms, const float *z, int64_t channels, float epsilon, const float *weight, const float *bias,
                          reference_value *y, reference_value *mean, reference_value *inverse_deviation);

/* True if a number that was stored in that type is within the bound. */
bool reference_near(rapt_type type, float got, reference_value want);

#endif
