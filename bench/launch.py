"""Warm call of compiled `x + 1` on 64 floats: spyre beside the CPU."""

from __future__ import annotations

import torch
from measurement import Measurement, paired, report

ROUNDS, CALLS = 25, 500


def main() -> None:
    rows = []
    for case, size in (("64 floats", 64), ("8 x 4096 floats", 8 * 4096)):
        function = torch.compile(lambda x: x + 1)
        here, there = torch.randn(size), torch.randn(size).to("spyre")

        def card(x: torch.Tensor = there, f: object = function) -> None:
            for _ in range(CALLS):
                f(x)  # type: ignore[operator]
            torch.spyre.synchronize()

        def cpu(x: torch.Tensor = here, f: object = function) -> None:
            for _ in range(CALLS):
                f(x)  # type: ignore[operator]

        card(), cpu()
        ours, theirs, ratio = paired(card, cpu, ROUNDS)
        detail = f"{ours / CALLS * 1e6:.1f} us : {theirs / CALLS * 1e6:.1f} us (CPU Inductor)"
        rows.append(Measurement("launch", f"x + 1, {case}, warm", ratio, "ratio", None, detail))
    report(rows)


if __name__ == "__main__":
    main()
