#include "solve/sweep/layer_state.h"

#include "base/bytes.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/paths.h"

namespace detent::solve {

// A file: the fingerprint of the state as text, then the state.
SolverState::Stored LayerState::load() {
  if (!paths::exists(file_)) return {};
  const auto file = MappedFile::open(file_, "solver's state");
  const auto bytes = file->bytes();
  const std::size_t text = Fingerprint().text().size();
  if (bytes.size() < text) return {};
  Hasher hasher;
  hasher.add(bytes.subspan(text));
  if (as_text(bytes.first(text)) != hasher.result().text()) return {};
  return {file, bytes.subspan(text)};
}

void LayerState::save(std::span<const std::span<const std::byte>> parts) {
  Hasher hasher;
  for (const auto part : parts) hasher.add(part);
  AtomicFile file(file_);
  file.write(as_byte_span(hasher.result().text()));
  for (const auto part : parts) file.write(part);
  file.commit();
  saved_ = Clock::now();
  failpoint("finetune.state");
}

}  // namespace detent::solve
