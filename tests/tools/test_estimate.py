"""`spyre estimate`: extrapolated layers against whole models on the card, bounds, what-if."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, StaticCache
from typer.testing import CliRunner

import openspyre
from openspyre.card.report import bounds
from openspyre.compiler.least_work import Work
from openspyre.errors import SpyreError
from openspyre.runtime.profiler import profile
from openspyre.spec import BOARD_POWER_W, CALIBRATED, SPYRE_CARD_V1, CardSpec
from openspyre.tools.card_time import Estimated, Phase, estimated, guessed, owner
from openspyre.tools.cli import app
from openspyre.tools.estimate import memory_sentence
from openspyre.tools.experts import even_experts
from openspyre.tools.layered import configured, kept_layers, layered, stand_ins
from openspyre.tools.what_if import changed_card, notes

openspyre.require()

SMALL: Mapping[str, Any] = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
PREFILL, DECODE = Phase("prefill", 64, 64), Phase("decode", 1, 96)


def quiet(_: str) -> None:
    pass


def small(layers: int, kind: str = "granite", **more: Any) -> Any:
    return configured(kind, {**SMALL, "num_hidden_layers": layers, **more})


def times(config: Any, phase: Phase, card: CardSpec = SPYRE_CARD_V1) -> Estimated:
    return estimated(layered(config), phase, card, quiet)


def cycles_on_card(config: Any, phase: Phase) -> int:
    """Cycles of the whole model with real weights: compiled, run, and timed as it ran."""
    torch._dynamo.reset()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float16).eval().to("spyre")
    cache = StaticCache(config=config, max_cache_len=phase.context)
    heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    cache.early_initialization(1, heads, width, torch.float16, torch.device("spyre"))
    for layer in cache.layers:
        layer.cumulative_length.fill_(phase.context - phase.tokens)
    places = torch.arange(phase.context - phase.tokens, phase.context)[None].to("spyre")
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    with torch.inference_mode(), profile() as measured:
        compiled(
            input_ids=torch.zeros_like(places), position_ids=places, past_key_values=cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
    torch._dynamo.reset()
    assert not measured.fallbacks
    return sum(kernel.cycles for kernel in measured.kernels)


# --- the extrapolation --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "phase"), [(2, PREFILL), (3, DECODE), (6, PREFILL), (9, DECODE)]
)
def test_agrees_with_the_whole_model_on_the_card(layers: int, phase: Phase) -> None:
    config = small(layers)
    expected = SPYRE_CARD_V1.microseconds(cycles_on_card(config, phase))
    found = times(config, phase)
    assert len(found.compiled_layers) == min(layers, 5)
    assert found.us == pytest.approx(expected, rel=0.01)
    assert not found.fallbacks


def test_parts_add_up_and_have_bounds() -> None:
    found = times(small(5), DECODE)
    parts = {part.name: part for part in found.parts if not part.detail}
    details = [part for part in found.parts if part.detail]
    assert {"layer", "model.norm", "lm_head"} <= set(parts)
    assert {"self_attn", "mlp", "input_layernorm"} <= {part.name for part in details}
    assert parts["layer"].count == 5
    assert sum(part.us for part in parts.values()) == pytest.approx(found.us)
    assert sum(part.us for part in details) == pytest.approx(parts["layer"].us)
    for part in found.parts:
        assert 0 <= part.bounds.p <= part.bounds.s <= part.bounds.s2
        assert part.moved[0] <= 0 <= part.moved[1]
    assert found.us > found.bounds.s2 > 0
    weights = 5 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512) + 256 * 1000
    cache = 5 * 2 * 2 * 96 * 64
    least = 2 * (weights + cache) / SPYRE_CARD_V1.dram_peak / 1000
    assert found.bounds.p == pytest.approx(least, rel=0.02)


def test_mamba_layers_count_apart() -> None:
    config = small(
        4, "granitemoehybrid", layer_types=["mamba", "mamba", "mamba", "attention"],
        num_local_experts=0, shared_intermediate_size=512, mamba_n_heads=8, mamba_d_head=64,
    )  # fmt: skip
    found = times(config, DECODE)
    counts = {part.name: part.count for part in found.parts if not part.detail}
    assert sorted(n for name, n in counts.items() if name.startswith("layer")) == [1, 3]
    assert {("mamba", 3), ("self_attn", 1)} <= {(p.name, p.count) for p in found.parts if p.detail}
    assert not found.fallbacks
    state = 8 * 64 * config.mamba_d_state
    assert found.memory.cache > 3 * 2 * state  # a state of each, in two bytes at least


def test_layers_of_two_kinds_count_apart() -> None:
    config = small(8, "qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=5)
    model = layered(config)
    assert model.kinds == (0, 0, 0, 0, 0, 1, 1, 1)
    assert model.kind_names == ("layer (full_attention)", "layer (sliding_attention)")
    found = estimated(model, PREFILL, SPYRE_CARD_V1, quiet)
    assert found.compiled_layers == (0, 1, 2, 3, 5, 6, 7)
    counts = {part.name: part.count for part in found.parts if not part.detail}
    assert counts["layer (full_attention)"] == 5
    assert counts["layer (sliding_attention)"] == 3


@pytest.mark.parametrize(
    ("kinds", "kept", "standing"),
    [
        ((0,), (0,), (0,)),
        ((0, 0), (0, 1), (0, 1)),
        ((0,) * 5, (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)),
        ((0,) * 8, (0, 1, 2, 3, 7), (0, 1, 2, 3, 2, 3, 2, 4)),
        ((0, 1) * 4, (0, 1, 2, 3, 4, 5, 7), (0, 1, 2, 3, 4, 5, 2, 6)),
        ((1, 0, 0, 1, 0, 0, 1), (0, 1, 2, 3, 4, 6), (0, 1, 2, 3, 4, 2, 5)),
    ],
)
def test_kept_layers_stand_for_all(
    kinds: tuple[int, ...], kept: tuple[int, ...], standing: tuple[int, ...]
) -> None:
    assert kept_layers(kinds) == kept
    assert stand_ins(kinds, kept) == standing
    assert [kinds[kept[position]] for position in standing] == list(kinds)


def test_owners() -> None:
    assert owner("h.12.attn.c_attn", "h") == "12.attn"
    assert owner("h.12", "h") == "12."
    assert owner("head.1", "h") == "head.1"


# --- mixtures of experts ------------------------------------------------------------------------

EXPERTS: Mapping[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])  # plain; biases and transposed weights
@pytest.mark.parametrize("tokens", [2, 6, 7])  # a pair for every expert; three; some have less
def test_even_experts_are_the_models_own_where_the_routing_is_even(kind: str, tokens: int) -> None:
    config = small(1, kind, **EXPERTS)
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    experts = next(part for part in model.modules() if hasattr(part, "_apply_gate"))
    generator = torch.Generator().manual_seed(tokens)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    pairs = 2 * tokens
    rows = -(-pairs // 4)
    chosen = (torch.arange(pairs) // rows).view(2, tokens).T  # ends short where pairs do
    hidden = torch.randn(tokens, 256, generator=generator)
    weights = torch.rand(tokens, 2, generator=generator)
    with torch.no_grad():
        expected = experts(hidden, chosen, weights)
        torch.testing.assert_close(even_experts(experts, hidden, chosen, weights), expected)


def test_experts_are_read_once_and_only_those_that_are_active() -> None:
    """More tokens than experts read all of them; a single token reads as many as it takes."""
    config = small(4, "mixtral", **EXPERTS)
    expert = 3 * 256 * 512
    attention = 2 * 256 * 256 + 2 * 256 * 128
    for phase, active in ((PREFILL, 4), (DECODE, 2)):
        found = times(config, phase)
        assert not found.fallbacks
        cache = 2 * 2 * 64 * phase.context
        least = 2 * (4 * (active * expert + attention + cache) + 256 * 1000)
        bound = least / SPYRE_CARD_V1.dram_peak / 1000
        assert found.bounds.p == pytest.approx(bound, rel=0.06)
        assert bound < found.us < 8 * bound


# --- bounds -----------------------------------------------------------------------------------


def test_bounds_are_those_of_the_card() -> None:
    """The rows of card.md 4.1 and 4.6, and its example of attention."""
    rows, columns, inner = 2 * 512, 12800, 4096
    moved = 2 * (rows * inner + inner * columns)
    linear = bounds(Work(2 * rows * columns * inner, 0, 0, moved, 2 * rows * columns))
    assert linear.p == pytest.approx(1092, abs=1)
    assert linear.s == linear.s2 == pytest.approx(1472, abs=1)
    one = bounds(Work(2 * 4096 * 25600, 2 * 4096 * 25600 / 0.2333, 0, 2 * 4096 * 25601, 2 * 25600))
    assert one.p == pytest.approx(1024.3, abs=0.1)
    assert one.s == pytest.approx(1398.8, abs=0.3)
    exponentials = 32 * 4096 * 4096 / 2
    assert bounds(Work(transcendentals=exponentials)).s2 == pytest.approx(4770, abs=5)
    assert bounds(Work(flop=1e9, filled_flop=4e9)).s2 == pytest.approx(
        4 * bounds(Work(flop=1e9)).s, rel=1e-6
    )
    assert bounds(Work()).s2 == 0


# --- what if ----------------------------------------------------------------------------------


def test_changed_cards() -> None:
    card = changed_card(["cores=64", "lx_bytes=4MiB", "dram_peak=400GB/s", "dram_latency_ns=0.1us"])
    assert (card.cores, card.lx_bytes, card.dram_peak) == (64, 4 << 20, 400)
    assert card.dram_latency_ns == pytest.approx(100)
    assert changed_card([]) == SPYRE_CARD_V1
    assert changed_card(["lx_bytes=2MiB"]) == SPYRE_CARD_V1  # what is usable follows as #3266 says
    assert changed_card(["clock_ghz=1100MHz"]).clock_ghz == pytest.approx(1.1)
    assert notes(["dram_peak=400GB/s"]) == (
        "a changed card: the held-out error is that of spyre-card-v1",
        "dram_peak moves bound P only; times follow dram_oneway",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("core=64", "the card has no number of this name\n  try: cores"),
        ("dram=1", "no number of this name"),
        ("cores", "this is no change"),
        ("cores=1.5", "it takes a whole number above 0"),
        ("cores=0", "it takes a whole number above 0"),
        ("cores=64GB/s", "it takes a number without unit"),
        ("dram_oneway=150MiB", "a number, alone or with B/ns, MB/s, GB/s, TB/s"),
        ("dram_oneway=-3", "means nothing"),
        ("dram_oneway=nan", "means nothing"),
        ("dram_oneway=300GB/s", "is above the peak of device memory"),
        ("pt_sustain=1.5", "it takes at most 1"),
        ("lx_bytes=64KiB", "nothing of LX would be usable"),
        ("lx_usable=3MiB", "more of LX would be usable than there is"),
    ],
)
def test_changes_that_mean_nothing(change: str, said: str) -> None:
    with pytest.raises(SpyreError) as failure:
        changed_card([change])
    assert said in str(failure.value)


def test_a_changed_card_is_compiled_for() -> None:
    config = small(2)
    base = times(config, PREFILL)
    far = times(config, PREFILL, changed_card(["dram_latency_ns=400"]))
    same_programs = base.us * (1 + base.sensitivity["dram_latency_ns"][1])
    assert far.us > base.us
    assert abs(far.us - same_programs) > 1e-6 * base.us  # compiled for it
    assert far.us < 1.04 * same_programs  # as near as the planner's estimates are (0028)
    few = times(config, PREFILL, changed_card(["cores=2"]))
    assert few.us > 1.5 * base.us
    assert few.bounds.s2 >= base.bounds.s2
    wide = ["cores=64", "lx_bytes=4MiB", "dram_oneway=200", "dram_few_cores=200"]
    many = times(config, PREFILL, changed_card(wide))
    assert many.us != base.us
    assert many.bounds.s < base.bounds.s


# --- the command ------------------------------------------------------------------------------


def spyre(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["estimate", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_every_time_has_its_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "granite", **SMALL, "num_hidden_layers": 4}))
    code, text, _ = spyre(str(path), "--decode", "33", "--batch", "2")
    assert code == 0
    table = [line for line in text.splitlines() if "/" in line and "%" in line and "+-" in line]
    assert len(table) >= 8
    assert all("+-8.7 %" in line for line in table)
    assert "an upper bound, no estimate" in text.replace("\n", " ")
    assert CALIBRATED.source in text
    code, text, _ = spyre(str(tmp_path), "--decode", "33", "--batch", "2", "--json")
    found = json.loads(text)
    (phase,) = found["phases"]
    assert found["held_out_error"] == phase["held_out_error"] == CALIBRATED.held_out
    assert phase["us_held_out"] == pytest.approx([phase["us"] * 0.913, phase["us"] * 1.087])
    assert phase["energy_upper_bound_joule"] == pytest.approx(BOARD_POWER_W * phase["us"] / 1e6)
    assert set(phase["sensitivity"]) == set(guessed())
    assert phase["sensitivity"]["dram_latency_ns"][1] > 0.001
    assert phase["sensitivity"]["host_link"] == [0, 0]
    assert phase["phase"] == {"name": "decode", "tokens": 1, "context": 33}
    assert all({"each_us", "us", "bounds", "moved"} <= set(part) for part in phase["parts"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ibm-granite/granite-3.3-8b-instruct"], "names on a hub cannot be fetched here"),
        (["granite", "--override", "num_hidden_layers"], "is no KEY=VALUE"),
        (["granite", "--override", "hidden_size=true"], "is no config of a granite model"),
        (["granite", "--dtype", "int3"], "none of float16, bfloat16, float32"),
        (["granite", "--set", "corse=64"], "cores"),
        (["bert", "--decode", "8"], "an encoder does not decode"),
        (["t5"], "has no one stack of layers"),
        (["granit"], "did you mean granite"),
        (["vit"], "a model of type vit takes no tokens"),
    ],
)
def test_what_means_nothing_is_told(words: list[str], said: str) -> None:
    code, text, told = spyre(*words)
    assert code == 2
    assert text == ""
    assert said in told


@pytest.mark.parametrize(
    ("layers", "said"), [(3, "they fit in the card's 112 GiB"), (800_000, "MORE than the card's")]
)
def test_whether_the_model_fits(layers: int, said: str) -> None:
    found = times(small(3), DECODE)
    embeddings = head = 256 * 1000
    layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256
    assert found.memory.weights == 2 * (embeddings + head + 3 * layer + 256)
    one = 2 * 2 * 2 * 96 * 64  # keys and values of two heads in two bytes
    assert found.memory.cache == pytest.approx(3 * one, rel=0.001)
    assert found.memory.fits
    more = replace(found.memory, weights=layers * 2 * layer, cache=layers * one)
    assert more.fits == (layers == 3)
    assert said in memory_sentence(more)


def test_an_encoder_has_one_forward() -> None:
    more = ["--override", "num_hidden_layers=4", "--override", "vocab_size=500"]
    code, text, _ = spyre("bert", "--prefill", "16", "--json", *more)
    found = json.loads(text)
    assert code == 0
    assert [phase["phase"]["name"] for phase in found["phases"]] == ["forward"]
    assert found["model"]["layers"] == {"layer": 4}
    names = {part["name"] for part in found["phases"][0]["parts"]}
    assert {"layer", "attention", "output", "embeddings.LayerNorm"} <= names


def test_every_guess_is_swept() -> None:
    graded = {f.name for f in fields(CardSpec) if f.metadata["grade"] == "G"}
    assert set(guessed()) == graded
    assert "dram_latency_ns" in graded
