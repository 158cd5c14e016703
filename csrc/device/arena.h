// A caching allocator over one card's range of memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <memory_resource>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "card.h"
#include "queue.h"

namespace openspyre {

using c10::CachingDeviceAllocator::DeviceStats;

// The memory of one card. Blocks lie in segments, segments in the card's range; a freed block
// joins its free neighbours of the same segment and waits for reuse; `empty_cache` returns whole
// free segments. Thread-safe.
//
// A segment belongs to the stream it was made for. A freed block is at once free for that stream,
// whose work is in order; other streams that were recorded with it delay that until they are done
// with it; a stream gets another's memory only when the card is full and that stream is idle.
class Arena {
 public:
  // A block as it lies in memory, for people who look for what fills it.
  struct Shown {
    uint64_t segment, segment_bytes, address, bytes;
    size_t requested;      // 0: free
    c10::StreamId stream;  // of the segment
    bool small, freed, for_tensor;
  };

  explicit Arena(Card& card);

  // An address whose block holds at least `bytes` (> 0). Throws torch.OutOfMemoryError. Statistics
  // of allocated memory count it only if it is for a tensor.
  uint64_t allocate(size_t bytes, c10::StreamId stream, bool for_tensor);
  size_t free(uint64_t address);  // the bytes that were asked for; 0: no block of ours
  // The block is also used by what the stream has been given when the block is freed.
  void record_stream(uint64_t address, c10::StreamId stream);
  void empty_cache();  // waits for the card

  DeviceStats stats();
  void reset_accumulated();
  void reset_peak();
  std::pair<size_t, size_t> free_and_total();
  std::vector<Shown> snapshot();  // by address
  // The arena takes no more of the card than this; what it has already stays.
  void set_limit(size_t bytes);
  size_t limit();

 private:
  struct Segment {
    size_t bytes;
    bool small;
    c10::StreamId stream;
  };
  struct Block {
    size_t bytes;
    size_t requested;  // 0: free
    uint64_t segment;
    bool small;
    c10::StreamId stream;
    c10::SmallVector<c10::StreamId, 2> users;  // other streams
    bool freed = false;                        // but users are not done
    bool for_tensor = true;
  };
  struct Pending {
    uint64_t address;
    c10::SmallVector<MarkPtr, 2> marks;
  };
  using Blocks = std::pmr::map<uint64_t, Block>;
  using BySize = std::pmr::set<std::tuple<c10::StreamId, size_t, uint64_t>>;
  using Lock = std::unique_lock<std::mutex>;

  Blocks::iterator find(size_t bytes, bool small, c10::StreamId stream);
  Blocks::iterator add_segment(size_t bytes, bool small, c10::StreamId stream);
  Blocks::iterator find_elsewhere(size_t bytes);
  bool is_unused(const Blocks::value_type& block) const;
  static bool can_join(const Blocks::value_type& block, const Blocks::value_type& free);
  void reunite();
  void reuse(Blocks::iterator block);
  void reuse_pending();
  void drain(Lock& lock);
  uint64_t take_range(size_t bytes);
  void give_range(uint64_t address, size_t bytes);
  void split(Blocks::iterator block, size_t bytes);
  Blocks::iterator join(Blocks::iterator block);
  void release_free_segments();
  bool is_split(const Blocks::value_type& block) const;
  void index_free(Blocks::iterator block);
  void unindex_free(Blocks::iterator block);
  void publish();  // to `spyre smi`
  [[noreturn]] void fail(size_t bytes);

  Card& card_;
  std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource nodes_;      // used again: launches allocate nothing
  Blocks blocks_{&nodes_};                            // by address, used and free
  BySize free_[2]{BySize(&nodes_), BySize(&nodes_)};  // large, small
  std::map<uint64_t, Segment> segments_;              // by address
  std::map<uint64_t, size_t> ranges_;                 // of the card, not in any segment
  std::vector<Pending> pending_;
  DeviceStats stats_;
  size_t limit_;
};

// The arena of a device; opens its card.
Arena& arena(int device);

}  // namespace openspyre
