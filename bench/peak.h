/* SPDX-License-Identifier: Apache-2.0 */
/* The peak of one core with one instruction set. Each bench/peak_*.c is compiled with the flags of its kernel, defines the words
 * below, and includes this file.
 *
 *     ISA                       the name of the kernel
 *     CHAINS                    accumulators: at least latency times throughput of a step, at most as many as stay in registers
 *     OPS                       operations of a step on one lane
 *     vec                       the vector type
 *     v_set1(float)             returns a vector of equal lanes
 *     v_step(chain, acc, a, b)  the step of a chain: fused, acc + a * b; unfused, acc * a in even chains and acc + b in odd ones
 *
 * where there are integer products:
 *
 *     INT_OPS, ivec, i_step     OPS, vec and v_step for them. Where product and sum are two instructions, acc itself is
 *                               multiplied, so that the product differs in each round
 *
 * where bf16 has products of its own:
 *
 *     BF16_OPS, bvec, b_step    OPS, vec and v_step for them
 *
 * where there is a matrix unit:
 *
 *     OWN_MATRIX                is defined, as are bf16_peak and int8_peak, in the form of peak below
 *     BF16_FLOPS, INT8_FLOPS    their operations in a round
 */
#include "limits.h"

#include <string.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define QUOTE_(a)    #a
#define QUOTE(a)     QUOTE_(a)

enum { CHAIN_LANES = CHAINS * (sizeof(vec) / sizeof(float)), FLOPS = OPS * CHAIN_LANES, STREAMS = 4, UNROLL = 4 };

/* The accumulators begin with different values, and a and b are arguments, so that the compiler can share, hoist or fold nothing.
 * The loop has one step of each chain: unrolled further, it lost up to a third of the SSE peak on Zen 4, depending on its place
 * in the op cache. */
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

/* Reads memory as several sequential streams, since one does not keep all prefetchers of a core busy. Returns a checksum. */
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
#ifdef BF16_OPS
enum { BF16_FLOPS = BF16_OPS * CHAIN_LANES };
DEFINE_CHAINS(bf16_peak, bvec, b_step)
#else
enum { BF16_FLOPS = FLOPS };
#define bf16_peak peak
#endif
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
