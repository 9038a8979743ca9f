"""What tests of pages share: a small catalogue, stored runs, and a way to open a page."""

from collections.abc import Iterable
from pathlib import Path

from streamlit.testing.v1 import AppTest

from engine.results import Environment, OperatorCount, ProfileRow, Progress
from engine.settings import ROOT
from engine.specs import ProfileSpec
from engine.store import Store

CATALOGUE = """library,model,family,image_size,mparams,gmacs,macts,inference_peak_mb,complete,uncounted,notes,\
status,error
open_clip,ViT-B-32,clip_vit,224,151.28,7.39,10.3,608,True,{},[],ok,
open_clip,ViT-L-14,clip_vit,224,427.62,87.73,123.0,1800,True,{},[],ok,
timm,resnet18,resnet,224,11.69,1.82,2.5,56,True,{},[],ok,
timm,resnet50,resnet,224,25.56,4.09,11.1,113,True,{},[],ok,
timm,vit_tiny_patch16_224,vision_transformer,224,5.72,1.26,5.97,30,True,{},[],ok,
timm,odd_one,oddity,320,9.0,3.0,4.0,60,False,"{""sort"": 2}","[""work of unknown size is missing: sort (2 calls)""]",ok,
timm,broken,oddity,1024,,,,,True,{},[],error,RuntimeError: **no** <b>way</b>
"""


def write_catalogue(folder: Path) -> Path:
    """A catalogue of seven rows, one incomplete and one failed."""
    folder.mkdir()
    lines = CATALOGUE.splitlines(keepends=True)
    for library in ("open_clip", "timm"):
        rows = [line for line in lines[1:] if line.startswith(f"{library},")]
        (folder / f"{library}.csv").write_text("".join([lines[0], *rows]))
    (folder / "versions.json").write_text('{"torch": "0.0.1", "counted_on": "2026-11-20"}')
    return folder


def open_page(path: str = "", **query: str) -> AppTest:
    """The app at one of its pages, such as `costs/profile.py`; the default page without a path."""
    app = AppTest.from_file(str(ROOT / "pages" / "frame.py"), default_timeout=30)
    if path:
        app.run()
        app.switch_page(path)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def texts(app: AppTest) -> str:
    """All that a reader can read outside of tables and charts."""
    kinds = (app.title, app.subheader, app.caption, app.markdown, app.text, app.code, app.error, app.warning, app.info)
    return "\n".join(str(element.value) for elements in kinds for element in elements)


def profile_row(model: str, library: str = "timm", **figures: object) -> ProfileRow:
    known: dict[str, object] = {
        **{"library": library, "model": model, "counter": "torch", "device": "meta", "batch_size": 1},
        **{"precision": "float32", "image_size": "224", "mparams": 10.0, "gmacs": 2.0, "gflops": 4.0, "macts": 3.0},
        **{"image_mparams": 10.0, "image_gmacs": 2.0, "image_macts": 3.0, "seconds": 0.5},
        "operators": (
            OperatorCount(
                **{"operator": "mm", "calls": 4, "flops": 4_000_000_000, "activations": 3_000_000},
                **{"read_bytes": 5_000_000, "written_bytes": 1_000_000, "work": "counted"},
            ),
        ),
    }
    return ProfileRow.model_validate(known | figures)


ENVIRONMENT = Environment(
    **{"host": "here", "platform": "Linux", "python": "3.11", "cpu": "cpu", "threads": 2, "memory_gb": 8.0},
    **{"device": "meta", "device_name": "meta", "versions": {"torch": "2.15.0"}, "date": "2026-11-20T00:00:00+00:00"},
)


def events(rows: Iterable[ProfileRow], total: int) -> list[Environment | Progress | ProfileRow]:
    """What a task yields for such rows."""
    out: list[Environment | Progress | ProfileRow] = [ENVIRONMENT]
    for done, row in enumerate(rows):
        out += [Progress(done=done, total=total, note=row.model), row]
    return [*out, Progress(done=len(out) // 2, total=total)]


def queue(store: Store, *models: str, **fields: object) -> int:
    """A queued profile run that no scheduler knows of."""
    return store.enqueue(ProfileSpec.model_validate({"models": models, **fields}))
