"""The vLLM plugin: serves models on the card with vLLM's own scheduler.

vLLM finds `platform_class` and `register` through its entry points, in each of its processes.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import openspyre

VLLM = "0.32"


def platform_class() -> str | None:
    """vLLM's entry point: the platform's class, or None where another one is to be found.

    vLLM swallows what a plugin raises and goes on without a platform, so the reason is printed.
    Its name is not the module's: once that is imported, it is the attribute of this package.
    """
    try:
        found = version("vllm")
    except PackageNotFoundError:  # a source tree on sys.path
        found = VLLM
    if found.split("+")[0].rsplit(".", 1)[0] != VLLM:
        _say(
            f"the plugin of openspyre is for vLLM {VLLM}, this is vLLM {found}\n"
            f"  try: ./dev serve, or docs/serving.md for the steps that install vLLM {VLLM}"
        )
        return None
    try:
        openspyre.require()
    except openspyre.SpyreError as error:
        _say(f"the plugin of openspyre is off: {error}")
        return None
    return "openspyre.vllm.platform.SpyrePlatform"


def register() -> None:
    """vLLM's entry point for what is no platform: our layers, where VLLM_USE_HW_AGNOSTIC is set.

    May be called again. Without the switch vLLM's own layers are compiled as they are.
    """
    from vllm import envs

    if envs.VLLM_USE_HW_AGNOSTIC:
        from openspyre.vllm.layers import install

        install()


def _say(text: str) -> None:
    print(f"openspyre: {text}", file=sys.stderr, flush=True)
