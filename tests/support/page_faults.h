/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that may touch pages which are closed (fence.h), as those of tests do when what they test is wrong. */
#ifndef RAPT_TESTS_PAGE_FAULTS_H
#define RAPT_TESTS_PAGE_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

static void *fault_return[5]; /* of the compiler's setjmp, for the C library's longjmp would unwind what lies between */
__attribute__((noreturn)) static void leave_fault(void) { __builtin_longjmp(fault_return, 1); }

/* Goes on there instead, on a stack that is as a call has it. */
static LONG CALLBACK catch_fault(EXCEPTION_POINTERS *fault) {
    if (fault->ExceptionRecord->ExceptionCode != EXCEPTION_ACCESS_VIOLATION) return EXCEPTION_CONTINUE_SEARCH;
    fault->ContextRecord->Rip = (DWORD64)(uintptr_t)leave_fault;
    fault->ContextRecord->Rsp = (fault->ContextRecord->Rsp & ~(DWORD64)15) - 40;
    return EXCEPTION_CONTINUE_EXECUTION;
}

/* Calls it; false if it has met closed pages, where it ends. */
__attribute__((noinline)) static bool meets_no_fault(void (*call)(void *arg), void *arg) {
    void *const catcher = AddVectoredExceptionHandler(1, catch_fault);
    volatile bool met = true;
    if (!__builtin_setjmp(fault_return)) call(arg), met = false;
    RemoveVectoredExceptionHandler(catcher);
    return !met;
}
#else
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf fault_return;
static void catch_fault(int number) { (void)number, siglongjmp(fault_return, 1); }

/* Calls it; false if it has met closed pages, where it ends. */
static bool meets_no_fault(void (*call)(void *arg), void *arg) {
    static const int numbers[] = {SIGSEGV, SIGBUS}; /* Linux sends the one, macOS the other */
    struct sigaction before[2], action = {.sa_handler = catch_fault};
    volatile bool met = true;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 2; i++) sigaction(numbers[i], &action, &before[i]);
    if (!sigsetjmp(fault_return, 1)) call(arg), met = false;
    for (int i = 0; i < 2; i++) sigaction(numbers[i], &before[i], NULL);
    return !met;
}
#endif

#endif
