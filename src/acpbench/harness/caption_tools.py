"""Caption tool: a picture described by the study's vision-language model, over OpenAI-compatible chat.

Address, model and the name of the key's variable come from the evaluator's context, never from the agent.
The key is read from the tool server's environment, sent to that address only, and kept out of every message
and file.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_bytes, sha256_bytes, write_json
from acpbench.harness.context import RunContext, VisionEndpoint
from acpbench.harness.tool_args import CaptionRegion
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import CaptionRegionResult

MAX_IMAGE_BYTES = 8 * 1024 * 1024
MAX_ANSWER_BYTES = 1024 * 1024
MAX_CAPTION_CHARS = 4000
MEDIA_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
PROMPT = (
    "The picture is a crop of a histology slide stained with haematoxylin and eosin. Say in a few sentences "
    "which tissue structures and artefacts can be seen. Give no diagnosis and guess nothing that the picture "
    "does not show."
)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that sends the request elsewhere is refused: the key goes to the configured address only."""

    def redirect_request(self, *args: Any) -> None:
        return None


def caption_region(context: RunContext, args: CaptionRegion) -> ToolOutcome:
    """Ask the configured model about a picture and keep its answer beside the picture's name.

    Raises:
        InputError: no endpoint is configured, its key is missing, the file is no picture, or the call fails.
    """
    endpoint = context.vision
    if endpoint is None:
        raise InputError(
            "no vision-language model is configured for this study, so nothing can be captioned; go on "
            "without captions (calling again will not help)"
        )
    image = read_bytes(context.read_path(args.image), max_bytes=MAX_IMAGE_BYTES)
    media = next((kind for head, kind in MEDIA_TYPES.items() if image.startswith(head)), None)
    if media is None:
        raise InputError("is neither PNG nor JPEG; read_region writes such pictures", file=args.image)
    prompt = PROMPT + (f"\nQuestion: {args.question}" if args.question else "")
    content = [
        {"type": "text", "text": prompt},
        {
            "type": "image_url",
            "image_url": {"url": f"data:{media};base64,{base64.b64encode(image).decode()}"},
        },
    ]
    answer = _chat(endpoint, [{"role": "user", "content": content}])
    result = _result(answer, endpoint, prompt, image)
    stem = args.image.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    output = f"{args.output_dir}/captions/{stem}.json"
    document = {"image": args.image, "question": args.question}
    write_json(context.write_path(output), document | result.model_dump(mode="json"))
    return ToolOutcome([output], result)


def _result(answer: Any, endpoint: VisionEndpoint, prompt: str, image: bytes) -> CaptionRegionResult:
    try:
        caption = answer["choices"][0]["message"]["content"]
        usage = answer.get("usage") or {}
        told = answer.get("model") or endpoint.model
    except (KeyError, IndexError, TypeError, AttributeError):
        raise InputError(
            "the vision-language endpoint answered in another form than chat completions"
        ) from None
    if not isinstance(caption, str) or not caption.strip():
        raise InputError("the vision-language model gave an empty answer; ask again or go on without")
    counts = [
        usage.get(name) if isinstance(usage, dict) else None
        for name in ("prompt_tokens", "completion_tokens")
    ]
    return CaptionRegionResult(
        caption=caption.strip()[:MAX_CAPTION_CHARS],
        model=str(told),
        prompt_sha256=sha256_bytes(prompt.encode()),
        image_sha256=sha256_bytes(image),
        input_tokens=counts[0] if isinstance(counts[0], int) else None,
        output_tokens=counts[1] if isinstance(counts[1], int) else None,
    )


def _chat(endpoint: VisionEndpoint, messages: list[dict[str, Any]]) -> Any:
    """One answer of the endpoint, parsed. Failures are one line without the key."""
    key = None
    if endpoint.api_key_env is not None:
        key = os.environ.get(endpoint.api_key_env)
        if not key:
            raise InputError(
                f"the tool server has no {endpoint.api_key_env}, which the study's vision-language model "
                "needs; go on without captions"
            )
    body = {"model": endpoint.model, "messages": messages, "max_tokens": endpoint.max_tokens}
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        endpoint.base_url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=endpoint.timeout_s) as response:
            data = response.read(MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode("utf-8", "replace")
        wait = error.headers.get("Retry-After") if error.headers else None
        later = f"; retry after {wait} s" if wait else ""
        raise InputError(
            _scrubbed(f"the vision-language endpoint answered {error.code}{later}: {said}", key)
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            _scrubbed(f"the vision-language endpoint cannot be reached ({error})", key)
        ) from None
    if len(data) > MAX_ANSWER_BYTES:
        raise InputError("the vision-language endpoint answered with more than 1 MiB")
    try:
        return json.loads(data)
    except ValueError:
        raise InputError("the vision-language endpoint answered with something that is not JSON") from None


def _scrubbed(text: str, key: str | None) -> str:
    return text.replace(key, "(key)") if key else text
