// Tensors that do not live on the card: sparse, quantized and nested ones. What PyTorch does not
// compose of strided tensors says so.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>

namespace openspyre {
namespace {

[[noreturn]] void refuse(const c10::OperatorHandle& op, const char* kind, const char* remedy) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the op ", c10::toString(op.operator_name()),
                              " has no kernel for ", kind, " tensors on the spyre device\n  why: ",
                              "the card holds strided tensors only\n  try: ", remedy);
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "sparse", "keep the tensor on the CPU, or make it strided with .to_dense()");
}
void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "quantized",
         "keep the tensor on the CPU, or store integers (torch.int8) and scales apart");
}
void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "nested", "use layout=torch.jagged, or pad to one strided tensor");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

}  // namespace openspyre
