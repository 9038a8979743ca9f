"""The command line: usage, output and exit codes, in this process or in one of its own."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from engine.__main__ import main
from engine.cli import output
from engine.results import DeviceRow, OperatorCount, Progress
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec
from engine.store import State, Store, attempts
from tests.support.clip import evaluate_row, train_row
from tests.support.page import benchmark_row, profile_row

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 100, "width": 16, "heads": 2, "layers": 1},
}
REFERENCE = (
    "model,image_size,image_width,text_width,embed_dim,mparams,image_mparams,text_mparams,"
    "gflops,image_gflops,text_gflops"
)


def engine(*arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process until it ends. It uses the temporary store of the `settings` fixture."""
    command = [sys.executable, "-m", "engine", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=cwd, env=environment)


@pytest.mark.parametrize(
    ("command", "condition"),
    [
        *((name, "no timing runs on this host and no other run uses its device") for name in ("profile", "train")),
        ("evaluate", "no timing runs on this host and no other run uses its device"),
        *((name, "no other run is active on this host") for name in ("benchmark", "device", "recurrent", "calibrate")),
    ],
)
def test_help_explains_when_a_command_starts(command: str, condition: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"It does not join the queue: it starts as soon as {condition}." in shown
    assert "without queueing" not in shown


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.mark.parametrize(
    "command", [[], ["profile"], ["submit", "profile"], ["recurrent"], ["runs"], ["catalog"], ["scheduler"]]
)
def test_help_lists_commands_flags_and_exit_codes(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m engine")
    if not command:
        assert main(["--version"]) == 0
        assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)
        assert "\nExit codes: 0 success; 1 " in shown
        assert "  stop " in shown
        assert not re.search(r"^ +(warm|work|probe|answer)\b", shown, re.M)
    if "recurrent" in command:
        assert "Image size of the ResNets: N or HxW in pixels.\n                        (default: 224)\n" in shown
    if "profile" in command:
        assert "--models PATTERNS" in shown
        assert "--image-size SIZE" in shown
        assert "Images per forward pass." in shown
        assert "config" not in shown.partition("options:")[2].lower().replace("configuration", "")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["profile"], "error: the following arguments are required: --models"),
        (
            ["profile", "--models", "resnet18", "--batch-size", "0"],
            "--batch-size: must be at least 1",
        ),
        (
            ["profile", "--models", "resnet18", "--image-size", "big"],
            "--image-size: image size 'big' is neither N nor HxW",
        ),
        (
            ["benchmark", "--models", "resnet18", "--batch-size", "few"],
            "error: --batch-size: 'few' is neither a number from 1 to 65536 nor one of recorded, sweep, max, listed\n",
        ),
        (["profile", "--models", "resnet18", "--output", "rows.xlsx"], "rows.xlsx is neither a .csv nor a .json nor a"),
        (
            ["profile", "--models", "resnet18", "--output", "/no/such/folder/rows.csv"],
            "there is no folder /no/such/folder",
        ),
        (["profile", "--models", "resnet18", "--speed", "9"], "unrecognized arguments: --speed 9"),
        (["submit", "train", "--steps", "5", "--optimizer=lion"], "--optimizer=lion\nclosest: --opt"),
        (["profile", "--models", "@absent.txt"], "no file of names at absent.txt"),
        (["submit", "profile", "--models", "ViT-B-23"], "no model matches 'ViT-B-23'; closest: open_clip:ViT-B-32"),
        (
            ["evaluate", "--model", "timm:resnet18"],
            "'timm:resnet18' is no CLIP model. Give a model of open_clip, digits-clip, a configuration of your own "
            "(FILE.json; in the form, an added file) or the number of a training run",
        ),
        (
            ["submit", "train", "--model", "open_clip:ViT-B-33"],
            "'ViT-B-33' is no CLIP model. Give a model of open_clip (",
        ),
        (["submit", "train", "--model", "config:mine"], "digits-clip or a configuration of your own (FILE.json; in"),
        (["submit", "profile", "--models", "resnet50"], "write timm:resnet50 or torchvision:resnet50"),
        (["catalog", "--sort", "beauty"], "no column 'beauty' to sort by; there are name, library, model"),
        (["runs", "show", "77"], "there is no run 77"),
        (["runs", "show", "9" * 30], "must be less than 9,223,372,036,854,775,808"),
        (["runs", "export", "1", "--output", "/no/such/folder/run.zip"], "there is no folder /no/such/folder"),
        (["catalog", "--output", "tests.csv/x.csv"], "there is no folder"),
        (["catalog", "--family", "resnet,resnt"], "no model matches 'family:resnt'; closest families: resnet"),
        (["catalog", "--match", "{*,*}" * 20], "these are more than 3,000 patterns"),
        (["runs", "import", "absent.zip"], "no bundle at absent.zip"),
        (["train", "--model", "a b"], "--model: must be the name of a model: letters, digits and"),
        (["dance"], "there is no command 'dance'; --help lists them"),
        (["prifile", "--models", "RN50"], "error: there is no command 'prifile'; --help lists them\nclosest: profile"),
        (["submit", "trian", "--lr", "1"], "error: there is no command 'trian'; --help lists them\nclosest: train"),
        (["profile", "--modles", "RN50"], "are required: --models\nclosest: --models, --model-kwargs"),
        (["device", "--speed", "9"], "error: unrecognized arguments: --speed 9\n"),
        (["submit", "device", "cpu"], "error: unrecognized arguments: cpu\n"),
        (
            ["profile", "--models", "RN50", "RN101"],
            "arguments: RN101 (separate several values of one flag with commas:",
        ),
        (["train", "--data", "0.tar", "1.tar"], "quote the braces of shards: --data '{00..07}.tar')"),
        (["store"], "error: a command is missing\nusage: "),
        (["submit"], "error: a command is missing\nusage: "),
        (["store", "copy", "--to", "foo"], "the target has no URL that can be read. Give postgresql://USER"),
        (["estimate", "--models", "timm:resnet18", "--device", "xyz"], "choose one of\n  Intel Core i7-12700H, fp32"),
    ],
)
def test_bad_usage_prints_the_reason_and_exits_with_2(
    settings: Settings, capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert main(arguments) == 2
    assert answer in capsys.readouterr().err


def test_errors_name_wrong_settings_and_a_missing_catalogue(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(tmp_path / "nothing"))
    for arguments, answer in (
        (["catalog"], f"no catalogue in {tmp_path}/nothing: `python -m engine catalog-build` makes one"),
        (["estimate", "--models", "x"], "no model matches 'x'; the folder VITALS_CATALOG_DIR has no catalogue"),
    ):
        assert main(arguments) == 2
        assert answer in capsys.readouterr().err
    monkeypatch.setenv("VITALS_LEASE_S", "abc")
    monkeypatch.setenv("VITALS_ADMINS", "ann")
    assert main(["runs"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "VITALS_LEASE_S: must be a number (given: 'abc')" in line
    assert "VITALS_ADMINS: 'ann' is neither an e-mail" in line


def test_wrong_square_image_size_has_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--models", "resnet18", "--image-size", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --image-size: must be at least 1")


def test_default_derived_from_a_wrong_value_is_no_second_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "--models", "resnet18", "--device", "gpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --device: ")


@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("benchmark --models timm:test_vit --optimizer adamw", "--optimizer has no effect: inference takes no step"),
        ("benchmark --models timm:test_vit --mode training --optimizer adamw", ""),
        ("train --epochs-cooldown 3", "--epochs-cooldown has no effect: the scheduler is cosine, not const-cooldown"),
        ("train --opt timm/lamb --momentum 0.9", ""),
        ("train --data-weights 3", "--data-weights has no effect: the data have only one source"),
        (
            """evaluate --templates {} --class-prompts {"a":["b"]}""",
            "--templates has no effect: class_prompts has the prompts of each class",
        ),
        (
            "evaluate --held-out-data synthetic",
            "--held-out-data synthetic has no effect: it is none of the evaluated data, digits",
        ),
        (
            "evaluate --held-out-data digits --held-out-data my_data.csv",
            "--held-out-data my_data.csv has no effect: it is none of the evaluated data, digits",
        ),
        ("evaluate --held-out-data digits", ""),
        (
            "benchmark --models ViT-B-32 --tower image --context-length 16",
            "--context-length has no effect: the image tower takes no texts",
        ),
        (
            "benchmark --models ViT-B-32 --tower text --image-size 64",
            "--image-size has no effect: the text tower takes no images",
        ),
        ("benchmark --models ViT-B-32 --tower text --context-length 16", ""),
        ("evaluate --tasks zeroshot --recall-k 3", "--recall-k has no effect: the tasks do not include retrieval"),
        ("evaluate --tasks linear-probe --shots 3", ""),
        (
            'evaluate --tasks retrieval --class-prompts {"one":["1"]}',
            "--class-prompts has no effect: the tasks do not include zeroshot",
        ),
        (
            "train --lock-image-unlocked-groups 2",
            "--lock-image-unlocked-groups has no effect: the image tower is not locked",
        ),
        ("train --lock-text --lock-text-unlocked-layers 1", ""),
        ("train --coca-caption-weight 1", "--coca-caption-weight has no effect: the loss is clip, not coca"),
        ("train --local-loss", "--local-loss has no effect: there is only one process"),
        ("train --aug-re-count 2", "--aug-re-count has no effect: the probability of erasing is 0"),
        (
            "train --val-data digits --val-fraction 0.1",
            "--val-fraction has no effect: the held-out pairs have data of their own",
        ),
        (
            "recurrent --runners aten --cuda-pointwise-block-size 9",
            "--cuda-pointwise-block-size has no effect: cpu has no CUDA kernels",
        ),
        (
            "recurrent --runners aten --mini-batch 8 --sweep mini_batch --sweep-values 2,4",
            "--mini-batch has no effect: the sweep has values of its own",
        ),
        ("recurrent --runners aten --mini-batch 8 --sweep mini_batch", ""),
        ("train --lr 0.1 --sweep lr=0.01,0.001", "--lr has no effect: the sweep has values of its own"),
        (
            "benchmark --models timm:test_vit --purpose accuracy --replicates 4",
            "--replicates has no effect: results are compared, not timed",
        ),
        ("train --csv-img-key image", "--csv-img-key has no effect: the data are digits, not a file"),
    ],
)
def test_flags_without_effect_are_named(
    store: Store, no_scheduler: None, capsys: pytest.CaptureFixture[str], command: str, note: str
) -> None:
    assert main(["submit", *command.split()]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("expected duration: ")]
    assert lines == ([note] if note else [])


def test_control_characters_in_run_names_are_not_printed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.enqueue(ProfileSpec(models=("resnet18",)), name="x\n    9  profile    finished \x1b[2K\x1b]0;title\x07")
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].isprintable()


def test_tabs_in_cells_are_printed_as_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"model": ["a\tb", "c"], "error": ["none", "d\te"]})
    output.show_table(table, table, None)
    assert capsys.readouterr().out.splitlines() == ["model error", "  a b  none", "    c   d e"]


def test_limits_of_a_narrow_interval_differ_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"speedup": [1.0, None], "speedup_low": [1.0051, 0.99512], "speedup_high": [1.0144, None]})
    output.show_table(table, table, None)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [["1.000", "1.005", "1.014"], ["0.995"]], "and not 1.01 and 1.01"


def test_catalog_filters_sorts_and_exports(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = "catalog --source open_clip --match ViT-B-* --max-gmacs 60 --sort gmacs --descending".split()
    assert main(line) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"library", "model", "gmacs", "mparams"} <= set(lines[0].split())
    assert all("open_clip" in line and "ViT-B-" in line for line in lines[1:])
    assert main([*line, "--output", str(tmp_path / "found.csv")]) == 0
    exported = read_csv(tmp_path / "found.csv")
    assert f"{len(exported)} rows written to {tmp_path}" in capsys.readouterr().err
    assert main([*line, "--output", "-"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ((tmp_path / "found.csv").read_text(), "")
    assert len(exported) == len(lines) - 1 > 5
    gmacs = [float(row["gmacs"]) for row in exported]
    assert gmacs == sorted(gmacs, reverse=True)
    assert gmacs[0] <= 60


def test_catalog_accepts_family_wildcards_and_suggests_similar_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "--family", "resnet*,tre?net", "--max-mparams", "40"]) == 0
    shown = set(capsys.readouterr().out.split())
    assert shown & {"resnet18", "tresnet_m", "densenet121"} == {"resnet18", "tresnet_m"}
    assert main(["catalog", "--match", "resnet500"]) == 0
    assert "no model matches 'resnet500'; closest: resnet50, " in capsys.readouterr().err
    limits = ["--match", "resnet18", "--max-gmacs", "0.01"]
    assert main(["catalog", *limits]) == 0
    assert capsys.readouterr().err == "no rows\n"
    assert main(["catalog", *limits, "--max-mparams", "12"]) == 0
    parameters, macs, last = capsys.readouterr().err.splitlines()
    assert re.match(
        r"With only the limit Parameters \(M\) ≤ 12, [1-9]\d* of \d+ rows with a value remain\.", parameters
    )
    assert macs.startswith("With only the limit MACs (G) ≤ 0.01, 0 of ")
    assert last == "no rows"


def test_catalog_takes_a_library_by_both_names_of_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("--library", "--source"):
        assert main(["catalog", name, "torchvision", "--match", "resnet18"]) == 0
        assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [["torchvision", "resnet18"]]


def test_catalog_sorts_image_sizes_as_numbers(tmp_path: Path) -> None:
    table = str(tmp_path / "sizes.csv")
    assert main(["catalog", "--source", "timm", "--sort", "image_size", "--output", table]) == 0
    sizes = list(dict.fromkeys(row["image_size"] for row in read_csv(Path(table))))
    assert sizes.index("224") < sizes.index("384") < sizes.index("1024")


def test_progress_names_the_batch_size_of_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    for batch in (1, 8):
        output.print_progress(profile_row("resnet18", batch_size=batch))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[0].startswith("timm:resnet18 at 224 px: ")
    assert lines[1].startswith("timm:resnet18 at 224 px, batch 8: ")


def test_progress_prints_the_main_values_of_each_kind_of_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        train_row(2, zeroshot_top1=0.25, image_to_text_r1=0.5, samples_per_s=123.4, best=True),
        evaluate_row("zeroshot", data="a\x1b", acc1=0.5, acc5=0.75, mean_average_precision=0.125),
        evaluate_row("retrieval", data="b", recalls={"image_to_text_r20": 0.625}),
        DeviceRow(device="cpu", model="copy", operation="copy", dtype="float32", gb_per_s=12.3),
        DeviceRow(device="cpu", model="matmul", operation="matmul", dtype="float32", gflop_per_s=1234.5),
        benchmark_row("a", "compile", latency_ms=16.0, back_to_back_ms=12.0, samples_per_s=600.0),
        benchmark_row("a", status="error", error="line\nx\x1b"),
    ]
    for row in rows:
        output.print_progress(row)
    ranks = "image to text R@1 0.91, image to text R@5 0.95, text to image R@1 0.25, image to text R@20 0.625"
    assert [line.strip() for line in capsys.readouterr().err.splitlines()] == [
        "epoch 2, step 44: loss 1.5, zero-shot 0.25, image to text R@1 0.5; 123.4 pairs/s; the best so far",
        "digits-clip on a\ufffd (zeroshot): top-1 0.5, top-5 0.75, mean recall per class 0.93, mAP 0.125",
        f"digits-clip on b (retrieval): {ranks}",
        "copy: 12.3 GB/s",
        "matmul: 1,234 GFLOP/s",
        "timm:a (compile, inference, batch 8, 224 px): latency 16 ms, back to back 12 ms, 600 samples/s; "
        "1.25 times as fast as eager in latency (faster)",
        "timm:a (eager, inference, batch 8, 224 px): error: line x\ufffd",
    ]


def test_columns_without_values_are_not_printed() -> None:
    table = pd.DataFrame({"model": ["a"], "flags": [""], "r1": [0.5], "r20": [None]})
    assert list(output.brief(table, ["flags", "r[0-9]*", "model"])) == ["r1", "model"]


@pytest.mark.slow
def test_profile_counts_models_and_stores_the_run(
    store: Store, tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.csv"
    names.write_text("library,model\nopen_clip,ViT-B-32\ntimm,resnet18\n")
    table = str(tmp_path / "rows.csv")
    assert main(["profile", "--models", f"@{names},{tiny}", "--output", table, "--detail"]) == 0
    shown = capsys.readouterr()
    assert re.search(r"open_clip:ViT-B-32 at 224 px: 14\.78 GFLOPs", shown.err)
    rows = {row["model"]: row for row in read_csv(tmp_path / "rows.csv")}
    assert set(rows) == {"ViT-B-32", "resnet18", "tiny"}
    assert rows["resnet18"]["status"] == "ok"
    # He et al. 2015, table 1 gives 1.8e9 multiply-adds for ResNet-18
    assert float(rows["resnet18"]["gmacs"]) == pytest.approx(1.8, rel=0.02)
    assert "timm:resnet18 at 224 px by operator" in shown.out
    (run,) = store.runs()
    assert (run.state, run.kind, run.done) == (State.FINISHED, "profile", 3)
    assert len(store.rows(run.id)) == 3


@pytest.mark.slow
def test_detail_has_a_table_only_for_counted_models(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    models = ["--models", "timm:test_vit,timm:test_byobnet", "--image-size", "225"]
    assert main(["profile", *models, "--detail", "--output", "-"]) == 1
    shown = capsys.readouterr()
    assert {row["model"] for row in csv.DictReader(shown.out.splitlines())} == {"test_vit", "test_byobnet"}
    assert "timm:test_vit at 225 px failed (error): Image size 225 does not divide by the patch size 16" in shown.err
    assert re.findall(r"(\S+) at 225 px by operator", shown.err) == ["timm:test_byobnet"]
    counts = [
        OperatorCount(operator=name, calls=2, flops=flops, activations=0, read_bytes=read, written_bytes=1e6, work=work)
        for name, flops, read, work in (
            ("add", 0, 1e6, "minor"),
            ("mm", 3e9, 5e5, "counted"),
            ("odd", 0, 2e6, "unknown"),
            ("copy", 0, 2e6, "minor"),
        )
    ]
    output.print_detail([profile_row("mine", batch_size=4, operators=counts)])
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "",
        "timm:mine at 224 px by operator, for the whole batch of 4",
        "operator calls GFLOPs MB moved",
        "mm 2 3.0000 1.50",
        "copy 2 0.0000 3.00 not counted",
        "odd 2 0.0000 3.00 NOT COUNTED, of unknown size",
        "add 2 0.0000 2.00 not counted",
    ]


@pytest.mark.slow
def test_reference_columns_equal_the_published_table_of_open_clip(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    columns = ["--columns", "reference", "--output", str(out)]
    assert main(["profile", "--models", "RN50,ViT-B-32,ViT-B-16", *columns]) == 0
    # the rows that open_clip publishes in docs/model_profile.csv (mlfoundations/open_clip), sorted by gflops
    assert out.read_text().splitlines() == [
        REFERENCE,
        "ViT-B-32,224,768,512,512,151.28,87.85,63.43,14.78,8.82,5.96",
        "RN50,224,64,512,1024,102.01,38.32,63.69,18.18,12.22,5.96",
        "ViT-B-16,224,768,512,512,149.62,86.19,63.43,41.09,35.13,5.96",
    ]


@pytest.mark.slow
def test_failed_model_gives_a_row_and_exit_code_1(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    # 16 px is half a patch of ViT-B-32, but enough for a convolutional network
    models = ["--models", "ViT-B-32,timm:resnet18", "--image-size", "16"]
    assert main(["profile", *models, "--output", str(out)]) == 1
    rows = {row["model"]: row for row in json.loads(out.read_text())}
    assert (rows["resnet18"]["status"], rows["ViT-B-32"]["status"]) == ("ok", "error")
    assert "16" in rows["ViT-B-32"]["error"]
    assert "open_clip:ViT-B-32 at 16 px failed (error)" in capsys.readouterr().err


@pytest.mark.slow
def test_run_on_a_missing_device_fails_without_rows(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--models", "timm:resnet18", "--device", "cuda:7"]) == 2
    shown = capsys.readouterr().err
    assert "has no device 'cuda:7'" in shown
    assert "Traceback" not in shown
    (run,) = store.runs()
    assert (run.state, store.rows(run.id)) == (State.FAILED, [])
    assert "has no device 'cuda:7'" in run.error


@pytest.mark.slow
def test_too_little_disk_space_is_refused_before_the_run_starts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_MIN_FREE_GB", "1e9")
    process = engine("profile", "--models", "timm:resnet18", "--image-size", "64")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("error: too little disk space: ")
    assert process.stderr.endswith("and VITALS_MIN_FREE_GB asks for 1e+09 GB. Delete runs, or lower it.\n")
    assert len(process.stderr.splitlines()) == 1
    assert store.runs() == []


def test_text_of_several_lines_is_printed_as_one() -> None:
    text = 'Error(s) in loading state_dict:\r\n\tMissing key(s): "a".\n\n\tsize\tmismatch \x1b[2J\n'
    line = 'Error(s) in loading state_dict: \tMissing key(s): "a". \tsize\tmismatch \ufffd[2J'
    assert output.printable(text) == line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "state", "message"),
    [
        (signal.SIGINT, State.CANCELLED, "Run 1 cancelled. `python -m engine resume 1` queues it again."),
        (signal.SIGTERM, State.FAILED, "Run 1 failed. Killed by SIGTERM. `python -m engine resume 1` queues it again."),
    ],
)
def test_signal_ends_a_run_and_keeps_its_rows(store: Store, sent: signal.Signals, state: State, message: str) -> None:
    # on a CPU, one process counts the model, without loading timm; it has 576 rows to count
    batch_sizes, image_sizes = (",".join(map(str, numbers)) for numbers in (range(1, 33), range(8, 26)))
    spec = ["--device", "cpu", "--batch-size", batch_sizes, "--image-size", image_sizes]
    command = [sys.executable, "-m", "engine", "profile", "--models", "python:tests.support.own_models:tiny", *spec]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "GFLOPs" in line:
                break
        process.send_signal(sent)
        rest = process.stderr.read()
    assert process.returncode == 1, rest
    assert rest.splitlines()[-1] == message
    assert "Traceback" not in rest
    (run,) = store.runs()
    assert run.state == state
    assert 1 <= len(store.rows(run.id)) < 576


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (signal.SIGINT, "Run 1 cancelled, without a row. `python -m engine resume 1` queues it again."),
        (
            signal.SIGTERM,
            "Run 1 failed, without a row. Killed by SIGTERM. `python -m engine resume 1` queues it again.",
        ),
    ],
)
def test_signal_before_the_first_row_keeps_the_output_file(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], sent: signal.Signals, message: str
) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("rows of an earlier run\n")
    import_module("engine.tasks.benchmark")  # a signal within an import would leave a file of this process open

    def send_when_begun() -> None:
        while (attempt := attempts.current(store.database, 1)) is None or attempt.begun_at is None:
            time.sleep(0.01)
        os.kill(os.getpid(), sent)

    sender = threading.Thread(target=send_when_begun, daemon=True)
    sender.start()
    code = main(["benchmark", "--models", "timm:test_vit", "--replicates", "1", "--output", str(out)])
    sender.join()
    shown = capsys.readouterr()
    assert (code, shown.out, shown.err.splitlines()[-1]) == (1, "", message)
    assert "written" not in shown.err
    assert out.read_text() == "rows of an earlier run\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ("SIGINT", "Run 1 cancelled, without a row. `python -m engine resume 1` queues it again.\n"),
        *(
            (name, f"Run 1 failed, without a row. Killed by {name}. `python -m engine resume 1` queues it again.\n")
            for name in ("SIGTERM", "SIGHUP")
        ),
    ],
)
def test_signal_while_libraries_are_imported_ends_the_run_at_once(
    settings: Settings, tmp_path: Path, sent: str, message: str
) -> None:
    signals_itself = f"import os, signal\nos.kill(os.getpid(), signal.{sent})\nprint('the import went on')\n"
    (tmp_path / "torch.py").write_text(signals_itself)  # imported instead of torch
    process = engine("train", "--epochs", "1", cwd=tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == (1, "", message)


@pytest.mark.slow
def test_run_commands_work_from_submit_to_import(
    store: Store, tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITALS_PRELOAD", "")  # the imports of a warm process may take longer than eight short leases
    assert main(["submit", "profile", "--models", str(tiny), "--name", "a tiny one; $(id)"]) == 0
    run_id = re.search(r"queued as run (\d+)", capsys.readouterr().out)[1]  # type: ignore[index]
    wait_for_end(store, int(run_id))
    assert main(["runs", "show", run_id]) == 0
    assert "config:tiny" in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert "a tiny one; $(id)" in capsys.readouterr().out
    assert main(["runs", "log", run_id]) == 0
    bundle = str(tmp_path / "bundle.zip")
    assert main(["runs", "export", run_id, "--output", bundle]) == 0
    assert main(["runs", "delete", run_id]) == 0
    assert main(["runs", "show", run_id]) == 2
    assert main(["runs", "import", bundle]) == 0, capsys.readouterr().err
    (run,) = store.runs()
    assert run.id != int(run_id)
    assert run.state == State.FINISHED
    assert [row.status for row in store.rows(run.id)] == ["ok"]
    assert main(["resume", str(run.id)]) == 2  # a finished run cannot be resumed
    assert main(["stop"]) == 0


def wait_for_end(store: Store, run_id: int) -> None:
    deadline = time.monotonic() + 120
    while not store.run(run_id).state.ended:
        assert time.monotonic() < deadline, store.run(run_id)
        time.sleep(0.2)


@pytest.mark.slow
def test_errors_name_the_flag_as_typed(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, start in (
        (["train", "--lr", "1000"], "error: --lr: "),
        (["submit", "benchmark", "--models", "resnet18", "--min-seconds", "-1"], "error: --min-seconds: "),
        (["published-import", "no.csv"], "error: no file at no.csv: download the table from its publisher's page"),
        (["train", "--classes", "no.txt"], "error: train: no file at no.txt\n"),
        (["train", "--best-metric", "loss"], "error: --best-metric 'loss' is no metric of a training. Use one of z"),
        (
            ["benchmark", "--models", "timm:test_vit", "--variants", "compile:fast"],
            "error: compile:fast: 'fast' is neither a mode of compile (default, reduce-overhead, ",
        ),
        (
            ["benchmark", "--models", "timm:test_vit", "--variants", "eager+channels_last+fast"],
            "error: --variants: 'eager+channels_last+fast': 'fast' is none of channels_last, reparameterized, ",
        ),
        (["runs", "show", "seven"], "error: RUN-ID: "),
        (["train", "--epochs", "2", "--steps", "3"], "error: train: give epochs or steps"),
        (
            ["train", "--use-bn-sync"],
            "error: train: --use-bn-sync needs several processes: set nproc above 1, or leave --",
        ),
        (["train", "--aug-re-prob", "0.1"], "error: train: --aug-re-prob: only timm has this. Set --aug-use-timm too"),
        (["train", "--lr-scheduler", "const-cooldown"], "error: train: const-cooldown needs --epochs-cooldown, the"),
        (
            ["submit", "train", "--data", "/no/such/lr_image"],
            "error: --data: nothing can be read at '/no/such/lr_image'",
        ),
        (
            ["recurrent", "--sweep-values", "1"],
            "error: recurrent: there are sweep values, but no size to vary: choose the "
            "sweep seq_length, hidden_size or mini_batch",
        ),
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith(start)


def test_progress_is_one_line_on_a_terminal_and_sparse_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output._Progress, "due", 0.0)
    for done in range(50):
        output.print_progress(Progress(done=done, total=50, note="epoch 1"))
    output.note("result")
    assert capsys.readouterr().err.splitlines() == ["[0/50] epoch 1", "result"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for done in (1, 2):
        output.print_progress(Progress(done=done, total=50, note="epoch 1", seconds_left=12.3))
    output.note("result")
    lines = [f"\r\033[2K[{done}/50] epoch 1, 12 s left" for done in (1, 2)]
    assert capsys.readouterr().err == "".join([*lines, "\r\033[2Kresult\n"])
    monkeypatch.setenv("COLUMNS", "8")
    output.print_progress(Progress(done=1, note="a\tlonger line"))
    output.clear_progress()
    assert capsys.readouterr().err == "\r\033[2Ka longe\r\033[2K", "a line that wraps cannot be cleared"


def test_bash_completes_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for words, completed in (
        (["runs", "sh"], ["show"]),
        (["runs", "list", "--or"], ["--order"]),
        (["profile", "--conf"], []),
        (["tr"], ["train"]),
        (["wa"], []),
    ):
        typed = " ".join(words)
        ask = f"COMP_WORDS=(python -m engine {typed}); COMP_CWORD={len(words) + 2}; _model_vitals"
        shell = ["bash", "-c", f'{script}\n{ask}\necho "${{COMPREPLY[@]}}"']
        assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split() == completed
