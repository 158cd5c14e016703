#include "arena.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <sstream>
#include <string>

#include "state.h"

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

// Debug mode: what is in memory that was handed out or freed means nothing, from where the stream
// gets there.
class Poison final : public Work {
 public:
  Poison(int device, uint64_t address, size_t bytes)
      : device_(device), address_(address), bytes_(bytes) {}
  int run(spyre_error&) noexcept override {
    return spyre_card_memory_fresh(card(device_).handle, address_, bytes_);
  }
  const std::string& name() const override {
    static const auto* const text = new std::string("poison");
    return *text;
  }

 private:
  const int device_;
  const uint64_t address_;
  const size_t bytes_;
};

void poison(int device, c10::StreamId stream, uint64_t address, size_t bytes) {
  if (!(settings().debug & SPYRE_DEBUG_POISON)) return;
  auto work = std::make_unique<Poison>(device, address, bytes);
  spyre_error unused;
  if (stream == kLoader) return void(work->run(unused));  // the host writes there, in no order
  submit(stream_of(device, stream), *work.release(), /*quick=*/true);
}

}  // namespace

Arena::Arena(Card& card) : card_(card), limit_(card.size) {
  const uint64_t first = rounded(card.base, kGranule);
  ranges_.emplace(first, card.base + card.size - first);
}

uint64_t Arena::allocate(size_t requested, c10::StreamId stream, bool for_tensor) {
  Lock lock(mutex_);
  if (requested > limit_) fail(requested);
  reuse_pending();
  const size_t bytes = rounded(requested, kGranule);
  const bool small = bytes <= kSmall;
  auto block = find(bytes, small, stream);
  if (block == blocks_.end()) block = add_segment(bytes, small, stream);
  if (block == blocks_.end()) {
    ++stats_.num_alloc_retries;
    drain(lock);
    release_free_segments();
    block = find(bytes, small, stream);
    if (block == blocks_.end()) block = add_segment(bytes, small, stream);
  }
  if (block == blocks_.end()) block = find_elsewhere(bytes);
  if (block == blocks_.end()) fail(requested);
  unindex_free(block);
  block->second.stream = stream;
  split(block, bytes);
  block->second.requested = requested;
  block->second.for_tensor = for_tensor;
  poison(card_.index, stream, block->first, block->second.bytes);
  if (!for_tensor) {
    publish();
    return block->first;
  }
  const bool pool = block->second.small;
  add(stats_.allocation, pool, 1);
  add(stats_.active, pool, 1);
  add(stats_.allocated_bytes, pool, block->second.bytes);
  add(stats_.active_bytes, pool, block->second.bytes);
  add(stats_.requested_bytes, pool, requested);
  publish();
  return block->first;
}

size_t Arena::free(uint64_t address) {
  const Lock lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.requested == 0 || block->second.freed) return 0;
  const size_t requested = block->second.requested;
  const bool pool = block->second.small;
  if (block->second.for_tensor) {
    subtract(stats_.allocation, pool, 1);
    subtract(stats_.allocated_bytes, pool, block->second.bytes);
    subtract(stats_.requested_bytes, pool, requested);
    publish();
  }
  if (block->second.users.empty()) {
    reuse(block);
    return requested;
  }
  Pending waits{address, {}};
  for (const c10::StreamId user : block->second.users)
    waits.marks.push_back(record(stream_of(card_.index, user)));
  block->second.users.clear();
  block->second.freed = true;
  pending_.push_back(std::move(waits));
  reuse_pending();
  return requested;
}

void Arena::record_stream(uint64_t address, c10::StreamId stream) {
  const Lock lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.requested == 0 || block->second.stream == stream)
    return;
  auto& users = block->second.users;
  if (std::find(users.begin(), users.end(), stream) == users.end()) users.push_back(stream);
}

// Makes a block free for its stream.
void Arena::reuse(Blocks::iterator block) {
  const bool pool = block->second.small;
  if (block->second.for_tensor) {
    subtract(stats_.active, pool, 1);
    subtract(stats_.active_bytes, pool, block->second.bytes);
  }
  block->second.requested = 0;
  block->second.freed = false;
  poison(card_.index, block->second.stream, block->first, block->second.bytes);
  index_free(join(block));
}

void Arena::reuse_pending() {
  const auto finished = [this](const Pending& waits) {
    for (const MarkPtr& mark : waits.marks)
      if (!mark->done) return false;
    reuse(blocks_.find(waits.address));
    return true;
  };
  if (!pending_.empty())
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(), finished), pending_.end());
}

// Waits for the card. Not under the lock: what the card finishes may free memory.
void Arena::drain(Lock& lock) {
  ++stats_.num_sync_all_streams;
  lock.unlock();
  finish_device(card_.index);
  lock.lock();
  reuse_pending();
}

void Arena::empty_cache() {
  Lock lock(mutex_);
  drain(lock);
  release_free_segments();
}

void Arena::publish() {
  CardState& shown = card_state(card_.index);
  const auto store = [](std::atomic<uint64_t>& at, const StatArray& stat) {
    at.store(static_cast<uint64_t>(stat[0].current), std::memory_order_relaxed);
  };
  store(shown.allocated, stats_.allocated_bytes);
  store(shown.reserved, stats_.reserved_bytes);
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

std::vector<Arena::Shown> Arena::snapshot() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Shown> shown;
  shown.reserve(blocks_.size());
  for (const auto& [address, block] : blocks_) {
    const Segment& segment = segments_.at(block.segment);
    shown.push_back({block.segment, segment.bytes, address, block.bytes, block.requested,
                     segment.stream, segment.small, block.freed, block.for_tensor});
  }
  return shown;
}

void Arena::set_limit(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  limit_ = std::min<size_t>(bytes, card_.size);
}

size_t Arena::limit() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return limit_;
}

// The smallest free block of a stream's pool that is large enough.
Arena::Blocks::iterator Arena::find(size_t bytes, bool small, c10::StreamId stream) {
  const auto found = free_[small].lower_bound({stream, bytes, 0});
  const bool none = found == free_[small].end() || std::get<0>(*found) != stream;
  return none ? blocks_.end() : blocks_.find(std::get<2>(*found));
}

// The smallest free block of any pool that no work can still use.
Arena::Blocks::iterator Arena::find_elsewhere(size_t bytes) {
  auto best = blocks_.end();
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block)
    if (block->second.requested == 0 && block->second.bytes >= bytes &&
        (best == blocks_.end() || block->second.bytes < best->second.bytes) && is_unused(*block))
      best = block;
  return best;
}

bool Arena::is_unused(const Blocks::value_type& block) const {
  return is_idle(stream_of(card_.index, block.second.stream));
}

// Gives what `find_elsewhere` took from a segment back to the segment's stream.
void Arena::reunite() {
  for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
    const c10::StreamId owner = segments_.at(block->second.segment).stream;
    if (block->second.requested != 0 || block->second.stream == owner || !is_unused(*block))
      continue;
    unindex_free(block);
    block->second.stream = owner;
    block = join(block);
    index_free(block);
  }
}

Arena::Blocks::iterator Arena::add_segment(size_t bytes, bool small, c10::StreamId stream) {
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
  segments_.emplace(address, Segment{size, small, stream});
  ++stats_.num_device_alloc;
  add(stats_.segment, small, 1);
  add(stats_.reserved_bytes, small, size);
  const auto block = blocks_.emplace(address, Block{size, 0, address, small, stream, {}}).first;
  index_free(block);
  return block;
}

uint64_t Arena::take_range(size_t bytes) {
  if (static_cast<size_t>(stats_.reserved_bytes[0].current) + bytes > limit_) return 0;
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
  const Block left{rest, 0, block->second.segment, block->second.small, block->second.stream, {}};
  block->second.bytes = bytes;
  index_free(blocks_.emplace_hint(std::next(block), block->first + bytes, left));
}

bool Arena::can_join(const Blocks::value_type& block, const Blocks::value_type& free) {
  return free.second.requested == 0 && free.second.segment == block.second.segment &&
         free.second.stream == block.second.stream;
}

Arena::Blocks::iterator Arena::join(Blocks::iterator block) {
  const auto next = std::next(block);
  if (next != blocks_.end() && can_join(*block, *next)) {
    unindex_free(next);
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (block == blocks_.begin()) return block;
  const auto previous = std::prev(block);
  if (!can_join(*block, *previous)) return block;
  unindex_free(previous);
  previous->second.bytes += block->second.bytes;
  blocks_.erase(block);
  return previous;
}

// Those of streams that are idle: another thread may have used and freed a block meanwhile.
void Arena::release_free_segments() {
  reunite();
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto block = blocks_.find(segment->first);
    if (block->second.requested != 0 || block->second.bytes != segment->second.bytes ||
        !is_unused(*block)) {
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
  publish();
}

// Whether a free block shares its segment: it cannot be given back then.
bool Arena::is_split(const Blocks::value_type& block) const {
  return block.second.bytes != segments_.at(block.second.segment).bytes;
}

void Arena::index_free(Blocks::iterator block) {
  const bool small = block->second.small;
  free_[small].emplace(block->second.stream, block->second.bytes, block->first);
  if (!is_split(*block)) return;
  add(stats_.inactive_split, small, 1);
  add(stats_.inactive_split_bytes, small, block->second.bytes);
}

void Arena::unindex_free(Blocks::iterator block) {
  const bool small = block->second.small;
  free_[small].erase({block->second.stream, block->second.bytes, block->first});
  if (!is_split(*block)) return;
  subtract(stats_.inactive_split, small, 1);
  subtract(stats_.inactive_split_bytes, small, block->second.bytes);
}

void Arena::fail(size_t bytes) {
  ++stats_.num_ooms;
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
  const auto allocated = static_cast<size_t>(stats_.allocated_bytes[0].current);
  const std::string share =
      limit_ < card_.size
          ? "; set_per_process_memory_fraction leaves this process " + in_words(limit_)
          : "";
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "spyre:", card_.index, " is out of memory. Tried to allocate ",
      in_words(bytes), " (", bytes, " bytes); the card has ", in_words(card_.size), ", of which ",
      in_words(card_.size - std::min<size_t>(card_.size, reserved)), " are free and ",
      in_words(reserved - allocated), " are reserved but not allocated; ", in_words(allocated),
      " are allocated by tensors", share,
      ". Try smaller batches, or keep fewer tensors; OPENSPYRE_MEMORY sets the size of the card's "
      "memory.");
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

}  // namespace openspyre
