"""The environment variables that vLLM reads, in this process and in those that it starts.

Never a setting that the operator has made: what is in the environment already stays.
"""

from __future__ import annotations

import logging

from engine.backends.vllm.child_log import CHILD_LOGGING
from engine.config import set_environment

QUIET = {
    "VLLM_NO_USAGE_STATS": "1",  # nobody is told what is served
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit the server's sockets and locks
    "VLLM_CONFIGURE_LOGGING": "0",  # in the server's process vLLM's records go where all go
}
CHILDREN = {"VLLM_CONFIGURE_LOGGING": "1", "VLLM_LOGGING_CONFIG_PATH": str(CHILD_LOGGING)}


def prepare_import() -> None:
    """To be called before vLLM's first import."""
    set_environment(QUIET)
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger("vllm").setLevel(logging.WARNING)


def prepare_children() -> None:
    """To be called before vLLM starts processes: from their first line on they log as `child_log` says."""
    set_environment(CHILDREN, replacing=QUIET)
