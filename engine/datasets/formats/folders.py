"""Images in one folder per class."""

from collections import Counter
from mimetypes import guess_type
from pathlib import Path

from engine.datasets import images
from engine.datasets.base import DataProblem, shown_name
from engine.datasets.class_names import names_of_synsets
from engine.datasets.formats.members import entries_in, in_folder
from engine.datasets.pairs import Pairs
from engine.roots import Roots
from engine.words import plural, shortened

TEMPLATES = ("a photo of a {}.",)


def open_folder(folder: Path, roots: Roots = None) -> Pairs:
    """Return the images of a folder of class folders. A class is named like its folder, with a space for each `_`.

    They are sorted by class name and then by file name, as in torchvision's ImageFolder. If all folder names are
    synsets of ImageNet, the classes get open_clip's names.

    roots: the folders that links may lead to. Errors: DataProblem.
    """
    names: list[str] = []
    files: list[str] = []
    labels: list[int] = []
    empty: list[str] = []
    left_out: list[str] = []
    for entry in entries_in(folder, roots):
        name = shown_name(entry.name)
        if not entry.is_folder:
            left_out += [name] if _looks_like_image(name) else []
            continue
        found = []
        for member in in_folder(entry.path, roots):
            if member.name.lower().endswith(images.SUFFIXES):
                found.append(member.path)
            elif _looks_like_image(member.name):
                left_out.append(f"{name}/{shown_name(member.name)}")
        if not found:
            empty.append(name)
            continue
        labels += [len(names)] * len(found)
        names.append(name.replace("_", " "))
        files += found
    if not files:
        raise DataProblem(
            f"{folder} holds no images in folders: expected a folder for each class, "
            f"and in it files ending in {', '.join(images.SUFFIXES)}"
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataProblem(
            f"two folders in {folder} would be the same class, {twice[0]!r}: rename one, or put their images together"
        )
    notes = [f"folders without images are no classes: {shortened(tuple(empty))}"] if empty else []
    if left_out:
        notes.append(
            f"{plural(len(left_out), 'image')} left out, because an image must be in the folder of a class and end in "
            f"one of {', '.join(images.SUFFIXES)}: {shortened(left_out)}"
        )
    if synset_names := names_of_synsets(names):
        notes.append(
            f"folders are synsets of ImageNet: classes have its names, such as {synset_names[0]} for {names[0]}"
        )
    classes = synset_names or tuple(names)
    captions = [tuple(template.replace("{}", name) for template in TEMPLATES) for name in classes]
    return Pairs(
        folder.name,
        files,
        [captions[label] for label in labels],
        labels,
        classes=classes,
        templates=TEMPLATES,
        notes=tuple(notes),
        roots=roots,
    )


def _looks_like_image(name: str) -> bool:
    return (guess_type(name)[0] or "").startswith("image/")
