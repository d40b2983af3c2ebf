"""Routing policies by name; a new one is one file here and one line below."""

from __future__ import annotations

from collections.abc import Callable

from endcast.registry import Registry
from endcast.router.policy import Policy, PolicySettings

_HERE = "endcast.router.policies"

POLICIES: Registry[Callable[[PolicySettings], Policy]] = Registry(
    "policy",
    (
        ("round_robin", f"{_HERE}.round_robin:RoundRobin"),
        ("random", f"{_HERE}.random_worker:RandomWorker"),
        ("join_shortest_queue", f"{_HERE}.join_shortest_queue:JoinShortestQueue"),
        ("power_of_two", f"{_HERE}.power_of_two:PowerOfTwo"),
        ("least_kv", f"{_HERE}.least_kv:LeastKv"),
        ("vllm_dp", f"{_HERE}.vllm_dp:VllmDp"),
        ("length_bucket", f"{_HERE}.length_bucket:LengthBucket"),
        ("prefix_affinity", f"{_HERE}.prefix_affinity:PrefixAffinity"),
        ("br_0", f"{_HERE}.br_0:BrZero"),
        ("br_h", f"{_HERE}.br_h:BrH"),
        ("br_h_published", f"{_HERE}.br_h_published:BrHPublished"),
        ("olp", f"{_HERE}.olp:Olp"),
        ("olp_br_h", f"{_HERE}.olp_br_h:OlpBrH"),
    ),
)
