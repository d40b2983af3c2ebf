"""All modules that offer routes: one line adds one, to the app and to the OpenAPI document."""

from __future__ import annotations

from endcast.serving.api.endpoints import RouteModule
from endcast.serving.bundles import routes as routes_bundles
from endcast.serving.forecasts import routes as routes_forecasts
from endcast.serving.metrics import routes as routes_metrics
from endcast.serving.outcomes import routes as routes_outcomes
from endcast.serving.shadow import routes as routes_shadow
from endcast.serving.status import routes as routes_status
from endcast.serving.streams import routes as routes_streams

ROUTE_MODULES: tuple[RouteModule, ...] = (
    routes_forecasts,
    routes_streams,
    routes_bundles,
    routes_metrics,
    routes_outcomes,
    routes_shadow,
    routes_status,
)
