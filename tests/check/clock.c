/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "clock.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

double clock_now(void) {
    LARGE_INTEGER ticks, of_a_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&of_a_second);
    return (double)ticks.QuadPart / (double)of_a_second.QuadPart;
}
#else
#include <time.h>

double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#endif
