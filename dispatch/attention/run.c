/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a plan: validates the pointers of a call, tells each task where its data lies, and hands tasks out to threads. */
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "core/float_modes.h"
#include "core/layout.h"
#include "attention/path.h"
#include "core/structs.h"
#include "cache/tokens.h"
#include "types/types.h"

const rapt_args rapt_default_args = {0};

void rapt_args_init_sized(rapt_args *args, size_t size) {
    rapt_init_struct(args, size, &rapt_default_args, sizeof rapt_default_args);
}

rapt_status rapt_read_args(rapt_report *r, const char *what, rapt_args *to, const rapt_args *from) {
    return rapt_read_struct(r, what, to, &rapt_default_args, sizeof *to, RAPT_BEFORE(rapt_args, q_offsets), from);
}

/* Returns from + bytes; null if from is null, as it may be where a tensor has no elements. */
static const char *offset_by(const void *from, int64_t bytes) { return from ? (const char *)from + bytes : NULL; }

/* ---- The memory of a call ------------------------------------------------------------------------------------------------ */

/* Returns how many pages kv_len keys take; 0 if the plan is not paged. */
static int64_t table_pages(const full_plan *p) {
    return p->problem.page_size ? rapt_divide_up(p->problem.kv_len, p->problem.page_size) : 0;
}

/* Checks the starts of the entries' page tables, if there are any. only: the entry to check, or -1 for all. */
static rapt_status check_table_starts(rapt_report *r, const full_plan *p, const int32_t *starts, int64_t only) {
    int64_t batch = p->problem.batch, first = only < 0 ? 0 : only, end = only < 0 ? batch : only + 1;
    rapt_status status = rapt_check_ascending(r, "table_starts", starts, first, end);
    if (status != RAPT_OK || !starts) return status;
    for (int64_t b = first; b < end; b++)
        if (starts[b + 1] - starts[b] > table_pages(p))
            return rapt_refuse_element(r, RAPT_ERR_TABLE, "table_starts", b + 1, starts[b + 1],
                                       "gives an entry more pages than its kv_len keys have");
    if (starts[end] > starts[batch])
        return rapt_refuse_element(r, RAPT_ERR_TABLE, "table_starts", batch, starts[batch], "below the one before");
    return RAPT_OK;
}

/* Registers the page tables of all entries. */
static void attend_register_table(rapt_memory *m, const full_plan *p, const rapt_args *args) {
    const rapt_problem *problem = &p->problem;
    const int32_t *starts = args->table_starts;
    const rapt_layout *l = &problem->table;
    rapt_dimension d[] = {{starts ? 1 : problem->batch, l->batch_stride, "batch_stride"},
                          {problem->kv_heads, l->head_stride, "head_stride"},
                          {p->most_queries, l->token_stride, "token_stride"}};
    uint64_t bytes = 0;
    int64_t row = (starts ? starts[problem->batch] : table_pages(p)) * (int64_t)sizeof(int32_t);
    if (m->status == RAPT_OK && problem->batch > 0 && row > 0)
        m->status = rapt_measure_dimensions(m->report, "table", d, 3, row, false, &bytes);
    rapt_reads(m, "table", args->table, bytes);
}

/* Registers the arrays that describe pages; refuses them if the plan is not paged. only: the entry whose starts are checked, or
 * -1 for all. */
static void register_pages(rapt_memory *m, const full_plan *p, const rapt_args *args, int64_t only) {
    int64_t batch = p->problem.batch;
    if (!p->problem.page_size) {
        rapt_unused(m, "table", args->table, "the plan has no pages");
        rapt_unused(m, "table_starts", args->table_starts, "the plan has no pages");
        rapt_unused(m, "last_page", args->last_page, "the plan has no pages");
        return;
    }
    rapt_reads_array(m, "table_starts", args->table_starts, batch + 1, sizeof(int32_t), true);
    if (args->table_starts) rapt_reads_array(m, "last_page", args->last_page, batch, sizeof(int32_t), true);
    else rapt_unused(m, "last_page", args->last_page, "there are no table_starts");
    if (m->status == RAPT_OK) m->status = check_table_starts(m->report, p, args->table_starts, only);
    if (m->status == RAPT_OK) attend_register_table(m, p, args);
}

void rapt_register_attention(rapt_memory *m, const rapt_attention *c, bool tensors, int64_t only) {
    const full_plan *p = c->plan;
    const rapt_args *a = &c->args;
    const rapt_problem *problem = &p->problem;
    const tensor_bytes *b = &p->bytes;
    const int64_t batch = problem->batch;
    const char *const why = "the plan has no layout for it";
    if (tensors) {
        rapt_reads(m, "q", a->q, b->q);
        rapt_reads(m, "k", a->k, b->k);
        rapt_reads(m, "v", a->v, b->v);
        rapt_reads_if(m, problem->k_scales.present, "k_scales", a->k_scales, b->k_scales, why);
        rapt_reads_if(m, problem->v_scales.present, "v_scales", a->v_scales, b->v_scales, why);
        if (!problem->unmerged) rapt_writes(m, "o", a->o, b->o);
        rapt_writes_if(m, p->scores_stage, "scores", a->scores, b->scores, why);
    }
    rapt_reads_if(m, problem->mask.type, "mask", a->mask, b->mask, why);
    rapt_reads_if(m, problem->block_mask.type, "block_mask", a->block_mask, b->block_mask, why);
    rapt_reads_if(m, problem->bias.type, "bias", a->bias, b->bias, why);
    rapt_reads_if(m, problem->alibi || problem->slopes.type, "slopes", a->slopes, problem->alibi ? b->slopes : 0, why);
    if (!problem->unmerged) {
        rapt_reads_if(m, problem->sinks.type, "sinks", a->sinks, b->sinks, why);
        rapt_writes_if(m, problem->lse.type, "lse", a->lse, b->lse, why);
    }
    rapt_writes_if(m, problem->unmerged, "states", a->states, b->states, "the plan merges them itself");
    if (!problem->logits_body) rapt_unused(m, "logits_arg", a->logits_arg, "the plan has no logits_body");
    rapt_reads_array(m, "kv_lengths", a->kv_lengths, batch, sizeof(int32_t), true);
    rapt_reads_array(m, "prefixes", a->prefixes, batch, sizeof(int32_t), true);
    rapt_reads_array(m, "ring_starts", a->ring_starts, batch, sizeof(int32_t), true);
    rapt_reads_array(m, "q_offsets", a->q_offsets, batch, sizeof(int32_t), true);
    rapt_reads_array(m, "k_offsets", a->k_offsets, batch, sizeof(int32_t), true);
    rapt_reads_array(m, "q_starts", p->q_starts, batch + 1, sizeof(int32_t), true);
    rapt_reads_array(m, "k_starts", p->k_starts, batch + 1, sizeof(int32_t), true);
    if (m->status == RAPT_OK && only < 0) m->status = rapt_check_kept_starts(m->report, p);
    register_pages(m, p, a, only);
}

/* ---- Batch entries ------------------------------------------------------------------------------------------------------- */

/* True if the call gives key lengths by table_starts and last_page. */
static bool counted_by_pages(const rapt_attention *c) {
    const rapt_args *args = &c->args;
    return !args->kv_lengths && c->plan->problem.page_size && args->table_starts && args->last_page;
}

/* Returns the key length that table_starts and last_page give an entry: all its pages but the last one are full. */
static int64_t keys_in_pages(const rapt_attention *c, int64_t entry) {
    const rapt_args *args = &c->args;
    const int64_t pages = (int64_t)args->table_starts[entry + 1] - args->table_starts[entry];
    return c->plan->problem.kv_first + (pages ? (pages - 1) * c->plan->problem.page_size + args->last_page[entry] : 0);
}

int64_t rapt_key_length(const rapt_attention *c, int64_t entry) {
    const full_plan *p = c->plan;
    const rapt_args *args = &c->args;
    if (args->kv_lengths) return args->kv_lengths[entry];
    if (c->appended) return rapt_start_of(c->appended, entry) + rapt_count_of(c->appended, entry);
    if (counted_by_pages(c)) return keys_in_pages(c, entry);
    return p->k_starts ? entry_keys(p, entry) : p->kv_total;
}

/* Returns the address of the page table of an entry's first head and token. */
static const char *table_of(const full_plan *p, const rapt_args *args, int64_t entry) {
    return offset_by(args->table, args->table_starts ? (int64_t)sizeof(int32_t) * args->table_starts[entry]
                                                     : entry * p->problem.table.batch_stride);
}

/* Checks that the page table of an entry with `keys` keys in its ring is long enough, and that the pages that are used exist. */
static rapt_status check_table(rapt_report *r, const full_plan *p, const rapt_args *args, int64_t entry, int64_t keys,
                               int64_t ring_start) {
    const rapt_problem *problem = &p->problem;
    /* The slots that are used: [ring_start, end), and where the ring wraps around, [0, wrapped). */
    int64_t end = ring_start + keys < problem->kv_len ? ring_start + keys : problem->kv_len;
    int64_t wrapped = ring_start + keys - end;
    int64_t pages = rapt_divide_up(end, problem->page_size);
    if (keys == 0 || entry_queries(p, entry) == 0) return RAPT_OK;
    if (args->table_starts && pages > (int64_t)args->table_starts[entry + 1] - args->table_starts[entry])
        return rapt_refuse(r, RAPT_ERR_TABLE,
                           "table_starts[%" PRId64 "] = %d: entry %" PRId64 " has %" PRId64 " keys, for which it needs %" PRId64
                           " pages",
                           entry + 1, (int)args->table_starts[entry + 1], entry, keys, pages);
    if (p->trust_table) return RAPT_OK;
    int64_t heads = problem->table.head_stride ? problem->kv_heads : 1;
    int64_t tokens = problem->table.token_stride ? entry_queries(p, entry) : 1;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < tokens; i++) {
            const char *table = table_of(p, args, entry) + h * problem->table.head_stride + i * problem->table.token_stride;
            for (int64_t n = 0; n < pages; n++) {
                int32_t page;
                memcpy(&page, table + n * (int64_t)sizeof page, sizeof page);
                bool used = (n + 1) * problem->page_size > ring_start || n * problem->page_size < wrapped;
                if (used && (page < 0 || page >= p->pages))
                    return rapt_refuse(r, RAPT_ERR_TABLE,
                                       "table[entry %" PRId64 ", head %" PRId64 ", query %" PRId64 "][%" PRId64
                                       "] = %d: the pool has %" PRId64 " pages",
                                       entry, h, i, n, (int)page, p->pages);
            }
        }
    return RAPT_OK;
}

/* Checks that a mask or bias has a column for each position of the entry's keys, unless a row has one element for all keys
 * (one_key), or `rest` says how keys without a column are treated. */
static rapt_status attend_check_columns(rapt_report *r, const char *name, bool there, rapt_rest rest, bool one_key,
                                        int64_t columns, int64_t entry, int64_t positions) {
    if (!there || rest || one_key || positions <= columns) return RAPT_OK;
    return rapt_refuse(r, RAPT_ERR_MASK,
                       "%s = %" PRId64 ": entry %" PRId64 " has keys of positions up to %" PRId64
                       ", and nothing is said of those beyond",
                       name, columns, entry, positions - 1);
}

/* Checks what an entry has of its own: length, ring, position, columns of mask and bias, page table. */
static rapt_status check_entry(rapt_report *r, const rapt_attention *c, int64_t entry) {
    const full_plan *p = c->plan;
    const rapt_args *args = &c->args;
    const rapt_problem *problem = &p->problem;
    int64_t stored = entry_keys(p, entry), most = p->k_starts ? stored : p->kv_total;
    if (counted_by_pages(c) && args->table_starts[entry + 1] > args->table_starts[entry] &&
        (args->last_page[entry] < 1 || args->last_page[entry] > problem->page_size))
        return rapt_refuse(r, RAPT_ERR_TABLE, "last_page[%" PRId64 "] = %d: pages have %" PRId64 " keys", entry,
                           (int)args->last_page[entry], problem->page_size);
    int64_t length = rapt_key_length(c, entry);
    if (counted_by_pages(c) && c->appended && keys_in_pages(c, entry) != length)
        return rapt_refuse(r, RAPT_ERR_TABLE,
                           "last_page[%" PRId64 "] = %d: entry %" PRId64 " has %" PRId64 " keys then, and %" PRId64
                           " by starts and new tokens",
                           entry, (int)args->last_page[entry], entry, keys_in_pages(c, entry), length);
    if (length < 0 || length > most) {
        if (args->kv_lengths)
            return rapt_refuse(r, RAPT_ERR_KV_LENGTH, "kv_lengths[%" PRId64 "] = %" PRId64 ": there are %" PRId64 " keys", entry,
                               length, most);
        return rapt_refuse(r, RAPT_ERR_TABLE,
                           "last_page[%" PRId64 "] = %d: entry %" PRId64 " has %" PRId64 " keys then, above %" PRId64, entry,
                           (int)args->last_page[entry], entry, length, most);
    }
    int64_t ring_start = args->ring_starts ? args->ring_starts[entry] : 0;
    if (ring_start < 0 || (ring_start > 0 && ring_start >= stored))
        return rapt_refuse(r, RAPT_ERR_TABLE, "ring_starts[%" PRId64 "] = %" PRId64 ": the ring has %" PRId64 " keys", entry,
                           ring_start, stored);
    int64_t position = args->k_offsets ? args->k_offsets[entry] : 0;
    if (position < 0) return rapt_refuse_element(r, RAPT_ERR_TABLE, "k_offsets", entry, position, "must be 0 or more");
    int64_t keys = length - problem->kv_first < stored ? length - problem->kv_first : stored;
    if (keys < 0) keys = 0;
    int64_t positions = keys ? position + problem->kv_first + keys : 0;
    rapt_status status = attend_check_columns(r, "mask_keys", problem->mask.type, problem->mask_rest, problem->mask_one_key,
                                              problem->mask_keys, entry, positions);
    if (status == RAPT_OK)
        status = attend_check_columns(r, "bias_keys", problem->bias.type, problem->bias_rest, problem->bias_one_key,
                                      problem->bias_keys, entry, positions);
    if (status != RAPT_OK || !problem->page_size) return status;
    return check_table(r, p, args, entry, keys, ring_start);
}

/* True if there is something to check in each entry; else all entries are alike, and checking the first one is enough. */
static bool entries_differ(const rapt_attention *c) {
    const rapt_args *args = &c->args;
    return args->kv_lengths || args->ring_starts || args->k_offsets || c->plan->problem.page_size || c->plan->k_starts ||
           (c->appended && (c->appended->starts || c->appended->token_starts));
}

rapt_status rapt_check_entries(rapt_report *r, const rapt_attention *c) {
    const int64_t batch = c->plan->problem.batch, to_check = batch > 1 && !entries_differ(c) ? 1 : batch;
    rapt_status status = RAPT_OK;
    for (int64_t b = 0; status == RAPT_OK && b < to_check; b++) status = check_entry(r, c, b);
    return status;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

/* Reads and checks the arguments of a call whose plan is known. only: the entry that they are checked for, or -1 for all. */
static RAPT_NOINLINE rapt_status attend_read_args(rapt_report *r, rapt_attention *c, const rapt_args *args, int64_t nth,
                                                  int64_t only) {
    size_t bytes = 0;
    rapt_memory m;
    c->appended = NULL;
    rapt_status status = rapt_read_args(r, "args", &c->args, args);
    if (status == RAPT_OK) status = rapt_plan_workspace(r, c->plan, nth, &bytes);
    if (status != RAPT_OK) return status;
    rapt_memory_begin(&m, r);
    rapt_reads(&m, "plan", c->plan, plan_bytes(c->plan));
    rapt_register_attention(&m, c, true, only);
    rapt_writes_workspace(&m, c->args.workspace, c->args.workspace_bytes, bytes);
    return rapt_check_memory(&m);
}

/* Reads the caller's plan and args into c, and checks all of the call. */
static rapt_status attend_read_call(rapt_report *r, rapt_attention *c, const rapt_plan *opaque, const rapt_args *args,
                                    int64_t nth) {
    rapt_status status;
    c->plan = rapt_read_plan(r, opaque, &status);
    if (status == RAPT_OK) status = attend_read_args(r, c, args, nth, -1);
    return status == RAPT_OK ? rapt_check_entries(r, c) : status;
}

rapt_status rapt_args_explain(const rapt_plan *plan, const rapt_args *args, int64_t nth, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_run", text, bytes);
    rapt_attention c;
    const rapt_status status = attend_read_call(&r, &c, plan, args, nth);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

/* ---- Where a task finds things ------------------------------------------------------------------------------------------- */

/* Returns the scratch of the thread that has this slot, which lies after the shared part of the workspace. */
static char *scratch_of(const rapt_attention *c, int64_t slot) {
    return (char *)c->args.workspace + c->plan->shared_bytes + (size_t)slot * c->plan->thread_bytes;
}

/* The place of a task: its entry, where that begins and how it is cut; and what of the entry a task of phase 0 computes. */
typedef struct task_place {
    int64_t entry;
    entry_start start;
    entry_cut cut;
    bool fits; /* rapt_entry_fits is true; else cut is not that of the entry */
    int64_t head_group, pass, part;
    bool ran; /* true if the thread has run this task, so that its scratch has what the task left there */
} task_place;

/* Returns the place of an entry, given where it begins. */
static task_place place_of(const full_plan *p, int64_t entry, entry_start start) {
    task_place at = {.entry = entry, .start = start, .cut = p->cut, .fits = true};
    if (!ragged(p) || entry >= p->problem.batch) return at;
    at.fits = rapt_entry_fits(p, entry);
    if (at.fits) at.cut = rapt_cut_entry(p, entry_queries(p, entry), entry_keys(p, entry));
    return at;
}

static task_place first_place(const full_plan *p) { return place_of(p, 0, (entry_start){0, 0}); }

/* True if `entry`, which begins at `start`, is the wanted one or comes before it. wanted: a task of that entry in phase 0, the
 * entry itself in phase 1. */
static bool at_or_before(int phase, int64_t wanted, const entry_start *start, int64_t entry) {
    return phase == 0 ? start->first_task <= wanted : entry <= wanted;
}

/* Returns the entry whose rows a task of phase 1 finishes. */
static int64_t finished_entry(const full_plan *p, int64_t task) { return task / (p->problem.kv_heads * p->finishers); }

/* Sets the entry of *at to the one of a ragged batch that a task belongs to: walks there entry by entry, from the nearest known
 * place that is not after it: *at, a start that the plan has stored, or entry 0. wanted: as in at_or_before. */
static void find_entry(const full_plan *p, task_place *at, int phase, int64_t wanted) {
    int64_t low = 0, high = p->start_count; /* low becomes the last stored start that is not after the wanted entry */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (at_or_before(phase, wanted, &p->starts[middle], middle * p->start_step)) low = middle;
        else high = middle;
    }
    bool past = !at_or_before(phase, wanted, &at->start, at->entry);
    if (p->start_count > 0 && (past || low * p->start_step > at->entry)) *at = place_of(p, low * p->start_step, p->starts[low]);
    else if (past) *at = first_place(p);
    while (at->fits && at->entry + 1 < p->problem.batch &&
           (phase == 0 ? wanted >= at->start.first_task + at->cut.tasks : at->entry < wanted))
        *at = place_of(p, at->entry + 1,
                       (entry_start){at->start.first_task + at->cut.tasks, at->start.first_state + at->cut.state_bytes});
}

/* Sets the heads, rows and keys of a task of phase 0, as the figure at rapt_cut_entry (plan.c) shows. Adds the number of the
 * entry where several entries take turns. number: that of the task, among those of `groups` groups of heads, which are cut alike.
 */
static void take_turn(task_place *at, int64_t number, int64_t groups) {
    const entry_cut *cut = &at->cut;
    const int64_t of_group = cut->passes * cut->parts;
    const int64_t first = number / (cut->turn_groups * of_group) * cut->turn_groups; /* of the groups that take these turns */
    const int64_t taking = rapt_min(cut->turn_groups, groups - first), turn = (number - first * of_group) / cut->parts;
    const int64_t group = first + turn % taking;
    at->entry += group / cut->head_groups;
    at->head_group = group % cut->head_groups;
    at->pass = cut->passes - 1 - turn / taking;
    at->part = number % cut->parts;
}

/* Finds the place of a task. The entries of a ragged batch, which are cut each in its own way, do not take turns; if the task is
 * not one of the entry that is found, only the entry is set. */
static void find_place(const full_plan *p, task_place *at, int phase, int64_t task) {
    if (ragged(p)) {
        find_entry(p, at, phase, phase == 0 ? task : finished_entry(p, task));
        const int64_t number = task - at->start.first_task;
        if (phase == 0 && number < at->cut.tasks) take_turn(at, number, at->cut.head_groups);
    } else {
        at->entry = phase == 0 ? 0 : finished_entry(p, task);
        if (phase == 0) take_turn(at, task, at->cut.head_groups * p->problem.batch);
        at->start.first_state = (uint64_t)at->entry * at->cut.state_bytes;
    }
}

/* Returns the offset of an entry's first token in a tensor of queries. */
static int64_t query_offset(const full_plan *p, const rapt_layout *layout, int64_t entry) {
    return p->q_starts ? p->q_starts[entry] * layout->token_stride : entry * layout->batch_stride;
}

/* Returns the offset of an entry's first token in a tensor of keys; 0 if the plan is paged, since the kernel looks up the pages
 * in the table. */
static int64_t key_offset(const full_plan *p, int64_t batch_stride, int64_t token_stride, int64_t entry) {
    if (p->problem.page_size) return 0;
    return p->k_starts ? p->k_starts[entry] * token_stride : entry * batch_stride;
}

/* Returns the address of the first element of an entry and head in a tensor whose dimensions begin with these two. */
static const char *of_head(const void *from, const rapt_layout *layout, int64_t entry, int64_t head) {
    return offset_by(from, entry * layout->batch_stride + head * layout->head_stride);
}

/* Returns the address of the scales of K or V of an entry and head, or null if there are none. Scales of tokens lie as the tokens
 * do. */
static const char *scales_of(const full_plan *p, const float *scales, const rapt_scales *s, int64_t entry, int64_t kv_head) {
    if (!s->present) return NULL;
    int64_t at = s->token_stride ? key_offset(p, s->batch_stride, s->token_stride, entry) : entry * s->batch_stride;
    return offset_by(scales, at + kv_head * s->head_stride);
}

/* Returns the channel of K at which V begins, if each row of V is a part of the same token's row of K; else -1. */
static int v_in_k(const full_plan *p, const char *k, const char *v) {
    const rapt_layout *kl = &p->problem.k, *vl = &p->problem.v;
    if (!rapt_same_layout(kl, vl) || (uintptr_t)v < (uintptr_t)k) return -1;
    uintptr_t from = (uintptr_t)v - (uintptr_t)k;
    int channels = p->problem.d_k - p->problem.d_v;
    for (int c = 0; c <= channels; c++)
        if (rapt_row_bytes(kl->type, c) == (int64_t)from) return c;
    return -1;
}

rapt_row_end rapt_row_end_of(const full_plan *p, const rapt_args *args, int64_t entry, int64_t head, int64_t token) {
    const rapt_problem *problem = &p->problem;
    const rapt_layout *o = &problem->o, *lse = &problem->lse;
    rapt_row_end end = {.o = (char *)args->o + query_offset(p, o, entry) + head * o->head_stride + token * o->token_stride};
    if (p->bytes.lse)
        end.lse = (char *)args->lse + query_offset(p, lse, entry) + head * lse->head_stride + token * lse->token_stride;
    if (problem->sinks.type) end.sink = of_head(args->sinks, &problem->sinks, entry, head);
    if (problem->v_scales.present && !problem->v_scales.token_stride)
        end.v_scales = scales_of(p, args->v_scales, &problem->v_scales, entry, head / problem->group);
    return end;
}

/* ---- Tasks --------------------------------------------------------------------------------------------------------------- */

/* Returns the key number at which the room for the entry's keys in K and V ends; kv_total, if that is less and keys are not
 * ragged. */
static int64_t stored_end(const full_plan *p, int64_t entry) {
    int64_t end = p->problem.kv_first + entry_keys(p, entry);
    return p->k_starts || end < p->kv_total ? end : p->kv_total;
}

/* Returns the arithmetic that computes a task. */
static const rapt_arithmetic *arithmetic_of_task(const full_plan *p, const rapt_task *t) {
    return t->keys_in_lanes && t->rows < p->arithmetic->least_rows ? p->few_rows_arithmetic : p->arithmetic;
}

/* Writes the scores of a task's rows and chunks, at the stage that is wanted; for RAPT_SCORES_WEIGHTS those that finish_task
 * turns into weights. All columns that K has room for become -inf, so that keys which the kernel does not visit have that score.
 * Then a copy of the task, without the steps after that stage, is run; its states go to a local array and are discarded. task:
 * its inputs and positions are set. */
static void attend_for_scores(const rapt_attention *c, const rapt_task *task) {
    const full_plan *p = c->plan;
    rapt_problem problem = p->problem;
    rapt_task t = *task;
    float nowhere[RAPT_STATE_FLOATS(RAPT_MOST_GROUP)] __attribute__((aligned(RAPT_WORKSPACE_ALIGNMENT)));
    const rapt_layout *scores = &problem.scores;
    char *row = (char *)c->args.scores + query_offset(p, scores, t.batch) + t.head0 * scores->head_stride;
    int64_t first = t.chunk0 * RAPT_CHUNK, end = first + t.chunks * RAPT_CHUNK;
    if (end > stored_end(p, t.batch)) end = stored_end(p, t.batch);
    const float none = -INFINITY;
    for (int64_t n = 0; n < t.rows * t.kv_heads; n++) {
        int64_t r = t.row0 + n % t.rows, h = n / t.rows * problem.group + r % problem.group;
        char *to = row + h * scores->head_stride + r / problem.group * scores->token_stride;
        for (int64_t j = first; j < end; j++) memcpy(to + j * (int64_t)sizeof none, &none, sizeof none);
    }
    problem.scores_factor = p->scores_stage == RAPT_SCORES_WEIGHTS ? 1.0f : problem.natural;
    if (p->scores_stage == RAPT_SCORES_RAW || p->scores_stage == RAPT_SCORES_CAPPED) {
        const rapt_layout no_layout = {.type = RAPT_NONE};
        problem.causal = RAPT_CAUSAL_NONE;
        problem.window_left = problem.window_right = -1;
        problem.local_chunk = 0;
        problem.mask = problem.block_mask = problem.bias = no_layout;
        problem.mask_rest = problem.bias_rest = RAPT_REST_REFUSED;
        problem.alibi = RAPT_ALIBI_NONE;
        problem.logits_body = NULL;
        if (p->scores_stage == RAPT_SCORES_RAW) problem.softcap = 0.0f;
        problem.modified = true; /* so that the kernel computes them in base e, in which scores are returned */
        problem.scores_factor = 1.0f;
        t.period = 0;
        t.prefix = 0;
    }
    problem.d_v = (int32_t)rapt_group_of(problem.v.type); /* the fewest that a row of V can have: its results are discarded */
    problem.v_row = (size_t)rapt_row_bytes(problem.v.type, problem.d_v);
    t.problem = &problem;
    t.v_in_k = -1;
    t.scores = row;
    t.sinks = t.lse = t.o = NULL;
    t.states = (char *)nowhere;
    t.state_token = t.state_head = t.state_chunk = 0;
    arithmetic_of_task(p, &t)->attend(&t);
}

/* Returns a task with its heads, rows and chunks set. */
static rapt_task task_of(const full_plan *p, const task_place *at) {
    const rapt_problem *problem = &p->problem;
    const entry_cut *cut = &at->cut;
    const int64_t row0 = at->pass * cut->pass_rows, chunk0 = at->part * cut->part_chunks;
    const int64_t rows = cut->rows - row0 < cut->pass_rows ? cut->rows - row0 : cut->pass_rows;
    return (rapt_task){
        .problem = problem,
        .batch = at->entry,
        .head0 = at->head_group * cut->joined_heads * problem->group,
        .kv_heads = (int)cut->joined_heads,
        .keys_in_lanes = cut->keys_in_lanes,
        .row0 = row0,
        .rows = rows,
        .left_over = cut->keys_in_lanes ? 0 : rapt_left_over(p->kernel, problem, rows),
        .period = cut->period,
        .chunk0 = problem->kv_first / RAPT_CHUNK + chunk0,
        .chunks = cut->chunks - chunk0 < cut->part_chunks ? cut->chunks - chunk0 : cut->part_chunks,
    };
}

/* Sets where a task reads. */
static void place_inputs(const rapt_attention *c, rapt_task *t) {
    const full_plan *p = c->plan;
    const rapt_args *args = &c->args;
    const rapt_problem *problem = &p->problem;
    const int64_t entry = t->batch, head = t->head0, kv_head = head / problem->group, token0 = t->row0 / problem->group;
    const char *k = offset_by(args->k, key_offset(p, problem->k.batch_stride, problem->k.token_stride, entry));
    const char *v = offset_by(args->v, key_offset(p, problem->v.batch_stride, problem->v.token_stride, entry));
    t->q = (const char *)args->q + query_offset(p, &problem->q, entry) + head * problem->q.head_stride;
    t->k = offset_by(k, kv_head * problem->k.head_stride);
    t->v = offset_by(v, kv_head * problem->v.head_stride);
    t->v_in_k = v_in_k(p, args->k, args->v);
    t->k_scales = scales_of(p, args->k_scales, &problem->k_scales, entry, kv_head);
    t->v_scales = scales_of(p, args->v_scales, &problem->v_scales, entry, kv_head);
    t->mask = of_head(args->mask, &problem->mask, entry, head);
    t->block_mask = of_head(args->block_mask, &problem->block_mask, entry, head);
    t->bias = of_head(args->bias, &problem->bias, entry, head);
    t->slopes = of_head(args->slopes, &problem->slopes, entry, head);
    t->logits_arg = args->logits_arg;
    if (problem->page_size)
        t->table =
            offset_by(table_of(p, args, entry), kv_head * problem->table.head_stride + token0 * problem->table.token_stride);
}

/* Sets the positions of a task's keys and queries, and how many keys there are. */
static void place_positions(const rapt_attention *c, int64_t q_len, rapt_task *t) {
    const full_plan *p = c->plan;
    const rapt_args *args = &c->args;
    const int64_t entry = t->batch, position = args->k_offsets ? args->k_offsets[entry] : 0;
    const int64_t prefix = (args->prefixes ? args->prefixes[entry] : p->prefix) - position;
    t->kv_length = rapt_key_length(c, entry);
    t->prefix = prefix > 0 ? prefix : 0;
    t->query_offset = args->q_offsets ? args->q_offsets[entry] - position : rapt_default_offset(&p->problem, q_len, t->kv_length);
    t->key_position = position;
    t->ring_start = args->ring_starts ? args->ring_starts[entry] : 0;
    t->ring_size = entry_keys(p, entry);
}

/* Sets where a task writes: in an unmerged plan to the caller's states; else to o and lse, or, if it has only a part of the keys,
 * to states in the workspace, which phase 1 merges. */
static void place_results(const rapt_attention *c, const task_place *at, rapt_task *t) {
    const full_plan *p = c->plan;
    const rapt_args *args = &c->args;
    const rapt_problem *problem = &p->problem;
    const int64_t entry = t->batch, head = t->head0, chunk0 = t->chunk0 - problem->kv_first / RAPT_CHUNK;
    if (problem->unmerged) {
        t->states = (char *)args->states + query_offset(p, &problem->states, entry) + head * problem->states.head_stride +
                    chunk0 * problem->state_stride;
        t->state_token = (size_t)problem->states.token_stride;
        t->state_head = (size_t)problem->states.head_stride;
        t->state_chunk = (size_t)problem->state_stride;
    } else {
        t->o = (char *)args->o + query_offset(p, &problem->o, entry) + head * problem->o.head_stride;
        if (p->bytes.lse) t->lse = (char *)args->lse + query_offset(p, &problem->lse, entry) + head * problem->lse.head_stride;
        if (problem->sinks.type) t->sinks = of_head(args->sinks, &problem->sinks, entry, head);
    }
    if (at->cut.state_bytes) { /* [chunk, token, head] */
        t->state_head = RAPT_STATE_FLOATS(problem->d_v) * sizeof(float);
        t->state_token = t->state_head * (size_t)problem->heads;
        t->state_chunk = t->state_token * (size_t)at->cut.q_len;
        t->states =
            (char *)args->workspace + at->start.first_state + (size_t)chunk0 * t->state_chunk + (size_t)head * t->state_head;
    }
}

/* Runs a task of phase 0. slot: which scratch it uses. */
static void attend_task(const rapt_attention *c, task_place *at, int64_t task, int64_t slot) {
    const full_plan *p = c->plan;
    const task_place before = *at;
    find_place(p, at, 0, task);
    rapt_task t = task_of(p, at);
    char *const memory = scratch_of(c, slot);
    const size_t kept = rapt_mask_blocks_bytes(p, &at->cut);
    t.scratch = (float *)(void *)(memory + kept);
    t.mask_blocks = kept ? (rapt_mask_blocks *)(void *)memory : NULL;
    t.mask_blocks_known = before.ran && before.entry == at->entry && before.pass == at->pass;
    at->ran = true;
    place_inputs(c, &t);
    place_positions(c, at->cut.q_len, &t);
    if (p->bytes.scores) attend_for_scores(c, &t);
    place_results(c, at, &t);
    arithmetic_of_task(p, &t)->attend(&t);
}

void rapt_start_state(float *state, int32_t d_v) {
    memset(state, 0, RAPT_STATE_FLOATS(d_v) * sizeof *state);
    state[RAPT_STATE_M] = -INFINITY;
}

void rapt_merge_chunks(const rapt_kernel *kernel, const rapt_problem *problem, float *state, const char *next, size_t stride,
                       int64_t chunks) {
    for (int64_t n = 0; n < chunks; n++) {
        float copy[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)];
        memcpy(copy, next + (size_t)n * stride, RAPT_STATE_FLOATS(problem->d_v) * sizeof *copy);
        kernel->base->merge(problem, state, copy);
    }
}

/* Runs a task of phase 1, which finishes some rows of an entry and key/value head: merges the states of parts, and for
 * RAPT_SCORES_WEIGHTS turns the scores into weights. */
static void finish_task(const rapt_attention *c, task_place *at, int64_t task) {
    const full_plan *p = c->plan;
    const rapt_problem *problem = &p->problem;
    find_place(p, at, 1, task);
    size_t one = RAPT_STATE_FLOATS(problem->d_v) * sizeof(float), stride = one * (size_t)(problem->heads * at->cut.q_len);
    const int64_t rows = rapt_divide_up(at->cut.rows, p->finishers), row0 = task % p->finishers * rows;
    const int64_t head0 = task / p->finishers % problem->kv_heads * problem->group;
    for (int64_t row = row0; row < row0 + rows && row < at->cut.rows; row++) {
        int64_t token = row / problem->group, head = head0 + row % problem->group;
        if (at->cut.parts > 1) {
            float state[RAPT_STATE_FLOATS(RAPT_MAX_HEAD_DIM)];
            rapt_row_end end = rapt_row_end_of(p, &c->args, at->entry, head, token);
            rapt_start_state(state, problem->d_v);
            rapt_merge_chunks(p->kernel, problem, state,
                              (const char *)c->args.workspace + at->start.first_state +
                                  (size_t)(token * problem->heads + head) * one,
                              stride, at->cut.chunks);
            p->kernel->base->finish(problem, &end, state);
        }
        if (p->scores_stage == RAPT_SCORES_WEIGHTS && p->bytes.scores) {
            const rapt_layout *scores = &problem->scores;
            char *weights = (char *)c->args.scores + query_offset(p, scores, at->entry) + head * scores->head_stride +
                            token * scores->token_stride + problem->kv_first * (int64_t)sizeof(float);
            p->kernel->base->weigh_scores(problem, weights, stored_end(p, at->entry) - problem->kv_first,
                                          problem->sinks.type ? of_head(c->args.sinks, &problem->sinks, at->entry, head) : NULL);
        }
    }
}

/* True if the entry begins where the plan has stored that it does, or if the plan has not stored it. */
static bool agrees_with_stored_start(const full_plan *p, int64_t entry, int64_t first_task, uint64_t first_state) {
    if (p->start_count == 0 || entry % p->start_step || entry / p->start_step >= p->start_count) return true;
    const entry_start *known = &p->starts[entry / p->start_step];
    return known->first_task == first_task && known->first_state == first_state;
}

/* Checks the place that find_place found for a single task, since q_starts and k_starts may have changed since the plan was made.
 * Their checksum would take too long for one task; so this checks that the task belongs to that entry, that the entry begins and
 * ends where the plan has stored it, and that the plan's workspace has room for it. Errors: TABLE. */
static rapt_status check_place(rapt_report *r, const full_plan *p, const task_place *at, int phase, int64_t task) {
    if (!ragged(p)) return RAPT_OK;
    const int64_t first = at->start.first_task, end = first + at->cut.tasks;
    const uint64_t state = at->start.first_state, state_end = state + at->cut.state_bytes;
    if (at->fits && (phase ? at->entry == finished_entry(p, task) : task < end) &&
        agrees_with_stored_start(p, at->entry, first, state) && agrees_with_stored_start(p, at->entry + 1, end, state_end) &&
        state_end >= state && state_end <= p->shared_bytes &&
        (at->cut.tasks == 0 || rapt_cut_scratch(p, &at->cut) <= p->thread_bytes))
        return RAPT_OK;
    return rapt_refuse_starts(r, p, at->entry, at->entry + 1);
}

/* Runs a task of a phase. */
static void run_task(const rapt_attention *c, task_place *at, int phase, int64_t task, int64_t slot) {
    if (phase == 0) attend_task(c, at, task, slot);
    else finish_task(c, at, task);
}

/* Takes tasks by the shared counter (next), as threads become free. Without one, each thread takes one of the next nth tasks,
 * the first one first, the last one first, and so on: tasks become shorter, so this balances better than contiguous ranges, or
 * the same place each time, would. */
void rapt_attend_share(const void *attention, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    const rapt_attention *c = attention;
    task_place at = first_place(c->plan);
    for (int64_t n = 0;; n++) {
        const int64_t task =
            next ? atomic_fetch_add_explicit(next, 1, memory_order_relaxed) : n * nth + (n % 2 ? nth - 1 - ith : ith);
        if (task >= c->plan->tasks[phase]) return;
        run_task(c, &at, phase, task, ith);
    }
}

/* ---- The ways to run ----------------------------------------------------------------------------------------------------- */

static rapt_status attend_run(const char *name, const rapt_plan *plan, const rapt_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    rapt_attention c;
    rapt_status status = attend_read_call(&r, &c, plan, args, way.nth);
    if (status != RAPT_OK) return status;
    const rapt_work w = {.call = &c, .phases = c.plan->phases, .share = rapt_attend_share};
    return rapt_work_run(&r, &w, &way);
}

rapt_status rapt_run(const rapt_plan *plan, const rapt_args *args) { return attend_run("rapt_run", plan, args, rapt_alone()); }
rapt_status rapt_run_parallel(const rapt_plan *plan, const rapt_args *args, int64_t nth, rapt_parallel_for parallel_for,
                              void *pool) {
    return attend_run("rapt_run_parallel", plan, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_run_share(const rapt_plan *plan, const rapt_args *args, int64_t ith, int64_t nth, rapt_barrier barrier,
                           void *barrier_arg) {
    return attend_run("rapt_run_share", plan, args, rapt_share(ith, nth, barrier, barrier_arg));
}
rapt_status rapt_run_phase(const rapt_plan *plan, const rapt_args *args, int phase, int64_t ith, int64_t nth) {
    return attend_run("rapt_run_phase", plan, args, rapt_phase(phase, ith, nth));
}

rapt_status rapt_run_task(const rapt_plan *plan, const rapt_args *args, int phase, int64_t task, int64_t slot) {
    rapt_report r = rapt_report_of("rapt_run_task");
    rapt_attention c;
    rapt_status status;
    c.plan = rapt_read_plan(&r, plan, &status);
    if (status != RAPT_OK) return status;
    if (slot < 0 || slot == INT64_MAX) return rapt_refuse_number(&r, RAPT_ERR_RANGE, "slot", slot, "not a thread's");
    if (phase < 0 || phase >= c.plan->phases)
        return rapt_refuse(&r, RAPT_ERR_RANGE, "phase = %d: there are %d", phase, c.plan->phases);
    if (task < 0 || task >= c.plan->tasks[phase])
        return rapt_refuse(&r, RAPT_ERR_RANGE, "task = %" PRId64 ": phase %d has %" PRId64, task, phase, c.plan->tasks[phase]);
    task_place at = first_place(c.plan);
    find_place(c.plan, &at, phase, task);
    status = check_place(&r, c.plan, &at, phase, task);
    if (status == RAPT_OK) status = attend_read_args(&r, &c, args, slot + 1, at.entry);
    if (status == RAPT_OK) status = check_entry(&r, &c, at.entry);
    if (status == RAPT_OK) status = rapt_check_floats(&r);
    if (status == RAPT_OK) run_task(&c, &at, phase, task, slot);
    return status;
}
