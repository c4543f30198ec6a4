/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a of 64 bits, which makes the golden hashes of tests: hash = hash_start, then hash = hash_bytes(hash, ...). */
#ifndef RAPT_TESTS_HASH_H
#define RAPT_TESTS_HASH_H

#include <stddef.h>
#include <stdint.h>

static const uint64_t hash_start = UINT64_C(0xcbf29ce484222325);

/* One step: a byte, or a whole word where that is faster. */
static inline uint64_t hash_word(uint64_t hash, uint64_t word) { return (hash ^ word) * UINT64_C(0x100000001b3); }

static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = hash_word(hash, ((const unsigned char *)bytes)[i]);
    return hash;
}

/* Numbers of that many bytes each, a power of two, as they lie on a little-endian machine. */
static inline uint64_t hash_numbers(uint64_t hash, const void *at, size_t bytes, size_t each) {
    const size_t order = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? each - 1 : 0;
    for (size_t i = 0; i < bytes; i++) hash = hash_word(hash, ((const unsigned char *)at)[i ^ order]);
    return hash;
}

#endif
