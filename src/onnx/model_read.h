// Tensors whose data lie in another file may stand anywhere in a model: in attributes, in bodies, in functions, as
// sparse values. Only the initializers of the main graph keep their data apart; all others are read by the rules of
// tensor.h and stand in the model from then on, so that nothing downstream resolves a location a second time.
#pragma once

#include <cstdint>
#include <string>

#include "onnx/tensor.h"
#include "onnx/wire.h"

namespace detent::onnx {

/// The messages that tensors can stand in (onnx.proto3).
enum class Message { graph, node, attribute, tensor, sparse_tensor, function, training_info };

/// Rewrites the messages of one model.
class ExternalInliner {
 public:
  /// More than this in all is refused: it is copied into memory.
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

  ExternalInliner(ExternalFiles& files, std::string where, std::uint64_t max_bytes = kMaxBytes)
      : files_(files), where_(std::move(where)), left_(max_bytes), max_(max_bytes) {}

  /// `raw` as it is when no tensor inside of it is external, else a copy with all data inline. Throws bad_input for
  /// data that the rules refuse, for messages nested deeper than 64 graphs, for a message that stands twice where one
  /// is allowed (readers merge the two, each in its own way), and beyond max_bytes.
  Wire inlined(Message kind, const Wire& raw);

 private:
  /// The new message in `out`; false: nothing changed and `out` is not to be used.
  bool rewrite(Message kind, const Wire& raw, int depth, std::string& out);
  bool rewrite_tensor(const Wire& raw, std::string& out);

  ExternalFiles& files_;
  std::string where_;
  std::uint64_t left_;
  std::uint64_t max_;
};

}  // namespace detent::onnx
