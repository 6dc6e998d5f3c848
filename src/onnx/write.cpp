#include "onnx/write.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <span>

#include "base/error.h"
#include "base/paths.h"
#include "base/text.h"
#include "onnx/bodies.h"

namespace detent::onnx {
namespace {

constexpr std::uint64_t kProtobufLimit = std::numeric_limits<std::int32_t>::max();

// A stretch of output: bytes of our own, then tensor data that are copied only when written.
struct Piece {
  std::string head;
  TensorData data;
  std::uint64_t size() const { return head.size() + data.size(); }
};

std::string length_prefix(std::uint32_t number, std::uint64_t length) {
  std::string out;
  protozero::add_varint_to_buffer(&out, (std::uint64_t{number} << 3) | 2);
  protozero::add_varint_to_buffer(&out, length);
  return out;
}

std::string delimited(std::uint32_t number, std::string_view payload) {
  std::string out;
  protozero::pbf_writer(out).add_bytes(number, payload.data(), payload.size());
  return out;
}

void add_entry(protozero::pbf_writer& writer, std::string_view key, std::string_view value) {
  std::string entry;
  protozero::pbf_writer inner(entry);
  inner.add_string(1, key.data(), key.size());
  inner.add_string(2, value.data(), value.size());
  writer.add_message(13, entry);
}

// Fields of the tensor as read that detent does not interpret (doc string, metadata, unknown ones).
std::string carried_fields(const Wire& raw) {
  std::string out;
  protozero::pbf_reader reader(raw.view().data(), raw.view().size());
  const char* begin = reader.data().data();
  while (reader.next()) {
    const auto number = reader.tag();
    reader.skip();
    const bool interpreted = (number <= 11 && number != 3) || number == 13 || number == 14;
    if (!interpreted) out.append(begin, static_cast<std::size_t>(reader.data().data() - begin));
    begin = reader.data().data();
  }
  return out;
}

std::string tensor_header(const Tensor& tensor, const std::optional<ExternalLocation>& placement) {
  std::string out;
  protozero::pbf_writer writer(out);
  for (const auto d : tensor.dims) writer.add_int64(1, d);
  writer.add_int32(2, static_cast<std::int32_t>(tensor.type));
  writer.add_string(8, tensor.name);
  if (!tensor.raw.empty()) out += carried_fields(tensor.raw);
  if (placement) {
    add_entry(writer, "location", placement->location);
    add_entry(writer, "offset", std::to_string(placement->offset));
    add_entry(writer, "length", std::to_string(tensor.data.size()));
    writer.add_enum(14, 1);
  }
  return out;
}

// The tensor as a length-delimited field `number`.
Piece tensor_piece(std::uint32_t number, const Tensor& tensor, const std::optional<ExternalLocation>& placement) {
  if (!placement && !tensor.is_external && !tensor.raw.empty()) {
    const auto view = tensor.raw.view();
    if (!tensor.data.file()) return {delimited(number, view), {}};
    return {length_prefix(number, view.size()), TensorData::mapped(tensor.data.file(), as_byte_span(view))};
  }
  std::string header = tensor_header(tensor, placement);
  if (placement) return {delimited(number, header), {}};
  header += length_prefix(9, tensor.data.size());
  return {length_prefix(number, header.size() + tensor.data.size()) + header, tensor.data};
}

std::string encode_opset(const OpsetImport& opset) {
  if (!opset.raw.empty()) return std::string(opset.raw.view());
  std::string out;
  protozero::pbf_writer writer(out);
  writer.add_string(1, opset.domain);
  writer.add_int64(2, opset.version);
  return out;
}

// Protobuf writes fields by number, unknown ones last; the same order keeps unchanged files byte-identical.
using Fields = std::multimap<std::uint32_t, Piece>;

Fields graph_fields(const Graph& graph, std::span<const Node> nodes, std::span<const ValueInfo> value_infos,
                    const LocationOfTensor& place) {
  Fields fields;
  for (const auto& node : nodes) fields.emplace(1, Piece{delimited(1, node.encode().view()), {}});
  for (const auto& t : graph.initializers) fields.emplace(5, tensor_piece(5, t, place ? place(t) : std::nullopt));
  const auto add_infos = [&](std::uint32_t number, std::span<const ValueInfo> infos) {
    for (const auto& info : infos) fields.emplace(number, Piece{delimited(number, info.raw.view()), {}});
  };
  add_infos(11, graph.inputs);
  add_infos(12, graph.outputs);
  add_infos(13, value_infos);
  for (const auto& field : graph.other) fields.emplace(field.number, Piece{std::string(field.wire.view()), {}});
  return fields;
}

Fields main_graph_fields(const Model& model, const LocationOfTensor& place) {
  if (model.bodies.empty()) return graph_fields(model.graph, model.graph.nodes, model.graph.value_infos, place);
  const auto folded = fold_bodies(model);
  return graph_fields(model.graph, folded.nodes, folded.value_infos, place);
}

std::vector<Piece> model_pieces(const Model& model, const LocationOfTensor& place) {
  Fields fields;
  for (const auto& field : model.other) fields.emplace(field.number, Piece{std::string(field.wire.view()), {}});
  for (const auto& opset : model.opsets) fields.emplace(8, Piece{delimited(8, encode_opset(opset)), {}});

  Fields inner = main_graph_fields(model, place);
  std::uint64_t size = 0;
  for (const auto& [number, piece] : inner) size += piece.size();

  std::vector<Piece> pieces;
  const auto before_graph = fields.upper_bound(7);
  for (auto it = fields.begin(); it != before_graph; ++it) pieces.push_back(std::move(it->second));
  pieces.push_back({length_prefix(7, size), {}});
  for (auto& [number, piece] : inner) pieces.push_back(std::move(piece));
  for (auto it = before_graph; it != fields.end(); ++it) pieces.push_back(std::move(it->second));
  return pieces;
}

std::uint64_t total_size(const std::vector<Piece>& pieces) {
  std::uint64_t size = 0;
  for (const auto& piece : pieces) size += piece.size();
  return size;
}

void write_pieces(const std::vector<Piece>& pieces, const Sink& sink) {
  for (const auto& piece : pieces) {
    sink(as_byte_span(piece.head));
    piece.data.write_to(sink);
  }
}

// Runtimes read what shapes follow from (sizes of Split and Resize, axes, bounds of Slice) while they load the model,
// and not from other files.
bool tells_shapes(const Tensor& tensor) {
  constexpr std::uint64_t kMostNumbers = 1024, kMostOthers = 64;  // bytes
  const bool whole = tensor.type == DataType::int64 || tensor.type == DataType::int32;
  return tensor.data.size() <= (whole ? kMostNumbers : kMostOthers);
}

// Lays tensors out in the data file in their order; large ones on page boundaries, so that readers can map them. What
// several tensors have in common lies there once.
struct DataLayout {
  std::uint64_t threshold = 0;
  std::string location;
  std::uint64_t end = 0;
  std::vector<std::pair<std::uint64_t, const Tensor*>> placed;
  std::map<std::pair<const void*, std::uint64_t>, std::uint64_t> offsets = {};  // by identity and size

  std::optional<ExternalLocation> operator()(const Tensor& tensor) {
    const std::uint64_t size = tensor.data.size();
    if (size < threshold || tells_shapes(tensor)) return std::nullopt;
    const auto [known, is_new] = offsets.try_emplace({tensor.data.identity(), size}, end);
    if (!is_new) return ExternalLocation{location, known->second};
    const std::uint64_t alignment = size >= (1U << 20) ? 4096 : 64;
    const std::uint64_t offset = (end + alignment - 1) / alignment * alignment;
    end = offset + size;
    known->second = offset;
    placed.emplace_back(offset, &tensor);
    return ExternalLocation{location, offset};
  }
};

// Every name that the data may get is as long: sizes are known before the data are.
DataLayout layout_of(const std::filesystem::path& path, const WriteOptions& options) {
  const std::string name =
      options.data_suffix.empty() ? own_data_name(path, {}) : path.filename().string() + options.data_suffix;
  return {options.external_threshold.value_or(1024), name, 0, {}, {}};
}

// Tensors are placed in `layout` only where the model needs a data file.
std::vector<Piece> laid_out(const Model& model, const WriteOptions& options, DataLayout& layout) {
  std::vector<Piece> pieces;
  if (!options.external_threshold) pieces = model_pieces(model, nullptr);
  if (options.external_threshold || total_size(pieces) > kProtobufLimit)
    pieces = model_pieces(model, [&](const Tensor& t) { return layout(t); });
  return pieces;
}

Fingerprint write_data_file(const DataLayout& layout, AtomicFile& file) {
  static constexpr std::byte kZeros[4096] = {};
  Hasher hasher;
  const auto write = [&](std::span<const std::byte> bytes) {
    hasher.add(bytes);
    file.write(bytes);
  };
  for (const auto& [offset, tensor] : layout.placed) {
    write(std::span(kZeros).first(offset - file.size()));
    tensor->data.write_to(write);
  }
  return hasher.result();
}

// A new data file goes where its model does not pass.
void check_with_data(const std::filesystem::path& data, bool is_new, const std::function<void()>& check) {
  auto unproved = is_new ? Leftover(data) : Leftover();
  try {
    check();
  } catch (...) {
    std::error_code ignored;
    if (is_new) std::filesystem::remove(data, ignored);
    throw;
  }
}

// Puts both files in place, the data first, and then removes what only the old model used. Another run for the same
// path must not be between these steps, or it could lose data that it shares with the old model. Where no lock is to be
// had, the old data stay.
void commit_with_data(const std::filesystem::path& path, AtomicFile& model, std::optional<AtomicFile>& data,
                      const decltype(WriteOptions::check)& check) {
  if (data) data->sync();
  model.sync();
  if (!data && check) check(model.temporary());
  const UniqueFd lock = lock_directory(path.parent_path());
  auto old = lock.valid() ? own_data_files(path) : std::set<std::filesystem::path>();
  if (data) {
    const bool is_new = !paths::exists(data->target());
    data->commit();
    old.erase(data->target());
    if (check) check_with_data(data->target(), is_new, [&] { check(model.temporary()); });
  }
  model.commit();
  for (const auto& file : old) {
    std::error_code ignored;
    std::filesystem::remove(file, ignored);
    failpoint("model.old_data_removed");
  }
}

// A copy of what others may not read is not for them either, unless it replaces a file that is.
void close_to_others(const AtomicFile& made, const std::filesystem::path& path, const Model& model) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!model.file || paths::exists(path)) return;
  const auto source = fs::status(model.file->path(), ignored).permissions();
  if (ignored) return;
  const auto own = fs::status(made.temporary(), ignored).permissions();
  fs::permissions(made.temporary(), own & (source | fs::perms::owner_all), ignored);
}

}  // namespace

std::string encode_model(const Model& model, const LocationOfTensor& place) {
  const auto pieces = model_pieces(model, place);
  const auto size = total_size(pieces);
  if (size > kProtobufLimit) throw resource_error("the model's graph does not fit protobuf's limit of 2 GiB");
  std::string out;
  out.reserve(size);
  write_pieces(pieces, [&](auto bytes) { out.append(as_text(bytes)); });
  return out;
}

std::string encode_tensor(const Tensor& tensor) {
  std::string out = tensor_header(tensor, std::nullopt) + length_prefix(9, tensor.data.size());
  tensor.data.write_to([&](auto bytes) { out.append(as_text(bytes)); });
  return out;
}

std::string encode_graph(const Graph& graph) {
  std::string out;
  for (const auto& [number, piece] : graph_fields(graph, graph.nodes, graph.value_infos, nullptr)) {
    out.append(piece.head);
    piece.data.write_to([&](auto bytes) { out.append(as_text(bytes)); });
  }
  return out;
}

WrittenModel written_sizes(const Model& model, const std::filesystem::path& path, const WriteOptions& options) {
  auto layout = layout_of(path, options);
  const auto pieces = laid_out(model, options, layout);
  return {total_size(pieces), layout.end, {}};
}

WrittenModel write_model(const Model& model, const std::filesystem::path& path, const WriteOptions& options) {
  const bool is_unique = options.data_suffix.empty();
  auto layout = layout_of(path, options);
  auto pieces = laid_out(model, options, layout);
  const auto place = [&](const Tensor& t) { return layout(t); };
  if (total_size(pieces) > kProtobufLimit) {
    throw resource_error("the quantized model does not fit protobuf's limit of 2 GiB",
                         "lower --set external-data-threshold");
  }

  AtomicFile model_file(path);
  close_to_others(model_file, path, model);
  std::optional<AtomicFile> data_file;
  if (!layout.placed.empty()) {
    data_file.emplace(path);
    close_to_others(*data_file, path, model);
    const Fingerprint contents = write_data_file(layout, *data_file);
    if (is_unique) {
      layout = {layout.threshold, own_data_name(path, contents), 0, {}, {}};
      pieces = model_pieces(model, place);
    }
    data_file->set_target(path.parent_path() / layout.location);
  }
  write_pieces(pieces, [&](auto bytes) { model_file.write(bytes); });
  if (is_unique) {
    commit_with_data(path, model_file, data_file, options.check);
  } else {
    if (data_file) data_file->commit();
    model_file.sync();
    if (options.check) options.check(model_file.temporary());
    model_file.commit();
  }
  if (!data_file) return {model_file.size(), 0, {}};
  return {model_file.size(), data_file->size(), data_file->target()};
}

ValueInfo renamed(const ValueInfo& info, const std::string& name) {
  if (info.name == name) return info;
  std::string out;
  protozero::pbf_writer(out).add_string(1, name);
  protozero::pbf_reader reader(info.raw.view().data(), info.raw.view().size());
  const char* begin = reader.data().data();
  while (reader.next()) {
    const auto number = reader.tag();
    reader.skip();
    if (number != 1) out.append(begin, static_cast<std::size_t>(reader.data().data() - begin));
    begin = reader.data().data();
  }
  return {name, info.type, info.shape, Wire::own(std::move(out))};
}

namespace {

// What a message has of this field, once for each time that it is there.
std::vector<std::string> fields_of(std::string_view message, std::uint32_t number) {
  std::vector<std::string> found;
  protozero::pbf_reader reader(message.data(), message.size());
  while (reader.next()) {
    if (reader.tag() == number && reader.wire_type() == protozero::pbf_wire_type::length_delimited) {
      const auto view = reader.get_view();
      found.emplace_back(view.data(), view.size());
    } else {
      reader.skip();
    }
  }
  return found;
}

std::string first_of(const std::vector<std::string>& texts) { return texts.empty() ? std::string() : texts.front(); }

// What a value's type says of its axes, beside their lengths: "DATA_BATCH".
std::vector<std::string> denotations(const ValueInfo& info) {
  std::vector<std::string> found;
  const auto tensor = first_of(fields_of(first_of(fields_of(info.raw.view(), 2)), 1));
  for (const auto& dim : fields_of(first_of(fields_of(tensor, 2)), 1)) found.push_back(first_of(fields_of(dim, 3)));
  return found;
}

// In the place of `before`, whose words about it are kept.
ValueInfo value_info(std::string name, DataType type, std::optional<std::vector<Dim>> shape, const ValueInfo* before) {
  const auto of_axes = before == nullptr ? std::vector<std::string>() : denotations(*before);
  // Whole strings rather than nested writers, which drop empty messages: a dimension without a value is one.
  std::string dims;
  for (std::size_t i = 0; shape && i < shape->size(); ++i) {
    const Dim& dim = (*shape)[i];
    std::string d;
    protozero::pbf_writer writer(d);
    if (dim.is_static()) {
      writer.add_int64(1, dim.value);
    } else if (!dim.symbol.empty()) {
      writer.add_string(2, dim.symbol);
    }
    if (i < of_axes.size() && !of_axes[i].empty()) writer.add_string(3, of_axes[i]);
    protozero::pbf_writer(dims).add_message(1, d);
  }
  std::string tensor;
  protozero::pbf_writer t(tensor);
  t.add_int32(1, static_cast<std::int32_t>(type));
  if (shape) t.add_message(2, dims);
  std::string out;
  protozero::pbf_writer info(out);
  info.add_string(1, name);
  {
    protozero::pbf_writer ty(info, 2);
    ty.add_message(1, tensor);
    const auto denotation =
        before == nullptr ? std::string() : first_of(fields_of(first_of(fields_of(before->raw.view(), 2)), 6));
    if (!denotation.empty()) ty.add_string(6, denotation);
  }
  for (const std::uint32_t number : {3U, 4U}) {  // doc_string, metadata_props
    if (before == nullptr) continue;
    for (const auto& text : fields_of(before->raw.view(), number)) info.add_string(number, text);
  }
  return {std::move(name), type, std::move(shape), Wire::own(std::move(out))};
}

}  // namespace

ValueInfo make_value_info(std::string name, DataType type, std::optional<std::vector<Dim>> shape) {
  return value_info(std::move(name), type, std::move(shape), nullptr);
}

ValueInfo retyped(const ValueInfo& info, DataType type, std::optional<std::vector<Dim>> shape) {
  return value_info(info.name, type, std::move(shape), &info);
}

namespace fs = std::filesystem;

namespace {

using protozero::pbf_reader;

constexpr std::string_view kEnd = ".data";
constexpr std::size_t kDigits = 16;

// Calls fn with the reader of each message in field `number`.
template <class Fn>
void each(pbf_reader reader, protozero::pbf_tag_type number, Fn fn) {
  while (reader.next()) {
    if (reader.tag() == number && reader.wire_type() == protozero::pbf_wire_type::length_delimited) {
      fn(reader.get_message());
    } else {
      reader.skip();
    }
  }
}

std::string location_of(pbf_reader entry) {
  std::string key, value;
  while (entry.next()) {
    const bool text = entry.wire_type() == protozero::pbf_wire_type::length_delimited;
    if (text && entry.tag() == 1) {
      key = entry.get_string();
    } else if (text && entry.tag() == 2) {
      value = entry.get_string();
    } else {
      entry.skip();
    }
  }
  return key == "location" ? value : std::string();
}

}  // namespace

std::string own_data_name(const fs::path& model, const Fingerprint& contents) {
  return fmt::format("{}.{}{}", model.filename().string(), contents.text().substr(0, kDigits), kEnd);
}

bool is_own_data_name(const fs::path& model, std::string_view name) {
  const std::string start = model.filename().string() + ".";
  if (name.size() != start.size() + kDigits + kEnd.size() || !name.starts_with(start) || !name.ends_with(kEnd))
    return false;
  return name.substr(start.size(), kDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::set<fs::path> own_data_files(const fs::path& path) {
  std::set<fs::path> files;
  try {
    const auto file = MappedFile::open(path, "model");
    const auto bytes = as_text(file->bytes());
    // ModelProto.graph 7, GraphProto.initializer 5, TensorProto.external_data 13
    each(pbf_reader(bytes.data(), bytes.size()), 7, [&](pbf_reader graph) {
      each(graph, 5, [&](pbf_reader tensor) {
        each(tensor, 13, [&](pbf_reader entry) {
          const std::string name = location_of(entry);
          if (is_own_data_name(path, name)) files.insert(path.parent_path() / name);
        });
      });
    });
  } catch (const Error&) {
    return {};
  } catch (const protozero::exception&) {
    return {};
  }
  return files;
}

}  // namespace detent::onnx
