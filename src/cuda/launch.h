// Queues kernels.
#pragma once

#include <cstddef>

#include "cuda/simt.h"
#include "cuda/stream.h"

namespace detent::cuda {

/// Queues a kernel (see simt.h) of so many blocks of kThreads threads, each with shared memory of so many bytes (at
/// most 48 KiB). Throws device. There is a definition for each kernel in gpu/kernels.cu.
template <class Kernel>
void launch(const Stream& stream, const Kernel& kernel, unsigned blocks, std::size_t shared_bytes = 0);

}  // namespace detent::cuda
