// Libraries loaded at run time, as posix/dlfcn.h declares them.
#include <windows.h>

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "base/windows/encoding.h"

namespace {

// Of the last call, empty after one that worked or was asked about.
thread_local std::string failure, told;

void note_failure(const char* name) {
  const auto code = static_cast<int>(::GetLastError());
  failure = std::string(name) + ": " + std::system_category().message(code);
  while (!failure.empty() && (failure.back() == '\n' || failure.back() == '\r')) failure.pop_back();
}

}  // namespace

// What a library needs is looked for beside it first.
void* dlopen(const char* name, int) {
  const std::filesystem::path path(detent::windows::wide(name));
  const auto flags = path.is_absolute() ? LOAD_WITH_ALTERED_SEARCH_PATH : 0;
  const HMODULE library = ::LoadLibraryExW(path.c_str(), nullptr, static_cast<DWORD>(flags));
  if (library == nullptr) note_failure(name);
  return reinterpret_cast<void*>(library);
}

void* dlsym(void* library, const char* name) {
  const auto address = ::GetProcAddress(reinterpret_cast<HMODULE>(library), name);
  if (address == nullptr) note_failure(name);
  return reinterpret_cast<void*>(address);
}

const char* dlerror() {
  if (failure.empty()) return nullptr;
  told.swap(failure);
  failure.clear();
  return told.c_str();
}
