// The inference fast paths of nn.MultiheadAttention and nn.TransformerEncoderLayer. PyTorch makes
// one op of each for every device; composed here of ops that run on the card, in eager calls and,
// seen as those ops, in compiled graphs.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

namespace openspyre {
namespace {

using at::Tensor;
using std::optional;

enum MaskKind : int64_t { kSource = 0, kPadding = 1 };  // `mask_type`; others: of all scores

// What is added to the scores: a mask of truth values marks what is left out.
optional<Tensor> additive(const optional<Tensor>& mask, optional<int64_t> kind,
                          const Tensor& query) {
  if (!mask || !mask->defined()) return std::nullopt;
  Tensor added = *mask;
  if (added.scalar_type() == at::kBool)
    added = at::zeros_like(added, query.options())
                .masked_fill(added, -std::numeric_limits<double>::infinity());
  if (kind == kPadding) added = added.unsqueeze(1).unsqueeze(1);
  return added.to(query.scalar_type());
}

struct Heads {
  Tensor query, key, value;  // [batch, heads, length, size]
};

Tensor per_head(const Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

Heads projected(const Tensor& query, const Tensor& key, const Tensor& value, int64_t heads,
                const Tensor& weight, const Tensor& bias) {
  std::array<Tensor, 3> parts;
  if (query.is_same(key) && key.is_same(value)) {
    const auto all = at::linear(query, weight, bias).chunk(3, -1);
    std::copy(all.begin(), all.end(), parts.begin());
  } else {
    const auto weights = weight.chunk(3), biases = bias.chunk(3);
    const std::array<Tensor, 3> inputs{query, key, value};
    for (size_t i = 0; i < 3; ++i) parts[i] = at::linear(inputs[i], weights[i], biases[i]);
  }
  return {per_head(parts[0], heads), per_head(parts[1], heads), per_head(parts[2], heads)};
}

std::tuple<Tensor, Tensor> multi_head_attention(const Tensor& query, const Tensor& key,
                                                const Tensor& value, int64_t embedding,
                                                int64_t heads, const Tensor& weight,
                                                const Tensor& bias, const Tensor& out_weight,
                                                const Tensor& out_bias,
                                                const optional<Tensor>& mask, bool need_weights,
                                                bool average_weights, optional<int64_t> mask_kind) {
  TORCH_CHECK(query.dim() == 3 && query.size(2) == embedding,
              "expected a query of 3 dims, the last of ", embedding, "; got ", query.sizes());
  TORCH_CHECK(heads > 0 && embedding % heads == 0, "embed_dim ", embedding,
              " is not divisible by num_heads ", heads);
  const Heads all = projected(query, key, value, heads, weight, bias);
  const auto added = additive(mask, mask_kind, query);
  Tensor attended, weights;
  if (need_weights) {
    Tensor scores = at::matmul(all.query, all.key.transpose(-1, -2)) /
                    std::sqrt(static_cast<double>(embedding / heads));
    if (added) scores = scores + *added;
    weights = at::softmax(scores, -1);
    attended = at::matmul(weights, all.value);
    if (average_weights) weights = weights.mean(1);
  } else {
    attended = at::scaled_dot_product_attention(all.query, all.key, all.value, added);
  }
  return {at::linear(attended.transpose(1, 2).flatten(2), out_weight, out_bias), weights};
}

Tensor encoder_layer(const Tensor& source, int64_t embedding, int64_t heads,
                     const Tensor& attention_weight, const Tensor& attention_bias,
                     const Tensor& out_weight, const Tensor& out_bias, bool use_gelu,
                     bool norm_first, double eps, const Tensor& norm_weight_1,
                     const Tensor& norm_bias_1, const Tensor& norm_weight_2,
                     const Tensor& norm_bias_2, const Tensor& weight_1, const Tensor& bias_1,
                     const Tensor& weight_2, const Tensor& bias_2, const optional<Tensor>& mask,
                     optional<int64_t> mask_kind) {
  const auto norm_1 = [&](const Tensor& x) {
    return at::layer_norm(x, {embedding}, norm_weight_1, norm_bias_1, eps);
  };
  const auto norm_2 = [&](const Tensor& x) {
    return at::layer_norm(x, {embedding}, norm_weight_2, norm_bias_2, eps);
  };
  const auto attention = [&](const Tensor& x) {
    return std::get<0>(multi_head_attention(
        x, x, x, embedding, heads, attention_weight, attention_bias, out_weight, out_bias, mask,
        /*need_weights=*/false, /*average_weights=*/false, mask_kind));
  };
  const auto feed_forward = [&](const Tensor& x) {
    const Tensor wide = at::linear(x, weight_1, bias_1);
    return at::linear(use_gelu ? at::gelu(wide) : at::relu(wide), weight_2, bias_2);
  };
  if (norm_first) {
    const Tensor attended = source + attention(norm_1(source));
    return attended + feed_forward(norm_2(attended));
  }
  const Tensor attended = norm_1(source + attention(source));
  return norm_2(attended + feed_forward(attended));
}

// nn.TransformerEncoder asks whether a nested tensor may stand for a padded batch. There are none
// on the card, so that it goes on with the batch and its mask.
bool nested_tensor_may_stand_for(const Tensor&, const Tensor&) { return false; }

void register_all(torch::Library& m) {
  m.impl("_native_multi_head_attention", TORCH_FN(multi_head_attention));
  m.impl("_transformer_encoder_layer_fwd", TORCH_FN(encoder_layer));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_all(m);
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_tensor_may_stand_for));
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_all(m); }

}  // namespace openspyre
