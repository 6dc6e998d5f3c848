// How long kernels take on a machine, in float and in integers. Measured once and kept in a file.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

namespace detent::speed {

/// Seconds of one run of an operator, one thread.
struct KernelTimes {
  double in_float = 0;
  double in_integers = 0;
  double quantize = 0;    // of all float activations that the integer form reads
  double dequantize = 0;  // of what it makes
  // Of the form in float: of changing what it reads into the runtime's blocked layout, and what it makes back.
  double into_blocks = 0;
  double out_of_blocks = 0;
};

/// Times by operator: type, shapes and attributes as one line of text.
class KernelTable {
 public:
  /// Reads the file. No such file, or no path: an empty table. Throws bad_input for a file that is none of detent's.
  explicit KernelTable(std::optional<std::filesystem::path> file);

  /// Null: not in the table.
  const KernelTimes* find(const std::string& kernel) const;
  /// What is there stays as it is.
  void add(const std::string& kernel, const KernelTimes& times) { times_.try_emplace(kernel, times); }

  /// Adds what it holds to the file. What another process has added in the meantime wins, so that all decide alike.
  /// Throws usage when the file cannot be written, or another process holds it for ten seconds.
  void save(const std::stop_token& stop);

 private:
  void read();
  void write();

  std::optional<std::filesystem::path> file_;
  std::map<std::string, KernelTimes> times_;
};

/// The table of this machine and this version of ONNX Runtime, in $XDG_CACHE_HOME/detent or ~/.cache/detent. Unset:
/// there is no such folder.
std::optional<std::filesystem::path> default_kernel_table(const std::string& runtime_version);

}  // namespace detent::speed
