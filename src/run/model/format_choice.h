// Which of the formats that a node can have it gets: as the user gave it, or as this machine runs it faster.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "config/enum_names.h"
#include "data/sample.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "quantization/placement/placement.h"
#include "run/model/prepare.h"
#include "speed/kernels.h"

namespace detent::run {

/// Of each node; fp32 is among them for products, tables and recurrent layers, and others have none. Convolutions have
/// no blocks: a runtime would make floats of them at each run.
using PossibleFormats = std::vector<std::set<config::NodeFormat>>;
PossibleFormats possible_formats(const Prepared& prepared, const QuantConfig& config);

/// Of each node, by entries as in QuantizeOptions::node_formats; fp32 where none is given. Throws usage for entries
/// that match nothing, and for a format that none of the nodes of an entry, or the named node, can have.
std::vector<config::NodeFormat> given_formats(const Prepared& prepared, const PossibleFormats& possible,
                                              const std::vector<std::string>& entries);

/// The node's name as an entry of a list of names: one that looks like a pattern becomes one that matches it alone.
std::string entry_of(const std::string& node);

/// The options of the runs that make formats, for nodes by their names: `dynamic`, then static ones. Weights in blocks
/// have their bits as WeightsOnlyConfig::node_bits.
struct NodesByFormat {
  std::vector<std::string> blocks, block_bits;
  std::vector<std::string> dynamic;
  std::set<std::string> stored;  // by Node::id(), for quantization::store_weights()
  std::vector<std::string> fixed, wide, in_float;
};
NodesByFormat nodes_by_format(const Prepared& prepared, const PossibleFormats& possible,
                              const std::vector<config::NodeFormat>& formats);

struct SpeedChoice {
  std::vector<std::string> in_float;  // nodes by Node::id(), in the order of the model
  std::vector<std::string> notes;
};

/// What a note says of the products in float until it is known whether their weights are stored so.
inline constexpr std::string_view kWeightsOf8Bits = "; their weights still take 8 bits, where that does no harm";

/// The table that the user named, which has to be read and written, or the one in the user's cache: a run does as well
/// without that, and tells of it.
speed::KernelTable open_kernel_table(const std::optional<std::filesystem::path>& file,
                                     const std::string& runtime_version, std::vector<std::string>& notes);
/// Throws, before any work, where the table that the user named cannot be read, or made.
void check_kernel_table(const std::optional<std::filesystem::path>& file);
void save_kernel_table(speed::KernelTable& table, const std::optional<std::filesystem::path>& file,
                       const std::stop_token& stop, std::vector<std::string>& notes);

/// Leaves in float what this machine runs faster so, by Prepared::nodes; `placement`, at first of everything that
/// may be quantized, follows. Shapes are those of the first sample; without samples, those that the model states. Times
/// that the kernel table lacks are measured and put there; a resumed run decides as the interrupted one did, by what it
/// left in `directory`. Throws what the kernel table and sessions throw.
SpeedChoice choose_by_speed(Prepared& prepared, quantization::Placement& placement, const QuantizeOptions& options,
                            const exec::Runtime& runtime, data::SampleSource* source,
                            const std::filesystem::path& directory, const std::filesystem::path& scratch);

/// Processor seconds of one run on one thread and the first sample: of what is to be written, and of the float model,
/// timed in turns; known from the kernel table if a run before measured the same operators. Zeros: whole models are not
/// timed, see choose_by_speed(). Throws bad_input where the runtime dies of it.
struct TimesOfResult {
  double result = 0, in_float = 0;
};
TimesOfResult time_result_beside_float(const onnx::Model& model, const QuantizeOptions& options,
                                       const exec::Runtime& runtime, data::SampleSource& source,
                                       const std::filesystem::path& scratch);

}  // namespace detent::run
