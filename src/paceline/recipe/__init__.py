"""Recipes: the validated, immutable settings needed to repeat a run, read from and written to TOML."""

from paceline.recipe.fields import Changes, RecipeSection, option
from paceline.recipe.recipe import (
    DEFAULT_RECIPE,
    EXCLUSIVE,
    SAME_STORY,
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
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    cluster_of,
    parse_cluster,
)

__all__ = [
    "DEFAULT_RECIPE",
    "EXCLUSIVE",
    "SAME_STORY",
    "Changes",
    "ClusterConfig",
    "DataConfig",
    "MeasureConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Recipe",
    "ScheduleConfig",
    "RecipeSection",
    "TrainConfig",
    "builtin_recipes",
    "cluster_of",
    "key_type",
    "load_recipe",
    "option",
    "parse_cluster",
    "parse_set",
    "recipe_keys",
]
