"""``python -m endcast.router.gateway.mock``: a mock fleet on loopback, and a ``fleet.toml`` for it on standard output."""

from __future__ import annotations

import argparse
import asyncio

from endcast.router.gateway.mock.engine import MockSettings
from endcast.router.gateway.mock.server import MockFleet


async def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--prefill", type=int, default=0, help="further engines that compute prompts for the workers")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--output-tokens", type=int, default=64, help="of requests without max_tokens")
    told = parser.parse_args()
    settings = MockSettings(
        workers=told.prefill + told.workers,
        slots=told.slots,
        t_fixed_s=told.step_ms / 1000,
        output_tokens=told.output_tokens,
    )
    async with MockFleet(settings) as fleet:
        listed = [f'  {{ url = "{url}" }},\n' for url in fleet.urls]
        print(f"[[pools]]\nslots = {settings.slots}\nworkers = [\n{''.join(listed[told.prefill :])}]", flush=True)
        if told.prefill:
            print(f"prefill = [\n{''.join(listed[: told.prefill])}]", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
