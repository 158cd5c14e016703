#include "memory.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "arena.h"

namespace openspyre {
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
    finish_everything();
    std::memmove(target, source, bytes);
    touch(target, bytes);
    will_touch(target, bytes);
  }
  bool initialized() override { return device_count() > 0; }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < device_count(); ++i)
      if (is_open(i)) arena(i).empty_cache();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const int device = device_of(data.get());
    if (device < 0 || in_bad_fork()) return;
    TORCH_CHECK(stream.device_index() == device, "spyre: memory of spyre:", device,
                " cannot be recorded on a stream of ", stream.device());
    arena(device).record_stream(reinterpret_cast<uint64_t>(data.get()), stream.id());
  }
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

namespace {

void* take(int device, size_t bytes, c10::StreamId stream, bool for_tensor) {
  auto* const pointer = reinterpret_cast<void*>(arena(device).allocate(bytes, stream, for_tensor));
  touch(pointer, bytes);
  will_touch(pointer, bytes);
  return pointer;
}

c10::DataPtr for_no_tensor(int device, size_t bytes, c10::StreamId stream) {
  const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0) return {nullptr, where};
  void* const pointer = take(device, bytes, stream, false);
  return {pointer, pointer, &release_quietly, where};
}

}  // namespace

c10::DataPtr allocate_on(int device, size_t bytes) {
  card(device);  // a bad index must not reach the table of streams
  const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
  if (bytes == 0) return {nullptr, where};
  void* const pointer = take(device, bytes, current_stream_id(device), true);
  if (c10::memoryProfilingEnabled()) report(pointer, device, static_cast<int64_t>(bytes));
  return {pointer, pointer, &release, where};
}

c10::DataPtr allocate_for_programs(int device, size_t bytes) {
  return for_no_tensor(device, bytes, current_stream_id(device));
}

c10::DataPtr allocate_apart(int device, size_t bytes) {
  return for_no_tensor(device, bytes, kLoader);
}

c10::DeviceAllocator* allocator() {
  static auto* const instance = new SpyreAllocator();
  return instance;
}

}  // namespace openspyre
