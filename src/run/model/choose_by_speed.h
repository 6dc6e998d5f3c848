// Leaves in float what this machine runs faster so.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "quantization/placement/placement.h"
#include "run/model/prepare.h"
#include "speed/kernel_table.h"

namespace detent::run {

struct SpeedChoice {
  std::vector<std::string> in_float;  // nodes by Node::id(), in the order of the model
  std::vector<std::string> notes;
};

/// What a note says of the products in float until it is known whether their weights are stored so.
inline constexpr std::string_view kWeightsOf8Bits = "; their weights take 8 bits all the same, where that does no harm";

/// The table that the user named, which has to be read and written, or the one in the user's cache: a run does as well
/// without that, and tells of it.
speed::KernelTable open_kernel_table(const std::optional<std::filesystem::path>& file,
                                     const std::string& runtime_version, std::vector<std::string>& notes);
void save_kernel_table(speed::KernelTable& table, const std::optional<std::filesystem::path>& file,
                       const std::stop_token& stop, std::vector<std::string>& notes);

/// Leaves in float what this machine runs faster so, by Prepared::in_float; `placement`, at first of everything that
/// may be quantized, follows. Shapes are those of the first sample; without samples, those that the model states. Times
/// that the kernel table lacks are measured and put there; a resumed run decides as the interrupted one did, by what it
/// left in `directory`. Throws what the kernel table and sessions throw.
SpeedChoice choose_by_speed(Prepared& prepared, quantization::Placement& placement, const QuantizeOptions& options,
                            const exec::Runtime& runtime, data::SampleSource* source,
                            const std::filesystem::path& directory, const std::filesystem::path& scratch);

}  // namespace detent::run
