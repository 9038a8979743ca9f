"""CLIP models with weights: the same that open_clip itself makes, from files of ours that open_clip itself takes."""

import math
import os
import socket
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub
import numpy as np
import open_clip
import pytest
import torch
from open_clip_train.file_utils import pt_load
from PIL import Image
from torch import nn

from engine.models import clip_files, clip_hub, clip_tokenizers, clip_weights
from engine.models.built import ConfigRefused, SizeRefused
from engine.models.clip_files import WeightsRefused
from engine.models.clip_hub import Unreachable
from engine.models.clip_tokenizers import TokenizerMissing, tokenizer_problem
from engine.models.clip_weights import Made, create, prepare
from engine.specs import Refused
from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec
from engine.training import checkpoints, optimizers

TEXT = {"context_length": 8, "width": 16, "heads": 2, "layers": 3}
VIT = {"image_size": 16, "patch_size": 4, "width": 16, "head_width": 8, "layers": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "vit": {"embed_dim": 8, "vision_cfg": VIT, "text_cfg": TEXT},
    "own-text": {"embed_dim": 8, "vision_cfg": VIT, "text_cfg": TEXT, "custom_text": True},
    "resnet": {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8},
        "text_cfg": TEXT,
    },
    "timm": {
        "embed_dim": 8,
        "vision_cfg": {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160},
        "text_cfg": TEXT,
    },
    "convnet": {
        "embed_dim": 8,
        "vision_cfg": {"timm_model_name": "test_convnext", "timm_pool": "avg", "timm_proj": "linear", "image_size": 64},
        "text_cfg": TEXT,
    },
    "coca": {
        "embed_dim": 8,
        "vision_cfg": {**VIT, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        "text_cfg": {**TEXT, "width": 8, "embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {**TEXT, "width": 8, "attn_pooler_heads": 2},
        "custom_text": True,
    },
}
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def asked(name: str = "vit", **fields: Any) -> TrainSpec:
    return TrainSpec(model=f"config:{name}", configs={name: CONFIGS[name]}, **fields)


def make(name: str = "vit", weights: str | Path = "", **fields: Any) -> Made:
    return create(asked(name, **fields), weights=str(weights))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered with open_clip is forgotten afterwards."""
    factory = open_clip.factory
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", list(factory._MODEL_CONFIG_PATHS))
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", dict(factory._MODEL_CONFIGS))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(cache: Path, repo: str) -> Path:
    """The folder of a repository's files in the hub's cache."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    return folder / "snapshots" / ("0" * 40)


def saved(made: Made, folder: Path, *, ours: bool = True) -> Path:
    """As the training loop does; without `vitals`, as open_clip's does."""
    state: dict[str, Any] = {"epoch": 1, "name": made.name, "state_dict": made.model.state_dict(), "optimizer": {}}
    if ours:
        state["vitals"] = {"config": made.config, "step": 1}
    return checkpoints.save(folder, "epoch_1.pt", state, about={"epoch": 1, "step": 1})


def features(model: nn.Module, image: torch.Tensor, length: int) -> torch.Tensor:
    """Both towers' output for one image and one text."""
    texts = torch.arange(1, length + 1)[None]
    with torch.no_grad():
        out = model.eval()(image[None], texts)
    return torch.cat([out["image_features"], out["text_features"]])


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, others = one.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


def trained(module: nn.Module) -> set[str]:
    return {name for name, weight in module.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_depend_on_the_seed_alone_and_leave_the_random_state_as_it_was(name: str) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first = make(name, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert same(first.model, make(name, seed=1).model)
    assert not same(first.model, make(name, seed=2).model)
    assert first.notes == []
    assert name not in open_clip.list_models()


def test_the_digits_model_fits_digits() -> None:
    made = create(TrainSpec(), weights="")
    assert (made.name, made.image_size, made.context_length) == ("digits-clip", (32, 32), 16)
    block = 12 * 128**2 + 13 * 128  # attention, two-layer perceptron, norms
    images = 3 * 8 * 8 * 128 + (1 + 17) * 128 + 3 * block + 4 * 128 + 128 * 64
    texts = (49408 + 16) * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 64 * 64
    assert sum(weight.numel() for weight in made.model.parameters()) == images + texts + 1
    assert made.tokenizer(["a photo of the digit three"]).shape == (1, 16)
    white = Image.new("RGB", (32, 32), "white")
    for transform in (made.preprocess_train, made.preprocess_val):
        assert transform(white).shape == (3, 32, 32)
    left = Image.new("RGB", (32, 32))
    left.paste(white, (-24, 0))
    halves = [made.preprocess_train(left) for _ in range(30)]
    assert all(image[..., :16].mean() > image[..., 16:].mean() for image in halves), "a flipped digit is another one"


def test_open_clip_takes_a_checkpoint_of_ours_by_the_models_name(registry: None, tmp_path: Path) -> None:
    clip_weights.register()
    made = create(TrainSpec(seed=5), weights="")
    path = saved(made, tmp_path)
    theirs, their_train, their_val = open_clip.create_model_and_transforms(
        "digits-clip", pretrained=str(path), output_dict=True
    )
    assert same(made.model, theirs)
    assert torch.equal(made.preprocess_val(PICTURE), their_val(PICTURE))
    torch.manual_seed(0)
    mine = made.preprocess_train(PICTURE)
    torch.manual_seed(0)
    assert torch.equal(mine, their_train(PICTURE))
    tokenizer = open_clip.get_tokenizer("digits-clip")
    assert torch.equal(made.tokenizer(["seven, or 7?", ""]), tokenizer(["seven, or 7?", ""]))
    loaded = pt_load(str(path), map_location="cpu")  # what `open_clip_train --resume` reads
    assert {"epoch", "name", "state_dict", "optimizer"} <= set(loaded)
    theirs.load_state_dict(loaded["state_dict"])


def test_the_reference_goes_on_from_a_checkpoint_of_ours(tmp_path: Path) -> None:
    """As open_clip_train.main does with --resume: weights, and AdamW with its two groups of parameters."""
    spec = asked()
    made = make()
    optimizer = optimizers.create(made.model, spec)
    made.model(torch.rand(2, 3, 16, 16), torch.arange(16).reshape(2, 8))["image_features"][:, 0].sum().backward()
    optimizer.step()
    state = {"epoch": 1, "name": "mine", "state_dict": made.model.state_dict(), "optimizer": optimizer.state_dict()}
    path = checkpoints.save(tmp_path, "epoch_1.pt", {**state, "vitals": {"config": made.config}}, about={"step": 1})
    loaded = pt_load(str(path), map_location="cpu")
    assert loaded["epoch"] == 1
    model = make(seed=2).model
    model.load_state_dict(loaded["state_dict"])

    def is_plain(name: str, weight: torch.Tensor) -> bool:
        return weight.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))

    named = list(model.named_parameters())
    groups = [
        {"params": [weight for name, weight in named if is_plain(name, weight)], "weight_decay": 0.0},
        {"params": [weight for name, weight in named if not is_plain(name, weight)], "weight_decay": spec.wd},
    ]
    theirs = torch.optim.AdamW(groups, lr=spec.peak_lr)
    theirs.load_state_dict(loaded["optimizer"])
    mine = {name: optimizer.state[weight] for name, weight in made.model.named_parameters()}
    for name, weight in model.named_parameters():
        assert mine[name].keys() == theirs.state[weight].keys(), name
        for key, value in mine[name].items():
            assert torch.equal(value, theirs.state[weight][key]), name


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_comes_back_at_its_own_sizes_and_at_others(name: str, tmp_path: Path) -> None:
    size = {"timm": 96, "convnet": 96}.get(name, 64)
    made = make(name, image_size=size, context_length=12, seed=1)
    assert (made.image_size, made.context_length) == ((size, size), 12)
    path = saved(made, tmp_path)
    again = make(name, path, seed=2)
    assert same(made.model, again.model)
    assert (again.image_size, again.context_length, again.notes) == ((size, size), 12, [])
    image = made.preprocess_val(PICTURE)
    assert image.shape == (3, size, size)
    assert torch.equal(features(made.model, image, 12), features(again.model, image, 12))
    if name == "resnet":  # whose attention pool open_clip cannot adapt either
        with pytest.raises(WeightsRefused, match=r"size mismatch for visual\.attnpool\.positional_embedding"):
            make(name, path, image_size=2 * size)
        return
    other = make(name, path, image_size=2 * size, context_length=6, seed=2)
    assert (other.image_size, other.context_length) == ((2 * size, 2 * size), 6)
    assert features(other.model, other.preprocess_val(PICTURE), 6).isfinite().all()


@pytest.mark.parametrize("name", ["vit", "own-text", "resnet", "timm"])
def test_weights_of_open_clip_load_as_open_clip_loads_them(
    name: str, registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the sizes of the configuration, and at forced ones: position tables are resized in the same way."""
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, CONFIGS[name])
    theirs = open_clip.create_model(name)
    path = tmp_path / "weights.pt"
    torch.save({f"module.{key}": value for key, value in theirs.state_dict().items()}, path)
    assert same(theirs, make(name, path).model)
    force = {"image_size": 32 if name == "resnet" else 64, "context_length": 12}
    options = {f"force_{key}": value for key, value in force.items()}
    assert same(open_clip.create_model(name, pretrained=str(path), **options), make(name, path, **force).model)


def test_safetensors_are_taken_too(tmp_path: Path) -> None:
    from safetensors.torch import save_model

    made = make(seed=1)
    save_model(made.model, str(tmp_path / "weights.safetensors"))
    assert same(made.model, make(weights=tmp_path / "weights.safetensors", seed=2).model)


def test_what_the_weights_were_trained_with_is_kept(
    registry: None, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preprocessing and the activation of a tag, on the way to a fine-tuned checkpoint and back."""
    spec = TrainSpec(model="ViT-B-32", seed=1)
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", {"ViT-B-32": CONFIGS["vit"]})
    model = make(seed=9).model
    weights = cached(empty_cache, "timm/vit_base_patch32_clip_224.openai") / "open_clip_pytorch_model.bin"
    torch.save(model.state_dict(), weights)
    published = {**open_clip.get_pretrained_cfg("ViT-B-32", "openai"), "mean": (0.1, 0.2, 0.3), "resize_mode": "squash"}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED["ViT-B-32"], "openai", published)
    made = create(spec, weights="openai")
    assert made.notes[0].startswith("these weights are of ViT-B-32-quickgelu, as open_clip calls it")
    assert {type(module).__name__ for module in made.model.modules()} >= {"QuickGELU"}
    assert made.config["preprocess_cfg"]["mean"] == [0.1, 0.2, 0.3]
    again = create(spec, weights=str(saved(made, tmp_path)))
    image, changed = made.preprocess_val(PICTURE), again.preprocess_val(PICTURE)
    assert torch.equal(image, changed)
    assert torch.equal(features(made.model, image, 8), features(again.model, image, 8))
    assert not torch.equal(features(made.model, image, 8), features(model, image, 8))


def test_a_file_from_elsewhere_gets_the_preprocessing_all_published_weights_agree_on() -> None:
    assert clip_files.agreed_preprocessing("ViT-B-16-SigLIP")["mean"] == (0.5, 0.5, 0.5)
    assert clip_files.agreed_preprocessing("ViT-B-32")["resize_mode"] == "shortest"
    assert clip_files.agreed_preprocessing("digits-clip") == {}


def test_siglip_begins_where_the_paper_does_and_its_bias_is_loaded_again(tmp_path: Path) -> None:
    made = make(loss="siglip")
    assert made.model.logit_scale.item() == pytest.approx(math.log(10))
    assert made.model.logit_bias.item() == -10
    again = make(weights=saved(made, tmp_path))
    assert again.model.logit_bias.item() == -10
    assert same(made.model, again.model)


@pytest.mark.parametrize(("precision", "weights"), [("fp32", "float32"), ("amp", "float32"), ("bf16", "bfloat16")])
def test_precision_is_that_of_the_reference(precision: str, weights: str) -> None:
    """Half precision is for matrices: norms stay in float32."""
    model = make(precision=precision).model
    assert model.visual.conv1.weight.dtype == getattr(torch, weights)
    assert model.visual.ln_post.weight.dtype == torch.float32
    assert model.logit_scale.dtype == torch.float32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"visual.proj": torch.zeros(1)}, "does not fit vit: Missing key"),
        ({"epoch": 1}, "holds no weights"),
        ([1], "holds no weights"),
        ({"state_dict": {}}, "holds no weights"),
        (b"no such thing", "can run any code|can be read"),
        (b"", "can be read"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_differs(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(WeightsRefused, match=message) as caught:
        make(weights=path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    path = saved(make(), tmp_path, ours=False)
    wider = {"wider": {**CONFIGS["vit"], "vision_cfg": {**VIT, "width": 24}}}
    with pytest.raises(WeightsRefused, match=r"epoch_1.pt does not fit wider: size mismatch for visual.* and \d+ more"):
        create(TrainSpec(model="config:wider", configs=wider), weights=str(path))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": make().model.state_dict(), "more": Bomb(tmp_path / "sprung")}, tmp_path / "bomb.pt")
    with pytest.raises(WeightsRefused, match="can run any code"):
        make(weights=tmp_path / "bomb.pt")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "ViT-B-33"}, "neither a model of open_clip"),
        ({"model": "hf-hub:somebody/model"}, "neither a model of open_clip"),
        ({"model": "local-dir:/tmp"}, "neither a model of open_clip"),
        ({"model": "config:mine"}, "no configuration was given"),
        ({"model": "config:mine", "configs": {"mine": {"embed_dim": 8}}}, "no vision_cfg"),
    ],
)
def test_only_known_names_are_models(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigRefused, match=message):
        create(TrainSpec(**fields), weights="")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"hf_tokenizer_name": "somebody/tokenizer"}, "asks for tokenizer 'somebody/tokenizer'"),
        ({"tokenizer_kwargs": {"trust_remote_code": True}}, "sets trust_remote_code"),
        ({"tokenizer_kwargs": {"bpe_path": "/etc/passwd"}}, "sets bpe_path"),
        ({"vocab_size": 1000}, "1,000 tokens"),
        ({"hf_model_name": "somebody/model"}, "would need a look-up"),
    ],
)
def test_a_configuration_fetches_nothing_and_runs_nothing_of_its_own(text: dict[str, Any], message: str) -> None:
    configs = {"mine": {**CONFIGS["vit"], "text_cfg": {**TEXT, **text}}}
    with pytest.raises(ConfigRefused, match=message):
        create(TrainSpec(model="config:mine", configs=configs), weights="")


def test_a_size_that_cannot_be_is_refused_with_the_models_own() -> None:
    with pytest.raises(SizeRefused, match="its own size is 160"):
        make("timm", image_size=97)


def test_no_tag_and_no_file(empty_cache: Path) -> None:
    with pytest.raises(WeightsRefused, match=r"'nowhere.pt' is neither .* of ViT-B-32; its tags are: openai, "):
        create(TrainSpec(model="ViT-B-32"), weights="nowhere.pt")
    with pytest.raises(WeightsRefused, match="its tags are: none"):
        create(TrainSpec(), weights="openai")


def test_every_published_weight_has_a_place_at_the_hub() -> None:
    places = [open_clip.get_pretrained_cfg(*pair)["hf_hub"] for pair in open_clip.list_pretrained()]
    assert all(place.count("/") >= 1 for place in places)
    assert clip_files._alternatives("open_clip_pytorch_model.bin")[0] == "open_clip_model.safetensors"
    assert clip_files._alternatives("a.pth") == ["a.safetensors", "a.pth"]
    assert clip_files._alternatives("a.pt") == ["a.pt"]


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this for the hub."""
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for name, value in {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)


@pytest.fixture
def silent_hub(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(clip_hub, "ANSWER_S", 0.3)
        point_at("http://{}:{}".format(*server.getsockname()), monkeypatch)
        yield


@pytest.fixture
def small_hub(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """A hub with these files: `/repo/resolve/main/file` to contents."""
    files: dict[str, bytes] = {}

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            content = files.get(self.path)
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
            self.wfile.write(files.get(self.path, b""))

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        point_at("http://{}:{}".format(*server.server_address), monkeypatch)
        yield files
        server.shutdown()


def test_a_tag_is_fetched_once_and_tells_how_far_it_is(
    registry: None, small_hub: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", {"ViT-B-32": CONFIGS["vit"]})
    model = open_clip.create_model("ViT-B-32")
    torch.save(model.state_dict(), tmp_path / "weights")
    content = (tmp_path / "weights").read_bytes()
    small_hub["/laion/CLIP-ViT-B-32-laion2B-s34B-b79K/resolve/main/open_clip_pytorch_model.bin"] = content
    told: list[tuple[int, int | None]] = []
    spec = TrainSpec(model="ViT-B-32")
    fetched = create(spec, weights="laion2b_s34b_b79k", progress=lambda done, total: told.append((done, total)))
    assert same(model, fetched.model)
    assert told[-1] == (len(content), len(content))
    small_hub.clear()
    assert same(model, create(spec, weights="laion2b_s34b_b79k").model)


def test_without_a_network_a_tag_is_refused_at_once(empty_cache: Path) -> None:
    with pytest.raises(Unreachable) as caught:
        create(TrainSpec(model="ViT-B-32"), weights="openai")
    for part in ("'openai' of ViT-B-32", str(empty_cache), "huggingface.co/timm/vit_base_patch32_clip_224.openai"):
        assert part in str(caught.value)


def test_a_hub_that_never_answers_is_not_waited_for(silent_hub: None) -> None:
    with pytest.raises(Unreachable, match=r"no answer within|timed out"):
        create(TrainSpec(model="ViT-B-32"), weights="openai")
    problem = tokenizer_problem("ViT-B-16-SigLIP", open_clip.get_model_config("ViT-B-16-SigLIP"))
    assert problem is not None
    assert "needs the tokenizer of timm/ViT-B-16-SigLIP" in problem


def test_a_tokenizer_that_is_not_there_is_said_before_anything_is_built(empty_cache: Path) -> None:
    with pytest.raises(TokenizerMissing, match=r"roberta-base, which is not in .* Copy it there, or choose"):
        create(TrainSpec(model="roberta-ViT-B-32"), weights="nowhere.pt")
    for name in open_clip.list_models():
        problem = tokenizer_problem(name, open_clip.get_model_config(name))
        assert (problem is not None) == bool(open_clip.get_model_config(name)["text_cfg"].get("hf_tokenizer_name"))


def test_a_tokenizer_in_the_cache_is_used(empty_cache: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "seven": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    folder = cached(empty_cache, "roberta-base")
    fast.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    cfg = {**CONFIGS["vit"], "text_cfg": {**TEXT, "hf_tokenizer_name": "roberta-base"}}
    assert tokenizer_problem("mine", cfg) is None
    tokenize = clip_tokenizers.tokenizer("mine", cfg, 4)
    assert tokenize(["seven of seven"]).tolist() == [[2, 1, 2, 0]]


@pytest.mark.parametrize("name", ["vit", "own-text", "timm", "coca"])
def test_the_image_tower_is_locked_but_for_its_last_groups(name: str) -> None:
    whole, some = make(name), make(name)
    prepare(whole, asked(name, lock_image=True))
    prepare(some, asked(name, lock_image=True, lock_image_unlocked_groups=2))
    assert {key for key in trained(whole.model.visual) if not key.startswith("head")} == set(), "but timm's projection"
    assert 0 < len(trained(some.model.visual)) < len(list(some.model.visual.parameters()))
    assert trained(whole.model) >= {"logit_scale"}
    every = sum(weight.numel() for weight in whole.model.parameters())
    assert whole.notes[-1].endswith(f"of {every:,} parameters are trained, the others are locked")


def test_a_resnet_is_locked_as_a_whole_with_its_statistics(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="lock it as a whole"):
        prepare(make("resnet"), asked("resnet", lock_image=True, lock_image_unlocked_groups=1))
    made = make("resnet")
    prepare(made, asked("resnet", lock_image=True, lock_image_freeze_bn_stats=True))
    before = made.model.visual.bn1.running_mean.clone()
    made.model.train()(torch.rand(2, 3, 32, 32), torch.ones(2, 8, dtype=torch.long))
    assert torch.equal(made.model.visual.bn1.running_mean, before)
    assert trained(made.model.visual) == set()
    path = saved(made, tmp_path)  # without num_batches_tracked
    again = make("resnet", path)
    assert torch.equal(again.model.visual.layer1[0].conv1.weight, made.model.visual.layer1[0].conv1.weight)


@pytest.mark.parametrize("name", ["vit", "own-text", "coca"])
def test_the_text_tower_is_locked_but_for_its_last_layers_and_norms(name: str) -> None:
    def left(**fields: Any) -> set[str]:
        made = make(name)
        prepare(made, asked(name, lock_text=True, **fields))
        text = {key.removeprefix("text.") for key in trained(made.model)}
        return {key for key in text if not key.startswith(("visual", "logit", "text_decoder"))}

    assert left(lock_text_freeze_layer_norm=True) == set()
    norms = left()
    assert {key.rsplit(".", 1)[0].rsplit(".", 1)[-1] for key in norms} == {"ln_1", "ln_2", "ln_final"}
    last = left(lock_text_unlocked_layers=2, lock_text_freeze_layer_norm=True)
    assert "transformer.resblocks.2.mlp.c_fc.weight" in last
    assert not any(key.startswith(("transformer.resblocks.0", "transformer.resblocks.1", "token")) for key in last)


@pytest.mark.parametrize("name", ["vit", "own-text", "timm", "coca"])
def test_checkpointed_activations_give_the_same_gradients(name: str) -> None:
    gradients = []
    for checkpointed in (False, True):
        made = make(name, seed=1)
        prepare(made, asked(name, grad_checkpointing=checkpointed, channels_last=checkpointed))
        size = made.image_size[0]
        torch.manual_seed(0)
        out = made.model.train()(torch.rand(2, 3, size, size), torch.arange(16).reshape(2, 8))
        (out["image_features"][:, 0].sum() + out["text_features"][:, 0].sum()).backward()
        gradients.append({key: weight.grad for key, weight in made.model.named_parameters() if weight.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][key], atol=1e-6), key


def test_patches_are_left_out_in_training_alone() -> None:
    made = make(patch_dropout=0.5)
    seen: list[int] = []
    made.model.visual.transformer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    image = torch.rand(1, 3, 16, 16)
    made.model.train().encode_image(image)
    made.model.eval().encode_image(image)
    assert seen == [1 + 8, 1 + 16]
    with pytest.raises(ConfigRefused, match="no patches"):
        make("resnet", patch_dropout=0.5)
    with pytest.raises(ConfigRefused, match="patch_drop_rate"):
        make("convnet", patch_dropout=0.5)


def test_a_resnet_says_that_it_keeps_its_activations() -> None:
    made = make("resnet")
    prepare(made, asked("resnet", grad_checkpointing=True))
    assert "cannot check-point" in made.notes[-1]


def test_channels_last_is_how_convolutions_lie_in_memory() -> None:
    made = make("resnet")
    prepare(made, asked("resnet", channels_last=True))
    assert made.model.visual.layer1[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)


def test_an_evaluation_makes_the_same_model(tmp_path: Path) -> None:
    made = make(image_size=32, seed=4)
    spec = EvaluateSpec(model="config:vit", configs={"vit": CONFIGS["vit"]})
    evaluated = create(spec, weights=str(saved(made, tmp_path)))
    assert same(made.model, evaluated.model)
    assert (evaluated.image_size, evaluated.notes) == ((32, 32), [])
    assert "has not been trained" in create(spec, weights="").notes[0]


def test_templates_are_open_clips() -> None:
    assert clip_weights.TEMPLATES[0] == "itap of a {}."
    assert all(
        template.format("cat") == fill("cat")
        for template, fill in zip(clip_weights.TEMPLATES, open_clip.SIMPLE_IMAGENET_TEMPLATES, strict=True)
    )
