"""The command line: `tailrace serve`, `chat` and `hash-key`. Never a setting that the config file could not hold."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from client.chat import chat_loop
from engine.errors import EngineError
from engine.loading import load_engine
from server.app import create_app
from server.auth import hashed, refuse_unguarded
from server.config import Settings, load_settings
from server.log import configure_logging
from server.serving import DrainingServer, check_certificate

app = typer.Typer(help="A streaming inference server for open-weight models.", no_args_is_help=True)
logger = logging.getLogger("tailrace")


@app.command()
def serve(
    *,
    config: Annotated[Path | None, typer.Option(help="YAML or TOML file with settings.")] = None,
    model: Annotated[str | None, typer.Option(help="A Hugging Face folder or hub name, or 'demo'.")] = None,
    engine: Annotated[str | None, typer.Option(help="transformers, vllm or simulated.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as engine.max_num_seqs=16.")] = None,
) -> None:
    """Serves a model until SIGTERM or Ctrl-C; prints one line when it can answer."""
    named = {"engine.model": model, "engine.kind": engine, "server.host": host, "server.port": port}
    flags: list[tuple[str, Any]] = [(key, value) for key, value in named.items() if value is not None]
    try:
        settings = load_settings(config, [*flags, *map(_assignment, set_ or ())])
        configure_logging(settings.server.log_level)
        _serve(settings)
    except EngineError as error:
        typer.echo(f"tailrace: {error}", err=True)
        raise typer.Exit(2) from None


@app.command()
def chat(
    url: Annotated[str, typer.Argument(help="Base address of an OpenAI-style server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="The model to ask; the server's first one by default.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions that begin the conversation.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Sent as a Bearer token.")] = None,
) -> None:
    """Talks to a server in the terminal; an empty line or Ctrl-D ends it."""
    chat_loop(url, model=model, system=system, api_key=api_key)


@app.command()
def hash_key(
    key: Annotated[
        str | None, typer.Argument(help="The key; left out, it is the first line of standard input.")
    ] = None,
) -> None:
    """Prints an API key's hash, which a config file may hold instead of the key."""
    text = (sys.stdin.readline() if key is None else key).strip()
    if not text:
        raise typer.BadParameter("there is no key to hash", param_hint="KEY")
    typer.echo(hashed(text))


def main() -> None:
    """The entry point of the `tailrace` command."""
    app()


def _serve(settings: Settings) -> None:
    config = settings.server
    refuse_unguarded(config)
    check_certificate(config)
    engine = load_engine(settings.engine)
    if not config.api_keys:
        logger.warning("no API keys are configured: anyone who reaches %s may use the model", config.host)
    DrainingServer(create_app(engine, config), config).run()


def _assignment(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
    return key.strip(), value
