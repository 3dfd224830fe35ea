"""What of ours runs inside vLLM's engine process: a scheduler that says more, the grammars' bounds, its end with ours.

Never changes what is scheduled. vLLM names the requests that left its scheduler only where there are several
engines, and tells that a prompt is begun only with its first token.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

from engine.backends.vllm.grammars import share_grammars

logger = logging.getLogger(__name__)
ORPHAN_GRACE = 10.0
"""Seconds that an engine whose server is gone may take to end by itself."""


class _Telling:
    """Adds to each step's word: ids of the requests that are gone, and of those whose prefill began without a token."""

    requests: dict[str, Any]
    structured_output_manager: Any

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings | {"include_finished_set": True})
        share_grammars(self.structured_output_manager)
        end_with_server()

    def update_from_output(self, scheduled: Any, computed: Any) -> dict[int, EngineCoreOutputs]:
        by_client: dict[int, EngineCoreOutputs] = super().update_from_output(scheduled, computed)  # type: ignore[misc]
        for new in scheduled.scheduled_new_reqs:
            request = self.requests.get(new.req_id)
            if request is not None and (events := request.take_events()):
                outputs = by_client.setdefault(request.client_index, EngineCoreOutputs())
                outputs.outputs = [*outputs.outputs, EngineCoreOutput(new.req_id, [], events=events)]
        return by_client


class TellingScheduler(_Telling, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler for engines that compute one step at a time."""


class TellingAsyncScheduler(_Telling, AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler for engines that plan a step while the one before it is computed."""


def telling(scheduler: type[Any]) -> type[Any]:
    """The class that says more and schedules as this one does."""
    return TellingAsyncScheduler if issubclass(scheduler, AsyncScheduler) else TellingScheduler


def end_with_server() -> None:
    """From now on this process ends when the one that started it is gone, however that ended."""
    server = multiprocessing.parent_process()
    if server is not None:
        Thread(target=_outlive, args=(server,), name="server watch", daemon=True).start()


def _outlive(server: BaseProcess) -> None:
    server.join()
    logger.warning("the server is gone: the engine ends")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
