"""The demo cohort's manifest: patients, crossed labels, simulated survival and the slides with defects."""

from __future__ import annotations

import numpy as np

from acpbench.slides.synthetic_architecture import GLAND_GRADES, PLEOMORPHISM

COLUMNS = (
    "slide_id",
    "patient_id",
    "path",
    "seed",
    "pleomorphism",
    "gland_grade",
    "time_months",
    "event",
    "defect",
)
COHORT_SEED = 22
"""Seed of the shipped ``tasks/demo/cohort.csv``.

Colour jitter never depends on a label, but over 30 patients it can lean to one by chance; this seed was
picked among 400 as one where it does not (and about 60% of patients have an event), as the tests check.
"""

_PATIENTS_PER_CELL = 5
_LOG_HAZARD_HIGH, _LOG_HAZARD_RANK, _LOG_HAZARD_SD = 1.1, 0.55, 0.3
_WEIBULL_SHAPE, _WEIBULL_SCALE_MONTHS = 1.3, 105.0
_CENSOR_MONTHS = (18.0, 84.0)


def build_cohort(seed: int = COHORT_SEED) -> list[dict[str, str]]:
    """Manifest rows (columns ``COLUMNS``, all text) of 38 slides of 31 patients.

    Thirty patients, five in each of the 2 x 3 cells of pleomorphism and gland grade; one patient of each
    cell has a second slide, so 36 slides are usable. A 37th slide, a second one of a usable patient, is a
    broken file; the 38th is empty glass and its patient's only slide. Four usable slides carry pen marks and
    four a fold, two in each pleomorphism class.

    Survival is simulated per patient: Weibull proportional hazards (Bender et al. 2005, inverse transform),
    with log hazard ratios 1.1 for high pleomorphism and 0.55 a gland grade plus N(0, 0.3), censored uniformly
    over 18 to 84 months.
    """
    rng = np.random.default_rng([seed, 20])
    cells = [(p, g) for p in PLEOMORPHISM for g in GLAND_GRADES for _ in range(_PATIENTS_PER_CELL)]
    cells.append((PLEOMORPHISM[0], GLAND_GRADES[1]))  # the patient whose only slide is empty
    order = rng.permutation(len(cells))  # identifiers in no order of labels
    slides: list[tuple[int, int, str]] = []
    for index in range(len(cells)):
        is_empty = index == len(cells) - 1
        slides.append((index, 1, "empty" if is_empty else "none"))
        if index % _PATIENTS_PER_CELL == 0 and not is_empty:
            slides.append((index, 2, "none"))
    slides.append((3, 2, "broken"))
    for wanted in PLEOMORPHISM:
        whole = [i for i, (p, _, defect) in enumerate(slides) if defect == "none" and cells[p][0] == wanted]
        for position, slide in enumerate(rng.choice(whole, 4, replace=False)):
            patient, number, _ = slides[slide]
            slides[slide] = (patient, number, "pen" if position < 2 else "fold")
    survival = [_survival(rng, *cell) for cell in cells]
    seeds = rng.choice(1_000_000, len(slides), replace=False)
    rows = []
    for (patient, number, defect), slide_seed in zip(slides, seeds):
        name = f"DEMO-{int(order[patient]) + 1:02d}"
        months, event = survival[patient]
        rows.append(
            {
                "slide_id": f"{name}-{number}",
                "patient_id": name,
                "path": f"slides/{name}-{number}.svs",
                "seed": str(int(slide_seed)),
                "pleomorphism": cells[patient][0],
                "gland_grade": cells[patient][1],
                "time_months": f"{months:.1f}",
                "event": str(event),
                "defect": defect,
            }
        )
    return sorted(rows, key=lambda row: row["slide_id"])


def _survival(rng: np.random.Generator, pleomorphism: str, grade: str) -> tuple[float, int]:
    log_hazard = _LOG_HAZARD_HIGH * (pleomorphism == PLEOMORPHISM[1]) + rng.normal(0, _LOG_HAZARD_SD)
    log_hazard += _LOG_HAZARD_RANK * GLAND_GRADES.index(grade)
    scaled = -np.log(rng.uniform(1e-6, 1)) / np.exp(log_hazard)
    months = max(_WEIBULL_SCALE_MONTHS * scaled ** (1 / _WEIBULL_SHAPE), 0.5)
    censored = rng.uniform(*_CENSOR_MONTHS)
    return float(min(months, censored)), int(months <= censored)
