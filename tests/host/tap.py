# SPDX-License-Identifier: Apache-2.0
"""The Test Anything Protocol, for the tests in Python; tests/support/tap.h is that of those in C."""
import os
import sys
import time

count = failures = 0
said = time.monotonic()  # when the last result was printed


def say_time():
    """A line before what has taken seconds."""
    global said
    began, said = said, time.monotonic()
    if said - began >= 2:
        print(f"# in {said - began:.1f} s", flush=True)


def ok(good, what, why=""):
    """why: shown, as lines of its own, where the test fails."""
    global count, failures
    count += 1
    failures += not good
    say_time()
    print(f"{'' if good else 'not '}ok {count} - {what}", flush=True)
    if not good and why:
        print("# " + str(why)[:10000].replace("\n", "\n# "), flush=True)


def skip(what, why):
    global count
    count += 1
    say_time()
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
