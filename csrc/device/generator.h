// The random number stream of a device: a seed and a position in it.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace openspyre {

// Counter-based: number n of the stream is a function of the seed and n alone, so a state is two
// numbers and a draw of n elements moves the offset by n.
class SpyreGenerator final : public c10::GeneratorImpl {
 public:
  explicit SpyreGenerator(int device);

  static c10::DeviceType device_type() { return c10::kPrivateUse1; }

  void set_current_seed(uint64_t seed) override;  // and goes to its beginning
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;  // a new one, not deterministic
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  // 16 bytes on the CPU: seed, offset.
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  SpyreGenerator* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// Numbers offset, offset + 1, ... of the stream of a seed.
struct Numbers {
  uint64_t seed, offset;
};

// Takes `count` numbers from a generator, by default that of the device; throws if it is no
// generator of a card.
Numbers take_numbers(const std::optional<at::Generator>& generator, int device, uint64_t count);

// A seed for a generator of another kind that stands in for one draw; takes one number.
uint64_t take_seed(const std::optional<at::Generator>& generator, int device);

}  // namespace openspyre
