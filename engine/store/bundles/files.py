"""Choose and read the files of a run that its bundle contains."""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from engine.roots import file_within, open_within
from engine.settings import Settings
from engine.store.bundles.format import LIMITS, TEXT_BYTES
from engine.store.copies import mirror
from engine.store.files import RunFiles
from engine.store.model import Run, StoredArtifact
from engine.store.store import Store
from engine.words import shortened

ARTIFACT_BYTES = 50_000_000
"""At most this many bytes for all artifacts of a bundle. The others are left out."""
MOST_ARTIFACTS = LIMITS.files // 2 - 10
"""At most this many artifacts of a bundle: each may have a manifest, and a bundle has some more members."""
FIRST = ("checkpoints/best.pt", "checkpoints/latest.pt")
"""The artifacts that are taken first. The others follow, smallest first."""
GONE, CHANGED = "the run's folder no longer has them", "they have changed since the run wrote them"
MOST_NAMED = 5
"""At most this many names of files in one sentence."""


def left_out(store: Store, settings: Settings, run: Run) -> list[str]:
    """Return sentences about the artifacts that do not fit into the bundle of a run. Errors: Unreachable."""
    artifacts = store.artifacts(run.id)
    if len(artifacts) <= MOST_ARTIFACTS and sum(artifact.size for artifact in artifacts) <= ARTIFACT_BYTES:
        return []
    return sentences(choose(settings, run, artifacts)[1])


def choose(
    settings: Settings, run: Run, artifacts: list[StoredArtifact]
) -> tuple[list[StoredArtifact], dict[str, str]]:
    """Return the artifacts for the bundle, and why others are left out, by their names. Errors: Unreachable."""
    folder = RunFiles(settings.runs_dir, run.id).dir
    copies = mirror.look(settings, run)
    room, chosen, left_out = ARTIFACT_BYTES, list[StoredArtifact](), dict[str, str]()
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    for artifact in sorted(artifacts, key=lambda artifact: (ranks.get(artifact.name, len(FIRST)), artifact.size)):
        name = artifact.name
        if not (name in copies.files if copies else file_within(folder / name, (folder.resolve(),))):
            left_out[name] = GONE
        elif artifact.size > room:
            left_out[name] = f"it takes at most {ARTIFACT_BYTES / 1e6:,.0f} MB of files"
        elif len(chosen) == MOST_ARTIFACTS:
            left_out[name] = f"it takes at most {MOST_ARTIFACTS:,} files"
        else:
            chosen.append(artifact)
            room -= artifact.size
    return chosen, left_out


def sentences(left_out: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason why artifacts are left out. left_out: reasons by name."""
    found = []
    for reason in dict.fromkeys(left_out.values()):
        names = [name for name, other in left_out.items() if other == reason]
        found.append(f"not in the bundle, because {reason}: {shortened(names, MOST_NAMED)}")
    return found


def read(run_dir: Path, artifacts: list[StoredArtifact]) -> dict[str, bytes]:
    """Return the unchanged ones of these artifacts below the run's folder.

    The manifest of each checkpoint is added, because a checkpoint without its manifest is not complete.
    """
    roots = (run_dir.resolve(),)
    contents = {}
    for artifact in artifacts:
        with suppress(FileNotFoundError), open_within(run_dir / artifact.name, roots) as file:
            content = file.read(artifact.size + 1)
            if sha256(content).hexdigest() == artifact.sha256:
                contents[artifact.name] = content
    for name in [name for name in contents if not mirror.is_light(name)]:
        with suppress(FileNotFoundError), open_within(run_dir / f"{name}.json", roots) as file:
            contents[f"{name}.json"] = file.read()
    return contents


def log(files: RunFiles) -> bytes:
    """Return the log. If it is longer than TEXT_BYTES, return its end after a line that says so."""
    content = b"".join(path.read_bytes() for path in (files.older_log, files.log) if path.is_file())
    if len(content) <= TEXT_BYTES:
        return content
    line = f"[the bundle of this run has only the last {TEXT_BYTES / 1e6:,.0f} MB of its log]\n".encode()
    end = content[len(line) - TEXT_BYTES :]
    return line + end[end.find(b"\n") + 1 :]
