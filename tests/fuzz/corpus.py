#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: corpus.py TARGET FILES FOLDER...: adds up to FILES inputs of these folders to the committed corpus of a fuzz target of
build-test/fuzz: in turn the one that covers most that is new, as libFuzzer counts it. Names are hashes of the contents."""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MOST_BYTES = 400


def features(target, folders):
    """What each input covers, by path."""
    with tempfile.TemporaryDirectory() as folder:
        control, merged = pathlib.Path(folder) / "control", pathlib.Path(folder) / "merged"
        merged.mkdir()
        subprocess.run([ROOT / f"build-test/fuzz/tests/fuzz/fuzz-{target}", "-set_cover_merge=1", f"-max_len={MOST_BYTES}",
                        f"-merge_control_file={control}", merged, *folders], check=True, stderr=subprocess.DEVNULL)
        lines = control.read_text().splitlines()
    paths = [pathlib.Path(line) for line in lines[2:2 + int(lines[0])]]
    return {paths[int(words[1])]: set(words[2:]) for words in map(str.split, lines) if words[0] == "FT"}


def main(target, files, folders):
    corpus = ROOT / "tests/fuzz/corpus" / target
    covers = features(target, [corpus, *folders])
    seen = set().union(*(covers[path] for path in covers if path.parent == corpus))
    for _ in range(files):
        best = max(covers, key=lambda path: (len(covers[path] - seen), path.name))
        if not covers[best] - seen:
            break
        seen |= covers[best]
        data = best.read_bytes()
        (corpus / hashlib.sha256(data).hexdigest()[:8]).write_bytes(data)
    print(f"{target}: {len(seen)} features, {len(list(corpus.iterdir()))} files")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [pathlib.Path(folder) for folder in sys.argv[3:]])
