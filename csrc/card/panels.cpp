#include "panels.h"

#include <algorithm>
#include <new>
#include <thread>

#include "decode.h"

namespace spyre {
namespace {

constexpr int64_t kPanel = 64;  // columns
enum : uint8_t { kEmpty, kBuilding, kReady };

struct FreeAligned {
  void operator()(char* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
};

}  // namespace

struct PanelCache::Entry {
  PanelKey key;
  uintptr_t low, high;  // of the source
  int64_t bytes;
  int64_t count;  // of panels
  std::unique_ptr<char[], FreeAligned> data;
  std::unique_ptr<std::atomic<uint8_t>[]> state;
  std::atomic<int64_t> ready{0};
  bool stale = false;
  uint64_t launch = 0;

  explicit Entry(const PanelKey& k)
      : key(k), bytes((k.n + kPanel - 1) / kPanel * k.k * kPanel * bytes_of(panel_type(k.dtype))) {
    const int64_t size = bytes_of(k.dtype);
    const int64_t steps[] = {(k.k - 1) * k.k_stride * size, (k.n - 1) * k.n_stride * size};
    int64_t before = 0, after = size;
    for (int64_t step : steps) (step < 0 ? before : after) += step;
    low = reinterpret_cast<uintptr_t>(k.address) + before;
    high = reinterpret_cast<uintptr_t>(k.address) + after;
    count = (k.n + kPanel - 1) / kPanel;
    data.reset(static_cast<char*>(::operator new[](bytes, std::align_val_t{64})));
    state.reset(new std::atomic<uint8_t>[count]);
    reset();
  }
  void reset() {
    for (int64_t p = 0; p < count; ++p) state[p] = kEmpty;
    ready = 0;
    stale = false;
  }
  char* panel(int64_t p) const {
    return data.get() + p * key.k * kPanel * bytes_of(panel_type(key.dtype));
  }

  void pack(int64_t p, const Kernels& kernels) {
    const int64_t column = p * kPanel;
    const char* from = key.address + column * key.n_stride * bytes_of(key.dtype);
    kernels.pack(from, key.k_stride, key.n_stride, key.dtype, static_cast<int>(key.k),
                 static_cast<int>(std::min(kPanel, key.n - column)), panel(p));
    state[p].store(kReady);
    ready.fetch_add(1);
  }
};

bool PanelKey::operator==(const PanelKey& o) const {
  return address == o.address && k == o.k && n == o.n && k_stride == o.k_stride &&
         n_stride == o.n_stride && dtype == o.dtype;
}

PanelCache::PanelCache(int64_t budget) : budget_(budget) {}
PanelCache::~PanelCache() = default;

const char* PanelCache::panels(const PanelKey& key, const Kernels& kernels, uint64_t launch) {
  Entry* entry = acquire(key, launch);
  if (!entry) return nullptr;
  if (entry->ready.load() == entry->count) return entry->data.get();
  for (int64_t p = 0; p < entry->count; ++p) {
    uint8_t empty = kEmpty;
    if (entry->state[p].compare_exchange_strong(empty, kBuilding)) entry->pack(p, kernels);
  }
  while (entry->ready.load() != entry->count) std::this_thread::yield();
  return entry->data.get();
}

PanelCache::Entry* PanelCache::acquire(const PanelKey& key, uint64_t launch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : entries_) {
    if (!(entry->key == key)) continue;
    if (entry->stale && entry->launch == launch) return nullptr;  // a thread may be reading it
    if (entry->stale) entry->reset();
    entry->launch = launch;
    return entry.get();
  }
  auto fresh = std::unique_ptr<Entry>();
  const int64_t panels = (key.n + kPanel - 1) / kPanel;
  const int64_t bytes = panels * key.k * kPanel * bytes_of(panel_type(key.dtype));
  if (!make_room(bytes, launch)) return nullptr;
  try {
    fresh = std::make_unique<Entry>(key);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  fresh->launch = launch;
  used_ += bytes;
  longest_ = std::max(longest_, fresh->high - fresh->low);
  const auto at =
      std::upper_bound(entries_.begin(), entries_.end(), fresh->low,
                       [](uintptr_t low, const auto& entry) { return low < entry->low; });
  return entries_.insert(at, std::move(fresh))->get();
}

bool PanelCache::make_room(int64_t bytes, uint64_t launch) {
  if (bytes > budget_) return false;
  while (used_ + bytes > budget_) {
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if ((*it)->launch == launch) continue;  // a thread may be reading it
      if (oldest == entries_.end() || (*it)->launch < (*oldest)->launch) oldest = it;
    }
    if (oldest == entries_.end()) return false;
    used_ -= (*oldest)->bytes;
    entries_.erase(oldest);
  }
  return true;
}

void PanelCache::touch(uintptr_t low, uintptr_t high) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uintptr_t from = low > longest_ ? low - longest_ : 0;
  auto it = std::lower_bound(entries_.begin(), entries_.end(), from,
                             [](const auto& entry, uintptr_t at) { return entry->low < at; });
  for (; it != entries_.end() && (*it)->low < high; ++it) {
    if ((*it)->high > low) (*it)->stale = true;
  }
}

}  // namespace spyre
