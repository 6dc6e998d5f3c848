// Private to exec/: ONNX Runtime's C++ API without its link-time entry point, which is looked up at run time.
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>
#undef ORT_API_MANUAL_INIT
