/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of every call of calls.c: an output that meets anything else is refused by name and nothing is written; so is an
 * array that is not aligned; tensors lie where they like. And calls.c leaves no pointer and no function of the headers out. */
#define _POSIX_C_SOURCE 200112L
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "../../cli/aligned.h"
#include "tap.h"

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* All pointers lie apart in the arena; in front of them, as much room for two of them to meet. */
static struct {
    unsigned char *memory, *before;
    size_t bytes, meeting_bytes;
} arena;

enum { APART = 64 };

static unsigned char *aligned(unsigned char *at, size_t alignment) {
    return at + (alignment - (uintptr_t)at % alignment) % alignment;
}

/* odd: tensors lie at odd addresses. Tensors of no bytes are null. */
static void lay_apart(bool odd) {
    unsigned char *at = arena.memory + arena.meeting_bytes;
    for (int i = 0; i < now.pointers; i++) {
        pointer *p = &now.at[i];
        at = aligned(at, APART);
        p->at = p->bytes ? at + (odd && p->alignment == 1) : NULL;
        at += p->bytes + APART;
    }
}

static void lay_out_arena(void) {
    size_t largest = 0, all = 0;
    for (int i = 0; i < now.pointers; i++) {
        largest = largest > now.at[i].bytes ? largest : now.at[i].bytes;
        all += now.at[i].bytes + 2 * APART;
    }
    arena.meeting_bytes = (2 * largest + 4 * APART) / APART * APART;
    arena.bytes = arena.meeting_bytes + all;
    arena.memory = aligned_create(APART, (arena.bytes + APART) / APART * APART);
    arena.before = malloc(arena.bytes + now.struct_bytes);
    if (!arena.memory || !arena.before) abort();
    memset(arena.memory, 0xa5, arena.bytes);
    lay_apart(false);
}

static void free_arena(void) {
    aligned_destroy(arena.memory);
    free(arena.before);
}

static void note_memory(void) {
    memcpy(arena.before, arena.memory, arena.bytes);
    memcpy(arena.before + arena.bytes, now.structs, now.struct_bytes);
}
static bool is_untouched(void) {
    return !memcmp(arena.before, arena.memory, arena.bytes) && !memcmp(arena.before + arena.bytes, now.structs, now.struct_bytes);
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

static const call *current;
static const way *current_way;
static char text[512];
static int failures, checks;
static unsigned char *results[MOST_POINTERS]; /* what the call writes where everything lies apart */

/* What went wrong, the first few times. */
static void complain(const char *what, const pointer *a, const pointer *b, rapt_status status) {
    if (failures++ < 8)
        printf("# %s: %s%s%s: %s (\"%s\")\n", what, a ? a->name : "", b ? " and " : "", b ? b->name : "",
               rapt_status_string(status), text);
}

/* Copies all to its place, what lies last on top; makes the plan there, explains the call and makes it, all as far as possible.
 * Whatever is refused must leave all memory as it was. A call that should be refused, but is explained as one that is not, is not
 * made: it might do anything. */
static rapt_status make_call(int last, bool refused) {
    const api *group = current->api;
    rapt_status status = RAPT_OK;
    text[0] = 0;
    checks++;
    place_pointers(last);
    note_memory();
    if (group->make_plan) status = group->make_plan(text, sizeof text);
    if (status == RAPT_OK) {
        note_memory();
        rapt_status explained = group->explain ? group->explain(current_way->nth, text, sizeof text) : RAPT_OK;
        if (!is_untouched()) complain("the explanation writes", NULL, NULL, explained);
        if (group->explain && explained == RAPT_OK && refused) return RAPT_OK;
        status = current_way->run(current_way->nth);
        if (group->explain && status != explained) complain("explained as something else", NULL, NULL, status);
    }
    if (status != RAPT_OK && !is_untouched()) complain("refused, but written", NULL, NULL, status);
    return status;
}

static bool is_result(const pointer *p) { return p->written && p->alignment != RAPT_WORKSPACE_ALIGNMENT; }

/* input: null, or in whose place output w lies: bytes of it that the call leaves alone stay. */
static bool same_results(const pointer *w, const pointer *input) {
    for (int i = 0; i < now.pointers; i++) {
        const pointer *p = &now.at[i];
        for (size_t n = 0; n < p->bytes && is_result(p); n++) {
            bool left = p == w && input && n < input->bytes && results[i][n] == p->content[n] && p->at[n] == input->content[n];
            if (p->at[n] != results[i][n] && !left) return false;
        }
    }
    return true;
}

static void keep_results(void) {
    for (int i = 0; i < now.pointers; i++) {
        if (!is_result(&now.at[i]) || !now.at[i].bytes) continue;
        if (!(results[i] = malloc(now.at[i].bytes))) abort();
        memcpy(results[i], now.at[i].at, now.at[i].bytes);
    }
}

static void forget_results(void) {
    for (int i = 0; i < MOST_POINTERS; i++) free(results[i]), results[i] = NULL;
}

/* ---- Meeting ------------------------------------------------------------------------------------------------------------- */

/* Lays two pointers so that the first one's last bytes are the second one's first: as few as their alignments allow, but one at
 * least; or, touching, so that none are. */
static void lay_together(pointer *a, pointer *b, bool touching) {
    for (size_t shared = 1; shared <= 2 * APART; shared++)
        for (size_t shift = 0; shift < APART; shift++) {
            a->at = arena.memory + shift;
            b->at = touching ? a->at + a->bytes + shared - 1 : a->at + a->bytes - shared;
            if (aligned(a->at, a->alignment) == a->at && aligned(b->at, b->alignment) == b->at) return;
        }
    abort();
}

static bool begins_with(const char *line, const char *name) {
    const size_t n = strlen(name);
    return !strncmp(line, name, n) && !strncmp(line + n, " = ", 3);
}

static bool names_both(const pointer *a, const pointer *b) {
    const char *other = strstr(text, " of ");
    return other && ((begins_with(text, a->name) && begins_with(other + 4, b->name)) ||
                     (begins_with(text, b->name) && begins_with(other + 4, a->name)));
}

static void expect_overlap(const pointer *w, const pointer *x) {
    rapt_status status = make_call((int)(x - now.at), true);
    if (status != RAPT_ERR_OVERLAP) complain("not refused", w, x, status);
    else if (!names_both(w, x)) complain("not named", w, x, status);
}

static void test_pair(pointer *w, pointer *x) {
    unsigned char *const w_at = w->at, *const x_at = x->at;
    for (int x_behind = 0; x_behind < 2; x_behind++) {
        if (x->plan && !x_behind) continue; /* nobody says which of its bytes is the last that is in use */
        pointer *first = x_behind ? w : x, *second = x_behind ? x : w;
        lay_together(first, second, false);
        expect_overlap(w, x);
        lay_together(first, second, true);
        rapt_status status = make_call(-1, false);
        if (status != RAPT_OK || !same_results(NULL, NULL)) complain("wrong side by side", w, x, status);
    }
    w->at = x->at = arena.memory;
    const struct twins *twins = twins_of(w, x);
    if (twins) {
        rapt_status status = make_call((int)(x - now.at), false);
        if (status != RAPT_OK || !(twins->part || same_results(w, x))) complain("wrong in place", w, x, status);
        x->at += x->alignment;
        if (w->bytes > x->alignment) expect_overlap(w, x);
    } else {
        expect_overlap(w, x);
    }
    w->at = w_at, x->at = x_at;
}

/* Where the least step of an array's alignment is refused: a tensor has none. */
static void test_alignment(pointer *p) {
    p->at++;
    rapt_status status = make_call(-1, true);
    if (status != RAPT_ERR_ALIGNMENT) complain("accepted though not aligned", p, NULL, status);
    else if (current->api->explain && !p->plan && !begins_with(text, p->name)) complain("not named", p, NULL, status);
    p->at--;
}

static void test_call(const call *c, const way *w) {
    current = c, current_way = w;
    failures = checks = 0;
    describe_call(c, w->nth);
    lay_out_arena();
    rapt_status status = make_call(-1, false);
    tap_ok(status == RAPT_OK, "%s, %s: is accepted%s%s", w->function, c->name, text[0] ? ": " : "", text);
    if (status == RAPT_OK) {
        keep_results();
        for (int i = 0; i < now.pointers; i++)
            for (int j = 0; j < now.pointers; j++) {
                pointer *p = &now.at[i], *q = &now.at[j];
                if (p->written && i != j && !(q->written && j < i) && p->bytes && q->bytes) test_pair(p, q);
            }
        tap_ok(!failures, "%s, %s: an output that meets anything else is refused by name (%d calls)", w->function, c->name,
               checks);
        failures = checks = 0;
        for (int i = 0; i < now.pointers; i++)
            if (now.at[i].alignment > 1 && now.at[i].bytes) test_alignment(&now.at[i]);
        lay_apart(true);
        status = make_call(-1, false);
        if (status != RAPT_OK || !same_results(NULL, NULL)) complain("wrong at odd addresses", NULL, NULL, status);
        tap_ok(!failures, "%s, %s: arrays are aligned, and tensors lie where they like (%d calls)", w->function, c->name, checks);
    }
    forget_results();
    free_arena();
}

/* ---- The headers --------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *owner, *field, *why;
} other_fields[] = {
    {"rapt_args", "logits_arg", "is only handed on"},
    {"rapt_trace", "arg", "is only handed on"},
    {"rapt_logits", "logits", "is handed to the caller"},
    {"rapt_logits", "heads", "is handed to the caller"},
    {"rapt_logits", "tokens", "is handed to the caller"},
    {"rapt_desc", "isa", "a name, not looked at again after a plan was made"},
    {"rapt_linear_desc", "isa", "a name, not looked at again after a plan was made"},
    {"rapt_norm_args", "isa", "a name, not looked at again after the first write"},
    {"rapt_tuning", "isa", "a name, not looked at again after a plan was made"},
    {"rapt_desc", "tuning", "a struct, copied before anything is written"},
    {"rapt_linear_desc", "tuning", "a struct, copied before anything is written"},
    {"rapt_plan_info", "isa", "the library's"},
    {"rapt_plan_info", "rounding", "the library's"},
    {"rapt_plan_info", "arith", "the library's"},
    {"rapt_plan_info", "path", "the library's"},
    {"rapt_mha_plan_info", "isa", "the library's"},
    {"rapt_mha_plan_info", "rounding", "the library's"},
    {"rapt_mha_desc", "attention", "a struct, copied before anything is written"},
    {"rapt_mha_args", "attention", "a struct, copied before anything is written"},
    {"rapt_decode_desc", "attention", "a struct, copied before anything is written"},
    {"rapt_decode_args", "attention", "a struct, copied before anything is written"},
};

static const struct {
    const char *suffix, *why; /* a name, or the end of some */
} other_functions[] = {
    {"_init_sized", "writes a struct or a plan, see below"},
    {"_plan_init", "the same"},
    {"_query", "writes a struct, once, at its end"},
    {"_workspace_size", "writes a number, once, at its end"},
    {"_prepacked_size", "the same"},
    {"_explain", "writes a line; what it is asked about is asked with every call here"},
    {"rapt_tuning_parse", "writes a struct, once, at its end"},
    {"rapt_tuning_print", "writes a line, once, at its end"},
    {"rapt_isa_usable", "writes a line"},
    {"rapt_cpu_features", "writes a line"},
    {"rapt_self_check", "writes a line"},
    {"rapt_self_check_in", "writes a line, and its workspace alone"},
    {"rapt_isa_current", "writes a name's address"},
    {"rapt_isa_name", "writes nothing"},
    {"rapt_isa_rounding", "writes nothing"},
    {"rapt_isa_force", "writes nothing"},
    {"rapt_trace_to", "writes nothing"},
    {"rapt_status_string", "writes nothing"},
    {"rapt_version", "writes nothing"},
    {"rapt_type_class_of", "writes nothing"},
    {"rapt_type_name", "writes nothing"},
    {"rapt_type_of_name", "writes nothing"},
    {"rapt_row_bytes", "writes nothing"},
    {"rapt_layout_bhsd", "writes nothing"},
    {"rapt_layout_bshd", "writes nothing"},
};

static bool is_known_field(const char *owner, const char *field) {
    for (size_t i = 0; i < sizeof other_fields / sizeof *other_fields; i++)
        if (!strcmp(other_fields[i].owner, owner) && !strcmp(other_fields[i].field, field)) return true;
    return covers_field(owner, field);
}

static bool is_known_function(const char *name) {
    for (size_t i = 0; i < sizeof other_functions / sizeof *other_functions; i++) {
        const size_t n = strlen(name), end = strlen(other_functions[i].suffix);
        if (n >= end && !strcmp(name + n - end, other_functions[i].suffix)) return true;
    }
    return covers_function(name);
}

/* A header without comments and preprocessor's lines. */
static char *read_header(const char *path) {
    FILE *file = fopen(path, "r");
    enum { MOST = 1 << 20 };
    char *header = calloc(MOST, 1), *to = header;
    size_t n = file && header ? fread(header, 1, MOST - 1, file) : 0;
    if (file) fclose(file);
    if (n == 0 || n == MOST - 1) return NULL;
    for (const char *from = header; *from;) {
        const char *end = NULL;
        if (!strncmp(from, "/*", 2) && (end = strstr(from, "*/"))) from = end + 2;
        else if (*from == '#') from += strcspn(from, "\n");
        else *to++ = *from++;
    }
    *to = 0;
    return header;
}

static bool is_of_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The name that ends before a character. */
static const char *name_before(const char *end, char name[64]) {
    while (!is_of_name(end[-1])) end--;
    const char *begin = end;
    while (is_of_name(begin[-1])) begin--;
    snprintf(name, 64, "%.*s", (int)(end - begin), begin);
    return name;
}

/* Each pointer in a struct: a star, a name, then a comma or the end of the declaration. */
static int test_struct(const char *body, const char *end, const char *owner) {
    int found = 0;
    char name[64];
    for (const char *star = body; (star = memchr(star, '*', (size_t)(end - star))); star++) {
        name_before(star + 1 + strcspn(star, ",;") - 1, name);
        found++;
        if (!is_known_field(owner, name))
            failures++, printf("# %s.%s is neither in a call's table nor among the others\n", owner, name);
    }
    return found;
}

static void test_header(const char *path) {
    static const char begin[] = "typedef struct ", function[] = "RAPT_API";
    char *header = read_header(path), name[64];
    int found = 0, functions = 0;
    failures = 0;
    for (const char *at = header; at && (at = strstr(at, begin)); at++) {
        const char *body = strchr(at, '{'), *end = strchr(at, '}');
        if (body && end) found += test_struct(body, end, name_before(end + strcspn(end, ";"), name));
    }
    tap_ok(header && found > 0 && !failures, "%s: its %d pointers in structs are known", path, found);
    failures = 0;
    for (const char *at = header; at && (at = strstr(at, function)); at++, functions++)
        if (!is_known_function(name_before(at + strcspn(at, "("), name))) failures++, printf("# %s is not known\n", name);
    tap_ok(header && functions > 0 && !failures, "%s: its %d functions are known", path, functions);
    free(header);
}

/* ---- Plans --------------------------------------------------------------------------------------------------------------- */

/* A plan is not written over the arrays whose addresses it keeps. */
static void test_plans(void) {
    enum { WORDS = sizeof(rapt_mha_plan) / 8 };
    static uint64_t memory[WORDS + 8], before[WORDS + 8];
    const int32_t starts[] = {0, 1, 2};
    const double frequency = 1.0;
    rapt_desc a;
    rapt_decode_desc decode;
    rapt_mha_desc mha;
    for (int which = 0; which < 5; which++) { /* of the three functions, with starts and with frequencies */
        rapt_desc_init(&a), rapt_decode_desc_init(&decode), rapt_mha_desc_init(&mha);
        a.batch = a.heads = a.kv_heads = 1, a.q_len = 2, a.kv_len = 2, a.d_k = a.d_v = 2;
        a.batch = 2, a.q = a.k = a.v = a.o = rapt_layout_bhsd(RAPT_F32, 1, 2, 2);
        decode.attention = mha.attention = &a;
        decode.new_k = decode.new_v = a.k;
        mha.x_width = mha.out_width = 2, mha.x = mha.out = mha.wq = mha.wk = mha.wv = mha.wo = a.q;
        if (which > 1) a.k.type = a.v.type = which % 2 ? RAPT_NONE : RAPT_F32;
        decode.rope.channels = mha.rope.channels = which > 2 ? 2 : 0;
        memset(memory, 0, sizeof memory);
        if (which > 2)
            memcpy(memory, &frequency, sizeof frequency), decode.rope.frequencies = mha.rope.frequencies = (double *)memory;
        else memcpy(memory, starts, sizeof starts), a.q_starts = (int32_t *)memory;
        memcpy(before, memory, sizeof memory);
        rapt_status status = which == 0       ? rapt_plan_init((rapt_plan *)memory, &a)
                             : which % 2 == 0 ? rapt_decode_plan_init((rapt_decode_plan *)memory, &decode)
                                              : rapt_mha_plan_init((rapt_mha_plan *)memory, &mha);
        static const char *const names[] = {"rapt_plan_init", "rapt_mha_plan_init", "rapt_decode_plan_init", "rapt_mha_plan_init",
                                            "rapt_decode_plan_init"};
        tap_ok(status == RAPT_ERR_OVERLAP && !memcmp(memory, before, sizeof memory), "%s: not over the %s that it keeps (%s)",
               names[which], which > 2 ? "frequencies" : "starts", rapt_status_string(status));
    }
}

int main(int argc, char **argv) {
    for (int i = 0; i < call_count; i++)
        for (const way *w = calls[i].api->ways; w->function; w++) test_call(&calls[i], w);
    forget_call();
    test_plans();
    for (int i = 1; i < argc; i++) test_header(argv[i]);
    return tap_done();
}
