/* SPDX-License-Identifier: Apache-2.0 */
/* For builds.sh: a line for each kernel that can run here, with its class, what the library's check of itself says, and a hash of
 * what it makes of some problems, which is that of its class. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "rapt.h"

#include "hash.h"
#include "sample.h"

int main(void) {
    static const sample_calls library = {rapt_desc_init_sized, rapt_args_init_sized, rapt_plan_init_sized, rapt_run};
    static sample s;
    const char *name;
    char text[300];
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(name, NULL, 0) != RAPT_OK) continue;
        memset(&s, 0, sizeof s);
        const rapt_status checked = rapt_self_check(name, text, sizeof text), run = sample_run(&library, name, &s);
        printf("%s %s %s %016" PRIx64 " %s\n", name, rapt_isa_rounding(name), rapt_status_string(checked ? checked : run),
               hash_bytes(hash_start, &s, sizeof s), text);
    }
    return 0;
}
