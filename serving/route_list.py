"""All modules that offer routes: one line adds one, to the app and to the OpenAPI document."""

from __future__ import annotations

from endcast.serving import routes_bundle, routes_forecasts, routes_metrics, routes_status, routes_streams
from endcast.serving.endpoints import RouteModule
from endcast.serving.outcomes import routes as routes_outcomes
from endcast.serving.outcomes import routes_shadow

ROUTE_MODULES: tuple[RouteModule, ...] = (
    routes_forecasts,
    routes_streams,
    routes_bundle,
    routes_metrics,
    routes_outcomes,
    routes_shadow,
    routes_status,
)
