// SPDX-License-Identifier: Apache-2.0
// The function that XLA calls for rapt.jax.dot_product_attention. rapt/_jax_build.py compiles it, against the headers of jaxlib,
// and rapt/jax.py loads it and says, by rapt_jax_load, where rapt's library is.
//
// Arrays are [..., batch, tokens, heads, channels]: jax.vmap puts dimensions in front, of length 1 in what it does not map.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rapt.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

// The functions that are called here. They are looked up in the library that the package has loaded already, wherever it lies.
#define RAPT_JAX_FUNCTIONS(DO)                                                                                                   \
    DO(rapt_desc_init_sized)                                                                                                     \
    DO(rapt_plan_init_sized)                                                                                                     \
    DO(rapt_plan_explain)                                                                                                        \
    DO(rapt_workspace_size)                                                                                                      \
    DO(rapt_args_init_sized)                                                                                                     \
    DO(rapt_args_explain)                                                                                                        \
    DO(rapt_row_bytes)                                                                                                           \
    DO(rapt_run)                                                                                                                 \
    DO(rapt_run_parallel)

struct Library {
#define DO(name) decltype(&::name) name;
    RAPT_JAX_FUNCTIONS(DO)
#undef DO
};

Library library;

// ---- Threads -----------------------------------------------------------------------------------------------------------------

// Has the calling thread keep denormal numbers, which XLA's threads take for 0: rapt's bits are those of IEEE 754. Its destructor
// gives the thread its own modes back.
class DefaultModes {
  public:
    DefaultModes() { std::fegetenv(&own_), std::fesetenv(FE_DFL_ENV); }
    ~DefaultModes() { std::fesetenv(&own_); }
    DefaultModes(const DefaultModes &) = delete;
    DefaultModes &operator=(const DefaultModes &) = delete;

  private:
    std::fenv_t own_;
};

// Work below this many multiplications is done by the calling thread alone, since waking another takes as long as a part of it.
constexpr double kSmall = 1 << 21;

// A parallel loop on XLA's threads. Whoever is free takes the next number, the calling thread first of all, which then waits for
// numbers that others have taken, never for a thread to come: so one thread is enough. Threads that come late find no number
// left, and touch nothing but the loop itself, which they own together.
class Loop {
  public:
    Loop(int64_t n, rapt_body body, void *arg) : n_(n), body_(body), arg_(arg) {}

    void Work() {
        const DefaultModes modes;
        for (int64_t i; (i = next_++) < n_;) {
            body_(arg_, i);
            const std::lock_guard<std::mutex> lock(mutex_);
            if (++done_ == n_) all_done_.notify_one();
        }
    }

    void Wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        all_done_.wait(lock, [this] { return done_ == n_; });
    }

  private:
    const int64_t n_;
    const rapt_body body_;
    void *const arg_;
    std::atomic<int64_t> next_{0};
    std::mutex mutex_;
    std::condition_variable all_done_;
    int64_t done_ = 0;
};

// A rapt_parallel_for.
void ParallelFor(void *pool, int64_t n, rapt_body body, void *arg) {
    const auto loop = std::make_shared<Loop>(n, body, arg);
    for (int64_t i = 1; i < n; i++) static_cast<ffi::ThreadPool *>(pool)->Schedule([loop] { loop->Work(); });
    loop->Work();
    loop->Wait();
}

// ---- Memory ------------------------------------------------------------------------------------------------------------------

// This thread's workspace, which is kept for later calls; null if there is no memory for it.
void *Workspace(size_t bytes) {
    struct Free {
        void operator()(void *memory) const { std::free(memory); }
    };
    thread_local std::unique_ptr<void, Free> memory;
    thread_local size_t size = 0;
    if (bytes > size || !memory) {
        size = (bytes / RAPT_WORKSPACE_ALIGNMENT + 1) * RAPT_WORKSPACE_ALIGNMENT;
        memory.reset();
        memory.reset(std::aligned_alloc(RAPT_WORKSPACE_ALIGNMENT, size));
        if (!memory) size = 0;
    }
    return memory.get();
}

rapt_type TypeOf(ffi::DataType type) {
    switch (type) {
    case ffi::DataType::F32:
        return RAPT_F32;
    case ffi::DataType::F16:
        return RAPT_F16;
    case ffi::DataType::BF16:
        return RAPT_BF16;
    case ffi::DataType::PRED:
        return RAPT_BOOL;
    case ffi::DataType::S32:
        return RAPT_I32;
    default:
        return RAPT_NONE;
    }
}

// An array of XLA's, which are dense.
struct Tensor {
    Tensor() = default;

    // The last own dimensions are the array's own, behind the batch.
    Tensor(const ffi::AnyBuffer &buffer, size_t own)
        : at(static_cast<char *>(buffer.untyped_data())), type(TypeOf(buffer.element_type())),
          dims(buffer.dimensions().begin(), buffer.dimensions().end()), strides(dims.size()), leading(dims.size() - own) {
        int64_t stride = type == RAPT_BOOL ? 1 : type == RAPT_I32 ? 4 : library.rapt_row_bytes(type, 1);
        for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) strides[i] = dims[i] == 1 ? 0 : stride;
    }

    bool present() const { return !dims.empty(); }
    int64_t dim(size_t own) const { return dims[leading + own]; }
    int64_t stride(size_t own) const { return strides[leading + own]; }

    // Of [tokens, heads, channels], once the batch is found.
    rapt_layout TokensHeads() const { return {type, batch_stride, stride(1), stride(0)}; }

    // Of [heads, queries, keys].
    rapt_layout HeadsQueries() const { return {type, batch_stride, stride(0), stride(1)}; }

    char *at = nullptr;
    rapt_type type = RAPT_NONE;
    std::vector<int64_t> dims, strides; // strides are bytes, 0 where the dimension is 1 and may be repeated
    size_t leading = 0;                 // how many dimensions lie before the array's own
    int64_t batch_stride = 0;           // from an entry to the next, of those that a call computes together
};

// The leading dimensions of all arrays. The last of them that lie behind each other evenly in every array are the batch of one
// call; over those before there is a loop.
class Batches {
  public:
    Batches(const Tensor &out, const std::vector<Tensor *> &tensors) : tensors_(tensors) {
        lengths_.assign(out.dims.begin(), out.dims.begin() + static_cast<int64_t>(out.leading));
        outer_ = lengths_.size();
        for (; outer_ > 0; outer_--) {
            const size_t d = outer_ - 1;
            if (lengths_[d] == 1) continue;
            const auto even = [&](const Tensor *t) { return t->strides[d] == entries_ * t->batch_stride; };
            if (entries_ > 1 && !std::all_of(tensors_.begin(), tensors_.end(), even)) break;
            if (entries_ == 1)
                for (Tensor *t : tensors_) t->batch_stride = t->strides[d];
            entries_ *= lengths_[d];
        }
        at_.assign(outer_, 0);
    }

    int64_t entries() const { return entries_; }

    // Moves every array to the next round of the loop; false after the last.
    bool Next() {
        for (size_t d = outer_; d-- > 0;) {
            const int64_t steps = ++at_[d] < lengths_[d] ? 1 : 1 - lengths_[d];
            for (Tensor *t : tensors_) t->at += steps * t->strides[d];
            if (steps == 1) return true;
            at_[d] = 0;
        }
        return false;
    }

  private:
    std::vector<Tensor *> tensors_;
    std::vector<int64_t> lengths_, at_;
    size_t outer_;
    int64_t entries_ = 1;
};

// ---- The call ----------------------------------------------------------------------------------------------------------------

ffi::Error Refused(const char *line) { return ffi::Error::InvalidArgument(std::string("rapt: ") + line); }

ffi::Error Attention(ffi::ThreadPool pool, ffi::AnyBuffer q_buffer, ffi::AnyBuffer k_buffer, ffi::AnyBuffer v_buffer,
                     ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> o_buffer, ffi::RemainingRets with_lse, float scale,
                     bool is_causal, int64_t window_left, int64_t window_right, bool is_bf16, bool has_bias, bool has_mask,
                     bool has_query_lengths, bool has_key_lengths) {
    Tensor q(q_buffer, 3), k(k_buffer, 3), v(v_buffer, 3), o(*o_buffer, 3), bias, mask, query_lengths, key_lengths, lse;
    std::vector<Tensor *> tensors{&q, &k, &v, &o};
    size_t next = 0;
    const auto take = [&](bool has, Tensor &tensor, size_t own) {
        if (!has) return true;
        const auto buffer = more.get<ffi::AnyBuffer>(next++);
        if (buffer.has_error()) return false;
        tensor = Tensor(*buffer, own);
        tensors.push_back(&tensor);
        return true;
    };
    if (!take(has_bias, bias, 3) || !take(has_mask, mask, 3) || !take(has_query_lengths, query_lengths, 0) ||
        !take(has_key_lengths, key_lengths, 0))
        return Refused("arrays are missing");
    if (with_lse.size() > 0) {
        auto buffer = with_lse.get<ffi::AnyBuffer>(0);
        if (buffer.has_error()) return buffer.error();
        lse = Tensor(**buffer, 2);
        tensors.push_back(&lse);
    }
    if (o_buffer->element_count() == 0) return ffi::Error::Success();
    const DefaultModes modes; // for the plan and work without a pool
    Batches batches(o, tensors);

    const int64_t entries = batches.entries(), queries = q.dim(0), keys = k.dim(0);
    rapt_desc desc;
    library.rapt_desc_init_sized(&desc, sizeof desc);
    desc.batch = entries, desc.heads = q.dim(1), desc.kv_heads = k.dim(1), desc.q_len = queries, desc.kv_len = keys;
    desc.d_k = q.dim(2), desc.d_v = v.dim(2);
    desc.q = q.TokensHeads(), desc.k = k.TokensHeads(), desc.v = v.TokensHeads(), desc.o = o.TokensHeads();
    desc.scale = scale, desc.arith = is_bf16 ? RAPT_BF16_DOT : RAPT_EXACT;
    desc.causal = is_causal ? RAPT_CAUSAL_TOP_LEFT : RAPT_CAUSAL_NONE;
    desc.window_left = window_left, desc.window_right = window_right;
    if (bias.present()) desc.bias = bias.HeadsQueries(), desc.bias_key_stride = bias.stride(2) != 0;
    if (mask.present()) desc.mask = mask.HeadsQueries(), desc.mask_key_stride = mask.stride(2) != 0;
    if (lse.present()) desc.lse = {RAPT_F32, lse.batch_stride, lse.stride(1), lse.stride(0)};
    const double work = static_cast<double>(entries * desc.heads) * static_cast<double>(queries) * static_cast<double>(keys) *
                        static_cast<double>(desc.d_k + desc.d_v);
    desc.threads = work > kSmall ? std::max<int64_t>(pool.num_threads(), 1) : 1;

    char line[256];
    rapt_plan plan;
    if (library.rapt_plan_init_sized(&plan, sizeof plan, &desc) != RAPT_OK) {
        library.rapt_plan_explain(&desc, line, sizeof line);
        return Refused(line);
    }
    rapt_args args;
    library.rapt_args_init_sized(&args, sizeof args);
    if (library.rapt_workspace_size(&plan, desc.threads, &args.workspace_bytes) != RAPT_OK)
        return Refused("the workspace is too large");
    args.workspace = Workspace(args.workspace_bytes);
    if (!args.workspace) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "rapt: no memory for the workspace");

    // JAX counts queries and keys from 0 alike, for windows too.
    const std::vector<int32_t> offsets(static_cast<size_t>(entries), 0);
    std::vector<int32_t> lengths(static_cast<size_t>(entries));
    args.q_offsets = offsets.data();
    // JAX takes a length below 0 for 0, and one beyond the tokens for all of them.
    const auto length = [](const Tensor &t, int64_t entry, int64_t most) {
        int32_t n;
        std::memcpy(&n, t.at + entry * t.batch_stride, sizeof n);
        return std::clamp<int64_t>(n, 0, most);
    };
    const int64_t row = library.rapt_row_bytes(o.type, desc.d_v);
    do {
        args.q = q.at, args.k = k.at, args.v = v.at, args.o = o.at;
        args.bias = bias.at, args.mask = mask.at, args.lse = reinterpret_cast<float *>(lse.at);
        if (key_lengths.present()) {
            for (int64_t b = 0; b < entries; b++)
                lengths[static_cast<size_t>(b)] = static_cast<int32_t>(length(key_lengths, b, keys));
            args.kv_lengths = lengths.data();
        }
        const rapt_status status = desc.threads == 1 ? library.rapt_run(&plan, &args)
                                                     : library.rapt_run_parallel(&plan, &args, desc.threads, ParallelFor, &pool);
        if (status != RAPT_OK) {
            library.rapt_args_explain(&plan, &args, desc.threads, line, sizeof line);
            return Refused(line);
        }
        // Queries beyond their length have no result.
        for (int64_t b = 0; query_lengths.present() && b < entries; b++) {
            const int64_t first = length(query_lengths, b, queries) * desc.heads, rest = queries * desc.heads - first;
            std::memset(o.at + b * o.batch_stride + first * row, 0, static_cast<size_t>(rest * row));
            if (lse.present())
                std::fill_n(reinterpret_cast<float *>(lse.at + b * lse.batch_stride) + first, rest,
                            -std::numeric_limits<float>::infinity());
        }
    } while (batches.Next());
    return ffi::Error::Success();
}

} // namespace

// The handler that is registered with XLA.
XLA_FFI_DEFINE_HANDLER_SYMBOL(rapt_jax_attention, Attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .RemainingRets()
                                  .Attr<float>("scale")
                                  .Attr<bool>("is_causal")
                                  .Attr<int64_t>("window_left")
                                  .Attr<int64_t>("window_right")
                                  .Attr<bool>("is_bf16")
                                  .Attr<bool>("has_bias")
                                  .Attr<bool>("has_mask")
                                  .Attr<bool>("has_query_lengths")
                                  .Attr<bool>("has_key_lengths"));

// What this file was compiled from: see key() in rapt/_jax_build.py.
extern "C" const char *rapt_jax_key() { return RAPT_JAX_KEY; }

// Finds rapt's functions in the library at that path, and returns null, or what is wrong.
extern "C" const char *rapt_jax_load(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return dlerror();
#define DO(name)                                                                                                                 \
    library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, #name));                                               \
    if (!library.name) return dlerror();
    RAPT_JAX_FUNCTIONS(DO)
#undef DO
    return nullptr;
}
