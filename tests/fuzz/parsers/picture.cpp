// Pictures: JPEG and PNG.
#include "data/pictures.h"

#include "fuzz/fuzz.h"

namespace detent::fuzz {
namespace {

void run(Bytes input) {
  const MemoryFile file(input);
  try_to([&] {
    const auto picture = data::read_picture(file.path());
    require(picture.width > 0 && picture.height > 0, "a picture has pixels");
    require(picture.rgb.size() == 3 * picture.width * picture.height, "each pixel has three bytes");
    if (picture.rgb.size() > 1 << 20) return;
    for (const std::size_t size : {1, 7, 64}) {
      const auto other = data::resized(picture, size, 9);
      require(other.rgb.size() == 3 * 9 * size, "a picture gets the size that is asked for");
    }
  });
}

const Registered picture{{"picture", run, {}, 0, 20}};

}  // namespace
}  // namespace detent::fuzz
