#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""explain.py SOURCE OUTPUT: a source of dispatch/ with its places that may refuse, and its names of fields, marked as explain.h
says. A place is a call that hands on the report of the call, or the memory that has it; or a status without either;
there should be none of those. Definitions, which begin a line, are not calls."""
import re
import sys
from pathlib import Path

# These take a report or memory and never refuse; the last two take another r.
HELPERS = "rapt_memory_begin|rapt_may_be|rapt_spread|rapt_trace_plan|fill_attention|attend"
CALL = re.compile(rf"\b(?!(?:{HELPERS})\()([a-z]\w*)\((?=\s*(?:(?:&?[rm]|m->report),|&?r\)|&m\)))")
STATUS = re.compile(r"(?:(?<=return )|(?<=[^=!]= )|(?<=[?:] ))(RAPT_ERR_\w+)")  # which comes without a line
NAME = re.compile(r'"([a-z]\w*(?:\.[a-z]\w*|(?: \* [a-z]\w*)+)?)"')
# Words that stand alone between quotes, and are no fields.
WORDS = {"any", "bf16", "e", "exact",
         "fcsr", "fcsr0", "fused", "inf", "int8", "mixed", "nan", "none", "normalisation", "success", "unfused"}


def mark(call):
    begin = call.string.rfind("\n", 0, call.start()) + 1
    if not call.string[begin].isspace():
        return call[0]
    return f"EXPLAIN_SITE({int(call[1].startswith('rapt_refuse'))}, {call[1]}, "


source, output = map(Path, sys.argv[1:])
text = source.read_text()
code = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
names = {name for name in NAME.findall(code) if name not in WORDS and not name.startswith("rapt_")}
output.write_text(f'#include "{Path(__file__).with_name("explain.h")}"\n#line 1 "{source}"\n'
                  + STATUS.sub(r"EXPLAIN_SITE(0, (rapt_status), \1)", CALL.sub(mark, text))
                  + "".join(f'EXPLAIN_NAME({number}, "{name}")\n' for number, name in enumerate(sorted(names))))
