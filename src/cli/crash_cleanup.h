// What would end the process without unwinding, and still has to leave nothing.
#pragma once

namespace detent::cli {

/// From here on std::terminate() (an exception in a thread of the runtime's, or where none may be thrown, as in many a
/// destructor when memory has run out) and SIGBUS (a mapped file that became shorter, or a disk that failed under one)
/// remove working files, print the one line of a failure and exit with its code. Other faults of the processor stay
/// what they are: with memory in disorder nothing should be removed.
void clean_up_at_crash();

}  // namespace detent::cli
