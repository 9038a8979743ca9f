"""Weights and tokenizers of the hub: fetched with progress, or refused at once with the reason."""

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from threading import Event as Gate
from threading import Thread, Timer
from typing import Any

import huggingface_hub
import open_clip
import pytest
import torch

from engine.models.clip import files as clip_files
from engine.models.clip import hub as clip_hub
from engine.models.clip import tokenizers
from engine.models.clip.hub import Unreachable
from engine.models.clip.weights import create, fetch
from engine.results import Event, Progress
from engine.results.clip import EvaluateRow, TrainRow
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.tasks import evaluate, train
from tests.support.clip_models import CONFIGS, TEXT, cached, same


def test_all_published_weights_have_a_hub_repository() -> None:
    repositories = [open_clip.get_pretrained_cfg(*pair)["hf_hub"] for pair in open_clip.list_pretrained()]
    assert all(repository.count("/") >= 1 for repository in repositories)
    assert clip_files._alternatives("open_clip_pytorch_model.bin")[0] == "open_clip_model.safetensors"
    assert clip_files._alternatives("a.pth") == ["a.safetensors", "a.pth"]
    assert clip_files._alternatives("a.pt") == ["a.pt"]


def use_hub(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make huggingface_hub use this address as the hub."""
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for name, value in {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)


@pytest.fixture
def silent_hub(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(clip_hub, "ANSWER_S", 0.3)
        use_hub("http://{}:{}".format(*server.getsockname()), monkeypatch)
        yield


OPENAI = "timm/vit_base_patch32_clip_224.openai"
LAION = "laion2b_s34b_b79k"
WEIGHTS = "/laion/CLIP-ViT-B-32-laion2B-s34B-b79K/resolve/main/open_clip_pytorch_model.bin"
MB = 1_000_000


@dataclass
class Hub:
    """Files of a local hub, `/repo/resolve/main/file` to contents, and a gate at half of each file."""

    files: dict[str, bytes] = field(default_factory=dict)
    half: Gate = field(default_factory=Gate)


@pytest.fixture
def small_hub(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    hub.half.set()

    class HubHandler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            content = hub.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            else:
                self.send_header("ETag", f'"{sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            content = hub.files.get(self.path, b"")
            try:
                self.wfile.write(content[: len(content) // 2])
                hub.half.wait(30)
                self.wfile.write(content[len(content) // 2 :])
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client has closed the connection

        def log_message(self, *_: Any) -> None:
            """Write no log."""

    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", MB)
    monkeypatch.setattr(clip_hub, "TICK_S", 0.05)
    with ThreadingHTTPServer(("127.0.0.1", 0), HubHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        use_hub("http://{}:{}".format(*server.server_address), monkeypatch)
        yield hub
        server.shutdown()


@pytest.fixture
def small_model(registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ViT-B-32 a small model."""
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", {"ViT-B-32": CONFIGS["vit"]})


def weights_of(model: torch.nn.Module, folder: Path) -> bytes:
    torch.save(model.state_dict(), folder / "weights")
    return (folder / "weights").read_bytes()


def fetch_notes(events: Iterable[Event]) -> list[str]:
    """Return the different notes on downloads, in order."""
    fetched = (event.note for event in events if isinstance(event, Progress) and event.note.startswith("fetching"))
    return list(dict.fromkeys(fetched))


@pytest.mark.slow
def test_tag_is_fetched_only_once(small_model: None, small_hub: Hub, tmp_path: Path) -> None:
    model = open_clip.create_model("ViT-B-32")
    small_hub.files[WEIGHTS] = weights_of(model, tmp_path)
    assert same(model, create(TrainSpec(model="ViT-B-32"), weights=LAION).model)
    small_hub.files.clear()
    assert list(fetch(TrainSpec(model="ViT-B-32"), LAION)) == []
    assert same(model, create(TrainSpec(model="ViT-B-32"), weights=LAION).model)


@pytest.mark.slow
def test_download_reports_source_progress_and_cache(small_hub: Hub, empty_cache: Path) -> None:
    small_hub.files[WEIGHTS] = bytes(6 * MB)
    small_hub.half.clear()
    fetching = fetch(TrainSpec(model="ViT-B-32"), LAION)
    source = "huggingface.co/laion/CLIP-ViT-B-32-laion2B-s34B-b79K/open_clip_pytorch_model.bin"
    half = f"fetching {source}: 3 of 6 MB into {empty_cache}"
    assert any(event.note == half for event in islice(fetching, 200)), (
        "200 events last some seconds, and half of the file takes less"
    )
    small_hub.half.set()
    assert fetch_notes(fetching)[-1] == half.replace("3 of 6", "6 of 6")
    assert isinstance(clip_files.find("ViT-B-32", LAION), Path)


@pytest.mark.slow
def test_closed_download_ends_and_leaves_no_file(small_hub: Hub, empty_cache: Path) -> None:
    small_hub.files[WEIGHTS] = bytes(6 * MB)
    small_hub.half.clear()
    fetching = fetch(TrainSpec(model="ViT-B-32"), LAION)
    assert any(": 3 of 6 MB" in event.note for event in islice(fetching, 200))
    Timer(0.2, small_hub.half.set).start()
    fetching.close()
    assert isinstance(clip_files.find("ViT-B-32", LAION), clip_hub.Remote)
    assert sum(path.stat().st_size for path in empty_cache.rglob("*") if path.is_file()) < MB
    assert fetch_notes(fetch(TrainSpec(model="ViT-B-32"), LAION))[-1].endswith(f": 6 of 6 MB into {empty_cache}")


@pytest.mark.slow
def test_failed_download_gives_an_error(small_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    small_hub.files[WEIGHTS] = bytes(MB)
    fetching = fetch(TrainSpec(model="ViT-B-32"), LAION)
    monkeypatch.setattr(clip_hub, "hf_hub_download", lambda *_, **__: small_hub.files["/gone"])
    with pytest.raises(
        Unreachable, match=rf"'{LAION}' of ViT-B-32 are not in .*_model\.bin cannot be reached: '/gone'"
    ):
        list(fetching)


@pytest.mark.slow
def test_trainings_and_evaluations_fetch_weights_before_they_start(
    small_model: None, small_hub: Hub, tmp_path: Path
) -> None:
    small_hub.files[WEIGHTS] = weights_of(open_clip.create_model("ViT-B-32"), tmp_path)
    small_hub.half.clear()
    Timer(0.5, small_hub.half.set).start()
    spec = TrainSpec(model="ViT-B-32", pretrained=LAION, steps=1, samples=64, tensorboard=False)
    events = list(train.run(spec, tmp_path / "train"))
    messages = fetch_notes(events)
    assert messages[-1].startswith("fetching huggingface.co/laion/CLIP-ViT-B-32-laion2B-s34B-b79K/")
    first = next(place for place, event in enumerate(events) if isinstance(event, TrainRow))
    assert all(
        place < first for place, event in enumerate(events) if isinstance(event, Progress) and event.note in messages
    )
    small_hub.files[f"/{OPENAI}/resolve/main/open_clip_pytorch_model.bin"] = small_hub.files[WEIGHTS]
    request = EvaluateSpec(model="ViT-B-32", checkpoint="openai", samples=64, tasks=("retrieval",))
    events = list(evaluate.run(request, tmp_path / "evaluate"))
    assert fetch_notes(events)[-1].startswith(f"fetching huggingface.co/{OPENAI}/")
    assert [event.status for event in events if isinstance(event, EvaluateRow)] == ["ok"]


@pytest.mark.slow
def test_missing_weights_of_a_teacher_give_an_error(small_hub: Hub, empty_cache: Path, tmp_path: Path) -> None:
    spec = TrainSpec(loss="distill", distill_model="ViT-B-32", distill_pretrained=LAION, samples=64)
    with pytest.raises(Unreachable, match=f"'{LAION}' of ViT-B-32"):
        list(train.run(spec, tmp_path))


def test_tag_is_refused_at_once_without_a_network(empty_cache: Path) -> None:
    with pytest.raises(Unreachable) as caught:
        create(TrainSpec(model="ViT-B-32"), weights="openai")
    for part in ("'openai' of ViT-B-32", str(empty_cache), "huggingface.co/timm/vit_base_patch32_clip_224.openai"):
        assert part in str(caught.value)


@pytest.mark.slow
def test_silent_hub_gives_an_error_after_a_timeout(silent_hub: None) -> None:
    with pytest.raises(Unreachable, match=r"no answer within|timed out"):
        create(TrainSpec(model="ViT-B-32"), weights="openai")
    with pytest.raises(Refused, match="needs the tokenizer of timm/ViT-B-16-SigLIP"):
        tokenizers.find("ViT-B-16-SigLIP", open_clip.get_model_config("ViT-B-16-SigLIP"))


def test_missing_tokenizer_is_refused_before_the_model_is_built(empty_cache: Path) -> None:
    with pytest.raises(Refused, match=r"roberta-base, which is not in .* Copy it there, or choose"):
        create(TrainSpec(model="roberta-ViT-B-32"), weights="nowhere.pt")
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        if config["text_cfg"].get("hf_tokenizer_name"):
            with pytest.raises(Refused):
                tokenizers.find(name, config)
        else:
            assert tokenizers.find(name, config) is None


def test_tokenizer_in_the_cache_is_used(empty_cache: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "seven": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    folder = cached(empty_cache, "roberta-base")
    fast.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    cfg = {**CONFIGS["vit"], "text_cfg": {**TEXT, "hf_tokenizer_name": "roberta-base"}}
    assert tokenizers.find("mine", cfg) == folder / "tokenizer.json"
    tokenize = tokenizers.tokenizer("mine", cfg, 4)
    assert tokenize(["seven of seven"]).tolist() == [[2, 1, 2, 0]]
