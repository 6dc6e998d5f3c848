// Inputs of a language model that follow from its token ids: a mask of ones, positions from 0, token types of 0, and of
// a decoder an empty KV cache.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/load.h"
#include "data/sample.h"

namespace detent::data {

constexpr std::string_view kTokenIds = "input_ids";

/// Whether a model with these inputs reads token ids and a KV cache.
bool is_decoder(const std::vector<InputSpec>& inputs);

/// Whether all that a model with these inputs reads follows from token ids: a decoder, or an encoder.
bool reads_tokens(const std::vector<InputSpec>& inputs);

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

/// What the input is for these token ids [row, position]. The cache's second dynamic axis has length 0. Throws
/// bad_input when the ids or the input have no such shape.
LoadedArray from_ids(const InputSpec& input, const LoadedArray& ids);

/// The arrays of `given` and what follows from the ids among them, in the order of `inputs`.
LoadedFile with_token_inputs(LoadedFile unit, const std::vector<InputSpec>& given,
                             const std::vector<InputSpec>& inputs);

}  // namespace detent::data
