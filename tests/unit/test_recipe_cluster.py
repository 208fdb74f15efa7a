"""The cluster section: quantities with units, checks across keys, and parsing of --cluster."""

from __future__ import annotations

from typing import Any

import pytest

from command import run_command
from paceline.errors import UsageError
from paceline.recipe import ClusterConfig, Recipe, cluster_of, parse_cluster

WORDS = "nodes=4,cpus=0.5,bandwidth=1gbit,latency=1ms,loss=0.1%,memory=2g,links=0-2:100mbit,links=1-3:10mbit,slow=3:0.5"


def test_without_a_cluster_nothing_is_shaped() -> None:
    config = Recipe().cluster
    assert config == ClusterConfig(nodes=0)
    assert config.bits_per_s is config.latency_s is config.loss_fraction is config.memory_bytes is None
    assert (config.link_bits_per_s, config.slowness) == ({}, {})


def test_the_words_of_the_command_line_set_the_whole_section() -> None:
    config = Recipe().replace(parse_cluster(WORDS)).cluster
    assert (config.nodes, config.cpus, config.bits_per_s, config.latency_s) == (4, 0.5, 1e9, 0.001)
    assert (config.loss_fraction, config.memory_bytes) == (0.001, 2 << 30)
    assert config.link_bits_per_s == {(0, 2): 1e8, (1, 3): 1e7}
    assert config.slowness == {3: 0.5}
    other = Recipe(cluster=config).replace(parse_cluster("nodes=2")).cluster
    assert other == ClusterConfig(nodes=2)
    assert Recipe(cluster=config).replace(parse_cluster("nodes=0")).cluster == ClusterConfig()


def test_a_section_in_words_is_the_same_again() -> None:
    assert str(ClusterConfig()) == ""
    assert str(Recipe().replace(parse_cluster(WORDS)).cluster) == WORDS
    assert cluster_of(WORDS) == Recipe().replace(parse_cluster(WORDS)).cluster
    assert cluster_of(None) == ClusterConfig()


def test_the_section_survives_a_file() -> None:
    recipe = Recipe().replace(parse_cluster(WORDS))
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.replace({"cluster.bandwidth": "10gbit"}).cluster.bits_per_s == 1e10
    assert Recipe.from_toml('[cluster]\nnodes = 3\nlinks = ["2-0:1mbit"]\n').cluster.link_bits_per_s == {(0, 2): 1e6}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "'' is not key=value; an example: nodes=4,cpus=0.5,bandwidth=1gbit"),
        ("4", "'4' is not key=value"),
        ("nodes=", "'nodes=' is not key=value"),
        ("cpus=0.5", "does not say how many nodes"),
        ("node=4", "unknown key in --cluster 'node'; did you mean 'nodes'?"),
        ("nodes=two", "--cluster nodes must be a whole number, not 'two'"),
        ("nodes=2,cpus=half", "--cluster cpus must be a number, not 'half'"),
        ("nodes=2,nodes=3", "--cluster names nodes twice: 2 and 3"),
        ("nodes=-1", "cluster.nodes must be at least 0, not -1"),
        ("nodes=2,cpus=0", "cluster.cpus must be at least 0.01, not 0.0"),
        ("nodes=2,cpus=nan", "cluster.cpus must be a finite number, not nan"),
        ("nodes=2,bandwidth=fast", "cluster.bandwidth 'fast' is not a rate such as 100mbit or 1gbit"),
        ("nodes=2,bandwidth=0gbit", "cluster.bandwidth '0gbit' is not a rate"),
        ("nodes=2,latency=1", "cluster.latency '1' is not a time such as 500us or 1ms"),
        ("nodes=2,loss=0.1", "cluster.loss '0.1' is not a percentage such as 0.1%"),
        ("nodes=2,loss=100%", "cluster.loss '100%' is too large"),
        ("nodes=2,memory=2t", "cluster.memory '2t' is not a size such as 512m or 2g"),
        ("nodes=2,links=0-2:1mbit", "cluster.links '0-2:1mbit': node 2 is not one of 0 to 1"),
        ("nodes=2,links=0-0:1mbit", "cluster.links '0-0:1mbit' joins a node with itself"),
        ("nodes=2,links=0-1:1mbit,links=1-0:2mbit", "'1-0:2mbit' sets the rate of the same two nodes again"),
        ("nodes=2,links=0-1", "cluster.links '0-1' is not NODE-NODE:RATE"),
        ("nodes=2,slow=1", "cluster.slow '1' is not NODE:FRACTION, such as 3:0.5"),
        ("nodes=2,slow=1:2", "cluster.slow '1:2' is not NODE:FRACTION"),
        ("nodes=2,slow=5:0.5", "cluster.slow '5:0.5': node 5 is not one of 0 to 1"),
        ("nodes=2,slow=1:0.5,slow=1:0.6", "'1:0.6' sets the fraction of node 1 again"),
        ("nodes=0,cpus=1", "cluster.cpus is set, but cluster.nodes is 0"),
    ],
)
def test_mistakes_in_words(words: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster(words)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cluster.bandwidth": "1gbit"}, "cluster.bandwidth is set, but cluster.nodes is 0"),
        ({"cluster.nodes": "4"}, "cluster.nodes must be a whole number, not '4'"),
        ({"cluster.node": 4}, "unknown recipe key 'cluster.node'; did you mean 'cluster.nodes'?"),
    ],
)
def test_mistakes_in_keys(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        Recipe().replace(changes)
    assert sentence in str(caught.value)


def test_a_mistake_in_words_ends_a_command() -> None:
    said = run_command("run", "--cluster", "nodes=2,bandwith=1gbit", width=200)
    assert said.code == 2
    assert "unknown key in --cluster 'bandwith'; did you mean 'bandwidth'?" in said.err
