// `-o -`: the model goes to standard output.
#pragma once

#include <optional>

#include "base/file.h"
#include "detent/quantize.h"

namespace detent::cli {

/// With the output "-" the run writes into a private directory in Resources::work_dir, and send() copies the model to
/// standard output; until then all that is printed goes to standard error. With any other output nothing is changed.
class ModelToStdout {
 public:
  /// Changes `options.output`. Throws usage where standard output is a terminal, and for options that need a file:
  /// --resume, --set external-data-threshold, a folder as model.
  explicit ModelToStdout(QuantizeOptions& options);

  bool is_wanted() const noexcept { return directory_.has_value(); }
  /// Throws bad_input when the weights are in a file of their own, resource when the model cannot be written.
  void send();

 private:
  std::optional<TempDir> directory_;
  UniqueFd stdout_;
};

}  // namespace detent::cli
