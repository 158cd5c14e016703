// What PyTorch asks a device for: guard, streams, events, hooks, generators, pinned memory.
#include "runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "card.h"
#include "generator.h"
#include "memory.h"
#include "queue.h"

namespace openspyre {
namespace {

c10::Device device_at(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

int index_or_current(c10::Device device) {
  return device.has_index() ? device.index() : current_device();
}

// --- streams and events ---------------------------------------------------------------------

c10::Stream stream_at(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), id);
}

Stream& unwrap(const c10::Stream& stream) { return stream_of(stream.device_index(), stream.id()); }

struct Event {
  MarkPtr mark;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(exchange_device(index_or_current(device)));
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(index_or_current(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) set_device_unchecked(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = index_or_current(device);
    return stream_at(index, current_stream_id(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_at(index_or_current(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool first) const override {
    return getNewStream(device, first ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const int index = index_or_current(device);
    check_device(index);
    return stream_at(index, pool_stream(index, priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int index = index_or_current(stream.device());
    return stream_at(index, exchange_stream_id(index, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override { return is_idle(unwrap(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(unwrap(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const int index = device < 0 ? current_device() : device;
    check_device(index);
    synchronize_device(index);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ",
                static_cast<int>(device), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (flag == c10::EventFlag::BACKEND_DEFAULT) start_timing();
    if (!*event) *event = std::make_unique<Event>().release();
    static_cast<Event*>(*event)->mark = openspyre::record(unwrap(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) wait_for(unwrap(stream), static_cast<Event*>(event)->mark);
  }
  bool queryEvent(void* event) const override {
    return !event || static_cast<Event*>(event)->mark->done;
  }
  void synchronizeEvent(void* event) const override {
    if (event) synchronize(static_cast<Event*>(event)->mark);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<Event> owned(static_cast<Event*>(event));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator()->recordStream(data, stream);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    const int64_t picoseconds =
        static_cast<Event*>(end)->mark->picoseconds - static_cast<Event*>(start)->mark->picoseconds;
    return static_cast<double>(picoseconds) * 1e-9;  // milliseconds of the card
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const auto kind :
         {c10::kIndex_Half, c10::kIndex_BFloat16, c10::kIndex_Float, c10::kIndex_Long,
          c10::kIndex_Int, c10::kIndex_Short, c10::kIndex_Char, c10::kIndex_Byte, c10::kIndex_Bool})
      capability.capability_data.capability_bits |= 1ULL << kind;
    return capability;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// --- pinned memory --------------------------------------------------------------------------

// Page-aligned host memory. On the software card nothing more is needed to copy from it.
class PinnedMemory final : public at::HostAllocator {
 public:
  static PinnedMemory& instance() {
    static auto* const memory = new PinnedMemory();
    return *memory;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = nullptr;
    if (bytes) {
      TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&pointer, 4096, bytes) == 0,
                       "spyre: ", bytes, " bytes of pinned host memory are not available");
      free_finished();
      const std::lock_guard<std::mutex> lock(mutex_);
      blocks_.emplace(reinterpret_cast<uintptr_t>(pointer), Block{bytes, {}});
      stats_.active_requests.increase(1);
      stats_.active_bytes.increase(bytes);
      stats_.allocations.increase(1);
      stats_.allocated_bytes.increase(bytes);
    }
    return {pointer, pointer, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
  // The block is kept until the stream has done what it has been given by now.
  bool record_event(void* pointer, void*, c10::Stream stream) override {
    MarkPtr mark = record(unwrap(stream));
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto block = find(pointer);
    if (block == blocks_.end()) return false;
    block->second.marks.push_back(std::move(mark));
    return true;
  }
  void empty_cache() override { free_finished(); }
  at::HostStats get_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : all()) stat->reset_accumulated();
  }
  void reset_peak_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : all()) stat->reset_peak();
  }

  bool holds(const void* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return find(pointer) != blocks_.end();
  }

 private:
  struct Block {
    size_t bytes;
    std::vector<MarkPtr> marks;  // of streams that use it
    bool finished() const {
      return std::all_of(marks.begin(), marks.end(), [](const auto& mark) { return !!mark->done; });
    }
  };
  using Blocks = std::map<uintptr_t, Block>;

  Blocks::iterator find(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return blocks_.end();
    const auto block = std::prev(after);
    return address - block->first < block->second.bytes ? block : blocks_.end();
  }

  static void release(void* pointer) {
    auto& self = instance();
    const std::lock_guard<std::mutex> lock(self.mutex_);
    const auto block = self.blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (block == self.blocks_.end()) return;
    self.stats_.active_requests.decrease(1);
    self.stats_.active_bytes.decrease(block->second.bytes);
    self.stats_.allocations.decrease(1);
    self.stats_.allocated_bytes.decrease(block->second.bytes);
    if (block->second.finished())
      std::free(pointer);
    else
      self.freed_.emplace_back(pointer, std::move(block->second));
    self.blocks_.erase(block);
  }
  void free_finished() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto finished = [](const auto& freed) {
      if (!freed.second.finished()) return false;
      std::free(freed.first);
      return true;
    };
    freed_.erase(std::remove_if(freed_.begin(), freed_.end(), finished), freed_.end());
  }
  std::array<at::Stat*, 4> all() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
            &stats_.allocated_bytes};
  }

  std::mutex mutex_;
  Blocks blocks_;
  std::vector<std::pair<void*, Block>> freed_;  // but streams still use them
  at::HostStats stats_;
};

// --- hooks ----------------------------------------------------------------------------------

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return device >= 0 && device < device_count();
  }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? static_cast<c10::DeviceIndex>(current_device()) : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<SpyreGenerator>(device < 0 ? current_device() : device);
  }
  c10::Device getDeviceFromPtr(void* pointer) const override {
    const int device = device_of(pointer);
    TORCH_CHECK(device >= 0, "spyre: the address does not lie in any card's memory");
    return device_at(device);
  }
  bool isPinnedPtr(const void* pointer) const override {
    return PinnedMemory::instance().holds(pointer);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::instance(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

struct Register {
  Register() {
    at::setHostAllocator(c10::kPrivateUse1, &PinnedMemory::instance());
    at::RegisterPrivateUse1HooksInterface(std::make_unique<Hooks>().release());
  }
} register_runtime;

}  // namespace

bool is_pinned_memory(const void* pointer) { return PinnedMemory::instance().holds(pointer); }

}  // namespace openspyre
