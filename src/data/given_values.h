// Inputs that are one number in every sample, beside those that the samples hold: "sr=16000".
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/sample.h"

namespace detent::data {

/// Number of an input by its name, as text: an input of integers takes whole numbers of its own range.
using GivenValues = std::vector<std::pair<std::string, std::string>>;

/// Entries "NAME=NUMBER". Throws usage for anything else, and for a name that is given twice.
GivenValues parse_given_values(std::span<const std::string> entries);

/// The number of an input, or nullptr.
const std::string* number_of(const GivenValues& values, const std::string& name);

/// The inputs that samples have to hold. Throws usage for a name that no input has, a number that its type does not
/// have, and where nothing is left.
std::vector<InputSpec> without_given(const std::vector<InputSpec>& inputs, const GivenValues& values);

/// An input of this number everywhere, for a sample of so many rows: the one free dimension that its shape may have.
/// Throws usage where there are more, or its rank is unknown.
Array array_of(const InputSpec& input, const std::string& number, std::int64_t rows);

/// What `open` makes of the other inputs, with the given ones in their places.
std::unique_ptr<SampleSource> with_given(
    std::vector<InputSpec> inputs, std::span<const std::string> entries,
    const std::function<std::unique_ptr<SampleSource>(std::vector<InputSpec>)>& open);

}  // namespace detent::data
