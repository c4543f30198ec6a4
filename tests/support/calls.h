/* SPDX-License-Identifier: Apache-2.0 */
/* Small calls of every public function that writes through a pointer, each with a table of all memory that it reads and writes,
 * so that tests can lay that memory out as they like: meeting, at odd addresses, between guard pages. Sizes are computed here
 * from the words of the headers, not by the library. */
#ifndef RAPT_TESTS_CALLS_H
#define RAPT_TESTS_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "rapt_layer.h"

typedef struct pointer {
    const char *owner, *field; /* where the headers have it: a struct's field, or a function's parameter */
    const char *name;          /* what explanations call it */
    void *slot;                /* the pointer itself */
    unsigned char *content;    /* what lies there before the call */
    size_t bytes, alignment;   /* alignment 1: a tensor, which may lie anywhere */
    bool written;
    bool plan; /* a plan: only the library knows how many of its bytes, from the first on, are in use */
    unsigned char *at;
} pointer;

/* A way to make the call, by nth threads, all of whose shares it does one after the other until one is refused. */
typedef struct way {
    const char *function;
    int64_t nth;
    rapt_status (*run)(int64_t nth);
} way;

typedef struct call {
    const char *name;
    const struct api *api;
    int64_t batch, heads, kv_heads, queries, keys, d;
    unsigned features;
} call;

/* What belongs together: the ways of a call, what describes it, what makes its plan, what explains it. */
typedef struct api {
    void (*describe)(const call *c);
    rapt_status (*make_plan)(char *text, size_t bytes); /* null: there is none */
    const char *explanation;                            /* the function's name; null: there is none */
    rapt_status (*explain)(int64_t nth, char *text, size_t bytes);
    way ways[6];
} api;

extern const call calls[];
extern const int call_count;

/* The arithmetic of a call's products, of those that have a choice. */
rapt_arith arith_of_call(const call *c);

/* What the tensors of calls that are described from now on hold, drawn anew by each seed: numbers of ordinary size, which is the
 * default, seed 1; numbers that are subnormal in f32, f16 and bf16, or nearly so; for each tensor the one or the other, or larger
 * ones. */
typedef enum numbers { ORDINARY, TINY, VARIOUS } numbers;
void fill_calls_with(numbers which, uint64_t seed);

enum { MOST_POINTERS = 64 };

/* The call that was described last. */
typedef struct described {
    pointer at[MOST_POINTERS];
    int pointers;
    struct twins {
        const char *output, *input; /* may be the very same memory, */
        bool part;                  /* the input is only a part of that memory, so that it holds something else than the output */
    } twins[8];
    int twin_count;
    struct {
        const char *name;
        int64_t *number; /* a size or stride that is not used: it may be any number */
    } unused[96];
    int unused_count;
    const void *structs; /* descriptions, arguments and plans, for snapshots */
    size_t struct_bytes;
} described;
extern described now;

/* Describes a call that nth threads share; each pointer's memory is of its own. Ends what was described before. */
void describe_call(const call *c, int64_t nth);
void forget_call(void);

/* Sets each pointer to its at, and copies what lies there: first of what is written, then of all else, then of last (or -1). */
void place_pointers(int last);

/* Places all pointers in new memory, each 64 bytes or more from the next, and returns it, for aligned_destroy. */
unsigned char *place_anywhere(void);

/* Null if they are none. */
const struct twins *twins_of(const pointer *a, const pointer *b);

/* Goes through the fields and functions that the described calls have covered; both names are null at the end. */
bool covers_field(const char *owner, const char *field);
bool covers_function(const char *name);

#endif
