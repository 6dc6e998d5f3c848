# The libraries that detent is built with: those that are installed, or, where DETENT_FETCH says so, sources that are downloaded,
# checked and linked in. Every list names an installed library first.
set(DETENT_FETCH NONE CACHE STRING "Libraries to download and link in: NONE, MISSING (those not installed) or ALL")
set_property(CACHE DETENT_FETCH PROPERTY STRINGS NONE MISSING ALL)
if(NOT DETENT_FETCH MATCHES "^(NONE|MISSING|ALL)$")
  message(FATAL_ERROR "DETENT_FETCH is '${DETENT_FETCH}', which is none of: NONE, MISSING, ALL")
endif()
include(cmake/download.cmake)
set(missing)

# RESULT is true where a library that was looked for (FOUND) is to be downloaded; with NONE, its absence is kept for the message below.
macro(detent_lacks found package result)
  set(${result} FALSE)
  if(DETENT_FETCH STREQUAL ALL OR (DETENT_FETCH STREQUAL MISSING AND NOT ${found}))
    set(${result} TRUE)
  elseif(NOT ${found})
    list(APPEND missing ${package})
  endif()
endmacro()

# A static library of downloaded sources, whose warnings are not ours.
function(add_fetched target include)
  add_library(${target} STATIC EXCLUDE_FROM_ALL ${ARGN})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden)
  target_compile_options(${target} PRIVATE -w -O2)
  target_include_directories(${target} SYSTEM PUBLIC ${include})
endfunction()

# GCC does not align the stack of Windows to vectors of more than 16 bytes, and reads them as if it did.
if(WIN32)
  set(DETENT_WIDE_VECTORS -Wa,-muse-unaligned-vector-move)
endif()

find_package(Threads REQUIRED)
if(NOT DETENT_FETCH STREQUAL NONE)
  check_language(C)
  if(NOT CMAKE_C_COMPILER)
    message(FATAL_ERROR "detent needs a C compiler for the libraries that it downloads: install gcc or clang")
  endif()
  enable_language(C)
endif()
if(NOT DETENT_FETCH STREQUAL ALL)
  find_package(fmt QUIET)
  find_package(CLI11 QUIET)
  find_package(nlohmann_json QUIET)
  find_package(yaml-cpp QUIET)
endif()

detent_lacks(fmt_FOUND libfmt-dev lacks)
if(lacks)
  detent_download(fmt pool/main/f/fmtlib/fmtlib_10.1.1+ds1.orig.tar.gz
                  7000f214d2628f04174822f8048c573f1608194408d7931121595a03f1c18a17 folder)
  add_fetched(detent_fmt ${folder}/include ${folder}/src/format.cc ${folder}/src/os.cc)
  add_library(fmt::fmt ALIAS detent_fmt)
endif()

detent_lacks(CLI11_FOUND libcli11-dev lacks)
if(lacks)
  detent_download(CLI11 pool/main/c/cli11/libcli11-dev_2.4.1+ds-2_all.deb
                  3b44d5a1edc75b413b2dddfa81bcf7dac05dae8dae502e7d818d9c2b03392023 folder)
  add_library(CLI11::CLI11 INTERFACE IMPORTED)
  target_include_directories(CLI11::CLI11 SYSTEM INTERFACE ${folder}/usr/include)
endif()

detent_lacks(nlohmann_json_FOUND nlohmann-json3-dev lacks)
if(lacks)
  detent_download(nlohmann_json pool/main/n/nlohmann-json3/nlohmann-json3-dev_3.11.3-2.1_all.deb
                  741a6a32f61a14eaf9560ba1814b27da8e78fa3b9bed9e8867ab46316ddf3793 folder)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
  target_include_directories(nlohmann_json::nlohmann_json SYSTEM INTERFACE ${folder}/usr/include)
endif()

detent_lacks(yaml-cpp_FOUND libyaml-cpp-dev lacks)
if(lacks)
  detent_download(yaml-cpp pool/main/y/yaml-cpp/yaml-cpp_0.8.0+dfsg.orig.tar.xz
                  32c85a5f36633a9005b20261b35fccb0d8ec69e9ef16c67de7d5d007944e3709 folder)
  file(GLOB sources ${folder}/src/*.cpp)
  add_fetched(detent_yaml ${folder}/include ${sources})
  target_compile_options(detent_yaml PRIVATE -include cstdint)  # newer standard libraries no longer bring it along
  target_compile_definitions(detent_yaml PUBLIC YAML_CPP_STATIC_DEFINE)
  set(yaml detent_yaml)
elseif(TARGET yaml-cpp::yaml-cpp)
  set(yaml yaml-cpp::yaml-cpp)
else()
  set(yaml yaml-cpp)
endif()

find_path(PROTOZERO_INCLUDE protozero/pbf_reader.hpp)
detent_lacks(PROTOZERO_INCLUDE libprotozero-dev lacks)
if(lacks)
  detent_download(protozero pool/main/p/protozero/libprotozero-dev_1.8.1-1_amd64.deb
                  cf5d561c5f13aafa27cb9e89bcfb687b9265ed11a8717ba2d3839c3f21ed6f6f folder)
  set(PROTOZERO_INCLUDE ${folder}/usr/include)
endif()

find_path(XXHASH_INCLUDE xxhash.h)
find_library(XXHASH_LIBRARY xxhash)
set(found FALSE)
if(XXHASH_INCLUDE AND XXHASH_LIBRARY)
  set(found TRUE)
endif()
detent_lacks(found libxxhash-dev lacks)
if(lacks)
  detent_download(xxhash pool/main/x/xxhash/xxhash_0.8.3.orig.tar.gz
                  aae608dfe8213dfd05d909a57718ef82f30722c392344583d3f39050c7f29a80 folder)
  set(sources ${folder}/xxhash.c)
  set(DETENT_HAS_XXH_DISPATCH FALSE)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND sources ${folder}/xxh_x86dispatch.c)
    set(DETENT_HAS_XXH_DISPATCH TRUE)
  endif()
  add_fetched(detent_xxhash ${folder} ${sources})
  target_compile_options(detent_xxhash PRIVATE ${DETENT_WIDE_VECTORS})
  set(XXHASH_INCLUDE ${folder})
  set(XXHASH_LIBRARY detent_xxhash)
elseif(found)
  # Debian's xxHash can choose the widest vectors at run time; a plain build of it cannot.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES ${XXHASH_INCLUDE})
  set(CMAKE_REQUIRED_LIBRARIES ${XXHASH_LIBRARY})
  check_cxx_source_compiles("#include <xxhash.h>
#include <xxh_x86dispatch.h>
int main() { return static_cast<int>(XXH3_64bits(\"\", 0)); }" DETENT_HAS_XXH_DISPATCH)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()

# libzip's own CMake package insists on its command-line tools, which Debian packs apart.
find_path(LIBZIP_INCLUDE zip.h)
find_library(LIBZIP_LIBRARY zip)
set(found FALSE)
if(LIBZIP_INCLUDE AND LIBZIP_LIBRARY)
  set(found TRUE)
endif()
detent_lacks(found libzip-dev lacks)
if(lacks)
  detent_download(zlib pool/main/z/zlib/zlib_1.3.dfsg+really1.3.1.orig.tar.gz
                  60dd315c07f616887caa029408308a018ace66e3d142726a97db164b3b8f69fb folder)
  file(GLOB sources ${folder}/*.c)
  add_fetched(detent_zlib ${folder} ${sources})
  target_compile_definitions(detent_zlib PRIVATE HAVE_UNISTD_H HAVE_STDARG_H)
  add_library(ZLIB::ZLIB INTERFACE IMPORTED)  # libzip would install and export one that is built here
  target_link_libraries(ZLIB::ZLIB INTERFACE detent_zlib)
  # What libzip finds when it looks for zlib.
  file(WRITE ${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/zlib-config.cmake "set(ZLIB_FOUND TRUE)\nset(ZLIB_INCLUDE_DIRS ${folder})\n")
  file(WRITE ${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/zlib-config-version.cmake "set(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  detent_download(libzip pool/main/libz/libzip/libzip_1.7.3.orig.tar.xz
                  a60473ffdb7b4260c08bfa19c2ccea0438edac11193c3afbbb1f17fbcf6c6132 folder)
  block(SCOPE_FOR VARIABLES)
    set(CMAKE_POLICY_VERSION_MINIMUM 3.5)
    set(CMAKE_WARN_DEPRECATED OFF)
    set(CMAKE_POLICY_DEFAULT_CMP0063 NEW)
    set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
    set(CMAKE_POSITION_INDEPENDENT_CODE ON)
    set(CMAKE_C_VISIBILITY_PRESET hidden)
    set(HAVE_ARC4RANDOM OFF CACHE INTERNAL "")  # glibc has it since 2.36, and only encryption would use it
    foreach(part IN ITEMS BUILD_SHARED_LIBS BUILD_TOOLS BUILD_REGRESS BUILD_EXAMPLES BUILD_DOC ENABLE_COMMONCRYPTO ENABLE_GNUTLS
            ENABLE_MBEDTLS ENABLE_OPENSSL ENABLE_WINDOWS_CRYPTO ENABLE_BZIP2 ENABLE_LZMA)
      set(${part} OFF)
    endforeach()
    add_subdirectory(${folder} ${PROJECT_BINARY_DIR}/libzip EXCLUDE_FROM_ALL SYSTEM)
  endblock()
  target_compile_options(zip PRIVATE -w)
  set(LIBZIP_INCLUDE ${folder}/lib)
  set(LIBZIP_LIBRARY zip)
endif()

# The last RE2 that needs no Abseil.
find_path(RE2_INCLUDE re2/re2.h)
find_library(RE2_LIBRARY re2)
set(found FALSE)
if(RE2_INCLUDE AND RE2_LIBRARY)
  set(found TRUE)
endif()
detent_lacks(found libre2-dev lacks)
if(lacks)
  detent_download(re2 pool/main/r/re2/re2_20220601+dfsg.orig.tar.xz
                  3bc61251da3b0b97be40a8a127818c517c62516e4eda11fc901d29496663df54 folder)
  file(GLOB sources ${folder}/re2/*.cc)
  add_fetched(detent_re2 ${folder} ${sources} ${folder}/util/rune.cc ${folder}/util/strutil.cc cmake/re2_tables.cc)
  target_link_libraries(detent_re2 PUBLIC Threads::Threads)
  set(RE2_INCLUDE ${folder})
  set(RE2_LIBRARY detent_re2)
endif()

# Left out where it is not installed: files are then read and written by threads.
option(DETENT_URING "Let intermediate tensors go to disk through io_uring, where liburing is installed" ON)
find_path(LIBURING_INCLUDE liburing.h)
find_library(LIBURING_LIBRARY uring)

# ONNX Runtime is loaded at run time and never linked, so its headers are all that a build needs.
find_path(DETENT_ONNXRUNTIME_INCLUDE onnxruntime_cxx_api.h
          HINTS ${DETENT_DEPS}/deps/onnxruntime-headers PATHS /usr/include/onnxruntime
          DOC "Folder of onnxruntime_cxx_api.h" NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
if(NOT DETENT_ONNXRUNTIME_INCLUDE)
  if(DETENT_FETCH STREQUAL NONE)
    message(FATAL_ERROR "The headers of ONNX Runtime are missing: run scripts/setup.sh, or set DETENT_ONNXRUNTIME_INCLUDE, or DETENT_FETCH=MISSING")
  endif()
  detent_download(onnxruntime-headers pool/main/o/onnxruntime/libonnxruntime-dev_1.21.0+dfsg-1_amd64.deb
                  14f7d959d5deacbcf1504830d4189f91fc67382b399ed9ae9d3aa9c4050ced08 folder)
  set(DETENT_ONNXRUNTIME_INCLUDE ${folder}/usr/include/onnxruntime)
endif()

# D3, which draws the report's charts.
set(DETENT_D3 /usr/share/nodejs CACHE PATH "Folder of d3-scale/dist/d3-scale.min.js and its like")
set(d3_packages
    array n/node-d3-array/node-d3-array_3.2.0+~cs5.0.6-2_all.deb 31c3aa8bad13bf106e7ee39951b4c57469991dc7cc5a252a65d2e9ebe9e1432e
    collection n/node-d3-collection/node-d3-collection_1.0.7+~1.0.10-1_all.deb 38c7cb454d9ef0e0f8b3ac898f13615fae9e41b9872992d8a6e672e93c0291bc
    color n/node-d3-color/node-d3-color_1.4.1+~1.4.2-1_all.deb aa8dcf13d6d1f0e4b11726d8c9d7d3c53df70c7a87444a685776cead92648b2d
    interpolate n/node-d3-interpolate/node-d3-interpolate_1.4.0+~1.4.2-1_all.deb dc0fac7767602ed8dbad27fbfaa16f6a3edefb860986cef0623f4a254e40d4d4
    format d/d3-format/libjs-d3-format_1.4.1-7_all.deb fcf7db27391ac9ab96abd756dfccafc4fd810f671cb15d3efc97b4a43a2c8e08
    time n/node-d3-time/node-d3-time_1.1.0+~1.1.1-1_all.deb 023003718daae91a6effc6dfba5e6b5ea58121d310b55a3ef011b1037c3c0dfe
    time-format n/node-d3-time-format/node-d3-time-format_2.3.0+~2.3.1-1_all.deb 37a4fdd73e90fdbdc5fb34e42785e9eccaa44bc453a7dc3cb20d36245aa844ae
    scale n/node-d3-scale/node-d3-scale_2.2.2+~2.2.6-1_all.deb cd1eae6df4d464968d9ee189ddd0051417a3e36df29ef2cae9ec4073a1fb8c6e
    path n/node-d3-path/node-d3-path_1.0.9+~1.0.9-1_all.deb 3f7698a4b98d08705b4f7a60b92c1d78113a69cb78f20c9339aa772e0897ba2b
    shape n/node-d3-shape/node-d3-shape_1.3.7+~1.3.8-1_all.deb ac20f332ea1469ac42e88a1c62d29d16cc7950f240addb26d8bd31646f13291b
    selection n/node-d3-selection/node-d3-selection_1.4.1+~1.4.3-1_all.deb 3179e56dc9665b942c233da9e15bd45f4b0666478a1536c04d9e5da1697c2885
    axis n/node-d3-axis/node-d3-axis_1.0.12+~1.0.16-1_all.deb bfd274fe626a194f2ca071969651ee520355539745cf4e4344fa5bbb2371860e)
set(d3_files)
while(d3_packages)
  list(POP_FRONT d3_packages module file sha256)
  set(script d3-${module}/dist/d3-${module}.min.js)
  set(d3_folder ${DETENT_D3})
  set(found FALSE)
  if(EXISTS ${DETENT_D3}/${script})
    set(found TRUE)
  endif()
  detent_lacks(found node-d3-${module} lacks)
  if(lacks)
    detent_download(d3-${module} pool/main/${file} ${sha256} folder)
    set(d3_folder ${folder}/usr/share/nodejs)
    if(NOT EXISTS ${d3_folder}/${script})  # Debian keeps one of them where browsers look
      set(d3_folder ${folder}/usr/share/javascript)
      set(script d3-${module}/d3-${module}.min.js)
    endif()
  endif()
  list(APPEND d3_files ${d3_folder}/${script})
endwhile()

if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "Libraries are missing: run scripts/setup.sh, or apt-get install ${missing}, or let CMake download them with -D DETENT_FETCH=MISSING")
endif()
