/* SPDX-License-Identifier: Apache-2.0 */
/* glibc: the versions that functions of threads have had since the beginning, for the pool of the Python package. What is built
 * on a system of today, where they were moved to libc and given new versions (2.32, 2.34), would run on none of before, though
 * they are the same. (Drepper 2011, "How To Write Shared Libraries", section 3.) It is included before everything else. */
#ifndef RAPT_GLIBC_H
#define RAPT_GLIBC_H

#define _POSIX_C_SOURCE 200809L /* as in dispatch/pool/pool.c, before features.h chooses */
#include <features.h>

#if defined(__GLIBC__) && defined(__x86_64__) && defined(__LP64__)
#define RAPT_FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__GLIBC__) && defined(__aarch64__) && defined(__LP64__)
#define RAPT_FIRST_VERSION "GLIBC_2.17"
#endif

#ifdef RAPT_FIRST_VERSION
__asm__(".symver pthread_create, pthread_create@" RAPT_FIRST_VERSION "\n"
        ".symver pthread_join, pthread_join@" RAPT_FIRST_VERSION "\n"
        ".symver pthread_once, pthread_once@" RAPT_FIRST_VERSION "\n"
        ".symver pthread_sigmask, pthread_sigmask@" RAPT_FIRST_VERSION);
#endif

#endif
