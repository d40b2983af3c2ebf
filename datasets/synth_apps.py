"""The made-up fleet behind a synthetic log: models, kinds of tasks, and the apps that send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

#: Model → how much longer than usual its answers are, and seconds a token.
MODELS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"atlas-8b": (0.8, 0.012), "atlas-70b": (1.0, 0.035), "sage-mini": (0.6, 0.010), "sage-pro": (1.4, 0.030)}
)
CONTEXT_LIMIT = 16_384


@dataclass(frozen=True)
class Kind:
    """A kind of task. The natural length of its answers is log-logistic, ``S(t) = 1/(1 + (t/scale)^shape)``.

    ``tokens`` is the scale, for each thing asked for where ``counts`` lists how many ("list 10 …", "in 3 sentences").
    A small ``shape`` means a heavy tail: the k-th moment is finite only for ``shape > k``.
    """

    name: str
    tokens: float
    shape: float
    counts: tuple[int, ...] = (1,)


KINDS = (
    Kind("list", 22.0, 5.0, counts=(3, 5, 7, 10, 15, 20)),
    Kind("sentences", 24.0, 6.0, counts=(1, 2, 3, 5, 8)),
    Kind("brief", 9.0, 2.5),
    Kind("code", 220.0, 2.2),
    Kind("json", 45.0, 4.0),
    Kind("open", 260.0, 1.7),
)
KIND_INDEX = MappingProxyType({kind.name: i for i, kind in enumerate(KINDS)})


@dataclass(frozen=True)
class App:
    """Who sends requests, and how. ``share`` of all requests, ``turns`` a session in the mean (geometric),
    ``new_tokens`` the median of a turn's own prompt (log-normal), ``kinds`` and ``caps`` value → probability (what is
    left over has no cap), ``abort_rate`` the hazard per token that the client leaves, ``error_rate`` per request."""

    name: str
    share: float
    tenants: int
    turns: float
    system_tokens: int
    new_tokens: int
    kinds: Mapping[str, float]
    models: Mapping[str, float]
    caps: Mapping[int, float]
    abort_rate: float = 0.0
    error_rate: float = 0.002
    think_s: float = 20.0
    languages: Mapping[str, float] = field(default_factory=lambda: {"en": 1.0})
    parameters: str = "{}"
    chat: bool = True


#: Clients leave in two of the five apps; three of them cap their answers.
APPS = (
    App(
        name="chat",
        share=0.40,
        tenants=12,
        turns=3.0,
        system_tokens=120,
        new_tokens=40,
        kinds={"open": 0.4, "list": 0.25, "sentences": 0.2, "brief": 0.1, "code": 0.05},
        models={"atlas-70b": 0.5, "sage-pro": 0.3, "sage-mini": 0.2},
        caps={1024: 0.3},
        abort_rate=5e-4,
        languages={"en": 0.55, "zh": 0.2, "es": 0.15, "de": 0.1},
        parameters='{"stream":true,"temperature":0.7}',
    ),
    App(
        name="code",
        share=0.20,
        tenants=6,
        turns=2.5,
        system_tokens=600,
        new_tokens=350,
        kinds={"code": 0.8, "open": 0.2},
        models={"sage-pro": 0.7, "atlas-70b": 0.3},
        caps={2048: 0.5},
        abort_rate=1e-3,
        parameters='{"stream":true,"temperature":0.2}',
    ),
    App(
        name="extract",
        share=0.15,
        tenants=5,
        turns=1.0,
        system_tokens=300,
        new_tokens=500,
        kinds={"json": 1.0},
        models={"atlas-8b": 0.8, "sage-mini": 0.2},
        caps={512: 1.0},
        languages={"en": 0.7, "de": 0.3},
        parameters='{"response_format":{"type":"json_object"},"temperature":0}',
        chat=False,
    ),
    App(
        name="summarise",
        share=0.10,
        tenants=4,
        turns=1.0,
        system_tokens=80,
        new_tokens=1500,
        kinds={"sentences": 0.7, "list": 0.3},
        models={"atlas-8b": 0.5, "atlas-70b": 0.5},
        caps={128: 0.4, 256: 0.2},
        languages={"en": 0.6, "es": 0.2, "zh": 0.2},
        parameters='{"temperature":0.3}',
        chat=False,
    ),
    App(
        name="agent",
        share=0.15,
        tenants=3,
        turns=6.0,
        system_tokens=1400,
        new_tokens=200,
        kinds={"json": 0.7, "open": 0.2, "code": 0.1},
        models={"atlas-70b": 0.6, "sage-pro": 0.4},
        caps={},
        think_s=1.5,
        error_rate=0.006,
        parameters='{"stream":true,"tool_choice":"auto","tools":[{"type":"function","function":{"name":"search"}}]}',
    ),
)
