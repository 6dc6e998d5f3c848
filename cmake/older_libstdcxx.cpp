// libstdc++ of GCC 12 has a new std::condition_variable::wait, which differs from the one before only in that it may throw when
// a thread is cancelled. With the earlier one a wheel also runs where the system's libstdc++ is that of GCC 11.
extern "C" {
void earlier_wait(void* condition, void* lock);
__asm__(".symver earlier_wait, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");

void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void* condition, void* lock) {
  earlier_wait(condition, lock);
}
}
