"""The file names of a run."""

import json
import re
import shutil
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

INDEX = ".index.json"
"""File with the last snapshot of a run's folder that `copies/mirror.py` has fetched or written."""
OWN_FILE = re.compile(r"log(\.older)?\.txt|(exit|process)(-\d+)?\.json(\.part)?", re.IGNORECASE)


def is_own_file(name: str) -> bool:
    """Return whether `RunFiles` uses this name in a run's folder itself, so that no artifact may have it."""
    return OWN_FILE.fullmatch(name) is not None


def held_by(folder: Path) -> str:
    """Return the name below VITALS_ARTIFACTS_URL of the run that a folder holds; empty if the folder does not say."""
    try:
        name = str(json.loads((folder / INDEX).read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return name if name.startswith(f"{folder.name}-") else ""


@dataclass(frozen=True)
class RunFiles:
    """The folder of one run below `runs_dir`."""

    runs_dir: Path
    run_id: int

    @property
    def dir(self) -> Path:
        """Return the folder of a run's artifacts."""
        return self.runs_dir / str(self.run_id)

    @property
    def log(self) -> Path:
        """Return the log file: the newest half of the output of all attempts."""
        return self.dir / "log.txt"

    @property
    def older_log(self) -> Path:
        """Return the file of the older half of the output, which exists once the log has reached its limit."""
        return self.dir / "log.older.txt"

    def exit(self, attempt: int = 1) -> Path:
        """Return the file with an attempt's exit: `exit.json`, `exit-2.json` for the second attempt, and so on."""
        return self.dir / ("exit.json" if attempt == 1 else f"exit-{attempt}.json")

    def process(self, attempt: int = 1) -> Path:
        """Return the file with the pids and start times of an attempt's processes."""
        return self.dir / ("process.json" if attempt == 1 else f"process-{attempt}.json")

    @property
    def folder_id(self) -> str:
        """Return an id that the folder keeps when it is renamed, and that a copy of it does not have."""
        status = self.dir.stat()
        return f"{status.st_dev}:{status.st_ino}"

    def prepare(self, attempt: int = 1) -> None:
        """Make the folder ready for a new attempt. A new run gets an empty one; that of an earlier store is renamed.

        A folder may also be a copy from another store, whose later attempts are no attempts of this one: their records
        are deleted.
        """
        if attempt == 1 and self.dir.exists():
            self.dir.rename(self.dir.with_name(f"{self.run_id}.before-{time.time_ns()}"))
        self.dir.mkdir(parents=True, exist_ok=True)  # an earlier attempt may have died before it made the folder
        for record in (self.process(attempt), self.exit(attempt)):
            record.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder and its files, also if it is a link to another disk. Errors: OSError."""
        if self.dir.is_dir():
            shutil.rmtree(self.dir.resolve())
        if self.dir.is_symlink():
            self.dir.unlink()

    def log_tail(self, lines: int) -> str:
        """Return the last lines of the log. Bytes that are not UTF-8 become replacement characters."""
        last: deque[str] = deque(maxlen=lines)
        for path in (self.older_log, self.log):
            if path.is_file():
                with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                    last.extend(file)
        return "".join(last)
