"""Who reads a request's events is woken when there is something to look at, and not before."""

import asyncio

from engine.protocol import Finished, FinishReason, TokenDelta, Usage
from gateway.engines.stream import EngineStream, Interrupted
from tests.builders.engine_messages import generate_request

DELTA = TokenDelta("request", (7,))
END = Finished("request", FinishReason.LENGTH, Usage(3, 0, 2))


def stream() -> EngineStream:
    return EngineStream(generate_request())


async def is_waiting(task: "asyncio.Task[object]") -> bool:
    for _ in range(3):
        await asyncio.sleep(0)
    return not task.done()


def soon() -> float:
    return asyncio.get_running_loop().time() + 5


async def test_a_reader_that_wants_many_tokens_sleeps_until_they_are_there() -> None:
    read = stream()
    reader = asyncio.create_task(read.take(until=soon(), num_tokens=3))
    for _ in range(2):
        read.push(DELTA)
        assert await is_waiting(reader)
    read.push(DELTA)
    assert await reader == [DELTA] * 3


async def test_joined_deltas_count_as_many_as_their_tokens() -> None:
    """An engine waited for payment in vain: its tokens had come in fewer deltas than were awaited."""
    read = stream()
    reader = asyncio.create_task(read.take(until=soon(), num_tokens=3))
    joined = TokenDelta("request", (7, 8, 9))
    read.push(joined)
    assert await reader == [joined]


async def test_the_end_wakes_a_reader_however_many_tokens_it_wants() -> None:
    read = stream()
    reader = asyncio.create_task(read.take(until=soon(), num_tokens=100))
    read.push(DELTA)
    assert await is_waiting(reader)
    read.push(END)
    assert await reader == [DELTA, END]
    assert read.ended


async def test_an_interruption_wakes_it_and_is_no_end() -> None:
    read = stream()
    reader = asyncio.create_task(read.take(until=soon(), num_tokens=100))
    assert await is_waiting(reader)
    read.push(Interrupted())
    assert await reader == [Interrupted()]
    assert not read.ended


async def test_an_interruption_that_is_there_is_seen_behind_later_tokens() -> None:
    read = stream()
    read.push(Interrupted())
    read.push(DELTA)
    async with asyncio.timeout(1):
        assert await read.take(until=soon(), num_tokens=100) == [Interrupted(), DELTA]


async def test_what_is_there_already_is_not_waited_for() -> None:
    read = stream()
    read.push(DELTA)
    read.push(END)
    assert await read.take(until=soon(), num_tokens=100) == [DELTA, END]


async def test_when_its_time_is_over_it_gets_what_there_is() -> None:
    read = stream()
    read.push(DELTA)
    assert await read.take(until=0, num_tokens=2) == [DELTA]


async def test_a_later_reader_of_single_tokens_is_woken_by_each() -> None:
    read = stream()
    assert await read.take(until=0, num_tokens=100) == []
    reader = asyncio.create_task(read.take(until=soon()))
    assert await is_waiting(reader)
    read.push(DELTA)
    assert await reader == [DELTA]
