// Mutates protobuf messages field by field: what comes out is a message again as a rule, so that mutations reach what
// lies behind the parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fuzz/kinds.h"

namespace detent::fuzz {

/// Changes some bytes, as LLVMFuzzerMutate() does; the result has at most so many.
using ByteMutator = std::function<std::string(std::string bytes, std::size_t max_size)>;

/// `message` with a few fields removed, repeated, moved, exchanged for others of the message or of `other`, or changed.
/// At most `max_size` bytes.
std::string mutated(std::string_view message, std::string_view other, const Kind& kind, std::size_t max_size,
                    std::uint32_t seed, const ByteMutator& change);

}  // namespace detent::fuzz
