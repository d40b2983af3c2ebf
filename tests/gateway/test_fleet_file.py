"""``fleet.toml``: what is read, and that a fault names its key and says what is allowed."""

from __future__ import annotations

import pathlib

import pytest

from endcast.errors import EndcastError
from endcast.router.cluster import UNLIMITED
from endcast.router.gateway.config import parse_config, read_config, workers_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST = '[[pools]]\nworkers = [{ url = "http://a:1" }]\n'


def test_a_small_file_gets_the_defaults() -> None:
    config = parse_config(LEAST)
    (pool,) = config.pools
    assert (config.listen.port, config.limits.retries, pool.slots, pool.policy) == (8000, 2, 64, "br_0")
    assert pool.admission == "headroom" and pool.policy_settings().max_overtakes == 4 * 64
    (worker,) = workers_of(pool)
    assert (worker.name, worker.rank, worker.kv_capacity) == ("http://a:1", None, UNLIMITED)


def test_with_a_forecaster_the_policy_uses_it_unless_another_is_given() -> None:
    told = 'forecaster = "cold_start"\n'
    assert parse_config(LEAST + told).pools[0].policy == "olp_br_h"
    assert parse_config(LEAST + told + 'policy = "least_kv"\n').pools[0].policy == "least_kv"


def test_ranks_are_workers_of_their_own() -> None:
    text = """
[[pools]]
slots = 4
kv_capacity = 1000
workers = [{ url = "http://a:1/", ranks = 2 }, { url = "https://b", slots = 8, kv_capacity = 5 }]
"""
    workers = workers_of(parse_config(text).pools[0])
    assert [(w.index, w.name, w.slots, w.kv_capacity) for w in workers] == [
        (0, "http://a:1#0", 4, 1000),
        (1, "http://a:1#1", 4, 1000),
        (2, "https://b", 8, 5),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pools = 3", "pools: Expected"),
        ("", "pools"),
        ("[[pools]]\n", "workers"),
        ("[[pools]]\nworkers = []\n", "pools[0].workers: Expected `array` of length >= 1"),
        (
            '[[pools]]\nworkers = [{ url = "a:1" }]\n',
            "pools[0].workers[0]: url must be like http://host:port, not 'a:1'",
        ),
        ('[[pools]]\nworkers = [{ url = "http://a:x" }]\n', "pools[0].workers[0]: Port"),
        (LEAST + "slots = 0\n", "pools[0].slots: Expected `int` >= 1"),
        (LEAST + 'slots = "4"\n', "pools[0].slots: Expected `int`, got `str`"),
        (LEAST + "slot = 4\n", "pools[0]: Object contains unknown field `slot`"),
        (LEAST + "discount = 1.5\n", "pools[0].discount: Expected `float` <= 1"),
        (LEAST + "soften = nan\n", "pools[0].soften"),
        (LEAST + 'policy = "best"\n', "pools[0]: policy 'best' is unknown; known: round_robin"),
        (LEAST + 'policy = "br_h"\n', "pools[0]: policy 'br_h' uses forecasts: forecaster must name a bundle"),
        (LEAST + 'admission = "magic"\n', "pools[0]: admission 'magic' is unknown; known: optimistic"),
        (LEAST + 'admission = "optimistic:2"\n', "pools[0]: admission: optimistic takes a share"),
        ("[limits]\nmax_wait_s = -1\n" + LEAST, "limits.max_wait_s: Expected `float` > 0"),
        ('[listen]\ntls_key = "k"\n' + LEAST, "listen: tls_certificate and tls_key must be given together"),
        (LEAST + LEAST, "with several pools each must list its models"),
        (LEAST + 'models = ["m"]\n' + LEAST + 'models = ["m"]\n', "the model 'm' is served by two pools"),
        ("[[pools]", "fleet.toml is no TOML"),
    ],
)
def test_a_fault_names_its_key(text: str, said: str) -> None:
    with pytest.raises(EndcastError) as caught:
        parse_config(text)
    assert said in str(caught.value) and "docs/deploying.md" in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: pathlib.Path) -> None:
    (tmp_path / "fleet.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(EndcastError, match="not UTF-8"):
        read_config(tmp_path / "fleet.toml")
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path / "none.toml")


def test_the_documented_file_is_read_and_every_key_is_documented() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    config = parse_config(example)
    assert config.pools[0].size == 9
    tables = {"listen": config.listen, "limits": config.limits, "health": config.health, "log": config.log}
    names = [f"{table}.{name}" for table, value in tables.items() for name in value.__struct_fields__]
    names += [f"pools.{name}" for name in config.pools[0].__struct_fields__]
    assert [name for name in names if f"`{name}`" not in page] == []
