#include "memory.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>

namespace openspyre {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGranule = 512;  // four sticks: no two blocks share one
constexpr size_t kSmall = kMiB;   // requests up to this share small segments
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargeSegment = 20 * kMiB;
constexpr size_t kOwnSegment = 10 * kMiB;  // requests from here on get a segment of their own
constexpr size_t kPage = 4096;

constexpr size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

template <typename Change>
void change(StatArray& stat, bool small, Change change_one) {
  change_one(stat[static_cast<size_t>(StatType::AGGREGATE)]);
  change_one(stat[static_cast<size_t>(small ? StatType::SMALL_POOL : StatType::LARGE_POOL)]);
}

void add(StatArray& stat, bool small, size_t amount) {
  change(stat, small, [amount](auto& one) { one.increase(amount); });
}

void subtract(StatArray& stat, bool small, size_t amount) {
  change(stat, small, [amount](auto& one) { one.decrease(amount); });
}

template <typename Do>
void each(DeviceStats& stats, Do act) {
  for (StatArray* stat : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                          &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                          &stats.inactive_split_bytes, &stats.requested_bytes})
    for (auto& one : *stat) act(one);
}

std::string in_words(size_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed;
  if (bytes >= 1024 * kMiB)
    out << static_cast<double>(bytes) / static_cast<double>(1024 * kMiB) << " GiB";
  else if (bytes >= kMiB)
    out << static_cast<double>(bytes) / static_cast<double>(kMiB) << " MiB";
  else
    out << static_cast<double>(bytes) / 1024 << " KiB";
  return out.str();
}

}  // namespace

Arena::Arena(Card& card) : card_(card) {
  const uint64_t first = rounded(card.base, kGranule);
  ranges_.emplace(first, card.base + card.size - first);
}

uint64_t Arena::allocate(size_t requested, bool for_tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (requested > card_.size) fail(requested);
  const size_t bytes = rounded(requested, kGranule);
  const bool small = bytes <= kSmall;
  auto block = find(bytes, small);
  if (block == blocks_.end()) block = add_segment(bytes, small);
  if (block == blocks_.end()) {
    ++stats_.num_alloc_retries;
    release_free_segments();
    block = add_segment(bytes, small);
  }
  if (block == blocks_.end()) block = find(bytes, !small);  // the other pool may still hold enough
  if (block == blocks_.end()) fail(requested);
  unindex_free(block);
  split(block, bytes);
  block->second.requested = requested;
  block->second.for_tensor = for_tensor;
  spyre_card_memory_fresh(card_.handle, block->first, block->second.bytes);
  if (!for_tensor) return block->first;
  const bool pool = block->second.small;
  add(stats_.allocation, pool, 1);
  add(stats_.active, pool, 1);
  add(stats_.allocated_bytes, pool, block->second.bytes);
  add(stats_.active_bytes, pool, block->second.bytes);
  add(stats_.requested_bytes, pool, requested);
  return block->first;
}

size_t Arena::free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.requested == 0) return 0;
  const size_t requested = block->second.requested;
  const bool pool = block->second.small;
  if (block->second.for_tensor) {
    subtract(stats_.allocation, pool, 1);
    subtract(stats_.active, pool, 1);
    subtract(stats_.allocated_bytes, pool, block->second.bytes);
    subtract(stats_.active_bytes, pool, block->second.bytes);
    subtract(stats_.requested_bytes, pool, requested);
  }
  block->second.requested = 0;
  spyre_card_memory_fresh(card_.handle, address, block->second.bytes);  // who still reads it, sees
  index_free(join(block));
  return requested;
}

void Arena::empty_cache() {
  const std::lock_guard<std::mutex> lock(mutex_);
  release_free_segments();
}

DeviceStats Arena::stats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void Arena::reset_accumulated() {
  const std::lock_guard<std::mutex> lock(mutex_);
  each(stats_, [](auto& one) { one.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void Arena::reset_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  each(stats_, [](auto& one) { one.reset_peak(); });
}

std::pair<size_t, size_t> Arena::free_and_total() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
  return {card_.size - std::min<size_t>(card_.size, reserved), card_.size};
}

// The smallest free block of a pool that is large enough.
Arena::Blocks::iterator Arena::find(size_t bytes, bool small) {
  const auto found = free_[small].lower_bound({bytes, 0});
  return found == free_[small].end() ? blocks_.end() : blocks_.find(found->second);
}

Arena::Blocks::iterator Arena::add_segment(size_t bytes, bool small) {
  const size_t wanted = small                 ? kSmallSegment
                        : bytes < kOwnSegment ? kLargeSegment
                                              : rounded(bytes, kSmallSegment);
  size_t size = wanted;
  uint64_t address = take_range(size);
  if (!address) {
    size = rounded(bytes, kPage);
    address = take_range(size);
  }
  if (!address) return blocks_.end();
  segments_.emplace(address, Segment{size, small});
  ++stats_.num_device_alloc;
  add(stats_.segment, small, 1);
  add(stats_.reserved_bytes, small, size);
  const auto block = blocks_.emplace(address, Block{size, 0, address, small}).first;
  index_free(block);
  return block;
}

uint64_t Arena::take_range(size_t bytes) {
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
    if (range->second < bytes) continue;
    const auto [address, size] = *range;
    ranges_.erase(range);
    if (size > bytes) ranges_.emplace(address + bytes, size - bytes);
    return address;
  }
  return 0;
}

void Arena::give_range(uint64_t address, size_t bytes) {
  auto range = ranges_.emplace(address, bytes).first;
  const auto next = std::next(range);
  if (next != ranges_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    ranges_.erase(next);
  }
  if (range == ranges_.begin()) return;
  const auto previous = std::prev(range);
  if (previous->first + previous->second != range->first) return;
  previous->second += range->second;
  ranges_.erase(range);
}

void Arena::split(Blocks::iterator block, size_t bytes) {
  const size_t rest = block->second.bytes - bytes;
  if (rest < (block->second.small ? kGranule : kSmall)) return;
  const Block left{rest, 0, block->second.segment, block->second.small};
  block->second.bytes = bytes;
  index_free(blocks_.emplace_hint(std::next(block), block->first + bytes, left));
}

Arena::Blocks::iterator Arena::join(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next != blocks_.end() && next->second.requested == 0 &&
      next->second.segment == block->second.segment) {
    unindex_free(next);
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (block == blocks_.begin()) return block;
  const auto previous = std::prev(block);
  if (previous->second.requested != 0 || previous->second.segment != block->second.segment)
    return block;
  unindex_free(previous);
  previous->second.bytes += block->second.bytes;
  blocks_.erase(block);
  return previous;
}

void Arena::release_free_segments() {
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto block = blocks_.find(segment->first);
    if (block->second.requested != 0 || block->second.bytes != segment->second.bytes) {
      ++segment;
      continue;
    }
    const auto [address, size] = *segment;
    unindex_free(block);
    blocks_.erase(block);
    spyre_card_memory_release(card_.handle, address, size.bytes);
    give_range(address, size.bytes);
    ++stats_.num_device_free;
    subtract(stats_.segment, size.small, 1);
    subtract(stats_.reserved_bytes, size.small, size.bytes);
    segment = segments_.erase(segment);
  }
}

// Whether a free block shares its segment: it cannot be given back then.
bool Arena::is_split(const Blocks::value_type& block) const {
  return block.second.bytes != segments_.at(block.second.segment).bytes;
}

void Arena::index_free(Blocks::iterator block) {
  const bool small = block->second.small;
  free_[small].emplace(block->second.bytes, block->first);
  if (!is_split(*block)) return;
  add(stats_.inactive_split, small, 1);
  add(stats_.inactive_split_bytes, small, block->second.bytes);
}

void Arena::unindex_free(Blocks::iterator block) {
  const bool small = block->second.small;
  free_[small].erase({block->second.bytes, block->first});
  if (!is_split(*block)) return;
  subtract(stats_.inactive_split, small, 1);
  subtract(stats_.inactive_split_bytes, small, block->second.bytes);
}

void Arena::fail(size_t bytes) {
  ++stats_.num_ooms;
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
  const auto allocated = static_cast<size_t>(stats_.allocated_bytes[0].current);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "spyre:", card_.index, " is out of memory. Tried to allocate ",
      in_words(bytes), " (", bytes, " bytes); the card has ", in_words(card_.size), ", of which ",
      in_words(card_.size - std::min<size_t>(card_.size, reserved)), " are free and ",
      in_words(reserved - allocated), " are reserved but not allocated; ", in_words(allocated),
      " are allocated by tensors. OPENSPYRE_MEMORY sets the size of the card's memory.");
}

Arena& arena(int device) {
  static auto* const arenas = new std::array<std::atomic<Arena*>, kMaxDevices>();
  static auto* const creating = new std::mutex();
  Card& opened = card(device);
  auto& entry = (*arenas)[device];
  if (Arena* made = entry.load(std::memory_order_acquire)) return *made;
  const std::lock_guard<std::mutex> lock(*creating);
  if (!entry.load(std::memory_order_relaxed))
    entry = std::make_unique<Arena>(opened).release();  // lives until the process ends
  return *entry.load(std::memory_order_relaxed);
}

namespace {

void report(void* pointer, int device, int64_t delta) {
  const auto stats = arena(device).stats();
  c10::reportMemoryUsageToProfiler(pointer, delta, stats.allocated_bytes[0].current,
                                   stats.reserved_bytes[0].current,
                                   c10::Device(c10::kPrivateUse1, device));
}

void release(void* pointer) {
  const int device = device_of(pointer);
  if (device < 0 || in_bad_fork()) return;
  const size_t bytes = arena(device).free(reinterpret_cast<uint64_t>(pointer));
  if (c10::memoryProfilingEnabled()) report(pointer, device, -static_cast<int64_t>(bytes));
}

void release_quietly(void* pointer) {
  const int device = device_of(pointer);
  if (device >= 0 && !in_bad_fork()) arena(device).free(reinterpret_cast<uint64_t>(pointer));
}

class SpyreAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memmove(target, source, bytes);
    touch(target, bytes);
  }
  bool initialized() override { return device_count() > 0; }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < device_count(); ++i)
      if (is_open(i)) arena(i).empty_cache();
  }
  // Work is in order and finished when a call returns: no other stream can still use a block.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex device) override { return arena(device).stats(); }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    arena(device).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override { arena(device).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return arena(device).free_and_total();
  }
};

struct RegisterAllocator {
  RegisterAllocator() { c10::SetAllocator(c10::kPrivateUse1, allocator()); }
} register_allocator;

}  // namespace

c10::DataPtr allocate_on(int device, size_t bytes) {
  const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0) return {nullptr, where};
  auto* const pointer = reinterpret_cast<void*>(arena(device).allocate(bytes));
  touch(pointer, bytes);
  if (c10::memoryProfilingEnabled()) report(pointer, device, static_cast<int64_t>(bytes));
  return {pointer, pointer, &release, where};
}

c10::DataPtr allocate_for_programs(int device, size_t bytes) {
  const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0) return {nullptr, where};
  auto* const pointer = reinterpret_cast<void*>(arena(device).allocate(bytes, false));
  touch(pointer, bytes);
  return {pointer, pointer, &release_quietly, where};
}

c10::DeviceAllocator* allocator() {
  static auto* const instance = new SpyreAllocator();
  return instance;
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  auto fresh = allocate_on(storage->device().index(), bytes);
  const size_t kept = std::min(bytes, storage->nbytes());
  if (kept) std::memcpy(fresh.get(), storage->data(), kept);
  if (kept) touch(fresh.get(), kept);
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}

}  // namespace openspyre
