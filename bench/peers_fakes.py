#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py with peers that misbehave, for peers_smoke.py to see what is made of them: the same options, other peers."""
import sys

import numpy as np

import peers
from beside import Peer, Suite, command


class Changed(peers.Rapt):
    """rapt, but for the last bit of one element of some outputs."""

    def changed(self, problem):
        raise NotImplementedError

    def setup(self, problem):
        run, as_numpy = super().setup(problem)

        def changed(out):
            out = np.array(as_numpy(out))
            out.view(f"u{out.itemsize}").flat[7] ^= self.changed(problem)
            return out
        return run, changed


class OfThreads(Changed):
    def changed(self, problem):
        return problem.threads > 1


class Others(OfThreads):
    ours = False


class Restless(Changed):
    """Another output each time."""
    ours = False
    odd = True

    def changed(self, problem):
        self.odd = not self.odd
        return self.odd


class Failing(peers.Rapt):
    def setup(self, problem):
        raise ValueError("cannot")


class Absent(Peer):
    packages = "no-such-package-as-this",


class Unfit(Peer):
    @staticmethod
    def unfit():
        return "built for another one"


FAKES = Suite("Fakes", peers.CASES, peers.Problem, {
    "rapt": ("rapt", peers.Rapt, {}),
    "rapt-bf16": ("rapt, bf16 arithmetic", peers.Rapt, {"arith": "bf16"}),
    "of-threads": ("rapt, of threads", OfThreads, {}),
    "others": ("others", Others, {}),
    "restless": ("restless", Restless, {}),
    "failing": ("failing", Failing, {}),
    "absent": ("absent", Absent, {}),
    "unfit": ("unfit", Unfit, {}),
})

if __name__ == "__main__":
    sys.exit(command.main(FAKES, __doc__))
