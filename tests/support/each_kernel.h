/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of every kernel that runs here, with problems that are drawn and results that are hashed. */
#ifndef RAPT_TESTS_EACH_KERNEL_H
#define RAPT_TESTS_EACH_KERNEL_H

#include <inttypes.h>
#include <string.h>

#include "hash.h"
#include "random.h"
#include "rapt.h"
#include "tap.h"

static bool fused; /* the class of the kernel that is tested */

/* True if the reference's own results are held against the bounds of their errors: once for each class, and not with --quick, for
 * these results, which a kernel's must equal bit for bit, are the same on every machine. */
static bool bounded;

/* Drawn problems of a kind. The first ones make the hash; the others come without --quick. */
typedef struct drawn {
    const char *what;
    bool (*problem)(const char *isa, uint64_t *h);
    uint64_t seed, golden[2]; /* unfused, fused */
    int quick, all;
} drawn;

static inline void test_drawn(const char *isa, bool whole, const drawn *d) {
    uint64_t h = hash_start, more = 0;
    int failed = 0, n = 0;
    random_state = d->seed;
    for (; n < (whole ? d->all : d->quick); n++) failed += !d->problem(isa, n < d->quick ? &h : &more);
    tap_ok(failed == 0, "%s: %d %s", isa, n, d->what);
    tap_ok(h == d->golden[fused], "%s: the first %d have the bits of every machine (%016" PRIx64 ")", isa, d->quick, h);
}

/* PROGRAM [--quick] [KERNEL...]: each kernel, or those that are named. */
static inline void each_kernel(int argc, char **argv, void test(const char *isa, bool whole)) {
    const bool whole = argc < 2 || strcmp(argv[1], "--quick") != 0;
    const int first = whole ? 1 : 2;
    bool before[2] = {!whole, !whole};
    for (int n = first; n < argc; n++) tap_ok(rapt_isa_usable(argv[n], NULL, 0) == RAPT_OK, "%s can run here", argv[n]);
    for (int i = 0; rapt_isa_name(i); i++) {
        const char *isa = rapt_isa_name(i);
        bool named = first >= argc;
        for (int n = first; n < argc; n++) named = named || !strcmp(argv[n], isa);
        if (!named) continue;
        if (rapt_isa_usable(isa, NULL, 0) != RAPT_OK) {
            printf("# %s cannot run here\n", isa);
            continue;
        }
        fused = !strcmp(rapt_isa_rounding(isa), "fused");
        bounded = !before[fused];
        before[fused] = true;
        test(isa, whole);
    }
}

#endif
