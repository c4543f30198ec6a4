/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target once for each file of a folder: the corpus as a test, with any compiler. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

int main(int argc, char **argv) {
    static uint8_t data[1 << 16];
    struct dirent **names;
    const int files = argc == 2 ? scandir(argv[1], &names, visible, alphasort) : -1;
    if (files < 1) {
        fprintf(stderr, "usage: %s FOLDER, with at least one file\n", argv[0]);
        return 2;
    }
    printf("1..%d\n", files);
    for (int n = 0; n < files; n++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[1], names[n]->d_name);
        FILE *file = fopen(path, "rb");
        if (!file) {
            perror(path);
            return 1;
        }
        const size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size); /* ends the program where something does not hold */
        printf("ok %d - %s\n", n + 1, names[n]->d_name);
        free(names[n]);
    }
    free(names);
    return 0;
}
