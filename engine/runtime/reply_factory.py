"""Makes what follows one reply token by token: its detokenizer, its bans, its grammar, its beams.

Each of them changes with the reply, so that every reply of a request needs its own. Callable from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import InvalidRequestError, ModelLoadError
from engine.execution.beam_stream import BeamStream
from engine.model.loaded_model import LoadedModel
from engine.parameter_table import MAX_LOGPROBS
from engine.runtime.rendered_chat import ReplySyntax
from engine.sampling.beam_search import BeamSearch
from engine.sampling.grammar import AnswerGrammar, ReplyGrammar
from engine.sampling.grammar_compiler import GrammarCompiler
from engine.sampling.ll_tokenizer import make_ll_tokenizer
from engine.sampling.sampler import TokenBan
from engine.sampling_params import SamplingParams
from engine.scheduling.request import Request
from engine.settings import EngineSettings
from engine.text.bad_words import TokenSequenceBan, token_sequences
from engine.text.chat_template import ChatTemplate
from engine.text.detokenizer import Detokenizer
from engine.text.reply_formats.detection import special_token_ids, special_tokens_of
from engine.text.reply_formats.reply_format import ReplyFormat
from engine.text.reply_formats.token_bans import AnswerBan, ThinkingBudget, ThinkingTracker
from engine.text.vocabulary import Vocabulary
from engine.text.word_filter import WordBan, WordLists, read_word_list
from engine.text.word_matching import WordGuard

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class ReplyFactory:
    """Makes the parts of replies of one model.

    Args:
        model: supplies the tokenizer; the weights are not used.
        settings: supplies the forbidden words.
        vocabulary: of the model.
        template: encodes and decodes as prompts are.
        reply_format: the model's.

    Raises:
        ModelLoadError: the list of forbidden words cannot be used.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: EngineSettings,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        reply_format: ReplyFormat,
    ) -> None:
        self.word_lists = _word_lists(vocabulary, settings)
        self.special_tokens = special_tokens_of(reply_format, model.tokenizer)
        special = special_token_ids(model.tokenizer, model.vocab_size)
        self.grammars = GrammarCompiler(self._make_ll_tokenizer, model.vocab_size, special)
        self._vocabulary = vocabulary
        self._tokenizer = model.tokenizer
        self._vocab_size = model.vocab_size
        self._eos_token_ids = model.eos_token_ids
        self._template = template

    def make_beams(
        self, params: SamplingParams, max_tokens: int, stop_token_ids: frozenset[int], syntax: ReplySyntax | None
    ) -> BeamStream | None:
        """Returns the search of a request for beams; None for other requests.

        Raises:
            InvalidRequestError: its parameters cannot be combined with beam search.
        """
        if params.beam_search is None:
            return None
        if params.structured is not None:
            raise InvalidRequestError(
                "tool_choice cannot hold a reply of beam search to a tool. Leave one of them out."
            )
        if syntax is not None and syntax.max_thinking_tokens is not None:
            raise InvalidRequestError("max_thinking_tokens cannot be combined with beam search. Leave it out.")
        search = BeamSearch(params.beam_search, max_tokens=max_tokens, end_token_ids=stop_token_ids)
        limit = min(self._vocab_size, MAX_LOGPROBS)
        if search.num_candidates > limit:
            raise InvalidRequestError(
                f"beam_width must be lower: {params.beam_search.width} beams, which {len(stop_token_ids)} tokens may "
                f"end, need {search.num_candidates} candidates for the next token, of at most {limit}."
            )
        return BeamStream(search, params.n, params.logprobs, self._vocabulary)

    def make_grammar(
        self, request: Request, partial_reply: Sequence[int], syntax: ReplySyntax | None
    ) -> ReplyGrammar | None:
        """Returns what holds a reply to its form; None if it has none.

        Raises:
            InvalidRequestError: the unfinished reply does not fit the form.
        """
        structure = request.params.structured
        if structure is None:
            return None
        grammar = self.grammars.compile(structure)
        if syntax is None or not syntax.is_structure_of_answer:
            return grammar.start(request.id, partial_reply)
        tracker = self._thinking_tracker(partial_reply, syntax)
        if tracker.is_thinking:
            return AnswerGrammar(tracker, lambda: grammar.start(request.id), request.stop_token_ids)
        if syntax.thinking_format is not None and not partial_reply:
            return self.grammars.compile(structure, syntax.thinking_format).start(request.id)
        return grammar.start(request.id, self._answer_tokens(partial_reply, syntax))

    def make_detokenizer(
        self, params: SamplingParams, partial_reply: Sequence[int], syntax: ReplySyntax | None
    ) -> Detokenizer:
        """Returns what turns a reply's tokens into text, thinking and calls."""
        words = self.word_lists.get(params.forbidden_words)
        guard = WordGuard(words.matcher) if words else None
        if syntax is None:
            return Detokenizer(
                self._tokenizer, params.stop, params.min_tokens, guard, partial_reply, stop_regex=params.stop_regex
            )
        return Detokenizer(
            self._tokenizer,
            params.stop,
            params.min_tokens,
            guard,
            partial_reply,
            parser=syntax.make_parser(),
            special_tokens=self.special_tokens,
            stop_in_reasoning=syntax.stop_in_reasoning,
            stop_regex=params.stop_regex,
        )

    def make_bans(self, request: Request, partial_reply: Sequence[int], syntax: ReplySyntax | None) -> list[TokenBan]:
        """Returns the bans of one reply. They follow its text, so each reply needs its own."""
        bans: list[TokenBan] = []
        words = self.word_lists.get(request.params.forbidden_words)
        if words is not None:

            def make_ban(num_before: int) -> TokenBan:
                return WordBan(words, request.max_tokens - num_before, request.stop_token_ids)

            if syntax is None or syntax.stop_in_reasoning:
                bans.append(make_ban(0))
            else:
                bans.append(AnswerBan(self._thinking_tracker(partial_reply, syntax), make_ban))
        if request.params.bad_words:
            encode = self._template.encode_plain
            sequences = {each for word in request.params.bad_words for each in token_sequences(word, encode)}
            # A tokenizer may have more tokens than its model, which never samples the rest.
            bans.append(TokenSequenceBan(each for each in sequences if max(each) < self._vocab_size))
        if syntax is not None and syntax.max_thinking_tokens is not None and syntax.reply_format.thinking_end:
            # A form begins right after the tag; where there is none, the model's blank lines follow.
            end = syntax.reply_format.thinking_end
            if syntax.reply_format.has_channels and not syntax.is_structure_of_answer:
                end = "<|end|>"  # a call follows, not the answer
            closing = self._template.encode_plain(end.rstrip() if request.params.structured else end)
            tracker = self._thinking_tracker(partial_reply, syntax)
            bans.append(ThinkingBudget(tracker, syntax.max_thinking_tokens, closing, self._vocab_size))
        return bans

    def _answer_tokens(self, partial_reply: Sequence[int], syntax: ReplySyntax) -> Sequence[int]:
        """Returns the tokens of an unfinished reply after its thinking."""
        tags = syntax.reply_format.reasoning
        text = self._template.decode(partial_reply)
        if tags is None or not (syntax.is_thinking or text.lstrip().startswith(tags.open.strip())):
            return partial_reply
        return self._template.encode_plain(text.partition(tags.close)[2].lstrip())

    def _thinking_tracker(self, partial_reply: Sequence[int], syntax: ReplySyntax) -> ThinkingTracker:
        parser = syntax.make_parser()
        detokenizer = Detokenizer(
            self._tokenizer, partial_reply=partial_reply, parser=parser, special_tokens=self.special_tokens
        )
        return ThinkingTracker(detokenizer, parser)

    def _make_ll_tokenizer(self) -> LLTokenizer:
        vocabulary, ids = self._vocabulary, range(self._vocab_size)
        special = [token_id for token_id in ids if vocabulary.is_special(token_id)]
        return make_ll_tokenizer(
            [vocabulary.spelling(token_id) for token_id in ids],
            special,
            # The grammar needs a token for the end also where the model knows none.
            sorted(self._eos_token_ids) or special[:1] or [self._vocab_size - 1],
            self._template.encode_plain,
        )


def _word_lists(vocabulary: Vocabulary, settings: EngineSettings) -> WordLists:
    try:
        return WordLists(vocabulary, read_word_list(settings.forbidden_words or ""))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"ENGINE_FORBIDDEN_WORDS cannot be used: {error}.") from error
