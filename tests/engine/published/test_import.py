"""Import of newer tables from the publishers: which values are read, and which files are refused."""

from pathlib import Path
from threading import Event, Thread

import pandas as pd
import pytest

from engine import atomic
from engine.__main__ import main
from engine.published import match, update
from engine.published.publishers import TABLES
from engine.published.update import take
from engine.settings import Settings
from engine.specs import Refused

TIMM = """model,top1,top1_err,top5,top5_err,param_count,img_size,crop_pct,interpolation
resnet50.a1_in1k,81.214,18.786,95.102,4.898,25.56,288,1.000,bicubic
eva_giant_patch14_560.m30m_ft_in22k_in1k,89.786,10.214,98.992,1.008,"1,014.45",560,1.000,bicubic
brand_new.tag_in1k,77.000,23.000,93.000,7.000,10.00,224,0.900,bicubic
"""


def clip(kind: str, *rows: dict[str, str]) -> str:
    """Return a table as open_clip publishes it, with 0.5 for each accuracy that `rows` does not give."""
    headings = [
        "name",
        "pretrained",
        "params (M)",
        "FLOPs (B)",
        *(accuracy.heading for accuracy in TABLES[kind].accuracies),
    ]
    defaults = dict.fromkeys(headings, "0.5000") | {"name": "ViT-B-32", "pretrained": "openai"}
    lines = [",".join((defaults | row)[heading] for heading in headings) for row in rows or ({},)]
    return "\n".join([",".join(headings), *lines]) + "\n"


def percent(folder: Path, model: str, accuracy: str, pretrained: str = "", size: str = "") -> list[tuple[float, str]]:
    lines = match.read(folder)
    lines = lines[(lines["model"] == model) & (lines["accuracy"] == accuracy)]
    lines = lines[lines["image_size"] == size] if size else lines
    lines = lines[lines["pretrained"] == pretrained] if pretrained else lines
    return list(lines[["percent", "source"]].itertuples(index=False, name=None))


@pytest.mark.parametrize(
    "content", ["", "library,model,pretr", "library,model,pretrained,image_size,accuracy,percent,source\ntimm,a"]
)
def test_damaged_import_is_named_with_its_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "timm_imagenet.csv").write_text(content)
    for read in (lambda: match.read(tmp_path), lambda: take(TIMM.encode(), "results-imagenet.csv", tmp_path)):
        with pytest.raises(Refused, match=r"timm_imagenet\.csv is no table .* that can be read: delete it, and import"):
            read()


@pytest.mark.slow
def test_imported_timm_table_replaces_shipped_values(tmp_path: Path) -> None:
    message = take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    assert message.startswith("3 rows of huggingface/pytorch-image-models: ")
    ((top1, source),) = percent(tmp_path, "resnet50", "imagenet_top1", "a1_in1k", "288")
    assert top1 == 81.214
    assert "results-imagenet.csv, imported 20" in source
    assert percent(tmp_path, "brand_new", "imagenet_top5") == [(93.0, source)]
    ((_, other),) = percent(
        tmp_path, "resnet50", "imagenet_v2_top1", "a1_in1k", "288"
    )  # other test sets keep the shipped values
    assert "imported" not in other
    again = take(TIMM.encode("utf-8-sig"), "results-imagenet.csv", tmp_path)
    assert ": 0 new values, 0 changed." in again
    changed = take(TIMM.replace("77.000,23.000", "78.000,22.000").encode(), "results-imagenet.csv", tmp_path)
    assert ": 0 new values, 1 changed." in changed
    assert percent(tmp_path, "brand_new", "imagenet_top1")[0][0] == 78.0
    (file,) = tmp_path.glob("*.csv")
    file.write_text(file.read_text().replace(",accuracy,", ",figure,", 1))  # the column name of older versions
    assert percent(tmp_path, "brand_new", "imagenet_top1")[0][0] == 78.0
    again = take(TIMM.encode("utf-8-sig"), "results-imagenet.csv", tmp_path)
    assert ": 0 new values, 1 changed." in again
    assert percent(tmp_path, "brand_new", "imagenet_top1")[0][0] == 77.0


@pytest.mark.slow
def test_imports_at_the_same_moment_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second import begins while the first one writes."""
    second = TIMM.replace("brand_new", "newer")
    threads, begun, merge, write = list[Thread](), Event(), update._merge, atomic.write

    def noted_merge(lines: pd.DataFrame, path: Path) -> None:
        if threads:
            begun.set()
        merge(lines, path)

    def slow_write(path: Path, content: str) -> None:
        if not threads:
            threads.append(Thread(target=take, args=(second.encode(), "results-imagenet.csv", tmp_path)))
            threads[0].start()
            assert begun.wait(60)
            threads[0].join(timeout=0.5)
        write(path, content)

    monkeypatch.setattr(update, "_merge", noted_merge)
    monkeypatch.setattr(atomic, "write", slow_write)
    take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    threads[0].join()
    assert [len(percent(tmp_path, model, "imagenet_top1")) for model in ("brand_new", "newer")] == [1, 1]


@pytest.mark.slow
def test_imports_are_merged_with_earlier_ones(tmp_path: Path) -> None:
    take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    message = take(TIMM.replace("brand_new", "newer_still").encode(), "results-imagenet.csv", tmp_path)
    assert ": 2 new values, 0 changed." in message
    take(TIMM.encode(), "results-imagenet-a.csv", tmp_path)
    assert percent(tmp_path, "brand_new", "imagenet_top1")
    assert percent(tmp_path, "newer_still", "imagenet_top1")
    assert percent(tmp_path, "brand_new", "imagenet_a_top1")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"timm_imagenet.csv", "timm_imagenet_a.csv", ".lock"}, "and no incomplete file"


@pytest.mark.parametrize(
    ("kind", "heading", "accuracy"),
    [
        ("openclip_zeroshot", "ImageNet 1k", "zeroshot_imagenet_1k"),
        ("openclip_retrieval", "MSCOCO text retr. R@5", "retrieval_mscoco_image_to_text_r5"),
    ],
)
def test_fractions_in_tables_of_open_clip_become_percentages(
    tmp_path: Path, kind: str, heading: str, accuracy: str
) -> None:
    perfect = TABLES[kind].accuracies[0]
    message = take(clip(kind, {heading: "0.5800", perfect.heading: "1.0000"}).encode(), "any name.csv", tmp_path)
    assert message.startswith("1 row of mlfoundations/open_clip: ")
    ((value, source),) = percent(tmp_path, "ViT-B-32", accuracy, "openai")
    assert value == 58.0, "not 57.99999999999999"
    assert percent(tmp_path, "ViT-B-32", perfect.name, "openai")[0][0] == 100.0
    assert "any name.csv, imported" in source


REFUSED = [
    (TIMM.replace("top5_err", "top5_error"), "results-imagenet.csv", "lacks the columns top5_err"),
    (TIMM, "results-mine.csv", "these are taken, by their names: results-imagenet.csv, results-imagenet-real.csv"),
    (
        TIMM.replace("81.214", "181.214"),
        "results-imagenet.csv",
        "line 2: top1 is '181.214', which is not from 0 to 100",
    ),
    (TIMM.replace("81.214", "81.226"), "results-imagenet.csv", "which is not 100 less its top1_err"),
    (TIMM.replace("81.214", "nan"), "results-imagenet.csv", "which is not a number"),
    (TIMM.replace(",288,", ",0,"), "results-imagenet.csv", "img_size is '0', which is not pixels"),
    (TIMM.replace(",288,", ",1e300,"), "results-imagenet.csv", "which is not pixels"),
    (TIMM.replace(",288,", ",28.5,"), "results-imagenet.csv", "which is not pixels"),
    (TIMM + TIMM.splitlines()[1] + "\n", "results-imagenet.csv", "resnet50 a1_in1k 288 twice"),
    (TIMM.replace("resnet50", "<b>x</b>"), "results-imagenet.csv", "which is not a name"),
    (TIMM.splitlines()[0] + "\n", "results-imagenet.csv", "0 rows"),
    ("<html>\n<p>no table</p>\n", "results-imagenet.csv", "none of the layouts that are known"),
    ("", "results-imagenet.csv", "^results-imagenet.csv is no CSV that can be read: No columns"),
    (
        "\x00\xff\n" * 10,
        "x.csv",
        "^x.csv is no CSV .* can't decode byte 0xff in position 1",
    ),
    (TIMM.replace("bicubic\nbrand", "bicubic,1,2\nbrand"), "results-imagenet.csv", "no CSV that can be read"),
    (TIMM.replace("bicubic\n", "bicubic,1\n"), "results-imagenet.csv", "more cells in a line than it has columns"),
    (clip("openclip_zeroshot", {"MNIST": "68.3"}), "openclip_results.csv", "line 2: MNIST is '68.3', .* from 0 to 1"),
    (clip("openclip_zeroshot", {"MNIST": ""}), "openclip_results.csv", "MNIST is '', which is not a number"),
    (clip("openclip_zeroshot", {}, {}), "openclip_results.csv", "ViT-B-32 openai twice"),
    (clip("openclip_zeroshot").replace("MNIST", "M"), "openclip_results.csv", "lacks the columns MNIST"),
    ("a" * (update.LARGEST_FILE + 1), "results-imagenet.csv", "at most 5,000,000 are taken"),
]


@pytest.mark.parametrize(("text", "name", "why"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_tables_are_refused_and_change_nothing(tmp_path: Path, text: str, name: str, why: str) -> None:
    take(TIMM.encode(), "results-imagenet.csv", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Refused, match=why):
        take(text.encode("latin-1"), name, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_fractions_in_a_table_of_timm_are_refused(tmp_path: Path) -> None:
    head, *rows = TIMM.splitlines()
    fractions = [",".join([row.split(".")[0], "0.8", "0.2", "0.9", "0.1", "1", "224", "1", "bicubic"]) for row in rows]
    with pytest.raises(Refused, match=r"line 2: top1 is '0.8', which is not 100 less its top1_err"):
        take("\n".join([head, *fractions]).encode(), "results-imagenet.csv", tmp_path)
    best = ["a.x,90.052,9.948,99.048,0.952,1,448,1,bicubic", "b.x,99.970,0.020,99.970,0.030,1,448,1,bicubic"]
    message = take("\n".join([head, *best]).encode("utf-8-sig"), "results-imagenet.csv", tmp_path)
    assert message.startswith("2 rows"), "all errors are below 1 %, one accuracy and its error were rounded"


def counts(shown: str) -> list[list[int]]:
    """Return rows, matched and unmatched of each publisher's table."""
    return [[int(cell) for cell in line.split()[1:]] for line in shown.splitlines()[1:]]


@pytest.mark.slow
def test_published_import_and_published_commands_work(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results-imagenet (1).csv"  # a second download
    file.write_text(TIMM)
    assert main(["published"]) == 0
    (rows, matched, _), *_ = counts(capsys.readouterr().out)
    assert main(["published-import", str(file)]) == 0
    shown = capsys.readouterr()
    assert "3 rows of huggingface/pytorch-image-models" in shown.err
    assert counts(shown.out)[0] == [rows + 1, matched, rows + 1 - matched], "two are shipped, and one has no model"
    assert main(["published", "--unmatched"]) == 0
    assert "brand_new" in capsys.readouterr().out
    assert percent(settings.runs_dir / "published", "brand_new", "imagenet_top1")
    assert main(["published-import", str(tmp_path / "absent.csv")]) == 2
    assert main(["published-import", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    "address",
    [
        *("https://example.org/results-imagenet.csv", "http://[::1", "https://[::1", "HTTPS://host/a.csv", "https:/a"),
        *("ftp://host/a.csv", "s3://bucket/a.csv", "file:///etc/hostname", " https://a/b.csv"),
    ],
)
def test_web_addresses_are_refused_with_download_instructions(
    settings: Settings, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    assert main(["published-import", address]) == 2
    message = capsys.readouterr().err
    assert f"no file at {address}: download the table" in message
    assert "https://github.com/huggingface/pytorch-image-models/tree/main/results" in message
    assert "https://github.com/mlfoundations/open_clip/tree/main/docs" in message
    assert not (settings.runs_dir / "published").exists()
