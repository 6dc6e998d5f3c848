// Memory that sessions keep between runs.
#pragma once

#include "exec/session.h"

namespace detent::exec {

/// Gives back to the system what no session of this runtime uses at the moment: before another process runs a model, so
/// that both together take no more than one of them. The next run maps its memory anew.
void give_back_unused(const Runtime& runtime) noexcept;

}  // namespace detent::exec
