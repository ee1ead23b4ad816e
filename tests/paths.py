"""Where the studies lie."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "studies"
EXAMPLES = sorted(STUDIES.glob("*.toml"))
PAPERS = sorted((STUDIES / "papers").glob("*.toml"))
EVERY_STUDY = [*EXAMPLES, *PAPERS]


def study_path(name: str) -> Path:
    """The file of a study of this name."""
    return next(path for path in EVERY_STUDY if path.stem == name)
