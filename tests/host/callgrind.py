# SPDX-License-Identifier: Apache-2.0
"""Counts instructions by valgrind's callgrind, since these have no clock that another program could disturb."""
import re
import subprocess
import tempfile
from pathlib import Path


def instructions(function, *command):
    """Those of a function of the command's program, and of all that it calls on its thread. Raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        subprocess.run(["valgrind", "-q", "--tool=callgrind", f"--toggle-collect={function}", f"--callgrind-out-file={out}",
                        *map(str, command)], check=True, capture_output=True, text=True)
        return int(re.search(r"^(?:totals|summary): (\d+)", out.read_text(encoding="utf-8"), re.MULTILINE).group(1))
