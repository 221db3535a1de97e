"""What is known of one admitted request: its text, its end, and what to charge for it. No I/O.

It turns an engine's events into text or into the error that its caller gets.
"""

import logging
from typing import Final, assert_never

from engine.protocol import Failed, Finished, FinishReason, Refused, TokenDelta, Usage
from gateway.engines.stream import EngineLost, EngineStream, Interrupted, StreamEvent
from gateway.errors import DeadlineExceeded, InternalError, ServerOverloaded
from gateway.extension import Extension
from gateway.quotas.refusals import limit_name
from gateway.quotas.reservation import Reservation
from gateway.requests.refusals import error_of
from gateway.text.transcript import Transcript
from gateway.usage.outcome import Outcome

logger = logging.getLogger(__name__)

NOTHING_USED: Final = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


class Answer:
    """What is known of one admitted request. `outcome` is what to settle, were it to end now."""

    def __init__(
        self,
        reservation: Reservation,
        stream: EngineStream,
        transcript: Transcript,
        extension: Extension,
        *,
        prompt_param: str,
    ) -> None:
        self.reservation = reservation
        self.stream = stream
        self.transcript = transcript
        self.extension = extension
        self.reason: FinishReason | None = None
        self.outcome = Outcome.CANCELLED  # whoever leaves early leaves without a word
        self._prompt_param = prompt_param
        self._engine_usage: Usage | None = None
        self._num_unread_tokens = 0  # that came after the answer was over

    def num_tokens_until_look(self, *, is_streamed: bool) -> int:
        """How many tokens may come before somebody must look at them.

        Nobody reads an answer in parts that is not streamed, but stop strings and payment need to be seen to.
        """
        if is_streamed or self.transcript.has_stops:
            return 1
        return self.extension.num_tokens_until_due(self.transcript.num_tokens)

    @property
    def usage(self) -> Usage:
        """What to charge: the engine's count, less what ran past a stop string; without one, what arrived."""
        num_tokens = self.transcript.num_tokens + self._num_unread_tokens
        num_prompt = len(self.stream.request.prompt_ids) if num_tokens else 0
        counted = self._engine_usage or Usage(num_prompt, 0, num_tokens)
        if not self.transcript.stopped:
            return counted
        return Usage(counted.prompt_tokens, counted.cached_tokens, self.transcript.num_tokens)

    @property
    def limited_by(self) -> str | None:
        """The limit that ended the answer, if one did."""
        if self.reason is not FinishReason.LENGTH:
            return None
        capped_by = self.reservation.capped_by
        return self.extension.ended_by or (None if capped_by is None else limit_name(capped_by))

    def time_out(self) -> DeadlineExceeded:
        """Ends it because its time is over; the error to raise."""
        self.outcome = Outcome.DEADLINE
        return DeadlineExceeded("The request's time ran out before its answer was whole.")

    def absorb(self, events: list[StreamEvent]) -> str:
        """Takes in events; the text that they bring. Raises GatewayError when one of them ends the answer."""
        texts = []
        for event in events:
            match event:
                case TokenDelta():
                    texts.append(self._add(event))
                case Finished():
                    texts.append(self._finish(event))
                case _:
                    self._break_off(event)
        return "".join(texts)

    def note_usage(self, events: list[StreamEvent]) -> None:
        """Takes in only what the engine says was used; the answer itself is over."""
        for event in events:
            if isinstance(event, Finished | Failed):
                self._engine_usage = event.usage
            elif isinstance(event, Refused):
                self._engine_usage = NOTHING_USED
            elif isinstance(event, TokenDelta):
                self._num_unread_tokens += len(event.token_ids)

    def _add(self, delta: TokenDelta) -> str:
        text = self.transcript.add(delta.token_ids)
        if self.transcript.stopped:
            self.reason, self.outcome = FinishReason.STOP, Outcome.FINISHED
        return text

    def _finish(self, finished: Finished) -> str:
        self._engine_usage = finished.usage
        if self.transcript.stopped:
            return ""
        match finished.reason:
            case FinishReason.STOP | FinishReason.LENGTH:
                self.reason, self.outcome = finished.reason, Outcome.FINISHED
                return self.transcript.finish()
            case FinishReason.DEADLINE:
                raise self.time_out()
            case FinishReason.CANCELLED:
                self.outcome = Outcome.FAILED
                raise ServerOverloaded("The engine gave the request up.")
            case FinishReason.ERROR:
                self.outcome = Outcome.FAILED
                raise InternalError("The engine could not compute the answer.")
            case _:
                assert_never(finished.reason)

    def _break_off(self, event: Refused | Failed | EngineLost | Interrupted) -> None:
        self.note_usage([event])
        self.outcome = Outcome.FAILED
        match event:
            case Refused():
                self.outcome = Outcome.REFUSED
                raise error_of(event, prompt_param=self._prompt_param)
            case Failed():
                logger.error("engine failed on %s: %s", event.id, event.error)
                raise InternalError("The engine could not compute the answer.")
            case EngineLost():
                raise ServerOverloaded("The engine that served this request was lost.")
            case Interrupted():
                raise ServerOverloaded("The server is shutting down.")
            case _:
                assert_never(event)
