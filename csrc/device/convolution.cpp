// Convolution. PyTorch decides by device before a fallback can see it: what it calls for the card
// is `convolution_overrideable`, which has no other use. The gradients are convolutions themselves.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "eager.h"
#include "fallback.h"

namespace openspyre {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

Tensor on_cpu(const Tensor& x, const Tensor& weight, const optional<Tensor>& bias,
              IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
              IntArrayRef output_padding, int64_t groups) {
  const auto bias_cpu = bias && bias->defined() ? optional<Tensor>(bias->cpu()) : std::nullopt;
  // Contiguous: graphs expect the strides that the fake kernel gives.
  return at::convolution(x.cpu(), weight.cpu(), bias_cpu, stride, padding, dilation, transposed,
                         output_padding, groups)
      .contiguous()
      .to(x.device());
}

Tensor convolution(const Tensor& x, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  torch::jit::Stack stack;
  torch::jit::push(stack, x, weight, bias, stride, padding, dilation, transposed, output_padding,
                   groups);
  const std::string* const why = run_eager(op, &stack);
  if (!why) return stack.back().toTensor();
  note_fallback("aten::convolution", *why);
  return on_cpu(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

// --- gradients --------------------------------------------------------------------------------

struct Window {
  IntArrayRef stride, padding, dilation;
  int64_t groups;
};

// [N, G * C, ...] -> [C, G * N, ...]: channels become the batch, and the batch what is summed over.
Tensor batch_for_channels(const Tensor& x, int64_t groups) {
  return x.unflatten(1, {groups, x.size(1) / groups}).transpose(0, 2).flatten(1, 2);
}

// Of the windows that walk over `large`, weighted with `small`. Their stride becomes the distance
// of the taps and the other way round; places past the last tap are those that no window reached.
Tensor weight_gradient(const Tensor& small, const Tensor& large, const Tensor& weight,
                       const Window& window) {
  const std::vector<int64_t> none(window.stride.size(), 0);
  auto found = at::convolution(batch_for_channels(large, window.groups), small.transpose(0, 1),
                               std::nullopt, window.dilation, window.padding, window.stride,
                               /*transposed=*/false, none, window.groups)
                   .transpose(0, 1);
  for (int64_t dim = 2; dim < weight.dim(); ++dim) found = found.narrow(dim, 0, weight.size(dim));
  return found.contiguous();
}

Tensor input_gradient(const Tensor& gradient, const Tensor& x, const Tensor& weight,
                      const Window& window, bool transposed) {
  std::vector<int64_t> unreached(window.stride.size(), 0);
  for (size_t i = 0; !transposed && i < unreached.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    unreached[i] =
        x.size(dim) - ((gradient.size(dim) - 1) * window.stride[i] - 2 * window.padding[i] +
                       window.dilation[i] * (weight.size(dim) - 1) + 1);
  }
  auto found = at::convolution(gradient, weight, std::nullopt, window.stride, window.padding,
                               window.dilation, !transposed, unreached, window.groups);
  // Output padding of a stride or more makes places of no point of the input.
  for (int64_t dim = 2; transposed && dim < x.dim(); ++dim) {
    found = found.narrow(dim, 0, x.size(dim));
  }
  return found.contiguous();
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& x,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding,
                                                        int64_t groups,
                                                        std::array<bool, 3> wanted) {
  const Window window{stride, padding, dilation, groups};
  std::vector<int64_t> but_channels{0};
  for (int64_t dim = 2; dim < gradient.dim(); ++dim) but_channels.push_back(dim);
  Tensor of_x, of_weight, of_bias;
  if (wanted[0]) of_x = input_gradient(gradient, x, weight, window, transposed);
  if (wanted[1])
    of_weight =
        weight_gradient(transposed ? x : gradient, transposed ? gradient : x, weight, window);
  if (wanted[2]) of_bias = gradient.sum(but_channels);
  return {of_x, of_weight, of_bias};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace openspyre
