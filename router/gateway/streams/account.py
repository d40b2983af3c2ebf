"""What a response says, told to the books as it passes: tokens, text, ends; and usage taken out of it."""

from __future__ import annotations

from collections.abc import Callable

from endcast.router.gateway.messages.body import Body
from endcast.router.gateway.routing.dispatch import Dispatcher
from endcast.router.gateway.streams.events import EventSplitter, data_of
from endcast.router.gateway.streams.frames import (
    DONE,
    Choice,
    bears_token,
    count,
    read_frame,
    stamped,
    text_of,
    usage_of,
    without_usage,
)
from endcast.router.gateway.streams.so_far import SoFar, is_marker
from endcast.router.gateway.streams.usual import UsualChunk, usual_chunk
from endcast.router.gateway.tickets import Ticket
from endcast.types import EndReason

#: How an engine's ``finish_reason`` reads; any other is a natural end (a tool call, a content filter).
_ENDS = {"length": EndReason.LENGTH, "abort": EndReason.ABORT, "error": EndReason.ERROR}


class Account:
    """One response. ``strips``: usage was asked for on the router's behalf, and the client does not get it.

    ``so_far`` is told all that was said, and keeps an engine's marker that the answer is to go on elsewhere; without one
    that passes like any other end.
    """

    def __init__(
        self,
        ticket: Ticket,
        dispatcher: Dispatcher,
        body: Body,
        *,
        strips: bool,
        keeps_text: bool,
        clock: Callable[[], float],
        so_far: SoFar | None = None,
    ) -> None:
        self._ticket, self._dispatcher, self._body = ticket, dispatcher, body
        self._core = dispatcher.core
        self._strips, self._clock = strips, clock
        self._reads = self._core.reads
        self._keeps_text = keeps_text
        self._so_far = so_far
        self._say = so_far.say if so_far is not None and not (keeps_text or self._reads) else None
        self._heeds = keeps_text or self._reads or so_far is not None
        self._hurries = so_far is None or not so_far.wants_ids  # usual chunks need not be read in full
        self._splitter = EventSplitter()
        self._moved: dict[int, int] = {}  # answers that went on and the core was not told of yet: events of each
        self._new_text: list[str] = []
        self._all_ended = False  # the event being read ends the last answer
        self.hesitates = False  #: what comes next from the engine is perhaps not simply to be sent on
        self.held = b""  #: the end of the last answer, kept back for what the usage event behind it may add
        self._fingerprint = b"null"
        self.ends: dict[int, EndReason] = {}  #: of answers that ended
        self.texts: dict[int, list[str]] = {}  #: of answers, where kept
        self.tokens: dict[int, int] = {}  #: of answers, as well as they are known
        self.prompt_tokens: int | None = None  #: as the engine told
        self.total_tokens: int | None = None  #: of all answers, as the engine told at the end
        self.first_token_s: float | None = None
        self.done = False  #: ``[DONE]`` came
        self.failed = False  #: the engine told of an error

    @property
    def complete(self) -> bool:
        """Whether nothing more is due: every answer has ended, or the engine has said that it is done or failed."""
        return self.done or self.failed or len(self.ends) >= self._body.choices

    @property
    def given_back(self) -> bool:
        """Whether the engine gave the request back, and what it said of that is kept: nothing more is due from that engine."""
        return self._so_far is not None and self._so_far.awaits

    def release(self) -> bytes:
        """What is kept back, now that nothing is to be added."""
        held, self.held = self.held, b""
        return held

    def pass_on(self) -> bytes:
        """What was kept of an answer that cannot go on after all, to be fed again: it passes now."""
        so_far, self._so_far = self._so_far, None
        return b"" if so_far is None else so_far.take_kept()

    def feed(self, data: bytes) -> bytes:
        """The events that ``data`` completes, as the client gets them; what is incomplete is kept back.

        The books are told once, however many events came together: a stream that lags behind is no faster clock.
        """
        if self._hurries and not self.held and not self._splitter.parts:
            usual = usual_chunk(data)
            if usual is not None:
                chunk, without = usual
                self._go_on_as_usual(chunk)
                return without if self._strips else data
        events = self._splitter.feed(data)
        send = self._take(events[0]) if len(events) == 1 else b"".join([self._take(event) for event in events])
        if self._moved or self._new_text:
            self._tell()
        self.hesitates = self.done or bool(self.held) or self.given_back
        return send

    def _go_on_as_usual(self, chunk: UsualChunk) -> None:
        usage, choice = chunk.usage, chunk.choices[0]
        if self.prompt_tokens is None:
            self._learn_prompt(usage.prompt_tokens)
        answer, tokens = choice.index, usage.completion_tokens
        if tokens > self.tokens.get(answer, 0):
            self.tokens[answer] = tokens
            now_s = self._clock()
            if self.first_token_s is None:
                self.first_token_s = now_s
            if self._core.on_tokens(self._ticket, tokens, now_s, answer, 1):
                self._dispatcher.stepped()
        if self._heeds:
            delta = choice.delta
            if self._say is not None and (delta is None or not (delta.reasoning_content or delta.reasoning)):
                text = choice.text if delta is None else delta.content
                if text:
                    self._say(text)
                return
            self._text(choice, b"")
            self._tell()

    def rest(self) -> bytes:
        """What is left of a stream that has come to its own end, for the client."""
        rest = self._splitter.rest
        kept = self._take(rest) if rest else b""
        self._tell()
        return self.release() + kept

    def whole(self, data: bytes) -> None:
        """An answer that was not streamed."""
        answer = read_frame(data)
        if answer is None:
            return
        self.done = True
        self.failed = answer.is_error
        for choice in answer.choices or ():
            self._end(choice)
            if self._keeps_text:
                self._text(choice, data)
        usage = usage_of(answer)
        if usage is not None:
            self.prompt_tokens, self.total_tokens = count(usage.prompt_tokens), count(usage.completion_tokens)

    def _take(self, event: bytes) -> bytes:
        """Account for an event: its bytes, or those of the end that it lets go, as the client gets them."""
        if self._so_far is not None and self._so_far.kept:
            self._so_far.keep(event)
            return b""
        send = self._read(event)
        if self.held:
            return stamped(self.release(), self._fingerprint) + send
        if self._all_ended and self._strips and not self._body.wants_usage:
            self.held, send = send, b""
        self._all_ended = False
        return send

    def _read(self, event: bytes) -> bytes:
        data = data_of(event)
        if data.strip() == DONE:
            self.done = True
            return event
        frame = read_frame(data) if data else None
        if frame is None:
            return event
        if frame.is_error:
            self.failed = True
        usage = usage_of(frame)
        tokens = None
        if usage is not None:
            prompt, tokens = count(usage.prompt_tokens), count(usage.completion_tokens)
            self._learn_prompt(prompt)
        if not frame.choices:
            if usage is None:
                return event
            self.total_tokens = tokens
            if not self._strips or self._body.wants_usage:
                return event
            self._fingerprint = bytes(frame.system_fingerprint)
            # A usage event is left out; what else an event without choices says stays.
            return b"" if frame.choices is not None and not frame.is_error else without_usage(event, frame)
        if self._so_far is not None and self._so_far.keeps(frame.choices[0]):
            self._count(0, tokens or 0)
            self._so_far.keep(event)
            return b""
        for choice in frame.choices:
            self._go_on(choice, tokens, data)
        return event if usage is None or not self._strips else without_usage(event, frame)

    def _learn_prompt(self, tokens: int | None) -> None:
        if self.prompt_tokens is None and tokens is not None:
            self.prompt_tokens = tokens
            self._core.on_prompt(self._ticket, tokens)

    def _count(self, answer: int, tokens: int) -> None:
        """``answer`` has ``tokens`` by now, if that is more than it had."""
        if tokens > self.tokens.get(answer, 0):
            self.tokens[answer] = tokens
            self._moved[answer] = self._moved.get(answer, 0) + 1

    def _go_on(self, choice: Choice, told: int | None, data: bytes) -> None:
        answer = _index(choice)
        self._count(answer, told if told is not None else self.tokens.get(answer, 0) + bears_token(choice))
        if self._heeds:
            self._text(choice, data)
        if choice.finish_reason is not None:
            self._end(choice)
            self._tell()
            self._core.on_answer_end(self._ticket, answer)
            self._all_ended = len(self.ends) >= self._body.choices

    def _tell(self) -> None:
        """Tell the core what has come since the last time: tokens, and the text that they are."""
        if self._moved:
            now_s, new_step = self._clock(), False
            if self.first_token_s is None:
                self.first_token_s = now_s
            for answer, events in self._moved.items():
                new_step |= self._core.on_tokens(self._ticket, self.tokens[answer], now_s, answer, events)
            self._moved.clear()
            if new_step:
                self._dispatcher.stepped()
        if self._new_text:
            self._core.on_text(self._ticket, "".join(self._new_text))
            self._new_text.clear()

    def _text(self, choice: Choice, data: bytes) -> None:
        answer, text = _index(choice), text_of(choice)
        if self._so_far is not None:
            self._so_far.hear(choice, text, data)
        if not text:
            return
        if self._keeps_text:
            self.texts.setdefault(answer, []).append(text)
        if self._reads and answer == 0:
            self._new_text.append(text)

    def _end(self, choice: Choice) -> None:
        answer = _index(choice)
        if choice.finish_reason is None:
            return
        end = _ENDS.get(str(choice.finish_reason), EndReason.STOP)
        self.ends[answer] = EndReason.UNFINISHED if is_marker(choice) else end


def _index(choice: Choice) -> int:
    """Which answer a choice belongs to."""
    return choice.index if type(choice.index) is int else 0
