# SPDX-License-Identifier: Apache-2.0
"""include/rapt.h for ctypes, as far as Python here needs it."""
import ctypes

F32, F16, BF16, BOOL, BIT, I32 = 1, 2, 3, 14, 15, 16
CAUSAL_NONE, CAUSAL_BOTTOM_RIGHT, CAUSAL_TOP_LEFT = range(3)
ALIBI_DISTANCE = 1
PLAN_WORDS = 192
WORKSPACE_ALIGNMENT = 64


def structure(name, fields):
    """A C struct: (type, names) for its fields in their order."""
    return type(name, (ctypes.Structure,), {"_fields_": [(field, kind) for kind, names in fields for field in names.split()]})


Layout = structure("Layout", [(ctypes.c_int, "type"), (ctypes.c_int64, "batch_stride head_stride token_stride")])
Scales = structure("Scales", [(ctypes.c_int, "present"),
                              (ctypes.c_int64, "batch_stride head_stride token_stride channel_stride")])
Desc = structure("Desc", [
    (ctypes.c_size_t, "size"), (ctypes.c_int64, "batch heads kv_heads q_len kv_len d_k d_v"), (Layout, "q k v o lse"),
    (ctypes.c_float, "scale"), (ctypes.c_int, "causal"), (ctypes.c_int64, "window_left window_right prefix local_chunk"),
    (Layout, "mask map"), (ctypes.c_int64, "map_queries map_keys"), (Layout, "bias"), (ctypes.c_float, "softcap"),
    (ctypes.c_int, "alibi"), (Layout, "slopes sinks"), (ctypes.c_void_p, "logits_body"), (Scales, "k_scales v_scales"),
    (ctypes.c_int, "arith"), (ctypes.c_void_p, "q_starts k_starts"), (ctypes.c_int64, "page_size pages"), (Layout, "table"),
    (ctypes.c_int, "trust_table"), (ctypes.c_int64, "kv_first kv_total"), (ctypes.c_int, "unmerged"), (Layout, "states"),
    (ctypes.c_int64, "state_stride threads"), (ctypes.c_char_p, "isa")])
Args = structure("Args", [
    (ctypes.c_size_t, "size"), (ctypes.c_void_p, "q k v o lse kv_lengths mask map bias slopes sinks k_scales v_scales logits_arg "
                                                 "prefixes table table_starts last_page ring_starts states workspace"),
    (ctypes.c_size_t, "workspace_bytes")])
Logits = structure("Logits", [
    (ctypes.POINTER(ctypes.c_float), "logits"), (ctypes.c_int64, "row_stride key_stride"), (ctypes.c_int, "rows keys"),
    (ctypes.c_int64, "batch first_key"), (ctypes.POINTER(ctypes.c_int32), "heads tokens")])
LogitsBody = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Logits))


class Error(Exception):
    """A status that is not RAPT_OK, in words."""


class Library:
    """The shared library. Every other function is called as it is: library.c.rapt_...(). A bad status is raised as error."""

    def __init__(self, path, error=Error):
        self.c, self.error = ctypes.CDLL(path), error
        self.c.rapt_layout_bhsd.restype = Layout
        self.c.rapt_layout_bhsd.argtypes = [ctypes.c_int] + [ctypes.c_int64] * 3
        self.c.rapt_version.restype = self.c.rapt_status_string.restype = self.c.rapt_isa_name.restype = ctypes.c_char_p

    def check(self, status):
        if status:
            raise self.error(self.c.rapt_status_string(status).decode())

    def desc(self):
        desc = Desc()
        self.c.rapt_desc_init_sized(ctypes.byref(desc), ctypes.c_size_t(ctypes.sizeof(desc)))
        return desc

    def args(self):
        args = Args()
        self.c.rapt_args_init_sized(ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
        return args

    def plan(self, desc):
        plan = (ctypes.c_uint64 * PLAN_WORDS)()
        self.check(self.c.rapt_plan_init(plan, ctypes.byref(desc)))
        return plan

    def workspace_bytes(self, plan, threads):
        size = ctypes.c_size_t()
        self.check(self.c.rapt_workspace_size(plan, ctypes.c_int64(threads), ctypes.byref(size)))
        return size.value
