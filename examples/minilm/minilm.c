/* SPDX-License-Identifier: Apache-2.0 */
/* minilm: how alike sentences are, by the sentence encoder all-MiniLM-L6-v2. */
#define _POSIX_C_SOURCE 200809L
#include "cli.h"
#include "encoder.h"
#include "npy.h"
#include "output.h"
#include "wordpiece.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "minilm"

static const char help[] =
    "usage: minilm [options] SENTENCE...\n"
    "       minilm [options] --file F.txt --out E.npy\n"
    "\n"
    "Prints the cosine similarities of the sentences, or writes embeddings.\n"
    "\n"
    "  --model DIR       where model.safetensors and vocab.txt are; default: where examples/minilm/fetch puts them\n"
    "  --threads N       1 to 1024; default: the processors there are. It does not change the bits\n"
    "  --isa NAME        the kernel (rapt info lists them); default: RAPT_ISA, or the best that can run here\n"
    "  --arith A         how to multiply: exact (the default), or bf16, rounded to that type as matrix units want it\n"
    "  --max-length N    tokens of a sentence, 2 to 512, [CLS] and [SEP] included; the rest is left out; default: 256\n"
    "  --batch N         sentences that are encoded together, 1 to 4096; default: 32. It does not change the bits\n"
    "  --file F          the sentences are the lines of a text file\n"
    "  --out E.npy       writes the embeddings, float32 [sentences, 384]\n"
    "  --tokens          prints the numbers of the tokens, a line for each sentence\n"
    "  --attention L     --out gets the attention weights of layer L (0 to 5) for a sentence, float32 [12, tokens, tokens]\n"
    "  --time N          encodes once, then N times more, and prints the seconds that each of these took, tokenizer included\n"
    "  --progress        shows on standard error how far it is, even where that is no terminal\n"
    "  --help\n"
    "\n"
    "What follows -- is a sentence, whatever it begins with.\n"
    "Exit status: 0 success, 2 an error, told in one line on standard error.\n";

enum { MODEL, THREADS, ISA, ARITH, MAX_LENGTH, BATCH, FILE_, OUT, TOKENS, ATTENTION, TIME, PROGRESS, HELP, OPTIONS };
static const cli_option options[OPTIONS] = {
    [MODEL] = {"model", CLI_VALUE},
    [THREADS] = {"threads", CLI_VALUE},
    [ISA] = {"isa", CLI_VALUE},
    [ARITH] = {"arith", CLI_VALUE},
    [MAX_LENGTH] = {"max-length", CLI_VALUE},
    [BATCH] = {"batch", CLI_VALUE},
    [FILE_] = {"file", CLI_VALUE},
    [OUT] = {"out", CLI_VALUE},
    [TOKENS] = {"tokens", CLI_FLAG},
    [ATTENTION] = {"attention", CLI_VALUE},
    [TIME] = {"time", CLI_VALUE},
    [PROGRESS] = {"progress", CLI_FLAG},
    [HELP] = {"help", CLI_FLAG},
};

typedef struct sentence {
    const char *text;
    size_t bytes;
} sentence;

typedef struct job {
    const char *value[OPTIONS];
    int64_t threads, max_length, batch, layer, repeats;
    rapt_arith arith;
    sentence *sentences;
    int64_t count;
    char *file;
    wordpiece vocabulary;
    encoder model;
    output out;
    int32_t *ids, *starts; /* of a batch */
    float *embeddings;
    float *weights; /* of attention, where they are wanted */
} job;

static int no_memory(void) { return cli_fail(PROGRAM, "%s", strerror(ENOMEM)); }

/* ---- What is asked for --------------------------------------------------------------------------------------------------- */

/* Splits the arguments into options, in place, and sentences. Returns how many options and values of options there are. */
static int split(job *j, int argc, char **argv) {
    int kept = 0, i = 0;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (argv[i][0] != '-' || !argv[i][1]) {
            j->sentences[j->count++] = (sentence){argv[i], strlen(argv[i])};
            continue;
        }
        bool has_value = false;
        for (int o = 0; o < OPTIONS; o++)
            has_value |= !strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, options[o].name) && options[o].kind == CLI_VALUE;
        argv[kept++] = argv[i];
        if (has_value && i + 1 < argc) argv[kept++] = argv[++i];
    }
    for (i++; i < argc; i++) j->sentences[j->count++] = (sentence){argv[i], strlen(argv[i])};
    return kept;
}

static int integer(const job *j, int option, int64_t least, int64_t most, int64_t *value) {
    const char *text = j->value[option];
    char *rest = NULL;
    if (!text) return 0;
    *value = *text >= '0' && *text <= '9' ? strtoll(text, &rest, 10) : -1;
    if (*value >= least && *value <= most && !*rest) return 0;
    return cli_fail(PROGRAM, "--%s %s: an integer from %" PRId64 " to %" PRId64 " is needed", options[option].name, text, least,
                    most);
}

static int parse(job *j, int argc, char **argv) {
    j->sentences = malloc(((size_t)argc + 1) * sizeof *j->sentences);
    if (!j->sentences) return no_memory();
    if (cli_parse(PROGRAM, options, OPTIONS, split(j, argc, argv), argv, j->value)) return CLI_ERROR;
    if (j->value[HELP]) return 0;
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    j->threads = processors < 1 ? 1 : processors > 1024 ? 1024 : processors;
    j->max_length = 256; /* of the model's sentence_bert_config.json */
    j->batch = 32;
    if (integer(j, THREADS, 1, 1024, &j->threads) || integer(j, MAX_LENGTH, 2, ENCODER_MOST_TOKENS, &j->max_length) ||
        integer(j, BATCH, 1, 4096, &j->batch) || integer(j, ATTENTION, 0, ENCODER_LAYERS - 1, &j->layer) ||
        integer(j, TIME, 1, 1000000, &j->repeats))
        return CLI_ERROR;

    const char *const *v = j->value;
    if (v[ARITH] && strcmp(v[ARITH], "exact") != 0 && strcmp(v[ARITH], "bf16") != 0)
        return cli_fail(PROGRAM, "--arith %s: exact or bf16 is needed", v[ARITH]);
    j->arith = v[ARITH] && !strcmp(v[ARITH], "bf16") ? RAPT_BF16_DOT : RAPT_EXACT;
    if (v[FILE_] && j->count) return cli_fail(PROGRAM, "sentences are given, and --file too");
    if (!v[FILE_] && !j->count) return cli_fail(PROGRAM, "no sentence is given; see minilm --help");
    if (v[TOKENS] && (v[OUT] || v[ATTENTION] || v[TIME]))
        return cli_fail(PROGRAM, "--tokens cannot be combined with --out, --attention or --time");
    if (v[ATTENTION] && (v[TIME] || !v[OUT]))
        return cli_fail(PROGRAM, "--attention needs --out, and cannot be combined with --time");
    if (v[FILE_] && !v[OUT] && !v[TOKENS] && !v[TIME]) return cli_fail(PROGRAM, "--file needs --out, --tokens or --time");
    if (v[OUT] && !output_locate(&j->out, v[OUT]))
        return cli_fail(PROGRAM, "%s: it cannot be written: %s", v[OUT], strerror(errno));
    return v[TOKENS] && !v[ISA] ? 0 : cli_check_isa(PROGRAM, v[ISA]);
}

/* ---- What is read -------------------------------------------------------------------------------------------------------- */

static int fail_file(const char *path) { return cli_fail(PROGRAM, "%s: %s", path, strerror(errno)); }

static int read_lines(job *j) {
    const char *path = j->value[FILE_];
    size_t bytes = 0, room = 0, lines = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return fail_file(path);
    while (!feof(file) && !ferror(file)) {
        if (room - bytes < 1 << 16) {
            char *larger = realloc(j->file, room = 2 * room + (1 << 17));
            if (!larger) break;
            j->file = larger;
        }
        bytes += fread(j->file + bytes, 1, room - bytes, file);
    }
    const bool good = feof(file) && !ferror(file);
    if (!good) fail_file(path);
    fclose(file);
    if (!good) return CLI_ERROR;

    const char *const end = j->file + bytes;
    for (const char *at = j->file; at < end; at++) lines += *at == '\n';
    lines += bytes && end[-1] != '\n';
    free(j->sentences);
    j->sentences = malloc((lines + 1) * sizeof *j->sentences);
    if (!j->sentences) return no_memory();
    for (const char *line = j->file; line < end; j->count++) {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        if (!next) next = end;
        j->sentences[j->count] = (sentence){line, (size_t)(next - line)};
        line = next + 1;
    }
    return 0;
}

/* The path of a file of the model; cut if it does not fit, and then not found. */
static void locate(const job *j, const char *name, char path[4096]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (j->value[MODEL]) snprintf(path, 4096, "%s/%s", j->value[MODEL], name);
    else if (cache && *cache) snprintf(path, 4096, "%s/rapt-minilm/%s", cache, name);
    else snprintf(path, 4096, "%s/.cache/rapt-minilm/%s", home ? home : "", name);
}

static int open_model(job *j) {
    char path[4096], fault[ENCODER_FAULT_BYTES];
    const char *hint = j->value[MODEL] ? "" : "; examples/minilm/fetch brings the model";
    locate(j, "vocab.txt", path);
    if (!wordpiece_open(&j->vocabulary, path, fault)) return cli_fail(PROGRAM, "%s: %s%s", path, fault, hint);
    if (j->vocabulary.count != ENCODER_VOCABULARY)
        return cli_fail(PROGRAM, "%s: it has %" PRId32 " pieces, the model's has %d", path, j->vocabulary.count,
                        ENCODER_VOCABULARY);
    if (j->value[TOKENS]) return 0;
    locate(j, "model.safetensors", path);
    if (encoder_open(&j->model, path, j->threads, j->value[ISA], j->arith, fault)) return 0;
    return cli_fail(PROGRAM, "%s: %s%s", path, fault, hint);
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The tokens of sentences first to end - 1, one after the other in j->ids. */
static void tokenize(job *j, int64_t first, int64_t end) {
    j->starts[0] = 0;
    for (int64_t i = first, at = 0; i < end; i++) {
        at += wordpiece_encode(&j->vocabulary, j->sentences[i].text, j->sentences[i].bytes, j->ids + at, (int32_t)j->max_length);
        j->starts[i - first + 1] = (int32_t)at;
    }
}

static int64_t end_of_batch(const job *j, int64_t first) { return j->count - first < j->batch ? j->count : first + j->batch; }

static int encode(job *j, bool progress) {
    const double start = now();
    for (int64_t first = 0, end; first < j->count; first = end) {
        end = end_of_batch(j, first);
        tokenize(j, first, end);
        const int64_t tokens = j->starts[end - first];
        encoder_attention attention = {(int)j->layer, NULL};
        if (j->value[ATTENTION]) {
            j->weights = malloc((size_t)(tokens * tokens) * ENCODER_HEADS * sizeof *j->weights);
            if (!j->weights) return no_memory();
            attention.weights = j->weights;
        }
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): main frees what j has */
        const char *fault = encoder_run(&j->model, j->ids, j->starts, end - first, j->embeddings + first * ENCODER_WIDTH,
                                        attention.weights ? &attention : NULL);
        if (fault) return cli_fail(PROGRAM, "%s", fault);
        if (progress)
            fprintf(stderr, "\r%" PRId64 " of %" PRId64 " sentences, %.0f a second%s", end, j->count,
                    (double)end / (now() - start), end < j->count ? "" : "\n");
    }
    return 0;
}

static int measure(job *j) {
    int status = encode(j, false);
    for (int64_t i = 0; i < j->repeats && !status; i++) {
        const double start = now();
        status = encode(j, false);
        if (!status) printf("%.6f\n", now() - start);
    }
    return status;
}

/* ---- What comes out ------------------------------------------------------------------------------------------------------ */

static void print_tokens(job *j) {
    for (int64_t i = 0; i < j->count; i++) {
        tokenize(j, i, i + 1);
        for (int32_t t = 0; t < j->starts[1]; t++) printf("%s%" PRId32, t ? " " : "", j->ids[t]);
        putchar('\n');
    }
}

/* A line, however long or odd the sentence is. */
static void print_sentence(const sentence *s) {
    enum { MOST = 60 };
    int shown = 0;
    for (size_t i = 0; i < s->bytes; i++) {
        const unsigned char c = (unsigned char)s->text[i];
        if ((c & 0xc0) != 0x80 && ++shown > MOST) break; /* a character begins */
        putchar(c < ' ' || c == 127 ? ' ' : c);
    }
    puts(shown > MOST ? "..." : "");
}

static void print_similarities(const job *j) {
    const int digits = snprintf(NULL, 0, "%" PRId64, j->count);
    printf("%*s", digits, "");
    for (int64_t i = 0; i < j->count; i++) printf("%8" PRId64, i + 1);
    putchar('\n');
    for (int64_t i = 0; i < j->count; i++) {
        printf("%*" PRId64, digits, i + 1);
        for (int64_t k = 0; k < j->count; k++) {
            double cosine = 0;
            for (int c = 0; c < ENCODER_WIDTH; c++)
                /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): the encoder has written them */
                cosine += (double)j->embeddings[i * ENCODER_WIDTH + c] * j->embeddings[k * ENCODER_WIDTH + c];
            printf("%8.4f", cosine);
        }
        printf("  ");
        print_sentence(&j->sentences[i]);
    }
}

static int write_out(job *j) {
    const bool attention = j->value[ATTENTION];
    const int64_t tokens = attention ? j->starts[1] : 0; /* NOLINT(clang-analyzer-core.uninitialized.Assign): of one sentence */
    const int64_t embeddings[2] = {j->count, ENCODER_WIDTH}, weights[3] = {ENCODER_HEADS, tokens, tokens};
    if (output_open(&j->out) &&
        npy_write(j->out.file, RAPT_F32, attention ? 3 : 2, attention ? weights : embeddings,
                  attention ? j->weights : j->embeddings) &&
        output_close(&j->out) && output_publish(&j->out))
        return 0;
    return cli_fail(PROGRAM, "%s: it cannot be written: %s", j->value[OUT], strerror(errno));
}

static int run(job *j) {
    if (j->value[FILE_] && read_lines(j)) return CLI_ERROR;
    if (j->value[ATTENTION] && j->count != 1)
        return cli_fail(PROGRAM, "--attention is for one sentence, %" PRId64 " are given", j->count);
    if (open_model(j)) return CLI_ERROR;
    const int64_t batch = end_of_batch(j, 0);
    j->ids = malloc((size_t)(batch * j->max_length + 1) * sizeof *j->ids);
    j->starts = malloc(((size_t)batch + 2) * sizeof *j->starts);
    j->embeddings = malloc(((size_t)j->count + 1) * ENCODER_WIDTH * sizeof *j->embeddings);
    if (!j->ids || !j->starts || !j->embeddings) return no_memory();
    if (j->value[TOKENS]) {
        print_tokens(j);
        return 0;
    }
    const bool progress = j->value[PROGRESS] || (j->value[FILE_] && isatty(STDERR_FILENO));
    if (j->repeats ? measure(j) : encode(j, progress)) return CLI_ERROR;
    if (j->value[OUT]) return write_out(j);
    if (!j->repeats) print_similarities(j);
    return 0;
}

int main(int argc, char **argv) {
    job j = {.layer = 0};
    int status = parse(&j, argc - 1, argv + 1);
    if (!status && j.value[HELP]) fputs(help, stdout);
    else if (!status) status = run(&j);
    if (!status && (fflush(stdout) || ferror(stdout))) status = cli_fail(PROGRAM, "standard output: %s", strerror(errno));
    output_discard(&j.out);
    wordpiece_close(&j.vocabulary);
    encoder_close(&j.model);
    free(j.ids);
    free(j.starts);
    free(j.embeddings);
    free(j.weights);
    free(j.file);
    free(j.sentences);
    return status;
}
