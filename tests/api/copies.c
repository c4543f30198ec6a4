/* SPDX-License-Identifier: Apache-2.0 */
/* copies LIBRARY PLUGIN: copies of the library beside each other in a process, and copies that come and go. The program has one
 * of its own, whose symbols it exports; LIBRARY is the shared library, loaded from two places, and in a namespace of its own;
 * PLUGIN has the library and the pool within it. Ends with TAP. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rapt_pool.h"

#include "sample.h"
#include "tap.h"

/* Functions of a copy, as sample.h needs them, and some more. */
typedef struct copy {
    sample_calls sample;
    rapt_status (*self_check)(const char *isa, char *text, size_t bytes);
    rapt_status (*isa_force)(const char *name);
    rapt_status (*isa_current)(const char **name);
    rapt_pool *(*pool_create)(int64_t threads); /* null where there is no pool */
    void (*pool_destroy)(rapt_pool *pool);
    void (*pool_for)(void *pool, int64_t n, rapt_body body, void *arg);
} copy;

static const copy own = {.sample = {rapt_desc_init_sized, rapt_args_init_sized, rapt_plan_init_sized, rapt_run},
                         .self_check = rapt_self_check,
                         .isa_force = rapt_isa_force,
                         .isa_current = rapt_isa_current};

/* ISO C has no conversion of dlsym's result. */
static int find(void *handle, const char *name, void *function) {
    void *found = dlsym(handle, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static int find_all(void *handle, copy *c) {
    *c = (copy){.pool_create = NULL};
    find(handle, "rapt_pool_create", &c->pool_create), find(handle, "rapt_pool_destroy", &c->pool_destroy);
    find(handle, "rapt_pool_for", &c->pool_for);
    return find(handle, "rapt_desc_init_sized", &c->sample.desc_init_sized) &&
           find(handle, "rapt_args_init_sized", &c->sample.args_init_sized) &&
           find(handle, "rapt_plan_init_sized", &c->sample.plan_init_sized) && find(handle, "rapt_run", &c->sample.run) &&
           find(handle, "rapt_self_check", &c->self_check) && find(handle, "rapt_isa_force", &c->isa_force) &&
           find(handle, "rapt_isa_current", &c->isa_current);
}

static sample want, got;

/* Whether a copy, which is not the program's own, computes its bits. */
static int computes_the_same(const copy *c) {
    char text[300];
    memset(&got, 0, sizeof got);
    return c->sample.run != own.sample.run && c->self_check(NULL, text, sizeof text) == RAPT_OK &&
           sample_run(&c->sample, NULL, &got) == RAPT_OK && memcmp(&got, &want, sizeof want) == 0;
}

static void count_line(void *arg, const char *line) { (void)line, ++*(int *)arg; }

static int is_current(const copy *c, const char *name) {
    const char *current = "";
    return c->isa_current(&current) == RAPT_OK && strcmp(current, name) == 0;
}

/* What is set in one copy is not in the others, which do not call one another's functions. */
static void test_apart(const copy *a, const copy *b) {
    const char *usual;
    int lines = 0;
    const rapt_trace trace = {.body = count_line, .arg = &lines};
    if (rapt_isa_current(&usual) != RAPT_OK) usual = "";
    a->isa_force("scalar");
    tap_ok(is_current(a, "scalar") && is_current(b, usual) && is_current(&own, usual),
           "a kernel that is forced is so in one copy");
    a->isa_force(NULL);
    rapt_trace_to(&trace);
    int good = computes_the_same(a) && computes_the_same(b);
    tap_ok(good && lines == 0, "copies trace nothing in the program's: %d lines", lines);
    good = rapt_self_check(NULL, NULL, 0) == RAPT_OK;
    tap_ok(good && lines > 0, "which traces its own: %d lines", lines);
    rapt_trace_to(NULL);
}

/* A copy of the file at another path, which the loader takes for another library; null if it cannot be written. */
static void *open_elsewhere(const char *path) {
    char to[] = "/tmp/rapt-copies-XXXXXX", buffer[1 << 16];
    FILE *from = fopen(path, "rb");
    const int fd = mkstemp(to);
    if (!from || fd < 0) return NULL;
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, from)) > 0;)
        if (write(fd, buffer, n) != (ssize_t)n) break;
    fclose(from);
    close(fd);
    void *handle = dlopen(to, RTLD_NOW | RTLD_LOCAL);
    unlink(to);
    return handle;
}

static void test_beside_each_other(const char *path) {
    copy a, b;
    void *first = dlopen(path, RTLD_NOW | RTLD_LOCAL), *second = open_elsewhere(path);
    tap_ok(first && find_all(first, &a) && computes_the_same(&a), "the shared library beside the program's own copy");
    tap_ok(second && find_all(second, &b) && b.sample.run != a.sample.run && computes_the_same(&b), "and from another place");
    if (first && second) test_apart(&a, &b);
#if defined(LM_ID_NEWLM)
    copy c;
    void *third = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
    tap_ok(third && find_all(third, &c) && computes_the_same(&c), "and in a namespace of its own");
    if (third) dlclose(third);
#else
    printf("ok %d - a namespace of its own # SKIP there is no dlmopen\n", ++tap_count);
#endif
    if (second) dlclose(second);
    if (first) dlclose(first);
}

/* ---- Coming and going ---------------------------------------------------------------------------------------------------- */

static void count_call(void *arg, int64_t i) { ((int *)arg)[i]++; }

static int pool_works(const copy *c) {
    int calls[20] = {0}, good = 1;
    rapt_pool *pool = c->pool_create(3);
    if (!pool) return 0;
    c->pool_for(pool, 20, count_call, calls);
    c->pool_destroy(pool);
    for (int i = 0; i < 20; i++) good &= calls[i] == 1;
    return good;
}

static int come_and_go(const char *path, int with_sample) {
    copy c;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return 0;
    const int good = find_all(handle, &c) && c.isa_current(&(const char *){""}) == RAPT_OK &&
                     (!with_sample || computes_the_same(&c)) && (!c.pool_create || pool_works(&c));
    return dlclose(handle) == 0 && good && !dlopen(path, RTLD_NOW | RTLD_NOLOAD);
}

/* The process's pages of address space; 0 where nothing tells. */
static long pages_mapped(void) {
    char line[100];
    FILE *file = fopen("/proc/self/statm", "r");
    const int told = file && fgets(line, sizeof line, file);
    if (file) fclose(file);
    return told ? strtol(line, NULL, 10) : 0;
}

static int threads_now(void) {
    int threads = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder && (entry = readdir(folder));) threads += entry->d_name[0] != '.';
    if (folder) closedir(folder);
    return threads;
}

static void test_coming_and_going(const char *what, const char *path) {
    enum { FEW = 20, MANY = 500 };
    int good = 1;
    for (int i = 0; i < FEW; i++) good &= come_and_go(path, i == 0);
    const long before = pages_mapped();
    for (int i = 0; i < MANY; i++) good &= come_and_go(path, i == MANY - 1);
    const long after = pages_mapped();
    tap_ok(good, "%s, loaded and unloaded %d times, is gone each time", what, FEW + MANY);
    tap_ok(after <= before, "and the process does not grow: %ld pages, then %ld", before, after);
    tap_ok(threads_now() <= 1, "nor are threads left: %d", threads_now());
    const pid_t child = fork(); /* what the pool's copy asked to be told of forks is gone with it */
    if (child == 0) _exit(!come_and_go(path, 1));
    int status = -1;
    tap_ok(child > 0 && waitpid(child, &status, 0) == child && status == 0,
           "and a child that is forked then computes the same bits");
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0); /* or a child could print a line once more */
    tap_ok(sample_run(&own.sample, NULL, &want) == RAPT_OK, "the program's own copy");
    test_beside_each_other(argv[1]);
    test_coming_and_going("the library", argv[1]);
    test_coming_and_going("a plugin with library and pool", argv[2]);
    return tap_done();
}
