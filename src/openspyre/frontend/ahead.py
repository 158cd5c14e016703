"""AOTInductor: the C++ around our kernels, with their programs in it.

A package runs without Python's compiler: its library holds the program of every class of sizes
that the exported model allows. It asks the runner (csrc/device/package.cpp) for everything else.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import codecache
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.virtualized import V

from openspyre.errors import Unsupported
from openspyre.frontend.sources import source_of_buffer
from openspyre.ir.kernel import Kernel as Region
from openspyre.ir.kernel import Role
from openspyre.ir.text import parse_kernel
from openspyre.runtime.launch import variant_for
from openspyre.runtime.sizes import size_class
from openspyre.runtime.strides import stride_symbols

MOST_CLASSES = 64
"""Programs of one kernel in a package."""

_CALLS = Path(__file__).with_name("package_calls.h")
_DECLARATIONS = """
namespace {
const openspyre::PackageCalls* openspyre_calls = nullptr;
int32_t openspyre_device = 0;

[[maybe_unused]] void openspyre_check(int failed) {
  if (failed) throw std::runtime_error("openspyre: the runner has the reason");
}
[[maybe_unused]] void openspyre_launch(void** kernel, const char* text,
                                       std::initializer_list<AtenTensorHandle> tensors,
                                       std::initializer_list<int64_t> sizes) {
  if (!*kernel) openspyre_check(openspyre_calls->load(kernel, text));
  openspyre_check(openspyre_calls->launch(
      *kernel, reinterpret_cast<void* const*>(tensors.begin()), sizes.begin(), openspyre_device));
}
[[maybe_unused]] AtenTensorHandle openspyre_constant(void** copy, AtenTensorHandle host) {
  void* tensor = nullptr;
  openspyre_check(openspyre_calls->constant(copy, host, openspyre_device, &tensor));
  return static_cast<AtenTensorHandle>(tensor);
}
[[maybe_unused]] AtenTensorHandle openspyre_allocate(std::initializer_list<int64_t> sizes,
                                                     std::initializer_list<int64_t> strides,
                                                     int32_t dtype, const char* op) {
  void* tensor = nullptr;
  openspyre_check(openspyre_calls->allocate(static_cast<int32_t>(sizes.size()), sizes.begin(),
                                            strides.begin(), dtype, openspyre_device, op, &tensor));
  return static_cast<AtenTensorHandle>(tensor);
}
}  // namespace
extern "C" __attribute__((visibility("default"))) const int32_t openspyre_package_version =
    openspyre::kPackageVersion;
extern "C" __attribute__((visibility("default"))) void openspyre_bind(
    const openspyre::PackageCalls* calls, int32_t device) {
  openspyre_calls = calls;
  openspyre_device = device;
}
"""


class SpyreCppWrapper(CppWrapperCpu):
    """C++ wrapper of graphs on the card."""

    def __init__(self) -> None:
        self.device = "spyre"
        super().__init__()  # type: ignore[no-untyped-call]

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: Any,
        partition_signatures: Any = None,
    ) -> CppWrapperCpu:
        return SpyreCppWrapper()

    def write_header(self) -> None:
        if not V.graph.aot_mode:
            raise Unsupported(
                "cpp_wrapper for graphs on the card",
                why="a launch from generated Python costs no more than one from C++",
                hint="leave cpp_wrapper off; for use without Python, make an AOTInductor package",
            )
        super().write_header()  # type: ignore[no-untyped-call]
        if not V.graph.is_const_graph:
            self.header.splice(_CALLS.read_text() + _DECLARATIONS)

    def add_device_include(self, device: str) -> None:
        super().add_device_include("cpu" if device == "spyre" else device)

    def codegen_device(self, device: torch.device) -> str:
        if device.type != "spyre":
            return str(super().codegen_device(device))  # type: ignore[no-untyped-call]
        return f"aoti_torch_device_type_privateuse1(), {device.index or 0}"

    def codegen_device_idx(self, device: torch.device, device_id: str) -> str:
        index = str(super().codegen_device_idx(device, device_id))  # type: ignore[no-untyped-call]
        runs_there = device.type == "spyre" and index == "this->device_idx_"
        return "openspyre_device" if runs_there else index

    def spyre_kernel(self, text: str) -> str:
        """The name of the kernel with this text; equal texts are one."""
        if text not in self.src_to_kernel:
            name = f"k{self.next_kernel_suffix()}"
            self.src_to_kernel[text] = name
            self.header.writeline(f"static const char {name}_text[] =")
            for line in packaged(parse_kernel(text)):
                self.header.writeline(f'R"({line}\n)"')
            self.header.writeline(";")
        return self.src_to_kernel[text]

    def spyre_call(self, name: str, arguments: Sequence[str]) -> None:
        text = next(t for t, known in self.src_to_kernel.items() if known == name)
        count = len(parse_kernel(text).arguments)
        tensors = ", ".join(f"{a}.get()" for a in arguments[:count])
        sizes = ", ".join(arguments[count:])
        self.writeline(  # type: ignore[no-untyped-call]
            f"openspyre_launch(&kernels.{name}, {name}_text, {{{tensors}}}, {{{sizes}}});"
        )

    def make_allocation(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        padded = allocation_shape is not None and tuple(allocation_shape) != tuple(shape)
        if device.type != "spyre" or padded:
            return str(
                super().make_allocation(  # type: ignore[no-untyped-call]
                    name, device, dtype, shape, stride, allocation_shape, is_pinned
                )
            )
        form = f"{self.codegen_shape_tuple(shape)}, {self.codegen_shape_tuple(stride)}"
        kind = self.codegen_dtype(dtype)  # type: ignore[no-untyped-call]
        op = json.dumps(source_of_buffer(name))
        return f"RAIIAtenTensorHandle {name}(openspyre_allocate({form}, {kind}, {op}));"

    def generate_fallback_kernel(self, node: Any) -> None:
        """Through the dispatcher: PyTorch's own C functions are for devices in its tree."""
        self.generate_fallback_kernel_with_runtime_lookup(
            node.get_name(),
            node.python_kernel_name,
            lambda: [*node.codegen_args(), *node.codegen_kwargs()],
            node.op_overload,
            node.export_extern_kernel_node(),
            node.outputs or node.mutation_outputs,
        )

    def codegen_model_constructor(self) -> None:
        """Constants lie in the library as those of the CPU; see `_write_constants_unpacking`."""
        stock, self.codegen_device = self.codegen_device, _of_the_host  # type: ignore[method-assign]
        try:
            super().codegen_model_constructor()  # type: ignore[no-untyped-call]
        finally:
            self.codegen_device = stock  # type: ignore[method-assign]
        self.used_cached_devices.add("cpu")

    def _write_constants_unpacking(self) -> None:
        for index, (name, tensor) in enumerate(V.graph.constants.items()):
            host = f"constants_->at({index})"
            if tensor.device.type != "spyre":
                self.prefix.writeline(f"[[maybe_unused]] auto& {name} = {host};")
                continue
            self.prefix.writeline(f"static void* {name}_copy = nullptr;")
            self.prefix.writeline(
                f"[[maybe_unused]] ConstantHandle {name}(openspyre_constant(&{name}_copy, {host}));"
            )


@functools.cache
def register() -> None:
    """Let AOTInductor precompile the header that a package's library includes: the CPU's."""
    stock = codecache._get_cpp_wrapper_header

    @functools.wraps(stock)
    def header(device: str, aot_mode: bool = False) -> str:
        return stock("cpu" if device == "spyre" else device, aot_mode)

    codecache._get_cpp_wrapper_header = header


def _of_the_host(device: torch.device) -> str:
    return "cached_torch_device_type_cpu, 0"


def packaged(region: Region) -> Iterator[str]:
    """A kernel and its programs as text, for csrc/device/package.cpp; a variant a line.

    Raises:
        Unsupported: the sizes fall into too many classes, or the card cannot run one of them.
    """
    symbols = [s for s in region.symbols if s not in stride_symbols(region)]
    classes = [tuple(_classes(*region.limits.get(s, (0, 2**62)))) for s in symbols]
    count = 1
    for of_one in classes:
        count *= len(of_one)
    if count > MOST_CLASSES:
        raise Unsupported(
            f"a package of the kernel {region.name}, whose sizes fall into {count} classes",
            why=f"a package holds a program for each, and at most {MOST_CLASSES}",
            hint="bound the dynamic sizes: torch.export.Dim(name, min=..., max=...)",
        )
    scalars = [region.tensors[a].role is Role.SCALAR for a in region.arguments]
    flags = " ".join(str(int(s)) for s in scalars)
    yield f"{region.name or 'kernel'} {len(scalars)} {len(region.symbols)} {count} {flags}"
    for chosen in itertools.product(*classes):
        example = dict(zip(symbols, chosen, strict=True))
        sizes = tuple(example.get(s, region.limits.get(s, (1, 1))[0]) for s in region.symbols)
        program, low, high = variant_for(region, sizes)
        yield " ".join(map(str, (*low, *high)))
        yield program.hex()


def _classes(low: int, high: int) -> Iterator[int]:
    """A size of each class from `low` to `high`.

    PyTorch says 2 where an exported size may be 1 or 0 too: it only traces with others.
    """
    low = 0 if low == 2 else low
    while low <= high:
        yield low
        low = size_class(low)[1] + 1
