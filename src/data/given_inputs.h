// Inputs that no file of samples holds: given on the command line, made from token ids, made up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/load.h"
#include "data/sample.h"

namespace detent::data {

// Inputs that are one number in every sample, beside those that the samples hold: "sr=16000".

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

// Inputs of a language model that follow from its token ids: a mask of ones, positions from 0, token types of 0, and of
// a decoder an empty KV cache.

constexpr std::string_view kTokenIds = "input_ids";

/// Whether a model with these inputs reads token ids and a KV cache.
bool is_decoder(const std::vector<InputSpec>& inputs);

/// The input that data with a single array without a name feed: the only one, or the token ids; "" where neither is
/// meant.
std::string name_of_unnamed_array(const std::vector<InputSpec>& inputs);

/// Whether data may leave this input of a model that reads tokens out: 'attention_mask', 'position_ids',
/// 'token_type_ids', and of a decoder 'use_cache_branch' and 'past_key_values.*'. Positions are counted only where no
/// mask says otherwise, so they must be given with a mask.
bool follows_from_ids(const InputSpec& input, const std::vector<InputSpec>& inputs,
                      const std::vector<std::string>& given);

/// The inputs that the calibration data at `path` have to give: all of them, without those that follow from the ids and
/// that the data do not have.
std::vector<InputSpec> inputs_given(const std::filesystem::path& path, const std::vector<InputSpec>& inputs);

/// The arrays of `given` and what follows from the ids among them, in the order of `inputs`.
LoadedFile with_token_inputs(LoadedFile unit, const std::vector<InputSpec>& given,
                             const std::vector<InputSpec>& inputs);

/// How inputs are made up.
struct MadeUp {
  double from = 0, to = 1;         // of floats
  bool begins_with_zeros = false;  // a quarter of each array of floats, as silence and black are
  std::int64_t pixels = 224;       // height and width of a picture that says neither
  std::int64_t steps = 128;        // any other free dimension
  std::int64_t cached = 128;       // the length of a decoder's cache
};

/// One array for each input, the same at every call: floats as `how` says, bytes as of a picture, all other integers 1.
/// `shapes` says what is not declared, or differs. Other free dimensions become 1 (the first axis), 3 (the channels of
/// a picture, if they are free as well), or what `how` says. A decoder's mask is as long as its cache and its ids, and
/// its positions follow the cache. Throws bad_input where a shape given does not fit the input, or the rank is unknown.
/// `values` are those of --input.
std::vector<Array> synthetic_inputs(std::span<const InputSpec> inputs,
                                    const std::map<std::string, std::vector<std::int64_t>>& shapes,
                                    std::span<const std::string> values = {}, const MadeUp& how = {});

}  // namespace detent::data
