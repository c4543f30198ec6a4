/* SPDX-License-Identifier: Apache-2.0 */
/* What the provider uses of ONNX Runtime's C API, declared anew, since no wheel carries the header.
 *
 * The API is tables of functions, which only grow at their end from version to version, so a slot's number never changes. The
 * numbers below hold for API version 24 (onnxruntime 1.24) and later ones, and test/slots.c compares them with ONNX Runtime's own
 * header where somebody has it. */
#ifndef RAPT_ORT_H
#define RAPT_ORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the API that these declarations are of: the first that lets a plugin register kernels. */
enum { ORT_VERSION = 24 };

typedef struct OrtStatus OrtStatus; /* Null is success. */
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtLogger OrtLogger;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtKernelRegistry OrtKernelRegistry;
typedef struct OrtKernelDefBuilder OrtKernelDefBuilder;
typedef struct OrtKernelDef OrtKernelDef;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtMemoryInfo OrtMemoryInfo;

/* What GetApi and the two tables are: functions whose types the lists below know. */
typedef void (*ort_function)(void);

typedef struct OrtApiBase {
    const ort_function *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

typedef struct OrtAllocator {
    uint32_t version;
    void *(*Alloc)(struct OrtAllocator *self, size_t bytes);
    void (*Free)(struct OrtAllocator *self, void *memory);
    const OrtMemoryInfo *(*Info)(const struct OrtAllocator *self);
} OrtAllocator;

/* What elements are: ONNX's numbers. */
enum { ELEMENT_FLOAT = 1, ELEMENT_INT8 = 3, ELEMENT_INT32 = 6, ELEMENT_INT64 = 7, ELEMENT_BOOL = 9, ELEMENT_FLOAT16 = 10 };
enum { ELEMENT_BFLOAT16 = 16 };

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };                       /* Codes of a status. */
enum { LOG_INFO = 1, LOG_WARNING = 2 };                                /* How severe a line of the log is. */
enum { ATTRIBUTE_INT = 1, ATTRIBUTE_FLOAT = 3, ATTRIBUTE_STRING = 5 }; /* What an attribute of a node is. */
enum { MEMORY_DEFAULT = 0 };                                           /* The memory of the provider's device. */
enum { HARDWARE_CPU = 0 };                                             /* What a device is. */

/* Slot, result, name and parameters of each function of OrtApi that is used. */
#define ORT_API(SLOT)                                                                                                            \
    SLOT(0, OrtStatus *, CreateStatus, (int code, const char *message))                                                          \
    SLOT(55, OrtStatus *, CastTypeInfoToTensorInfo, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **out))                \
    SLOT(60, OrtStatus *, GetTensorElementType, (const OrtTensorTypeAndShapeInfo *, int *out))                                   \
    SLOT(51, OrtStatus *, GetTensorMutableData, (OrtValue *, void **out))                                                        \
    SLOT(85, OrtStatus *, KernelInfoGetAttribute_float, (const OrtKernelInfo *, const char *name, float *out))                   \
    SLOT(86, OrtStatus *, KernelInfoGetAttribute_int64, (const OrtKernelInfo *, const char *name, int64_t *out))                 \
    SLOT(88, OrtStatus *, KernelContext_GetInputCount, (const OrtKernelContext *, size_t *out))                                  \
    SLOT(89, OrtStatus *, KernelContext_GetOutputCount, (const OrtKernelContext *, size_t *out))                                 \
    SLOT(90, OrtStatus *, KernelContext_GetInput, (const OrtKernelContext *, size_t index, const OrtValue **out))                \
    SLOT(91, OrtStatus *, KernelContext_GetOutput,                                                                               \
         (OrtKernelContext *, size_t index, const int64_t *dims, size_t rank, OrtValue **out))                                   \
    SLOT(93, void, ReleaseStatus, (OrtStatus *))                                                                                 \
    SLOT(132, void, ReleaseAllocator, (OrtAllocator *))                                                                          \
    SLOT(237, OrtStatus *, HasSessionConfigEntry, (const OrtSessionOptions *, const char *key, int *out))                        \
    SLOT(238, OrtStatus *, GetSessionConfigEntry, (const OrtSessionOptions *, const char *key, char *value, size_t *bytes))      \
    SLOT(244, OrtStatus *, KernelInfo_GetNodeName, (const OrtKernelInfo *, char *out, size_t *bytes))                            \
    SLOT(247, OrtStatus *, Logger_LogMessage,                                                                                    \
         (const OrtLogger *, int severity, const char *message, const char *file, int line, const char *function))               \
    SLOT(272, OrtStatus *, ReadOpAttr, (const OrtOpAttr *, int type, void *data, size_t bytes, size_t *out))                     \
    SLOT(274, OrtStatus *, KernelContext_ParallelFor,                                                                            \
         (const OrtKernelContext *, void (*body)(void *arg, size_t i), size_t total, size_t batches, void *arg))                 \
    SLOT(278, OrtStatus *, KernelInfoGetAllocator, (const OrtKernelInfo *, int memory, OrtAllocator **out))                      \
    SLOT(289, OrtStatus *, GetValueInfoName, (const OrtValueInfo *, const char **out))                                           \
    SLOT(290, OrtStatus *, GetValueInfoTypeInfo, (const OrtValueInfo *, const OrtTypeInfo **out))                                \
    SLOT(307, int, HardwareDevice_Type, (const OrtHardwareDevice *))                                                             \
    SLOT(317, const ort_function *, GetEpApi, (void))                                                                            \
    SLOT(333, OrtStatus *, Graph_GetName, (const OrtGraph *, const char **out))                                                  \
    SLOT(344, OrtStatus *, Graph_GetNumNodes, (const OrtGraph *, size_t *out))                                                   \
    SLOT(345, OrtStatus *, Graph_GetNodes, (const OrtGraph *, const OrtNode **nodes, size_t count))                              \
    SLOT(346, OrtStatus *, Graph_GetParentNode, (const OrtGraph *, const OrtNode **out))                                         \
    SLOT(349, OrtStatus *, Node_GetName, (const OrtNode *, const char **out))                                                    \
    SLOT(350, OrtStatus *, Node_GetOperatorType, (const OrtNode *, const char **out))                                            \
    SLOT(351, OrtStatus *, Node_GetDomain, (const OrtNode *, const char **out))                                                  \
    SLOT(352, OrtStatus *, Node_GetSinceVersion, (const OrtNode *, int *out))                                                    \
    SLOT(353, OrtStatus *, Node_GetNumInputs, (const OrtNode *, size_t *out))                                                    \
    SLOT(354, OrtStatus *, Node_GetInputs, (const OrtNode *, const OrtValueInfo **inputs, size_t count))                         \
    SLOT(355, OrtStatus *, Node_GetNumOutputs, (const OrtNode *, size_t *out))                                                   \
    SLOT(356, OrtStatus *, Node_GetOutputs, (const OrtNode *, const OrtValueInfo **outputs, size_t count))                       \
    SLOT(359, OrtStatus *, Node_GetNumAttributes, (const OrtNode *, size_t *out))                                                \
    SLOT(360, OrtStatus *, Node_GetAttributes, (const OrtNode *, const OrtOpAttr **attributes, size_t count))                    \
    SLOT(361, OrtStatus *, Node_GetAttributeByName, (const OrtNode *, const char *name, const OrtOpAttr **out))                  \
    SLOT(364, OrtStatus *, OpAttr_GetName, (const OrtOpAttr *, const char **out))                                                \
    SLOT(378, OrtStatus *, GetTensorData, (const OrtValue *, const void **out))                                                  \
    SLOT(414, OrtStatus *, GetTensorElementTypeAndShapeDataReference,                                                            \
         (const OrtValue *, int *type, const int64_t **dims, size_t *rank))

/* What a plugin's kernel is. Fields behind Release, which are optional, are null here. */
typedef struct OrtKernelImpl {
    uint32_t ort_version_supported;
    uint32_t flags;
    OrtStatus *(*Compute)(struct OrtKernelImpl *self, OrtKernelContext *context);
    void (*Release)(struct OrtKernelImpl *self);
    ort_function PrePackWeight, SetSharedPrePackedWeight;
} OrtKernelImpl;

typedef OrtStatus *(*OrtKernelCreateFunc)(void *state, const OrtKernelInfo *info, OrtKernelImpl **out);

/* The same of OrtEpApi. */
#define ORT_EP_API(SLOT)                                                                                                         \
    SLOT(0, OrtStatus *, CreateEpDevice,                                                                                         \
         (struct OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *metadata, const OrtKeyValuePairs *options,   \
          OrtEpDevice **out))                                                                                                    \
    SLOT(3, OrtStatus *, EpGraphSupportInfo_AddSingleNode, (OrtEpGraphSupportInfo *, const OrtNode *))                           \
    SLOT(18, OrtStatus *, CreateKernelRegistry, (OrtKernelRegistry * *out))                                                      \
    SLOT(19, void, ReleaseKernelRegistry, (OrtKernelRegistry *))                                                                 \
    SLOT(20, OrtStatus *, KernelRegistry_AddKernel,                                                                              \
         (OrtKernelRegistry *, const OrtKernelDef *, OrtKernelCreateFunc, void *state))                                          \
    SLOT(21, OrtStatus *, CreateKernelDefBuilder, (OrtKernelDefBuilder * *out))                                                  \
    SLOT(22, void, ReleaseKernelDefBuilder, (OrtKernelDefBuilder *))                                                             \
    SLOT(23, OrtStatus *, KernelDefBuilder_SetOperatorType, (OrtKernelDefBuilder *, const char *))                               \
    SLOT(24, OrtStatus *, KernelDefBuilder_SetDomain, (OrtKernelDefBuilder *, const char *))                                     \
    SLOT(25, OrtStatus *, KernelDefBuilder_SetSinceVersion, (OrtKernelDefBuilder *, int first, int last))                        \
    SLOT(26, OrtStatus *, KernelDefBuilder_SetExecutionProvider, (OrtKernelDefBuilder *, const char *))                          \
    SLOT(32, OrtStatus *, KernelDefBuilder_Build, (OrtKernelDefBuilder *, OrtKernelDef * *out))                                  \
    SLOT(33, void, ReleaseKernelDef, (OrtKernelDef *))

/* The provider of a session. What is optional and not wanted is null. */
typedef struct OrtEp {
    uint32_t ort_version_supported;
    const char *(*GetName)(const struct OrtEp *self);
    OrtStatus *(*GetCapability)(struct OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *support);
    ort_function Compile, ReleaseNodeComputeInfos, GetPreferredDataLayout, ShouldConvertDataLayoutForOp, SetDynamicOptions;
    ort_function OnRunStart, OnRunEnd, CreateAllocator, CreateSyncStreamForDevice, GetCompiledModelCompatibilityInfo;
    OrtStatus *(*GetKernelRegistry)(struct OrtEp *self, const OrtKernelRegistry **out);
    ort_function IsConcurrentRunSupported;
} OrtEp;

/* What makes providers. */
typedef struct OrtEpFactory {
    uint32_t ort_version_supported;
    const char *(*GetName)(const struct OrtEpFactory *self);
    const char *(*GetVendor)(const struct OrtEpFactory *self);
    OrtStatus *(*GetSupportedDevices)(struct OrtEpFactory *self, const OrtHardwareDevice *const *devices, size_t count,
                                      OrtEpDevice **out, size_t most, size_t *found);
    OrtStatus *(*CreateEp)(struct OrtEpFactory *self, const OrtHardwareDevice *const *devices,
                           const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
                           const OrtLogger *logger, OrtEp **out);
    void (*ReleaseEp)(struct OrtEpFactory *self, OrtEp *ep);
    uint32_t (*GetVendorId)(const struct OrtEpFactory *self);
    const char *(*GetVersion)(const struct OrtEpFactory *self);
    ort_function ValidateCompiledModelCompatibilityInfo;
    OrtStatus *(*CreateAllocator)(struct OrtEpFactory *self, const OrtMemoryInfo *info, const OrtKeyValuePairs *options,
                                  OrtAllocator **out);
    void (*ReleaseAllocator)(struct OrtEpFactory *self, OrtAllocator *allocator);
    OrtStatus *(*CreateDataTransfer)(struct OrtEpFactory *self, void **out);
    bool (*IsStreamAware)(const struct OrtEpFactory *self);
    ort_function CreateSyncStreamForDevice, GetHardwareDeviceIncompatibilityDetails, CreateExternalResourceImporterForDevice;
    ort_function GetNumCustomOpDomains, GetCustomOpDomains;
} OrtEpFactory;

/* The functions themselves, once CreateEpFactories has found them: ort.CreateStatus(...), ort_ep.CreateEpDevice(...). */
#define ORT_SLOT_POINTER(slot, result, name, parameters) result(*name) parameters;
struct ort {
    ORT_API(ORT_SLOT_POINTER)
};
struct ort_ep {
    ORT_EP_API(ORT_SLOT_POINTER)
};
extern struct ort ort;
extern struct ort_ep ort_ep;

/* Returns from the function with the status of a call that has failed. */
#define TRY(call)                                                                                                                \
    do {                                                                                                                         \
        OrtStatus *status_ = (call);                                                                                             \
        if (status_) return status_;                                                                                             \
    } while (0)

#endif
