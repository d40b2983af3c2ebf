"""Clients of the forecast service: ``Client``, ``AsyncClient``, and the service as a forecaster:
``RemoteForecaster`` stands in for it while it fails, ``ServiceForecaster`` says so.

They need httpx: ``pip install 'endcast[client]'``. ``docs/client.md`` shows them at work.
"""

from __future__ import annotations

from endcast.client.aio import AsyncClient
from endcast.client.attempts import Options
from endcast.client.errors import CallRefused, ClientError, ServiceUnavailable, UnexpectedAnswer
from endcast.client.remote import RemoteForecaster, RemoteStream
from endcast.client.retry import NO_RETRIES, RetryPolicy
from endcast.client.service import ServiceForecaster, service_forecaster
from endcast.client.sync import Client
from endcast.serving.streams.schema import Asked

__all__ = [
    "NO_RETRIES",
    "Asked",
    "AsyncClient",
    "CallRefused",
    "Client",
    "ClientError",
    "Options",
    "RemoteForecaster",
    "RemoteStream",
    "RetryPolicy",
    "ServiceForecaster",
    "ServiceUnavailable",
    "UnexpectedAnswer",
    "service_forecaster",
]
