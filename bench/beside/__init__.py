# SPDX-License-Identifier: Apache-2.0
"""rapt beside others, in one run on one machine: what peers.py (attention) and layers.py (linear layers) are made of.

A suite has cases, problems and peers. All peers work on the same values, turn by turn, in a process for each number of threads;
each output is compared with float64, and bit for bit with that of another number of threads and of the same call again.

    values.py        the numbers that everybody gets, and the comparison of bits
    machine.py       what the machine can do, and which instruction sets are used
    measure.py       the turns of a case
    report.py        peers.md and peers.png
    command.py       the options, the processes, the exit status"""
import typing


class Unsupported(Exception):
    """Why a peer sits a case out. Whatever else it raises is a failure."""


class Suite(typing.NamedTuple):
    """What is compared.

    A case has a name, and memory: whether its rate is that of reading or of arithmetic. problem(case, type, threads) has operations
    and bytes (of K and V, or of weights) of a call, cold (whether those bytes come from memory), caches (at least one), and
    error(output). A peer is a title, a class, and its arguments."""
    title: str
    cases: list
    problem: type
    peers: dict


class Peer:
    """One of those that are compared: made once for a process, as peer(options, threads, **arguments).

    setup(problem) makes everything that can be made before the first call, and returns two functions: run(indices) does one call on
    the cache of each index and returns the last result, and as_numpy(result) is that as an array of the problem's type."""
    packages: tuple = ()  # of Python, without which the peer is left out
    ours = False          # rapt's: the exit status says whether its bytes are equal, and it is none of the others
    note = ""             # what a reader of the table has to know

    def __init__(self, options, threads):
        pass

    @staticmethod
    def unfit():
        """Why the peer is left out although its packages are there, or None."""

    def multiplies_bf16(self, kind):
        """Whether tensors of this type may be multiplied by a matrix unit, whose peak is the limit then."""
        return kind == "bf16"

    def isa(self, kind):
        """The instruction set that the peer says it uses for this type; None if it does not say."""

    def setup(self, problem):
        raise NotImplementedError
