"""Moves requests from the queues to engines, as late as possible: while one has room, in fair order.

What happens to a request here reaches its stream as the same events that an engine sends. It knows no text.
"""

import asyncio
from collections import Counter, defaultdict
from typing import Final

import msgspec

from engine.core.lines import Part
from engine.protocol import (
    AdmissionReason,
    Finished,
    FinishReason,
    GenerateRequest,
    Refused,
    RequestClass,
    Usage,
    WaitReason,
)
from gateway.engines.client import EngineClient
from gateway.engines.directory import EngineDirectory
from gateway.engines.stream import EngineStream
from gateway.metrics import GatewayMetrics
from gateway.queues.class_queues import ClassQueues

RETRY_MS: Final = 1_000


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A request in a queue. Times are the loop's."""

    stream: EngineStream
    since: float
    deadline: float
    timeout: asyncio.TimerHandle


class Dispatcher:
    """The queues of this gateway, by model. Call `pump` whenever an engine's room may have changed."""

    def __init__(self, directory: EngineDirectory, metrics: GatewayMetrics, *, max_queued: int) -> None:
        self._directory = directory
        self._metrics = metrics
        self._max_queued = max_queued
        self._num_waiting = dict.fromkeys(RequestClass, 0)
        self._num_shown = dict.fromkeys(RequestClass, 0)
        self._queues: defaultdict[str, ClassQueues[Waiting]] = defaultdict(ClassQueues)
        self._num_by_tenant: Counter[str] = Counter()

    @property
    def num_waiting(self) -> int:
        """Requests in the queues."""
        return sum(self._num_waiting.values())

    def open(self, request: GenerateRequest, *, deadline: float, waiting_timeout_ms: int) -> EngineStream:
        """Hands a request over if nobody waits and there is room, else queues it. `deadline` is a loop time.

        The stream's last event is a Refused when no engine is there, the queues are full or half of them is
        its tenant's, or no engine had room within the waiting time.
        """
        stream = EngineStream(request)
        if not self._directory.serving(request.model):
            self._refuse(
                stream, AdmissionReason.ENGINE_UNHEALTHY, f"No engine serves '{request.model}' right now."
            )
        elif (client := self._waiting_engine(request)) is not None:
            self._submit(stream, client, since=asyncio.get_running_loop().time(), deadline=deadline)
        elif self.num_waiting >= self._max_queued:
            self._refuse(stream, AdmissionReason.QUEUE_FULL, "Too many requests are waiting already.")
        elif self._num_by_tenant[request.tenant] >= (self._max_queued + 1) // 2:
            detail = (
                f"{self._num_by_tenant[request.tenant]} requests of your organization are waiting already, "
                "as many as one may have."
            )
            self._refuse(stream, AdmissionReason.TENANT_QUEUE_FULL, detail)
        else:
            self._push(stream, deadline, waiting_timeout_ms)
            self._pump_model(request.model)
        return stream

    def cancel(self, stream: EngineStream) -> None:
        """Ends a request wherever it is, without waiting; its stream still gets its last event."""
        waiting = self._queues[stream.request.model].remove(stream.request.id)
        if waiting is not None:
            self._note_left(waiting)
            self._show_waiting()
            stream.push(Finished(stream.request.id, FinishReason.CANCELLED, Usage(0, 0, 0)))
        elif not stream.ended:
            for client in self._directory.clients:
                client.cancel(stream.request.id)

    def extend(self, stream: EngineStream, *, paid_tokens: int, is_last: bool) -> None:
        """Tells the engine that so much output is paid for; with `is_last`, that no more will be."""
        for client in self._directory.clients:
            client.extend(stream.request.id, paid_tokens=paid_tokens, is_last=is_last)

    def pump(self) -> None:
        """Hands over what there is room for, and refuses what no engine is left for."""
        self._metrics.engines_connected.set(sum(client.connected for client in self._directory.clients))
        for model in [model for model, queues in self._queues.items() if queues]:
            self._pump_model(model)

    def _waiting_engine(self, request: GenerateRequest) -> EngineClient | None:
        """An engine with room for a request that has nobody before it."""
        if self._queues[request.model]:
            return None
        return self._directory.with_room(request.model, request.request_class)

    def _pump_model(self, model: str) -> None:
        queues = self._queues[model]
        while (request_class := queues.next_class()) is not None:
            client = self._directory.with_room(model, request_class)
            if client is None:
                self._let_newcomers_in(model, request_class)
                break
            self._hand_over(queues.pop(request_class), client)
        if queues and not self._directory.serving(model):
            self._refuse_all(queues, f"The engine that serves '{model}' was lost.")
        self._show_waiting()

    def _let_newcomers_in(self, model: str, request_class: RequestClass) -> None:
        """The window is full, but not of those who have nothing at an engine: each may have one beyond it."""
        queues = self._queues[model]
        for client in self._directory.serving(model):
            tenants = queues.tenants(request_class)
            for tenant in client.newcomers(request_class, tenants):  # a list: queues change meanwhile
                waiting = queues.head(request_class, tenant)
                queues.remove(waiting.stream.request.id)
                self._hand_over(waiting, client)

    def _hand_over(self, waiting: Waiting, client: EngineClient) -> None:
        self._note_left(waiting)
        self._submit(waiting.stream, client, since=waiting.since, deadline=waiting.deadline)

    def _submit(self, stream: EngineStream, client: EngineClient, *, since: float, deadline: float) -> None:
        """Writes into the request how long it has waited and how long it still has, and sends it."""
        now = asyncio.get_running_loop().time()
        self._metrics.admission_wait.labels(stream.request.request_class).observe(now - since)
        stream.request = msgspec.structs.replace(
            stream.request,
            queued_ms=int((now - since) * 1000),
            timeout_ms=max(1, int((deadline - now) * 1000)),
        )
        client.submit(stream)

    def _push(self, stream: EngineStream, deadline: float, waiting_timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        request = stream.request
        waiting = Waiting(
            stream=stream,
            since=now,
            deadline=deadline,
            timeout=loop.call_at(now + waiting_timeout_ms / 1000, self._time_out, stream),
        )
        self._queues[request.model].push(
            request_class=request.request_class,
            tenant=request.tenant,
            key=request.id,
            item=waiting,
            cost=len(request.prompt_ids)
            + (request.paid_tokens or request.sampling.max_tokens),  # as promised
            weight=request.weight,
            within=(
                Part(request.project, request.project_weight),
                Part(request.key, request.key_weight),
            ),
        )
        self._num_waiting[request.request_class] += 1
        self._num_by_tenant[request.tenant] += 1

    def _note_left(self, waiting: Waiting) -> None:
        """It is in the queues no longer."""
        waiting.timeout.cancel()
        request = waiting.stream.request
        self._num_waiting[request.request_class] -= 1
        self._num_by_tenant[request.tenant] -= 1
        if not self._num_by_tenant[request.tenant]:
            del self._num_by_tenant[request.tenant]

    def _time_out(self, stream: EngineStream) -> None:
        waiting = self._queues[stream.request.model].remove(stream.request.id)
        if waiting is not None:
            self._note_left(waiting)
            self._show_waiting()
            detail = "No engine had room in time."
            self._refuse(stream, AdmissionReason.WAITING_TIMEOUT, detail, WaitReason.MAX_NUM_SEQS)

    def _refuse_all(self, queues: ClassQueues[Waiting], detail: str) -> None:
        for waiting in list(queues):
            queues.remove(waiting.stream.request.id)
            self._note_left(waiting)
            self._refuse(waiting.stream, AdmissionReason.ENGINE_UNHEALTHY, detail)

    def _refuse(
        self,
        stream: EngineStream,
        reason: AdmissionReason,
        detail: str,
        wait_reason: WaitReason | None = None,
    ) -> None:
        stream.push(Refused(stream.request.id, reason, detail, RETRY_MS, wait_reason))

    def _show_waiting(self) -> None:
        for request_class, num_waiting in self._num_waiting.items():
            if num_waiting != self._num_shown[request_class]:
                self._num_shown[request_class] = num_waiting
                self._metrics.queued.labels(request_class).set(num_waiting)
