/* SPDX-License-Identifier: Apache-2.0 */
/* What one core can do with one instruction set: the shape of bench/peak_*.c, each of which is compiled with its kernel's flags,
 * defines the words below and includes this file.
 *
 *     ISA                       the kernel's name
 *     CHAINS                    accumulators: at least latency times throughput of a step, and no more than stay in registers
 *     OPS                       operations of a step on one lane
 *     vec                       the vector type
 *     v_set1(float)
 *     v_step(chain, acc, a, b)  the step of a chain: fused, acc + a * b; unfused, acc * a in even chains and acc + b in odd ones
 *     INT_OPS, ivec, i_step(chain, acc, a, b)  with integer products: the same of them. A product and a sum in two instructions
 *                               multiply acc itself, lest the product be the same in each round
 *     OWN_MATRIX, BF16_FLOPS, INT8_FLOPS  with a matrix unit: bf16_peak and int8_peak are defined too, as peak is here, with
 *                               their operations of a round
 */
#include "limits.h"

#include <string.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define QUOTE_(a)    #a
#define QUOTE(a)     QUOTE_(a)

enum { CHAIN_LANES = CHAINS * (sizeof(vec) / sizeof(float)), FLOPS = OPS * CHAIN_LANES, STREAMS = 4, UNROLL = 4 };

/* The accumulators start apart and a and b come from outside, so that nothing can be shared, hoisted or folded. One step of each
 * chain is the whole loop: longer ones, unrolled, lost up to a third of the SSE peak on Zen 4 by how they lay in the op cache. */
#define DEFINE_CHAINS(name, type, step)                                                                                          \
    static float name(int64_t rounds, float a, float b) {                                                                        \
        type va = (type)v_set1(a), vb = (type)v_set1(b), acc[CHAINS];                                                            \
        _Pragma("GCC unroll 32") for (int c = 0; c < CHAINS; c++) acc[c] = (type)v_set1((float)c);                               \
        for (int64_t r = 0; r < rounds; r++) {                                                                                   \
            _Pragma("GCC unroll 32") for (int c = 0; c < CHAINS; c++) acc[c] = step(c, acc[c], va, vb);                          \
        }                                                                                                                        \
        _Pragma("GCC unroll 32") for (int c = 1; c < CHAINS; c++) acc[0] = acc[0] + acc[c];                                      \
        float lane;                                                                                                              \
        memcpy(&lane, &acc[0], sizeof lane);                                                                                     \
        return lane;                                                                                                             \
    }
DEFINE_CHAINS(peak, vec, v_step)

typedef uint32_t words __attribute__((vector_size(sizeof(vec)), may_alias));

/* Several sequential streams, as a single one does not keep all the prefetchers of a core busy. */
static uint32_t read_all(const void *from, size_t bytes) {
    size_t part = bytes / (STREAMS * UNROLL * sizeof(words)) * UNROLL;
    const words *p = from;
    words sum[UNROLL] = {{0}};
    for (size_t i = 0; i < part; i += UNROLL)
#pragma GCC unroll 8
        for (size_t s = 0; s < STREAMS; s++)
#pragma GCC unroll 8
            for (size_t u = 0; u < UNROLL; u++) sum[u] ^= p[s * part + i + u];
    words all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
    uint32_t word;
    memcpy(&word, &all, sizeof word);
    return word;
}

#ifndef OWN_MATRIX
enum { BF16_FLOPS = FLOPS };
#define bf16_peak peak
#ifdef INT_OPS
enum { INT8_FLOPS = INT_OPS * CHAIN_LANES };
DEFINE_CHAINS(int8_peak, ivec, i_step)
#else
enum { INT8_FLOPS = FLOPS };
#define int8_peak peak
#endif
#endif

const bench_isa PASTE(bench_isa_, ISA) = {
    .name = QUOTE(ISA),
    .peaks = {[RAPT_EXACT] = {FLOPS, peak}, [RAPT_INT8_DOT] = {INT8_FLOPS, int8_peak}, [RAPT_BF16_DOT] = {BF16_FLOPS, bf16_peak}},
    .read = read_all,
};
