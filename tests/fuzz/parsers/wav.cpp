// .wav files.
#include "data/load.h"

#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"

namespace detent::fuzz {
namespace {

void run(Bytes input) {
  try_to([&] {
    const auto wave = data::parse_wav(input, "'a.wav'");
    require(wave.frames() > 0 && wave.values.size() <= input.size(), "a file has the values that it holds");
    std::vector<float> values(std::min<std::uint64_t>(wave.frames(), 4096) + 1);
    data::read_channel(wave, wave.channels - 1, wave.frames() - (values.size() - 1), values);
    require(values.back() == 0, "behind the end is silence");
    if (!wave.is_float) {
      const auto in_range = [](float value) { return value >= -1 && value <= 1; };
      require(std::all_of(values.begin(), values.end(), in_range), "integers become -1 to 1");
    }
  });
}

const Registered wav{{"wav", run}};

}  // namespace
}  // namespace detent::fuzz
