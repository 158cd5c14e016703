// Preloaded into a process under test: notes who allocates on the host's heap, on any thread.
//
// `operator new` and what glibc's own functions take come through here as well. A note is the
// trace of return addresses.
#include <execinfo.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* pointer, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

constexpr size_t kNotes = 4096;
constexpr int kDepth = 40;

struct Note {
  int depth;
  void* trace[kDepth];
};

Note notes[kNotes];
std::atomic<size_t> count{0};
std::atomic<bool> counting{false};
thread_local bool inside = false;  // taking a trace may allocate

void note() {
  if (!counting.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  const size_t number = count++;
  if (number < kNotes) notes[number].depth = backtrace(notes[number].trace, kDepth);
  inside = false;
}

}  // namespace

extern "C" {

void* malloc(size_t bytes) {
  note();
  return __libc_malloc(bytes);
}
void* calloc(size_t many, size_t bytes) {
  note();
  return __libc_calloc(many, bytes);
}
void* realloc(void* pointer, size_t bytes) {
  note();
  return __libc_realloc(pointer, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** pointer, size_t alignment, size_t bytes) {
  *pointer = memalign(alignment, bytes);
  return *pointer ? 0 : ENOMEM;
}

void start_counting() {
  void* warm[4];
  backtrace(warm, 4);  // loads what it needs
  count = 0;
  counting = true;
}

size_t stop_counting() {
  counting = false;
  return count;
}

// The return addresses of a note, innermost first. Returns how many.
size_t allocation(size_t number, void** trace, size_t capacity) {
  if (number >= std::min(count.load(), kNotes)) return 0;
  const size_t depth = std::min(static_cast<size_t>(notes[number].depth), capacity);
  std::copy_n(notes[number].trace, depth, trace);
  return depth;
}

}  // extern "C"
