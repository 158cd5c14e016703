#include "slots.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "memory.h"
#include "waiting.h"

namespace openspyre {
namespace {

constexpr size_t kRingBytes = 512 << 10;
constexpr size_t kAlignment = 128;

}  // namespace

// Whether a slot fits now, and where it begins. Never fills the ring to the last byte: begin and
// end differ while anything is in use.
bool SlotRing::fits(size_t bytes, size_t& begin) const {
  if (count_ == kSlots) return false;
  if (count_ == 0) {
    begin = 0;
    return bytes <= size_;
  }
  if (end_ < begin_) {
    begin = end_;
    return end_ + bytes < begin_;
  }
  begin = end_ + bytes <= size_ ? end_ : 0;
  return begin == end_ || bytes < begin_;
}

// Only while nothing is in flight: programs may still read the old memory otherwise.
void SlotRing::grow(size_t bytes) {
  size_ = std::max(kRingBytes, 4 * bytes);
  memory_.clear();
  memory_ = allocate_apart(device_, size_);
}

SlotRing::Slot SlotRing::take(size_t bytes) {
  bytes = std::max<size_t>(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::unique_lock<std::mutex> lock(mutex_);
  size_t begin = 0;
  if (bytes > size_) {
    wait_until(freed_, lock, [&] { return count_ == 0; });
    if (bytes > size_) grow(bytes);
  }
  wait_until(freed_, lock, [&] { return fits(bytes, begin); });
  const size_t entry = (first_ + count_) % kSlots;
  if (count_ == 0) begin_ = begin;
  ++count_;
  end_ = begin + bytes;
  entries_[entry] = {end_, false};
  return {reinterpret_cast<uint64_t>(memory_.get()) + begin, entry};
}

void SlotRing::give_back(const Slot& slot) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_[slot.entry].given_back = true;
    while (count_ != 0 && entries_[first_].given_back) {
      begin_ = entries_[first_].end;
      first_ = (first_ + 1) % kSlots;
      --count_;
    }
  }
  freed_.notify_all();
}

SlotRing& slots(int device) {
  static auto* const rings = new std::array<std::atomic<SlotRing*>, kMaxDevices>();
  static auto* const creating = new std::mutex();
  card(device);
  auto& entry = (*rings)[device];
  if (SlotRing* made = entry.load(std::memory_order_acquire)) return *made;
  const std::lock_guard<std::mutex> lock(*creating);
  if (!entry.load(std::memory_order_relaxed))
    entry = std::make_unique<SlotRing>(device).release();  // lives until the process ends
  return *entry.load(std::memory_order_relaxed);
}

}  // namespace openspyre
