// An eager call as numbers: its key, its tensors seen as few dims, its launch scalars.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/hash.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "launcher.h"

namespace openspyre {

using Words = c10::SmallVector<int64_t, 64>;

inline c10::IntArrayRef as_ref(const Words& words) { return {words.data(), words.size()}; }

struct HashWords {
  using is_transparent = void;
  size_t operator()(c10::IntArrayRef words) const {
    uint64_t hash = 0x9e3779b97f4a7c15u + words.size();
    for (const int64_t word : words) hash = (hash ^ word) * 0xff51afd7ed558ccdu, hash ^= hash >> 32;
    return hash;
  }
  size_t operator()(const std::vector<int64_t>& words) const {
    return (*this)(c10::IntArrayRef(words));
  }
};

struct EqualWords {
  using is_transparent = void;
  bool operator()(c10::IntArrayRef a, c10::IntArrayRef b) const { return a == b; }
};

// Found by a view of a key, without making one.
template <typename T>
using Table = std::unordered_map<std::vector<int64_t>, T, HashWords, EqualWords>;

constexpr uint8_t kAnyNumber = 3;  // see Described.scalars (frontend/eager.py)

// How an argument enters a key.
struct ArgumentPlan {
  enum Kind : uint8_t { Value, DType, Format, Written };
  Kind kind = Value;
  uint8_t scalar = 0;  // see Described.scalars
};

struct OpPlan {
  std::string why;  // not empty: never served
  bool pointwise = false;
  bool rounds = false;
  bool sized_by_scalars = false;  // the size of a result depends on launch scalars
  std::vector<ArgumentPlan> arguments;
  std::vector<size_t> written;  // arguments; empty: results are new tensors
};

struct OutputForm {
  Sizes sizes, strides;
  c10::ScalarType dtype;
};

struct Call {
  c10::SmallVector<const at::Tensor*, 8> inputs;  // on the card, in argument order
  c10::SmallVector<at::Tensor, 2> outputs;
  c10::SmallVector<double, 4> scalars;
  Words key;  // structure, then what sizes depend on: sizes and strides of every tensor, mostly
  size_t structure = 0;
  c10::Device device{c10::kPrivateUse1};
  bool has_device = false;
  bool has_floats = false;  // among the inputs

  const at::Tensor& tensor(size_t number) const {
    return number < inputs.size() ? *inputs[number] : outputs[number - inputs.size()];
  }
  double scalar(size_t number, bool rounded) const;
};

// A tensor's dims as a kernel sees them.
struct View {
  Sizes sizes, strides;
};
using Views = c10::SmallVector<View, 8>;

struct Source {
  enum Kind : uint8_t { Tensor, Scalar };
  Kind kind;
  size_t number;
};

struct SizeSource {
  bool stride;
  size_t tensor, dim;
  int64_t value;  // of an exact size

  int64_t of(const Views& views) const {
    return (stride ? views[tensor].strides : views[tensor].sizes)[dim];
  }
};

// A kernel for a pattern of arguments, or why there is none. Never freed.
struct Entry {
  void* kernel = nullptr;  // the Python object, a reference of ours
  std::string why;
  std::vector<Source> arguments;
  std::vector<SizeSource> symbols, exact;

  bool serves(const Views& views) const {
    for (const SizeSource& size : exact)
      if (size.of(views) != size.value) return false;
    return true;
  }
  Sizes sizes(const Views& views) const {
    Sizes found;
    for (const SizeSource& symbol : symbols) found.push_back(symbol.of(views));
    return found;
  }
};

bool on_card_dtype(c10::ScalarType dtype);
const std::string* no_dtype(c10::ScalarType dtype);

// Whether the byte ranges of two tensors have common bytes.
bool ranges_meet(const at::Tensor& a, const at::Tensor& b);

// Whether two elements of a tensor may have one place in memory.
bool may_overlap_itself(const at::Tensor& tensor);

// Reads the arguments. Returns why the call cannot be served, or null. `outputs` is filled before.
const char* gather(const OpPlan& plan, const torch::jit::Stack& stack, Call& call);

// Whether a number is passed at launch, given what `gather` has read so far.
bool is_launch_scalar(const ArgumentPlan& plan, const c10::IValue& value, bool has_floats);

// Whether a tensor of the host is passed at launch; others of no dims stand in the key.
bool is_launch_scalar(const at::Tensor& host);

// The dims of all tensors. Those of a pointwise op are broadcast, then merged where all tensors
// allow it. False when they do not broadcast.
bool make_views(bool pointwise, const Call& call, Views& views);

// Appends what of sizes and strides a kernel depends on: 0, 1, and which are equal.
void add_pattern(const Views& views, Words& key);

}  // namespace openspyre
