// What a program does before anything else.
#pragma once

#include <string>
#include <vector>

namespace detent {

/// Opens /dev/null in the place of each of the descriptors 0, 1 and 2 that is closed, so that no file of the run takes
/// it and gets what is printed. On Windows also: files and pipes take what is written byte for byte, and consoles take
/// UTF-8 and colours.
void open_standard_descriptors() noexcept;

/// The words of the command line, on Windows in UTF-8.
std::vector<std::string> command_line(int argc, char** argv);

}  // namespace detent
