"""What to run: a recipe is everything needed to repeat a run. Frozen, validated, TOML in and out."""

from paceline.recipe.cluster import ClusterConfig, cluster_of, parse_cluster
from paceline.recipe.fields import Changes, Section, option
from paceline.recipe.files import DEFAULT_RECIPE, builtin_recipes, load_recipe, parse_set
from paceline.recipe.sections import (
    DataConfig,
    MeasureConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from paceline.recipe.whole import EXCLUSIVE, SAME_STORY, Recipe, key_type, recipe_keys

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
    "Section",
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
