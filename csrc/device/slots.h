// Slots: where the symbol blocks of launches lie in card memory.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "card.h"

namespace openspyre {

// A ring of one card. A slot is free again when its launch has completed; `take` waits while the
// ring is full, so its caller must not hold the GIL.
class SlotRing {
 public:
  static constexpr size_t kSlots = 1024;  // launches in flight

  struct Slot {
    uint64_t address = 0;
    size_t entry = 0;
  };

  explicit SlotRing(int device) : device_(device) {}
  Slot take(size_t bytes);
  void give_back(const Slot& slot);

 private:
  struct Entry {
    size_t end = 0;  // of its bytes, in the ring
    bool given_back = false;
  };

  bool fits(size_t bytes, size_t& begin) const;
  void grow(size_t bytes);

  const int device_;
  std::mutex mutex_;
  std::condition_variable freed_;
  c10::DataPtr memory_;
  size_t size_ = 0;
  size_t begin_ = 0, end_ = 0;  // bytes in use: [begin_, end_), around the end of the ring
  std::array<Entry, kSlots> entries_;
  size_t first_ = 0, count_ = 0;
};

// The ring of a device; opens its card.
SlotRing& slots(int device);

}  // namespace openspyre
