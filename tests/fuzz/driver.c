/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target once for each file given: the corpus as a test, with any compiler. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    static uint8_t data[1 << 16];
    printf("1..%d\n", argc - 1);
    for (int n = 1; n < argc; n++) {
        FILE *file = fopen(argv[n], "rb");
        if (!file) {
            perror(argv[n]);
            return 1;
        }
        const size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        LLVMFuzzerTestOneInput(data, size); /* ends the program where something does not hold */
        printf("ok %d - %s\n", n, argv[n]);
    }
    return 0;
}
