#include "fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <tuple>

#include "runtime.h"

namespace openspyre {
namespace {

using at::Tensor;

struct Counts {
  std::mutex mutex;
  std::map<std::string, uint64_t> by_name;
  std::atomic<FallbackMode> mode{FallbackMode::Count};
};

Counts& counts() {
  static auto* const instance = new Counts();
  return *instance;
}

// --- random numbers -------------------------------------------------------------------------

void move_state(at::CPUGeneratorImpl& from, at::CPUGeneratorImpl& to) {
  to.set_engine(from.engine());
  to.set_next_float_normal_sample(from.next_float_normal_sample());
  to.set_next_double_normal_sample(from.next_double_normal_sample());
}

at::CPUGeneratorImpl& impl(const at::Generator& generator) {
  return *static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
}

// CPU kernels draw from a generator of the CPU. For the duration of a fallback this one holds the
// state of the device's, so that device seeds govern device tensors and no other stream moves.
class BorrowedGenerator {
 public:
  BorrowedGenerator(at::Generator device, at::Generator cpu)
      : device_(std::move(device)), cpu_(std::move(cpu)) {
    swap_in();
  }
  BorrowedGenerator(const BorrowedGenerator&) = delete;
  BorrowedGenerator& operator=(const BorrowedGenerator&) = delete;
  ~BorrowedGenerator() {
    const std::scoped_lock lock(device_.mutex(), cpu_.mutex());
    move_state(impl(cpu_), impl(device_));
    move_state(*kept_, impl(cpu_));
  }

 private:
  void swap_in() {
    const std::scoped_lock lock(device_.mutex(), cpu_.mutex());
    kept_ = impl(cpu_).clone();
    move_state(impl(device_), impl(cpu_));
  }

  at::Generator device_, cpu_;
  std::shared_ptr<at::CPUGeneratorImpl> kept_;
};

bool takes_generator(const c10::Argument& argument) {
  const auto& type = *argument.type();
  if (type.kind() == c10::TypeKind::GeneratorType) return true;
  const auto* const optional = type.castRaw<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// --- the fallback ---------------------------------------------------------------------------

// The device of the results: that of the first tensor on a card, or of a device argument.
std::optional<c10::Device> result_device(const c10::FunctionSchema& schema,
                                         const torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, schema.arguments().size());
  for (const auto& argument : arguments)
    if (argument.isDevice()) return argument.toDevice();
  const auto on_card = [](const Tensor& t) { return t.defined() && t.is_privateuseone(); };
  for (const auto& argument : arguments) {
    if (argument.isTensor() && on_card(argument.toTensor())) return argument.toTensor().device();
    if (argument.isTensorList())
      for (const Tensor& tensor : argument.toTensorVector())
        if (on_card(tensor)) return tensor.device();
    if (argument.isOptionalTensorList())
      for (const auto& tensor : argument.toOptionalTensorVector())
        if (tensor && on_card(*tensor)) return tensor->device();
  }
  return std::nullopt;
}

// cpu_fallback puts results on the device of the first tensor, which may be a CPU scalar.
void move_results(const c10::FunctionSchema& schema, torch::jit::Stack* stack, c10::Device device) {
  if (device.type() != c10::kPrivateUse1) return;
  const auto first = stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (schema.returns()[i].alias_info()) continue;
    auto& result = (*stack)[first + i];
    if (result.isTensor() && result.toTensor().defined() && result.toTensor().is_cpu())
      result = result.toTensor().to(device);
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto device = result_device(op.schema(), *stack);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false);
  if (device) move_results(op.schema(), stack, *device);
}

void run_with_generator(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t position) {
  auto& argument = (*stack)[stack->size() - op.schema().arguments().size() + position];
  const auto device = result_device(op.schema(), *stack);
  const auto chosen =
      argument.isNone() ? default_generator(device ? device->index() : -1) : argument.toGenerator();
  if (chosen.device().type() != c10::kPrivateUse1) return run_on_cpu(op, stack);
  TORCH_CHECK(device && device->type() == c10::kPrivateUse1,
              "Expected a generator of the tensor's "
              "device, but found one of ",
              chosen.device());
  const auto stand_in = at::detail::createCPUGenerator();
  argument = stand_in;
  const BorrowedGenerator borrowed(chosen, stand_in);
  run_on_cpu(op, stack);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  note_fallback(c10::toString(op.operator_name()));
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (takes_generator(arguments[i])) return run_with_generator(op, stack, i);
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return run_on_cpu(op, stack);
  static auto* const drawing = new std::recursive_mutex();
  const std::lock_guard<std::recursive_mutex> one_at_a_time(*drawing);
  const auto device = result_device(op.schema(), *stack);
  const BorrowedGenerator borrowed(default_generator(device ? device->index() : -1),
                                   at::detail::getDefaultCPUGenerator());
  run_on_cpu(op, stack);
}

// --- convolution: dispatches by device before a fallback can see it ---------------------------

Tensor cpu(const Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; }

// Contiguous: graphs expect the strides that the fake kernel gives.
Tensor back(const Tensor& tensor, c10::Device device) {
  return tensor.defined() ? tensor.contiguous().to(device) : tensor;
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  note_fallback("aten::convolution_overrideable");
  const std::optional<Tensor> bias_cpu =
      bias && bias->defined() ? std::optional<Tensor>(bias->cpu()) : std::nullopt;
  return back(at::convolution_symint(cpu(input), cpu(weight), bias_cpu, stride, padding, dilation,
                                     transposed, output_padding, groups),
              input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> wanted) {
  note_fallback("aten::convolution_backward_overrideable");
  const std::vector<c10::SymInt> bias_sizes{gradient.sym_size(1)};
  const auto [g_input, g_weight, g_bias] = at::convolution_backward_symint(
      cpu(gradient), cpu(input), cpu(weight), c10::SymIntArrayRef(bias_sizes), stride, padding,
      dilation, transposed, output_padding, groups, wanted);
  const auto device = input.device();
  return {back(g_input, device), back(g_weight, device), back(g_bias, device)};
}

}  // namespace

void set_fallback_mode(FallbackMode mode) { counts().mode = mode; }
FallbackMode fallback_mode() { return counts().mode; }

std::map<std::string, uint64_t> fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  return counts().by_name;
}

void reset_fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  counts().by_name.clear();
}

void note_fallback(const std::string& op) {
  const auto mode = counts().mode.load();
  TORCH_CHECK_NOT_IMPLEMENTED(
      mode != FallbackMode::Error, "the op ", op,
      " cannot run on the spyre device yet\n"
      "  why: it has no card program when called eagerly, and OPENSPYRE_FALLBACK=error forbids "
      "running it on the CPU\n"
      "  try: call it inside torch.compile, or unset OPENSPYRE_FALLBACK");
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(counts().mutex);
    first = ++counts().by_name[op] == 1;
  }
  if (first && mode == FallbackMode::Warn)
    TORCH_WARN("spyre: the op ", op, " runs on the CPU; torch.spyre.fallbacks() counts such calls");
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace openspyre
