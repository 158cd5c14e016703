// Matmul operands in the order the PT kernels read them, kept between launches.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.h"

namespace spyre {

// What a set of panels was made from: b[k][n] at an address of device memory, strides in elements.
struct PanelKey {
  const char* address;
  int64_t k, n, k_stride, n_stride;
  DType dtype;
  bool operator==(const PanelKey& other) const;
};

// Packed copies `[n/64][k][64]`, valid until their source is touched, within a budget of bytes
// (least recently used go first; those of the running launch stay). Holds values only: nothing
// that is counted depends on a hit.
class PanelCache {
 public:
  explicit PanelCache(int64_t budget);
  ~PanelCache();

  // The panels of `key`, packed now if they are not there; threads that ask for the same panels
  // share the packing. Null when the budget has no room: the caller packs for itself.
  const char* panels(const PanelKey& key, const Kernels& kernels, uint64_t launch);
  // Bytes [low, high) may have changed.
  void touch(uintptr_t low, uintptr_t high);

 private:
  struct Entry;
  Entry* acquire(const PanelKey& key, uint64_t launch);
  bool make_room(int64_t bytes, uint64_t launch);

  const int64_t budget_;
  int64_t used_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Entry>> entries_;  // sorted by the first byte of their source
  uintptr_t longest_ = 0;                        // source range, so that `touch` can bisect
};

}  // namespace spyre
