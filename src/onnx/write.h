// Serializing models. What was not changed is written back byte for byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/numbers.h"
#include "onnx/model.h"

namespace detent::onnx {

/// Where a tensor's data lie outside of the model file.
struct ExternalLocation {
  std::string location;
  std::uint64_t offset = 0;
};
/// Decides for each initializer whether its data stay inline (nullopt) or are only referred to.
using LocationOfTensor = std::function<std::optional<ExternalLocation>(const Tensor&)>;

/// The whole model in memory; meant for models whose large data are placed outside. Throws resource beyond 2 GiB.
std::string encode_model(const Model& model, const LocationOfTensor& place);

struct WriteOptions {
  /// Tensors of at least this many bytes go to a file beside the model, but small ones that shapes may follow from;
  /// nullopt: everything inline as long as the file stays below protobuf's 2 GiB, else all tensors of 1 KiB and more go
  /// beside it.
  std::optional<std::uint64_t> external_threshold;
  /// The data file's name is the model's and this; empty: a name of its own for these data (onnx/write.h). With a
  /// given name an old data file is replaced before the model is: only for folders that are put in place as a whole.
  std::string data_suffix = {};
  /// Called with the whole model under a temporary name, its data in place, before it takes its own name. What it
  /// throws leaves what stands at the path as it is.
  std::function<void(const std::filesystem::path& model)> check = {};
};

/// What was written.
struct WrittenModel {
  std::uint64_t model_bytes = 0;
  std::uint64_t data_bytes = 0;     // of the file beside the model; 0 when there is none
  std::filesystem::path data_file;  // empty when there is none
};

/// Writes `path` whole or not at all; a data file beside it is put in place first. Data that tensors share (copies of
/// one TensorData) lie there once; inline each tensor has its own. Whatever stops the process, what
/// stands at `path` is the old model with its data or the new one with its own; the data file of an old model that
/// detent wrote is removed at last. Throws usage when the place cannot be written and resource when the disk is full.
WrittenModel write_model(const Model& model, const std::filesystem::path& path, const WriteOptions& options = {});

/// What write_model() would write, without making any data. `data_file` stays empty.
WrittenModel written_sizes(const Model& model, const std::filesystem::path& path, const WriteOptions& options = {});

/// A TensorProto and a GraphProto with all data inline, as attributes hold them.
std::string encode_tensor(const Tensor& tensor);
std::string encode_graph(const Graph& graph);

/// The same under another name.
ValueInfo renamed(const ValueInfo& info, const std::string& name);

/// A ValueInfoProto of a tensor.
ValueInfo make_value_info(std::string name, DataType type, std::optional<std::vector<Dim>> shape);

// Names of the data files that detent puts beside a model, `MODEL.<16 hex digits>.data`: the digits are a fingerprint
// of what is in the file. A new model and an old one never share a data file with different contents, so the old model
// works until the new one stands in its place.

std::string own_data_name(const std::filesystem::path& model, const Fingerprint& contents);

/// Whether own_data_name() may have given `name` to a data file of this model.
bool is_own_data_name(const std::filesystem::path& model, std::string_view name);

/// The data files beside the model at `path` that it refers to and that own_data_name() named; none where the path
/// leads to no model. Opens no data file.
std::set<std::filesystem::path> own_data_files(const std::filesystem::path& path);

/// A value's declaration with another type and shape. What else it says (doc_string, denotations, metadata) is kept.
ValueInfo retyped(const ValueInfo& info, DataType type, std::optional<std::vector<Dim>> shape);

}  // namespace detent::onnx
