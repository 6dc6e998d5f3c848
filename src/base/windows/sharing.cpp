#include "base/sharing.h"

namespace detent {

void release_to_others(UniqueFd& file) noexcept { file = UniqueFd(); }

}  // namespace detent
