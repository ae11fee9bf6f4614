"""The sampling lens: looks at how the tokens of a stored reply were chosen, and branches a reply at one of them."""

from __future__ import annotations

import base64
import zlib
from collections import OrderedDict
from dataclasses import dataclass

from app.domain.text import clean_text
from app.errors import EngineUnavailable, InvalidInput
from app.store.chat.turn_contexts import StoredReply, TurnContexts
from app.turns.engine_requests import EngineRequests
from app.turns.live_turn_factory import LiveTurnFactory
from app.turns.turn_requests import TurnRequest, branched
from engine import EngineError, InspectedRow, PreparedPrompt, TokenLogprobs

MAX_KEPT = 32  # computed lenses, of all users
NO_SCORES = "The model produced no usable scores for this reply. Its weights may be damaged."


@dataclass(frozen=True, slots=True)
class LensSettings:
    """The sampling parameters of a reply, completed with the model's own."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


@dataclass(frozen=True, slots=True)
class LensToken:
    """A token of a reply. Probabilities are natural logarithms."""

    id: int
    text: str
    logprob: float  #: under the model's own distribution
    kept_logprob: float | None  #: under the settings; null: they would remove it
    entropy: float  #: of the model's own distribution, in nats
    num_kept: int  #: tokens that the settings leave to choose from


@dataclass(frozen=True, slots=True)
class LensView:
    """How the tokens of a reply were chosen."""

    model: str  #: that computed this
    settings: LensSettings
    approximate: bool  #: another model wrote the reply, or its tokens are not stored: the text was tokenized again
    tokens: tuple[LensToken, ...]


@dataclass(frozen=True, slots=True)
class LensAlternative:
    """A token that could have stood in the place of another."""

    id: int
    text: str
    logprob: float
    kept_logprob: float | None
    removed_by: str | None  #: the parameter that removed it


@dataclass(frozen=True, slots=True)
class LensRow:
    """All scores of one place, with what the settings do to them before the temperature."""

    #: base64 of a zlib stream: the logits less ``highest`` as float16, little-endian; then, if tokens are forbidden,
    #: a bit for each token id, lowest first
    data: str
    vocab_size: int
    highest: float  #: the highest logit
    has_forbidden: bool  #: the bits are there
    counts: tuple[tuple[int, int], ...]  #: for the penalties: tokens so far, and how often each is in the reply
    bias: tuple[tuple[int, float], ...]  #: added to logits


@dataclass(frozen=True, slots=True)
class LensChoice:
    """The choice of one token."""

    token: LensToken
    alternatives: tuple[LensAlternative, ...]  #: the likeliest under the model's own distribution, likeliest first
    row: LensRow


class Lens:
    """Looks into stored replies of users, with one prefill each, in the background of replies."""

    def __init__(self, contexts: TurnContexts, factory: LiveTurnFactory, requests: EngineRequests) -> None:
        self._contexts = contexts
        self._factory = factory
        self._requests = requests
        self._kept: OrderedDict[tuple[str, ...], LensView] = OrderedDict()

    async def view(self, user_id: str, message_id: str) -> LensView:
        """Returns all tokens of a reply.

        Raises:
            NotFound: the message is missing or another user's.
            InvalidInput: it is no reply, or has no text.
            Conflict: it is still being written.
            ContextTooLong: the model does not read that much.
            NotSupported: the engine does not report probabilities.
            TooManyRequests: the user has reached a limit.
            EngineUnavailable, Overloaded: the engine takes no request, or failed.
        """
        return (await self._view(user_id, message_id))[1]

    async def choice(self, user_id: str, message_id: str, index: int) -> LensChoice:
        """Returns the choice of one token, with its alternatives. Raises as :meth:`view`.

        Args:
            index: of the token, as in :attr:`LensView.tokens`.
        """
        reply = await self._reply(user_id, message_id)
        prepared = await self._factory.prepare_inspection(user_id, reply)
        (scores,) = await self._requests.inspect(user_id, prepared, index)
        if scores.inspection is None or scores.inspection.row is None:
            raise EngineUnavailable(NO_SCORES)
        row = scores.inspection.row
        return LensChoice(
            _token(scores),
            tuple(
                LensAlternative(
                    one.token.token_id, one.token.text, one.token.logprob or 0.0, one.kept_logprob, one.removed_by
                )
                for one in row.alternatives
            ),
            _packed(row),
        )

    async def branch(self, user_id: str, message_id: str, index: int, token_id: int) -> TurnRequest:
        """Returns the request for a reply that begins with this one's tokens before ``index`` and then ``token_id``.

        Raises as :meth:`view`; InvalidInput also if there is no such token, or it cannot stand there.
        """
        reply, view = await self._view(user_id, message_id)
        if reply.reasoning is not None or reply.tool_uses:
            raise InvalidInput("A reply with thinking or calls of tools cannot branch within. Regenerate it instead.")
        if not 0 <= index < len(view.tokens):
            raise InvalidInput(f"The reply has {len(view.tokens)} tokens; there is none at {index}. Count from 0.")
        token_ids = (*(token.id for token in view.tokens[:index]), token_id)
        engine = self._requests.engine
        try:
            text = await engine.detokenize(token_ids)
            spelled = await engine.reply_tokens(text, token_ids)
        except (EngineError, ValueError) as error:
            raise InvalidInput(f"The reply cannot branch with this token: {error}") from error
        if spelled != token_ids or text.endswith("\N{REPLACEMENT CHARACTER}") or clean_text(text) != text:
            raise InvalidInput(
                "The reply cannot go on after this token: it ends the reply, or is only a part of a character. "
                "Choose another."
            )
        return branched(reply, text, token_ids)

    async def _reply(self, user_id: str, message_id: str) -> StoredReply:
        reply = await self._contexts.get_reply(user_id, message_id)
        if not reply.text.strip():
            raise InvalidInput("This reply has no text to look into.")
        return reply

    async def _view(self, user_id: str, message_id: str) -> tuple[StoredReply, LensView]:
        reply = await self._reply(user_id, message_id)
        model = self._model_of(reply)
        key = (user_id, message_id, model, reply.text)  # a reply that is continued has another text
        view = self._kept.get(key)
        if view is None:
            prepared = await self._factory.prepare_inspection(user_id, reply)
            view = _as_view(reply, model, prepared, await self._requests.inspect(user_id, prepared))
            self._kept[key] = view
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return reply, view

    def _model_of(self, reply: StoredReply) -> str:
        return reply.settings.chat_options().adapter or self._requests.engine.info.name


def _as_view(reply: StoredReply, model: str, prepared: PreparedPrompt, scores: tuple[TokenLogprobs, ...]) -> LensView:
    tokens = tuple(map(_token, scores))
    stored = reply.token_ids
    is_own = bool(stored) and reply.model == model and stored == tuple(token.id for token in tokens[-len(stored) :])
    params = prepared.params
    return LensView(
        model,
        LensSettings(**{name: getattr(params, name) for name in LensSettings.__slots__}),
        not is_own,
        tokens,
    )


def _token(scores: TokenLogprobs) -> LensToken:
    inspection, token = scores.inspection, scores.token
    if inspection is None or token.logprob is None:
        raise EngineUnavailable(NO_SCORES)
    return LensToken(
        token.token_id,
        token.text,
        token.logprob,
        inspection.kept_logprob,
        inspection.entropy,
        inspection.num_kept,
    )


def _packed(row: InspectedRow) -> LensRow:
    return LensRow(
        data=base64.b64encode(zlib.compress(row.logits + row.banned)).decode(),
        vocab_size=len(row.logits) // 2,
        highest=row.highest,
        has_forbidden=bool(row.banned),
        counts=row.counts,
        bias=row.bias,
    )
