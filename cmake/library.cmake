# libdetent.so, the engine as a library: what include/detent declares, and, under another version, what detent's own command and
# extension use. What it is built with stays inside. `detent_engine` is what these two link: the library, or its parts.
option(DETENT_SHARED "Link the command and the extension with libdetent.so instead of containing its parts" OFF)
add_library(detent_engine INTERFACE)
if(NOT DETENT_SHARED)
  target_link_libraries(detent_engine INTERFACE detent_core)
endif()
if(DETENT_SANITIZE OR DETENT_FUZZ OR WIN32)
  return()
endif()

file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/library.cpp CONTENT "// All of it comes from detent_core.\n" @ONLY)
configure_file(cmake/version.h.in include/detent/version.h @ONLY)
add_library(detent_library SHARED ${PROJECT_BINARY_DIR}/generated/library.cpp)
add_library(detent::detent ALIAS detent_library)
set(exports ${PROJECT_SOURCE_DIR}/cmake/libdetent.map)
set_target_properties(detent_library PROPERTIES OUTPUT_NAME detent EXPORT_NAME detent LINK_DEPENDS ${exports}
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
if(NOT DEFINED SKBUILD)  # a wheel holds no links, and its library is its own
  set_target_properties(detent_library PROPERTIES VERSION ${PROJECT_VERSION}
                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()
target_link_libraries(detent_library PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,detent_core>)
target_link_options(detent_library PRIVATE -Wl,--version-script=${exports} -Wl,-z,defs)
target_compile_features(detent_library INTERFACE cxx_std_20)
target_include_directories(detent_library INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                           $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include> $<INSTALL_INTERFACE:include>)

if(DETENT_SHARED)
  target_link_libraries(detent_engine INTERFACE detent_library fmt::fmt nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
  foreach(kind INCLUDE_DIRECTORIES SYSTEM_INCLUDE_DIRECTORIES COMPILE_DEFINITIONS)
    set_property(TARGET detent_engine APPEND PROPERTY INTERFACE_${kind} $<TARGET_PROPERTY:detent_core,INTERFACE_${kind}>)
  endforeach()
endif()
