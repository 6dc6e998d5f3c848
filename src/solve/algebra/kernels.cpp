#include "solve/algebra/kernels.h"

#include <fmt/format.h>

#include "base/error.h"
#include "shim/library.h"

namespace detent::solve {

const Kernels& cpu_kernels(const std::optional<std::filesystem::path>& plugin) {
  static const Kernels& kernels = [&]() -> const Kernels& {
    const shim::Library library = shim::load_cpu_plugin(plugin);
    const Kernels* found = reinterpret_cast<KernelsEntry*>(library.symbol(kKernelsEntryName))(kKernelsVersion);
    if (found == nullptr) {
      throw device_error(fmt::format("the plugin '{}' is of another version than this detent", library.name()),
                         "use the libdetent_cpu.so that was built with it");
    }
    return *found;
  }();
  return kernels;
}

}  // namespace detent::solve
