// All kernels, for the files that define launch() for each: gpu/kernels.cu, and the tests' one for the host.
#pragma once

#include "cuda/observe_kernel.h"
#include "cuda/pass_kernels.h"
#include "cuda/row_kernels.h"
#include "cuda/simt.h"
#include "cuda/step_kernels.h"

// clang-format off
#define DETENT_KERNELS \
  DETENT_KERNEL(ToBfloat16) DETENT_KERNEL(Observe<true>) DETENT_KERNEL(Observe<false>) \
  DETENT_KERNEL(AdaRoundStepKernel) DETENT_KERNEL(AdaQuantStepKernel) DETENT_KERNEL(RowUnitsKernel<AdaRoundBlockNumbers>) \
  DETENT_KERNEL(RowUnitsKernel<AdaQuantBlockNumbers>) DETENT_KERNEL(AdvanceKernel) \
  DETENT_KERNEL(DequantizeKernel) DETENT_KERNEL(ResidualKernel) DETENT_KERNEL(RowDotKernel) DETENT_KERNEL(DescentKernel) \
  DETENT_KERNEL(GatherKernel) DETENT_KERNEL(GatherOutputsKernel) DETENT_KERNEL(GatherPositionsKernel) DETENT_KERNEL(RowSumsKernel) \
  DETENT_KERNEL(ColumnSumsKernel) DETENT_KERNEL(MirrorKernel) \
  DETENT_KERNEL(WeightsToFilterKernel) DETENT_KERNEL(FilterToWeightsKernel) DETENT_KERNEL(LossKernel) DETENT_KERNEL(OutputSumsKernel) \
  DETENT_KERNEL(BiasStepKernel) DETENT_KERNEL(ChannelsLastKernel)
// clang-format on
