/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target once for each file of a folder: the corpus as a test, with any compiler. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The next one that is not hidden, or null. */
static const char *next_name(DIR *folder) {
    const struct dirent *entry;
    while ((entry = readdir(folder)) && entry->d_name[0] == '.') {
    }
    return entry ? entry->d_name : NULL;
}

int main(int argc, char **argv) {
    static uint8_t data[1 << 16];
    DIR *const folder = argc == 2 ? opendir(argv[1]) : NULL;
    int files = 0;
    while (folder && next_name(folder)) files++;
    if (files < 1) {
        fprintf(stderr, "usage: %s FOLDER, with at least one file\n", argv[0]);
        return 2;
    }
    printf("1..%d\n", files);
    rewinddir(folder);
    for (int n = 0; n < files; n++) {
        char path[4096];
        const char *const name = next_name(folder);
        snprintf(path, sizeof path, "%s/%s", argv[1], name);
        FILE *file = fopen(path, "rb");
        if (!file) {
            perror(path);
            return 1;
        }
        const size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size); /* ends the program where something does not hold */
        printf("ok %d - %s\n", n + 1, name);
    }
    closedir(folder);
    return 0;
}
