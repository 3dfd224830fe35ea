"""Lowers a request into vLLM's own, through vLLM's own validation, whose refusals get our fields' names.

Never text: prompts are token ids, and stop strings are not told to the engine, which has no detokenizer.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vllm import SamplingParams as VllmSamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.input_processor import InputProcessor

from engine.backends.vllm.adapters import Adapter, Adapters
from engine.errors import InvalidRequestError, UnsupportedParameterError
from engine.grammar.schema import StructureError
from engine.types import EngineRequest, Grammar, SamplingParams

INT63 = 2**63
GRAMMARS = "guidance"
"""vLLM's structured output backend that is this project's own library."""
PROMPT_FIELDS = {"prompt_token_ids": "prompt"}
SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplingParams))
"""The sampling parameters bear the same names in vLLM."""


class RequestLowering:
    """Checks and lowers for one engine."""

    def __init__(self, processor: InputProcessor, eos_token_ids: frozenset[int], adapters: Adapters) -> None:
        """The ids beside vLLM's own that end a sequence; the adapters that may be named."""
        self._processor = processor
        self._adapters = adapters
        self._eos_token_ids = eos_token_ids

    def lower(self, request: EngineRequest, key: str) -> Any:
        """The `EngineCoreRequest` under this key. `InvalidRequestError` for what vLLM would refuse."""
        _refuse_with_structure(request)
        try:
            params = self._params(request.sampling)
            prompt = tokens_input(list(request.prompt_token_ids), cache_salt=request.cache_salt)
            lowered = self._processor.process_inputs(
                key,
                prompt,
                params,
                ("generate",),
                lora_request=None if request.adapter is None else lora_request(self._adapters.find(request.adapter)),
                priority=self._priority(request.priority),
            )
        except VLLMValidationError as error:
            raise _refusal(str(error.args[0]), error.parameter) from None
        except ValueError as error:
            raise _refusal(str(error), None) from None
        if request.grammar is not None and request.grammar.text:
            # All kinds are one grammar by now, and `accept` had vLLM check it: on the event loop that takes too long.
            lowered.sampling_params.structured_outputs = StructuredOutputsParams(grammar=request.grammar.text)
        return lowered

    def accept(self, grammar: Grammar) -> None:
        """Has vLLM check a compiled grammar. `StructureError`. May take seconds: never on the event loop."""
        try:
            VllmSamplingParams(structured_outputs=StructuredOutputsParams(grammar=grammar.text)).verify(
                self._processor.model_config,
                self._processor.speculative_config,
                self._processor.structured_outputs_config,
                self._processor.tokenizer,
            )
        except ValueError as error:
            raise StructureError(str(error.args[0])) from None

    def _priority(self, priority: int) -> int:
        if priority and self._processor.scheduler_config.policy != "priority":
            raise UnsupportedParameterError(
                "priority", "engine.vllm.scheduling_policy is not 'priority' on this server"
            )
        return priority

    def _params(self, sampling: SamplingParams) -> VllmSamplingParams:
        stops = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids | self._eos_token_ids
        params = VllmSamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=None if sampling.seed is None else sampling.seed % INT63,  # to vLLM, -1 is no seed
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=dict(sampling.logit_bias) or None,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop_token_ids=sorted(stops),
            ignore_eos=sampling.ignore_eos,
            logprobs=sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
            allowed_token_ids=None if sampling.allowed_token_ids is None else sorted(sampling.allowed_token_ids),
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )
        params.all_stop_token_ids.update(self._eos_token_ids)  # none of them before `min_tokens`, ignored or not
        if sampling.bad_words:  # what vLLM makes of its own `bad_words`, which are text
            params._bad_words_token_ids = [list(sequence) for sequence in sampling.bad_words]  # noqa: SLF001
        return params


def lora_request(adapter: Adapter) -> LoRARequest:
    """As vLLM takes it, with each sequence and for the loading."""
    return LoRARequest(adapter.engine_name, adapter.number, adapter.folder)


def _refuse_with_structure(request: EngineRequest) -> None:
    """At a sentence's end vLLM would mask all that the grammar allows, or go on without a grammar."""
    if request.grammar is None:
        return
    reason = f"the vllm engine ends an answer where its structure ({request.grammar.structure.param}) ends"
    for field in ("min_tokens", "ignore_eos"):
        if getattr(request.sampling, field):
            raise UnsupportedParameterError(field, reason)


def _refusal(message: str, named: str | None) -> InvalidRequestError:
    """With the field's name, which vLLM often tells only as the message's first word."""
    word = message.partition(" ")[0]
    param = named or (word if word in SAMPLING_FIELDS else None)
    return InvalidRequestError(message, param=PROMPT_FIELDS.get(param or "", param))
