"""A small config of a transformers type: the sizes of `tiny.toml` given to its constructor.

Sizes are given to the constructor because fields that it derives would keep their large values
otherwise. Configs inside a config get theirs the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.backbone_utils import BackboneConfigMixin

from openspyre.hf.recipes import Recipes

_ID_ENDS = ("_token_id", "_token_index", "_token_ids", "_id")
_NO_TOKENS = ("insert_layer_id", "default_prompt_id")


def tiny_config(model_type: str, rules: Recipes) -> Any:
    """The config of a type, at the sizes of its recipe."""
    made = CONFIG_MAPPING[model_type]
    recipe = rules.of(model_type)
    try:
        default = made()
    except Exception:  # some constructors refuse to work without arguments
        if not recipe.config:
            raise
        return made(**{name: _joined(value, rules) for name, value in recipe.config.items()})
    return made(**_values(default, recipe.config, rules, top=True))


def _joined(value: Any, rules: Recipes) -> Any:
    """A recipe's value of a config that joins others: those of which it names the type are tiny."""
    if not (kind := _type_named(value)):
        return value
    return {**_values(CONFIG_MAPPING[kind](), value, rules, top=False), "model_type": kind}


def _values(default: Any, own: Mapping[str, Any], rules: Recipes, top: bool) -> dict[str, Any]:
    fields = {name: value for name, value in vars(default).items() if _is_field(name)}
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if (inside := _inside(default, name, value, own.get(name))) is not None:
            kind = {"model_type": inside.model_type} if inside.model_type else {}
            given = _values(inside, own.get(name, {}), rules, top=False)
            values[name] = {**kind, **_chosen(inside), **given}
        elif name in rules.sizes and _whole(value):
            values[name] = rules.sizes[name]
        elif name in rules.unset and value is None:
            values[name] = rules.unset[name]
        elif name in ("image_size", "patch_size") and isinstance(value, (list, tuple)):
            values[name] = [rules.sizes[name]] * len(value)
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            values |= _rotations(name, value)
    values |= _layers(fields, rules)
    values |= _stages(fields)
    values |= _given_out(default, fields, rules)
    values |= _ids(fields, rules)
    values |= {name: value for name, value in own.items() if not isinstance(value, dict)}
    for name, value in own.items():  # tables that stand for no config are given whole
        if isinstance(value, dict) and name not in values:
            values[name] = value
    return values


def _inside(default: Any, name: str, value: Any, own: Any) -> PreTrainedConfig | None:
    """The config in a field; a recipe's table may name its type, or call for one that is unset."""
    if kind := _type_named(own):
        return CONFIG_MAPPING[kind]() if kind != getattr(value, "model_type", "") else value
    if isinstance(value, PreTrainedConfig):
        return value
    named = type(default).sub_configs.get(name) if value is None and own is not None else None
    return named() if named is not None and issubclass(named, PreTrainedConfig) else None


def _type_named(table: Any) -> str:
    """The type of config that a recipe's table names; empty if it names none."""
    kind = table.get("model_type") if isinstance(table, dict) else None
    return kind if isinstance(kind, str) and kind in CONFIG_MAPPING else ""


def _is_field(name: str) -> bool:
    return not name.startswith("_") and name not in ("transformers_version", "architectures")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rotations(name: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary parameters, where they have sections: those of a head of 16."""
    if "mrope_section" not in rope:
        return {}
    half = rope.get("partial_rotary_factor", 1.0) <= 0.5
    return {name: {**rope, "mrope_section": [2, 1, 1] if half else [2, 3, 3]}}


def _stages(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of models that halve their image at every stage: one block a stage, and a larger image."""
    if not isinstance(depths := fields.get("depths"), (list, tuple)):
        return {}
    found: dict[str, Any] = {"depths": [1] * len(depths)}
    found |= {"patch_size": fields["patch_size"]} if "patch_size" in fields else {}
    found |= {"image_size": 64} if _whole(fields.get("image_size")) else {}
    heads = fields.get("num_heads")
    if isinstance(heads, (list, tuple)) and heads and _whole(fields.get("embed_dim")):
        found["embed_dim"] = 16 * heads[0]
        if _whole(fields.get("window_size")):  # no larger than the image of the last stage
            found |= {"window_size": 4, "image_size": 128}
    return found


def _chosen(default: PreTrainedConfig) -> dict[str, Any]:
    """What the config around it has chosen for a config inside, sizes apart."""
    try:
        plain = vars(type(default)())
    except Exception:  # some constructors refuse to work without arguments
        return {}
    return {
        name: value
        for name, value in vars(default).items()
        if _is_field(name)
        and isinstance(value, (bool, float, str, list, tuple))
        and (name not in plain or plain[name] != value)
    }


def _given_out(
    default: PreTrainedConfig, fields: Mapping[str, Any], rules: Recipes
) -> dict[str, Any]:
    """The stages whose maps a backbone gives out; where each layer is a stage, one for each map."""
    if not isinstance(default, BackboneConfigMixin) or len(default.out_indices) < 2:
        return {}
    counts = [name for name in rules.layer_counts if _whole(fields.get(name))]
    if not counts or "depths" in fields or fields[counts[0]] + 1 != len(default.stage_names):
        return {"out_indices": list(default.out_indices)}
    maps = len(default.out_indices)
    return {"out_indices": list(range(1, maps + 1)), **dict.fromkeys(counts, maps)}


def _layers(fields: Mapping[str, Any], rules: Recipes) -> dict[str, Any]:
    """Lists with an entry for each layer, cut to one of each kind, and the count that they need."""
    count = next((fields[name] for name in rules.layer_counts if _whole(fields.get(name))), 0)
    heads, kv = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    found: dict[str, Any] = {}
    if _whole(kv):
        found["num_key_value_heads"] = 4 if kv == heads or fields.get("kv_lora_rank") else 2
    lists = {
        name: value
        for name, value in fields.items()
        if isinstance(value, (list, tuple)) and len(value) == count and count > 2
    }
    if not lists:
        return found
    kept: list[int] = []
    rows = list(zip(*lists.values(), strict=True))
    seen: list[str] = []
    for i, row in enumerate(rows):
        if repr(row) not in seen:
            seen.append(repr(row))
            kept.append(i)
    kept = kept[:4] if len(kept) >= 2 else [0, 1]
    found |= {name: [value[i] for i in kept] for name, value in lists.items()}
    found |= {name: len(kept) for name in rules.layer_counts if _whole(fields.get(name))}
    return found


def _ids(fields: Mapping[str, Any], rules: Recipes) -> dict[str, Any]:
    """Special tokens, moved into the vocabulary."""
    found: dict[str, Any] = {}
    free = rules.ids.first_free
    for name, value in fields.items():
        stem = next((name.removesuffix(end) for end in _ID_ENDS if name.endswith(end)), None)
        if stem is None or name in _NO_TOKENS or stem == "label2":
            continue
        if isinstance(value, (list, tuple)):
            if not value or not all(map(_whole, value)):
                continue
            value = value[0]
            if stem not in rules.ids.named:
                continue
        if not _whole(value):
            continue
        if stem in rules.ids.named:
            found[name] = rules.ids.named[stem]
        elif value > 2:
            while free in rules.ids.named.values():
                free += 1
            found[name] = free
            free += 1
    return found
