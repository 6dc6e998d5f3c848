// Feeds arbitrary bytes to the readers of calibration files: .npy, .npz and input_N.pb. Anything but detent::Error is a
// bug.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "data/npy.h"
#include "data/npz.h"
#include "data/pb.h"
#include "detent/error.h"

namespace {

template <typename Read>
void try_to(Read read) {
  try {
    read();
  } catch (const detent::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try_to([&] {
    const detent::data::NpyHeader header = detent::data::parse_npy_header(file, file.size(), "'fuzz.npy'");
    detent::data::npy_array(header, file.subspan(header.data_offset), nullptr, "'fuzz.npy'");
  });
  try_to([&] {
    const detent::data::NpzFile npz = detent::data::NpzFile::from_memory(file, "'fuzz.npz'");
    for (std::size_t i = 0; i < npz.keys().size(); ++i) try_to([&] { npz.read(i); });
  });
  try_to([&] { detent::data::parse_pb(detent::as_text(file), "'fuzz.pb'"); });
  return 0;
}
