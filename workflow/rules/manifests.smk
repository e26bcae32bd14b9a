# Where each slide of a cohort lies, by its manifest.
from acpbench.slides.manifest import read_manifest
from snakemake.logging import logger


def beside_study(path):
    """A path of the configuration that may be left out."""
    return None if path is None else study_file(path)


def manifest_options(cohort_id):
    """How a cohort's manifest is read: the same for the plan and for the join."""
    cohort = STUDY.cohorts[cohort_id]
    columns = cohort.columns.model_dump(exclude={"clinical_patient_id"})
    return {
        "columns": {field: column for field, column in columns.items() if column},
        "base": f"results/generated/{cohort_id}" if cohort.generator else None,
        "slide_dir": beside_study(cohort.slide_dir),
        "suffix": cohort.suffix,
        "mask_dir": beside_study(cohort.mask_dir),
    }


def manifest_rows(cohort_id):
    """slide_id -> row of a cohort's manifest. Rows that cannot be used are left to the join's exclusions."""
    manifest = read_manifest(
        study_file(STUDY.cohorts[cohort_id].manifest),
        **manifest_options(cohort_id),
        files="ignore",
    )
    return {row.slide_id: row for row in manifest.rows}


try:
    SLIDES = {cohort_id: manifest_rows(cohort_id) for cohort_id in STUDY.cohorts}
except InputError as error:
    raise WorkflowError(str(error))


def slide_row(wildcards):
    """The manifest row of a slide."""
    return SLIDES[wildcards.cohort][wildcards.slide_id]


def generated_row(wildcards):
    """The manifest row a generated slide is drawn from."""
    return canonical(slide_row(wildcards).record)


def slide_path(wildcards):
    """Where a slide lies."""
    return str(slide_row(wildcards).resolved)


def slide_input(wildcards):
    """The slide file; a missing one is left to the inspection to report."""
    path = slide_path(wildcards)
    if STUDY.cohorts[wildcards.cohort].generator or os.path.exists(path):
        return path
    return []


def slide_mask(wildcards):
    """The tissue mask that the user gives for a slide, if any."""
    mask = slide_row(wildcards).mask
    return [] if mask is None else str(mask)


def declared_mpp(wildcards):
    """Micrometres per pixel that the manifest or the configuration declares."""
    return slide_row(wildcards).mpp or STUDY.cohorts[wildcards.cohort].mpp


def warn_of_empty_cohorts():
    """Say at once, before hundreds of jobs, that not one slide of a cohort is where its manifest says."""
    for cohort_id, rows in SLIDES.items():
        if STUDY.cohorts[cohort_id].generator:
            continue
        if not rows:
            logger.warning(f"cohort {cohort_id}: no row of its manifest is usable")
        elif not any(row.resolved.is_file() for row in rows.values()):
            first = next(iter(rows.values())).resolved
            logger.warning(
                f"cohort {cohort_id}: none of its {len(rows)} slide files is there; the first: {first}"
            )


if workflow.is_main_process:
    warn_of_empty_cohorts()
