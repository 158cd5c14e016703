"""The hardware-agnostic layers that vLLM lacks, as plain PyTorch, and who provides a model's."""

from openspyre.vllm.layers.census import Provided, census
from openspyre.vllm.layers.table import LAYERS, Layer, install, override

__all__ = ["LAYERS", "Layer", "Provided", "census", "install", "override"]
