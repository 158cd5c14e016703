"""The generated Python around our kernels: one line to load a kernel, one to launch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen

from openspyre.frontend.sources import source_of_buffer


class SpyreWrapper(PythonWrapperCodegen):
    """Python wrapper of graphs on the card."""

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: PythonWrapperCodegen | None,
        partition_signatures: Any = None,
    ) -> PythonWrapperCodegen:
        if is_subgraph and subgraph_name is not None and parent_wrapper is not None:
            return SpyreSubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapper()  # type: ignore[no-untyped-call]

    def write_header(self) -> None:
        super().write_header()
        self.header.writeline("from openspyre._C import empty_strided_spyre")
        self.header.writeline("from openspyre.runtime.launch import load_kernel")

    def spyre_kernel(self, text: str) -> str:
        """The name of the loaded kernel; equal texts are loaded once."""
        if text not in self.src_to_kernel:
            name = f"k{self.next_kernel_suffix()}"
            self.src_to_kernel[text] = name
            self.header.writeline(f"{name} = load_kernel('''\\")
            self.header.splice(_quoted(text), strip=False)
            self.header.writeline("''')")
        return self.src_to_kernel[text]

    def spyre_call(self, name: str, arguments: Sequence[str]) -> None:
        self.writeline(f"{name}({', '.join(arguments)})")  # type: ignore[no-untyped-call]

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
                PythonWrapperCodegen.make_allocation(
                    self, name, device, dtype, shape, stride, allocation_shape, is_pinned
                )
            )
        text = self.codegen_python_shape_tuple
        form = f"{text(shape)}, {text(stride)}, {dtype}, {device.index}"
        return f"{name} = empty_strided_spyre({form}, {source_of_buffer(name)!r})"


class SpyreSubgraphWrapper(SubgraphPythonWrapperCodegen):
    """The body of a torch.cond or while_loop; its kernels live in the root module."""

    def spyre_kernel(self, text: str) -> str:
        root: Any = self.get_root_graph()
        return str(root.spyre_kernel(text))

    spyre_call = SpyreWrapper.spyre_call
    make_allocation = SpyreWrapper.make_allocation


def _quoted(text: str) -> str:
    """Kernel text inside a triple-quoted Python literal."""
    return text.rstrip("\n").replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
