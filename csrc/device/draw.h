// Launches of the kernels that draw random numbers (openspyre/frontend/draws.py).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>

namespace openspyre {

// Whether the card has elements of a type; draws of other types are converted.
bool drawable(c10::ScalarType type);

// Runs the draw `kind` on tensors of one shape: what it reads, then what it writes. The value at a
// point depends on its place in the logical shape, not on strides. An int64 parameter is two
// numbers, its low and its high word.
void draw(const char* kind, std::initializer_list<at::Tensor> tensors,
          std::initializer_list<double> parameters, const std::optional<at::Generator>& generator);

}  // namespace openspyre
