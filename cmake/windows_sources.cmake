# What a build for Windows has in the place of sources that call Linux: base/windows stands for POSIX, whose headers are in
# base/windows/posix; what has a file of the same name in a folder windows/ of its room is left out.
file(GLOB windows_sources CONFIGURE_DEPENDS src/*/windows/*.cpp)
list(FILTER windows_sources EXCLUDE REGEX "src/cli/|/names.cpp")
function(put_in_place sources)  # of files of the same names
  set(all ${${sources}})
  foreach(source IN LISTS ARGN)
    string(REPLACE "/windows/" "/" replaced ${source})
    list(REMOVE_ITEM all ${replaced})
  endforeach()
  set(${sources} ${all} ${ARGN} PARENT_SCOPE)
endfunction()
put_in_place(core_sources ${windows_sources})

set_property(SOURCE src/profile/machine.cpp APPEND PROPERTY COMPILE_OPTIONS ${DETENT_WIDE_VECTORS})

# Of detent's own sources alone: the libraries that it is built with know Windows.
add_library(detent_posix INTERFACE)
target_include_directories(detent_posix SYSTEM INTERFACE src/base/windows/posix)
# ONNX Runtime's headers are written for Microsoft's compiler.
target_compile_options(detent_posix INTERFACE -D_stdcall=__stdcall "-D_Return_type_success_(expression)=")
target_compile_definitions(detent_posix INTERFACE _FILE_OFFSET_BITS=64 WIN32_LEAN_AND_MEAN NOMINMAX UNICODE _WIN32_WINNT=0x0A00)
