/* SPDX-License-Identifier: Apache-2.0 */
/* llm: what a language model answers. */
#define _POSIX_C_SOURCE 200809L
#include "llm.h"
#include "output.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: llm [options] MODEL.gguf PROMPT\n"
    "\n"
    "  --tokens N       the most tokens of the answer; default 256\n"
    "  --threads N      1 to 1024; default: the processors there are\n"
    "  --chunk N        tokens of the prompt that are computed together, 1 to 65536; default 512\n"
    "  --lookup N       guesses up to N tokens, 0 to 64, from where the text had the last ones before; default 0\n"
    "  --temperature T  draws tokens, 0 to 100; default 0: takes the likeliest\n"
    "  --seed N         ... by a sequence of random numbers, 0 to 2^53; default 0\n"
    "  --save FILE      keeps what was computed of the prompt\n"
    "  --load FILE      takes it from there, as far as this prompt has the same tokens\n"
    "  --cache TYPE     stores keys and values as f32, f16 (the default), bf16, q8_0, ...; rapt info lists types\n"
    "  --plain          gives the model the prompt as it is, without a chat template\n"
    "  --ids            prints the tokens of the prompt, and ends\n"
    "  --hash           prints a hash of the logits of all tokens but the answer's last\n"
    "  --logits FILE    writes all logits, f32 as in memory, a row for each token, in the order in which they are computed\n"
    "  --help\n"
    "\n"
    "No bit of the logits depends on threads, chunk, lookup, save, load, or, within a rounding class, the kernel "
    "(RAPT_ISA=NAME).\n"
    "Exit status: 0 success, 2 an error, told in one line on standard error.\n";

/* Those with a number come first. */
enum { TOKENS, THREADS, CHUNK, LOOKUP, TEMPERATURE, SEED, NUMBERS };
enum { SAVE = NUMBERS, LOAD, LOGITS, CACHE, PLAIN, IDS, HASH, HELP, OPTIONS };
static const cli_option options[OPTIONS] = {
    {"tokens", CLI_VALUE}, {"threads", CLI_VALUE}, {"chunk", CLI_VALUE}, {"lookup", CLI_VALUE}, {"temperature", CLI_VALUE},
    {"seed", CLI_VALUE},   {"save", CLI_VALUE},    {"load", CLI_VALUE},  {"logits", CLI_VALUE}, {"cache", CLI_VALUE},
    {"plain", CLI_FLAG},   {"ids", CLI_FLAG},      {"hash", CLI_FLAG},   {"help", CLI_FLAG}};
static const double least[NUMBERS] = {0, 1, 1, 0, 0, 0}, most[NUMBERS] = {1 << 30, 1024, 65536, 64, 100, 0x1p53};
static double number[NUMBERS] = {256, 1, 512, 0, 0, 0};
static const char *value[OPTIONS];

static gguf file;
static tokenizer t;
static model m;
static output saved, listed;
static int32_t *tokens;        /* the prompt, then the answer */
static uint64_t *hashes;       /* of the logits after each of them */
static int64_t prompt, count;  /* tokens of the prompt, and of all */
static int64_t guessed, right; /* tokens that were guessed, and those of them that were taken */
static int32_t turn_end = -1;  /* a token that ends an answer, too */

/* Begins, ends and removes the file of an option, if that is given. It has its name when it is complete. */
static void begin(output *out, int option) {
    if (!value[option]) return;
    if (!output_locate(out, value[option])) FAIL("%s: %s", value[option], strerror(errno));
    if (output_is_file(out, file.path)) FAIL("%s: it is the model", value[option]);
    if (!output_open(out)) FAIL("%s: %s", value[option], strerror(errno));
}

static void finish(output *out, int option) {
    if (value[option] && !(output_close(out) && output_publish(out))) FAIL("%s: %s", value[option], strerror(errno));
}

static void discard(void) { output_discard(&saved), output_discard(&listed); }

/* n, or what the option says if that is less. */
static int64_t at_most(int64_t n, int option) { return (double)n < number[option] ? n : (int64_t)number[option]; }

void *present(void *memory) {
    if (!memory) FAIL("%s", strerror(ENOMEM));
    return memory;
}

void tell(const char *what, int64_t done, int64_t all) {
    fprintf(stderr, "\r%s %lld of %lld%s", what, (long long)done, (long long)all, done < all ? "" : "\n");
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* FNV-1a of words of 32 bits, which are the same numbers in either order of bytes. */
static uint64_t hash(uint64_t h, const void *words, size_t bytes) {
    uint32_t word;
    for (const char *at = words; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word)
        memcpy(&word, at, sizeof word), h = (h ^ word) * 0x100000001b3;
    return h;
}
static const uint64_t hash_start = 0xcbf29ce484222325;

static void parse(int argc, char **argv) {
    const bool asks = argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (argc < 3 && !asks) FAIL("a model and a prompt are needed; see llm --help");
    if (cli_parse("llm", options, OPTIONS, asks ? 1 : argc - 3, argv + 1, value) || cli_check_isa("llm", NULL)) exit(CLI_ERROR);
    if (processors > 1) number[THREADS] = processors < 1024 ? (double)processors : 1024;
    for (int i = 0; i < NUMBERS; i++) {
        char *end = "";
        if (value[i]) number[i] = strtod(value[i], &end);
        if (*end || !(number[i] >= least[i] && number[i] <= most[i]) || (i != TEMPERATURE && number[i] != floor(number[i])))
            FAIL("--%s %s: a number from %.0f to %.0f is needed", options[i].name, value[i], least[i], most[i]);
    }
}

/* ---- The prompt -------------------------------------------------------------------------------------------------------- */

/* Adds a mark, unless it is -1, and what a text consists of. */
static void add(int32_t mark, const char *text) {
    if (mark >= 0) tokens[count++] = mark;
    count += tokenizer_encode(&t, text, tokens + count);
}

/* Of chat templates only ChatML is known: turns between two marks. */
static void encode(const char *text) {
    static const char opening[] = "<|im_start|>", user[] = "user\n";
    const size_t bytes = sizeof user + strlen(text);
    const int32_t start = tokenizer_find(&t, opening), end = tokenizer_find(&t, "<|im_end|>");
    const gguf_text given = gguf_string(&file, "tokenizer.chat_template");
    char *const template = present(strndup(given.at, given.bytes)), *const turn = present(malloc(bytes));
    const bool known = start >= 0 && end >= 0 && strstr(template, opening), chat = known && !value[PLAIN];
    tokens = present(calloc(TOKENS_OF(bytes) + 64, sizeof *tokens));
    snprintf(turn, bytes, "%s%s", user, text);
    if (!known && !value[PLAIN])
        fputs("llm: no chat template that is known here, so the model gets the prompt as it is\n", stderr);
    add(chat ? start : t.begin, chat ? turn : text);
    if (chat) add(end, "\n"), add(start, "assistant\n"), turn_end = end;
    prompt = count;
    free(turn);
    free(template);
}

/* Computes the logits of n tokens of the last run, from its number `first` on, which is token `at` of all, and hashes them if
 * that is asked for. Returns the last. */
static const float *look(int64_t first, int64_t n, int64_t at) {
    const size_t bytes = (size_t)m.vocabulary * sizeof(float);
    const float *logits = model_logits(&m, first, n);
    if (value[LOGITS]) fwrite(logits, bytes, (size_t)n, listed.file);
    for (int64_t i = 0; i < n && (value[HASH] || value[SAVE]); i++)
        hashes[at + i] = hash(hash_start, logits + i * m.vocabulary, bytes);
    return logits + (n - 1) * m.vocabulary;
}

/* Runs what of the prompt is not in the cache, and returns the logits of its last token. */
static const float *read_prompt(void) {
    enum { TOGETHER = 64 };
    const bool all = value[HASH] || value[LOGITS] || value[SAVE];
    const float *last = NULL;
    while (m.tokens < prompt) {
        const int64_t first = m.tokens, n = at_most(prompt - first, CHUNK);
        model_run(&m, tokens + first, n);
        for (int64_t i = all ? 0 : n - 1; i < n; i += TOGETHER) last = look(i, n - i < TOGETHER ? n - i : TOGETHER, first + i);
        tell("prompt: token", m.tokens, prompt);
    }
    return last;
}

/* ---- The saved prompt -------------------------------------------------------------------------------------------------- */

/* A file begins with what must be the same, and a hash of what follows: hashes, tokens and pages, as in memory. */
typedef struct saved_head {
    uint64_t magic, model, rounding, cache, tokens, rest;
} saved_head;

static saved_head head_of(uint64_t n, uint64_t rest) {
    const char *isa;
    must(rapt_isa_current(&isa));
    const uint64_t rounding = (uint64_t)rapt_isa_rounding(isa)[0], of_model = hash(file.map.bytes, file.map.at, file.map.bytes);
    return (saved_head){0x726170742d6c6c32, of_model, rounding, m.cache, n, rest};
}

static uint64_t pages_of(int64_t n) { return (uint64_t)((n + PAGE_TOKENS - 1) / PAGE_TOKENS * m.page_bytes); }

static void save(void) {
    const void *const parts[] = {hashes, tokens, m.pages};
    const size_t n = (size_t)prompt, bytes[] = {n * sizeof *hashes, n * sizeof *tokens, (size_t)pages_of(prompt)};
    uint64_t rest = hash_start;
    for (int i = 0; i < 3; i++) rest = hash(rest, parts[i], bytes[i]);
    const saved_head head = head_of(n, rest);
    fwrite(&head, sizeof head, 1, saved.file);
    for (int i = 0; i < 3; i++) fwrite(parts[i], bytes[i], 1, saved.file);
    finish(&saved, SAVE);
}

static void load(const char *path) {
    file_map from;
    const char *const unreadable = map_open(&from, path);
    if (unreadable) FAIL("%s: %s", path, unreadable);
    const saved_head *const head = (const void *)from.at;
    const uint64_t n = from.bytes >= sizeof *head && head->tokens <= from.bytes / 4 ? head->tokens : 0;
    const uint64_t *const saved_hashes = (const void *)(head + 1);
    const int32_t *const saved_tokens = (const void *)(saved_hashes + n);
    const uint64_t rest = n * (sizeof *hashes + sizeof *tokens) + pages_of((int64_t)n);
    const bool complete = n && from.bytes == sizeof *head + rest;
    const saved_head wanted = head_of(n, complete ? hash(hash_start, saved_hashes, (size_t)rest) : 0);
    if (!complete || memcmp(head, &wanted, sizeof wanted) != 0)
        FAIL("%s: not a saved prompt of this model, with such a cache, on such a machine", path);
    /* The prompt's last token is run, for its logits. */
    while (m.tokens < (int64_t)n && m.tokens + 1 < prompt && saved_tokens[m.tokens] == tokens[m.tokens]) m.tokens++;
    memcpy(hashes, saved_hashes, (size_t)m.tokens * sizeof *hashes);
    memcpy(m.pages, saved_tokens + n, (size_t)pages_of(m.tokens));
}

/* ---- The answer -------------------------------------------------------------------------------------------------------- */

/* The softmax of the logits / temperature, as that of attention: they are the keys, the query is 1. */
static const float *softmax(const float *logits) {
    static room workspace, probabilities;
    const float query = 1;
    float unused;
    rapt_desc desc;
    rapt_plan plan;
    rapt_args args;
    rapt_desc_init(&desc), rapt_args_init(&args);
    desc.heads = desc.kv_heads = desc.q_len = desc.d_k = desc.d_v = 1, desc.kv_len = m.vocabulary;
    desc.q = desc.k = desc.v = desc.o = desc.scores = rapt_layout_bshd(RAPT_F32, 1, 1, 1);
    desc.scale = 1 / (float)number[TEMPERATURE], desc.scores_stage = RAPT_SCORES_WEIGHTS;
    args.q = &query, args.k = args.v = logits, args.o = &unused;
    args.scores = reserve(&probabilities, m.vocabulary * (int64_t)sizeof(float));
    must(rapt_plan_init(&plan, &desc));
    must(rapt_workspace_size(&plan, 1, &args.workspace_bytes));
    args.workspace = reserve(&workspace, (int64_t)args.workspace_bytes);
    must(rapt_run(&plan, &args));
    return probabilities.at;
}

/* A number from 0 to below 1: the high 53 bits of SplitMix64 (Steele, Lea & Flood 2014), which begins at the seed. */
static double draw(void) {
    static uint64_t steps;
    uint64_t z = (uint64_t)number[SEED] + ++steps * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* The next token: the likeliest, or the one in whose share a number falls that is drawn. The shares are in the order of the
 * vocabulary, from 0 on, and added as doubles; what rounding leaves below 1 is the likeliest token's. */
static int32_t choose(const float *logits) {
    int32_t likeliest = 0;
    for (int32_t i = 1; i < m.vocabulary; i++)
        if (logits[i] > logits[likeliest]) likeliest = i;
    if (number[TEMPERATURE] == 0) return likeliest;
    const float *const probabilities = softmax(logits);
    const double drawn = draw();
    double sum = 0;
    for (int32_t i = 0; i < m.vocabulary; i++)
        if ((sum += (double)probabilities[i]) > drawn) return i;
    return likeliest;
}

/* Puts up to `longest` tokens behind the text: those that stood behind the last three, two or one where these came before. */
static int64_t guess(int64_t longest) {
    for (int64_t same = 3; same && longest > 0; same--)
        for (int64_t at = count - same - 1; at >= 0; at--) {
            const int64_t between = count - same - at, n = between < longest ? between : longest;
            if (memcmp(tokens + at, tokens + count - same, (size_t)same * sizeof *tokens) != 0) continue;
            memcpy(tokens + count, tokens + at + same, (size_t)n * sizeof *tokens);
            return n;
        }
    return 0;
}

/* Adds a token to the answer, and returns whether more may follow. */
static bool take(int32_t token, int64_t limit) {
    const bool ends = token == t.end[0] || token == t.end[1] || token == turn_end;
    tokens[count++] = token;
    if (!ends) tokenizer_print(&t, token, stdout);
    fflush(stdout);
    return !ends && count < limit;
}

/* Guesses are run together with the token before them. As long as the tokens that logits lead to are those that were guessed,
 * their logits are there already: those that they would have had alone. */
static void answer(const float *logits, int64_t limit) {
    bool more = take(choose(logits), limit);
    while (more) {
        const int64_t n = guess(at_most(limit - count - 1, LOOKUP));
        bool same = true;
        model_run(&m, tokens + count - 1, n + 1);
        logits = look(0, n + 1, count - 1) - n * m.vocabulary;
        for (guessed += n; more && same; logits += m.vocabulary) {
            const int32_t next = choose(logits);
            same = count < m.tokens && next == tokens[count];
            right += same;
            more = take(next, limit);
        }
        m.tokens = count - 1;
    }
}

/* The status of the program, whose output is written. */
static int flushed(void) {
    if (fflush(stdout) || ferror(stdout)) FAIL("standard output: %s", strerror(errno));
    return 0;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    if (value[HELP]) return fputs(help, stdout), flushed();
    const char *const path = argv[argc - 2];
    const rapt_type cache = value[CACHE] ? rapt_type_of_name(value[CACHE]) : RAPT_F16;
    if (rapt_row_bytes(cache, 32) < 0 || rapt_row_bytes(cache, 32) == 32) /* bytes want scales */
        FAIL("--cache: f32, f16, bf16 or a type of groups is needed, such as q8_0");
    gguf_open(&file, path);
    atexit(discard);
    begin(&saved, SAVE);
    begin(&listed, LOGITS);
    tokenizer_open(&t, &file);
    encode(argv[argc - 1]);
    for (int64_t i = 0; value[IDS] && i < count; i++) printf("%d%c", (int)tokens[i], i + 1 < count ? ' ' : '\n');
    if (value[IDS]) return flushed();
    rapt_pool *const pool = rapt_pool_create((int64_t)number[THREADS]);
    if (!pool) FAIL("--threads: so many cannot be had");
    model_open(&m, &file, t.pieces.count, cache, pool);
    if (prompt < 1 || prompt >= m.context)
        FAIL("the prompt has %lld tokens: 1 to %lld are possible", (long long)prompt, (long long)m.context - 1);
    const int64_t limit = prompt + at_most(m.context - prompt, TOKENS);
    tokens = present(realloc(tokens, (size_t)limit * sizeof *tokens));
    hashes = present(calloc((size_t)limit, sizeof *hashes));
    model_reserve(&m, limit);
    if (value[LOAD]) load(value[LOAD]);
    const int64_t loaded = m.tokens;
    const double start = seconds();
    const float *logits = read_prompt();
    const double middle = seconds();
    if (value[SAVE]) save();
    if (count < limit) answer(logits, limit);
    const double end = seconds();
    finish(&listed, LOGITS);
    uint64_t all = hash_start;
    for (int64_t i = 0; i < prompt || i < count - 1; i++)
        all = hash(all, (uint32_t[]){(uint32_t)hashes[i], (uint32_t)(hashes[i] >> 32)}, sizeof *hashes);
    if (count > prompt) putchar('\n');
    if (value[HASH]) printf("%016llx\n", (unsigned long long)all);
    const int status = flushed();
    fprintf(stderr, "prompt: %lld tokens, %lld of them loaded; %.2f s, %.1f tokens/s\n", (long long)prompt, (long long)loaded,
            middle - start, (double)(prompt - loaded) / (middle - start));
    fprintf(stderr, "answer: %lld tokens, %lld of %lld guesses right; %.2f s, %.1f tokens/s\n", (long long)(count - prompt),
            (long long)right, (long long)guessed, end - middle, (double)(count - prompt) / (end - middle));
    rapt_pool_destroy(pool);
    return status;
}
