"""Images in one folder per class."""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from engine.datasets import images
from engine.datasets.base import DataProblem
from engine.datasets.class_names import names_of_synsets
from engine.datasets.members import in_folder, visible
from engine.roots import Roots, scan_within
from engine.words import shortened

TEMPLATES = ("a photo of a {}.",)


@dataclass(frozen=True, eq=False)
class Folder:
    """The images of all classes, sorted by class name and then by file name, as in torchvision's ImageFolder."""

    name: str
    classes: tuple[str, ...]
    files: list[str]
    labels: list[int]
    roots: Roots = None
    notes: tuple[str, ...] = ()
    templates: tuple[str, ...] = TEMPLATES

    def __len__(self) -> int:
        return len(self.files)

    def image(self, index: int) -> Image.Image:
        return images.read(Path(self.files[index]), self.roots)

    def captions(self, index: int) -> tuple[str, ...]:
        return tuple(template.replace("{}", self.classes[self.labels[index]]) for template in self.templates)

    def label(self, index: int) -> int:
        return self.labels[index]

    def source(self, index: int) -> str:
        return self.files[index]


def open_folder(folder: Path, roots: Roots = None) -> Folder:
    """Return the images of a folder of class folders. A class is named like its folder, with a space for each `_`.

    If all folder names are synsets of ImageNet, the classes get open_clip's names.

    roots: the folders that links may lead to. Errors: DataProblem.
    """
    names: list[str] = []
    files: list[str] = []
    labels: list[int] = []
    empty: list[str] = []
    for path in subfolders(folder, roots):
        found = [member.path for member in in_folder(path, roots) if member.name.lower().endswith(images.SUFFIXES)]
        if not found:
            empty.append(path.name)
            continue
        labels += [len(names)] * len(found)
        names.append(path.name.replace("_", " "))
        files += found
    if not files:
        raise DataProblem(
            f"{folder} holds no images in folders: expected a folder for each class, "
            f"and in it files ending in {', '.join(images.SUFFIXES)}"
        )
    notes = [f"folders without images are no classes: {shortened(tuple(empty))}"] if empty else []
    if of_synsets := names_of_synsets(names):
        notes.append(f"folders are synsets of ImageNet: classes have its names, such as {of_synsets[0]} for {names[0]}")
    return Folder(folder.name, of_synsets or tuple(names), files, labels, roots, tuple(notes))


def subfolders(folder: Path, roots: Roots = None) -> list[Path]:
    """Return the visible folders directly in a folder, sorted by name. Errors: DataProblem."""
    try:
        entries = scan_within(folder, roots)
        return sorted(entry.path for entry in entries if entry.is_folder and visible(entry.path.name))
    except OSError as error:
        raise DataProblem(f"{folder} cannot be read: {error.strerror}") from error
