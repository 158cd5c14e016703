#include "launcher.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "memory.h"

namespace openspyre {
namespace {

constexpr size_t kRingBytes = 256 << 10;
constexpr size_t kSlotAlignment = 128;

// Slots in card memory, taken in turn. One program runs at a time and its slot is free when it has
// finished, so a slot is never waited for; callers hold the card's queue.
class Ring {
 public:
  uint64_t take(int device, size_t bytes) {
    bytes = (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
    if (bytes > size_) {
      size_ = std::max(kRingBytes, 4 * bytes);
      memory_ = allocate_for_programs(device, size_);
      next_ = 0;
    }
    if (next_ + bytes > size_) next_ = 0;
    const uint64_t slot = reinterpret_cast<uint64_t>(memory_.get()) + next_;
    next_ += bytes;
    return slot;
  }

 private:
  c10::DataPtr memory_;
  size_t size_ = 0;
  size_t next_ = 0;
};

Ring& ring(int device) {
  static auto* const rings = new std::array<Ring, kMaxDevices>();
  return (*rings)[device];
}

}  // namespace

Resident::Resident(int device, const std::string& bytes)
    : device_(device), memory_(allocate_for_programs(device, bytes.size())) {
  std::memcpy(memory_.get(), bytes.data(), bytes.size());
  touch(memory_.get(), bytes.size());
  spyre_error error{};
  const int code =
      spyre_program_create(card(device).handle, reinterpret_cast<uint64_t>(memory_.get()),
                           bytes.size(), &program_, &error);
  TORCH_CHECK(code == SPYRE_OK, "spyre: the card rejects a program: ", error.text);
}

Resident::~Resident() {
  if (!in_bad_fork()) spyre_program_destroy(program_);
}

const std::vector<int64_t>& Resident::fill(const Binding& binding, uint64_t pool) {
  thread_local std::vector<int64_t> block;
  block.resize(spyre_program_slot_count(program_));
  spyre_error error{};
  const int code =
      spyre_program_fill(program_, binding.addresses.data(), binding.addresses.size(),
                         binding.sizes.data(), binding.sizes.size(), binding.scalars.data(),
                         binding.scalars.size(), pool, block.data(), &error);
  TORCH_CHECK(code == SPYRE_OK, "spyre: the card rejects a launch: ", error.text);
  return block;
}

int Resident::run(const std::vector<int64_t>& block, spyre_error& error) {
  Card& on = card(device_);
  const std::lock_guard<std::mutex> queue(on.queue);
  const size_t bytes = block.size() * sizeof(int64_t);
  const uint64_t slot = ring(device_).take(device_, std::max<size_t>(bytes, 1));
  std::memcpy(reinterpret_cast<void*>(slot), block.data(), bytes);
  return spyre_program_run(program_, slot, &error);
}

spyre_report Resident::time(const Sizes& sizes, size_t address_count, size_t scalar_count) {
  Binding binding;
  binding.addresses.assign(address_count, card(device_).base);
  binding.sizes = sizes;
  binding.scalars.assign(scalar_count, 0.0);
  const auto& block = fill(binding, card(device_).base);
  spyre_report report{};
  spyre_error error{};
  const int code = spyre_program_time(program_, block.data(), &report, &error);
  TORCH_CHECK(code == SPYRE_OK, "spyre: the card cannot time a program: ", error.text);
  return report;
}

c10::DataPtr Resident::pool() const {
  return allocate_for_programs(device_, spyre_program_pool_bytes(program_));
}

Variant::Variant(std::string bytes, Sizes low, Sizes high)
    : bytes_(std::move(bytes)), low_(std::move(low)), high_(std::move(high)) {}

bool Variant::serves(const Sizes& sizes) const {
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] < low_[i] || sizes[i] > high_[i]) return false;
  return true;
}

Resident& Variant::on(int device) {
  if (on_.size() <= static_cast<size_t>(device)) on_.resize(device + 1);
  if (!on_[device]) on_[device] = std::make_unique<Resident>(device, bytes_);
  return *on_[device];
}

Record& Variant::record(const Sizes& sizes) {
  if (last_ < records_.size() && records_[last_].sizes == sizes) return records_[last_];
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [&](const Record& one) { return one.sizes == sizes; });
  last_ = found - records_.begin();
  if (found == records_.end()) records_.push_back({sizes, 0, 0, std::nullopt});
  return records_[last_];
}

}  // namespace openspyre
