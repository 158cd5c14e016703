"""Builds the extension `openspyre._C` and the software card's library.

Neither `pip install --no-build-isolation .` nor `python setup.py build_ext --inplace` needs
anything but a C++ compiler and the build requirements of pyproject.toml.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # before torch: a stale build must not break this

import torch
from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)
BUILT = Path("openspyre") / "_built.py"
CARD = Path("openspyre") / "lib" / "libspyre_card.so"


class BuildAll(BuildExtension):
    """Builds the card's library, the extension that links to it, and a note of torch's version."""

    def run(self) -> None:
        in_place = bool(self.inplace)  # setuptools clears it while it builds
        super().run()
        if in_place:
            for path in (CARD, BUILT):
                place(Path(self.build_lib) / path, ROOT / "src" / path)

    def build_extensions(self) -> None:
        packages = Path(self.build_lib).resolve()
        jobs = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
        card = runpy.run_path(str(ROOT / "csrc" / "card" / "build.py"))
        card["build"](packages / CARD, Path(self.build_temp).resolve() / "card", jobs)
        for extension in self.extensions:
            extension.library_dirs.append(str((packages / CARD).parent))
        super().build_extensions()
        (packages / BUILT).write_text(
            '"""Written by setup.py: what the extension was built against."""\n\n'
            f"TORCH_VERSION = {torch.__version__!r}\n"
        )


def place(source: Path, target: Path) -> None:
    """Copies a file so that a process which has the old one mapped keeps it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    shutil.copy2(source, partial)
    partial.replace(target)


# setuptools passes -g and -O3 before these; what comes last counts.
FLAGS = ["-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
# Torch's headers are not free of these.
FLAGS += [
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    "-Wno-missing-field-initializers",
    "-Wno-interference-size",
]

if sys.platform != "linux":
    raise SystemExit("openspyre builds on Linux only")

# `dev` installs the package first and compiles in place: once, and again only what changed.
NATIVE = os.environ.get("OPENSPYRE_BUILD_NATIVE", "on") != "off"

setup(
    package_dir={"": "src"},
    packages=find_packages("src"),
    package_data={
        "openspyre": ["py.typed"],
        "openspyre.frontend": ["package_calls.h"],
        "openspyre.hf": ["downloads.toml", "tiny.toml"],
        "openspyre.tools": ["page.css", "page.js"],
    },
    ext_modules=[
        CppExtension(
            "openspyre._C",
            sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc" / "device").glob("*.cpp")),
            include_dirs=[str(Path(torch.__file__).parent / "include" / "kineto")],
            libraries=["spyre_card"],
            extra_compile_args=FLAGS,
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib"],
        )
    ]
    if NATIVE
    else [],
    cmdclass={"build_ext": BuildAll.with_options(no_python_abi_suffix=True)},
)
