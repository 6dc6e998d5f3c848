// Statistics as a file. The format: docs/statistics.md.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "calibration/statistics.h"

namespace detent::calibration {

/// The whole file's bytes: header with version and checksum, then the message. Equal statistics give equal bytes.
std::string encode(const Statistics& statistics);

/// Throws bad_input naming `where` for anything that encode() does not write: foreign, damaged, newer, inconsistent.
Statistics decode(std::span<const std::byte> bytes, const std::string& where);

Statistics read_statistics(const std::filesystem::path& path);
/// The file appears whole or not at all.
void write_statistics(const Statistics& statistics, const std::filesystem::path& path);

/// Throws bad_input naming `where` when `more` cannot be merged into `all`: another model, other parts or other
/// tensors.
void check_mergeable(const Statistics& all, const Statistics& more, const std::string& where);

}  // namespace detent::calibration
