# SPDX-License-Identifier: Apache-2.0
"""include/rapt.h and rapt_layer.h for ctypes, as far as Python here needs them."""
import ctypes

(F32, F16, BF16, F8_E4M3, F8_E5M2, INT8, INT4, INT4_MIN, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, BOOL, BIT, I32) = range(1, 17)
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


Rotary = structure("Rotary", [(ctypes.c_int64, "channels"), (ctypes.c_int, "interleaved"), (ctypes.c_void_p, "frequencies"),
                              (ctypes.c_double, "amplitude"), (ctypes.c_int64, "offset")])
AppendDesc = structure("AppendDesc", [
    (ctypes.c_size_t, "size"), (ctypes.c_int64, "batch kv_heads tokens kv_len d_k d_v"), (Layout, "new_k new_v k v"),
    (Scales, "k_scales v_scales"), (ctypes.c_int64, "page_size pages"), (Layout, "table"), (ctypes.c_int, "trust_table"),
    (Rotary, "rotary")])
AppendArgs = structure("AppendArgs", [
    (ctypes.c_size_t, "size"), (ctypes.c_void_p, "new_k new_v k v k_scales v_scales starts lengths token_starts positions table "
                                                 "table_starts ring_starts")])
RopeArgs = structure("RopeArgs", [
    (ctypes.c_size_t, "size"), (ctypes.c_int64, "batch heads tokens d"), (Layout, "in_ out"), (ctypes.c_void_p, "from_ to"),
    (Rotary, "rotary"), (ctypes.c_void_p, "starts lengths token_starts positions")])

LinearDesc = structure("LinearDesc", [
    (ctypes.c_size_t, "size"), (ctypes.c_int64, "batch tokens in_ out"), (Layout, "x y residual weight"), (ctypes.c_int, "activation"),
    (ctypes.c_char_p, "isa")])
LinearArgs = structure("LinearArgs", [
    (ctypes.c_size_t, "size"), (ctypes.c_void_p, "x weight bias scales residual y workspace"), (ctypes.c_size_t, "workspace_bytes")])
NormArgs = structure("NormArgs", [
    (ctypes.c_size_t, "size"), (ctypes.c_int64, "batch tokens channels"), (Layout, "x y"), (ctypes.c_void_p, "from_ to weight bias"),
    (ctypes.c_float, "epsilon"), (ctypes.c_char_p, "isa")])
LayerDesc = structure("LayerDesc", [
    (ctypes.c_size_t, "size"), (ctypes.c_void_p, "attention"), (ctypes.c_int64, "x_width y_width z_width out_width keys"),
    (Layout, "x y z out residual wq wk wv wo"), (ctypes.c_int, "packed"), (Rotary, "rotary"), (ctypes.c_int, "position_table"),
    (Layout, "weights")])
LayerArgs = structure("LayerArgs", [
    (ctypes.c_size_t, "size"), (ctypes.c_void_p, "x y z residual out wq wk wv wo bq bk bv bo wq_scales wk_scales wv_scales wo_scales "
                                                 "position_table"),
    (ctypes.c_int64, "table_positions"), (ctypes.c_void_p, "k_cache v_cache k_scales v_scales starts weights attention workspace"),
    (ctypes.c_size_t, "workspace_bytes")])
LINEAR_PLAN_WORDS, LAYER_PLAN_WORDS = 64, 1280


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

    def initialised(self, kind, init):
        struct = kind()
        init(ctypes.byref(struct), ctypes.c_size_t(ctypes.sizeof(struct)))
        assert struct.size == ctypes.sizeof(struct), f"{kind.__name__} is not what the library takes"
        return struct

    def desc(self):
        return self.initialised(Desc, self.c.rapt_desc_init_sized)

    def args(self):
        return self.initialised(Args, self.c.rapt_args_init_sized)

    def plan(self, desc):
        plan = (ctypes.c_uint64 * PLAN_WORDS)()
        self.check(self.c.rapt_plan_init(plan, ctypes.byref(desc)))
        return plan

    def workspace_bytes(self, plan, threads):
        size = ctypes.c_size_t()
        self.check(self.c.rapt_workspace_size(plan, ctypes.c_int64(threads), ctypes.byref(size)))
        return size.value
