"""The timer as a process: `python -m tests.benchmarks.gateway.timer_process --first-ms 100`.

It prints one line, {"wire": PORT, "http": PORT}, once both listen, and ends with its standard input.
"""

import argparse
import asyncio
import json

import uvloop

from tests.benchmarks.gateway.child import until_stdin_ends
from tests.benchmarks.gateway.timer import Pace, Timer
from tests.benchmarks.gateway.timer_http import TimerHttp
from tests.benchmarks.gateway.timer_wire import TimerEngine


async def main() -> None:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--first-ms", type=float, default=0.0)
    parser.add_argument("--token-ms", type=float, default=0.0)
    options = parser.parse_args()
    pace = Pace(first_seconds=options.first_ms / 1_000, token_seconds=options.token_ms / 1_000)
    timer = Timer(pace)
    engine = TimerEngine(timer, secret=options.secret)
    await engine.start()
    server = await asyncio.get_running_loop().create_server(
        lambda: TimerHttp(timer), "127.0.0.1", 0, backlog=2_048
    )
    print(json.dumps({"wire": engine.port, "http": server.sockets[0].getsockname()[1]}), flush=True)
    await until_stdin_ends()


if __name__ == "__main__":
    uvloop.run(main())
