"""Tiny configs and inputs: what the rules for all types give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, PreTrainedConfig

from openspyre.hf.recipes import Recipe, recipes
from openspyre.hf.tiny_config import tiny_config
from openspyre.hf.tiny_inputs import inputs_of
from openspyre.hf.tiny_trial import _FirstOfEqual, failure

IMAGE, SOUND = 310, 312  # tokens that stand for features in tiny vocabularies


# --- configs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "maps"), [("rt_detr", [2, 3, 4]), ("zoedepth", [1, 2, 3, 4])])
def test_a_backbone_gives_out_as_many_maps_as_it_is_asked_for(name: str, maps: list[int]) -> None:
    backbone = tiny_config(name, recipes()).backbone_config
    assert list(backbone.out_indices) == maps
    assert max(maps) < len(backbone.stage_names)


def test_what_a_config_chooses_for_one_inside_is_kept_and_sizes_are_not() -> None:
    inside = tiny_config("depth_anything", recipes()).backbone_config
    assert inside.reshape_hidden_states is False  # Dinov2's own default is True
    assert inside.hidden_size == 64


def test_a_recipe_sets_a_config_that_is_unset_or_of_another_type() -> None:
    assert tiny_config("embedding_gemma2", recipes()).vision_config.hidden_size == 64
    backbone = tiny_config("detr", recipes()).backbone_config  # timm's by default
    assert (backbone.model_type, list(backbone.depths)) == ("resnet", [1, 1, 1, 1])


def test_models_that_join_others_are_made_of_tiny_ones() -> None:
    joined = tiny_config("encoder-decoder", recipes())
    assert isinstance(joined.encoder, BertConfig)
    assert (joined.encoder.hidden_size, joined.decoder.hidden_size) == (64, 64)
    assert joined.decoder.add_cross_attention
    assert not joined.encoder.add_cross_attention


def test_no_reason_is_that_a_recipe_is_missing() -> None:
    assert not [name for name, one in recipes().types.items() if "recipe" in one.cannot]


# --- inputs ---------------------------------------------------------------------------------------


class Sees(nn.Module):
    """Takes both; only the part inside says how many vectors an image becomes."""

    main_input_name = "input_ids"

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config, self.model = config, Inside()

    def get_image_features(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.model.get_image_features(*args, **kwargs)

    def forward(
        self, input_ids: Any, pixel_values: Any, input_features: Any, places: Any, patches: Any
    ) -> None:
        pass


class Inside(nn.Module):
    def get_image_features(self, pixel_values: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        assert patches.shape[1] == 4
        return torch.zeros(len(pixel_values), 3, 64)

    def get_audio_features(self, input_features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(5, 64) for _ in input_features)


def _ids(**inputs: Any) -> dict[str, Any]:
    inside = PreTrainedConfig(image_token_id=IMAGE, audio_token_index=SOUND)
    config = PreTrainedConfig(vocab_size=320, part=inside)
    recipe = Recipe(inputs={"patches": {"grid": 2}, **inputs})
    return inputs_of(Sees(config), recipes(), recipe).forward


def test_images_and_sounds_both_have_their_places_in_a_prompt() -> None:
    ids = _ids()["input_ids"]
    assert (ids == IMAGE).sum(1).tolist() == [3, 3]
    assert (ids == SOUND).sum(1).tolist() == [5, 5]


def test_forms_of_inputs_that_recipes_give() -> None:
    given = _ids(
        input_ids={"tokens": [[IMAGE, 1], [SOUND, 2]]},
        places={"shape": [2, 50], "low": 1, "high": 4.0},
    )
    assert given["input_ids"][:, 2:5].tolist() == [[IMAGE, SOUND, SOUND]] * 2
    assert given["places"].dtype is torch.float32
    assert set(given["places"].unique().tolist()) == {1.0, 2.0, 3.0}
    assert given["patches"].tolist() == [[[0, 0], [1, 0], [0, 1], [1, 1]]] * 2


# --- reasons --------------------------------------------------------------------------------------


def test_a_reason_that_announces_another_line_has_it() -> None:
    said = failure("build", ValueError("validation error:\n    sizes do not agree\nmore"))
    assert said.text == "ValueError: validation error: sizes do not agree"


# --- the reference --------------------------------------------------------------------------------


def test_the_references_topk_takes_the_first_of_equals_and_can_be_viewed() -> None:
    with _FirstOfEqual():
        values, places = torch.tensor([[0.0, 2.0, 2.0], [1.0, 0.0, 0.0]]).topk(2, dim=1)
    assert places.view(-1).tolist() == [1, 2, 0, 1]
    assert values.view(-1).tolist() == [2.0, 2.0, 1.0, 0.0]
