"""Settings from `VITALS_*` environment variables: folders, database, and how runs are started."""

import os
import re
import shlex
import stat
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.roots import expand_home
from engine.specs import Refused, describe_error

ROOT = Path(__file__).resolve().parent.parent


class Settings(BaseSettings):
    """All settings. An entry point reads them once and passes them on; no other module reads the environment."""

    model_config = SettingsConfigDict(env_prefix="VITALS_", frozen=True, allow_inf_nan=False)

    catalog_dir: Path = Field(ROOT / "data" / "catalog", description="The shipped catalogue of counted models.")
    runs_dir: Path = Field(ROOT / "data" / "runs", description="One folder per run: log, exit record, artifacts.")
    database_url: str = Field(
        "", repr=False, description="Store: postgresql://USER:PASSWORD@HOST/DATABASE; empty: SQLite in runs_dir."
    )
    artifacts_url: str = Field(
        "",
        repr=False,
        description="Copies of all runs' files for other machines: s3://BUCKET/PREFIX or a folder; empty: none.",
    )
    ray_address: str = Field(
        "", description="Ray cluster that takes runs too: its dashboard, http://HOST:8265; empty: none."
    )
    queue_limit: int = Field(500, ge=1, description="Maximum number of waiting runs.")
    user_queue_limit: int = Field(50, ge=1, description="Maximum number of waiting runs of one signed-in user.")
    lease_s: float = Field(15, gt=0, description="Seconds of silence after which a scheduler or worker counts as lost.")
    idle_exit_s: float = Field(
        900, gt=0, description="Seconds without work and browsers after which a scheduler exits."
    )
    stop_grace_s: float = Field(10, gt=0, description="Seconds between asking a cancelled run to stop and killing it.")
    min_free_gb: float = Field(1, ge=0, description="Free disk space below which no run starts, in GB (1e9 bytes).")
    preload: str = Field(
        "torch,timm,open_clip,engine.tasks.profile,engine.tasks.benchmark,engine.tasks.recurrent,engine.tasks.device,"
        "engine.tasks.train,engine.tasks.evaluate",
        description="Modules the warm process imports ahead, comma-separated; empty: every worker starts cold.",
    )
    data_roots: str = Field(
        "", description="Folders from which runs may read data and weights, as in PATH; empty: the home folder."
    )
    log_limit_mb: float = Field(10, gt=0, description="Size at which a run's log is cut, in MB (1e6 bytes).")

    public: bool = Field(
        False, description="Serve other machines without sign-in: only behind a proxy that authenticates users."
    )
    admins: str = Field("", description="Who may change the runs of all users: e-mails and @domains, comma-separated.")
    runners: str = Field("", description="Who may start runs and change their own: e-mails and @domains.")
    viewers: str = Field("", description="Who may only look: e-mails and @domains.")

    def __init__(self, **values: Any) -> None:
        """Read the settings. Errors: Refused, with the names of the variables whose values are invalid."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            sentences = [
                f"VITALS_{str(problem['loc'][0]).upper()}: {describe_error(problem)} (given: {problem['input']!r})"
                for problem in error.errors()
            ]
            raise Refused("; ".join(sentences)) from None

    @field_validator("catalog_dir", "runs_dir", mode="before")
    @classmethod
    def _fill_folder(cls, folder: str | Path, info: ValidationInfo) -> Any:
        """Return an absolute path, because processes of a run have other current folders. Expand `~`.

        An empty folder means the default; it would otherwise be the current one.
        """
        return expand_home(str(folder or cls.model_fields[info.field_name or ""].default)).absolute()

    @field_validator("artifacts_url")
    @classmethod
    def _expand_home(cls, url: str) -> str:
        return str(expand_home(url)) if url.startswith("~") else url

    @field_validator("admins", "runners", "viewers")
    @classmethod
    def _check_names(cls, text: str) -> str:
        """Return the e-mails and domains in lower case and without spaces. Errors: ValueError."""
        names = [name.strip().lower() for name in text.split(",") if name.strip()]
        for name in names:
            if not re.fullmatch(r"[!-)+-?A-~]*@[a-z0-9.-]+", name):
                raise ValueError(f"{name!r} is neither an e-mail such as ann@example.org nor a domain as @example.org")
        return ",".join(names)

    @property
    def device_dir(self) -> Path:
        """Return the folder of devices that were calibrated from files."""
        return self.runs_dir / "devices"

    @property
    def roots(self) -> tuple[Path, ...]:
        """Return the folders that may be read: data_roots, the runs folder, and the shipped data."""
        folders = [expand_home(root) for root in self.data_roots.split(os.pathsep) if root] or [expand_home("~")]
        return tuple(root.resolve() for root in [*folders, self.runs_dir, ROOT / "data"])

    @property
    def public_warning(self) -> str:
        """Return a warning, for log and pages, about what visitors may do without sign-in; empty unless `public`."""
        if not self.public:
            return ""
        warning = (
            "VITALS_PUBLIC=1, and sign-in is not configured: whoever reaches this server can run models, delete runs "
            "and read the data folders."
        )
        if not any(self.data_roots.split(os.pathsep)):
            warning += " VITALS_DATA_ROOTS is empty, so these include the whole home folder."
        return warning

    @property
    def sharing_warning(self) -> str:
        """Return a warning that other users can read the runs folder, for the log; empty if only its owner can.

        The mode of an existing folder is not changed, because its owner may share it on purpose.
        """
        if not self.runs_dir.is_dir():
            return ""
        mode = stat.S_IMODE(self.runs_dir.stat().st_mode)
        if not mode & 0o077:
            return ""
        return (
            f"Other users of this machine have access to the runs folder {self.runs_dir} (mode {mode:o}), which holds "
            f"the store, logs and uploads. Unless you share it on purpose: chmod 700 {shlex.quote(str(self.runs_dir))}"
        )

    def make_runs_dir(self) -> None:
        """Create the runs folder, if it does not exist, with access for its owner only.

        This protects everything inside. The modes of the contents follow the umask, so that one chmod shares all of it.
        """
        self.runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def refusal(self) -> str:
        """Return why no store can be opened with these settings, without a secret in a URL; empty if one can."""
        if self.ray_address and self.store_url.startswith("sqlite"):
            return (
                f"VITALS_RAY_ADDRESS is {self.ray_address}, but the store is SQLite, whose file must be on a local "
                "disk: nodes of a cluster cannot write to it. Set VITALS_DATABASE_URL to a PostgreSQL database "
                "(docs/deploy.md)"
            )
        place, _, rest = self.artifacts_url.partition("://")
        if re.search(r":.*@|[?#]", rest):
            return (
                "VITALS_ARTIFACTS_URL holds a password, keys or options, and URLs appear in logs. Name the place only, "
                "as in s3://BUCKET/PREFIX. Credentials belong into ~/.aws or into AWS_ACCESS_KEY_ID and the like"
            )
        if self.artifacts_url and not rest and not Path(place).is_absolute():
            return "VITALS_ARTIFACTS_URL is neither a URL such as s3://BUCKET/PREFIX nor the absolute path of a folder"
        return ""

    @property
    def store_url(self) -> str:
        """Return the SQLAlchemy URL of the store."""
        return self.database_url or sqlite_url(self.runs_dir / "vitals.sqlite")


def sqlite_url(file: Path) -> str:
    """Return SQLAlchemy's URL of an SQLite file, with the signs escaped that have a meaning in URLs."""
    return "sqlite:///" + str(file).replace("%", "%25").replace("?", "%3F")
