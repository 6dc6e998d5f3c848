#include "base/sharing.h"

namespace detent {

void let_others_read(UniqueFd& file) noexcept { file = UniqueFd(); }

}  // namespace detent
