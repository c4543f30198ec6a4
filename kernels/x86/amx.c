/* SPDX-License-Identifier: Apache-2.0 */
/* amx: avx512_vnni with a matrix unit, AMX-BF16 and AMX-INT8. */
#if !defined(__AVX512F__) || !defined(__AVX512VL__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                       \
    !defined(__AVX512VNNI__) || !defined(__AMX_TILE__) || !defined(__AMX_BF16__) || !defined(__AMX_INT8__)
#error "compile with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512vnni -mfma -mamx-tile -mamx-bf16 -mamx-int8"
#endif
#define RAPT_TILE_VECTORS 4 /* two pairs of tiles of C; exact arithmetic is as fast as with 3 on Emerald Rapids */

/* Up to four rows are 3 to 9 % faster in vectors (D1 to D3 on Granite Rapids): most columns of their tiles would be empty. */
#define RAPT_BF16_LEAST_ROWS 5

#include "x86/avx512_vnni_words.h"

#define RAPT_KERNEL_NAME  amx
#define RAPT_KERNEL_NEEDS (RAPT_NEEDS_AVX512 | RAPT_CPU_AVX512VNNI | RAPT_CPU_AMX)

#define t_configure(configuration) _tile_loadconfig(configuration)
#define t_release()                _tile_release()
#define t_zero(tile)               _tile_zero(tile)
#define t_load(tile, from, stride) _tile_loadd(tile, from, stride)
#define t_store(tile, to, stride)  _tile_stored(tile, to, stride)
#define t_multiply_bf16(to, a, b)  _tile_dpbf16ps(to, a, b)
#define t_multiply_bytes(to, a, b) _tile_dpbsud(to, a, b)

#include "x86/avx512_weights.h"

#define RAPT_OWN_WEIGHT_PAIRS 1
static inline __attribute__((always_inline)) vi t_weight_pairs(vf d, vf d2, vf c, vf least, vi *special) {
    __m512 t, t2;
    __m512i w = t_weights(d, c, least, &t), w2 = t_weights(d2, c, least, &t2);
    *special = (vi)_mm512_ternarylogic_epi32((__m512i)*special, _mm512_castps_si512(t), _mm512_castps_si512(t2), 0xfe); /* or */
    return (vi)_mm512_mask_blend_epi16(0xaaaaaaaa, w, _mm512_slli_epi32(w2, 16));
}

#include "x86/amx.h"
