#include "launcher.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>

#include "card_error.h"
#include "memory.h"
#include "numerics.h"
#include "slots.h"
#include "state.h"

namespace openspyre {
namespace {

// One launch of a program. The objects are used again.
class Launch final : public Work {
 public:
  static Launch& of(const std::shared_ptr<Variant>& variant, Record& record, Resident& program,
                    const SlotRing::Slot& slot) {
    Launch& work = take();
    work.variant_ = variant;
    work.record_ = &record;
    work.program_ = &program;
    work.slot_ = slot;
    work.numerics_ = &numerics();
    work.engine = Engine::Compute;
    work.subject = record.number;
    work.brief = record.usual > 0 && record.usual < kBriefNanoseconds;
    return work;
  }

  int run(spyre_error& error) noexcept override {
    const auto start = std::chrono::steady_clock::now();
    const int code = program_->run(slot_.address, *numerics_, error);
    const int64_t spent =
        std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    record_->nanoseconds += spent;
    // A launch that the host interrupted says little about the next.
    const int64_t usual = record_->usual;
    record_->usual = usual == 0 || spent < usual ? spent : usual + (spent - usual) / 8;
    CardState& shown = card_state(program_->device());
    shown.busy.fetch_add(static_cast<uint64_t>(spent), std::memory_order_relaxed);
    shown.launches.fetch_add(1, std::memory_order_relaxed);
    return code;
  }
  const std::string& name() const override { return variant_->name(); }
  void retire() noexcept override {
    slots(program_->device()).give_back(slot_);
    variant_.reset();
    const std::lock_guard<std::mutex> lock(spare().mutex);
    spare().works.push_back(this);
  }

 private:
  struct Spare {
    std::mutex mutex;
    std::vector<Launch*> works;
  };
  static Spare& spare() {
    static auto* const instance = new Spare();
    return *instance;
  }
  static Launch& take() {
    const std::lock_guard<std::mutex> lock(spare().mutex);
    auto& works = spare().works;
    if (works.empty()) {
      works.reserve(works.capacity() + 1);
      return *std::make_unique<Launch>().release();
    }
    Launch* const last = works.back();
    works.pop_back();
    return *last;
  }

  std::shared_ptr<Variant> variant_;
  Record* record_ = nullptr;
  Resident* program_ = nullptr;
  SlotRing::Slot slot_;
  const spyre_numerics* numerics_ = nullptr;
};

// Bindings of one thread, by depth: compiling for a launch may launch.
struct Bindings {
  std::deque<Binding> all;
  size_t used = 0;

  Binding& take() {
    if (used == all.size()) all.emplace_back();
    return all[used++];
  }
};
thread_local Bindings bindings;

}  // namespace

ReusedBinding::ReusedBinding() : binding_(bindings.take()) {
  binding_.addresses.clear();
  binding_.sizes.clear();
  binding_.scalars.clear();
}

ReusedBinding::~ReusedBinding() { --bindings.used; }

Resident::Resident(int device, const std::string& bytes)
    : device_(device), memory_(allocate_apart(device, bytes.size())) {
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

int Resident::run(uint64_t slot, const spyre_numerics& numerics, spyre_error& error) noexcept {
  return spyre_program_run(program_, slot, &numerics, &error);
}

spyre_report Resident::time(const Sizes& sizes, size_t address_count, size_t scalar_count,
                            bool kept) {
  Binding binding;
  binding.addresses.assign(address_count, card(device_).base);
  binding.sizes = sizes;
  binding.scalars.assign(scalar_count, 0.0);
  const auto& block = fill(binding, card(device_).base);
  spyre_report report{};
  spyre_error error{};
  const auto time = kept ? spyre_program_time_kept : spyre_program_time;
  const int code = time(program_, block.data(), &report, &error);
  if (code != SPYRE_OK) throw_card_error(code, error.text);
  return report;
}

c10::DataPtr Resident::pool() const {
  return allocate_for_programs(device_, spyre_program_pool_bytes(program_));
}

uint64_t Record::next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Variant::Variant(std::string name, std::string bytes, Sizes low, Sizes high)
    : name_(std::move(name)),
      bytes_(std::move(bytes)),
      low_(std::move(low)),
      high_(std::move(high)) {}

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
  if (last_ && last_->sizes == sizes) return *last_;
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [&](const Record& one) { return one.sizes == sizes; });
  last_ = found != records_.end() ? &*found : &records_.emplace_back(sizes);
  return *last_;
}

const spyre_report& measure(Variant& variant, Record& record, int device, size_t address_count,
                            size_t scalar_count, bool kept) {
  if (!record.report) {
    Resident& program = variant.on(device);
    const auto picoseconds = [](const spyre_report& report) {
      return std::llround(static_cast<double>(report.cycles) / card_number("clock_ghz") * 1000);
    };
    record.report = program.time(record.sizes, address_count, scalar_count, false);
    record.kept_report = program.has_prologue()
                             ? program.time(record.sizes, address_count, scalar_count, true)
                             : *record.report;
    record.picoseconds = picoseconds(*record.report);
    record.kept_picoseconds = picoseconds(*record.kept_report);
  }
  return kept ? *record.kept_report : *record.report;
}

void launch(Stream& stream, const std::shared_ptr<Variant>& variant, Resident& program,
            Record& record, const std::vector<int64_t>& block) {
  const size_t bytes = block.size() * sizeof(int64_t);
  const SlotRing::Slot slot = slots(stream.device).take(bytes);
  std::memcpy(reinterpret_cast<void*>(slot.address), block.data(), bytes);
  const int64_t usual = record.usual;
  Launch& work = Launch::of(variant, record, program, slot);
  const bool kept = program.expects_kept(block, numerics());
  if (kept) record.kept.fetch_add(1, std::memory_order_relaxed);
  work.picoseconds = kept ? record.kept_picoseconds : record.picoseconds;
  submit(stream, work, usual > 0 && usual < kInlineNanoseconds);
}

}  // namespace openspyre
