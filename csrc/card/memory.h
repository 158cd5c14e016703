// The card's bytes: device memory and the LX of every core, mapped lazily.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spyre {

// A range of anonymous memory that takes pages when they are touched, with a readable page behind
// its end: matmul kernels read up to 15 columns more than they use.
class Mapping {
 public:
  explicit Mapping(uint64_t bytes);  // throws Failure(SPYRE_OUT_OF_MEMORY)
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  // Gives whole pages inside the range back; bytes of the range read 0 afterwards.
  void release(uint64_t offset, uint64_t bytes);
  void fill(uint64_t offset, uint64_t bytes, unsigned char value);

 private:
  char* data_;
  uint64_t bytes_, mapped_;
};

// LX of all cores.
class Scratchpads {
 public:
  Scratchpads(int cores, int64_t bytes_per_core);
  char* of_core(int core) const { return memory_.data() + core * stride_; }

 private:
  int64_t stride_;
  Mapping memory_;
};

}  // namespace spyre
