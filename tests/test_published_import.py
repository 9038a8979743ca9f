"""Importing newer versions of the publishers' own tables: what is taken, what is refused, and from where."""

import socket
from pathlib import Path

import pytest

from engine.__main__ import main
from engine.report import accuracies, accuracy_import
from engine.report.accuracy_import import take
from engine.report.fetch import fetch, is_public
from engine.report.publishers import TABLES
from engine.settings import Settings
from engine.specs import Refused
from tests.https_support import serve

TIMM = """model,top1,top1_err,top5,top5_err,param_count,img_size,crop_pct,interpolation
resnet50.a1_in1k,81.214,18.786,95.102,4.898,25.56,288,1.000,bicubic
eva_giant_patch14_560.m30m_ft_in22k_in1k,89.786,10.214,98.992,1.008,"1,014.45",560,1.000,bicubic
brand_new.tag_in1k,77.000,23.000,93.000,7.000,10.00,224,0.900,bicubic
"""


def clip(kind: str, *rows: dict[str, str]) -> str:
    """A table of open_clip's, every figure 0.5 where nothing else is said."""
    headings = ["name", "pretrained", "params (M)", "FLOPs (B)", *(figure.heading for figure in TABLES[kind].figures)]
    known = dict.fromkeys(headings, "0.5000") | {"name": "ViT-B-32", "pretrained": "openai"}
    lines = [",".join((known | row)[heading] for heading in headings) for row in rows or ({},)]
    return "\n".join([",".join(headings), *lines]) + "\n"


def percent(folder: Path, model: str, figure: str, pretrained: str = "", size: str = "") -> list[tuple[float, str]]:
    lines = accuracies.read(folder)
    lines = lines[(lines["model"] == model) & (lines["figure"] == figure)]
    lines = lines[lines["image_size"] == size] if size else lines
    lines = lines[lines["pretrained"] == pretrained] if pretrained else lines
    return list(lines[["percent", "source"]].itertuples(index=False, name=None))


def test_timms_own_table_stands_in_for_what_was_shipped(tmp_path: Path) -> None:
    done = take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    assert (done.rows, done.table.kind) == (3, "timm")
    ((top1, source),) = percent(tmp_path, "resnet50", "imagenet_top1", "a1_in1k", "288")
    assert top1 == 81.214
    assert "results-imagenet.csv, imported 20" in source
    assert percent(tmp_path, "brand_new", "imagenet_top5") == [(93.0, source)]
    ((_, other),) = percent(tmp_path, "resnet50", "imagenet_v2_top1", "a1_in1k", "288")  # another test set: as shipped
    assert "imported" not in other
    again = take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    assert (again.added, again.changed) == (0, 0)
    changed = take(TIMM.replace("77.000,23.000", "78.000,22.000").encode(), "results-imagenet.csv", tmp_path)
    assert (changed.added, changed.changed) == (0, 1)
    assert percent(tmp_path, "brand_new", "imagenet_top1")[0][0] == 78.0


def test_an_import_merges_with_earlier_ones(tmp_path: Path) -> None:
    take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    take(TIMM.replace("brand_new", "newer_still").encode(), "results-imagenet.csv", tmp_path)
    take(TIMM.encode(), "results-imagenet-a.csv", tmp_path)
    assert percent(tmp_path, "brand_new", "imagenet_top1")
    assert percent(tmp_path, "newer_still", "imagenet_top1")
    assert percent(tmp_path, "brand_new", "imagenet_a_top1")
    assert len(list(tmp_path.iterdir())) == 2  # and nothing half written


@pytest.mark.parametrize(
    ("kind", "heading", "figure"),
    [
        ("openclip_zeroshot", "ImageNet 1k", "zeroshot_imagenet_1k"),
        ("openclip_retrieval", "MSCOCO text retr. R@5", "retrieval_mscoco_image_to_text_r5"),
    ],
)
def test_open_clips_own_tables_are_fractions(tmp_path: Path, kind: str, heading: str, figure: str) -> None:
    done = take(clip(kind, {heading: "0.6543"}).encode(), "any name.csv", tmp_path, origin="https://there/any.csv")
    assert done.table.kind == kind
    ((value, source),) = percent(tmp_path, "ViT-B-32", figure, "openai")
    assert value == pytest.approx(65.43)
    assert "https://there/any.csv, imported" in source


REFUSED = [
    (TIMM.replace("top5_err", "top5_error"), "results-imagenet.csv", "lacks the columns top5_err"),
    (TIMM, "results-mine.csv", "these are taken, by their names: results-imagenet.csv, results-imagenet-real.csv"),
    (
        TIMM.replace("81.214", "181.214"),
        "results-imagenet.csv",
        "line 2: top1 is '181.214', which is not from 0 to 100",
    ),
    (TIMM.replace("81.214", "91.214"), "results-imagenet.csv", "which is not 100 less its top1_err"),
    (TIMM.replace("81.214", "nan"), "results-imagenet.csv", "which is not a number"),
    (TIMM.replace(",288,", ",0,"), "results-imagenet.csv", "img_size is '0', which is not pixels"),
    (TIMM.replace(",288,", ",28.5,"), "results-imagenet.csv", "which is not pixels"),
    (TIMM + TIMM.splitlines()[1] + "\n", "results-imagenet.csv", "resnet50 a1_in1k 288 twice"),
    (TIMM.replace("resnet50", "<b>x</b>"), "results-imagenet.csv", "which is not a name"),
    (TIMM.splitlines()[0] + "\n", "results-imagenet.csv", "0 rows"),
    ("<html>\n<p>no table</p>\n", "results-imagenet.csv", "none of the layouts that are known"),
    ("", "results-imagenet.csv", "no CSV that can be read"),
    ("\x00\xff\n" * 10, "x.csv", "no CSV that can be read"),
    (TIMM.replace("bicubic\nbrand", "bicubic,1,2\nbrand"), "results-imagenet.csv", "no CSV that can be read"),
    (TIMM.replace("bicubic\n", "bicubic,1\n"), "results-imagenet.csv", "more cells in a line than it has columns"),
    (clip("openclip_zeroshot", {"MNIST": "68.3"}), "openclip_results.csv", "line 2: MNIST is '68.3', .* from 0 to 1"),
    (clip("openclip_zeroshot", {"MNIST": ""}), "openclip_results.csv", "MNIST is '', which is not a number"),
    (clip("openclip_zeroshot", {}, {}), "openclip_results.csv", "ViT-B-32 openai twice"),
    (clip("openclip_zeroshot").replace("MNIST", "M"), "openclip_results.csv", "lacks the columns MNIST"),
    ("a" * (accuracy_import.LARGEST_FILE + 1), "results-imagenet.csv", "at most 5,000,000 are taken"),
]


@pytest.mark.parametrize(("text", "name", "why"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_is_refused_and_changes_nothing(tmp_path: Path, text: str, name: str, why: str) -> None:
    take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Refused, match=why):
        take(text.encode("latin-1"), name, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_fractions_in_timms_layout_are_noticed(tmp_path: Path) -> None:
    head, *rows = TIMM.splitlines()
    small = [",".join([row.split(".")[0], "0.8", "0.2", "0.9", "0.1", "1", "224", "1", "bicubic"]) for row in rows]
    with pytest.raises(Refused, match=r"fractions of 1|100 less"):
        take("\n".join([head, *small]).encode(), "results-imagenet.csv", tmp_path)


def test_the_command_imports_and_lists(tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results-imagenet.csv").write_text(TIMM)
    assert main(["published-import", str(tmp_path / "results-imagenet.csv")]) == 0
    assert "3 rows of huggingface/pytorch-image-models" in capsys.readouterr().err
    assert main(["published", "--unmatched"]) == 0
    assert "brand_new" in capsys.readouterr().out
    assert percent(settings.runs_dir / "published", "brand_new", "imagenet_top1")
    assert main(["published-import", "http://example.org/results-imagenet.csv"]) == 2
    assert "has to begin with https://" in capsys.readouterr().err
    assert main(["published-import", str(tmp_path / "absent.csv")]) == 2


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "::1", "fe80::1", "0.0.0.0", "100.64.0.1"]
)
def test_local_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)
    assert is_public("140.82.121.4")


@pytest.mark.parametrize(
    "url", ["http://example.org/a.csv", "file:///etc/passwd", "https://", "ftp://a/b", "https://user:secret@host/a.csv"]
)
def test_other_addresses_than_https_are_refused(url: str) -> None:
    with pytest.raises(Refused, match="has to begin with https://"):
        fetch(url, 1000)


def test_nothing_is_asked_of_a_local_address() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        with pytest.raises(Refused, match="not on the public internet"):
            fetch(f"https://localhost:{listener.getsockname()[1]}/results-imagenet.csv", 1000)
        with pytest.raises(TimeoutError):
            listener.accept()


def anywhere(_address: str) -> bool:
    return True


def test_a_table_comes_from_an_address_within_limits(tmp_path: Path) -> None:
    answers = {
        "/results/results-imagenet.csv": (200, {}, TIMM.encode()),
        "/moved.csv": (302, {"Location": "/results/results-imagenet.csv"}, b""),
        "/down.csv": (302, {"Location": "http://localhost/results-imagenet.csv"}, b""),
        "/file.csv": (302, {"Location": "file:///etc/passwd"}, b""),
    }
    with serve(tmp_path, answers) as (url, trust):
        options = {"allowed": anywhere, "context": trust}
        for path in ("/results/results-imagenet.csv", "/moved.csv"):
            assert fetch(url + path, 5000, **options) == (TIMM.encode(), "results-imagenet.csv")
        with pytest.raises(Refused, match="answers 404"):
            fetch(f"{url}/absent.csv", 5000, **options)
        with pytest.raises(Refused, match="more than 100 bytes"):
            fetch(f"{url}/moved.csv", 100, **options)
        with pytest.raises(Refused, match="unknown url type: http"):
            fetch(f"{url}/down.csv", 5000, **options)
        with pytest.raises(Refused, match=r"answers 302 .*file"):
            fetch(f"{url}/file.csv", 5000, **options)
        with pytest.raises(Refused, match=r"cannot be fetched .*certificate"):
            fetch(f"{url}/moved.csv", 5000, allowed=anywhere)


def test_a_redirect_to_a_local_address_is_refused(tmp_path: Path) -> None:
    """The first host may be asked, the one it sends to may not."""
    asked: list[str] = []

    def only_first(address: str) -> bool:
        asked.append(address)
        return len(asked) == 1

    answers = {"/a.csv": (302, {"Location": "/b.csv"}, b""), "/b.csv": (200, {}, b"secret")}
    with serve(tmp_path, answers) as (url, trust), pytest.raises(Refused, match="not on the public internet"):
        fetch(f"{url}/a.csv", 5000, allowed=only_first, context=trust)
