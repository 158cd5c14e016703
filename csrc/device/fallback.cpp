#include "fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "complex.h"
#include "eager.h"
#include "generator.h"
#include "memory_error.h"

namespace openspyre {
namespace {

using at::Tensor;

struct Counts {
  std::mutex mutex;
  std::map<std::string, uint64_t> by_name;
  std::map<std::string, std::string> reasons;
  std::atomic<FallbackMode> mode{FallbackMode::Count};
};

Counts& counts() {
  static auto* const instance = new Counts();
  return *instance;
}

// --- random numbers -------------------------------------------------------------------------

// CPU kernels that take no generator draw from the CPU's default one. For the duration of a
// fallback it is seeded from the device's, so that device seeds govern device tensors; then it goes
// on where it was.
class SeededCpuGenerator {
 public:
  explicit SeededCpuGenerator(uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    kept_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  SeededCpuGenerator(const SeededCpuGenerator&) = delete;
  SeededCpuGenerator& operator=(const SeededCpuGenerator&) = delete;
  ~SeededCpuGenerator() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(kept_);
  }

 private:
  at::Generator generator_;
  at::Tensor kept_;
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

// --- dtypes that the CPU lacks ----------------------------------------------------------------

bool is_narrow(const Tensor& tensor) {
  return tensor.defined() &&
         (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

bool lacks_narrow_kernel(const c10::NotImplementedError& error) {
  const std::string what = error.what_without_backtrace();
  return what.find("not implemented for 'Half'") != std::string::npos ||
         what.find("not implemented for 'BFloat16'") != std::string::npos;
}

// Arguments in float32 in the place of half precision, and what became of each.
class Widened {
 public:
  explicit Widened(torch::jit::Stack& arguments) {
    for (auto& argument : arguments) {
      if (argument.isTensor()) argument = wide(argument.toTensor());
      if (!argument.isTensorList()) continue;
      std::vector<Tensor> list = argument.toTensorVector();
      for (Tensor& tensor : list) tensor = wide(tensor);
      argument = c10::List<Tensor>(list);
    }
  }

  // The results as they would be without: what was written is written, the rest is rounded.
  void narrow(const c10::FunctionSchema& schema, torch::jit::Stack& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].isTensor() || !results[i].toTensor().defined()) continue;
      const Tensor result = results[i].toTensor();
      if (const Tensor written = written_back(result); written.defined()) {
        results[i] = written;
      } else if (!schema.returns()[i].alias_info() && dtype_ && !mixed_ &&
                 result.scalar_type() == at::kFloat) {
        results[i] = result.to(*dtype_);
      }
    }
  }

 private:
  Tensor wide(const Tensor& tensor) {
    if (!is_narrow(tensor)) {
      mixed_ |= tensor.defined() && tensor.is_floating_point();
      return tensor;
    }
    if (!dtype_) dtype_ = tensor.scalar_type();
    pairs_.emplace_back(tensor, tensor.to(at::kFloat));
    return pairs_.back().second;
  }

  Tensor written_back(const Tensor& result) {
    for (const auto& [narrow, wide] : pairs_) {
      if (!wide.is_same(result)) continue;
      if (narrow.sizes() != wide.sizes()) narrow.resize_(wide.sizes());
      narrow.copy_(wide);
      return narrow;
    }
    return {};
  }

  std::vector<std::pair<Tensor, Tensor>> pairs_;
  std::optional<at::ScalarType> dtype_;
  bool mixed_ = false;  // there are float32 tensors, too: results are as the op decides
};

// Devices have kernels for half precision where the CPU has none: it computes in float32 then.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto device = result_device(op.schema(), *stack);
  const auto begin = stack->size() - op.schema().arguments().size();
  torch::jit::Stack kept(stack->begin() + begin, stack->end());
  try {
    at::native::cpu_fallback(op, stack, /*error_on_views=*/false);
  } catch (const c10::NotImplementedError& error) {
    if (!lacks_narrow_kernel(error)) throw;
    Widened widened(kept);
    at::native::cpu_fallback(op, &kept, /*error_on_views=*/false);
    widened.narrow(op.schema(), kept);
    stack->resize(begin);
    stack->insert(stack->end(), kept.begin(), kept.end());
  }
  if (device) move_results(op.schema(), stack, *device);
}

void run_with_generator(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t position) {
  auto& argument = (*stack)[stack->size() - op.schema().arguments().size() + position];
  const auto device = result_device(op.schema(), *stack);
  TORCH_CHECK(!device || device->type() == c10::kPrivateUse1,
              "Expected a generator of the tensor's device, but found one of a card");
  const std::optional<at::Generator> chosen =
      argument.isNone() ? std::nullopt : std::optional(argument.toGenerator());
  argument = at::detail::createCPUGenerator(take_seed(chosen, device ? device->index() : -1));
  run_on_cpu(op, stack);
}

// --- tensors of different devices -------------------------------------------------------------

// Whether an op of PyTorch takes positions or lengths of the host here, wherever its data is.
bool may_be_on_host(const c10::Argument& argument) {
  const auto* const list = argument.type()->castRaw<c10::ListType>();
  if (list && list->getElementType()->kind() == c10::TypeKind::OptionalType) return true;
  const std::string& name = argument.name();
  return name.find("lengths") != std::string::npos || name == "batch_sizes" ||
         name == "tensor_indices_or_sections";
}

// The CPU would compute with tensors of any devices; PyTorch's devices refuse to mix them.
void check_devices(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  const auto device = result_device(schema, stack);
  if (!device) return;
  const auto arguments = torch::jit::last(stack, schema.arguments().size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    const auto check = [&](const Tensor& tensor) {
      if (!tensor.defined() || tensor.device() == *device) return;
      if (tensor.is_cpu() && !written && (tensor.dim() == 0 || may_be_on_host(argument))) return;
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two ",
                  "devices, ", *device, " and ", tensor.device(), "! (argument ", argument.name(),
                  " of ", schema.name(), ")");
    };
    if (arguments[i].isTensor()) check(arguments[i].toTensor());
    if (arguments[i].isTensorList())
      for (const Tensor& tensor : arguments[i].toTensorVector()) check(tensor);
    if (arguments[i].isOptionalTensorList())
      for (const auto& tensor : arguments[i].toOptionalTensorVector())
        if (tensor) check(*tensor);
  }
}

// The CPU's kernel, with the numbers that it draws from the card's generator.
void run_drawing_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (takes_generator(arguments[i])) return run_with_generator(op, stack, i);
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return run_on_cpu(op, stack);
  static auto* const drawing = new std::recursive_mutex();
  const std::lock_guard<std::recursive_mutex> one_at_a_time(*drawing);
  const auto device = result_device(op.schema(), *stack);
  const SeededCpuGenerator seeded(take_seed(std::nullopt, device ? device->index() : -1));
  run_on_cpu(op, stack);
}

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string* const why = run_eager(op, stack);
  if (!why || run_in_parts(op, stack)) return;
  if (op.schema().name().rfind("aten::", 0) == 0) check_devices(op.schema(), *stack);
  const std::string name = c10::toString(op.operator_name());
  const bool refused = *why == *refused_by_python();  // no fallback unless the kernel takes it
  if (!refused) note_fallback(name, *why);
  run_drawing_on_cpu(op, stack);
  if (refused) note_fallback(name, *why);
}

}  // namespace

void run_or_fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  needing_memory([&] { return c10::toString(op.operator_name()); }, [&] { run(op, stack); });
}

void set_fallback_mode(FallbackMode mode) { counts().mode = mode; }
FallbackMode fallback_mode() { return counts().mode; }

std::map<std::string, uint64_t> fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  return counts().by_name;
}

void reset_fallback_counts() {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  counts().by_name.clear();
  counts().reasons.clear();
}

std::map<std::string, std::string> fallback_reasons() {
  const std::lock_guard<std::mutex> lock(counts().mutex);
  return counts().reasons;
}

void note_fallback(const std::string& op, const std::string& why) {
  const auto mode = counts().mode.load();
  TORCH_CHECK_NOT_IMPLEMENTED(mode != FallbackMode::Error, "the op ", op,
                              " cannot run on the spyre device yet\n  why: ", why,
                              "; OPENSPYRE_FALLBACK=error forbids running it on the CPU\n"
                              "  try: move its arguments to the CPU, or unset OPENSPYRE_FALLBACK");
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(counts().mutex);
    first = ++counts().by_name[op] == 1;
    if (first) counts().reasons[op] = why;
  }
  if (first && mode == FallbackMode::Warn)
    TORCH_WARN("spyre: the op ", op, " runs on the CPU; torch.spyre.fallbacks() counts such calls");
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_or_fall_back>());
}

// PyTorch would take these apart into helpers that no kernel can serve, or refuses them itself.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* const whole :
       {"cummax", "cummax.out", "cummin", "cummin.out", "mode", "mode.values"})
    m.impl(whole, torch::CppFunction::makeFromBoxedFunction<&run_or_fall_back>());
}

}  // namespace openspyre
