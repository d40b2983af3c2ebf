"""Serving the bundle of a folder, with one process or several."""

from __future__ import annotations

import socket
from pathlib import Path

from endcast.serving.app import build_app
from endcast.serving.bundles.holder import BundleHolder, load_bundle
from endcast.serving.bundles.reload import Reloader
from endcast.serving.context import Context
from endcast.serving.metrics.instruments import Metrics
from endcast.serving.operations.settings import Settings
from endcast.serving.processes.run import serve_until_stopped
from endcast.serving.processes.supervisor import supervise


def folder_context(folder: Path, settings: Settings) -> Context:
    """A context that serves the bundle of a folder, and can load another one from there; ``BundleError`` if it must be
    refused."""
    context = Context(settings, Metrics(), BundleHolder(load_bundle(folder, settings)))
    context.reloader = Reloader(context, folder)
    context.lives.append(context.reloader.life)
    return context


def serve_folder(context: Context, listening: socket.socket) -> None:
    """Serve what ``folder_context`` made, with as many processes as are set, until SIGTERM or SIGINT.

    Several processes each load the bundle on their own; the context's own one was its check.
    """
    settings, reloader = context.settings, context.reloader
    if settings.processes == 1 or reloader is None:
        serve_until_stopped(build_app(context), listening, settings)
    else:
        supervise(reloader.folder, settings, listening)
