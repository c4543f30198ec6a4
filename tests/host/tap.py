# SPDX-License-Identifier: Apache-2.0
"""The Test Anything Protocol, for the tests in Python; tests/support/tap.h is that of those in C."""
import os
import sys

count = failures = 0


def ok(good, what, why=""):
    """why: shown, as lines of its own, where the test fails."""
    global count, failures
    count += 1
    failures += not good
    print(f"{'' if good else 'not '}ok {count} - {what}", flush=True)
    if not good and why:
        print("# " + str(why)[:10000].replace("\n", "\n# "), flush=True)


def skip(what, why):
    global count
    count += 1
    print(f"ok {count} - {what} # SKIP {why}", flush=True)


def absent(what, error):
    """Ends the program, a skip for want of a package; but an error where RAPT_TEST_HOSTS says that all were installed."""
    if os.environ.get("RAPT_TEST_HOSTS"):
        raise error
    skip(what, f"not installed: {error}")
    done()


def done():
    """Ends the program: the plan, and its exit status."""
    print(f"1..{count}", flush=True)
    sys.exit(failures > 0)
