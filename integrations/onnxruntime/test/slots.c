/* SPDX-License-Identifier: Apache-2.0 */
/* ort.h beside ONNX Runtime's own header: places of functions and fields, and constants. It need only compile (test.py does it,
 * where ORT_INCLUDE names the folder of the header). What both have the same name for, macros keep apart. */
#include "onnxruntime_c_api.h"

#define ORT_API_IS(slot, result, name, parameters)                                                                               \
    _Static_assert(offsetof(OrtApi, name) == (slot) * sizeof(void *), "OrtApi." #name " is not in slot " #slot);
#define ORT_EP_API_IS(slot, result, name, parameters)                                                                            \
    _Static_assert(offsetof(OrtEpApi, name) == (slot) * sizeof(void *), "OrtEpApi." #name " is not in slot " #slot);

#undef ORT_API
#define OrtApiBase           RaptApiBase
#define OrtAllocator         RaptAllocator
#define OrtKernelImpl        RaptKernelImpl
#define OrtEp                RaptEp
#define OrtEpFactory         RaptEpFactory
#define ORT_FAIL             RAPT_ORT_FAIL
#define ORT_INVALID_ARGUMENT RAPT_ORT_INVALID_ARGUMENT
#define OrtKernelCreateFunc  RaptKernelCreateFunc
#include "../ort.h"
#undef OrtApiBase
#undef OrtAllocator
#undef OrtKernelImpl
#undef OrtEp
#undef OrtEpFactory
#undef ORT_FAIL
#undef ORT_INVALID_ARGUMENT
#undef OrtKernelCreateFunc

/* clang-format off */
ORT_API(ORT_API_IS)
ORT_EP_API(ORT_EP_API_IS)
/* clang-format on */

/* A field of a struct of ours lies where that of theirs does. */
#define SAME(ours, theirs, field)                                                                                                \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, field), #theirs "." #field " lies elsewhere")
SAME(RaptApiBase, OrtApiBase, GetApi);
SAME(RaptApiBase, OrtApiBase, GetVersionString);
SAME(RaptAllocator, OrtAllocator, Alloc);
SAME(RaptAllocator, OrtAllocator, Free);
SAME(RaptKernelImpl, OrtKernelImpl, flags);
SAME(RaptKernelImpl, OrtKernelImpl, Compute);
SAME(RaptKernelImpl, OrtKernelImpl, Release);
SAME(RaptKernelImpl, OrtKernelImpl, SetSharedPrePackedWeight);
SAME(RaptEp, OrtEp, GetName);
SAME(RaptEp, OrtEp, GetCapability);
SAME(RaptEp, OrtEp, GetKernelRegistry);
SAME(RaptEp, OrtEp, IsConcurrentRunSupported);
SAME(RaptEpFactory, OrtEpFactory, GetName);
SAME(RaptEpFactory, OrtEpFactory, GetSupportedDevices);
SAME(RaptEpFactory, OrtEpFactory, CreateEp);
SAME(RaptEpFactory, OrtEpFactory, ReleaseEp);
SAME(RaptEpFactory, OrtEpFactory, GetVendorId);
SAME(RaptEpFactory, OrtEpFactory, GetVersion);
SAME(RaptEpFactory, OrtEpFactory, CreateAllocator);
SAME(RaptEpFactory, OrtEpFactory, ReleaseAllocator);
SAME(RaptEpFactory, OrtEpFactory, CreateDataTransfer);
SAME(RaptEpFactory, OrtEpFactory, IsStreamAware);
SAME(RaptEpFactory, OrtEpFactory, GetCustomOpDomains);

#define IS(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs " is another number")
IS(ELEMENT_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
IS(ELEMENT_INT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8);
IS(ELEMENT_INT32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32);
IS(ELEMENT_INT64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
IS(ELEMENT_BOOL, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL);
IS(ELEMENT_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16);
IS(ELEMENT_BFLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16);
IS(RAPT_ORT_FAIL, ORT_FAIL);
IS(RAPT_ORT_INVALID_ARGUMENT, ORT_INVALID_ARGUMENT);
IS(LOG_INFO, ORT_LOGGING_LEVEL_INFO);
IS(LOG_WARNING, ORT_LOGGING_LEVEL_WARNING);
IS(ATTRIBUTE_INT, ORT_OP_ATTR_INT);
IS(ATTRIBUTE_FLOAT, ORT_OP_ATTR_FLOAT);
IS(ATTRIBUTE_STRING, ORT_OP_ATTR_STRING);
IS(MEMORY_DEFAULT, OrtMemTypeDefault);
IS(HARDWARE_CPU, OrtHardwareDeviceType_CPU);
