/* SPDX-License-Identifier: Apache-2.0 */
/* The one tile product, in words: C[r][m] (+)= sum over k of A[r*rs + k*ks] * B[k][m], m in lanes, A broadcast, k ascending in
 * one accumulator for each element. It serves Q*K^T and P*V in both paths. Strides are in bytes, A and B are f32 at any address.
 *
 * The ISA file defines, on top:
 *   RAPT_PANEL                   vectors of the widest panel, 2, 4 or 8
 *   RAPT_ROWS_1, _2, _3, _4, _8  rows of a register tile for panels of so many vectors, at most 32 accumulators each; the
 * accumulators, a vector of B for each panel vector and one of A must fit into the registers */

typedef enum start { START_ZERO, START_KEEP, START_SCALE } start; /* C = AB, C = C + AB, C = C * scale[m] + AB */

typedef struct operands {
    char *c;
    size_t ldc; /* bytes from row to row */
    const char *a;
    size_t rs, ks;
    const char *b;
    size_t ldb;
    int depth;
    start start;
    const float *scale; /* for START_SCALE, one for each lane of the panel */
    size_t ahead;       /* prefetch what lies so many bytes behind each row of B; 0: nothing */
} operands;

/* nv and nr are constants wherever this is called: the loops over them unroll, and acc lives in registers. */
static RAPT_INLINE void tile(const int nv, const int nr, operands o) {
    vf acc[32];
    RAPT_UNROLL for (int r = 0; r < nr; r++) RAPT_UNROLL for (int v = 0; v < nv; v++) {
        const char *c = o.c + r * o.ldc + v * sizeof(vf);
        if (o.start == START_ZERO) acc[r * nv + v] = v_set1(0.0f);
        else if (o.start == START_KEEP) acc[r * nv + v] = v_load(c);
        else acc[r * nv + v] = v_mul(v_load(c), v_load(o.scale + v * RAPT_VL));
    }
    for (int k = 0; k < o.depth; k++) {
        vf b[8];
        RAPT_UNROLL for (int v = 0; v < nv; v++) b[v] = v_load(o.b + k * o.ldb + v * sizeof(vf));
        if (o.ahead) RAPT_UNROLL for (int v = 0; v < nv; v++) prefetch(o.b + v * sizeof(vf), k * o.ldb + o.ahead);
        RAPT_UNROLL for (int r = 0; r < nr; r++) {
            vf a = v_broadcast(o.a + r * o.rs + k * o.ks);
            RAPT_UNROLL for (int v = 0; v < nv; v++) acc[r * nv + v] = v_fma(a, b[v], acc[r * nv + v]);
        }
    }
    RAPT_UNROLL for (int r = 0; r < nr; r++) RAPT_UNROLL for (int v = 0; v < nv; v++)
        v_store(o.c + r * o.ldc + v * sizeof(vf), acc[r * nv + v]);
}

static RAPT_INLINE operands below(operands o, int rows) {
    o.c += (size_t)rows * o.ldc;
    o.a += (size_t)rows * o.rs;
    return o;
}

/* Whole register tiles first, then what is left by halves. */
#define RAPT_DEFINE_PANEL(NV, NR)                                                                                                \
    static RAPT_NOINLINE void panel_##NV(operands o, int rows) {                                                                 \
        for (; rows >= NR; rows -= NR, o = below(o, NR)) tile(NV, NR, o);                                                        \
        if (NR > 8 && rows >= 8) tile(NV, 8, o), rows -= 8, o = below(o, 8);                                                     \
        if (NR > 4 && rows >= 4) tile(NV, 4, o), rows -= 4, o = below(o, 4);                                                     \
        if (NR > 2 && rows >= 2) tile(NV, 2, o), rows -= 2, o = below(o, 2);                                                     \
        if (rows >= 1) tile(NV, 1, o);                                                                                           \
    }

RAPT_DEFINE_PANEL(1, RAPT_ROWS_1)
RAPT_DEFINE_PANEL(2, RAPT_ROWS_2)
RAPT_DEFINE_PANEL(3, RAPT_ROWS_3)
RAPT_DEFINE_PANEL(4, RAPT_ROWS_4)
RAPT_DEFINE_PANEL(8, RAPT_ROWS_8)

#define RAPT_PANEL_ROWS RAPT_PASTE(RAPT_ROWS_, RAPT_PANEL) /* of the widest panel */

static void tile_product(operands o, int rows, int vectors) {
    while (vectors > 0) {
        int nv = vectors >= RAPT_PANEL ? RAPT_PANEL : vectors < 4 ? vectors : 4;
        if (nv == 8) panel_8(o, rows);
        else if (nv == 4) panel_4(o, rows);
        else if (nv == 3) panel_3(o, rows);
        else if (nv == 2) panel_2(o, rows);
        else panel_1(o, rows);
        vectors -= nv;
        o.c += nv * sizeof(vf);
        o.b += nv * sizeof(vf);
        if (o.start == START_SCALE) o.scale += nv * RAPT_VL;
    }
}
