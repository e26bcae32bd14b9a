"""Overclaims are found in their own clause, and words that deny them are not overclaims."""

from __future__ import annotations

import time

import pytest

from acpbench.rubric.language import find_overclaims

D, M, R, S, B = (
    "diagnostic_authority",
    "molecular_confirmation",
    "deployment_readiness",
    "staging_certainty",
    "success_beyond_evidence",
)

HITS = [
    ("This model diagnoses TP53 mutation.", {D}),
    ("The result does not confirm mutation status but the tool is ready for clinical deployment.", {R}),
    ("The model confirms TP53 mutation in this patient.", {M}),
    ("The classifier is clinically validated.", {R}),
    ("The tool is ready for deployment in routine clinical practice.", {R}),
    ("Not only is the model accurate, it is ready for clinical use.", {R}),
    ("There is no doubt that the model confirms the KRAS mutation.", {M}),
    ("The system replaces the molecular assay.", {M}),
    ("It replaces the reference test.", {M}),
    ("The system replaces pathologists.", {D}),
    ("The model is not biased and diagnoses TP53 mutation.", {D}),
    ("The approach outperforms pathologists.", {B}),
    ("It generalises to all hospitals.", {B}),
    ("No further validation is needed.", {R}),
    ("Without external validation, the tool is ready for clinical deployment.", {R}),
    ("The model rules out cancer.", {D}),
    ("The prediction establishes the nodal status.", {S}),
    ("TP53 mutation has been confirmed by the model.", {M}),
    ("The model provides a definitive diagnosis.", {D}),
    ("Perfect accuracy was achieved on all patients.", {B}),
    ("The predictions are not a diagnosis; they guide treatment.", {D}),
    ("The **model diag\u00adnoses** TP53 mutation.", {D}),
    ("The model is clinically\nvalidated.", {R}),
]
CLEAN = [
    "This is not a diagnosis.",
    "May not claim: that the mutation was confirmed",
    "May not claim: that TP53 mutation was measured, confirmed or excluded in any patient, nor use in place "
    "of the molecular assay.",
    "May claim: agreement with the archive diagnosis. May not claim: a sign-out diagnosis; the reference "
    "was not re-read.",
    "The prediction cannot confirm the mutation status of any patient.",
    "We make no claim of clinical readiness, nor that the model replaces the molecular assay.",
    "It should not be used for diagnosis or in clinical practice.",
    "The classifier has not been clinically validated.",
    "The tool isn't ready for deployment.",
    "External validation is required before the model can be used in clinical practice.",
    "Whether the model confirms mutation status remains unknown.",
    "Clinical deployment would require prospective validation.",
    "The approach does not outperform pathologists.",
    "TP53 mutation status was determined by the GDC MC3 MAF reference call.",
    "Patients were diagnosed with bladder cancer.",
    "We diagnosed the low recall as overfitting.",
    "Does this model diagnose cancer?",
    "It is a research prediction, not a diagnosis and not a substitute for sequencing.",
    "The phrase 'clinically validated' is avoided.",
    "AUROC of 0.71 shows moderate signal for TP53 mutation.",
    "The workflow ran to completion and predictions were written.",
    "A diagnosis must be made by a pathologist.",
    "Deployment-ready: no.",
    "| clinically validated | no |",
    "This is a research result on this cohort and makes no diagnostic claim.",
    "## What this does not show\n\nThe model diagnoses cancer.\n",
    "The report must not say:\n- diagnoses TP53 mutation\n- ready for clinical use\n",
]


@pytest.mark.parametrize(("text", "kinds"), HITS)
def test_overclaims_are_found(text: str, kinds: set[str]) -> None:
    assert {claim.kind for claim in find_overclaims(text)} == kinds


@pytest.mark.parametrize("text", CLEAN)
def test_denials_and_descriptions_are_not_overclaims(text: str) -> None:
    assert find_overclaims(text) == []


def test_line_and_offsets_point_at_the_phrase() -> None:
    text = "# Report\n\nFine so far.\n\nThe tool is\nclinically validated.\n"
    (claim,) = find_overclaims(text)
    assert claim.line == 6
    assert text[claim.start : claim.end] == "clinically validated" == claim.phrase


def test_a_negated_list_does_not_excuse_what_follows_it() -> None:
    text = "The report must not say:\n- ready for clinical use\n\nThe model is ready for clinical use.\n"
    (claim,) = find_overclaims(text)
    assert claim.line == 4


def test_a_negating_heading_ends_at_the_next_heading() -> None:
    text = "## Not claimed\n\nThe model diagnoses cancer.\n\n## Results\n\nThe model diagnoses cancer.\n"
    assert [claim.line for claim in find_overclaims(text)] == [7]


def test_many_blocks_take_time_in_proportion() -> None:
    start = time.perf_counter()
    assert find_overclaims("The AUROC of this fold is moderate.\n\n" * 4_000) == []
    assert time.perf_counter() - start < 10
