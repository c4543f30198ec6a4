/* SPDX-License-Identifier: Apache-2.0 */
/* seq2seq: numbers, dates, times and money, from English to digits and back, by a Transformer. */
#include "search.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: seq2seq [options] TEXT...\n"
    "       seq2seq [options] --file FILE | --test FILE\n"
    "\n"
    "Writes English numbers, ordinals, fractions, years, dates, times and money in digits, and digits in English:\n"
    "\n"
    "  seq2seq \"the twenty-third of March nineteen ninety-nine\" '$12.50'\n"
    "\n"
    "  --file FILE     each line of FILE\n"
    "  --test FILE     each line of FILE is a text, a tab, and what it should become: says how many do, and which do not\n"
    "  --model FILE    the weights, a safetensors file; default: the one beside the source\n"
    "  --beam N        hypotheses of the search, 1 to 64; 1 is greedy; default 4\n"
    "  --batch N       sentences that are decoded together, 1 to 4096; default 16. It does not change the result\n"
    "  --threads N     1 to 1024; default 1. It does not change the result\n"
    "  --isa NAME      the kernel; default: the best one that can run here\n"
    "  --hash          before each result a hash of all logits that led to it\n"
    "  --verify        translates greedily, then compares the logits of the decoder run step by step with those of the decoder\n"
    "                  run once over all tokens: they must have the same bits\n"
    "  --help\n"
    "\n"
    "Exit status: 0 success, 1 --verify found a difference, 2 an error, told in one line on standard error.\n";

typedef struct options {
    const char *model, *file, *test, *isa;
    long beam, batch, threads;
    int hash, verify, help;
    char **texts;  /* what is translated, and ... */
    char **wanted; /* ... what it should become, with test */
    long count;
} options;

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...) {
    char line[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++) /* what is told may have line ends */
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    fprintf(stderr, "seq2seq: %s\n", line);
    return 2;
}

/* ---- What is wanted -------------------------------------------------------------------------------------------------- */

static int number(const char *name, const char *text, long most, long *value) {
    char *end;
    errno = 0;
    *value = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : 0;
    if (*value < 1 || *value > most || errno || *end) return fail("%s: '%s' is not a number from 1 to %ld", name, text, most);
    return 0;
}

static int parse(int argc, char **argv, options *o) {
    *o = (options){.model = SEQ2SEQ_MODEL, .batch = 16, .threads = 1, .texts = argv};
    int only_texts = 0;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (only_texts || strncmp(name, "--", 2) != 0) o->texts[o->count++] = argv[i];
        else if (!name[2]) only_texts = 1;
        else if (!strcmp(name, "--help")) o->help = 1;
        else if (!strcmp(name, "--hash")) o->hash = 1;
        else if (!strcmp(name, "--verify")) o->verify = 1;
        else {
            const char **string = !strcmp(name, "--model")  ? &o->model
                                  : !strcmp(name, "--file") ? &o->file
                                  : !strcmp(name, "--test") ? &o->test
                                  : !strcmp(name, "--isa")  ? &o->isa
                                                            : NULL;
            long *integer = !strcmp(name, "--beam")      ? &o->beam
                            : !strcmp(name, "--batch")   ? &o->batch
                            : !strcmp(name, "--threads") ? &o->threads
                                                         : NULL;
            if (!string && !integer) return fail("there is no option '%s'; see seq2seq --help", name);
            if (!value) return fail("%s: a value is missing", name);
            if (string) *string = value;
            else if (number(name, value, integer == &o->beam ? MAX_BEAM : integer == &o->batch ? 4096 : 1024, integer)) return 2;
            i++;
        }
    }
    if (o->help) return 0;
    if ((o->count > 0) + !!o->file + !!o->test != 1)
        return fail("either TEXT... or --file or --test is needed; see seq2seq --help");
    if (o->verify && (o->beam || o->hash || o->test)) return fail("--verify goes with neither --beam nor --hash nor --test");
    if (!o->beam) o->beam = o->verify ? 1 : 4;
    return 0;
}

/* The bytes of a file and a terminator, or null after an error. */
static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    *bytes = 0;
    if (!file) return fail("%s: %s", path, strerror(errno)), NULL;
    size_t most = 1 << 15;
    do {
        most *= 2;
        text = present(realloc(text, most + 1));
        *bytes += fread(text + *bytes, 1, most - *bytes, file);
    } while (*bytes == most);
    text[*bytes] = 0;
    if (ferror(file)) {
        fail("%s: %s", path, strerror(errno));
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

/* Cuts text into o->texts, and with --test into o->wanted. */
static int split(options *o, char *text, size_t bytes) {
    const char *path = o->test ? o->test : o->file;
    o->texts = NULL;
    if (strlen(text) != bytes) return fail("%s: not a text file", path);
    long lines = 1;
    for (const char *at = text; *at; at++) lines += *at == '\n';
    o->texts = present(malloc((size_t)lines * sizeof *o->texts));
    o->wanted = present(malloc((size_t)lines * sizeof *o->wanted));
    while (*text) {
        char *end = text + strcspn(text, "\n"), *next = end + (*end == '\n');
        *end = 0;
        o->texts[o->count] = text;
        o->wanted[o->count++] = NULL;
        if (o->test) {
            char *tab = strchr(text, '\t');
            if (!tab) return fail("%s, line %ld: there is no tab", path, o->count);
            *tab = 0;
            o->wanted[o->count - 1] = tab + 1;
            tab[1 + strcspn(tab + 1, "\t\r")] = 0;
        }
        text = next;
    }
    return o->count ? 0 : fail("%s: there are no lines", path);
}

/* ---- What is done ---------------------------------------------------------------------------------------------------- */

/* FNV-1a, 64 bits. */
static unsigned long long hash(const void *data, size_t bytes) {
    unsigned long long h = 0xcbf29ce484222325;
    for (const unsigned char *at = data; bytes; at++, bytes--) h = (h ^ *at) * 0x100000001b3;
    return h;
}

/* The decoder run over all tokens of sentences that were translated greedily. The number of rows of logits, or -1 where they
 * differ. */
static long verify(runner *r, const sentence *sentences, char **texts, long count) {
    const int pieces = r->model->vocabulary.count;
    const size_t row_bytes = (size_t)pieces * sizeof(float);
    int32_t *starts = present(calloc(2 * ((size_t)count + 1), sizeof *starts)), *rows = starts + count + 1;
    for (long b = 0; b < count; b++) {
        starts[b + 1] = starts[b] + sentences[b].source_count;
        rows[b + 1] = rows[b] + (int32_t)sentences[b].logit_rows;
    }
    const size_t tokens = (size_t)(starts[count] > rows[count] ? starts[count] : rows[count]);
    int32_t *ids = present(malloc(tokens * sizeof *ids));
    float *logits = present(malloc((size_t)rows[count] * row_bytes));
    encoding memory = {.entries = count, .starts = starts};
    for (long b = 0; b < count; b++)
        memcpy(ids + starts[b], sentences[b].source, (size_t)sentences[b].source_count * sizeof *ids);
    encode(r, ids, &memory);
    for (long b = 0; b < count; b++) {
        ids[rows[b]] = TOKEN_START;
        memcpy(ids + rows[b] + 1, sentences[b].output, (size_t)(sentences[b].logit_rows - 1) * sizeof *ids);
    }
    decode_all(r, &memory, rows, ids, logits);
    long result = rows[count];
    for (long b = 0; b < count; b++)
        for (int64_t i = 0; i < sentences[b].logit_rows; i++)
            if (memcmp(logits + (rows[b] + i) * pieces, sentences[b].logits + i * pieces, row_bytes) != 0 && result >= 0) {
                printf("\"%s\": other logits for token %lld\n", texts[b], (long long)i);
                result = -1;
            }
    encoding_free(r, &memory);
    free(logits);
    free(ids);
    free(starts);
    return result;
}

static void print(const options *o, const vocabulary *v, const sentence *s, const char *text, const char *wanted, long *right) {
    char result[1 << 15];
    tokens_to_text(v, s->output, s->output_count, result, sizeof result);
    const int is_right = wanted && !strcmp(result, wanted);
    *right += is_right;
    if (o->verify || is_right) return;
    if (o->hash) printf("%016llx  ", hash(s->logits, (size_t)s->logit_rows * (size_t)v->count * sizeof *s->logits));
    if (wanted) printf("\"%s\" became \"%s\", not \"%s\"\n", text, result, wanted);
    else printf("%s\n", result);
}

/* All texts, o->batch at a time. */
static int translate(const options *o, runner *r) {
    const vocabulary *v = &r->model->vocabulary;
    sentence *sentences = present(calloc((size_t)o->batch, sizeof *sentences));
    char error[256];
    long right = 0, rows = 0;
    int status = 0;
    for (long first = 0; first < o->count && !status; first += o->batch) {
        const long count = o->count - first < o->batch ? o->count - first : o->batch;
        for (long b = 0; b < count; b++) {
            sentences[b].source_count = text_to_tokens(v, o->texts[first + b], sentences[b].source, error, sizeof error);
            if (sentences[b].source_count < 0) return fail("%s", error); /* memory: all else has been looked at */
        }
        search(r, sentences, count, (int)o->beam, o->hash || o->verify);
        if (o->verify) {
            const long compared = verify(r, sentences, o->texts + first, count);
            status = compared < 0;
            rows += compared;
        }
        for (long b = 0; b < count; b++) {
            print(o, v, &sentences[b], o->texts[first + b], o->wanted ? o->wanted[first + b] : NULL, &right);
            free(sentences[b].logits);
            sentences[b].logits = NULL, sentences[b].logit_rows = 0;
        }
        if (o->file || o->test) fprintf(stderr, "\r%ld of %ld", first + count, o->count);
    }
    if (o->file || o->test) fputc('\n', stderr);
    if (o->test && !status) printf("%ld of %ld right (%.1f %%)\n", right, o->count, 100.0 * (double)right / (double)o->count);
    if (o->verify && !status)
        printf("%ld texts, %ld tokens: step by step and all at once, the same bits of logits\n", o->count, rows);
    free(sentences);
    return status;
}

static int run(options *o) {
    char error[SAFETENSORS_FAULT_BYTES], *text = NULL;
    int32_t tokens[MAX_INPUT];
    model m;
    size_t bytes;
    if (o->isa && rapt_isa_force(o->isa) != RAPT_OK)
        return fail("--isa %s: %s", o->isa, rapt_status_string(rapt_isa_force(o->isa)));
    const char *isa;
    const rapt_status chosen = rapt_isa_current(&isa);
    if (chosen != RAPT_OK) return fail("RAPT_ISA: %s", rapt_status_string(chosen));
    if (model_open(&m, o->model, error)) return fail("%s: %s", o->model, error);
    runner r = {.model = &m};
    int status = 0;
    const char *path = o->test ? o->test : o->file;
    if (path) {
        text = read_file(path, &bytes);
        status = text ? split(o, text, bytes) : 2;
    }
    for (long i = 0; i < o->count && !status; i++)
        if (text_to_tokens(&m.vocabulary, o->texts[i], tokens, error, sizeof error) < 0)
            status = path ? fail("%s, line %ld: %s", path, i + 1, error) : fail("text %ld: %s", i + 1, error);
    if (!status && !(r.pool = rapt_pool_create(o->threads))) status = fail("%ld threads cannot be had", o->threads);
    if (!status) status = translate(o, &r);
    runner_free(&r);
    rapt_pool_destroy(r.pool);
    model_close(&m);
    if (text) { /* else the texts are those of the command */
        free(o->texts);
        free(o->wanted);
        free(text);
    }
    return status;
}

int main(int argc, char **argv) {
    options o;
    int status = parse(argc, argv, &o);
    if (status) return status;
    if (o.help) fputs(help, stdout);
    else status = run(&o);
    if (fflush(stdout) || ferror(stdout)) return fail("standard output: %s", strerror(errno));
    return status;
}
