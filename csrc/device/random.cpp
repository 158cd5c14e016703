// Ops that draw random numbers. The checks of arguments are PyTorch's own
// (DistributionTemplates.h); the numbers come from kernels of the card.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/multinomial_native.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/searchsorted.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "draw.h"
#include "generator.h"

namespace openspyre {
namespace {

using at::Tensor;
using std::optional;
using Source = optional<at::Generator>;
namespace templates = at::native::templates;

// Draws into `self`; where the card has no such elements, into others that are then converted
// (float64 holds float32 values: the card computes in nothing wider).
template <typename F>
void into(const Tensor& self, c10::ScalarType otherwise, F draw_into) {
  // A generator of a card brings tensors of other devices here too.
  TORCH_CHECK(self.is_privateuseone(), "Expected a '", self.device(),
              "' device type for generator but found 'spyre'");
  at::assert_no_internal_overlap(self);
  if (drawable(self.scalar_type())) return draw_into(self);
  const Tensor other = at::empty(self.sizes(), self.options().dtype(otherwise));
  draw_into(other);
  self.copy_(other);
}

void check_float(const Tensor& self, const char* op) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", op,
                              "\" not implemented for '", toString(self.scalar_type()), "'");
}

void draw_floats(const char* kind, const Tensor& self, std::initializer_list<double> parameters,
                 const Source& generator) {
  check_float(self, kind);
  into(self, c10::kFloat, [&](const Tensor& out) { draw(kind, {out}, parameters, generator); });
}

// Whether float32 holds a number, and those near it that a draw makes of it.
bool is_held(double number) {
  const double size = std::abs(number), most = std::numeric_limits<float>::max();
  return size == 0 || (size >= std::numeric_limits<float>::min() && size <= most / 128);
}

// Draws `shift + scale * x`, with x as drawn by `standard`. A float64 may ask for numbers that
// float32 does not hold: these are scaled in float64.
void draw_scaled(const char* kind, const Tensor& self, std::initializer_list<double> parameters,
                 std::initializer_list<double> standard, double scale, double shift,
                 const Source& generator) {
  const bool held = self.scalar_type() != c10::kDouble || (is_held(scale) && is_held(shift));
  draw_floats(kind, self, held ? parameters : standard, generator);
  if (!held) self.mul_(scale).add_(shift);
}

double low_word(uint64_t value) { return static_cast<double>(value & 0xffffffffu); }
double high_word(uint64_t value) { return static_cast<double>(value >> 32); }

// What the templates call once the arguments are right.

template <typename>
struct Integers {
  // [low, low + extent); an extent of 0 is 2^64.
  void operator()(at::TensorIteratorBase& iterator, uint64_t extent, int64_t low,
                  const Source& generator) {
    const auto start = static_cast<uint64_t>(low);
    into(iterator.tensor(0), c10::kLong, [&](const Tensor& out) {
      draw("integers", {out},
           {low_word(start), high_word(start), low_word(extent), high_word(extent)}, generator);
    });
  }
  void operator()(at::TensorIteratorBase& iterator, const Source& generator) {
    (*this)(iterator, 0, 0, generator);
  }
};

template <typename>
struct Normal {
  void operator()(const Tensor& self, double mean, double std, const Source& generator) {
    draw_scaled("normal", self, {mean, std}, {0, 1}, std, mean, generator);
  }
};

template <typename>
struct Uniform {
  void operator()(at::TensorIteratorBase& iterator, double from, double to,
                  const Source& generator) {
    draw_scaled("uniform", iterator.tensor(0), {from, to, to - from}, {0, 1, 1}, to - from, from,
                generator);
  }
};

template <typename>
struct LogNormal {
  void operator()(at::TensorIteratorBase& iterator, double mean, double std,
                  const Source& generator) {
    const Tensor self = iterator.tensor(0);
    const bool held = self.scalar_type() != c10::kDouble || std::abs(mean) + 8 * std < 80;
    if (held) return draw_floats("log_normal", self, {mean, std}, generator);
    draw_scaled("normal", self, {mean, std}, {0, 1}, std, mean, generator);
    self.exp_();
  }
};

template <typename>
struct Exponential {
  void operator()(at::TensorIteratorBase& iterator, double rate, const Source& generator) {
    draw_scaled("exponential", iterator.tensor(0), {rate}, {1}, 1 / rate, 0, generator);
  }
};

template <typename>
struct Cauchy {
  void operator()(at::TensorIteratorBase& iterator, double median, double sigma,
                  const Source& generator) {
    draw_scaled("cauchy", iterator.tensor(0), {median, sigma}, {0, 1}, sigma, median, generator);
  }
};

template <typename>
struct Geometric {
  void operator()(at::TensorIteratorBase& iterator, double p, const Source& generator) {
    into(iterator.tensor(0), c10::kFloat,
         [&](const Tensor& out) { draw("geometric", {out}, {std::log1p(-p)}, generator); });
  }
};

template <typename>
struct Bernoulli {
  void operator()(const Tensor& self, double p, const Source& generator) {
    into(self, c10::kFloat, [&](const Tensor& out) { draw("bernoulli", {out}, {p}, generator); });
  }
};

template <typename>
struct BernoulliEach {
  void operator()(const Tensor& self, const Tensor& p, const Source& generator) {
    TORCH_CHECK(at::isFloatingType(p.scalar_type()),
                "bernoulli expects probabilities of a floating-point dtype, but found ", p.dtype());
    Tensor each = p.scalar_type() == c10::kDouble ? p.to(c10::kFloat) : p;
    if (each.is_alias_of(self)) each = each.clone();
    each = each.expand(self.sizes());
    into(self, c10::kFloat,
         [&](const Tensor& out) { draw("bernoulli_each", {each, out}, {}, generator); });
  }
};

// --- the ops ----------------------------------------------------------------------------------

Tensor& random_from(Tensor& self, int64_t from, optional<int64_t> to, Source generator) {
  return templates::random_from_to_impl<Integers, SpyreGenerator>(self, from, to, generator);
}
Tensor& random_to(Tensor& self, int64_t to, Source generator) {
  return random_from(self, 0, to, generator);
}
Tensor& random_any(Tensor& self, Source generator) {
  return random_from(self, 0, std::nullopt, generator);
}

Tensor& normal_in_place(Tensor& self, double mean, double std, Source generator) {
  return templates::normal_impl_<Normal, SpyreGenerator>(self, mean, std, generator);
}
template <typename Mean, typename Std>
Tensor normal(Mean mean, Std std, Source generator) {
  return templates::normal_impl<Normal, SpyreGenerator>(mean, std, generator);
}
template <typename Mean, typename Std>
Tensor& normal_out(Mean mean, Std std, Source generator, Tensor& out) {
  return templates::normal_out_impl<Normal, SpyreGenerator>(out, mean, std, generator);
}

Tensor& uniform(Tensor& self, double from, double to, Source generator) {
  return templates::uniform_impl_<Uniform, SpyreGenerator>(self, from, to, generator);
}
Tensor& log_normal(Tensor& self, double mean, double std, Source generator) {
  return templates::log_normal_impl_<LogNormal, SpyreGenerator>(self, mean, std, generator);
}
Tensor& exponential(Tensor& self, double rate, Source generator) {
  return templates::exponential_impl_<Exponential, SpyreGenerator>(self, rate, generator);
}
Tensor& cauchy(Tensor& self, double median, double sigma, Source generator) {
  return templates::cauchy_impl_<Cauchy, SpyreGenerator>(self, median, sigma, generator);
}
Tensor& geometric(Tensor& self, double p, Source generator) {
  return templates::geometric_impl_<Geometric, SpyreGenerator>(self, p, generator);
}
Tensor& bernoulli(Tensor& self, double p, Source generator) {
  return templates::bernoulli_impl_<Bernoulli, SpyreGenerator>(self, p, generator);
}
Tensor& bernoulli_each(Tensor& self, const Tensor& p, Source generator) {
  return templates::bernoulli_impl_<BernoulliEach, SpyreGenerator>(self, p, generator);
}
Tensor& bernoulli_out(const Tensor& self, Source generator, Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliEach, SpyreGenerator>(out, self, generator);
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const bool drops = train.value_or(true);
  const double keep = drops ? 1 - p : 1;
  const Tensor mask = at::empty_like(input, input.options().dtype(c10::kBool));
  const Tensor out = at::empty_like(input);
  const double scale = keep == 0 ? 0 : 1 / keep;
  if (drawable(input.scalar_type()) && at::isFloatingType(input.scalar_type())) {
    draw("dropout", {input, mask, out}, {keep, scale}, std::nullopt);
    return {out, mask};
  }
  draw("bernoulli", {mask}, {keep}, std::nullopt);
  return {input.mul(mask).mul_(scale), mask};
}

// With replacement: where a random part of the total falls in the running sums. The smallest sum
// that is not below it belongs to a category that has a share, so one without is never drawn.
void draw_categories(const Tensor& self, int64_t count, const Source& generator, Tensor& out) {
  const Tensor sums = self.to(c10::kFloat).cumsum(-1).contiguous();
  const Tensor total = sums.narrow(-1, sums.size(-1) - 1, 1);
  TORCH_CHECK(total.isfinite().logical_and(self.ge(0).all()).all().item<bool>(),
              "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(total.gt(0).all().item<bool>(),
              "invalid multinomial distribution (sum of probabilities <= 0)");
  auto sizes = total.sizes().vec();
  sizes.back() = count;
  const Tensor part = at::rand(sizes, generator, total.options()).neg_().add_(1);
  out.copy_(at::searchsorted(sums, part.mul_(total)));
}

Tensor& multinomial_out(const Tensor& self, int64_t count, bool replacement, Source generator,
                        Tensor& out) {
  const bool one_kind = !replacement || count <= 1 || self.dim() < 1 || self.dim() > 2 ||
                        !at::isFloatingType(self.scalar_type()) || self.numel() == 0;
  if (one_kind || out.scalar_type() != c10::kLong)
    return at::native::multinomial_out(self, count, replacement, generator, out);
  auto sizes = self.sizes().vec();
  sizes.back() = count;
  at::native::resize_output(out, sizes);
  draw_categories(self, count, generator, out);
  return out;
}

Tensor multinomial(const Tensor& self, int64_t count, bool replacement, Source generator) {
  Tensor out = at::empty({0}, self.options().dtype(c10::kLong));
  return multinomial_out(self, count, replacement, generator, out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using Each = const Tensor&;
  m.impl("random_", TORCH_FN(random_any));
  m.impl("random_.to", TORCH_FN(random_to));
  m.impl("random_.from", TORCH_FN(random_from));
  m.impl("normal_", TORCH_FN(normal_in_place));
  m.impl("normal.Tensor_float", TORCH_FN((normal<Each, double>)));
  m.impl("normal.float_Tensor", TORCH_FN((normal<double, Each>)));
  m.impl("normal.Tensor_Tensor", TORCH_FN((normal<Each, Each>)));
  m.impl("normal.Tensor_float_out", TORCH_FN((normal_out<Each, double>)));
  m.impl("normal.float_Tensor_out", TORCH_FN((normal_out<double, Each>)));
  m.impl("normal.Tensor_Tensor_out", TORCH_FN((normal_out<Each, Each>)));
  m.impl("uniform_", TORCH_FN(uniform));
  m.impl("log_normal_", TORCH_FN(log_normal));
  m.impl("exponential_", TORCH_FN(exponential));
  m.impl("cauchy_", TORCH_FN(cauchy));
  m.impl("geometric_", TORCH_FN(geometric));
  m.impl("bernoulli_.float", TORCH_FN(bernoulli));
  m.impl("bernoulli_.Tensor", TORCH_FN(bernoulli_each));
  m.impl("bernoulli.out", TORCH_FN(bernoulli_out));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("multinomial", TORCH_FN(multinomial));
  m.impl("multinomial.out", TORCH_FN(multinomial_out));
}

}  // namespace openspyre
