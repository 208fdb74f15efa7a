"""Recipes: the validated, immutable settings needed to repeat a run, read from and written to TOML."""

from paceline.recipe.checkpoint_interval import CheckpointInterval
from paceline.recipe.fields import Changes
from paceline.recipe.recipe import (
    DEFAULT_RECIPE,
    KEYS_WITHOUT_EFFECT,
    Recipe,
    builtin_recipes,
    key_type,
    load_recipe,
    parse_set,
    recipe_keys,
)
from paceline.recipe.sections import (
    ClusterConfig,
    DataConfig,
    MeasureConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    cluster_of,
    parse_cluster,
)

__all__ = [
    "DEFAULT_RECIPE",
    "KEYS_WITHOUT_EFFECT",
    "Changes",
    "CheckpointInterval",
    "ClusterConfig",
    "DataConfig",
    "MeasureConfig",
    "OptimizerConfig",
    "Recipe",
    "ScheduleConfig",
    "TrainConfig",
    "builtin_recipes",
    "cluster_of",
    "key_type",
    "load_recipe",
    "parse_cluster",
    "parse_set",
    "recipe_keys",
]
