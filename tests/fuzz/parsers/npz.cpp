// .npz files: as they are, and, since no mutation finds a checksum, as archives that are made of the input.
#include "data/numpy.h"

#include <zip.h>

#include "fuzz/fuzz.h"

namespace detent::fuzz {
namespace {

void read_all(Bytes archive) {
  try_to([&] {
    const auto npz = data::NpzFile::from_memory(archive, "'a.npz'");
    for (std::size_t i = 0; i < npz.keys().size(); ++i) {
      try_to([&] {
        // As callers do, who hold the header against their budget first.
        if (npz.header(i).data_bytes < (1 << 24)) npz.read(i);
      });
    }
  });
}

/// Members: name, whether compressed, contents.
std::vector<std::byte> packed(Parts parts) {
  zip_error_t error;
  zip_source_t* const into = zip_source_buffer_create(nullptr, 0, 0, &error);
  zip_source_keep(into);
  zip_t* const archive = zip_open_from_source(into, ZIP_TRUNCATE, &error);
  require(archive != nullptr, "libzip makes archives");
  while (!parts.empty()) {
    const bool compressed = parts.byte() % 2 == 1;
    const std::string name = parts.text();
    const Bytes contents = parts.piece();
    zip_source_t* const source = zip_source_buffer(archive, contents.data(), contents.size(), 0);
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, 0);
    if (index < 0) {
      zip_source_free(source);
    } else {
      zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), compressed ? ZIP_CM_DEFLATE : ZIP_CM_STORE,
                               1);
    }
  }
  if (zip_close(archive) != 0) zip_discard(archive);
  std::vector<std::byte> bytes;
  zip_stat_t info;
  if (zip_source_stat(into, &info) == 0 && (info.valid & ZIP_STAT_SIZE) != 0 && zip_source_open(into) == 0) {
    bytes.resize(info.size);
    require(zip_source_read(into, bytes.data(), bytes.size()) >= 0, "libzip reads what it wrote");
    zip_source_close(into);
  }
  zip_source_free(into);
  return bytes;
}

void run(Bytes input) {
  if (as_text(input).starts_with("PK")) return read_all(input);
  const auto archive = packed(Parts(input));
  read_all(archive);
}

const Registered npz{{"npz", run, {}, 0, 3}};

}  // namespace
}  // namespace detent::fuzz
