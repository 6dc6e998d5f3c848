// The input_N.pb files of ONNX test data: one serialized TensorProto.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"
#include "data/sample.h"

namespace detent::data {

struct PbTensor {
  std::string name;  // may be empty
  Array array;       // owned by `file` when the bytes lie in it
};

/// Throws bad_input on damage, on strings, on types below one byte and on data kept in another file.
PbTensor read_pb(const std::shared_ptr<const MappedFile>& file);

/// The same over memory, which is copied; `where` names it in messages.
PbTensor parse_pb(std::string_view message, const std::string& where);

}  // namespace detent::data
