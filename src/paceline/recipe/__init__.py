"""Recipes: the validated, immutable settings needed to repeat a run, read from and written to TOML."""

from paceline.recipe.fields import Changes
from paceline.recipe.recipe import (
    DEFAULT_RECIPE,
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
    "Changes",
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
