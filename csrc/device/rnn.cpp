// LSTM and GRU cells. PyTorch calls the fused ones for every device but the CPU, which has none:
// they cannot fall back, so they are composed here of ops that can.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace openspyre {
namespace {

using at::Tensor;
using std::optional;

Tensor biased(const Tensor& gates, const optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

Tensor or_zeros(const optional<Tensor>& gradient, const Tensor& like) {
  return gradient && gradient->defined() ? *gradient : at::zeros_like(like);
}

Tensor sigmoid_slope(const Tensor& value) { return value * (1 - value); }
Tensor tanh_slope(const Tensor& value) { return 1 - value * value; }
Tensor bias_gradient(const Tensor& gates, bool has_bias) {
  return has_bias ? gates.sum(0) : Tensor();
}

// The workspace holds the activated gates: in, forget, cell, out.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cell, const optional<Tensor>& input_bias,
                                             const optional<Tensor>& hidden_bias) {
  const auto gates =
      (biased(input_gates, input_bias) + biased(hidden_gates, hidden_bias)).chunk(4, 1);
  const auto in = at::sigmoid(gates[0]), forget = at::sigmoid(gates[1]);
  const auto candidate = at::tanh(gates[2]), out = at::sigmoid(gates[3]);
  const auto new_cell = forget * cell + in * candidate;
  return {out * at::tanh(new_cell), new_cell, at::cat({in, forget, candidate, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const optional<Tensor>& hidden_gradient,
                                                      const optional<Tensor>& cell_gradient,
                                                      const Tensor& cell, const Tensor& new_cell,
                                                      const Tensor& workspace, bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &candidate = gates[2], &out = gates[3];
  const auto hidden = or_zeros(hidden_gradient, new_cell);
  const auto shown = at::tanh(new_cell);
  const auto inner = hidden * out * tanh_slope(shown) + or_zeros(cell_gradient, new_cell);
  const auto result =
      at::cat({inner * candidate * sigmoid_slope(in), inner * cell * sigmoid_slope(forget),
               inner * in * tanh_slope(candidate), hidden * shown * sigmoid_slope(out)},
              1);
  return {result, inner * forget, bias_gradient(result, has_bias)};
}

// The workspace holds reset, update and new gate, the old hidden state and its part of the new
// gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hidden, const optional<Tensor>& input_bias,
                                    const optional<Tensor>& hidden_bias) {
  const auto from_input = biased(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = biased(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = at::sigmoid(from_input[0] + from_hidden[0]);
  const auto update = at::sigmoid(from_input[1] + from_hidden[1]);
  const auto candidate = at::tanh(from_input[2] + reset * from_hidden[2]);
  return {candidate + update * (hidden - candidate),
          at::cat({reset, update, candidate, hidden, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& gradient,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &candidate = parts[2];
  const auto &hidden = parts[3], &from_hidden = parts[4];
  const auto to_new = gradient * (1 - update) * tanh_slope(candidate);
  const auto to_update = gradient * (hidden - candidate) * sigmoid_slope(update);
  const auto to_reset = to_new * from_hidden * sigmoid_slope(reset);
  const auto to_input = at::cat({to_reset, to_update, to_new}, 1);
  const auto to_hidden = at::cat({to_reset, to_update, to_new * reset}, 1);
  return {to_input, to_hidden, gradient * update, bias_gradient(to_input, has_bias),
          bias_gradient(to_hidden, has_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace openspyre
