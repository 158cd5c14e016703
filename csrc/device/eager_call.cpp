#include "eager_call.h"

#include <ATen/ops/item.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

namespace openspyre {
namespace {

using at::Tensor;
using c10::IValue;

enum Tag : int64_t { kNone, kTrue, kFalse, kInt, kDouble, kText, kList, kCard, kHost, kOutput };

constexpr int64_t kExactInt = int64_t{1} << 53;  // integers up to this pass through a double

int64_t bits_of(double number) {
  int64_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

double number_in(const Tensor& host) {
  const void* const at = host.const_data_ptr();
  switch (host.scalar_type()) {
    case c10::kDouble:
      return *static_cast<const double*>(at);
    case c10::kFloat:
      return *static_cast<const float*>(at);
    case c10::kLong:
      return static_cast<double>(*static_cast<const int64_t*>(at));
    default:
      return host.item().toDouble();
  }
}

class Gathering {
 public:
  explicit Gathering(Call& call) : call_(call) {}

  const char* value(const IValue& value, const ArgumentPlan& plan) {
    Words& key = call_.key;
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isNone()) return key.push_back(kNone), nullptr;
    if (is_launch_scalar(plan, value, call_.has_floats)) {
      call_.scalars.push_back(value.isInt() ? static_cast<double>(value.toInt())
                                            : value.toDouble());
      return key.push_back(kDouble), nullptr;
    }
    if (value.isBool()) return key.push_back(value.toBool() ? kTrue : kFalse), nullptr;
    if (value.isInt()) return key.append({kInt, value.toInt()}), nullptr;
    if (value.isDouble()) return key.append({kDouble, bits_of(value.toDouble())}), nullptr;
    if (value.isString()) return text(value.toStringRef());
    if (value.isList()) return list(value.toListRef());
    return "an argument is of a kind that no kernel takes";
  }

  void output(const Tensor& tensor) {
    call_.key.append({kOutput, int64_t(tensor.scalar_type()), tensor.dim() == 0});
    extents(tensor);
  }

  void finish() {
    call_.structure = call_.key.size();
    call_.key.append(extents_.begin(), extents_.end());
  }

 private:
  const char* list(c10::ArrayRef<IValue> items) {
    call_.key.append({kList, int64_t(items.size())});
    for (const IValue& item : items)
      if (const char* why = value(item, ArgumentPlan{})) return why;
    return nullptr;
  }

  const char* text(const std::string& text) {
    call_.key.append({kText, int64_t(text.size())});
    for (const char letter : text) call_.key.push_back(letter);
    return nullptr;
  }

  const char* tensor(const Tensor& tensor) {
    if (!tensor.defined()) return call_.key.push_back(kNone), nullptr;
    if (!tensor.is_privateuseone()) return host(tensor);
    if (call_.has_device && tensor.device() != call_.device)
      return "its tensors are on several cards";
    call_.device = tensor.device();
    call_.has_device = true;
    if (!on_card_dtype(tensor.scalar_type())) return no_dtype(tensor.scalar_type())->c_str();
    call_.has_floats |= c10::isFloatingType(tensor.scalar_type());
    call_.inputs.push_back(&tensor);
    call_.key.append({kCard, int64_t(tensor.scalar_type()), tensor.dim() == 0});
    extents(tensor);
    return nullptr;
  }

  const char* host(const Tensor& tensor) {
    if (!tensor.is_cpu()) return "a tensor is neither on the card nor on the CPU";
    if (tensor.dim() != 0) return "a tensor of the CPU is among its arguments";
    if (c10::isComplexType(tensor.scalar_type())) return "the card has no complex numbers";
    const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    call_.key.append({kHost, int64_t(tensor.scalar_type()), wrapped});
    if (is_launch_scalar(tensor))
      call_.scalars.push_back(number_in(tensor));
    else
      call_.key.push_back(tensor.item().toLong());
    return nullptr;
  }

  void extents(const Tensor& tensor) {
    extents_.push_back(tensor.dim());
    extents_.append(tensor.sizes().begin(), tensor.sizes().end());
    extents_.append(tensor.strides().begin(), tensor.strides().end());
  }

  Call& call_;
  Words extents_;
};

// Inner dims last; decided by the first tensor that moves differently along the two dims.
bool is_inner(const Views& full, size_t a, size_t b) {
  for (const View& view : full) {
    if (view.sizes.empty()) continue;
    const int64_t first = view.strides[a], second = view.strides[b];
    if (first == 0 || second == 0 || first == second) continue;
    return first < second;
  }
  return false;
}

bool broadcast(const Call& call, Sizes& shape) {
  const size_t count = call.inputs.size() + call.outputs.size();
  for (size_t i = 0; i < count; ++i) {
    const auto sizes = call.tensor(i).sizes();
    if (sizes.size() > shape.size()) shape.insert(shape.begin(), sizes.size() - shape.size(), 1);
    for (size_t d = 0; d < sizes.size(); ++d) {
      int64_t& common = shape[shape.size() - sizes.size() + d];
      if (common == 1) common = sizes[d];
      if (sizes[d] != 1 && sizes[d] != common) return false;
    }
  }
  for (const Tensor& out : call.outputs)
    if (out.sizes() != c10::IntArrayRef(shape)) return false;
  return true;
}

// Every tensor that has dims, over the dims of `shape` that are not 1, in the order given.
void expand(const Call& call, const Sizes& shape, Views& full) {
  const size_t count = call.inputs.size() + call.outputs.size();
  // Outputs first: they decide the order of dims.
  for (size_t i = 0; i < count; ++i) {
    const Tensor& tensor = call.tensor(i);
    View& view = full[i];
    if (tensor.dim() == 0) continue;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const int64_t own = static_cast<int64_t>(d) - (shape.size() - tensor.dim());
      const bool moves = own >= 0 && tensor.size(own) != 1;
      view.sizes.push_back(shape[d]);
      view.strides.push_back(moves ? tensor.stride(own) : 0);
    }
  }
}

void swap_dims(Views& full, size_t a, size_t b) {
  for (View& view : full) {
    if (view.sizes.empty()) continue;
    std::swap(view.sizes[a], view.sizes[b]);
    std::swap(view.strides[a], view.strides[b]);
  }
}

void sort_dims(Views& full, size_t dims) {
  std::rotate(full.begin(), full.end() - 1, full.end());  // an output decides first
  for (size_t i = 1; i < dims; ++i)
    for (size_t j = i; j > 0 && is_inner(full, j - 1, j); --j) swap_dims(full, j - 1, j);
  std::rotate(full.begin(), full.begin() + 1, full.end());
}

bool can_merge(const Views& full, size_t outer) {
  for (const View& view : full) {
    if (view.sizes.empty()) continue;
    if (view.strides[outer] != view.strides[outer + 1] * view.sizes[outer + 1]) return false;
  }
  return true;
}

void merge_dims(Views& full, size_t dims) {
  for (size_t d = dims; d-- > 1;) {
    if (!can_merge(full, d - 1)) continue;
    for (View& view : full) {
      if (view.sizes.empty()) continue;
      view.sizes[d - 1] *= view.sizes[d];
      view.strides[d - 1] = view.strides[d];
      view.sizes.erase(view.sizes.begin() + d);
      view.strides.erase(view.strides.begin() + d);
    }
  }
}

}  // namespace

double Call::scalar(size_t number, bool rounded) const {
  const double exact = scalars[number];
  if (!rounded) return exact;
  for (const Tensor* input : inputs) {
    if (input->scalar_type() == c10::kHalf) return c10::Half(static_cast<float>(exact));
    if (input->scalar_type() == c10::kBFloat16) return c10::BFloat16(static_cast<float>(exact));
    if (input->scalar_type() == c10::kFloat) break;
  }
  return exact;
}

bool on_card_dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kHalf:
    case c10::kBFloat16:
    case c10::kFloat:
    case c10::kLong:
    case c10::kInt:
    case c10::kShort:
    case c10::kChar:
    case c10::kByte:
    case c10::kBool:
    case c10::kFloat8_e4m3fn:
    case c10::kFloat8_e5m2:
      return true;
    default:
      return false;
  }
}

const std::string* no_dtype(c10::ScalarType dtype) {
  static auto* const texts = new std::set<std::string>();
  static auto* const mutex = new std::mutex();
  const std::lock_guard<std::mutex> lock(*mutex);
  return &*texts->insert(std::string("the card does not compute in ") + c10::toString(dtype)).first;
}

bool ranges_meet(const Tensor& a, const Tensor& b) {
  const auto range = [](const Tensor& tensor) {
    int64_t elements = 1;
    for (int64_t d = 0; d < tensor.dim(); ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
    const auto first = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    return std::pair(first, first + elements * tensor.itemsize());
  };
  const auto [a_low, a_high] = range(a);
  const auto [b_low, b_high] = range(b);
  return a_low < b_high && b_low < a_high;
}

bool may_overlap_itself(const Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_non_overlapping_and_dense()) return false;
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> dims;  // stride, size
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) != 1) dims.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // from the first to the last element of the dims so far
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

bool is_launch_scalar(const ArgumentPlan& plan, const IValue& value, bool has_floats) {
  if (plan.scalar == 0) return false;
  if (value.isDouble()) return true;
  const bool any = plan.scalar == kAnyNumber || (plan.scalar == 2 && has_floats);
  return any && value.isInt() && std::abs(value.toInt()) <= kExactInt;
}

bool is_launch_scalar(const Tensor& host) {
  if (host.scalar_type() == c10::kBool) return false;
  if (host.scalar_type() != c10::kLong) return true;
  const int64_t number = *host.const_data_ptr<int64_t>();
  return number >= -kExactInt && number <= kExactInt;
}

const char* gather(const OpPlan& plan, const torch::jit::Stack& stack, Call& call) {
  Gathering gathering(call);
  const auto arguments = torch::jit::last(stack, plan.arguments.size());
  call.key.push_back(
      int64_t(c10::typeMetaToScalarType(c10::get_default_dtype())));  // int / int has this one
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    if (plan.arguments[i].kind == ArgumentPlan::Written) continue;
    if (const char* why = gathering.value(arguments[i], plan.arguments[i])) return why;
  }
  for (const Tensor& out : call.outputs) {
    if (!out.is_privateuseone()) return "it writes a tensor that is not on the card";
    if (!on_card_dtype(out.scalar_type())) return no_dtype(out.scalar_type())->c_str();
    if (call.has_device && out.device() != call.device) return "its tensors are on several cards";
    call.device = out.device();
    call.has_device = true;
    gathering.output(out);
  }
  if (!call.has_device) return "no argument is on the card";
  gathering.finish();
  if (plan.sized_by_scalars)
    for (const double scalar : call.scalars) call.key.push_back(bits_of(scalar));
  return nullptr;
}

bool make_views(bool pointwise, const Call& call, Views& views) {
  const size_t count = call.inputs.size() + call.outputs.size();
  views.resize(count);
  if (!pointwise) {
    for (size_t i = 0; i < count; ++i) {
      const Tensor& tensor = call.tensor(i);
      views[i] = {Sizes(tensor.sizes().begin(), tensor.sizes().end()),
                  Sizes(tensor.strides().begin(), tensor.strides().end())};
    }
    return true;
  }
  Sizes shape;
  if (!broadcast(call, shape)) return false;
  expand(call, shape, views);
  const size_t dims =
      shape.size() - static_cast<size_t>(std::count(shape.begin(), shape.end(), int64_t{1}));
  if (dims > 0) {
    sort_dims(views, dims);
    merge_dims(views, dims);
    return true;
  }
  // One element each; what has dims keeps one, for type promotion tells them apart.
  for (size_t i = 0; i < count; ++i)
    if (call.tensor(i).dim() > 0) views[i] = {Sizes{1}, Sizes{0}};
  return true;
}

void add_pattern(const Views& views, Words& key) {
  Sizes distinct;
  for (const View& view : views) {
    key.push_back(static_cast<int64_t>(view.sizes.size()));
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      const int64_t size = view.sizes[d], stride = view.strides[d];
      if (size < 2) {
        key.append({size, 0});
        continue;
      }
      const auto found = std::find(distinct.begin(), distinct.end(), size);
      const int64_t number = found - distinct.begin();
      if (found == distinct.end()) distinct.push_back(size);
      key.append({2 + number, stride == 0 || stride == 1 ? stride : 2});
    }
  }
}

}  // namespace openspyre
