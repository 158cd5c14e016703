#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "card.h"
#include "failure.h"

namespace spyre {
namespace {

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

uint64_t rounded_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Mapping::Mapping(uint64_t bytes)
    : bytes_(bytes), mapped_(rounded_up(bytes, page_bytes()) + page_bytes()) {
  constexpr uint64_t kMost = uint64_t{1} << 46;  // of what a process can address
  errno = ENOMEM;
  void* at = bytes > kMost ? MAP_FAILED
                           : mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw Failure(SPYRE_OUT_OF_MEMORY,
                  "cannot reserve " + std::to_string(bytes) +
                      " bytes of address space for the card: " + std::strerror(errno));
  }
  // Fewer TLB misses where the kernel has huge pages; a refusal changes nothing.
  madvise(at, mapped_, MADV_HUGEPAGE);
  data_ = static_cast<char*>(at);
}

Mapping::~Mapping() { munmap(data_, mapped_); }

void Mapping::release(uint64_t offset, uint64_t bytes) {
  const uint64_t page = page_bytes();
  const uint64_t first = rounded_up(offset, page), last = (offset + bytes) / page * page;
  if (first >= last) {
    std::memset(data_ + offset, 0, bytes);
    return;
  }
  std::memset(data_ + offset, 0, first - offset);
  std::memset(data_ + last, 0, offset + bytes - last);
  madvise(data_ + first, last - first, MADV_DONTNEED);
}

void Mapping::fill(uint64_t offset, uint64_t bytes, unsigned char value) {
  std::memset(data_ + offset, value, bytes);
}

Scratchpads::Scratchpads(int cores, int64_t bytes_per_core)
    : stride_(static_cast<int64_t>(rounded_up(bytes_per_core + 64, page_bytes()))),
      memory_(static_cast<uint64_t>(stride_) * cores) {}

}  // namespace spyre
