// What PyTorch asks a device for: guard, streams, events, hooks, generators, pinned memory.
//
// Work is in order and synchronous: a launch or copy has finished when the call returns. Every
// stream is therefore always idle and an event is complete when it is recorded.
#include "runtime.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "card.h"
#include "generator.h"
#include "memory.h"

namespace openspyre {
namespace {

constexpr int kPoolStreams = 32;  // ids 1..32; 0 is the default stream, new streams come after

c10::Device device_at(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

int index_or_current(c10::Device device) {
  return device.has_index() ? device.index() : current_device();
}

// --- streams and events ---------------------------------------------------------------------

thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};

c10::Stream stream_at(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(device), id);
}

struct Event {
  int64_t nanoseconds = 0;
  bool timed = false;
  c10::DeviceIndex device = 0;
};

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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
    return stream_at(index, current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_at(index_or_current(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<int> next{0};
    return stream_at(index_or_current(device), 1 + next++ % kPoolStreams);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{kPoolStreams + 1};
    return stream_at(index_or_current(device), next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int index = index_or_current(stream.device());
    return stream_at(index, std::exchange(current_streams[index], stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ",
                static_cast<int>(device), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (!*event) *event = std::make_unique<Event>().release();
    auto* const recorded = static_cast<Event*>(*event);
    *recorded = {now(), flag == c10::EventFlag::BACKEND_DEFAULT, stream.device_index()};
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<Event> owned(static_cast<Event*>(event));
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    const auto* const from = static_cast<Event*>(start);
    const auto* const to = static_cast<Event*>(end);
    TORCH_CHECK(from->timed && to->timed,
                "Both events must be created with argument 'enable_timing=True'.");
    return static_cast<double>(to->nanoseconds - from->nanoseconds) * 1e-6;
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
      const std::lock_guard<std::mutex> lock(mutex_);
      blocks_.emplace(reinterpret_cast<uintptr_t>(pointer), bytes);
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
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
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
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return false;
    const auto [first, bytes] = *std::prev(after);
    return address - first < bytes;
  }

 private:
  static void release(void* pointer) {
    auto& self = instance();
    {
      const std::lock_guard<std::mutex> lock(self.mutex_);
      const auto block = self.blocks_.find(reinterpret_cast<uintptr_t>(pointer));
      if (block == self.blocks_.end()) return;
      self.stats_.active_requests.decrease(1);
      self.stats_.active_bytes.decrease(block->second);
      self.stats_.allocations.decrease(1);
      self.stats_.allocated_bytes.decrease(block->second);
      self.blocks_.erase(block);
    }
    std::free(pointer);
  }
  std::array<at::Stat*, 4> all() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
            &stats_.allocated_bytes};
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
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

}  // namespace openspyre
