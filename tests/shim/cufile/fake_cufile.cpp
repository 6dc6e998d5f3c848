// cuFile as FAKE_CUFILE says: "sleeps" never opens, "fails" opens with an error, "compat" cannot be kept from its own
// copies, "refuses" takes no file. Else it reads into the host's memory.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {
bool is(const char* what) {
  const char* said = std::getenv("FAKE_CUFILE");
  return said != nullptr && std::strcmp(said, what) == 0;
}
struct Status {
  int code, cuda;
};
struct Description {
  int type;
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;
};
}  // namespace

extern "C" {
Status cuFileSetParameterBool(int parameter, bool value) {
  return {is("compat") || parameter != 1 || value ? 5005 : 0, 0};
}
Status cuFileDriverOpen() {
  while (is("sleeps")) ::usleep(10'000);
  return {is("fails") ? 5001 : 0, 0};
}
Status cuFileHandleRegister(void** handle, Description* description) {
  if (is("refuses") || description->type != 1) return {5027, 0};
  *handle = new int(description->file.fd);
  return {0, 0};
}
void cuFileHandleDeregister(void* handle) { delete static_cast<int*>(handle); }
// The descriptor may be one that only takes aligned memory.
ssize_t cuFileRead(void* handle, void* to, std::size_t size, off_t offset, off_t in_memory) {
  void* aligned = nullptr;
  if (::posix_memalign(&aligned, 4096, size + 1) != 0) return -1;
  const ssize_t n = ::pread(*static_cast<int*>(handle), aligned, size, offset);
  if (n > 0) std::memcpy(static_cast<char*>(to) + in_memory, aligned, static_cast<std::size_t>(n));
  std::free(aligned);
  return n;
}
}
