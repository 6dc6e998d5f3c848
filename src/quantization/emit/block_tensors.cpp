#include "quantization/emit/block_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "onnx/half.h"
#include "quantization/blocks/block_layout.h"
#include "quantization/blocks/element_blocks.h"
#include "quantization/formats.h"

namespace detent::quantization {
namespace {

using onnx::DataType;
using onnx::TensorData;

// Scales of one byte.
std::vector<std::byte> codes_of(std::span<const float> scales, const BlockFormat& format) {
  std::vector<std::byte> codes;
  codes.reserve(scales.size());
  for (const float scale : scales) codes.push_back(std::byte{scale_code(scale, format)});
  return codes;
}

std::vector<std::byte> bytes_of(std::span<const float> values, const BlockTensor& tensor) {
  if (tensor.format.scales != ScaleType::as_weight) return codes_of(values, tensor.format);
  const auto type = tensor.type;
  if (type == DataType::float32) {
    const auto bytes = std::as_bytes(values);
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint16_t> low(values.size());
  std::transform(values.begin(), values.end(), low.begin(),
                 type == DataType::float16 ? onnx::to_float16 : onnx::to_bfloat16);
  const auto bytes = std::as_bytes(std::span<const std::uint16_t>(low));
  return {bytes.begin(), bytes.end()};
}

// [columns, blocks] to [blocks, columns].
template <class T>
std::vector<T> transposed(const std::vector<T>& values, std::size_t columns, std::size_t blocks) {
  std::vector<T> out(values.size());
  for (std::size_t n = 0; n < columns; ++n) {
    for (std::size_t b = 0; b < blocks; ++b) out[b * columns + n] = values[n * blocks + b];
  }
  return out;
}

std::vector<std::byte> packed(const std::vector<std::uint8_t>& integers, int bits) {
  std::vector<std::byte> out(packed_bytes(integers.size(), bits));
  pack(integers, bits, out.data());
  return out;
}

// Of packed integers: the highest bit of each changes.
void subtract_middle(std::vector<std::byte>& packed, int bits) {
  const auto mask = std::byte{static_cast<unsigned char>(bits == 8 ? 0x80 : bits == 4 ? 0x88 : 0xAA)};
  for (auto& byte : packed) byte ^= mask;
}

std::size_t count_of(const std::vector<std::int64_t>& dims) {
  return static_cast<std::size_t>(*onnx::element_count(dims));
}

// [columns, blocks], or [columns] where blocks are whole columns.
std::vector<std::int64_t> scale_dims_of(const BlockTensor& tensor) {
  if (tensor.format.block == 0) return {tensor.columns};
  return {tensor.columns, tensor.format.blocks_of(tensor.rows)};
}

}  // namespace

// What is known of a weight once its integers have been found. Scales follow the integers into the file, so they are
// kept until they are written.
class BlockTensors::Found {
 public:
  Found(BlockStream stream, std::function<void(const BlockErrors&)> written)
      : stream_(std::move(stream)), written_(std::move(written)) {}

  const BlockTensor& shape() const { return stream_.shape(); }

  // Passes all stripes on and keeps their scales and zero points.
  void write_integers(const std::function<void(std::int64_t, const BlockWeight&)>& fn) {
    const auto& format = shape().format;
    scales_ = make_blocks(0, 0, format);
    const auto errors = stream_.for_each([&](std::int64_t first, const BlockWeight& stripe) {
      if (first == 0) scales_.rows = stripe.rows;
      scales_.columns += stripe.columns;
      scales_.scales.insert(scales_.scales.end(), stripe.scales.begin(), stripe.scales.end());
      if (!format.symmetric)
        scales_.zero_points.insert(scales_.zero_points.end(), stripe.zero_points.begin(), stripe.zero_points.end());
      fn(first, stripe);
    });
    if (written_) written_(errors);
  }

  // Without integers. Gone after the last reading.
  BlockWeight take_scales(bool last) {
    if (scales_.columns == 0) write_integers([](std::int64_t, const BlockWeight&) {});
    return last ? std::exchange(scales_, {}) : scales_;
  }

 private:
  BlockStream stream_;
  std::function<void(const BlockErrors&)> written_;
  BlockWeight scales_;
};

BlockTensors::BlockTensors(graph::Index& index, std::vector<BlockStream> streams,
                           std::function<void(std::size_t t, const BlockErrors& errors)> written)
    : index_(index) {
  for (std::size_t t = 0; t < streams.size(); ++t) {
    const auto tell = [written, t](const BlockErrors& errors) {
      if (written) written(t, errors);
    };
    found_.push_back(std::make_shared<Found>(std::move(streams[t]), tell));
  }
}

BlockNames BlockTensors::product(std::size_t t, const std::string& weight, bool again) {
  const auto& tensor = found_[t]->shape();
  const auto& format = tensor.format;
  const auto block_bytes = static_cast<std::int64_t>(packed_bytes(static_cast<std::size_t>(format.block), format.bits));
  return product_as(t, weight, {tensor.columns}, {format.blocks_of(tensor.rows), block_bytes}, again);
}

BlockNames BlockTensors::experts(std::size_t t, const std::string& weight, std::int64_t experts) {
  const auto& tensor = found_[t]->shape();
  return product_as(t, weight, {experts, tensor.columns / experts}, {tensor.rows * tensor.format.bits / 8}, false);
}

// Shapes begin with `outputs`; that of the integers goes on with `integers`.
BlockNames BlockTensors::product_as(std::size_t t, const std::string& weight, const std::vector<std::int64_t>& outputs,
                                    const std::vector<std::int64_t>& integers, bool again) {
  const auto& format = found_[t]->shape().format;
  const auto blocks = format.blocks_of(found_[t]->shape().rows);
  auto names = names_of(weight, format);
  const auto shape = [&](std::vector<std::int64_t> rest) {
    rest.insert(rest.begin(), outputs.begin(), outputs.end());
    return rest;
  };
  add_integers(names.integers, DataType::uint8, shape(integers), t);
  add_scales(names.scales, shape({blocks}), t, !names.zero_points.empty() || again);
  if (names.zero_points.empty()) return names;
  const auto bytes = static_cast<std::int64_t>(packed_bytes(static_cast<std::size_t>(blocks), format.bits));
  add_zero_points(names.zero_points, DataType::uint8, shape({bytes}), t, again);
  return names;
}

BlockNames BlockTensors::table(std::size_t t, const std::string& weight, DataType type) {
  const auto& tensor = found_[t]->shape();
  return shaped_as(t, weight, type, {tensor.columns, tensor.rows}, scale_dims_of(tensor));
}

BlockNames BlockTensors::shaped(std::size_t t, const std::string& weight, const std::vector<std::int64_t>& dims,
                                const std::vector<std::int64_t>& scale_dims) {
  return shaped_as(t, weight, element_type(found_[t]->shape().format), dims, scale_dims);
}

BlockNames BlockTensors::shaped_as(std::size_t t, const std::string& weight, DataType type,
                                   const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& scale_dims) {
  auto names = names_of(weight, found_[t]->shape().format);
  add_integers(names.integers, type, dims, t);
  add_scales(names.scales, scale_dims, t, !names.zero_points.empty());
  if (!names.zero_points.empty()) add_packed_zero_points(names.zero_points, type, scale_dims, t);
  return names;
}

BlockNames BlockTensors::matrix(std::size_t t, const std::string& weight) {
  const auto& tensor = found_[t]->shape();
  const auto& format = tensor.format;
  const auto [found, is_new] = matrices_.try_emplace(t);
  if (is_new) found->second = matrix_data(t);
  const auto& data = found->second;
  std::vector<std::int64_t> scale_dims{tensor.columns};
  if (format.block > 0) scale_dims.insert(scale_dims.begin(), format.blocks_of(tensor.rows));
  auto names = names_of(weight, format);
  add(names.integers, element_type(format), {tensor.rows, tensor.columns}, data.integers);
  add(names.scales, scale_type(tensor), scale_dims, data.scales);
  if (!names.zero_points.empty()) add(names.zero_points, element_type(format), scale_dims, data.zero_points);
  return names;
}

// As ONNX Runtime fuses it. Several tensors may have these data, so scales stay.
BlockTensors::MatrixData BlockTensors::matrix_data(std::size_t t) const {
  const auto found = found_[t];
  const auto& tensor = found->shape();
  const auto& format = tensor.format;
  const auto columns = static_cast<std::size_t>(tensor.columns);
  const auto blocks = static_cast<std::size_t>(format.blocks_of(tensor.rows));
  const bool is_shared = tensor.products.size() > 1;
  const bool again = !format.symmetric || is_shared;
  MatrixData data;
  data.integers = TensorData::produced(
      packed_bytes(static_cast<std::size_t>(tensor.rows) * columns, format.bits), [found](const onnx::Sink& sink) {
        const auto& shape = found->shape();
        const int offset = shape.format.symmetric ? shape.format.zero() : 0;
        PackedRows rows(shape.rows, shape.columns, shape.format.bits);
        found->write_integers(
            [&](std::int64_t first, const BlockWeight& stripe) { rows.put(first, stripe.integers, offset); });
        sink(rows.bytes());
      });
  data.scales = TensorData::produced(*onnx::byte_count(scale_type(tensor), static_cast<std::int64_t>(columns * blocks)),
                                     [found, columns, blocks, again](const onnx::Sink& sink) {
                                       const auto all = found->take_scales(!again);
                                       sink(bytes_of(transposed(all.scales, columns, blocks), found->shape()));
                                     });
  if (!format.symmetric)
    data.zero_points =
        TensorData::produced(packed_bytes(columns * blocks, format.bits), [found, is_shared](const onnx::Sink& sink) {
          const auto all = found->take_scales(!is_shared);
          const auto width = static_cast<std::size_t>(all.columns);
          sink(packed(transposed(all.zero_points, width, all.zero_points.size() / width), all.format.bits));
        });
  return data;
}

void BlockTensors::add_integers(const std::string& name, DataType type, std::vector<std::int64_t> dims, std::size_t t) {
  const auto found = found_[t];
  const auto& shape = found->shape();
  const auto block = static_cast<std::size_t>(shape.format.block_of(shape.rows));
  const auto blocks = static_cast<std::size_t>(shape.columns * shape.format.blocks_of(shape.rows));
  const bool has_sign = type == DataType::int8 || type == DataType::int4 || type == DataType::int2;
  add(name, type, std::move(dims),
      TensorData::produced(blocks * packed_bytes(block, shape.format.bits), [found, has_sign](const onnx::Sink& sink) {
        found->write_integers([&](std::int64_t, const BlockWeight& stripe) {
          auto integers = packed_columns(stripe);
          if (has_sign) subtract_middle(integers, stripe.format.bits);
          sink(integers);
        });
      }));
}

void BlockTensors::add_scales(const std::string& name, std::vector<std::int64_t> dims, std::size_t t, bool again) {
  const auto found = found_[t];
  const auto type = scale_type(found->shape());
  const auto size = *onnx::byte_count(type, static_cast<std::int64_t>(count_of(dims)));
  add(name, type, std::move(dims), TensorData::produced(size, [found, again](const onnx::Sink& sink) {
        sink(bytes_of(found->take_scales(!again).scales, found->shape()));
      }));
}

// Those of a column begin at a byte of their own.
void BlockTensors::add_zero_points(const std::string& name, DataType type, std::vector<std::int64_t> dims,
                                   std::size_t t, bool again) {
  const auto found = found_[t];
  const auto size = count_of(dims);
  add(name, type, std::move(dims), TensorData::produced(size, [found, again](const onnx::Sink& sink) {
        sink(packed_zero_points(found->take_scales(!again)));
      }));
}

// As elements of the type of the integers, packed throughout.
void BlockTensors::add_packed_zero_points(const std::string& name, DataType type, std::vector<std::int64_t> dims,
                                          std::size_t t) {
  const auto found = found_[t];
  const auto size = packed_bytes(count_of(dims), found->shape().format.bits);
  add(name, type, std::move(dims), TensorData::produced(size, [found](const onnx::Sink& sink) {
        const auto all = found->take_scales(true);
        sink(packed(all.zero_points, all.format.bits));
      }));
}

BlockNames BlockTensors::names_of(const std::string& weight, const BlockFormat& format) {
  return {index_.fresh_name(fmt::format("{}_{}{}", weight, format.floats ? 'F' : 'Q', format.bits)),
          index_.fresh_name(weight + "_scales"),
          format.symmetric ? std::string() : index_.fresh_name(weight + "_zero_points")};
}

void BlockTensors::add(const std::string& name, DataType type, std::vector<std::int64_t> dims, TensorData data) {
  tensors_.push_back({name, type, std::move(dims), std::move(data), {}, false});
}

DataType element_type(const BlockFormat& format) {
  if (format.floats) return data_type(*format.floats);
  const bool sign = format.symmetric;
  if (format.bits == 2) return sign ? DataType::int2 : DataType::uint2;
  if (format.bits == 4) return sign ? DataType::int4 : DataType::uint4;
  return sign ? DataType::int8 : DataType::uint8;
}

DataType scale_type(const BlockTensor& tensor) {
  switch (tensor.format.scales) {
    case ScaleType::float8e8m0: return DataType::float8e8m0;
    case ScaleType::float8e4m3fn: return DataType::float8e4m3fn;
    case ScaleType::as_weight: return tensor.type;
  }
  return tensor.type;
}

}  // namespace detent::quantization
