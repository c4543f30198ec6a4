/* SPDX-License-Identifier: Apache-2.0 */
/* Defines rapt_version and rapt_status_string. */
#include "rapt.h"

const char *rapt_version(void) { return RAPT_VERSION; }

const char *rapt_status_string(rapt_status status) {
    switch (status) {
    case RAPT_OK:
        return "success";
    case RAPT_ERR_NULL:
        return "a required pointer is null";
    case RAPT_ERR_STRUCT:
        return "a struct was not initialised, or is of an unknown version; or a plan has too little memory";
    case RAPT_ERR_SHAPE:
        return "a size is negative, zero where it may not be, or too large";
    case RAPT_ERR_HEADS:
        return "the number of query heads is not a multiple of that of key/value heads";
    case RAPT_ERR_TYPE:
        return "a tensor's type is unknown, or not allowed for that tensor";
    case RAPT_ERR_STRIDE:
        return "a stride is negative, a tensor exceeds the address space, or output elements overlap";
    case RAPT_ERR_SCALE:
        return "the scale is infinite";
    case RAPT_ERR_MASK:
        return "the causal mask is unknown, a side of the window is below -1, or a mask or bias has too few columns";
    case RAPT_ERR_KV_LENGTH:
        return "a key length is negative, or above the keys that there are";
    case RAPT_ERR_OVERLAP:
        return "an output or the workspace overlaps another buffer";
    case RAPT_ERR_WORKSPACE:
        return "the workspace is null or too small";
    case RAPT_ERR_ALIGNMENT:
        return "the workspace is not aligned to 64 bytes, or an array, or memory for a plan, not to its elements";
    case RAPT_ERR_ISA_UNKNOWN:
        return "no kernel of that name was built for this architecture";
    case RAPT_ERR_ISA_MISSING:
        return "this CPU, or its operating system, cannot run that kernel";
    case RAPT_ERR_RANGE:
        return "a phase, task, thread number or thread count is out of range";
    case RAPT_ERR_PLAN:
        return "the plan was not made by its init function";
    case RAPT_ERR_TABLE:
        return "a page, a start, a position or a length of a ragged, paged or ring batch is out of range";
    case RAPT_ERR_FEATURE:
        return "a feature's number is out of range, it lacks what it needs, or two features exclude each other";
    case RAPT_ERR_ARITH:
        return "the arithmetic is unknown, or the types of K and V, or of weights, do not allow it";
    case RAPT_ERR_UNUSED:
        return "a pointer is given for which the plan has no use";
    case RAPT_ERR_SELF_CHECK:
        return "a kernel does not have the bits that it must have: the library was not compiled as it must be";
    case RAPT_ERR_TUNING:
        return "a tuning is for another kernel, one of its numbers is out of range, or its line of text is wrong";
    case RAPT_ERR_PREPACKED:
        return "memory for prepacked weights is too small, or holds none that are of this layer and its kernel";
    case RAPT_ERR_FLOAT_MODE:
        return "the thread does not round to nearest, flushes denormal numbers to 0, or traps";
    }
    return "unknown status";
}
