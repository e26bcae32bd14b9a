"""The phrases of :mod:`acpbench.rubric.language`, by kind of overclaim, and contexts that are harmless."""

from __future__ import annotations

import re

_GAP = r"(?:[\w'-]+\s+){0,4}"
_SHORT = r"(?:[\w'-]+\s+){0,2}"
_ALTERATION = (
    r"(?:mutations?|mutants?|mutated|fusions?|genotypes?|alterations?|amplifications?|deletions?|variants?|"
    r"msi(?:-h)?|"
    r"microsatellite\s+instability|mmr\s+(?:loss|deficiency|status)|methylation|molecular\s+(?:status|"
    r"subtypes?)|"
    r"receptor\s+status|(?:er|pr|her2|egfr|kras|braf|tp53|idh1?|brca\d?)\s+status|subtype|biomarker|"
    r"gene\s+expression)"
)
_CLINIC = (
    r"(?:clinical\s+(?:use|practice|deployment|care|routine|application|decision|adoption|implementation|"
    r"service)\w*|"
    r"clinic\b|clinics\b|hospitals?\b|patient\s+care|patients\b|routine\s+(?:use|practice|diagnostics?|"
    r"clinical\w*)|"
    r"diagnostic\s+(?:use|practice|routine)|production|bedside|deployment|real[- ]world\s+(?:use|deployment))"
)
_EXPERT = (
    r"(?:pathologists?|pathology\s+review|clinicians?|physicians?|radiologists?|experts?|"
    r"expert\s+review|manual\s+review)"
)
_ASSAY = (
    r"(?:molecular\s+(?:\w+\s+)?(?:tests?|testing|assays?|analysis|profiling|confirmation)|"
    r"genetic\s+tests?(?:ing)?|"
    r"genomic\s+tests?(?:ing)?|sequencing|ngs|ihc|immunohistochemistry|pcr|fish|reference\s+(?:test|assay|"
    r"standard)|"
    r"confirmatory\s+tests?(?:ing)?|laboratory\s+tests?(?:ing)?|biops(?:y|ies)|gold\s+standard|assays?)"
)
_REPLACE = (
    r"(?:replac(?:es|e|ing)|substitut(?:es?|ing)\s+for|supersedes?|obviates?|eliminates?|"
    r"removes?\s+the\s+need\s+for|"
    r"no\s+need\s+for|without\s+the\s+need\s+for|does\s+not\s+(?:need|require)|no\s+longer\s+(?:needs?|"
    r"requires?)|"
    r"(?:used|serves?|use)\s+(?:in\s+place|instead)\s+of|as\s+a\s+replacement\s+for|makes?)"
)
_ACTOR = (
    r"(?:models?|tool|system|pipeline|classifier|algorithm|method|workflow|approach|network|predictor|"
    r"agent|software|"
    r"abmil|ai|it|this|that|which|we|results?|predictions?|analysis|output|score)"
)
_DEBUG = (
    r"(?!.{0,60}\b(?:errors?|failures?|problems?|issues?|bugs?|bottlenecks?|"
    r"overfitting|underfitting|weak(?:est)?|link|collapse|convergence|training|gap|cause)\b)"
)


def _all(*patterns: str) -> list[re.Pattern[str]]:
    return [re.compile(pattern, re.IGNORECASE) for pattern in patterns]


PHRASES: dict[str, list[re.Pattern[str]]] = {
    "diagnostic_authority": _all(
        rf"\b{_ACTOR}\s+(?:\w+ly\s+)?(?:and\s+)?(?:diagnoses|diagnosed)\b{_DEBUG}",
        rf"^\W*(?:\w+ly\s+)?diagnoses\s+(?!(?:were|are|was|is|from|of|in|by|and|or)\b)\w+{_DEBUG}",
        rf"\b(?:can|could|able\s+to|used\s+to|use\s+\w+\s+to|will|to|"
        rf"capable\s+of)\s+(?:\w+ly\s+)?diagnos(?:e|ing)\b{_DEBUG}",
        r"\b(?:provides?|gives?|delivers?|makes?|renders?|establishes|issues?|yields?|offers?|constitutes?|"
        r"produces?|"
        rf"represents?|reach(?:es)?)\s+{_SHORT}?(?:diagnosis|diagnoses)\b",
        r"\b(?:is|are)\s+(?:an?\s+)?(?:definitive|final|certain|confirmed|reliable|accurate|sign-?out|"
        r"clinical)?\s*diagnos(?:is|tic\s+(?:test|tool|device|"
        r"assay|instrument))\b",
        r"\b(?:definitive|final|sign-?out|certain)\s+diagnos(?:is|es)\b",
        rf"\b(?:serves?|used|works?|functions?|acts?)\s+as\s+an?\s+{_SHORT}?diagnostic\b",
        r"\bdiagnostic[- ](?:grade|certainty|authority|quality\s+result)\b",
        rf"\b{_REPLACE}\s+{_GAP}?{_EXPERT}",
        r"\b(?:rules?|ruling|ruled)\s+(?:out|"
        r"in)\s+(?:the\s+)?(?:presence\s+of\s+)?(?:\w+\s+){0,2}?(?:cancer|carcinoma|tumou?r|malignancy|"
        r"disease|mutations?|metasta\w+)",
        r"\b(?:guides?|directs?|dictates?|determines?|drives?|decides?)\s+(?:\w+\s+){0,3}?(?:treatment|"
        r"therapy|therapeutic|patient\s+management|"
        r"clinical\s+decisions?|clinical\s+management)\b",
        r"\b(?:patients?|they)\s+(?:should|must|can)\s+(?:therefore\s+)?(?:be\s+(?:treated|given|offered|"
        r"selected)|receive|start|stop)\b",
    ),
    "molecular_confirmation": _all(
        rf"\bconfirm(?:s|ed|ing|ation\s+of)?\s+(?:that\s+)?{_GAP}?{_ALTERATION}\b(?!\s+(?:label|column|"
        rf"split|table|file|count|prevalence|balance))",
        rf"\b(?:can|could|will|to|able\s+to)\s+(?:\w+ly\s+)?(?:confirm|establish|prove|"
        rf"verify)\s+{_GAP}?{_ALTERATION}\b",
        rf"\b(?:proves|establishes|verifies|determines|measures|"
        rf"ascertains)\s+{_GAP}?{_ALTERATION}\b(?!\s+(?:label|column|split|table|file))",
        rf"\bdetects\s+(?!signal|association)(?:the\s+|an?\s+)?{_SHORT}?{_ALTERATION}\b",
        rf"\b{_ALTERATION}(?:\s+status)?\s+(?:\w+\s+)?(?:is|was|were|are|has\s+been|"
        rf"have\s+been)\s+(?:\w+ly\s+|thus\s+|therefore\s+)?"
        r"(?:confirmed|proven|verified|established|ascertained|excluded|measured)\b",
        r"\bconfirms?\s+(?:it|this|them)\s+in\s+(?:\w+\s+){0,2}?patients?\b",
        rf"\b(?:this|the|each|every|any|individual)\s+patient\s+(?:\w+ly\s+)?(?:has|carries|"
        rf"harbou?rs)\s+(?:an?\s+|the\s+)?{_SHORT}?{_ALTERATION}\b",
        r"\bmolecular(?:ly)?[- ]confirm(?:ed|ation|s)\b",
        rf"\b(?:equivalent|equal|identical|comparable|as\s+(?:accurate|reliable|good))\s+(?:to|"
        rf"as)\s+(?:the\s+)?{_ASSAY}",
        rf"\b{_REPLACE}\s+(?:the\s+|an?\s+|any\s+|further\s+|additional\s+|costly\s+)*{_ASSAY}",
    ),
    "deployment_readiness": _all(
        rf"\b(?:ready|fit|suitable|safe|approved|validated|cleared|recommended|sufficient|"
        rf"reliable\s+enough|good\s+enough)\s+(?:for|to\s+enter)\s+"
        rf"(?:\w+\s+){{0,4}}?{_CLINIC}",
        r"\b(?:ready|safe)\s+(?:to\s+be\s+|for\s+|to\s+)(?:\w+ly\s+)?(?:deploy(?:ed|ment)?|released?|"
        r"rolled\s+out|adopted)\b",
        r"\b(?:clinically|prospectively)[- ](?:validated|approved|ready|proven|deployable|actionable|"
        r"certified|usable)\b",
        r"\b(?:deployment|clinic|production|bedside|clinical)[- ](?:ready|grade)\b",
        r"\b(?:fda|ce|regulatory|ivd)[- ](?:approved|cleared|marked|approval|clearance|compliant|certified|"
        r"ready)\b",
        rf"\b(?:can|should|may|could|must|will|to)\s+(?:now\s+|safely\s+|already\s+|immediately\s+|"
        rf"directly\s+)?be\s+(?:\w+ly\s+)?"
        rf"(?:deployed|used|adopted|implemented|integrated|rolled\s+out|relied\s+(?:up)?on|"
        rf"applied)\s+(?:\w+\s+){{0,3}}?{_CLINIC}",
        r"\b(?:can|should|will)\s+(?:now\s+|safely\s+|already\s+|immediately\s+)?be\s+deployed\b",
        r"\bno\s+(?:further|additional|external)\s+validation\s+(?:is\s+|are\s+|was\s+)?(?:needed|required|"
        r"necessary)\b",
        r"\bpatients?\s+can\s+rely\s+on\b",
    ),
    "staging_certainty": _all(
        r"\b(?:confirms?|establish(?:es|ed)|determines?|assigns?|defines?|proves?|"
        r"provides?)\s+(?:\w+\s+){0,4}?(?:tumou?r\s+stage|cancer\s+stage|"
        r"patholog\w+\s+stage|tnm|nodal\s+(?:status|stage|burden)|n[- ]stage|staging|axillary\s+(?:status|"
        r"burden)|lymph[- ]node\s+status)\b",
        r"\b(?:definitive|certain|accurate|reliable|final)\s+(?:\w+\s+)?(?:tumou?r\s+stage|staging|"
        r"nodal\s+status)\b",
        r"\bstages\s+(?:the\s+|each\s+|every\s+)?(?:patients?|tumou?rs?|cancers?|disease)\b",
        r"\b(?:patients?|case)\s+(?:is|are)\s+(?:\w+ly\s+)?(?:node[- ](?:negative|positive)|"
        r"metastasis[- ]free|n0|free\s+of\s+metasta\w+)\b",
        r"\b(?:safely\s+)?(?:omit|omits|avoid|avoids|skip|forgo|spared?)\s+(?:\w+\s+){0,2}?(?:sentinel|"
        r"axillary|lymph[- ]node)\s+(?:\w+\s+){0,2}?"
        r"(?:biopsy|dissection|surgery)\b",
        r"\b(?:replaces?|substitutes?\s+for)\s+(?:\w+\s+){0,3}?(?:staging|axillary|sentinel|surgical)\b",
    ),
    "success_beyond_evidence": _all(
        r"\bstate[- ]of[- ]the[- ]art\b(?!\s+(?:encoder|backbone|foundation|feature|method\s+of))",
        r"\b(?:perfect|flawless|error[- ]free)(?:ly)?\s+(?:\w+\s+){0,2}?(?:accura\w+|classif\w+|"
        r"discriminat\w+|predict\w+|performance|separat\w+|result)",
        r"\b100\s?%\s+(?:accura\w+|sensitiv\w+|specific\w+|correct|certain\w*|reliab\w+)",
        r"\b(?:outperforms?|surpass(?:es)?|exceeds?|beats?|superior\s+to|"
        r"better\s+than)\s+(?:\w+\s+){0,2}?(?:all|every|any|pathologists?|clinicians?|"
        r"experts?|humans?|physicians?|existing|published|prior|previous\s+(?:work|stud\w+|methods)|"
        r"the\s+(?:literature|state))\b",
        r"\b(?:guarantees?|guaranteed)\b",
        r"\b(?:conclusively|definitively|unequivocally|irrefutably|undoubtedly|indisputably|"
        r"beyond\s+(?:any\s+|reasonable\s+)?doubt|"
        r"with\s+(?:absolute\s+|full\s+|complete\s+)?certainty|without\s+(?:a\s+|any\s+)?doubt)\b",
        r"\b(?:generali[sz]es?|transfers?|applies|works|holds)\s+(?:\w+ly\s+)?(?:to|across|for|on|"
        r"in)\s+(?:all|any|every|other|new|unseen|external)\s+"
        r"(?:\w+\s+)?(?:hospitals?|sites?|populations?|cohorts?|patients?|scanners?|cancers?|institutions?|"
        r"cent(?:er|re)s?)",
        r"\b(?:has|have|with|are|there\s+are)\s+no\s+(?:known\s+|relevant\s+)?limitations\b",
        r"\b(?:externally|independently)\s+validated\b",
    ),
}
"""Kind of overclaim → patterns searched in one clause."""

_REFERENCE = (
    r"\b(?:reference(?!\s+(?:test|assay|standard))|ground[- ]truth|labels?|labelled|labeled|recorded|archive|"
    r"registry\s+record|maf|wes|"
    r"exome|cbioportal|gdc|"
    r"by\s+(?:the\s+)?(?:assay|sequencing|ihc|pcr|fish|pathologists?|expert|who|neuropathology)|"
    r"clinical\s+table|annotat\w+)\b"
)
BENIGN: dict[str, re.Pattern[str]] = {
    "diagnostic_authority": re.compile(_REFERENCE + r"|\bdiagnosed\s+with\b", re.IGNORECASE),
    "molecular_confirmation": re.compile(_REFERENCE, re.IGNORECASE),
    "deployment_readiness": re.compile(
        r"\b(?:scripts?|code|config\w*|container)\s+(?:is|are)\s+ready\b", re.IGNORECASE
    ),
    "staging_certainty": re.compile(_REFERENCE, re.IGNORECASE),
    "success_beyond_evidence": re.compile(r"\b(?:aim|goal)\s+(?:is|was)\b", re.IGNORECASE),
}
"""Contexts in which the phrases of a kind describe the reference label or the tooling, not the model."""
