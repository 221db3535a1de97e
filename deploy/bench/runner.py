"""Carries a load to a server and notes what came back. Effects only: it decides nothing but when to sleep."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import assert_never

from deploy.bench.prompts import PromptKind, PromptMaker
from deploy.bench.records import OnRecord, RequestRecord
from deploy.bench.server import Answer, Server, request_body
from deploy.bench.workload import ClosedLoad, Conversation, Load, OpenLoad, Turn


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How requests are written, the same for all of a run."""

    model: str
    prompts: PromptMaker
    prompt_kind: PromptKind
    is_exact: bool
    timeout_seconds: float


class Run:
    """One load on one server. `records` grow while it is under way."""

    def __init__(self, server: Server, asking: Asking, on_record: OnRecord) -> None:
        self.records: list[RequestRecord] = []
        self._server = server
        self._asking = asking
        self._on_record = on_record
        self._began_at = 0.0

    async def carry_out(self, load: Load) -> None:
        """Until every request has its end."""
        self._began_at = time.perf_counter()
        match load:
            case OpenLoad():
                await self._open(load)
            case ClosedLoad():
                await self._closed(load)
            case _:
                assert_never(load)

    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._began_at

    async def _open(self, load: OpenLoad) -> None:
        """Arrivals never wait for answers. A body is written before its time, so that it leaves on time."""
        async with asyncio.TaskGroup() as under_way:
            for conversation in sorted(load.conversations, key=lambda each: each.at_seconds):
                first_prompt = self._prompt(conversation, conversation.turns[0], "")
                await asyncio.sleep(max(0.0, conversation.at_seconds - self.seconds()))
                under_way.create_task(self._converse(conversation, first_prompt, conversation.at_seconds))

    async def _closed(self, load: ClosedLoad) -> None:
        waiting = iter(load.conversations)
        async with asyncio.TaskGroup() as workers:
            for _ in range(load.concurrency):
                workers.create_task(self._work(waiting))

    async def _work(self, waiting: Iterator[Conversation]) -> None:
        for conversation in waiting:
            first_prompt = self._prompt(conversation, conversation.turns[0], "")
            await self._converse(conversation, first_prompt, self.seconds())

    async def _converse(
        self, conversation: Conversation, first_prompt: list[int] | str, due_at: float
    ) -> None:
        """All turns in order; one that fails is the last."""
        prompt = first_prompt
        for turn, next_turn in pairwise([*conversation.turns, None]):
            assert turn is not None
            answer = await self._ask(conversation, turn, prompt)
            record = self._record(conversation, answer, due_at)
            self.records.append(record)
            self._on_record(record)
            if next_turn is None or not record.is_complete:
                return
            due_at = self.seconds() + next_turn.think_seconds
            await asyncio.sleep(next_turn.think_seconds)
            prompt = self._prompt(conversation, next_turn, f"{prompt}{answer.text}")

    async def _ask(self, conversation: Conversation, turn: Turn, prompt: list[int] | str) -> Answer:
        body = request_body(
            prompt,
            model=self._asking.model,
            num_output_tokens=turn.num_output_tokens,
            is_exact=self._asking.is_exact,
            is_offline=conversation.is_offline,
        )
        return await self._server.complete(
            body,
            conversation.tenant,
            leaves_after_tokens=turn.leaves_after_tokens,
            timeout_seconds=self._asking.timeout_seconds,
        )

    def _prompt(self, conversation: Conversation, turn: Turn, history: str) -> list[int] | str:
        """What is built on an answer is text: servers tell the answer's words, not its ids."""
        if len(conversation.turns) == 1 and self._asking.prompt_kind is PromptKind.IDS:
            return self._asking.prompts.ids(turn.new_segments)
        return history + self._asking.prompts.text(turn.new_segments)

    def _record(self, conversation: Conversation, answer: Answer, due_at: float) -> RequestRecord:
        return RequestRecord(
            tenant=conversation.tenant.name,
            due_at=due_at,
            started_at=answer.started_at - self._began_at,
            ended_at=answer.ended_at - self._began_at,
            token_times_at=[at - self._began_at for at in answer.token_times],
            num_prompt_tokens=answer.num_prompt_tokens,
            num_completion_tokens=answer.num_completion_tokens,
            num_cached_tokens=answer.num_cached_tokens,
            error=answer.error,
            is_cancelled=answer.is_cancelled,
            is_offline=conversation.is_offline,
        )
