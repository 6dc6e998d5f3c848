# Puts the report's page together and writes it as a C++ file: what stands before the data, and what stands after.
# Called with FOLDER (this one), LIBRARY (files of the chart library, in order, separated by ':') and OUTPUT.

# Each uses only what stands before it.
set(scripts units dom plot layers tensors device outcome report)

function(join_files result)
  set(all "")
  foreach(file IN LISTS ARGN)
    file(READ ${file} text)
    string(APPEND all "${text}")
  endforeach()
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

string(REPLACE ":" ";" library_files "${LIBRARY}")
list(TRANSFORM scripts PREPEND ${FOLDER}/)
list(TRANSFORM scripts APPEND .js)
join_files(LIBRARY_TEXT ${library_files})
join_files(SCRIPT_TEXT ${scripts})
join_files(STYLE_TEXT ${FOLDER}/report.css)
join_files(LICENSE_TEXT ${FOLDER}/d3_license.txt)
join_files(page ${FOLDER}/report.html)
foreach(part STYLE LICENSE LIBRARY SCRIPT)
  string(REPLACE "@${part}@" "${${part}_TEXT}" page "${page}")
endforeach()
string(REPLACE "@DATA@" ")DETENT\";\nconst std::string_view report_page_tail = R\"DETENT(" page "${page}")
file(WRITE ${OUTPUT} "// Made by embed.cmake.
#include <string_view>

namespace detent::profile {
extern const std::string_view report_page_head;
extern const std::string_view report_page_tail;
const std::string_view report_page_head = R\"DETENT(${page})DETENT\";
}  // namespace detent::profile
")
