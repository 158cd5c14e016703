#include "draw.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "generator.h"
#include "python.h"

namespace openspyre {
namespace {

using at::Tensor;

// By the names of kernel text (openspyre/ir/kernel.py); null for a type the card does not have.
const char* dtype_name(c10::ScalarType type) {
  switch (type) {
    case c10::kHalf:
      return "f16";
    case c10::kBFloat16:
      return "bf16";
    case c10::kFloat:
      return "f32";
    case c10::kLong:
      return "i64";
    case c10::kInt:
      return "i32";
    case c10::kShort:
      return "i16";
    case c10::kChar:
      return "i8";
    case c10::kByte:
      return "u8";
    case c10::kBool:
      return "b1";
    default:
      return nullptr;
  }
}

// --- the shape that tensors share -------------------------------------------------------------

// Sizes and strides without dims of size 1, neighbours merged where every tensor allows it. The
// row-major order of the points stays.
struct Shape {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  // of every tensor
};

bool merges(const Shape& shape, const std::vector<Tensor>& tensors, int64_t dim) {
  const int64_t size = tensors.front().size(dim);
  for (size_t t = 0; t < tensors.size(); ++t)
    if (shape.strides[t].back() != tensors[t].stride(dim) * size) return false;
  return true;
}

Shape shape_of(const std::vector<Tensor>& tensors) {
  Shape shape;
  shape.strides.resize(tensors.size());
  for (int64_t dim = 0; dim < tensors.front().dim(); ++dim) {
    const int64_t size = tensors.front().size(dim);
    if (size == 1) continue;
    if (shape.sizes.empty() || !merges(shape, tensors, dim)) {
      shape.sizes.push_back(1);
      for (auto& strides : shape.strides) strides.push_back(0);
    }
    shape.sizes.back() *= size;
    for (size_t t = 0; t < tensors.size(); ++t) shape.strides[t].back() = tensors[t].stride(dim);
  }
  if (shape.sizes.empty()) {
    shape.sizes.push_back(1);
    for (auto& strides : shape.strides) strides.push_back(1);
  }
  return shape;
}

constexpr int64_t kAnyStride = -1;  // passed at launch

int64_t stride_form(int64_t stride) { return stride == 0 || stride == 1 ? stride : kAnyStride; }

// --- kernels ----------------------------------------------------------------------------------

std::string key_of(const char* kind, const std::vector<Tensor>& tensors, const Shape& shape) {
  std::string key = kind;
  for (size_t t = 0; t < tensors.size(); ++t) {
    key += std::string(" ") + dtype_name(tensors[t].scalar_type());
    for (const int64_t stride : shape.strides[t]) key += " +*"[stride_form(stride) + 1];
  }
  return key;
}

// Needs the GIL, which also guards the table; it is never destroyed.
PyObject* kernel_for(const char* kind, const std::vector<Tensor>& tensors, const Shape& shape) {
  static auto* const kernels = new std::map<std::string, PyObject*>();
  const std::string key = key_of(kind, tensors, shape);
  if (const auto found = kernels->find(key); found != kernels->end()) return found->second;
  const Untraced untraced;
  const Owned module = checked(PyImport_ImportModule("openspyre.frontend.draws"));
  const Owned forms = checked(PyTuple_New(static_cast<Py_ssize_t>(tensors.size())));
  for (size_t t = 0; t < tensors.size(); ++t) {
    std::vector<int64_t> strides = shape.strides[t];
    for (auto& stride : strides) stride = stride_form(stride);
    const Owned ints = checked(make_ints(strides));
    PyObject* const form = Py_BuildValue("(sO)", dtype_name(tensors[t].scalar_type()), ints.get());
    if (!form) throw_python_error();
    PyTuple_SET_ITEM(forms.get(), static_cast<Py_ssize_t>(t), form);
  }
  Owned kernel = checked(PyObject_CallMethod(module.get(), "kernel", "sO", kind, forms.get()));
  // Compiling may have let another thread do the same: equal texts give one kernel.
  return (*kernels)[key] = kernel.release();
}

void launch(PyObject* kernel, const std::vector<Tensor>& tensors,
            const std::vector<double>& numbers, const Shape& shape) {
  std::vector<Owned> arguments;
  for (const Tensor& tensor : tensors) arguments.push_back(checked(THPVariable_Wrap(tensor)));
  for (const double number : numbers) arguments.push_back(checked(PyFloat_FromDouble(number)));
  for (const int64_t size : shape.sizes) arguments.push_back(checked(PyLong_FromLongLong(size)));
  for (const auto& strides : shape.strides)
    for (const int64_t stride : strides)
      if (stride_form(stride) == kAnyStride)
        arguments.push_back(checked(PyLong_FromLongLong(stride)));
  std::vector<PyObject*> pointers;
  for (const Owned& argument : arguments) pointers.push_back(argument.get());
  checked(PyObject_Vectorcall(kernel, pointers.data(), pointers.size(), nullptr));
}

double low_word(uint64_t value) { return static_cast<double>(value & 0xffffffffu); }
double high_word(uint64_t value) { return static_cast<double>(value >> 32); }

}  // namespace

bool drawable(c10::ScalarType type) { return dtype_name(type) != nullptr; }

void draw(const char* kind, std::initializer_list<Tensor> given,
          std::initializer_list<double> parameters, const std::optional<at::Generator>& generator) {
  const std::vector<Tensor> tensors(given);
  const Tensor& out = tensors.back();
  if (out.numel() == 0) return;
  const Numbers taken =
      take_numbers(generator, out.device().index(), static_cast<uint64_t>(out.numel()));
  std::vector<double> numbers{low_word(taken.seed), high_word(taken.seed), low_word(taken.offset),
                              high_word(taken.offset)};
  numbers.insert(numbers.end(), parameters);
  const Shape shape = shape_of(tensors);
  const WithGil held;
  launch(kernel_for(kind, tensors, shape), tensors, numbers, shape);
}

}  // namespace openspyre
