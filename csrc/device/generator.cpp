#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstring>
#include <mutex>

#include "card.h"
#include "runtime.h"

namespace openspyre {
namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

SpyreGenerator& checked(const at::Generator& generator) {
  TORCH_CHECK(generator.defined() && generator.device().type() == c10::kPrivateUse1,
              "Expected a 'spyre' device type for generator but found '",
              generator.defined() ? generator.device().str() : "none", "'");
  return *static_cast<SpyreGenerator*>(generator.unsafeGetGeneratorImpl());
}

}  // namespace

SpyreGenerator::SpyreGenerator(int device)
    : GeneratorImpl({c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)},
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void SpyreGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t SpyreGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

c10::intrusive_ptr<c10::TensorImpl> SpyreGenerator::get_state() const {
  auto state = at::detail::empty_cpu({kStateBytes}, c10::kByte);
  const std::array<uint64_t, 2> words{seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words.data(), kStateBytes);
  return state.getIntrusivePtr();
}

void SpyreGenerator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  TORCH_CHECK(new_state.numel() == kStateBytes, "RNG state is wrong size: ", new_state.numel(),
              " bytes, a state of a card has ", kStateBytes);
  std::array<uint64_t, 2> words;
  std::memcpy(words.data(), new_state.data(), kStateBytes);
  seed_ = words[0];
  offset_ = words[1];
}

SpyreGenerator* SpyreGenerator::clone_impl() const {
  auto copy = std::make_unique<SpyreGenerator>(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy.release();
}

const at::Generator& default_generator(int device) {
  static auto* const generators = [] {
    auto* const made = new std::array<at::Generator, kMaxDevices>();
    for (int i = 0; i < kMaxDevices; ++i) {
      (*made)[i] = at::make_generator<SpyreGenerator>(i);
      (*made)[i].seed();
    }
    return made;
  }();
  const int index = device < 0 ? current_device() : device;
  check_device(index);
  return (*generators)[index];
}

Numbers take_numbers(const std::optional<at::Generator>& generator, int device, uint64_t count) {
  const bool given = generator.has_value() && generator->defined();
  SpyreGenerator& from = checked(given ? *generator : default_generator(device));
  const std::lock_guard<std::mutex> lock(from.mutex_);
  const Numbers taken{from.current_seed(), from.get_offset()};
  from.set_offset(taken.offset + count);
  return taken;
}

uint64_t take_seed(const std::optional<at::Generator>& generator, int device) {
  const Numbers taken = take_numbers(generator, device, 1);
  uint64_t mixed = taken.seed + (taken.offset + 1) * 0x9e3779b97f4a7c15u;  // SplitMix64
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
  return mixed ^ mixed >> 31;
}

}  // namespace openspyre
