/* SPDX-License-Identifier: Apache-2.0 */
/* The execution provider: what ONNX Runtime loads, asks which nodes it takes, and has run them. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "op.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

static const char NAME[] = "RaptExecutionProvider";

/* The provider's options as the session has them: ONNX Runtime puts its name before them, in small letters. */
#define OPTION(name) "ep.raptexecutionprovider." name

static const struct op *const ops[] = {&attention_op, &multi_head_op, &group_query_op, &rotary_op, &contrib_rotary_op};

struct ort ort;
struct ort_ep ort_ep;

/* What a kernel is made with. */
struct making {
    const struct op *op;
    int64_t threads;
    rapt_arith arith;
};

/* The provider of a session. */
struct provider {
    OrtEp ep; /* It comes first, for this is what ONNX Runtime knows of a provider. */
    OrtKernelRegistry *registry;
    const OrtLogger *logger;
    char report[4096];                /* The file that receives a line for each node that is taken or left, or "": none does. */
    size_t taken, left, left_softmax; /* How many nodes of the session were taken, left, and left of Softmax. */
    bool shown;                       /* Whether all of the model was shown once. */
    struct making making[sizeof ops / sizeof *ops];
};

/* ---- Kernels ------------------------------------------------------------------------------------------------------------ */

static OrtStatus *compute(OrtKernelImpl *self, OrtKernelContext *context) {
    struct call call = {.kernel = (const struct kernel *)self, .context = context};
    OrtAllocator *allocator = call.kernel->allocator;
    TRY(ort.KernelContext_GetInputCount(context, &call.inputs));
    TRY(ort.KernelContext_GetOutputCount(context, &call.outputs));
    OrtStatus *status = call.kernel->op->compute(&call);
    while (call.scratches) allocator->Free(allocator, call.scratch[--call.scratches]);
    return status;
}

static void release_kernel(OrtKernelImpl *self) {
    struct kernel *kernel = (struct kernel *)self;
    ort.ReleaseAllocator(kernel->allocator);
    free(kernel);
}

static OrtStatus *create_kernel(void *state, const OrtKernelInfo *info, OrtKernelImpl **out) {
    const struct making *making = state;
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return ort.CreateStatus(ORT_FAIL, "rapt: there is no memory for a kernel");
    size_t bytes = sizeof kernel->name;
    OrtStatus *status = ort.KernelInfo_GetNodeName(info, kernel->name, &bytes);
    if (status) { /* too long to be told */
        ort.ReleaseStatus(status);
        kernel->name[0] = 0;
    }
    make_printable(kernel->name);
    status = ort.KernelInfoGetAllocator(info, MEMORY_DEFAULT, &kernel->allocator);
    if (status) {
        free(kernel);
        return status;
    }
    kernel->impl = (OrtKernelImpl){.ort_version_supported = ORT_VERSION, .Compute = compute, .Release = release_kernel};
    kernel->op = making->op;
    kernel->threads = making->threads;
    kernel->arith = making->arith;
    kernel->op->read(info, &kernel->options);
    *out = &kernel->impl;
    return NULL;
}

static OrtStatus *add_kernel(OrtKernelRegistry *registry, struct making *making) {
    OrtKernelDefBuilder *builder;
    OrtKernelDef *def = NULL;
    TRY(ort_ep.CreateKernelDefBuilder(&builder));
    OrtStatus *status = ort_ep.KernelDefBuilder_SetOperatorType(builder, making->op->name);
    if (!status) status = ort_ep.KernelDefBuilder_SetDomain(builder, making->op->domain);
    if (!status) status = ort_ep.KernelDefBuilder_SetSinceVersion(builder, making->op->first, making->op->last);
    if (!status) status = ort_ep.KernelDefBuilder_SetExecutionProvider(builder, NAME);
    if (!status) status = ort_ep.KernelDefBuilder_Build(builder, &def);
    if (!status) status = ort_ep.KernelRegistry_AddKernel(registry, def, create_kernel, making);
    if (def) ort_ep.ReleaseKernelDef(def);
    ort_ep.ReleaseKernelDefBuilder(builder);
    return status;
}

/* ---- Nodes -------------------------------------------------------------------------------------------------------------- */

static const struct op *op_of(const char *domain, const char *name) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(ops[i]->domain, domain) && !strcmp(ops[i]->name, name)) return ops[i];
    return NULL;
}

/* Why a node of an operator that the provider has not is left, or null where it has nothing to do with attention. */
static const char *foreign(const char *domain, const char *name) {
    if (!*domain && !strcmp(name, "Softmax"))
        return "attention in several nodes (MatMul, Softmax, MatMul) cannot be taken: it must be exported or fused as one";
    if (!strcmp(domain, "com.microsoft") && !strcmp(name, "Attention"))
        return "it has its projections inside: the optimizer's option use_multi_head_attention leaves them outside";
    return strstr(name, "Attention") ? "rapt has no such operator" : NULL;
}

/* Whether a value is there, and of which elements. */
static OrtStatus *look_at(const OrtValueInfo *value, bool *there, int *element) {
    const char *name = NULL;
    const OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    *there = false;
    *element = 0;
    if (!value) return NULL;
    TRY(ort.GetValueInfoName(value, &name));
    *there = name && *name;
    if (!*there) return NULL;
    TRY(ort.GetValueInfoTypeInfo(value, &type));
    if (type) TRY(ort.CastTypeInfoToTensorInfo(type, &tensor));
    return tensor ? ort.GetTensorElementType(tensor, element) : NULL;
}

static OrtStatus *read_node(const OrtNode *at, struct node *node, bool *readable) {
    const OrtValueInfo *inputs[MOST_VALUES] = {NULL}, *outputs[MOST_VALUES] = {NULL};
    size_t n_inputs = 0, n_outputs = 0;
    bool there;
    int element;
    *node = (struct node){.at = at};
    TRY(ort.Node_GetNumInputs(at, &n_inputs));
    TRY(ort.Node_GetNumOutputs(at, &n_outputs));
    *readable = n_inputs <= MOST_VALUES && n_outputs <= MOST_VALUES;
    if (!*readable) return NULL;
    TRY(ort.Node_GetInputs(at, inputs, n_inputs));
    TRY(ort.Node_GetOutputs(at, outputs, n_outputs));
    for (size_t i = 0; i < n_inputs; i++) TRY(look_at(inputs[i], &there, &node->inputs[i]));
    for (size_t i = 0; i < n_outputs; i++) TRY(look_at(outputs[i], &node->outputs[i], &element));
    node->first_output = outputs[0];
    return NULL;
}

/* Writes to why what a node has that its operator does not know, as those of later versions of ONNX Runtime may: an input, an
 * output, or an attribute other than 0. Without any, why becomes "". */
static OrtStatus *look_for_unknown(const struct node *node, const struct op *op, char *why, size_t bytes) {
    size_t n = 0;
    *why = 0;
    for (size_t i = op->inputs; i < MOST_VALUES && !*why; i++)
        if (node->inputs[i]) snprintf(why, bytes, "rapt does not know its input %zu", i);
    for (size_t i = op->outputs; i < MOST_VALUES && !*why; i++)
        if (node->outputs[i]) snprintf(why, bytes, "rapt does not know its output %zu", i);
    TRY(ort.Node_GetNumAttributes(node->at, &n));
    const OrtOpAttr **attributes = calloc(n + 1, sizeof *attributes);
    if (!attributes) return ort.CreateStatus(ORT_FAIL, "rapt: there is no memory for a list of attributes");
    OrtStatus *status = ort.Node_GetAttributes(node->at, attributes, n);
    for (size_t i = 0; i < n && !status && !*why; i++) {
        const char *name = NULL, *const *known = op->attributes;
        status = ort.OpAttr_GetName(attributes[i], &name);
        while (!status && *known && strcmp(*known, name) != 0) known++;
        if (!status && !*known && node_int(node, name, 1) != 0 && node_float(node, name, 1) != 0)
            snprintf(why, bytes, "rapt does not know its attribute %s", name);
    }
    free(attributes);
    return status;
}

/* A node that has to do with attention, and what becomes of it. */
struct fate {
    const char *domain, *type, *name;
    const char *output; /* The name of its first output. */
    const char *why;    /* Why it is left to other providers, or null: it is taken. */
};

/* Says in the session's log what becomes of a node. */
static OrtStatus *tell(const struct provider *provider, const struct fate *fate) {
    char line[512];
    if (fate->why) snprintf(line, sizeof line, "rapt leaves %s %s to others: %s", fate->type, fate->name, fate->why);
    else snprintf(line, sizeof line, "rapt takes %s %s", fate->type, fate->name);
    make_printable(line);
    return ort.Logger_LogMessage(provider->logger, LOG_INFO, line, __FILE__, __LINE__, __func__);
}

/* Writes the same as a line of texts between tabs, the last of which are the graph's name and that of the node it belongs to. */
static OrtStatus *report(FILE *file, const struct fate *fate, const char *graph, const char *parent) {
    const char *const texts[] = {fate->why ? fate->why : "", fate->domain, fate->type, fate->name, fate->output, graph, parent};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (i) putc('\t', file);
        for (const char *c = texts[i]; *c; c++) putc((unsigned char)*c < ' ' ? '?' : *c, file);
    }
    putc('\n', file);
    return ferror(file) ? ort.CreateStatus(ORT_FAIL, "rapt: the report cannot be written") : NULL;
}

/* What a graph's nodes are looked at with. */
struct looking {
    struct provider *provider;
    OrtEpGraphSupportInfo *support;
    FILE *file; /* The report, or null. */
    const char *graph, *parent;
};

static OrtStatus *look_at_node(const struct looking *with, const OrtNode *at) {
    struct fate fate = {.output = ""};
    struct node node;
    int version = 0;
    bool readable;
    char unknown[256];
    TRY(ort.Node_GetDomain(at, &fate.domain));
    TRY(ort.Node_GetOperatorType(at, &fate.type));
    TRY(ort.Node_GetName(at, &fate.name));
    TRY(ort.Node_GetSinceVersion(at, &version));
    if (!strcmp(fate.domain, "ai.onnx")) fate.domain = "";
    const struct op *op = op_of(fate.domain, fate.type);
    fate.why = op ? NULL : foreign(fate.domain, fate.type);
    if (!op && !fate.why) return NULL;
    TRY(read_node(at, &node, &readable));
    if (op && !readable) fate.why = "it has too many inputs";
    else if (op && (version < op->first || version > op->last)) fate.why = "rapt does not know the operator's version";
    else if (op) {
        TRY(look_for_unknown(&node, op, unknown, sizeof unknown));
        fate.why = *unknown ? unknown : op->refusal(&node);
    }
    TRY(tell(with->provider, &fate));
    if (fate.why && with->provider->shown) return NULL; /* it was left before, or is what became of one that was left */
    if (fate.why) with->provider->left++, with->provider->left_softmax += !strcmp(fate.type, "Softmax");
    else with->provider->taken++;
    if (with->file) {
        if (node.first_output) TRY(ort.GetValueInfoName(node.first_output, &fate.output));
        TRY(report(with->file, &fate, with->graph, with->parent));
    }
    return fate.why ? NULL : ort_ep.EpGraphSupportInfo_AddSingleNode(with->support, at);
}

/* Warns where there is attention and none of it is taken. */
static OrtStatus *warn(const struct provider *provider) {
    char line[256];
    if (provider->taken || !provider->left) return NULL;
    snprintf(
        line, sizeof line,
        "rapt takes no node of this model, and leaves %zu to others, %zu of them Softmax: rapt.onnxruntime.explain(model) says "
        "why",
        provider->left, provider->left_softmax);
    return ort.Logger_LogMessage(provider->logger, LOG_WARNING, line, __FILE__, __LINE__, __func__);
}

static OrtStatus *look_at_graph(struct looking *with, const OrtGraph *graph) {
    const OrtNode *parent = NULL;
    size_t n = 0;
    with->parent = "";
    TRY(ort.Graph_GetName(graph, &with->graph));
    TRY(ort.Graph_GetParentNode(graph, &parent));
    if (parent) TRY(ort.Node_GetName(parent, &with->parent));
    TRY(ort.Graph_GetNumNodes(graph, &n));
    const OrtNode **nodes = calloc(n + 1, sizeof *nodes);
    if (!nodes) return ort.CreateStatus(ORT_FAIL, "rapt: there is no memory for a list of nodes");
    OrtStatus *status = ort.Graph_GetNodes(graph, nodes, n);
    for (size_t i = 0; i < n && !status; i++) status = look_at_node(with, nodes[i]);
    free(nodes);
    if (status || parent || with->provider->shown) return status;
    with->provider->shown = true; /* ONNX Runtime shows the model's own graph after those inside its nodes */
    return warn(with->provider);
}

static OrtStatus *get_capability(OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *support) {
    struct looking with = {.provider = (struct provider *)self, .support = support};
    const char *const path = with.provider->report;
    if (*path && !(with.file = fopen(path, "a")))
        return ort.CreateStatus(ORT_INVALID_ARGUMENT, "rapt: the file that the option report names cannot be written");
    OrtStatus *status = look_at_graph(&with, graph);
    if (with.file && fclose(with.file) && !status) status = ort.CreateStatus(ORT_FAIL, "rapt: the report cannot be written");
    return status;
}

/* ---- The provider of a session ------------------------------------------------------------------------------------------ */

static const char *provider_name(const OrtEp *self) {
    (void)self;
    return NAME;
}

static OrtStatus *get_registry(OrtEp *self, const OrtKernelRegistry **out) {
    *out = ((struct provider *)self)->registry;
    return NULL;
}

/* As many threads as the session is told to have by the option "threads", or as this process may use CPUs. The session's own
 * number cannot be asked for; one that is higher costs some memory, and no more threads than there are will run. */
static OrtStatus *read_threads(const OrtSessionOptions *options, int64_t *threads) {
    char text[32], *end = text;
    size_t bytes = sizeof text;
    int given = 0;
    cpu_set_t cpus;
    *threads = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus);
    TRY(ort.HasSessionConfigEntry(options, OPTION("threads"), &given));
    if (!given) return NULL;
    TRY(ort.GetSessionConfigEntry(options, OPTION("threads"), text, &bytes));
    const long long n = strtoll(text, &end, 10);
    if (end == text || *end || n < 1 || n > 4096)
        return ort.CreateStatus(ORT_INVALID_ARGUMENT, "rapt: threads is not in 1..4096");
    *threads = n;
    return NULL;
}

/* The arithmetic that the session is told to have by the option "arith": exact, or bf16. */
static OrtStatus *read_arith(const OrtSessionOptions *options, rapt_arith *arith) {
    char text[32];
    size_t bytes = sizeof text;
    int given = 0;
    *arith = RAPT_EXACT;
    TRY(ort.HasSessionConfigEntry(options, OPTION("arith"), &given));
    if (!given) return NULL;
    TRY(ort.GetSessionConfigEntry(options, OPTION("arith"), text, &bytes));
    if (strcmp(text, "exact") != 0 && strcmp(text, "bf16") != 0)
        return ort.CreateStatus(ORT_INVALID_ARGUMENT, "rapt: arith is neither exact nor bf16");
    if (!strcmp(text, "bf16")) *arith = RAPT_BF16_DOT;
    return NULL;
}

/* The path of the file that the session's option "report" names, or "". */
static OrtStatus *read_report(const OrtSessionOptions *options, char *path, size_t bytes) {
    int given = 0;
    *path = 0;
    TRY(ort.HasSessionConfigEntry(options, OPTION("report"), &given));
    if (!given) return NULL;
    TRY(ort.GetSessionConfigEntry(options, OPTION("report"), path, &bytes));
    FILE *file = fopen(path, "a"); /* here, for ONNX Runtime keeps errors of GetCapability to itself */
    if (!file) return ort.CreateStatus(ORT_INVALID_ARGUMENT, "rapt: the file that the option report names cannot be written");
    fclose(file);
    return NULL;
}

static void release_provider(OrtEpFactory *self, OrtEp *ep);

static OrtStatus *create_provider(OrtEpFactory *self, const OrtHardwareDevice *const *devices,
                                  const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
                                  const OrtLogger *logger, OrtEp **out) {
    (void)devices, (void)metadata, (void)count;
    char why[256];
    int64_t threads;
    rapt_arith arith;
    const char *isa;
    TRY(read_threads(options, &threads));
    TRY(read_arith(options, &arith));
    const rapt_status usable = rapt_isa_current(&isa);
    if (usable != RAPT_OK) { /* RAPT_ISA names a kernel that cannot run */
        snprintf(why, sizeof why, "rapt: RAPT_ISA: %s", rapt_status_string(usable));
        return ort.CreateStatus(ORT_FAIL, why);
    }
    struct provider *provider = calloc(1, sizeof *provider);
    if (!provider) return ort.CreateStatus(ORT_FAIL, "rapt: there is no memory for the provider");
    provider->ep = (OrtEp){.ort_version_supported = ORT_VERSION,
                           .GetName = provider_name,
                           .GetCapability = get_capability,
                           .GetKernelRegistry = get_registry};
    provider->logger = logger;
    OrtStatus *status = read_report(options, provider->report, sizeof provider->report);
    if (!status) status = ort_ep.CreateKernelRegistry(&provider->registry);
    for (size_t i = 0; i < sizeof ops / sizeof *ops && !status; i++) {
        provider->making[i] = (struct making){ops[i], threads, arith};
        status = add_kernel(provider->registry, &provider->making[i]);
    }
    if (status) release_provider(self, &provider->ep);
    else *out = &provider->ep;
    return status;
}

static void release_provider(OrtEpFactory *self, OrtEp *ep) {
    struct provider *provider = (struct provider *)ep;
    (void)self;
    if (provider->registry) ort_ep.ReleaseKernelRegistry(provider->registry);
    free(provider);
}

/* ---- The factory -------------------------------------------------------------------------------------------------------- */

static const char *factory_name(const OrtEpFactory *self) {
    (void)self;
    return NAME;
}

static const char *vendor(const OrtEpFactory *self) {
    (void)self;
    return "rapt";
}

static uint32_t vendor_id(const OrtEpFactory *self) {
    (void)self;
    return 0; /* there is no PCI vendor */
}

static const char *version(const OrtEpFactory *self) {
    (void)self;
    return rapt_version();
}

static OrtStatus *supported_devices(OrtEpFactory *self, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **out,
                                    size_t most, size_t *found) {
    *found = 0;
    for (size_t i = 0; i < count && most && !*found; i++)
        if (ort.HardwareDevice_Type(devices[i]) == HARDWARE_CPU) {
            TRY(ort_ep.CreateEpDevice(self, devices[i], NULL, NULL, &out[0]));
            *found = 1;
        }
    return NULL;
}

/* Tensors lie in the CPU's memory, which ONNX Runtime allocates. */
static OrtStatus *no_allocator(OrtEpFactory *self, const OrtMemoryInfo *info, const OrtKeyValuePairs *options,
                               OrtAllocator **out) {
    (void)self, (void)info, (void)options;
    *out = NULL;
    return NULL;
}

static void release_no_allocator(OrtEpFactory *self, OrtAllocator *allocator) { (void)self, (void)allocator; }

static OrtStatus *no_data_transfer(OrtEpFactory *self, void **out) {
    (void)self;
    *out = NULL;
    return NULL;
}

static bool not_stream_aware(const OrtEpFactory *self) {
    (void)self;
    return false;
}

static OrtEpFactory factory = {.ort_version_supported = ORT_VERSION,
                               .GetName = factory_name,
                               .GetVendor = vendor,
                               .GetSupportedDevices = supported_devices,
                               .CreateEp = create_provider,
                               .ReleaseEp = release_provider,
                               .GetVendorId = vendor_id,
                               .GetVersion = version,
                               .CreateAllocator = no_allocator,
                               .ReleaseAllocator = release_no_allocator,
                               .CreateDataTransfer = no_data_transfer,
                               .IsStreamAware = not_stream_aware};

EXPORTED OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories,
                                      size_t most, size_t *count);
EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *self);

/* What ONNX Runtime calls first. Versions whose tables these declarations are not of are refused: those that have no version 24
 * of the API, and those that are not 1.24 or a later 1.x, which promise that the tables only grow. */
OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories,
                             size_t most, size_t *count) {
    int major = 0, minor = 0;
    char why[256];
    (void)name, (void)logger;
    *count = 0;
    const ort_function *first = base->GetApi(1); /* what errors are made with, in every version */
    OrtStatus *(*create_status)(int, const char *) = first ? (OrtStatus * (*)(int, const char *)) first[0] : NULL;
    /* NOLINTNEXTLINE(cert-err34-c): the numbers are ONNX Runtime's own, and small */
    const bool known = sscanf(base->GetVersionString(), "%d.%d", &major, &minor) == 2 && major == 1 && minor >= ORT_VERSION;
    const ort_function *api = known ? base->GetApi(ORT_VERSION) : NULL;
    if (!api || most < 1) {
        snprintf(why, sizeof why, "rapt: onnxruntime %s cannot have the provider, which needs onnxruntime 1.%d or a later 1.x",
                 base->GetVersionString(), ORT_VERSION);
        return create_status ? create_status(ORT_FAIL, why) : NULL;
    }
#define FIND(slot, result, function, parameters) ort.function = (result(*) parameters)api[slot];
    ORT_API(FIND)
#undef FIND
    const ort_function *ep = ort.GetEpApi();
#define FIND(slot, result, function, parameters) ort_ep.function = (result(*) parameters)ep[slot];
    ORT_EP_API(FIND)
#undef FIND
    factories[0] = &factory;
    *count = 1;
    return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *self) {
    (void)self;
    return NULL;
}
