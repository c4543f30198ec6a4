/* SPDX-License-Identifier: Apache-2.0 */
/* llm: what a language model answers. */
#define _POSIX_C_SOURCE 200809L
#include "cli.h"
#include "model.h"
#include "output.h"
#include "tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: llm [options] MODEL.gguf PROMPT\n"
    "\n"
    "Prints what a language model answers, greedily unless --temperature is given.\n"
    "\n"
    "  --tokens N       the most tokens of the answer; default 256\n"
    "  --threads N      1 to 1024; default: the processors there are\n"
    "  --chunk N        tokens of the prompt that are computed together, 1 to 65536; default 512\n"
    "  --lookup N       guesses up to N tokens, 0 to 64, from where the text had the last ones before; default 0\n"
    "  --temperature T  draws tokens, 0 to 100; default 0: takes the likeliest\n"
    "  --top-k N        ... from the N likeliest, 1 to 1000; default 40\n"
    "  --top-p P        ... from the likeliest that together have the probability P, 0 to 1; default 0.95\n"
    "  --seed N         ... by a sequence of random numbers, 0 to 2^53; default 0\n"
    "  --save FILE      keeps what was computed of the prompt\n"
    "  --load FILE      takes it from there, as far as this prompt has the same tokens\n"
    "  --cache TYPE     stores keys and values as f32, f16 (the default), bf16, q8_0, ...; rapt info lists types\n"
    "  --isa NAME       the kernel, which rapt info lists; default: RAPT_ISA, or the best that can run here\n"
    "  --plain          gives the model the prompt as it is, without a chat template\n"
    "  --ids            prints the tokens of the prompt, and ends\n"
    "  --hash           prints a hash of the logits of all tokens but the answer's last\n"
    "  --logits FILE    writes all logits, f32 as in memory, a row for each token, in the order in which they are computed\n"
    "  --quiet          shows neither how far it is nor how long it took\n"
    "  --help\n"
    "\n"
    "No bit of the logits depends on threads, chunk, lookup, save, load, or, within a rounding class, isa.\n"
    "Exit status: 0 success, 2 an error, told in one line on standard error.\n";

/* Those with a number come first. */
enum { TOKENS, THREADS, CHUNK, LOOKUP, TEMPERATURE, TOP_K, TOP_P, SEED, NUMBERS };
enum { SAVE = NUMBERS, LOAD, LOGITS, CACHE, ISA, PLAIN, IDS, HASH, QUIET, HELP, OPTIONS };
static const cli_option options[OPTIONS] = {
    {"tokens", CLI_VALUE}, {"threads", CLI_VALUE}, {"chunk", CLI_VALUE}, {"lookup", CLI_VALUE}, {"temperature", CLI_VALUE},
    {"top-k", CLI_VALUE},  {"top-p", CLI_VALUE},   {"seed", CLI_VALUE},  {"save", CLI_VALUE},   {"load", CLI_VALUE},
    {"logits", CLI_VALUE}, {"cache", CLI_VALUE},   {"isa", CLI_VALUE},   {"plain", CLI_FLAG},   {"ids", CLI_FLAG},
    {"hash", CLI_FLAG},    {"quiet", CLI_FLAG},    {"help", CLI_FLAG}};
static const double least[NUMBERS] = {0, 1, 1, 0, 0, 1, 0, 0}, most[NUMBERS] = {1 << 30, 1024, 65536, 64, 100, 1000, 1, 0x1p53};
static double number[NUMBERS] = {256, 1, 512, 0, 0, 40, 0.95, 0};
static const char *value[OPTIONS];

static gguf file;
static tokenizer t;
static model m;
static rapt_pool *pool;
static output saved, listed;
static int32_t *tokens;        /* the prompt, then the answer */
static uint64_t *hashes;       /* of the logits after each of them; 0: not known */
static int64_t prompt, count;  /* tokens of the prompt, and of all */
static int64_t guessed, right; /* tokens that were guessed, and those of them that were taken */
static int32_t turn_end = -1;  /* a token that ends an answer, too */

static int fail(const char *what, const char *why) { return cli_fail("llm", "%s: %s", what, why); }

/* Begins and ends the file of an option, if that is given. The file appears when it is complete. */
static int begin(output *out, int option, const char *model_path) {
    if (!value[option]) return 0;
    if (!output_locate(out, value[option])) return fail(value[option], strerror(errno));
    if (output_is_file(out, model_path)) return fail(value[option], "it is the model");
    return output_open(out) ? 0 : fail(value[option], strerror(errno));
}

static int finish(output *out, int option) {
    return !value[option] || (output_close(out) && output_publish(out)) ? 0 : fail(value[option], strerror(errno));
}

/* n, or what the option says if that is less. */
static int64_t at_most(int64_t n, int option) { return (double)n < number[option] ? n : (int64_t)number[option]; }

static void tell(const char *what, int64_t done, int64_t all) {
    if (!value[QUIET]) fprintf(stderr, "\r%s %lld of %lld%s", what, (long long)done, (long long)all, done < all ? "" : "\n");
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

static int parse(int argc, char **argv) {
    const bool asks = argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (argc < 3 && !asks) return cli_fail("llm", "a model and a prompt are needed; see llm --help");
    if (cli_parse("llm", options, OPTIONS, asks ? 1 : argc - 3, argv + 1, value)) return CLI_ERROR;
    if (processors > 1) number[THREADS] = processors < 1024 ? (double)processors : 1024;
    for (int i = 0; i < NUMBERS; i++) {
        char *end = "";
        if (value[i]) number[i] = strtod(value[i], &end);
        const bool good =
            number[i] >= least[i] && number[i] <= most[i] && (i == TEMPERATURE || i == TOP_P || number[i] == floor(number[i]));
        if (*end || !good)
            return cli_fail("llm", "--%s %s: a number from %.0f to %.0f is needed", options[i].name, value[i], least[i], most[i]);
    }
    return cli_check_isa("llm", value[ISA]) || (value[ISA] && rapt_isa_force(value[ISA]) != RAPT_OK) ? CLI_ERROR : 0;
}

/* ---- The prompt ---------------------------------------------------------------------------------------------------------- */

/* Adds a mark, unless it is -1, and what a text consists of. */
static void add(int32_t mark, const char *text, size_t bytes) {
    if (mark >= 0) tokens[count++] = mark;
    const int64_t n = tokenizer_encode(&t, text, bytes, tokens + count);
    present(n < 0 ? NULL : tokens);
    count += n;
}

/* Of chat templates only plain ChatML is known: turns between two marks, first the system's if its words are there. */
static void encode(const char *text) {
    static const char opening[] = "<|im_start|>", closing[] = "<|im_end|>", user[] = "user\n", answers[] = "assistant\n";
    const int32_t start = tokenizer_find(&t, opening, strlen(opening)), end = tokenizer_find(&t, closing, strlen(closing));
    const gguf_text given = gguf_string(&file, "tokenizer.chat_template");
    char *template = present(strndup(given.at, given.bytes)), *system = strstr(template, "<|im_start|>system\n");
    const size_t words = system ? strcspn(system += strlen(opening), "<'\"") : 0, bytes = strlen(user) + strlen(text);
    char *turn = present(malloc(bytes + 1));
    tokens = present(malloc((words + bytes + 64) * sizeof *tokens));
    memcpy(turn, user, strlen(user));
    memcpy(turn + strlen(user), text, strlen(text) + 1);
    if (value[PLAIN] || start < 0 || end < 0 || !strstr(template, opening)) {
        if (!value[PLAIN] && !value[QUIET])
            fprintf(stderr, "llm: no chat template that is known here, so the model gets the prompt as it is\n");
        add(t.begin, text, strlen(text));
    } else {
        if (system && !strncmp(system + words, closing, strlen(closing))) add(start, system, words), add(end, "\n", 1);
        add(start, turn, bytes);
        add(end, "\n", 1);
        add(start, answers, strlen(answers));
        turn_end = end;
    }
    free(turn);
    free(template);
    prompt = count;
}

/* Hashes the logits of n tokens of the last run, from its number `first` on, which is token `at` of all. Returns the last. */
static const float *look(int64_t first, int64_t n, int64_t at) {
    const size_t bytes = (size_t)m.vocabulary * sizeof(float);
    const float *logits = model_logits(&m, first, n);
    if (value[LOGITS]) fwrite(logits, bytes, (size_t)n, listed.file);
    for (int64_t i = 0; i < n; i++) hashes[at + i] = hash(hash_start, logits + i * m.vocabulary, bytes);
    return logits + (n - 1) * m.vocabulary;
}

/* Runs what of the prompt is not in the cache, and returns the logits of its last token. */
static const float *read_prompt(void) {
    enum { TOGETHER = 64 };
    const float *last = NULL;
    while (m.tokens < prompt) {
        const int64_t first = m.tokens, n = at_most(prompt - first, CHUNK);
        model_run(&m, tokens + first, n);
        for (int64_t i = value[HASH] || value[LOGITS] ? 0 : n - 1; i < n; i += TOGETHER)
            last = look(i, n - i < TOGETHER ? n - i : TOGETHER, first + i);
        tell("prompt: token", m.tokens, prompt);
    }
    return last;
}

/* ---- The saved prompt ---------------------------------------------------------------------------------------------------- */

/* A file begins with what must be the same, the number of tokens, and a hash of what follows: hashes, tokens, pages, as in
 * memory. */
enum { MAGIC, MODEL, CLASS, TYPE, SAVED, REST, HEAD };

static void describe(uint64_t head[HEAD]) {
    const char *isa;
    must(rapt_isa_current(&isa));
    head[MAGIC] = 0x726170742d6c6c31, head[MODEL] = hash(file.file.bytes, file.file.at, file.file.bytes);
    head[CLASS] = (uint64_t)rapt_isa_rounding(isa)[0], head[TYPE] = m.cache;
}

static size_t pages_of(int64_t n) { return (size_t)((n + PAGE_TOKENS - 1) / PAGE_TOKENS * m.page_bytes); }

static int save(void) {
    const void *const parts[] = {hashes, tokens, m.pages};
    const size_t n = (size_t)prompt, bytes[] = {n * sizeof *hashes, n * sizeof *tokens, pages_of(prompt)};
    uint64_t head[HEAD] = {[SAVED] = n, [REST] = hash_start};
    describe(head);
    for (int i = 0; i < 3; i++) head[REST] = hash(head[REST], parts[i], bytes[i]);
    fwrite(head, sizeof head, 1, saved.file);
    for (int i = 0; i < 3; i++) fwrite(parts[i], bytes[i], 1, saved.file);
    return finish(&saved, SAVE);
}

static int load(const char *path) {
    enum { EACH = sizeof *hashes + sizeof *tokens };
    uint64_t wanted[HEAD], head[HEAD] = {0};
    file_map from;
    const char *const unreadable = map_open(&from, path);
    if (unreadable) return fail(path, unreadable);
    if (from.bytes >= sizeof head) memcpy(head, from.at, sizeof head);
    describe(wanted);
    const uint8_t *const rest = from.at ? from.at + sizeof head : NULL;
    const int64_t n = head[SAVED] < from.bytes / EACH ? (int64_t)head[SAVED] : 0, hash_bytes = n * (int64_t)sizeof *hashes;
    const bool good = n && !memcmp(head, wanted, SAVED * sizeof *head) &&
                      from.bytes == sizeof head + (size_t)n * EACH + pages_of(n) &&
                      head[REST] == hash(hash_start, rest, from.bytes - sizeof head);
    for (; good && m.tokens < n && m.tokens + 1 < prompt; m.tokens++) { /* the last token is run, for its logits */
        memcpy(&hashes[m.tokens], rest + m.tokens * (int64_t)sizeof *hashes, sizeof *hashes);
        if (memcmp(&tokens[m.tokens], rest + hash_bytes + m.tokens * (int64_t)sizeof *tokens, sizeof *tokens) != 0) break;
        if (value[HASH] && !hashes[m.tokens]) break;
    }
    model_reserve(&m, m.tokens);
    if (rest && m.pages) memcpy(m.pages, rest + n * EACH, pages_of(m.tokens));
    map_close(&from);
    return good ? 0 : fail(path, "not a saved prompt of this model, with such a cache, on such a machine");
}

/* ---- The answer ---------------------------------------------------------------------------------------------------------- */

/* The softmax of n logits / temperature, as that of attention: they are the keys, the query is 1. */
static void softmax(const float *logits, int64_t n, float *probabilities) {
    static room workspace;
    const float query = 1;
    float unused;
    rapt_desc desc;
    rapt_plan plan;
    rapt_args args;
    rapt_desc_init(&desc), rapt_args_init(&args);
    desc.heads = desc.kv_heads = desc.q_len = desc.d_k = desc.d_v = 1, desc.kv_len = n;
    desc.q = desc.k = desc.v = desc.o = desc.scores = rapt_layout_bshd(RAPT_F32, 1, 1, 1);
    desc.scale = 1 / (float)number[TEMPERATURE], desc.scores_stage = RAPT_SCORES_WEIGHTS;
    args.q = &query, args.k = args.v = logits, args.o = &unused, args.scores = probabilities;
    must(rapt_plan_init(&plan, &desc));
    must(rapt_workspace_size(&plan, 1, &args.workspace_bytes));
    args.workspace = reserve(&workspace, (int64_t)args.workspace_bytes);
    must(rapt_run(&plan, &args));
}

/* A number from 0 to below 1: the high 53 bits of SplitMix64 (Steele, Lea & Flood 2014), which begins at the seed. */
static double draw(void) {
    static uint64_t steps;
    uint64_t z = (uint64_t)number[SEED] + ++steps * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* The next token. The likeliest are in order, those with the same logit in that of their numbers; sums are of doubles. */
static int32_t choose(const float *logits) {
    int32_t best[1000] = {0};
    float its_logits[1000], probabilities[1000];
    const int64_t most_kept = number[TEMPERATURE] > 0 ? (int64_t)number[TOP_K] : 1;
    int64_t n = 0, kept = 0, chosen = 0;
    for (int32_t i = 0; i < m.vocabulary; i++) {
        int64_t place = n;
        while (place && logits[i] > its_logits[place - 1]) place--;
        if (place == most_kept) continue;
        n += n < most_kept;
        memmove(best + place + 1, best + place, (size_t)(n - place - 1) * sizeof *best);
        memmove(its_logits + place + 1, its_logits + place, (size_t)(n - place - 1) * sizeof *its_logits);
        best[place] = i, its_logits[place] = logits[i];
    }
    if (n == 1) return best[0];
    softmax(its_logits, n, probabilities);
    double sum = 0;
    while (kept < n && (!kept || sum < number[TOP_P])) sum += (double)probabilities[kept++];
    double left = draw() * sum - (double)probabilities[0];
    while (left >= 0 && chosen + 1 < kept) left -= (double)probabilities[++chosen];
    return best[chosen];
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

static int run(const char *path, const char *text) {
    char fault[GGUF_FAULT_BYTES];
    const rapt_type cache = value[CACHE] ? rapt_type_of_name(value[CACHE]) : RAPT_F16;
    if (rapt_row_bytes(cache, 32) < 0 || rapt_row_bytes(cache, 32) == 32) /* bytes want scales */
        return fail("--cache", "f32, f16, bf16 or a type of groups is needed, such as q8_0");
    if (begin(&saved, SAVE, path) || begin(&listed, LOGITS, path)) return CLI_ERROR;
    if (!gguf_open(&file, path, fault) || !tokenizer_open(&t, &file, fault)) return fail(path, fault);
    encode(text);
    for (int64_t i = 0; value[IDS] && i < count; i++) printf("%d%c", (int)tokens[i], i + 1 < count ? ' ' : '\n');
    if (value[IDS]) return 0;
    if (!(pool = rapt_pool_create((int64_t)number[THREADS]))) return fail("--threads", "so many cannot be had");
    if (!model_open(&m, &file, cache, pool, tell, fault)) return fail(path, fault);
    if (prompt < 1 || prompt >= m.context)
        return cli_fail("llm", "the prompt has %lld tokens: 1 to %lld are possible", (long long)prompt, (long long)m.context - 1);
    const int64_t limit = prompt + at_most(m.context - prompt, TOKENS);
    tokens = present(realloc(tokens, (size_t)limit * sizeof *tokens));
    hashes = present(calloc((size_t)limit, sizeof *hashes));
    if (value[LOAD] && load(value[LOAD])) return CLI_ERROR;
    const int64_t loaded = m.tokens;
    const double start = seconds();
    const float *logits = read_prompt();
    const double middle = seconds();
    if (value[SAVE] && save()) return CLI_ERROR;
    if (count < limit) answer(logits, limit);
    const double end = seconds();
    if (finish(&listed, LOGITS)) return CLI_ERROR;
    uint64_t all = hash_start;
    for (int64_t i = 0; i < prompt || i < count - 1; i++)
        all = hash(all, (uint32_t[]){(uint32_t)hashes[i], (uint32_t)(hashes[i] >> 32)}, sizeof *hashes);
    if (count > prompt) putchar('\n');
    if (value[HASH]) printf("%016llx\n", (unsigned long long)all);
    if (value[QUIET]) return 0;
    fprintf(stderr, "prompt: %lld tokens, %lld of them loaded; %.2f s, %.1f tokens/s\n", (long long)prompt, (long long)loaded,
            middle - start, (double)(prompt - loaded) / (middle - start));
    fprintf(stderr, "answer: %lld tokens, %lld of %lld guesses right; %.2f s, %.1f tokens/s\n", (long long)(count - prompt),
            (long long)right, (long long)guessed, end - middle, (double)(count - prompt) / (end - middle));
    return 0;
}

int main(int argc, char **argv) {
    int status = parse(argc, argv);
    if (!status && value[HELP]) fputs(help, stdout);
    else if (!status) status = run(argv[argc - 2], argv[argc - 1]);
    if (!status && (fflush(stdout) || ferror(stdout))) status = fail("standard output", strerror(errno));
    output_discard(&saved);
    output_discard(&listed);
    model_close(&m);
    tokenizer_close(&t);
    gguf_close(&file);
    rapt_pool_destroy(pool);
    free(tokens);
    free(hashes);
    return status;
}
