#include "complex.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "fallback.h"

namespace openspyre {
namespace {

using at::Tensor;

struct Parts {
  Tensor real, imaginary;
};

Parts parts_of(const Tensor& z) {
  if (!z.is_complex()) return {z, at::zeros_like(z)};
  const Tensor both = at::view_as_real(z);
  return {both.select(-1, 0), both.select(-1, 1)};
}

Tensor joined(const Parts& parts) {
  return at::view_as_complex(at::stack({parts.real, parts.imaginary}, -1));
}

// --- arithmetic
// -----------------------------------------------------------------------------------

Parts product(const Parts& a, const Parts& b) {
  return {a.real.mul(b.real).sub(a.imaginary.mul(b.imaginary)),
          a.real.mul(b.imaginary).add(a.imaginary.mul(b.real))};
}

Parts sum(const Parts& a, const Parts& b) {
  return {a.real.add(b.real), a.imaginary.add(b.imaginary)};
}

Parts difference(const Parts& a, const Parts& b) {
  return {a.real.sub(b.real), a.imaginary.sub(b.imaginary)};
}

bool is_single(const Tensor& x) {
  return x.scalar_type() == at::kComplexFloat || x.scalar_type() == at::kFloat ||
         (x.dim() == 0 && x.is_cpu());
}

// In complex64 on the device; numbers of the host may have any dtype.
Tensor fitting(const Tensor& x, const Tensor& out) {
  const auto dtype = x.is_complex() ? at::kComplexFloat : at::kFloat;
  return x.is_cpu() ? x.to(dtype).to(out.device()) : x;
}

}  // namespace

bool run_in_parts(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const bool multiplies = name == "aten::mul", adds = name == "aten::add";
  if (!multiplies && !adds && name != "aten::sub") return false;
  if (op.schema().overload_name() != "out") return false;
  const size_t first = stack->size() - op.schema().arguments().size();
  const Tensor a = (*stack)[first].toTensor(), b = (*stack)[first + 1].toTensor();
  Tensor out = stack->back().toTensor();
  if (out.scalar_type() != at::kComplexFloat || !is_single(a) || !is_single(b)) return false;
  if (!multiplies && !(*stack)[first + 2].toScalar().equal(1)) return false;
  const Parts x = parts_of(fitting(a, out)), y = parts_of(fitting(b, out));
  const Parts made = multiplies ? product(x, y) : adds ? sum(x, y) : difference(x, y);
  const Parts into = parts_of(out);
  into.real.copy_(made.real);
  into.imaginary.copy_(made.imaginary);
  stack->resize(first);
  stack->emplace_back(out);
  return true;
}

namespace {

Tensor& polar_out(const Tensor& length, const Tensor& angle, Tensor& out) {
  const Tensor made = joined({length.mul(angle.cos()), length.mul(angle.sin())});
  out.resize_(made.sizes());
  return out.copy_(made);
}

// --- Fourier transforms
// ---------------------------------------------------------------------------

// Cosines and sines [n, n] of the turns of a transform; a whole turn is taken off before the
// angle is rounded, so that it is as exact for the last row as for the first.
Parts turns(int64_t n, bool forward, const Tensor& like) {
  const Tensor place = at::arange(n, like.options().dtype(at::kLong));
  const Tensor turned = at::remainder(place.unsqueeze(1).mul(place), n);
  const Tensor nearest = at::where(turned.mul(2).gt(n), turned.sub(n), turned);
  const Tensor angle = nearest.to(at::kFloat).mul((forward ? -2 : 2) * M_PI / n);
  return {angle.cos(), angle.sin()};
}

Parts transformed(Parts x, int64_t dim, bool forward) {
  const Parts wave = turns(x.real.size(dim), forward, x.real);
  const Parts rows{x.real.movedim(dim, -1), x.imaginary.movedim(dim, -1)};
  return {at::matmul(rows.real, wave.real)
              .sub(at::matmul(rows.imaginary, wave.imaginary))
              .movedim(-1, dim),
          at::matmul(rows.real, wave.imaginary)
              .add(at::matmul(rows.imaginary, wave.real))
              .movedim(-1, dim)};
}

// How much a transform of these dims is scaled: PyTorch's numbers for none, 1/sqrt(n) and 1/n.
double scale_of(int64_t normalization, double places) {
  return normalization == 0 ? 1 : normalization == 1 ? 1 / std::sqrt(places) : 1 / places;
}

// Products with n x n turns: right for any size, worth it for those that fit beside the data.
constexpr int64_t kLongest = 2048;

bool served(const Tensor& x, at::IntArrayRef dims, int64_t last = 0) {
  if (x.scalar_type() != at::kFloat && x.scalar_type() != at::kComplexFloat) return false;
  int64_t longest = last;
  for (const int64_t dim : dims) longest = std::max(longest, x.size(dim));
  return !dims.empty() && x.numel() > 0 && longest <= kLongest;
}

// In the order of dims that PyTorch's transforms leave, and compiled graphs expect: those that are
// not transformed as they were, then the others.
Tensor in_fft_order(const Tensor& made, const Tensor& source, std::vector<int64_t> dims) {
  std::vector<int64_t> order;
  for (int64_t dim = 0; dim < source.dim(); ++dim)
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) order.push_back(dim);
  const auto outer = [&](int64_t a, int64_t b) { return source.stride(a) > source.stride(b); };
  std::stable_sort(order.begin(), order.end(), outer);
  order.insert(order.end(), dims.begin(), dims.end());
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return made.permute(order).contiguous().permute(back);
}

std::vector<int64_t> outer_first(const Tensor& x, at::IntArrayRef dims, size_t sorted) {
  std::vector<int64_t> found = dims.vec();
  const auto outer = [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); };
  std::stable_sort(found.begin(), found.begin() + static_cast<int64_t>(sorted), outer);
  return found;
}

Parts all_transformed(Parts x, at::IntArrayRef dims, bool forward, double scale) {
  for (const int64_t dim : dims) x = transformed(x, dim, forward);
  return {x.real.mul(scale), x.imaginary.mul(scale)};
}

double places(const Tensor& x, at::IntArrayRef dims) {
  double found = 1;
  for (const int64_t dim : dims) found *= static_cast<double>(x.size(dim));
  return found;
}

Tensor c2c(const Tensor& x, at::IntArrayRef dims, int64_t normalization, bool forward) {
  const double scale = scale_of(normalization, places(x, dims));
  const Parts made = all_transformed(parts_of(x), dims, forward, scale);
  return in_fft_order(joined(made), x, outer_first(x, dims, dims.size()));
}

Tensor r2c(const Tensor& x, at::IntArrayRef dims, int64_t normalization, bool onesided) {
  const double scale = scale_of(normalization, places(x, dims));
  Parts made = all_transformed(parts_of(x), dims, /*forward=*/true, scale);
  const int64_t last = dims.back(), kept = onesided ? x.size(last) / 2 + 1 : x.size(last);
  made = {made.real.narrow(last, 0, kept), made.imaginary.narrow(last, 0, kept)};
  return in_fft_order(joined(made), x, outer_first(x, dims, dims.size() - 1));
}

// The half that is given stands for the other one: each number but the first, and the last of an
// even size, for two.
Tensor c2r(const Tensor& x, at::IntArrayRef dims, int64_t normalization, int64_t size) {
  const int64_t last = dims.back(), kept = size / 2 + 1;
  const auto others = dims.slice(0, dims.size() - 1);
  const double count = places(x, others) * static_cast<double>(size);
  Parts half =
      all_transformed(parts_of(x), others, /*forward=*/false, scale_of(normalization, count));
  const Parts wave = turns(size, /*forward=*/false, half.real);
  const Tensor place = at::arange(kept, half.real.options().dtype(at::kLong));
  const Tensor alone = place.eq(0).logical_or(place.mul(2).eq(size)).unsqueeze(1);
  const auto row = [&](const Tensor& turn) {
    const Tensor rows = turn.narrow(0, 0, kept);
    return at::where(alone, rows, rows.mul(2));
  };
  const auto along = [&](const Tensor& part) {
    return part.narrow(last, 0, kept).movedim(last, -1);
  };
  const Tensor made = at::matmul(along(half.real), row(wave.real))
                          .sub(at::matmul(along(half.imaginary), row(wave.imaginary)))
                          .movedim(-1, last);
  return in_fft_order(made, x, {last});
}

// Ops (self, dims, normalization, ...).
template <typename Transform>
void fft(const c10::OperatorHandle& op, torch::jit::Stack* stack, const Transform& transform,
         int64_t last) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const Tensor x = (*stack)[first].toTensor();
  const auto dims = (*stack)[first + 1].toIntVector();
  if (!served(x, dims, last)) return run_or_fall_back(op, stack);
  const Tensor made = transform(x, dims, (*stack)[first + 2].toInt());
  stack->resize(first);
  stack->emplace_back(made);
}

void fft_c2c(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool forward = stack->back().toBool();
  fft(op, stack, [=](const auto&... x) { return c2c(x..., forward); }, 0);
}

void fft_r2c(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool onesided = stack->back().toBool();
  fft(op, stack, [=](const auto&... x) { return r2c(x..., onesided); }, 0);
}

void fft_c2r(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const int64_t size = stack->back().toInt();
  fft(op, stack, [=](const auto&... x) { return c2r(x..., size); }, size);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("polar.out", TORCH_FN(polar_out));
  m.impl("_fft_c2c", torch::CppFunction::makeFromBoxedFunction<&fft_c2c>());
  m.impl("_fft_r2c", torch::CppFunction::makeFromBoxedFunction<&fft_r2c>());
  m.impl("_fft_c2r", torch::CppFunction::makeFromBoxedFunction<&fft_c2r>());
}

}  // namespace openspyre
