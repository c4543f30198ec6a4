/* SPDX-License-Identifier: Apache-2.0 */
/* rapt info: the machine, as the library sees it. */
#include "cli.h"
#include "rapt.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cpu_name writes the name of the CPU, or "unknown". */
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

static void cpu_name(char name[64]) {
    unsigned words[12] = {0};
    if (__get_cpuid(0x80000004, &words[0], &words[1], &words[2], &words[3]))
        for (size_t i = 0; i < 3; i++)
            __get_cpuid(0x80000002 + (unsigned)i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    char brand[sizeof words + 1] = {0};
    memcpy(brand, words, sizeof words);
    size_t end = strlen(brand);
    while (end > 0 && brand[end - 1] == ' ') end--;
    brand[end] = '\0';
    const char *start = brand + strspn(brand, " ");
    snprintf(name, 64, "%s", *start ? start : "unknown");
}
#else
static void cpu_name(char name[64]) {
    unsigned implementer, part;
    char line[256];
    bool arm = false, found = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, 64, "unknown");
    while (file && !found && fgets(line, sizeof line, file)) {
        if (sscanf(line, "CPU implementer : %x", &implementer) == 1) arm = true;
        if (arm && sscanf(line, "CPU part : %x", &part) == 1) {
            snprintf(name, 64, "Arm implementer 0x%02x, part 0x%03x", implementer, part);
            found = true;
        }
    }
    if (file) fclose(file);
}
#endif

int cli_check_isa(const char *program, const char *name) {
    const char *asked = name ? name : getenv("RAPT_ISA"), *chosen;
    const rapt_status status = name ? rapt_isa_usable(name, NULL, 0) : rapt_isa_current(&chosen);
    if (!status) return 0;
    char reason[1024] = "";
    if (!asked) return cli_fail(program, "%s", rapt_status_string(status));
    if (status == RAPT_ERR_ISA_MISSING) {
        rapt_isa_usable(asked, reason, sizeof reason);
        return cli_fail(program, "%s%s: this machine lacks %s", name ? "--isa " : "RAPT_ISA=", asked, reason);
    }
    const char *known;
    size_t used = 0;
    for (int i = 0; (known = rapt_isa_name(i)) && used < sizeof reason; i++)
        used += (size_t)snprintf(reason + used, sizeof reason - used, " %s", known);
    return cli_fail(program, "%s%s: no kernel of that name; there are%s", name ? "--isa " : "RAPT_ISA=", asked, reason);
}

/* Prints a string with JSON's escapes. */
static void json_string(const char *text, size_t length) {
    putchar('"');
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') printf("\\%c", c);
        else if (c < ' ' || c > '~') printf("\\u%04x", c);
        else putchar(c);
    }
    putchar('"');
}

/* Prints words that are separated by spaces as a list of strings. */
static void json_words(const char *words) {
    const char *between = "";
    putchar('[');
    for (words += strspn(words, " "); *words; words += strspn(words, " ")) {
        const size_t length = strcspn(words, " ");
        fputs(between, stdout);
        json_string(words, length);
        words += length;
        between = ", ";
    }
    putchar(']');
}

/* Returns which tensors may have a type; null for a number that is no type. */
static const char *tensors_of(rapt_type type) {
    switch (rapt_type_class_of(type)) {
    case RAPT_CLASS_ELEMENT:
        return "any tensor";
    case RAPT_CLASS_WEIGHT:
        return "K, V and weights";
    case RAPT_CLASS_CACHE:
        return "K and V";
    case RAPT_CLASS_MASK:
        return "masks and tables";
    case RAPT_CLASS_MATRIX:
        return "weights";
    default:
        return NULL;
    }
}

/* Returns the bits of an element, including its share of what its group has in common. */
static double bits_of(rapt_type type) {
    const double bytes = (double)rapt_row_bytes(type, 256);
    return bytes > 0 ? bytes / 32 : type == RAPT_I32 ? 32 : type == RAPT_BIT ? 1 : 8;
}

/* Prints everything as JSON. */
static void print_json(const char *cpu, const char *features, const char *chosen, const char *self_check) {
    const char *name;
    char missing[1024];
    printf("{\n  \"version\": ");
    json_string(rapt_version(), strlen(rapt_version()));
    printf(",\n  \"cpu\": ");
    json_string(cpu, strlen(cpu));
    printf(",\n  \"features\": ");
    json_words(features);
    printf(",\n  \"kernels\": [");
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        const bool usable = rapt_isa_usable(name, missing, sizeof missing) == RAPT_OK;
        printf("%s\n    {\"name\": \"%s\", \"rounding\": \"%s\", \"usable\": %s, \"missing\": ", i ? "," : "", name,
               rapt_isa_rounding(name), usable ? "true" : "false");
        json_words(missing);
        putchar('}');
    }
    printf("\n  ],\n  \"types\": [");
    for (int type = 0, listed = 0; type < RAPT_TYPE_LIMIT; type++)
        if (tensors_of((rapt_type)type)) {
            printf("%s\n    {\"name\": ", listed++ ? "," : "");
            json_string(rapt_type_name((rapt_type)type), strlen(rapt_type_name((rapt_type)type)));
            printf(", \"tensors\": \"%s\", \"bits\": %g}", tensors_of((rapt_type)type), bits_of((rapt_type)type));
        }
    printf("\n  ],\n  \"chosen\": ");
    if (chosen) json_string(chosen, strlen(chosen));
    else printf("null");
    printf(",\n  \"self_check\": ");
    json_string(self_check, strlen(self_check));
    printf("\n}\n");
}

/* Prints everything for people to read. */
static void print_text(const char *cpu, const char *features, const char *chosen, const char *self_check) {
    const char *name;
    char missing[1024];
    printf("rapt      %s\ncpu       %s\nfeatures  %s\n\n%-11s %s\n", rapt_version(), cpu, features, "kernel", "rounding");
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        const bool usable = rapt_isa_usable(name, missing, sizeof missing) == RAPT_OK;
        printf("%-11s %-9s %s%s\n", name, rapt_isa_rounding(name), usable ? "can run" : "cannot run, the machine lacks ",
               usable ? chosen && !strcmp(name, chosen) ? ", chosen" : "" : missing);
    }
    printf("\n%-11s %-9s %s\n", "type", "bits", "of");
    for (int type = 0; type < RAPT_TYPE_LIMIT; type++)
        if (tensors_of((rapt_type)type))
            printf("%-11s %-9g %s\n", rapt_type_name((rapt_type)type), bits_of((rapt_type)type), tensors_of((rapt_type)type));
    printf("\nself check: %s\n", self_check);
}

int cli_info(int argc, char **argv) {
    enum { JSON, HELP, OPTIONS };
    static const cli_option options[OPTIONS] = {[JSON] = {"json", CLI_FLAG}, [HELP] = {"help", CLI_FLAG}};
    const char *value[OPTIONS], *chosen = NULL;
    if (cli_parse("rapt info", options, OPTIONS, argc, argv, value)) return CLI_ERROR;
    if (value[HELP]) {
        puts("usage: rapt info [--json]\n"
             "\n"
             "Prints the CPU, the features that were found, each kernel, its rounding class (kernels of one class give the same\n"
             "bits) and whether it can run here, and the one chosen. The environment variable RAPT_ISA chooses another. Then\n"
             "the storage types, and whether all kernels compute the bits that they must (as rapt check --self); exit status 1\n"
             "if not.\n"
             "\n"
             "  --json      the same as JSON\n"
             "  -h, --help  print this");
        return 0;
    }
    char cpu[64], features[1024], self_check[CLI_LINE_BYTES];
    cpu_name(cpu);
    rapt_cpu_features(features, sizeof features);
    rapt_isa_current(&chosen);
    const bool wrong = rapt_self_check(NULL, self_check, sizeof self_check);
    (value[JSON] ? print_json : print_text)(cpu, features, chosen, wrong ? self_check : "ok");
    return cli_check_isa("rapt info", NULL) ? CLI_ERROR : wrong;
}
