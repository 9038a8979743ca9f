"""Find and load tokenizers of CLIP models: open_clip's own, which it includes, and others from Hugging Face."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer

from engine.models.clip import hub
from engine.specs import Refused

FILES = ("tokenizer.json", "sentencepiece.bpe.model", "spiece.model", "vocab.txt", "vocab.json")
"""Every tokenizer has at least one of these files."""
OPTIONS = ("clean", "strip_sep_token")
"""Tokenizer options that a configuration may set. Others would be passed to loaders that can run code from files."""
SIMPLE_VOCABULARY = 49408
"""Tokens of open_clip's own tokenizer."""
Config = dict[str, Any]
Tokenizer = Callable[[list[str]], torch.Tensor]
"""Converts texts to int64 tokens (texts, context length)."""
simple_tokenizer: Callable[..., Tokenizer] = lru_cache(maxsize=8)(SimpleTokenizer)
"""Makes open_clip's own tokenizer. Cached: reading its 49,000 words takes longer than building a small model."""


def find(model: str, config: Config) -> Path | hub.Remote | None:
    """Return a file of this model's tokenizer in the cache, else at Hugging Face; None for open_clip's own.

    Nothing is loaded. config: laid out as in open_clip's JSON files.
    Errors: Refused.
    """
    if not (name := _hf_name(model, config)):
        return None
    what = f"{model} needs the tokenizer of {name}, which is"
    advice = ". Copy it there, or choose a model with open_clip's own tokenizer, such as ViT-B-32"
    return hub.find(name, FILES, what, advice)


def tokenizer(model: str, config: Config, context_length: int) -> Tokenizer:
    """Return the tokenizer of a model, whose file is in the cache or at Hugging Face. Errors: Refused."""
    text = config["text_cfg"]
    options = text.get("tokenizer_kwargs") or {}
    name = _hf_name(model, config)
    try:
        if not name:
            return simple_tokenizer(context_length=context_length, **options)
        loaded: Tokenizer = HFTokenizer(
            name,
            context_length=context_length,
            tokenizer_mode=text.get("tokenizer_mode"),
            cache_dir=str(hub.cache()),
            **options,
        )
    except (OSError, ValueError, ImportError, TypeError, AssertionError) as error:  # the last two: wrong options
        raise Refused(
            f"the tokenizer of {name or 'open_clip'}, which {model} needs, cannot be loaded: {error}"
        ) from error
    return loaded


def _hf_name(model: str, config: Config) -> str:
    """Return the tokenizer's name at Hugging Face; empty for open_clip's own. Errors: Refused."""
    text = config["text_cfg"]
    name: str = text.get("hf_tokenizer_name") or ""
    if name and name not in (known := _known_names()):
        raise Refused(
            f"{model} asks for tokenizer {name!r}; the tokenizers of open_clip's models are {', '.join(known)}"
        )
    if unknown := sorted(set(text.get("tokenizer_kwargs") or {}).difference(OPTIONS)):
        raise Refused(f"{model} sets {', '.join(unknown)} for its tokenizer; allowed are {', '.join(OPTIONS)}")
    if not name and (size := text.get("vocab_size", SIMPLE_VOCABULARY)) < SIMPLE_VOCABULARY:
        raise Refused(
            f"{model} has {size:,} tokens, but open_clip's own tokenizer, which it uses, has {SIMPLE_VOCABULARY:,}"
        )
    return name


def _known_names() -> list[str]:
    """Return the tokenizers that open_clip's own models use. No others are downloaded."""
    configs = (open_clip.get_model_config(name) for name in open_clip.list_models())
    return sorted({name for config in configs if (name := config["text_cfg"].get("hf_tokenizer_name"))})
