// Device memory: a caching allocator over each card's range.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "card.h"

namespace openspyre {

using c10::CachingDeviceAllocator::DeviceStats;

// The memory of one card. Blocks lie in segments, segments in the card's range; a freed block
// joins its free neighbours of the same segment and waits for reuse; `empty_cache` returns whole
// free segments. Thread-safe.
class Arena {
 public:
  explicit Arena(Card& card);

  // An address whose block holds at least `bytes` (> 0). Throws torch.OutOfMemoryError. Statistics
  // of allocated memory count it only if it is for a tensor.
  uint64_t allocate(size_t bytes, bool for_tensor = true);
  size_t free(uint64_t address);  // the bytes that were asked for; 0: no block of ours
  void empty_cache();

  DeviceStats stats();
  void reset_accumulated();
  void reset_peak();
  std::pair<size_t, size_t> free_and_total();

 private:
  struct Segment {
    size_t bytes;
    bool small;
  };
  struct Block {
    size_t bytes;
    size_t requested;  // 0: free
    uint64_t segment;
    bool small;
    bool for_tensor = true;
  };
  using Blocks = std::map<uint64_t, Block>;
  using BySize = std::set<std::pair<size_t, uint64_t>>;

  Blocks::iterator find(size_t bytes, bool small);
  Blocks::iterator add_segment(size_t bytes, bool small);
  uint64_t take_range(size_t bytes);
  void give_range(uint64_t address, size_t bytes);
  void split(Blocks::iterator block, size_t bytes);
  Blocks::iterator join(Blocks::iterator block);
  void release_free_segments();
  bool is_split(const Blocks::value_type& block) const;
  void index_free(Blocks::iterator block);
  void unindex_free(Blocks::iterator block);
  [[noreturn]] void fail(size_t bytes);

  Card& card_;
  std::mutex mutex_;
  Blocks blocks_;                         // by address, used and free
  BySize free_[2];                        // large, small
  std::map<uint64_t, Segment> segments_;  // by address
  std::map<uint64_t, size_t> ranges_;     // of the card, not in any segment
  DeviceStats stats_;
};

// The arena of a device; opens its card.
Arena& arena(int device);

// Memory on a given device, freed with the result.
c10::DataPtr allocate_on(int device, size_t bytes);

// The same for what is no tensor: programs, symbol blocks, space for a program's own use.
c10::DataPtr allocate_for_programs(int device, size_t bytes);

c10::DeviceAllocator* allocator();

// Grows or shrinks a storage of the device, keeping the bytes that fit.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace openspyre
