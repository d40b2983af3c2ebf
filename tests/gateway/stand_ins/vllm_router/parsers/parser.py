"""A stand-in for production-stack's module of the same name: the options that the test gives."""

from __future__ import annotations

import argparse


def parse_args() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--root-path", default="")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--service-discovery", choices=("static", "k8s"), required=True)
    parser.add_argument("--static-backends", required=True)
    parser.add_argument("--static-models", required=True)
    parser.add_argument("--routing-logic", choices=("roundrobin", "session"), required=True)
    parser.add_argument("--max-instance-failover-reroute-attempts", type=int, default=0)
    return parser.parse_args()
