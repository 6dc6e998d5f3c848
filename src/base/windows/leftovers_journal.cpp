// A journal is kept for --isolate alone, which is refused (cli/windows/isolation.cpp).
#include "base/leftovers_journal.h"

namespace detent {

void keep_journal_of_leftovers(int) noexcept {}
void note_in_journal(char, const std::filesystem::path&) noexcept {}
void remove_leftovers_of(int) {}

}  // namespace detent
