"""Puts an engine together from its config: model folder, tokenizer, vocabulary, prompt renderer, backend and core.

Never keeps state of a request. A backend is imported here when it is chosen, so that none costs the others its library.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from engine.backends.base import Backend, EngineControls
from engine.backends.vllm import VllmBackend
from engine.config import DEMO_MODEL, EngineConfig
from engine.core import EngineCore
from engine.detokenizer import Vocabulary
from engine.errors import ConfigError, ModelLoadError
from engine.grammar.shared import SharedCompiler
from engine.model import resolve_model
from engine.output.parsers import DEFAULT_TOOL_FAMILY, UnknownParserError, tool_family
from engine.output.parsers.families import OutputFamilies, output_families
from engine.prompt.renderer import PromptRenderer
from engine.supervisor import SupervisionConfig
from engine.tokenizer import Tokenizer
from engine.types import Grammar, ModelLimits

logger = logging.getLogger(__name__)
DEMO_MODEL_NAME = "SmolLM2-135M-Instruct"
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
"""The simulated engine's chat template where the folder has none: there is no model that could mind."""
SIMULATED_CONTEXT = 32_768
"""Context length of the simulated engine where neither the folder nor the config says one, in tokens."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What the server needs of an engine. `core.start()` brings it up."""

    model_name: str
    """The name that clients ask for."""
    model_aliases: frozenset[str]
    """Other names that it answers to."""
    tokenizer: Tokenizer
    renderer: PromptRenderer
    core: EngineCore
    grammars: SharedCompiler
    """Compiles the structures that requests ask for. Its owner closes it when the core is closed."""
    families: OutputFamilies
    """What its answers are read with."""
    controls: EngineControls | None = None
    """Adapters and sleep, of an engine that has them."""

    @property
    def limits(self) -> ModelLimits:
        return self.core.backend.limits


def load_engine(config: EngineConfig) -> Engine:
    """Loads everything but the weights, which `core.start()` does. Blocks; raises `ModelLoadError` with what to do."""
    folder = resolve_model(config.model)
    tokenizer = Tokenizer.from_folder(folder)
    vocabulary = Vocabulary.from_tokenizer(tokenizer.backend)
    if not vocabulary.exact_bytes:
        logger.warning("detokenizer: %s", vocabulary.description)
    backend = _create_backend(config, folder, tokenizer)
    own_name = DEMO_MODEL_NAME if config.model == DEMO_MODEL else Path(config.model).name
    name = config.served_model_name or own_name
    template = tokenizer.chat_template or (PLAIN_TEMPLATE if config.kind == "simulated" else None)
    renderer = PromptRenderer(tokenizer, template, datetime.now, backend.limits.context_length)
    core = EngineCore(backend, vocabulary, _supervision(config))
    grammars = SharedCompiler(vocabulary, lambda: backend.limits, _acceptance(backend))
    aliases = frozenset({config.model, own_name})
    if taken := sorted(config.lora_modules.keys() & (aliases | {name})):
        raise ConfigError(f"engine.lora_modules.{taken[0]}: that is the model's own name")
    controls = backend.controls if isinstance(backend, VllmBackend) else None
    families = _families(config, tokenizer, template)
    return Engine(name, aliases, tokenizer, renderer, core, grammars, families, controls)


def _families(config: EngineConfig, tokenizer: Tokenizer, template: str | None) -> OutputFamilies:
    """Of all the model's templates, since it may have one of its own for conversations with tools."""
    written = "\n".join([template or "", *tokenizer.chat_templates.values()])
    try:
        families = output_families(written, config.tool_parser, config.reasoning_parser)
    except UnknownParserError as error:
        raise ConfigError(str(error)) from error
    if families.tools is None and config.tool_parser is None:
        logger.warning("the chat template writes tool calls in a format not known here: set engine.tool_parser")
    elif not families.template_knows_tools and families.tools not in (None, tool_family(DEFAULT_TOOL_FAMILY)):
        told = "the chat template takes no tools, so %s's format is described to the model; calls are read as %s"
        logger.warning(told, DEFAULT_TOOL_FAMILY, config.tool_parser)
    return families


def _acceptance(backend: Backend) -> Callable[[Grammar], None]:
    """The word of an engine that compiles grammars itself."""
    return backend.accept if isinstance(backend, VllmBackend) else lambda _: None


def _supervision(config: EngineConfig) -> SupervisionConfig:
    return SupervisionConfig(
        backoff=config.restart_backoff_seconds,
        backoff_max=config.restart_backoff_max_seconds,
        stall_timeout=config.stall_timeout_seconds,
    )


def _create_backend(config: EngineConfig, folder: Path, tokenizer: Tokenizer) -> Backend:
    if config.lora_modules and config.kind != "vllm":
        raise ConfigError(f"engine.lora_modules: the {config.kind} engine has no adapters, the vllm engine has")
    creators: dict[str, Callable[[], Backend]] = {
        "transformers": lambda: _transformers(config, folder),
        "vllm": lambda: VllmBackend(config, folder),
        "simulated": lambda: _simulated(config, folder, tokenizer),
    }
    return creators[config.kind]()


def _transformers(config: EngineConfig, folder: Path) -> Backend:
    try:
        from engine.backends.transformers import TransformersBackend
    except ImportError as error:
        raise ModelLoadError(f"the transformers engine needs `pip install 'tailrace[cpu]'`: {error}") from error
    return TransformersBackend(config, folder)


def _simulated(config: EngineConfig, folder: Path, tokenizer: Tokenizer) -> Backend:
    from engine.backends.simulated import SimulatedBackend

    model = _folder_config(folder)
    context = config.max_model_len or model.get("max_position_embeddings") or SIMULATED_CONTEXT
    vocab_size = max(tokenizer.size, model.get("vocab_size") or 0)
    eos = frozenset[int]() if tokenizer.eos_token_id is None else frozenset({tokenizer.eos_token_id})
    limits = ModelLimits(int(context), int(vocab_size), eos)
    return SimulatedBackend(config, limits, lambda text: tokenizer.encode(text, add_special_tokens=False))


def _folder_config(folder: Path) -> dict[str, int | None]:
    """The numbers of the folder's config.json, if it has one: the simulated engine needs only tokenizer files."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        return {key: value for key, value in json.loads(path.read_text()).items() if isinstance(value, int)}
    except (ValueError, AttributeError) as error:
        raise ModelLoadError(f"{path} is not a model's config: {error}") from error
