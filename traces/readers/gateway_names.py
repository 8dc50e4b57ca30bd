"""Names under which gateways and tracers log what :mod:`traces.readers.gateway` reads; the first found wins.

Sources
* OpenAI-style responses: ``usage.prompt_tokens``, ``usage.completion_tokens``, ``created``, ``choices``.
* LiteLLM spend logs and StandardLoggingPayload: BerriAI/litellm : schema.prisma (LiteLLM_SpendLogs)
  @ 029f645f1c81cbd6c6c48fbc8490d91da937066f; docs.litellm.ai/docs/proxy/logging_spec.
* Envoy AI Gateway access logs: envoyproxy/ai-gateway :
  site/docs/capabilities/observability/examples/accesslogs-envoy-proxy-llm.yaml
  @ f3336c57bf372582842ab35eca9501c595d624db (``duration`` is Envoy's, ms), older keys ``genai_tokens_*``.
* OpenTelemetry GenAI spans: open-telemetry/semantic-conventions : docs/gen-ai/gen-ai-spans.md
  @ 01d94504d2ec9a5653a5bde13908bc933d96ff29.
"""

from __future__ import annotations

STAMPS: dict[str, tuple[str, ...]] = {
    "start": (
        "start_time",
        "startTime",
        "request_start_time",
        "request_start",
        "request_time",
        "started_at",
        "sent_at",
        "sent_time",
        "start_time_unix_nano",
        "startTimeUnixNano",
        "requested_at",
        "received_at",
        "arrival_time",
        "timestamp",
        "created_at",
        "created",
        "response.created",
    ),
    "scheduled": ("scheduled_time", "scheduled_at", "scheduled_start", "target_time"),
    "first": (
        "completionStartTime",
        "completion_start_time",
        "first_token_time",
        "first_token_at",
        "first_chunk_time",
    ),
    "end": (
        "end_time",
        "endTime",
        "response_end_time",
        "request_end",
        "ended_at",
        "completed_at",
        "finished_at",
        "end_time_unix_nano",
        "endTimeUnixNano",
    ),
}
"""Date-times or numbers, all on one clock."""

DURATIONS: dict[str, tuple[str, ...]] = {
    "e2e": (
        "request_duration_ms",
        "duration_ms",
        "latency_ms",
        "total_time_ms",
        "duration_s",
        "latency_s",
        "e2e_latency",
        "duration",
        "latency",
        "request_latency",
    ),
    "ttft": (
        "ttft_ms",
        "time_to_first_token_ms",
        "ttft_s",
        "gen_ai.server.time_to_first_token",
        "gen_ai.response.time_to_first_chunk",
        "time_to_first_token",
        "ttft",
    ),
}
"""Times since the start; ``_ms`` and the like at the end of a name say the unit."""

SECONDS = ("gen_ai.server.time_to_first_token", "gen_ai.response.time_to_first_chunk")
"""OpenTelemetry durations are seconds."""

NAMES: dict[str, tuple[str, ...]] = {
    "prompt_server": (
        "usage.prompt_tokens",
        "response.usage.prompt_tokens",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "usage.input_tokens",
        "response.usage.input_tokens",
        "llm_input_token",
        "genai_tokens_input",
        "server_prompt_tokens",
        "server_input_tokens",
        "prompt_tokens",
        "input_tokens",
        "tokens_in",
    ),
    "prompt_client": (
        "client_prompt_tokens",
        "client_input_tokens",
        "request.prompt_tokens",
        "estimated_prompt_tokens",
    ),
    "output_server": (
        "usage.completion_tokens",
        "response.usage.completion_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "usage.output_tokens",
        "response.usage.output_tokens",
        "llm_output_token",
        "genai_tokens_output",
        "server_completion_tokens",
        "server_output_tokens",
        "completion_tokens",
        "output_tokens",
        "tokens_out",
    ),
    "output_client": ("client_completion_tokens", "client_output_tokens", "chunks", "chunk_count"),
    "cached": (
        "usage.prompt_tokens_details.cached_tokens",
        "response.usage.prompt_tokens_details.cached_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "usage.cache_read_input_tokens",
        "cached_tokens",
    ),
    "session": (
        "session_id",
        "session.id",
        "conversation_id",
        "gen_ai.conversation.id",
        "metadata.session_id",
        "request.metadata.session_id",
        "thread_id",
        "chat_id",
    ),
    "tenant": ("tenant", "team_id", "organization_id", "end_user", "user", "user_id", "request.user"),
    "model": ("model", "request.model", "gen_ai.request.model", "genai_model_name", "gen_ai.response.model"),
    "status": (
        "status_code",
        "response.status_code",
        "http.response.status_code",
        "response_code",
        "response.status",
        "status",
    ),
    "error": ("error.type", "error_type", "exception_type", "error"),
    "finish": (
        "finish_reason",
        "choices.0.finish_reason",
        "response.choices.0.finish_reason",
        "gen_ai.response.finish_reasons",
    ),
    "flags": ("response_flags",),
    "max_output_tokens": (
        "max_tokens",
        "max_completion_tokens",
        "request.max_tokens",
        "request.max_completion_tokens",
        "gen_ai.request.max_tokens",
    ),
    "prefill_worker": ("prefill_worker", "prefill_worker_id"),
    "decode_worker": ("decode_worker", "decode_worker_id", "worker_id", "upstream_host"),
}

CACHED_APART: dict[str, tuple[str, ...]] = {
    "usage.input_tokens": ("usage.cache_read_input_tokens", "usage.cache_creation_input_tokens"),
    "response.usage.input_tokens": (
        "response.usage.cache_read_input_tokens",
        "response.usage.cache_creation_input_tokens",
    ),
}
"""Anthropic-style usage, whose input tokens leave out those of the cache: they are added."""

ABORTS = ("cancel", "cancelled", "canceled", "abort", "aborted", "client_disconnect", "client_disconnected")
"""Finish reasons, statuses and error types of a request that the client gave up."""
