"""All modules that offer routes: one line adds one, to the app and to the OpenAPI document."""

from __future__ import annotations

from endcast.serving import routes_bundle, routes_forecasts, routes_metrics
from endcast.serving.endpoints import RouteModule

ROUTE_MODULES: tuple[RouteModule, ...] = (routes_forecasts, routes_bundle, routes_metrics)
