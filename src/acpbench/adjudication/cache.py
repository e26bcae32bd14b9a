"""Judge answers kept by the exact question, so that a judged study replays without a provider.

The key covers everything that can change an answer: who answers (provider, model, base URL, sampling),
the rendered prompt's bytes, the answer schema, the rubric version, the evidence and the replicate.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from acpbench.adjudication.judge import (
    OUTPUT_SCHEMA,
    EvidencePacket,
    Judge,
    JudgeError,
    JudgeIdentity,
    Judgement,
    render_packet,
)
from acpbench.core.errors import InputError
from acpbench.core.files import read_json, sha256_bytes, sha256_json, write_json

Mode = Literal["record", "replay"]


def evidence_digest(packet: EvidencePacket) -> str:
    """One hash over the bytes of every excerpted file, cut lines included."""
    inner = [excerpt.path for excerpt in packet.excerpts if not excerpt.path.startswith("run:")]
    outer = [excerpt.render() for excerpt in packet.excerpts if excerpt.path.startswith("run:")]
    return sha256_json([packet.record.digest(inner), outer])


def cache_key(
    identity: JudgeIdentity, *, prompt: bytes, rubric_version: str, evidence: str, replicate: int
) -> str:
    """Hex SHA-256 that names one question to one judge."""
    return sha256_json(
        {
            "provider": identity.provider,
            "model": identity.model,
            "version": identity.version,
            "base_url": identity.base_url,
            "sampling": identity.sampling,
            "prompt_sha256": sha256_bytes(prompt),
            "schema_sha256": sha256_json(OUTPUT_SCHEMA),
            "rubric_version": rubric_version,
            "evidence_sha256": evidence,
            "replicate": replicate,
        }
    )


class CachedJudge:
    """A judge behind a folder of answers.

    Args:
        judge: the judge asked on a miss (``record``); its identity is part of every key.
        folder: where answers are kept, one JSON file a key.
        mode: ``record`` asks on a miss and keeps the answer; ``replay`` refuses on a miss.
        rubric_version: version of the rubric the items come from.
        replicate: index of the replicate, so that repeated judging is not one answer read twice.
    """

    def __init__(
        self,
        judge: Judge,
        folder: str | os.PathLike[str],
        *,
        mode: Mode,
        rubric_version: str,
        replicate: int = 0,
    ) -> None:
        if mode not in ("record", "replay"):
            raise InputError(f"{mode!r} is not record or replay", field="mode")
        self.identity = judge.identity
        self._judge, self._folder, self._mode = judge, Path(folder), mode
        self._rubric_version, self._replicate = rubric_version, replicate

    def key(self, packet: EvidencePacket) -> str:
        """The cache key of a packet."""
        return cache_key(
            self.identity,
            prompt=render_packet(packet).encode("utf-8", "backslashreplace"),
            rubric_version=self._rubric_version,
            evidence=evidence_digest(packet),
            replicate=self._replicate,
        )

    def judge(self, packet: EvidencePacket) -> list[Judgement]:
        """The kept answer, or the judge's own.

        Raises:
            InputError: replay mode and no kept answer, or a kept answer that cannot be read.
            JudgeError: from the judge itself; errors are not kept.
        """
        key = self.key(packet)
        path = self._folder / key[:2] / f"{key}.json"
        if path.is_file():
            return _load(read_json(path), path)
        if self._mode == "replay":
            raise InputError(
                f"replay: no kept answer for {len(packet.items)} items of {packet.trajectory} "
                f"by {self.identity.provider}/{self.identity.model}",
                file=path,
            )
        answer = self._judge.judge(packet)
        write_json(path, {"key": key, "judge": self.identity.as_row(), "judgements": _dump(answer)})
        return answer


def _dump(answer: list[Judgement]) -> list[dict[str, Any]]:
    try:
        return [
            {
                "item_id": one.item_id,
                "status": one.status,
                "evidence_refs": list(one.evidence_refs),
                "rationale": one.rationale,
                "confidence": one.confidence,
            }
            for one in answer
        ]
    except (AttributeError, TypeError) as error:
        raise JudgeError(f"answer is not a list of judgements ({error})") from None


def _load(value: Any, path: Path) -> list[Judgement]:
    try:
        return [Judgement(**row) for row in value["judgements"]]
    except (KeyError, TypeError):
        raise InputError("is not a kept judge answer", file=path) from None
