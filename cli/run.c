/* SPDX-License-Identifier: Apache-2.0 */
/* rapt run: attention from .npy files to .npy files. */
#define _POSIX_C_SOURCE 200112L
#include "aligned.h"
#include "cli.h"
#include "clock.h"
#include "convert.h"
#include "measure.h"
#include "output.h"
#include "pages.h"
#include "rapt_pool.h"
#include "tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: rapt run --q Q.npy --k K.npy --v V.npy --out O.npy [options]\n"
    "\n"
    "Scaled dot-product attention: O = softmax(scale * Q K^T + mask) V for each batch entry and head.\n"
    "\n"
    "  --q, --k, --v FILE    the inputs: float16 or float32, [S,D], [H,S,D] or [B,H,S,D]; K and V may have fewer heads.\n"
    "                        Inputs are mapped into memory: regular files, no pipe and not -\n"
    "  --out FILE            the output, of Q's dimensions and V's channels; needed unless --time is given. -: standard\n"
    "                        output, unless that is a terminal; --lse likewise. No output may be an input\n"
    "  --lse FILE            write the natural log-sum-exp of each row too: float32, [S], [H,S] or [B,H,S] in either layout\n"
    "  --layout bhsd|bshd    order of dimensions; bshd: [S,H,D] or [B,S,H,D] (default bhsd)\n"
    "  --causal [ALIGNMENT]  query i sees the keys up to i + a. bottom-right (default): a = key length - queries;\n"
    "                        top-left: a = 0. The next argument is the alignment, unless it begins with a dash\n"
    "  --window L,R          query i sees keys i + a - L to i + a + R, both included; -1: unlimited\n"
    "  --scale X             softmax scale; 0 gives the mean of the values (default 1/sqrt(D))\n"
    "  --prefix N            keys before N are seen whatever --causal and a window's right side say\n"
    "  --chunk N             query i sees only keys of its own chunk of N positions\n"
    "  --mask FILE           bool, true where a key is seen: [B,H,queries,keys], or what NumPy broadcasts to it\n"
    "  --bias FILE           float16 or float32, added to the scores: likewise; -inf: not seen\n"
    "  --softcap X           scores become X * tanh(score / X), before --alibi, --bias and masks\n"
    "  --alibi FILE          slopes [H] or [B,H]: scores are lowered by slope * |i + a - j|\n"
    "  --sinks FILE          [H] or [B,H]: a score that joins the sum of each row, and has no value\n"
    "  --kv-lens N,N,...     how many keys exist for each batch entry (default: all)\n"
    "  --cu-q N,N,...        Q and O are [T,H,D], LSE [H,T]: the tokens of all entries, entry b's from N(b) to N(b+1) - 1\n"
    "  --cu-k N,N,...        the same for K and V\n"
    "  --page-size N         cut K and V into pages of N keys, 1 to 65536, that lie in random order\n"
    "  --seed N              the order of the pages (default 0)\n"
    "  --q-type T            compute on Q as f32, f16 or bf16 (default: the type in its file)\n"
    "  --kv-type T           the same for K and V, or convert them to a type of caches, which rapt info lists (int8 with a\n"
    "                        scale for each token and head)\n"
    "  --out-type T          type of the output (default: Q's, after --q-type); bf16 is written as float32 of the same values\n"
    "  --arith A             how to multiply: exact, converted to f32 (the default); int8, as integers, K and V of int8,\n"
    "                        int4, q8_0, q4_0 or q5_0; bf16, all rounded to bf16\n"
    "  --isa NAME            the kernel to use; see rapt info (default: $RAPT_ISA, or the best one that can run here)\n"
    "  --tuning LINE         how to cut the work: what rapt tune has printed; the output does not depend on it\n"
    "  --threads N           1 to 1024 (default 1); the output does not depend on it\n"
    "  --time                repeat 5 times or more, for half a second or more; print the median time and the rate.\n"
    "                        Without --out, the output is not kept. If --out or --lse is -, the time goes to standard error\n"
    "  -h, --help            print this\n";

enum {
    Q,
    K,
    V,
    OUT,
    LSE,
    LAYOUT,
    CAUSAL,
    WINDOW,
    SCALE,
    PREFIX,
    CHUNK,
    MASK,
    BIAS,
    SOFTCAP,
    ALIBI,
    SINKS,
    KV_LENS,
    CU_Q,
    CU_K,
    PAGE_SIZE,
    SEED,
    Q_TYPE,
    KV_TYPE,
    OUT_TYPE,
    ARITH,
    ISA,
    TUNING,
    THREADS,
    TIME,
    HELP,
    OPTIONS
};

static const cli_option options[OPTIONS] = {
    [Q] = {"q", CLI_VALUE},
    [K] = {"k", CLI_VALUE},
    [V] = {"v", CLI_VALUE},
    [OUT] = {"out", CLI_VALUE},
    [LSE] = {"lse", CLI_VALUE},
    [LAYOUT] = {"layout", CLI_VALUE},
    [CAUSAL] = {"causal", CLI_OPTIONAL_VALUE},
    [WINDOW] = {"window", CLI_VALUE},
    [SCALE] = {"scale", CLI_VALUE},
    [PREFIX] = {"prefix", CLI_VALUE},
    [CHUNK] = {"chunk", CLI_VALUE},
    [MASK] = {"mask", CLI_VALUE},
    [BIAS] = {"bias", CLI_VALUE},
    [SOFTCAP] = {"softcap", CLI_VALUE},
    [ALIBI] = {"alibi", CLI_VALUE},
    [SINKS] = {"sinks", CLI_VALUE},
    [KV_LENS] = {"kv-lens", CLI_VALUE},
    [CU_Q] = {"cu-q", CLI_VALUE},
    [CU_K] = {"cu-k", CLI_VALUE},
    [PAGE_SIZE] = {"page-size", CLI_VALUE},
    [SEED] = {"seed", CLI_VALUE},
    [Q_TYPE] = {"q-type", CLI_VALUE},
    [KV_TYPE] = {"kv-type", CLI_VALUE},
    [OUT_TYPE] = {"out-type", CLI_VALUE},
    [ARITH] = {"arith", CLI_VALUE},
    [ISA] = {"isa", CLI_VALUE},
    [TUNING] = {"tuning", CLI_VALUE},
    [THREADS] = {"threads", CLI_VALUE},
    [TIME] = {"time", CLI_FLAG},
    [HELP] = {"help", CLI_FLAG},
};

static const int inputs[] = {Q, K, V, MASK, BIAS, ALIBI, SINKS}; /* the options that name files to be read */
enum { INPUTS = sizeof inputs / sizeof *inputs };

/* ---- Values of options ------------------------------------------------------------------------------------------------- */

/* Reads a finite number. A number so small that it would become 0 is refused, since 0 has a meaning of its own. */
static bool parse_float(const char *text, float *value) {
    char *rest;
    errno = 0;
    *value = strtof(text, &rest);
    return *text > ' ' && rest != text && !*rest && isfinite(*value) && (*value != 0 || !errno);
}

/* Returns the index of a name in names, or -1. */
static int parse_name(const char *name, int count, const char *const *names) {
    while (count-- > 0 && strcmp(name, names[count]) != 0) {
    }
    return count;
}

/* True if Q and O, or if kv, K and V may have the type. */
static bool allowed_type(rapt_type type, bool kv) {
    const rapt_type_class class_of = rapt_type_class_of(type);
    return class_of == RAPT_CLASS_ELEMENT || (kv && (class_of == RAPT_CLASS_WEIGHT || class_of == RAPT_CLASS_CACHE));
}

/* Reads the value of an option that is a type. */
static int read_type(const char *option, const char *name, bool kv, rapt_type *type) {
    *type = rapt_type_of_name(name);
    if (allowed_type(*type, kv)) return 0;
    char known[RAPT_TYPE_LIMIT * 12];
    size_t used = 0;
    int left = 0;
    for (int t = 0; t < RAPT_TYPE_LIMIT; t++) left += allowed_type((rapt_type)t, kv);
    for (int t = 0; t < RAPT_TYPE_LIMIT; t++) {
        if (!allowed_type((rapt_type)t, kv)) continue;
        const char *after = --left > 1 ? ", " : left == 1 ? " or " : "";
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", rapt_type_name((rapt_type)t), after);
    }
    return cli_fail(CLI_RUN, "--%s %s: %s is needed", option, name, known);
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------------ */

/* Fails unless two numbers, of what the tensors a and b have, are equal. */
static int match(const tensor *a, int64_t of_a, const tensor *b, int64_t of_b, const char *what) {
    if (of_a == of_b) return 0;
    return cli_fail(CLI_RUN, "%s: %s %" PRId64 ", but %s has %" PRId64, a->path, what, of_a, b->path, of_b);
}

/* ---- The run ----------------------------------------------------------------------------------------------------------- */

/* The starts of a ragged batch: entry b has the tokens at[b] .. at[b + 1] - 1. */
typedef struct starts {
    int32_t *at; /* null: the batch is not ragged */
    int64_t entries;
} starts;

/* The state of the command. */
typedef struct job {
    const char *value[OPTIONS]; /* of each option, as cli_parse sets them */
    bool bshd;
    int64_t threads, page_size, seed;
    starts q_starts, k_starts;
    tensor q, k, v;
    broadcast mask, bias, slopes, sinks;
    pages pages;
    rapt_desc desc;
    rapt_tuning tuning;
    rapt_plan plan;
    rapt_args args;
    int32_t *lengths; /* keys of each entry; null: all */
    void *o;
    float *lse;
    void *workspace;
    rapt_pool *pool;
    output out, lse_out;
} job;

/* Reads the value of an option that is a list of starts. */
static int read_starts(const char *name, const char *text, starts *s) {
    const char *rest = text;
    int64_t least = 0, numbers = 1;
    for (const char *c = text; *c; c++) numbers += *c == ',';
    s->entries = numbers - 1;
    s->at = tensor_buffer(numbers, sizeof *s->at);
    if (!s->at) return cli_fail(CLI_RUN, "--%s: no memory", name);
    for (int64_t i = 0; i < numbers; i++) {
        if (numbers < 2 || !cli_integer(&rest, i + 1 < numbers ? ',' : '\0', least, i ? RAPT_MAX_LENGTH : 0, &least))
            return cli_fail(CLI_RUN, "--%s %s: two integers or more are needed, the first 0, and none below the one before", name,
                            text);
        s->at[i] = (int32_t)least;
    }
    return 0;
}

/* Reads the options for masks, batches and the cache, without opening files. */
static int read_features(job *j) {
    static const char *const ariths[] = {"exact", "int8", "bf16"}; /* in the order of rapt_arith */
    const char *const *value = j->value;
    rapt_desc *d = &j->desc;
    const struct {
        int option;
        int64_t min, max, *to;
    } integers[] = {{PREFIX, 0, RAPT_MAX_LENGTH, &d->prefix},
                    {CHUNK, 1, RAPT_MAX_LENGTH, &d->local_chunk},
                    {PAGE_SIZE, 1, 65536, &j->page_size},
                    {SEED, 0, INT64_MAX, &j->seed}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const char *name = options[integers[i].option].name, *text = value[integers[i].option];
        if (text && !cli_integer(&text, '\0', integers[i].min, integers[i].max, integers[i].to))
            return cli_fail(CLI_RUN, "--%s %s: an integer from %" PRId64 " to %" PRId64 " is needed", name, text, integers[i].min,
                            integers[i].max);
    }
    if (value[SEED] && !value[PAGE_SIZE]) return cli_fail(CLI_RUN, "--seed: it orders pages, --page-size is missing");
    if (value[SOFTCAP] && !(parse_float(value[SOFTCAP], &d->softcap) && d->softcap > 0))
        return cli_fail(CLI_RUN, "--softcap %s: a finite number above 0 is needed", value[SOFTCAP]);
    if (value[ARITH]) {
        const int arith = parse_name(value[ARITH], 3, ariths);
        if (arith < 0) return cli_fail(CLI_RUN, "--arith %s: exact, int8 or bf16 is needed", value[ARITH]);
        d->arith = (rapt_arith)arith;
    }
    if (value[CU_Q] && read_starts("cu-q", value[CU_Q], &j->q_starts)) return CLI_ERROR;
    if (value[CU_K] && read_starts("cu-k", value[CU_K], &j->k_starts)) return CLI_ERROR;
    if (value[CU_Q] && value[CU_K] && j->q_starts.entries != j->k_starts.entries)
        return cli_fail(CLI_RUN, "--cu-k %s: %" PRId64 " entries, but --cu-q has %" PRId64, value[CU_K], j->k_starts.entries,
                        j->q_starts.entries);
    return 0;
}

/* Reads all options, without opening files. */
static int read_options(job *j, int argc, char **argv) {
    static const char *const layouts[2] = {"bhsd", "bshd"}, *const alignments[3] = {"", "bottom-right", "top-left"};
    const char *const *value = j->value;
    if (cli_parse(CLI_RUN, options, OPTIONS, argc, argv, j->value)) return CLI_ERROR;
    if (value[HELP]) return 0;
    for (int i = Q; i <= OUT; i++)
        if (!value[i] && !(i == OUT && value[TIME])) return cli_fail(CLI_RUN, "--%s is missing", options[i].name);
    for (size_t i = 0; i < INPUTS; i++)
        if (value[inputs[i]] && !strcmp(value[inputs[i]], OUTPUT_STANDARD))
            return cli_fail(CLI_RUN, "--%s -: standard input is not read, since inputs are mapped into memory; give a file",
                            options[inputs[i]].name);
    rapt_desc *d = &j->desc;
    rapt_desc_init(d);
    if (value[LAYOUT]) {
        const int layout = parse_name(value[LAYOUT], 2, layouts);
        if (layout < 0) return cli_fail(CLI_RUN, "--layout %s: bhsd or bshd is needed", value[LAYOUT]);
        j->bshd = layout == 1;
    }
    if (value[CAUSAL]) {
        const int alignment = parse_name(value[CAUSAL], 3, alignments);
        if (alignment < 0) return cli_fail(CLI_RUN, "--causal %s: bottom-right or top-left is needed", value[CAUSAL]);
        d->causal = alignment == 2 ? RAPT_CAUSAL_TOP_LEFT : RAPT_CAUSAL_BOTTOM_RIGHT;
    }
    const char *text = value[WINDOW];
    if (text && !(cli_integer(&text, ',', -1, RAPT_MAX_LENGTH, &d->window_left) &&
                  cli_integer(&text, '\0', -1, RAPT_MAX_LENGTH, &d->window_right)))
        return cli_fail(CLI_RUN, "--window %s: two integers L,R from -1 to %" PRId32 " are needed", value[WINDOW],
                        RAPT_MAX_LENGTH);
    if (value[SCALE] && !parse_float(value[SCALE], &d->scale))
        return cli_fail(CLI_RUN, "--scale %s: a finite number in the range of f32 is needed", value[SCALE]);
    for (int i = Q_TYPE; i <= OUT_TYPE; i++) {
        rapt_type *type = i == Q_TYPE ? &d->q.type : i == KV_TYPE ? &d->k.type : &d->o.type;
        if (value[i] && read_type(options[i].name, value[i], i == KV_TYPE, type)) return CLI_ERROR;
    }
    if (read_features(j)) return CLI_ERROR;
    j->threads = 1;
    text = value[THREADS];
    if (text && !cli_integer(&text, '\0', 1, 1024, &j->threads))
        return cli_fail(CLI_RUN, "--threads %s: an integer from 1 to 1024 is needed", value[THREADS]);
    d->threads = j->threads;
    d->isa = value[ISA];
    rapt_tuning_init(&j->tuning);
    if (value[TUNING] && rapt_tuning_parse(value[TUNING], &j->tuning)) {
        char line[CLI_LINE_BYTES];
        rapt_tuning_parse_explain(value[TUNING], &j->tuning, line, sizeof line);
        return cli_fail(CLI_RUN, "--tuning: %s", line);
    }
    d->tuning = &j->tuning;
    return cli_check_isa(CLI_RUN, value[ISA]);
}

/* Returns the queries or keys of an entry. */
static int64_t entry_tokens(const starts *s, int64_t tokens, int64_t b) { return s->at ? s->at[b + 1] - s->at[b] : tokens; }

/* Returns the queries or keys of the longest entry. */
static int64_t longest(const starts *s, int64_t tokens) {
    int64_t most = s->at ? 0 : tokens;
    for (int64_t b = 0; b < s->entries; b++)
        if (entry_tokens(s, tokens, b) > most) most = entry_tokens(s, tokens, b);
    return most;
}

/* Sets the batch, by the files or by the starts, and checks that both agree. */
static int match_batch(job *j) {
    const starts *given = j->q_starts.at ? &j->q_starts : &j->k_starts;
    const char *option = j->q_starts.at ? "--cu-q" : "--cu-k";
    j->desc.batch = given->at ? given->entries : j->q.batch;
    for (int i = Q; i <= V; i++) {
        const tensor *t = i == Q ? &j->q : i == K ? &j->k : &j->v;
        const starts *s = i == Q ? &j->q_starts : &j->k_starts;
        if (!s->at && t->batch != j->desc.batch && given->at)
            return cli_fail(CLI_RUN, "%s: batch %" PRId64 ", but %s has %" PRId64 " entries", t->path, t->batch, option,
                            given->entries);
        if (!s->at && match(t, t->batch, &j->q, j->desc.batch, "batch")) return CLI_ERROR;
        if (s->at && s->at[s->entries] != t->tokens)
            return cli_fail(CLI_RUN, "--cu-%c %s: it must end with the %" PRId64 " tokens of %s", i == Q ? 'q' : 'k',
                            j->value[i == Q ? CU_Q : CU_K], t->tokens, t->path);
    }
    return 0;
}

/* Reads the key lengths, which pages also need if they are not given. */
static int read_lengths(job *j) {
    const char *text = j->value[KV_LENS];
    const int64_t batch = j->desc.batch;
    if (text && batch == 0) return cli_fail(CLI_RUN, "--kv-lens %s: the batch is empty", text);
    if (!text && !j->page_size) return 0;
    j->lengths = tensor_buffer(batch, sizeof *j->lengths);
    if (!j->lengths) return cli_fail(CLI_RUN, "no memory for the key lengths");
    for (int64_t b = 0; b < batch; b++) {
        const int64_t keys = entry_tokens(&j->k_starts, j->k.tokens, b);
        int64_t length = keys;
        if (text && !cli_integer(&text, b + 1 < batch ? ',' : '\0', 0, keys, &length))
            return cli_fail(CLI_RUN,
                            "--kv-lens %s: %" PRId64 " integer%s from 0 to %" PRId64 " are needed, one for each batch entry",
                            j->value[KV_LENS], batch, batch == 1 ? "" : "s", keys);
        j->lengths[b] = (int32_t)length;
    }
    return 0;
}

/* Returns the end of a refusal of heads: a hint at the other layout, if the heads would divide there. */
static const char *layout_hint(const job *j) {
    const bool apart = j->q.array.dims > 2 && j->k.array.dims > 2 && !j->q_starts.at && !j->k_starts.at;
    if (!apart || j->k.tokens == 0 || j->q.tokens % j->k.tokens) return "";
    return j->bshd ? ": with --layout bhsd they do" : ": with --layout bshd they do";
}

/* Opens and loads the arrays that are broadcast. */
static int read_broadcasts(job *j) {
    rapt_desc *d = &j->desc;
    const int64_t to[4] = {d->batch, d->heads, longest(&j->q_starts, d->q_len), longest(&j->k_starts, d->kv_len)};
    const struct {
        int option;
        broadcast *from;
        rapt_layout *layout;
    } all[] = {
        {MASK, &j->mask, &d->mask}, {BIAS, &j->bias, &d->bias}, {ALIBI, &j->slopes, &d->slopes}, {SINKS, &j->sinks, &d->sinks}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const bool per_key = all[i].option == MASK || all[i].option == BIAS;
        broadcast *b = all[i].from;
        if (!j->value[all[i].option]) continue;
        if (broadcast_open(b, j->value[all[i].option], all[i].option == MASK, per_key ? 4 : 2, to) ||
            broadcast_load(b, per_key ? b->array.type : RAPT_F32, per_key ? to[3] : 1))
            return CLI_ERROR;
        *all[i].layout = b->layout;
    }
    if (j->value[ALIBI]) d->alibi = RAPT_ALIBI_DISTANCE;
    return 0;
}

/* Loads K or V, converted to a type (0: that of its file), and moves it to pages if there are any. */
static int load_cache(const job *j, tensor *t, rapt_type type, const pages_entries *entries) {
    const bool quantized = type > RAPT_BF16;
    if (tensor_load(t, type && !quantized ? type : t->array.type) || (quantized && tensor_quantize(t, type))) return CLI_ERROR;
    return j->page_size ? pages_scatter(&j->pages, t, entries, j->bshd || j->k_starts.at) : 0;
}

static rapt_scales scales_of(const tensor *t) {
    const rapt_layout *l = &t->scales_layout;
    return (rapt_scales){t->scales != NULL, l->batch_stride, l->head_stride, l->token_stride, 0};
}

/* Loads K and V, and describes them. */
static int read_cache(job *j, rapt_type type) {
    rapt_desc *d = &j->desc;
    const pages_entries entries = {d->batch, j->lengths, j->k_starts.at};
    if (j->page_size && pages_assign(&j->pages, j->page_size, &entries, (uint64_t)j->seed)) return CLI_ERROR;
    if (load_cache(j, &j->k, type, &entries) || load_cache(j, &j->v, type, &entries)) return CLI_ERROR;
    if (j->page_size) {
        d->kv_len = longest(&j->k_starts, d->kv_len);
        d->page_size = j->page_size;
        d->pages = j->pages.count;
        d->table.type = RAPT_I32;
    } else {
        d->k_starts = j->k_starts.at;
    }
    d->k = j->k.layout;
    d->v = j->v.layout;
    d->k_scales = scales_of(&j->k);
    d->v_scales = scales_of(&j->v);
    return 0;
}

/* Opens the files and completes the description. */
static int read_inputs(job *j) {
    tensor *q = &j->q, *k = &j->k, *v = &j->v;
    rapt_desc *d = &j->desc;
    const rapt_type kv_type = d->k.type, q_type = d->q.type, o_type = d->o.type;
    const tensor_order order = j->bshd ? TENSOR_BSHD : TENSOR_BHSD, kv_order = j->k_starts.at ? TENSOR_RAGGED : order;
    if (tensor_open(q, j->value[Q], j->q_starts.at ? TENSOR_RAGGED : order) || tensor_open(k, j->value[K], kv_order) ||
        tensor_open(v, j->value[V], kv_order))
        return CLI_ERROR;
    if (match_batch(j) || match(k, k->channels, q, q->channels, "channels") || match(v, v->heads, k, k->heads, "heads") ||
        match(v, v->tokens, k, k->tokens, "tokens"))
        return CLI_ERROR;
    if (q->heads % k->heads)
        return cli_fail(CLI_RUN, "%s: heads %" PRId64 ", which do not divide the %" PRId64 " of %s%s", k->path, k->heads,
                        q->heads, q->path, layout_hint(j));
    d->heads = q->heads;
    d->kv_heads = k->heads;
    d->q_len = q->tokens;
    d->kv_len = k->tokens;
    d->d_k = q->channels;
    d->d_v = v->channels;
    if (k->tokens == 0) j->page_size = 0; /* without keys there are no pages */
    if (read_lengths(j) || read_broadcasts(j) || tensor_load(q, q_type ? q_type : q->array.type) || read_cache(j, kv_type))
        return CLI_ERROR;
    d->q = q->layout;
    d->q_starts = j->q_starts.at;
    d->o = (j->bshd || j->q_starts.at ? rapt_layout_bshd : rapt_layout_bhsd)(o_type ? o_type : d->q.type, d->heads, d->q_len,
                                                                             d->d_v);
    if (j->value[LSE]) d->lse = rapt_layout_bhsd(RAPT_F32, d->heads, d->q_len, 1);
    return 0;
}

static int unwritable(const char *path) { return cli_fail(CLI_RUN, "%s: it cannot be written: %s", path, strerror(errno)); }

static int locate(output *out, const char *path) {
    if (!path) return 0;
    if (!output_locate(out, path)) return unwritable(path);
    return out->terminal ? cli_fail(CLI_RUN, "%s: it is a terminal, which would show bytes; give a file or a pipe", path) : 0;
}

/* Locates both outputs, and checks that they are different files and neither is an input. */
static int locate_outputs(job *j) {
    const struct {
        int option;
        output *to;
    } all[] = {{OUT, &j->out}, {LSE, &j->lse_out}};
    for (int n = 0; n < 2; n++) {
        const char *path = j->value[all[n].option];
        if (locate(all[n].to, path)) return CLI_ERROR;
        for (size_t i = 0; path && i < INPUTS; i++)
            if (j->value[inputs[i]] && output_is_file(all[n].to, j->value[inputs[i]]))
                return cli_fail(CLI_RUN, "%s: --%s and --%s are the same file, and an input is not overwritten", path,
                                options[all[n].option].name, options[inputs[i]].name);
    }
    if (j->out.target && j->lse_out.target && output_is_output(&j->out, &j->lse_out))
        return cli_fail(CLI_RUN, "%s: --out and --lse are the same file", j->value[LSE]);
    return 0;
}

/* Runs the plan. */
static int attend(job *j) {
    const rapt_status status = rapt_run_parallel(&j->plan, &j->args, j->threads, rapt_pool_for, j->pool);
    if (!status) return 0;
    char line[CLI_LINE_BYTES];
    rapt_args_explain(&j->plan, &j->args, j->threads, line, sizeof line);
    return cli_fail(CLI_RUN, "%s: %s", rapt_status_string(status), line);
}

/* Plans, creates the output, the workspace and the pool, and runs once. */
static int prepare_and_attend(job *j) {
    const rapt_desc *d = &j->desc;
    size_t bytes = 0;
    rapt_status status = rapt_plan_init(&j->plan, d);
    if (status) {
        char line[CLI_LINE_BYTES];
        rapt_plan_explain(d, line, sizeof line);
        return cli_fail(CLI_RUN, "%s: %s", rapt_status_string(status), line);
    }
    status = rapt_workspace_size(&j->plan, j->threads, &bytes);
    if (status) return cli_fail(CLI_RUN, "the workspace: %s", rapt_status_string(status));
    const int64_t rows = j->q.batch * d->heads * d->q_len;
    bytes += RAPT_WORKSPACE_ALIGNMENT - bytes % RAPT_WORKSPACE_ALIGNMENT;
    j->o = tensor_buffer(rows * d->d_v, convert_size(d->o.type));
    j->lse = j->value[LSE] ? tensor_buffer(rows, sizeof *j->lse) : NULL;
    j->workspace = aligned_create(RAPT_WORKSPACE_ALIGNMENT, bytes);
    j->pool = rapt_pool_create(j->threads);
    if (!j->o || (j->value[LSE] && !j->lse) || !j->workspace)
        return cli_fail(CLI_RUN, "no memory for the output and the workspace");
    if (!j->pool) return cli_fail(CLI_RUN, "--threads %" PRId64 ": that many could not be started", j->threads);
    rapt_args_init(&j->args);
    j->args.q = j->q.data;
    j->args.k = j->k.data;
    j->args.v = j->v.data;
    j->args.o = j->o;
    j->args.lse = j->lse;
    j->args.kv_lengths = j->lengths;
    j->args.k_scales = j->k.scales;
    j->args.v_scales = j->v.scales;
    j->args.mask = j->mask.data;
    j->args.bias = j->bias.data;
    j->args.slopes = j->slopes.data;
    j->args.sinks = j->sinks.data;
    j->args.table = j->pages.table;
    j->args.table_starts = j->pages.starts;
    j->args.workspace = j->workspace;
    j->args.workspace_bytes = bytes;
    return attend(j);
}

/* ---- The time ---------------------------------------------------------------------------------------------------------- */

/* Returns how many (query, key) pairs a head attends to over the whole batch, by positions alone: masks and biases are ignored.
 */
static double attended_pairs(const job *j) {
    const rapt_desc *d = &j->desc;
    double pairs = 0;
    if (!d->q_len || !d->kv_len) return 0; /* saves a loop over any number of empty entries */
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t queries = entry_tokens(&j->q_starts, d->q_len, b);
        const int64_t keys = j->lengths ? j->lengths[b] : entry_tokens(&j->k_starts, d->kv_len, b);
        for (int64_t i = 0; i < queries; i++) {
            const int64_t at = d->causal == RAPT_CAUSAL_TOP_LEFT ? i : i + keys - queries;
            int64_t first = 0, end = keys;
            if (d->causal && at + 1 < end) end = at + 1;
            if (d->window_right >= 0 && at + d->window_right + 1 < end) end = at + d->window_right + 1;
            if (d->prefix > end) end = d->prefix < keys ? d->prefix : keys;
            if (d->window_left >= 0 && at - d->window_left > 0) first = at - d->window_left;
            if (d->local_chunk) {
                const int64_t chunk = at / d->local_chunk - (at % d->local_chunk < 0); /* rounded down */
                if (chunk * d->local_chunk > first) first = chunk * d->local_chunk;
                if ((chunk + 1) * d->local_chunk < end) end = (chunk + 1) * d->local_chunk;
            }
            if (first < end) pairs += (double)(end - first);
        }
    }
    return pairs;
}

/* Times the run, and prints the median. */
static int measure(job *j) {
    enum { AT_LEAST = 5, AT_MOST = 4096 };
    double seconds[AT_MOST], total = 0;
    int runs = 0;
    while (runs < AT_LEAST || (total < 0.5 && runs < AT_MOST)) {
        const double start = clock_now();
        if (attend(j)) return CLI_ERROR;
        seconds[runs] = clock_now() - start;
        total += seconds[runs++];
    }
    const double median = measure_quantile(seconds, runs, 0.5);
    const rapt_desc *d = &j->desc;
    const double flops = attended_pairs(j) * (double)(d->heads * (2 * d->d_k + 2 * d->d_v));
    rapt_plan_info info = {.size = sizeof info};
    rapt_plan_query(&j->plan, &info);
    FILE *const to = j->out.standard || j->lse_out.standard ? stderr : stdout; /* text must not be mixed with an array */
    fprintf(to, "time %.6g ms (median of %d runs), %.4g GFLOP/s, kernel %s, path %s, threads %" PRId64 "\n", 1e3 * median, runs,
            median > 0 ? 1e-9 * flops / median : 0, info.isa, info.path, j->threads);
    return 0;
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------------- */

/* Writes the outputs. Neither appears under its name before both are complete and everything has been printed. */
static int write_outputs(job *j) {
    const rapt_desc *d = &j->desc;
    const int dims = j->q.array.dims;
    const int64_t bhs[3] = {d->batch, d->heads, d->q_len};
    int64_t shape[NPY_MAX_DIMS];
    memcpy(shape, j->q.array.shape, sizeof shape);
    shape[dims - 1] = d->d_v;
    const struct {
        const char *path;
        output *to;
        rapt_type type;
        int dims;
        const int64_t *shape;
        const void *data;
    } all[] = {{j->value[OUT], &j->out, d->o.type, dims, shape, j->o},
               {j->value[LSE], &j->lse_out, RAPT_F32, dims - 1, &bhs[NPY_MAX_DIMS - dims], j->lse}};
    for (int i = 0; i < 2; i++)
        if (all[i].path &&
            !(output_open(all[i].to) && npy_write(all[i].to->file, all[i].type, all[i].dims, all[i].shape, all[i].data) &&
              output_close(all[i].to)))
            return unwritable(all[i].path);
    if (cli_flush()) return CLI_ERROR;
    for (int i = 0; i < 2; i++)
        if (all[i].path && !output_publish(all[i].to)) return unwritable(all[i].path);
    return 0;
}

/* Unmaps the inputs before outputs get their names, since Windows does not replace a file that is mapped. */
static void close_inputs(job *j) {
    npy_array *const all[] = {&j->q.array,    &j->k.array,      &j->v.array,    &j->mask.array,
                              &j->bias.array, &j->slopes.array, &j->sinks.array};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) npy_close(all[i]);
}

static int run(job *j, int argc, char **argv) {
    if (read_options(j, argc, argv)) return CLI_ERROR;
    if (j->value[HELP]) {
        fputs(help, stdout);
        return 0;
    }
    if (locate_outputs(j)) return CLI_ERROR;
    if (read_inputs(j) || prepare_and_attend(j)) return CLI_ERROR;
    if (j->value[TIME] && measure(j)) return CLI_ERROR;
    close_inputs(j);
    return write_outputs(j);
}

int cli_run(int argc, char **argv) {
    job j;
    memset(&j, 0, sizeof j);
    const int status = run(&j, argc, argv);
    rapt_pool_destroy(j.pool);
    output_discard(&j.out);
    output_discard(&j.lse_out);
    aligned_destroy(j.workspace);
    free(j.lse);
    free(j.o);
    free(j.lengths);
    free(j.q_starts.at);
    free(j.k_starts.at);
    pages_free(&j.pages);
    broadcast_close(&j.mask);
    broadcast_close(&j.bias);
    broadcast_close(&j.slopes);
    broadcast_close(&j.sinks);
    tensor_close(&j.q);
    tensor_close(&j.k);
    tensor_close(&j.v);
    return status;
}
