#include "copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "card.h"
#include "memory.h"
#include "pooled.h"
#include "runtime.h"
#include "strided.h"

namespace openspyre {
namespace {

using at::Tensor;

constexpr size_t kQuick = 64 << 10;  // bytes that another thread is not worth
constexpr size_t kStage = 1 << 20;   // bytes that are rather staged than waited for

bool is_spyre(const Tensor& tensor) { return tensor.is_privateuseone(); }

// --- host memory that copies still use ------------------------------------------------------

// Storages that copies are done with. Python may hold them too, so that their end can need the
// GIL: threads of the card leave that to the next thread of the host that comes by.
class Leftovers {
 public:
  void leave(c10::Storage storage) {
    const std::lock_guard<std::mutex> lock(mutex_);
    storages_.push_back(std::move(storage));
    any_ = true;
  }
  void drop() {
    while (any_.load(std::memory_order_relaxed)) {
      c10::Storage one;  // goes without the lock: its end may run Python
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!storages_.empty()) {
        one = std::move(storages_.back());
        storages_.pop_back();
      }
      any_ = !storages_.empty();
    }
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Storage> storages_;
  std::atomic<bool> any_{false};
};

Leftovers& leftovers() {
  static auto* const instance = new Leftovers();
  return *instance;
}

// --- one copy -------------------------------------------------------------------------------

int64_t link_picoseconds(size_t bytes) {
  return std::llround(static_cast<double>(bytes) * 1000 / card_number("host_link"));
}

// Reads and writes share the card's memory.
int64_t memory_picoseconds(size_t bytes) {
  const auto count = static_cast<double>(bytes);
  const double nanoseconds =
      2 * count / card_number("dram_oneway") + count * card_number("dram_turnaround");
  return std::llround(nanoseconds * 1000);
}

class Copy final : public Work, public Pooled<Copy> {
 public:
  Copy(Engine on, const StridedMove& move, void* to, const void* from)
      : move_(move), to_(static_cast<char*>(to)), from_(static_cast<const char*>(from)) {
    engine = on;
    will_touch(to_, move_.reach());
    if (!timing()) return;
    picoseconds =
        on == Engine::Compute ? memory_picoseconds(move.bytes()) : link_picoseconds(move.bytes());
  }

  int run(spyre_error&) noexcept override {
    move_.run(to_, from_);
    touch(to_, move_.reach());
    return SPYRE_OK;
  }
  const std::string& name() const override {
    static const auto* const text = new std::string("copy");
    return *text;
  }
  void retire() noexcept override {
    if (used_) leftovers().leave(std::move(*used_));
    delete this;
  }

  // Memory of ours: goes with the copy.
  void stage(Tensor staged) { staged_ = std::move(staged); }
  // Memory of the user's.
  void use(const c10::Storage& storage) { used_ = storage; }

 private:
  const StridedMove move_;
  char* const to_;
  const char* const from_;
  Tensor staged_;
  std::optional<c10::Storage> used_;
};

StridedMove move_of(const Tensor& from, const Tensor& to) {
  return {to.sizes(), to.strides(), from.strides(), to.itemsize()};
}

Copy& copy_of(Engine engine, const Tensor& from, const Tensor& to) {
  return *std::make_unique<Copy>(engine, move_of(from, to), to.mutable_data_ptr(),
                                 from.const_data_ptr())
              .release();
}

// Runs it here if the stream is free for it, else drops it.
bool copied_here(Stream& stream, Engine engine, const Tensor& from, const Tensor& to) {
  std::unique_ptr<Copy> work(&copy_of(engine, from, to));
  if (!try_run(stream, *work)) return false;
  (void)work.release();
  return true;
}

// --- the cases ------------------------------------------------------------------------------

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

// A CPU tensor for elements of `sizes`, in the bits of `like`.
Tensor host_tensor(c10::IntArrayRef sizes, const Tensor& like) {
  Tensor made = at::empty(sizes, at::TensorOptions(c10::kCPU).dtype(like.scalar_type()));
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

void to_card(const Tensor& source, const Tensor& target, bool non_blocking) {
  Stream& stream = current_stream(target.device().index());
  if (same_bits(source, target)) {
    const Tensor from = source.expand(target.sizes());
    const bool quick = target.nbytes() <= kQuick;
    if (non_blocking && is_pinned_memory(source.const_data_ptr())) {
      Copy& work = copy_of(Engine::ToCard, from, target);
      work.use(source.storage());
      return submit(stream, work, quick);
    }
    if ((quick || !non_blocking) && copied_here(stream, Engine::ToCard, from, target)) return;
    if (!non_blocking && source.nbytes() > kStage) {
      enqueue(stream, copy_of(Engine::ToCard, from, target));
      return finish(stream);
    }
  }
  const Tensor staged = host_tensor(source.sizes(), target);
  staged.copy_(source);
  Copy& work = copy_of(Engine::ToCard, staged.expand(target.sizes()), target);
  work.stage(staged);
  submit(stream, work, target.nbytes() <= kQuick);
}

void to_host(const Tensor& source, const Tensor& target, bool non_blocking) {
  Stream& stream = current_stream(source.device().index());
  if (!same_bits(source, target)) {
    const Tensor raw = host_tensor(source.sizes(), source);
    to_host(source, raw, false);
    target.copy_(raw);
    return;
  }
  const Tensor from = source.expand(target.sizes());
  if (non_blocking && is_pinned_memory(target.const_data_ptr())) {
    Copy& work = copy_of(Engine::ToHost, from, target);
    work.use(target.storage());
    return submit(stream, work, target.nbytes() <= kQuick);
  }
  if (!copied_here(stream, Engine::ToHost, from, target))
    enqueue(stream, copy_of(Engine::ToHost, from, target));
  synchronize(stream);
}

void between_cards(const Tensor& source, const Tensor& target) {
  Stream& giving = current_stream(source.device().index());
  Stream& taking = current_stream(target.device().index());
  wait_for(giving, record(taking));
  enqueue(giving, copy_of(Engine::ToHost, source, target));
  wait_for(taking, record(giving));
}

// Dtypes or conjugation differ: the host converts.
void convert(const Tensor& source, const Tensor& target) {
  host_view(target).copy_(host_view(source));
  touch(target.storage().data(), target.storage().nbytes());
  will_touch(target.storage().data(), target.storage().nbytes());
}

}  // namespace

at::Tensor host_view(const Tensor& tensor) {
  synchronize(current_stream(tensor.device().index()));
  auto* const data = const_cast<void*>(tensor.const_data_ptr());
  auto view = at::from_blob(data, tensor.sizes(), tensor.strides(),
                            tensor.options().device(c10::kCPU).pinned_memory(false));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

void copy_within(Stream& stream, void* to, const void* from, size_t bytes) {
  const auto count = static_cast<int64_t>(bytes);
  const StridedMove move({count}, {1}, {1}, 1);
  submit(stream, *std::make_unique<Copy>(Engine::Compute, move, to, from).release(),
         bytes <= kQuick);
}

void fill_elements(const Tensor& element, const Tensor& target) {
  leftovers().drop();
  if (target.numel() != 0) to_card(element, target, false);
}

namespace {

// What traces models hands out tensors that say they are on a device and have no data there.
void check_data(const Tensor& tensor) {
  TORCH_CHECK(tensor.storage().device_type() == tensor.device().type(), "spyre: a tensor on ",
              tensor.device(), " without data (a fake one) cannot be copied");
}

}  // namespace

void copy_elements(const Tensor& source, const Tensor& target, bool non_blocking) {
  TORCH_CHECK(is_spyre(source) || source.is_cpu(), "spyre: cannot copy from ", source.device());
  TORCH_CHECK(is_spyre(target) || target.is_cpu(), "spyre: cannot copy to ", target.device());
  leftovers().drop();
  const auto from = source.sizes() == target.sizes() ? source : source.expand(target.sizes());
  if (target.numel() == 0) return;
  check_data(source);
  check_data(target);
  at::assert_no_internal_overlap(target);
  at::assert_no_partial_overlap(target, from);
  if (source.is_cpu()) return to_card(source, target, non_blocking);
  if (target.is_cpu()) return to_host(source, target, non_blocking);
  if (!same_bits(source, target)) return convert(source, target);
  if (source.device() != target.device()) return between_cards(from, target);
  submit(current_stream(target.device().index()), copy_of(Engine::Compute, from, target),
         target.nbytes() <= kQuick);
}

}  // namespace openspyre
