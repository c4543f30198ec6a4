# SPDX-License-Identifier: Apache-2.0
"""How calls run: on how many threads, of which pool, with which workspace."""
import os
import threading
from typing import Any, NamedTuple

import numpy as np

from . import _native as native
from ._arguments import shown, whole

# Work below this many multiplications is done by the calling thread alone, since waking another takes as long as a part of it.
SMALL = 1 << 21

class _Pool(NamedTuple):
    threads: int
    address: int
    lock: threading.Lock  # of the call that uses it


class Workspace(NamedTuple):
    address: int
    memory: "np.ndarray[Any, Any]"


_pools: list[_Pool] = []
_creating = threading.Lock()
_own = threading.local()
# The parallel_for and pool of a host whose own threads do the work, in place of pools of ours that would wait for the same CPUs:
# rapt.torch puts PyTorch's here.
host: tuple[Any, Any] | None = None


def _forget() -> None:
    """In a forked child, the parent's pools have no workers, and locks may be held by threads that do not exist."""
    global _creating, _own, host
    host = None
    _pools.clear()
    _creating, _own = threading.Lock(), threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def default_threads() -> int:
    """RAPT_THREADS in the environment, or the CPUs that this process may use."""
    given = os.environ.get("RAPT_THREADS")
    if given:
        if not given.isdecimal() or int(given) < 1:
            raise ValueError(f"RAPT_THREADS is {given!r}: a number from 1 on is needed")
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked(threads: int, name: str = "threads") -> int:
    try:
        count = whole(threads, name)
    except TypeError:
        count = 0
    if count < 1:
        raise ValueError(f"{name} is {shown(threads)}: a number from 1 on is needed")
    return count


def threads_for(threads: int | None, work: float) -> int:
    """How many threads share a call of that many multiplications."""
    if threads is not None:
        return checked(threads)
    return default_threads() if work > SMALL else 1


def _claim(library: native.Library, threads: int) -> _Pool | None:
    """A pool of that many threads or more, whose lock the caller then has; None where calls of other Python threads use them. A
    larger pool takes the place of smaller ones, so that there are never many."""
    with _creating:
        large = [pool for pool in _pools if pool.threads >= threads]
        for pool in large:
            if pool.lock.acquire(blocking=False):
                return pool
        if large:
            return None
        address = library.c.rapt_pool_create(threads)
        if not address:
            raise MemoryError(f"{threads} threads could not be had")
        for pool in [pool for pool in _pools if pool.lock.acquire(blocking=False)]:
            _pools.remove(pool)
            library.c.rapt_pool_destroy(pool.address)
        _pools.append(_Pool(threads, address, threading.Lock()))
        _pools[-1].lock.acquire()
        return _pools[-1]


def aligned(size: int) -> "np.ndarray[Any, Any]":
    """New memory of that many bytes, as the library wants workspaces."""
    alignment = native.CONSTANTS["WORKSPACE_ALIGNMENT"]
    memory = np.empty(size + alignment, np.uint8)
    return memory[-memory.ctypes.data % alignment:][:size]


def workspace(size: int) -> Workspace:
    """This thread's memory of that many bytes or more. Whoever calls the library with it keeps what is returned until then: a signal
    handler in between may need a larger one, which takes its place."""
    if getattr(_own, "bytes", -1) < size:
        memory = aligned(size)
        _own.workspace, _own.bytes = Workspace(memory.ctypes.data, memory), size
    kept: Workspace = _own.workspace
    return kept


def run(library: native.Library, family: str, *subject: Any, threads: int) -> None:
    """Calls rapt_FAMILY_run of a subject, on that many threads. A pool takes one call at a time: a Python thread that comes
    meanwhile does its work alone, which gives the same bits."""
    if threads > 1 and host:
        getattr(library.c, f"{family}_run_parallel")(*subject, threads, *host)
        return
    if threads > 1 and library.has_pool:
        pool = _claim(library, threads)
        if pool:
            try:
                getattr(library.c, f"{family}_run_parallel")(*subject, threads, library.pool_for, pool.address)
            finally:
                pool.lock.release()
            return
    getattr(library.c, f"{family}_run")(*subject)
